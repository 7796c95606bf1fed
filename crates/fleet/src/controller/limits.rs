//! The controller's timeouts.

use crate::agent::CONFIRM_MARGIN;
use crate::lease::LeaseTerms;
use packetrig_units::Nanos;

/// The lead time covers the commit, its confirmation, and one more round for a node that is slower than while arming.
const ROUNDS_BEFORE_START: u64 = 3;

/// Timeouts of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunLimits {
    /// Lead time: from the choice of the start time until the start. Doubled in each further attempt.
    pub lead: Nanos,
    /// Acknowledgements of a commit must arrive this long before the start time.
    pub guard: Nanos,
    /// Minimum time between the confirmation and the start time: with less left, the controller does not confirm.
    pub margin: Nanos,
    /// The lead time is at least this many times the time that arming took. Zero where the time to arm says
    /// nothing about messages.
    pub arming_rounds: u64,
    /// Maximum number of attempts to start.
    pub attempts: u32,
    /// Time for every node to prepare, and again to arm.
    pub prepare: Nanos,
    /// Time after the start time for acknowledgements of the confirmation: a node without one counts as not started.
    pub confirm: Nanos,
    /// Time after the start time for every node to report that it has started.
    pub start: Nanos,
    /// Time without a message after which the controller gives up a running node.
    pub silence: Nanos,
    /// Time for senders to stop after the order to stop.
    pub stop: Nanos,
    /// Time from the last sender's end until receivers stop.
    pub drain: Nanos,
    /// Time for results to arrive.
    pub collect: Nanos,
    /// Time, within `collect`, for the results of nodes that were given up.
    pub late: Nanos,
    /// Time until an unanswered command is repeated.
    pub repeat: Nanos,
    /// Time until a running node is asked for its progress although it reports: its last reply may have been lost.
    pub query: Nanos,
    /// Time until an unanswered commit or confirmation is repeated.
    pub insist: Nanos,
    /// Terms of the leases; `None` where nodes cannot outlive the controller.
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
            // The messages go through a channel. Arming takes as long as the kernel needs for rings and programs.
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
        // A confirmation that is sent at the last moment still arrives before nodes refuse it.
        let guard = CONFIRM_MARGIN + two_round_trips.max(Nanos::from_millis(10));
        Self {
            lead: guard + five_round_trips.max(Nanos::from_millis(50)),
            guard,
            margin: CONFIRM_MARGIN,
            arming_rounds: ROUNDS_BEFORE_START,
            attempts: 5,
            // A long time here delays no regular start. A short one would report a split start when a
            // busy machine acknowledges late.
            confirm: two_round_trips.max(Nanos::from_millis(500)),
            start: Nanos::from_secs(5),
            // The lease of the node has certainly ended by then: 2 s x 1.001 + 0.7 s.
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
