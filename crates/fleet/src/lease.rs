//! Leases: a node may send only while its controller answers.
//!
//! The agent asks for a renewal with a [`Nonce`]. An answer extends the lease until `ttl` and `grace` have passed since
//! the question was *sent*, so a delay of the messages can only shorten a lease. The controller remembers when it
//! answered. From this time it computes, without another message, when a silent node has certainly stopped.
//!
//! This module only calculates: it sends nothing and stops no sender. The fabric authenticates the answers before they
//! are passed to this module.
//!
//! Invariant: a lease never ends later than `ttl` and `grace` after the last answered question was sent.

use crate::message::{LeaseGrant, Nonce};
use packetrig_units::{MonoTime, Nanos};
use std::collections::VecDeque;

/// Parameters of leases. Node and controller both know them in advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerms {
    /// Time from the sending of an answered question to the end of the lease.
    pub ttl: Nanos,
    /// Additional time for which senders continue without an answer of the controller; zero by default.
    pub grace: Nanos,
    /// Time for which an agent with a silent controller keeps its receivers running, and waits for its
    /// result to be collected.
    pub orphaned: Nanos,
}

/// Time that the controller may spend on the answer to one question of a node. It limits the rate of all questions.
const ANSWER_TIME_PER_QUESTION: Nanos = Nanos::from_micros(250);
/// Longest time from the end of a lease to the end of the last sender: the supervisor of the node kills senders that
/// run 500 ms after the end of the lease, and needs at most 200 ms for it.
const SUPERVISOR_REACTION_TIME: Nanos = Nanos::from_millis(700);

impl LeaseTerms {
    /// Terms of a fleet.
    pub const FLEET_TERMS: Self = Self::with_ttl(Nanos::from_secs(2));

    /// Returns terms with this `ttl`, without grace, and with 30 s for receivers without a controller.
    pub const fn with_ttl(ttl: Nanos) -> Self {
        Self { ttl, grace: Nanos::ZERO, orphaned: Nanos::from_secs(30) }
    }

    /// Time between two questions of a node, in a run with this many nodes. With a shorter interval, a lease survives
    /// longer gaps without answers: with few nodes, gaps of 1.8 s if the lease is 2 s. All nodes together send at most
    /// 4000 questions a second, unless there are so many nodes that four questions of each within `ttl` are more.
    pub fn renewal_interval(self, nodes: usize) -> Nanos {
        let by_load = Nanos::new((nodes as u64).saturating_mul(ANSWER_TIME_PER_QUESTION.as_u64()));
        by_load.clamp(Nanos::new(self.ttl.as_u64() / 16), self.longest_renewal_interval())
    }

    const fn longest_renewal_interval(self) -> Nanos {
        Nanos::new(self.ttl.as_u64() / 4)
    }

    /// End of a lease whose last answered question was sent at `sent`.
    pub fn lease_end_time(self, sent: MonoTime) -> MonoTime {
        sent + self.ttl + self.grace
    }

    /// Time on the controller's clock at which a node has certainly stopped sending, if the controller answered its
    /// last question at `answered`. The rates of the two clocks may differ by a thousandth.
    pub fn certain_stop_time(self, answered: MonoTime) -> MonoTime {
        let term = self.ttl + self.grace;
        answered + term + Nanos::new(term.as_u64() / 1000) + SUPERVISOR_REACTION_TIME
    }
}

/// Effect of the controller's answer to a question for a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseAnswer {
    /// The answer belongs to no open question, or does not extend the lease.
    Nothing,
    /// Senders may run until this time.
    Until(MonoTime),
    /// Senders must stop now.
    Stop,
}

/// The lease of an agent, and its open questions for renewals. No nonce is used twice.
#[derive(Clone, Debug)]
pub struct AgentLease {
    terms: LeaseTerms,
    next: u64,
    /// Questions whose answer would still extend the lease.
    open: VecDeque<(Nonce, MonoTime)>,
    /// Time between two questions.
    renew_every: Nanos,
    /// Time of the next question; `None` while no lease is wanted.
    renew_at: Option<MonoTime>,
    until: Option<MonoTime>,
}

impl AgentLease {
    /// Creates an agent's lease state, at first without a lease. Nonces count from `first`, far above those of earlier
    /// starts of this agent.
    pub const fn new(terms: LeaseTerms, first: Nonce) -> Self {
        let renew_every = terms.longest_renewal_interval();
        Self { terms, next: first.0, open: VecDeque::new(), renew_every, renew_at: None, until: None }
    }

    /// Sets the time between two questions to the value that the controller requests, limited to the range
    /// that the terms allow.
    pub fn set_renewal_interval(&mut self, every: Nanos) {
        // With these limits, no lease runs out between two questions, and the agent cannot flood the controller.
        let longest = self.terms.longest_renewal_interval();
        self.renew_every = every.clamp(Nanos::new(longest.as_u64() / 8), longest);
    }

    pub const fn terms(&self) -> LeaseTerms {
        self.terms
    }

    /// Begins to ask for renewals. An earlier lease becomes invalid.
    pub fn start_renewing(&mut self, now: MonoTime) {
        self.stop_renewing();
        // The first question goes out at once, because ARMED waits for its answer.
        self.renew_at = Some(now);
    }

    /// Ends the lease: no questions are sent, and no answers are accepted any more.
    pub fn stop_renewing(&mut self) {
        self.renew_at = None;
        self.until = None;
        self.open.clear();
    }

    /// Drops the open questions, so that answers of an earlier controller are not accepted any more.
    pub fn drop_open_questions(&mut self) {
        self.open.clear();
    }

    /// Returns the nonce of a question to send now, and records the question as open. `None` if no question is due.
    pub fn take_due_question(&mut self, now: MonoTime) -> Option<Nonce> {
        if self.renew_at.is_none_or(|at| now < at) {
            return None;
        }
        // After a late question the next one is due a whole interval from now: missed questions are not sent later.
        self.renew_at = Some(now + self.renew_every);
        // An answer to an older question could not extend the lease, so such questions are forgotten.
        self.open.retain(|(_, sent)| now < self.terms.lease_end_time(*sent));
        let nonce = Nonce(self.next);
        // The number is used up even if the question is lost: no nonce may be used twice.
        self.next += 1;
        self.open.push_back((nonce, now));
        Some(nonce)
    }

    /// Handles an answer and returns its effect.
    pub fn on_grant(&mut self, grant: LeaseGrant, now: MonoTime) -> LeaseAnswer {
        let Some(index) = self.open.iter().position(|(nonce, _)| *nonce == grant.nonce) else {
            return LeaseAnswer::Nothing;
        };
        // Each question is answered once: a replayed answer finds no open question.
        let Some((_, sent)) = self.open.remove(index) else { return LeaseAnswer::Nothing };
        if !grant.go_on {
            // An answer to an earlier question may still arrive, and must not start the senders again.
            self.stop_renewing();
            return LeaseAnswer::Stop;
        }
        let until = self.terms.lease_end_time(sent);
        // Answers may overtake each other. A late one never shortens the lease.
        if until <= now || self.until.is_some_and(|other| until <= other) {
            return LeaseAnswer::Nothing;
        }
        self.until = Some(until);
        LeaseAnswer::Until(until)
    }

    /// True if senders may run at `time`.
    pub fn is_valid_at(&self, time: MonoTime) -> bool {
        self.until.is_some_and(|until| time < until)
    }

    /// Time of the next question; `None` while no lease is wanted.
    pub fn next_deadline(&self) -> Option<MonoTime> {
        self.renew_at
    }

    /// Time at which the lease ends unless it is renewed; `None` without a lease.
    pub const fn valid_until(&self) -> Option<MonoTime> {
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> MonoTime {
        MonoTime::from_nanos(ms * 1_000_000)
    }

    fn lease() -> AgentLease {
        let mut lease = AgentLease::new(LeaseTerms::with_ttl(Nanos::from_millis(2000)), Nonce(100));
        lease.start_renewing(at(0));
        lease
    }

    fn yes(nonce: u64) -> LeaseGrant {
        LeaseGrant { nonce: Nonce(nonce), go_on: true }
    }

    #[test]
    fn lease_term_counts_from_question_time() {
        let mut lease = lease();
        assert!(!lease.is_valid_at(at(0)), "a question alone is worth nothing");
        assert_eq!(lease.take_due_question(at(0)), Some(Nonce(100)));
        assert_eq!(lease.take_due_question(at(499)), None);
        assert_eq!(lease.on_grant(yes(100), at(1500)), LeaseAnswer::Until(at(2000)));
        assert!(lease.is_valid_at(at(1999)));
        assert!(!lease.is_valid_at(at(2000)));
    }

    #[test]
    fn lease_survives_silence_shorter_than_term() {
        let mut lease = lease();
        lease.set_renewal_interval(LeaseTerms::FLEET_TERMS.renewal_interval(6));
        let (frozen, thawed) = (1100, 1100 + 1700);
        for ms in 0..4000 {
            if let Some(nonce) = lease.take_due_question(at(ms)) {
                // Questions of that time are answered afterwards.
                let is_lost = ms >= frozen && ms < thawed;
                if !is_lost {
                    lease.on_grant(LeaseGrant { nonce, go_on: true }, at(ms));
                }
            }
            assert!(lease.is_valid_at(at(ms)), "{ms}");
        }
    }

    #[test]
    fn many_nodes_ask_less_often_but_often_enough() {
        let every = |nodes| LeaseTerms::FLEET_TERMS.renewal_interval(nodes).as_u64() / 1_000_000;
        assert_eq!([1, 100, 500, 1000, 50_000].map(every), [125, 125, 125, 250, 500], "milliseconds");
        let mut lease = lease();
        for (wished, taken) in [(0, 62), (125, 125), (9000, 500)] {
            lease.set_renewal_interval(Nanos::from_millis(wished));
            assert_eq!(lease.renew_every.as_u64() / 1_000_000, taken);
        }
    }

    #[test]
    fn lease_grant_counts_once_and_in_time() {
        let mut lease = lease();
        assert_eq!(lease.on_grant(yes(100), at(1)), LeaseAnswer::Nothing, "never asked");
        lease.take_due_question(at(0));
        assert_eq!(lease.on_grant(yes(100), at(2000)), LeaseAnswer::Nothing, "as late as the end itself");
        lease.take_due_question(at(2000));
        assert_eq!(lease.on_grant(yes(101), at(2001)), LeaseAnswer::Until(at(4000)));
        assert_eq!(lease.on_grant(yes(101), at(2002)), LeaseAnswer::Nothing, "once more");
    }

    #[test]
    fn reordered_grants_never_shorten_lease() {
        let mut lease = lease();
        lease.take_due_question(at(0));
        lease.take_due_question(at(500));
        assert_eq!(lease.on_grant(yes(101), at(600)), LeaseAnswer::Until(at(2500)));
        assert_eq!(lease.on_grant(yes(100), at(601)), LeaseAnswer::Nothing);
        assert_eq!(lease.valid_until(), Some(at(2500)));
    }

    #[test]
    fn a_stop_is_final() {
        let mut lease = lease();
        lease.take_due_question(at(0));
        lease.take_due_question(at(500));
        assert_eq!(
            lease.on_grant(LeaseGrant { nonce: Nonce(100), go_on: false }, at(501)),
            LeaseAnswer::Stop
        );
        assert_eq!(lease.on_grant(yes(101), at(502)), LeaseAnswer::Nothing);
        assert!(!lease.is_valid_at(at(502)));
        assert_eq!(lease.take_due_question(at(5000)), None);
    }

    #[test]
    fn lease_nonces_are_not_reused() {
        let mut lease = lease();
        lease.take_due_question(at(0));
        lease.stop_renewing();
        lease.start_renewing(at(10));
        assert_eq!(lease.take_due_question(at(10)), Some(Nonce(101)));
        assert_eq!(lease.on_grant(yes(100), at(11)), LeaseAnswer::Nothing, "of the lease before");
    }

    #[test]
    fn certainly_stopped_adds_drift_and_supervisor_margin() {
        let terms = LeaseTerms::with_ttl(Nanos::from_secs(2));
        assert_eq!(terms.certain_stop_time(at(1000)), at(1000 + 2002 + 700));
        let longer = LeaseTerms { grace: Nanos::from_secs(60), ..terms };
        assert_eq!(longer.certain_stop_time(at(0)), at(62_062 + 700));
    }
}
