//! The steps of a run, each by its command and by what the data plane answered.

use super::changes::Made;
use super::{Action, Agent, CONFIRM_MARGIN, Kept, REFIT, State};
use crate::message::{Head, PlanHash, Preparation, Reply, SentTotal, StopReason};
use crate::outcome::Fault;
use packetrig_stats::port::PortInfo;
use packetrig_stats::result::NodeResult;
use packetrig_units::{MonoTime, Nanos};
use std::sync::Arc;

impl Agent {
    pub(super) fn prepare(&mut self, head: Head, preparation: Box<Preparation>) -> Vec<Action> {
        if self.head.as_ref() == Some(&head) {
            return self.answer();
        }
        let part_of = preparation.part_of.clone();
        if part_of.unwrap_or_else(|| PlanHash::of(&preparation.document)) != head.plan {
            return vec![Action::Reply(
                head,
                Reply::Refused("the plan's text is not the one announced".to_owned()),
            )];
        }
        self.make_room(&head);
        let newer = self.head.as_ref().is_some_and(|own| own.attempt < head.attempt && own.plan == head.plan);
        match self.state {
            State::Idle => {
                self.head = Some(head);
                self.state = State::Preparing;
                (self.steered, self.change) = (preparation.steered, (0, Made::Over(None)));
                vec![Action::Prepare(preparation)]
            }
            // Nothing was confirmed, so nothing was sent: the ports serve the new attempt as they are.
            State::Prepared | State::Leasing | State::Armed | State::Waiting { confirmed: false, .. }
                if newer =>
            {
                self.end_lease();
                self.head = Some(head);
                self.state = State::Prepared;
                self.reply(Reply::Prepared { ports: self.ports.clone() })
            }
            _ => {
                vec![Action::Reply(head, Reply::Refused("an earlier attempt is still under way".to_owned()))]
            }
        }
    }

    pub(super) fn prepared(&mut self, ports: Vec<PortInfo>) -> Vec<Action> {
        self.ports.clone_from(&ports);
        self.outcome(&State::Preparing, State::Prepared, Reply::Prepared { ports })
    }

    pub(super) fn arm(&mut self) -> Vec<Action> {
        if self.state == State::Prepared {
            self.state = State::Arming;
            return vec![Action::Arm];
        }
        self.answer()
    }

    pub(super) fn armed(&mut self, now: MonoTime) -> Vec<Action> {
        if self.state == State::Arming && self.lease.is_some() {
            self.state = State::Leasing;
            return self.begin_lease(now);
        }
        self.outcome(&State::Arming, State::Armed, Reply::Armed)
    }

    pub(super) fn commit(&mut self, start: MonoTime, guard: Nanos, now: MonoTime) -> Vec<Action> {
        if self.state == State::Armed {
            // In a steered run nothing begins at T.
            if now + guard >= start && !self.steered {
                return self.reply(Reply::Late);
            }
            self.state = State::Waiting { start, confirmed: false };
        }
        self.answer()
    }

    pub(super) fn confirm(&mut self, start: MonoTime, now: MonoTime) -> Vec<Action> {
        match self.state {
            State::Waiting { start: own, confirmed: false } if self.is_same(own, start) => {
                if now + CONFIRM_MARGIN >= start && !self.steered {
                    return self.reply(Reply::Late);
                }
                self.state = State::Waiting { start, confirmed: true };
                let mut actions = vec![Action::StartAt(start)];
                actions.extend(self.reply(Reply::Confirmed));
                actions
            }
            State::Armed | State::Prepared => self.reply(Reply::Refused("no start was committed".to_owned())),
            _ => self.answer(),
        }
    }

    /// Whether two instants are the same T. In a fleet both were converted from the controller's clock, the second one
    /// perhaps by a better fit.
    fn is_same(&self, committed: MonoTime, confirmed: MonoTime) -> bool {
        let slack = if self.lease.is_some() { REFIT } else { Nanos::ZERO };
        committed.since(confirmed) <= slack && confirmed.since(committed) <= slack
    }

    pub(super) fn stop(&mut self) -> Vec<Action> {
        match self.state {
            // By the controller's clock T has passed.
            State::Running | State::Waiting { confirmed: true, .. } => self.stop_senders(StopReason::Told),
            _ => self.answer(),
        }
    }

    /// What ends the senders first is the reason.
    pub(super) fn stop_senders(&mut self, why: StopReason) -> Vec<Action> {
        self.state = State::Running;
        self.why.get_or_insert(why);
        vec![Action::StopSenders]
    }

    pub(super) fn senders_done(&mut self, sent: Vec<SentTotal>, shut: bool) -> Vec<Action> {
        if self.state != State::Running {
            return Vec::new();
        }
        let ended = if shut { StopReason::LeaseOver } else { StopReason::Done };
        let why = *self.why.get_or_insert(ended);
        // Emulated interfaces are still needed while others send; not longer than the owner lets anything be sent.
        if why == StopReason::OwnersLimit {
            self.end_lease();
        }
        self.state = State::Stopped(sent);
        self.answer()
    }

    pub(super) fn finish(&mut self, sent: Vec<SentTotal>) -> Vec<Action> {
        match self.state {
            State::Stopped(_) => {
                self.end_lease();
                self.state = State::Finishing;
                vec![Action::Finish(sent)]
            }
            State::Running => self.reply(Reply::Refused("senders are still at work".to_owned())),
            _ => self.answer(),
        }
    }

    pub(super) fn finished(&mut self, result: Arc<NodeResult>) -> Vec<Action> {
        if self.lease.is_some() {
            return self.spool(result);
        }
        let reply = Reply::Result(Arc::clone(&result));
        self.outcome(&State::Finishing, State::Spooled(Kept::Result(result)), reply)
    }

    pub(super) fn collected(&mut self, head: &Head) -> Vec<Action> {
        if self.head.as_ref() == Some(head) && matches!(self.state, State::Spooled(_) | State::Failed(_)) {
            self.forget(head.clone());
        }
        Vec::new()
    }

    pub(super) fn abort(&mut self, head: Head) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.head.as_ref().is_some_and(|own| own.run == head.run && own.attempt <= head.attempt) {
            actions.push(Action::Release);
            self.forget(head.clone());
        } else {
            self.remember(&head);
        }
        actions.push(Action::Reply(head, Reply::Aborted));
        actions
    }

    /// What went wrong ends the run here; the controller decides what that means for the others.
    pub(super) fn failed(&mut self, fault: Fault) -> Vec<Action> {
        if matches!(self.state, State::Idle | State::Spooled(_) | State::Failed(_)) {
            return Vec::new();
        }
        self.end_lease();
        self.state = State::Failed(fault.clone());
        let mut actions = vec![Action::Release];
        actions.extend(self.reply(Reply::Failed(fault)));
        actions
    }

    pub(super) fn tick(&mut self, now: MonoTime) -> Vec<Action> {
        if self.silence_ends().is_some_and(|at| now >= at) {
            return self.deserted();
        }
        if matches!(self.state, State::Stopped(_)) && self.stop_at.is_some_and(|at| now >= at) {
            self.end_lease();
        }
        let mut actions = self.renew(now);
        actions.extend(self.begin(now));
        actions.extend(self.guard_senders(now));
        actions
    }

    fn begin(&mut self, now: MonoTime) -> Vec<Action> {
        match self.state {
            State::Waiting { start, confirmed: true } if now >= start => {
                self.state = State::Running;
                if self.lease.as_ref().is_some_and(|lease| !lease.is_valid_at(start)) {
                    return self.stop_senders(StopReason::NoLease);
                }
                self.stop_at = self.longest.map(|longest| start + longest);
                self.reply(Reply::Started)
            }
            State::Waiting { start, confirmed: false } if now >= start && !self.steered => {
                // T has passed without a confirmation. Still receiving, ready for another attempt.
                self.state = State::Armed;
                self.reply(Reply::Late)
            }
            _ => Vec::new(),
        }
    }
}
