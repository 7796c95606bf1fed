//! The controller's timeouts.

use crate::agent::CONFIRM_MARGIN;
use crate::lease::LeaseTerms;
use packetrig_units::Nanos;

/// Rounds of messages in the lead time: the commit, the confirmation, and one more in case a node has become slower.
const ROUNDS_BEFORE_START: u64 = 3;

/// Timeouts of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunLimits {
    /// Time from the choice of the start time until the start (lead time). It doubles with each further attempt.
    pub lead: Nanos,
    /// Acknowledgements of a commit must arrive this long before the start time.
    pub guard: Nanos,
    /// Minimum time between the confirmation and the start time: with less left, the controller does not confirm.
    pub margin: Nanos,
    /// The lead time is at least this many times the time that arming took. Zero for a single local node, where the
    /// time to arm does not depend on messages.
    pub arming_rounds: u64,
    /// Maximum number of attempts to start.
    pub attempts: u32,
    /// Time limit for all nodes to prepare. The same limit applies again to arming.
    pub prepare: Nanos,
    /// Time after the start time within which a node must have acknowledged the confirmation; otherwise the node
    /// counts as not started.
    pub confirm: Nanos,
    /// Time after the start time within which every node must report that it has started.
    pub start: Nanos,
    /// Time without a message after which the controller gives up a running node.
    pub silence: Nanos,
    /// Time within which senders must stop after the order to stop.
    pub stop: Nanos,
    /// Time from the end of the last sender until receivers stop, unless frames still arrive (drain time).
    pub drain: Nanos,
    /// Time within which the results must arrive.
    pub collect: Nanos,
    /// Time for which the controller waits for results of nodes that it gave up. It begins together with `collect`.
    pub late: Nanos,
    /// Time until an unanswered command is repeated.
    pub repeat: Nanos,
    /// Interval of queries to a running node that sends samples: its last reply may have been lost.
    pub query: Nanos,
    /// Time until an unanswered commit or confirmation is repeated.
    pub insist: Nanos,
    /// Terms of the leases; `None` if the only node is in the controller's own process and ends with it.
    pub lease: Option<LeaseTerms>,
}

impl RunLimits {
    /// Limits for one node in the controller's own process.
    pub const fn for_local(drain: Nanos) -> Self {
        Self {
            // Commit and confirmation take well under a millisecond. The remaining lead time is for a busy
            // machine; if it is not enough, each further attempt has twice the lead time, the last one 2.5 s.
            lead: Nanos::from_millis(20),
            guard: Nanos::from_millis(10),
            // 2 ms more than `LOCAL_CONFIRM_MARGIN`: with less time than that, the agent refuses a confirmation.
            margin: Nanos::from_millis(9),
            // Messages go through a channel and take almost no time: arming takes as long as the kernel needs
            // for rings and programs.
            arming_rounds: 0,
            attempts: 8,
            prepare: Nanos::from_secs(30),
            confirm: Nanos::from_secs(10),
            start: Nanos::from_secs(10),
            silence: Nanos::from_secs(30),
            stop: Nanos::from_secs(10),
            drain,
            collect: Nanos::from_secs(60),
            // A lost agent of this process has no spool that could deliver a result later.
            late: Nanos::ZERO,
            repeat: Nanos::from_secs(1),
            query: Nanos::from_secs(1),
            insist: Nanos::from_secs(1),
            lease: None,
        }
    }

    /// Limits for a fleet. `round_trip`: time until the slowest node acknowledges a command.
    pub fn for_fleet(round_trip: Nanos, drain: Nanos) -> Self {
        // Decision 0012 states these figures as multiples of the one-way delay f; a round trip is 2 f.
        let round_trip = round_trip.max(Nanos::from_millis(2));
        let two_round_trips = round_trip + round_trip;
        let five_round_trips = two_round_trips + two_round_trips + round_trip;
        // A confirmation that is sent when this time is left still arrives before the nodes would refuse it.
        let guard = CONFIRM_MARGIN + two_round_trips.max(Nanos::from_millis(10));
        Self {
            lead: guard + five_round_trips.max(Nanos::from_millis(50)),
            guard,
            margin: CONFIRM_MARGIN,
            arming_rounds: ROUNDS_BEFORE_START,
            attempts: 5,
            // A long limit delays no regular start. With a short one, a busy machine that acknowledges late would be
            // reported as not started.
            confirm: two_round_trips.max(Nanos::from_millis(500)),
            start: Nanos::from_secs(5),
            // The lease of a silent node has certainly ended by then: 2 s x 1.001 + 0.7 s.
            silence: Nanos::from_secs(3),
            late: Nanos::from_secs(10),
            repeat: two_round_trips.max(Nanos::from_millis(500)),
            query: Nanos::from_secs(2),
            insist: two_round_trips.max(Nanos::from_millis(20)),
            lease: Some(LeaseTerms::FLEET_TERMS),
            ..Self::for_local(drain)
        }
    }
}
