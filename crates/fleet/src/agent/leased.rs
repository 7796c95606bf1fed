//! Behaviour of an agent in a fleet: leases, a change of controller, and results that wait on the disk.

use super::{AgentAction, AgentMachine, AgentState, EndedAttempt, KeptResult, MAX_REMEMBERED_RUNS};
use crate::lease::{AgentLease, LeaseAnswer};
use crate::message::{LeaseGrant, MessageHead, NodeCommand, NodeReply, Nonce, StopReason};
use packetrig_stats::result::NodeResult;
use packetrig_units::{MonoTime, Nanos};
use std::sync::Arc;

/// State that an agent of a fleet keeps over restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PersistentAgentState {
    /// Highest epoch that it has seen, stored by [`AgentAction::Remember`].
    pub epoch: u64,
    /// First nonce, far above those of earlier starts of this agent.
    pub nonce: Nonce,
    /// Longest time for which the node's owner allows senders to run, counted from the start time.
    pub longest: Option<Nanos>,
}

impl AgentMachine {
    /// Raises the epoch and stores it, before any command of the epoch takes effect.
    pub(super) fn raise_epoch(&mut self, epoch: u64) -> Vec<AgentAction> {
        let rises = epoch > self.epoch;
        self.epoch = self.epoch.max(epoch);
        // Fencing: a lower epoch stays refused even after a restart. Without leases there is one process and nothing to
        // store.
        if rises && self.lease.is_some() { vec![AgentAction::Remember(epoch)] } else { Vec::new() }
    }

    /// Lets a later controller end a run that an earlier one began: the run stays the same, and answers go to the later
    /// controller from now on.
    pub(super) fn adopt_epoch(&mut self, head: &MessageHead, command: &NodeCommand) {
        // Only commands that end a run change its epoch: a later controller never starts a run that an earlier one
        // prepared.
        let ends = matches!(
            command,
            NodeCommand::Query
                | NodeCommand::Stop
                | NodeCommand::Finish { .. }
                | NodeCommand::Collected
                | NodeCommand::Abort
        );
        let Some(own) = self.head.as_mut().filter(|_| ends) else { return };
        if own.run == head.run
            && own.attempt == head.attempt
            && own.plan == head.plan
            && own.epoch < head.epoch
        {
            // Replies carry this head, and the later controller ignores replies of another epoch.
            own.epoch = head.epoch;
            if let Some(lease) = &mut self.lease {
                // The earlier controller may still answer a question that was sent after the later one began. The lease
                // would then run beyond the end that the later one computes (`LeaseTerms::certain_stop_time`).
                lease.drop_open_questions();
            }
        }
    }

    pub(super) fn start_lease_renewal(&mut self, now: MonoTime) -> Vec<AgentAction> {
        if let Some(lease) = &mut self.lease {
            lease.start_renewing(now);
        }
        self.renew_lease(now)
    }

    pub(super) fn stop_lease_renewal(&mut self) {
        if let Some(lease) = &mut self.lease {
            lease.stop_renewing();
        }
    }

    /// Asks for a renewal of the lease, if it is time.
    pub(super) fn renew_lease(&mut self, now: MonoTime) -> Vec<AgentAction> {
        let nonce = self.lease.as_mut().and_then(|lease| lease.take_due_question(now));
        let asked = self.head.iter().zip(nonce);
        asked.map(|(head, nonce)| AgentAction::Renew(head.clone(), nonce)).collect()
    }

    pub(super) fn on_lease_grant(
        &mut self,
        head: &MessageHead,
        grant: LeaseGrant,
        now: MonoTime,
    ) -> Vec<AgentAction> {
        // Fencing: a grant for another attempt, or from a controller that has lost, extends no lease.
        if self.head.as_ref() != Some(head) || head.epoch < self.epoch {
            return Vec::new();
        }
        let Some(lease) = &mut self.lease else { return Vec::new() };
        match lease.on_grant(grant, now) {
            LeaseAnswer::Nothing => Vec::new(),
            LeaseAnswer::Until(until) => {
                self.record_contact(now);
                let mut actions = vec![AgentAction::Extend(until)];
                // ARMED is sent only after the first lease has arrived. Otherwise the controller could commit a node
                // that may not send at the start time.
                actions.extend(self.advance_from_state(
                    &AgentState::Leasing,
                    AgentState::Armed,
                    NodeReply::Armed,
                ));
                actions
            }
            LeaseAnswer::Stop => self.on_stop_answer(head.clone()),
        }
    }

    fn on_stop_answer(&mut self, head: MessageHead) -> Vec<AgentAction> {
        match self.state {
            AgentState::Running => self.stop_senders(StopReason::Told),
            // Before the start nothing was sent, so there are no counts to report.
            AgentState::Leasing | AgentState::Armed | AgentState::Waiting { .. } => {
                self.forget_run(head.clone());
                vec![AgentAction::Release, AgentAction::Reply(head, NodeReply::Aborted)]
            }
            _ => Vec::new(),
        }
    }

    /// Stops the senders at the owner's limit or at the lease's end, and records the reason. At the lease's end the
    /// data plane also stops them without this order.
    pub(super) fn stop_expired_senders(&mut self, now: MonoTime) -> Vec<AgentAction> {
        // One reason is enough: the senders have been told to stop.
        if self.state != AgentState::Running || self.why.is_some() {
            return Vec::new();
        }
        // This check comes first: if both have ended, the owner's limit is the reason, because no renewal could have
        // changed it.
        if self.stop_at.is_some_and(|at| now >= at) {
            return self.stop_senders(StopReason::OwnersLimit);
        }
        if self.lease.as_ref().is_some_and(|lease| !lease.is_valid_at(now)) {
            return self.stop_senders(StopReason::LeaseOver);
        }
        Vec::new()
    }

    /// Next time at which [`AgentMachine::stop_expired_senders`] must act.
    pub(super) fn senders_deadline(&self) -> Option<MonoTime> {
        if self.state != AgentState::Running || self.why.is_some() {
            return None;
        }
        let lease = self.lease.as_ref().and_then(AgentLease::valid_until);
        lease.into_iter().chain(self.stop_at).min()
    }

    /// Time at which the agent continues without its controller, if the controller stays silent.
    pub(super) fn silence_deadline(&self) -> Option<MonoTime> {
        let Some(lease) = &self.lease else {
            // Without leases the controller is in this process: its silence means that it is gone.
            return (self.state != AgentState::Idle).then(|| self.heard + self.silence_timeout);
        };
        let orphaned = lease.terms().orphaned;
        match self.state {
            // These states end when the data plane or the disk is done, so they need no deadline.
            AgentState::Idle | AgentState::Finishing | AgentState::Spooling => None,
            // While the lease is valid, the controller does not count as silent. After that, the agent waits
            // for its senders.
            AgentState::Running if self.why.is_none() => None,
            // In these states the senders of this agent have ended, so it waits for no other node to get ready.
            AgentState::Stopped(_) | AgentState::Spooled(_) => Some(self.heard + orphaned),
            // Other nodes may take longer to get ready: silence is no fault then.
            _ => Some(self.heard + orphaned + orphaned),
        }
    }

    /// Ends a run with a silent controller, because no other controller would. In a fleet, a run with stopped senders
    /// is finished and its result goes to the spool. Any other run is released and forgotten.
    pub(super) fn end_without_controller(&mut self) -> Vec<AgentAction> {
        let leased = self.lease.is_some();
        // The counts of received frames are worth keeping. The totals of other nodes are unknown here, so the final
        // counts use only this node's own totals.
        if leased && let AgentState::Stopped(sent) = &self.state {
            let sent = sent.clone();
            self.stop_lease_renewal();
            self.state = AgentState::Finishing;
            // No controller collects the result now: the spool keeps the result, and the agent accepts the next run.
            self.orphan = true;
            return vec![AgentAction::Finish(sent)];
        }
        // A spooled run has no open ports any more, so there is nothing to release.
        let spooled = leased && matches!(self.state, AgentState::Spooled(_));
        if let Some(head) = self.head.clone() {
            self.forget_run(head);
        }
        if spooled { Vec::new() } else { vec![AgentAction::Release] }
    }

    /// Number of segments of an ended attempt with its result in the spool, if this command asks for the result.
    pub(super) fn stored_segment_count(&self, head: &MessageHead, command: &NodeCommand) -> Option<u64> {
        let asks = matches!(command, NodeCommand::Query | NodeCommand::Stop | NodeCommand::Finish { .. });
        if !asks || head.epoch < self.epoch {
            return None;
        }
        let mut ended = self.ended.iter();
        ended.find(|ended| ended.run == head.run && ended.attempt == head.attempt)?.kept
    }

    pub(super) fn remember_ended_attempt(&mut self, head: &MessageHead) {
        // The list is bounded: a controller that starts one run after the other must not fill the memory of the node.
        if self.ended.len() == MAX_REMEMBERED_RUNS {
            self.ended.pop_front();
        }
        let kept = match self.state {
            AgentState::Spooled(KeptResult::Segments(segments)) if self.head.as_ref() == Some(head) => {
                // Only a result on the disk counts: a result in memory is lost when its run is forgotten.
                Some(segments)
            }
            _ => None,
        };
        self.ended.push_back(EndedAttempt { run: head.run.clone(), attempt: head.attempt, kept });
    }

    pub(super) fn spool_result(&mut self, result: Arc<NodeResult>) -> Vec<AgentAction> {
        // The run was aborted while the data plane computed its final counts; its result is not wanted any more.
        if self.state != AgentState::Finishing {
            return Vec::new();
        }
        self.state = AgentState::Spooling;
        vec![AgentAction::Spool(result)]
    }

    pub(super) fn on_result_spooled(&mut self, segments: u64) -> Vec<AgentAction> {
        let kept = AgentState::Spooled(KeptResult::Segments(segments));
        let actions = self.advance_from_state(&AgentState::Spooling, kept, NodeReply::Spooled { segments });
        if self.orphan
            && let Some(head) = self.head.clone()
        {
            // No controller waits for the result. The spool keeps it until a controller collects it.
            self.forget_run(head);
        }
        actions
    }

    /// Forgets a run that no longer holds ports: a spooled or failed run does not delay the next one.
    pub(super) fn forget_released_run(&mut self, next: &MessageHead) {
        if let Some(own) = self.head.clone()
            && self.has_released_ports()
            && own.run != next.run
        {
            self.forget_run(own);
        }
    }

    /// True if no port is open any more, although the run is not forgotten.
    pub(super) fn has_released_ports(&self) -> bool {
        let done = matches!(self.state, AgentState::Spooled(KeptResult::Segments(_)) | AgentState::Failed(_));
        self.lease.is_some() && done
    }

    /// Records a sign of life from the controller.
    pub(super) fn record_contact(&mut self, now: MonoTime) {
        self.heard = now;
        // A controller that is back collects the result, so the run must not be forgotten once it is spooled.
        self.orphan = false;
    }
}
