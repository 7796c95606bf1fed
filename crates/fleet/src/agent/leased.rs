//! Behaviour of an agent in a fleet: leases, a change of controller, and results that wait on the disk.

use super::{AgentAction, AgentMachine, AgentState, EndedAttempt, MAX_REMEMBERED_RUNS, StoredResult};
use crate::lease::{AgentLease, LeaseAnswer};
use crate::message::{LeaseGrant, MessageHead, NodeCommand, NodeReply, Nonce, StopReason};
use packetrig_stats::result::NodeResult;
use packetrig_units::{MonoTime, Nanos};
use std::sync::Arc;

/// State of a fleet's agent that survives a restart of the agent.
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
        // Fencing: a lower epoch must be refused even after a restart. Without leases, controller and agent are one
        // process, so nothing need be stored.
        if rises && self.lease.is_some() { vec![AgentAction::Remember(epoch)] } else { Vec::new() }
    }

    /// Lets a later controller end a run that an earlier controller began. From now on, replies about the run carry the
    /// later controller's epoch, so they go to that controller.
    pub(super) fn adopt_epoch(&mut self, head: &MessageHead, command: &NodeCommand) {
        // Only commands that query or end a run change its epoch: a later controller never starts a run that
        // an earlier one prepared.
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
                // The earlier controller may still answer a renewal that was asked after the later
                // controller began. Such an answer would extend the lease beyond the end that the
                // later controller computes (`LeaseTerms::certain_stop_time`).
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

    /// Asks the controller for a renewal of the lease, if a renewal is due.
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
        // Fencing: a grant for another attempt, or from a controller that no longer leads this node, extends no lease.
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
                actions.extend(self.advance_if_in_state(
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
        // If there is a reason already, the senders have been ordered to stop.
        if self.state != AgentState::Running || self.why.is_some() {
            return Vec::new();
        }
        // The owner's limit is checked first: if the limit and the lease have both ended, the limit is the reason,
        // because no renewal could have extended it.
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

    /// Time at which the agent ends the run without its controller, if the controller stays silent until then.
    pub(super) fn silence_deadline(&self) -> Option<MonoTime> {
        let Some(lease) = &self.lease else {
            // Without leases the controller is in this process: its silence means that it is gone.
            return (self.state != AgentState::Idle).then(|| self.heard + self.silence_timeout);
        };
        let orphaned = lease.terms().orphaned;
        match self.state {
            // These states end when the data plane or the disk is done, so they need no deadline.
            AgentState::Idle | AgentState::Finishing | AgentState::Spooling => None,
            // While the lease is valid, the controller does not count as silent. When it ends, `stop_expired_senders`
            // stops the senders, and the agent waits for them.
            AgentState::Running if self.why.is_none() => None,
            // In these states the run has started, so no other node can still be getting ready.
            AgentState::Stopped(_) | AgentState::Spooled(_) => Some(self.heard + orphaned),
            // Before the start, the controller may be silent because it waits for other nodes to get ready.
            _ => Some(self.heard + orphaned + orphaned),
        }
    }

    /// Ends a run with a silent controller, because no other controller would. In a fleet, a run with stopped senders
    /// is finished and its result goes to the spool. Any other run is released and forgotten.
    pub(super) fn end_run_without_controller(&mut self) -> Vec<AgentAction> {
        let leased = self.lease.is_some();
        // The counts of received frames are kept. Only the controller has the totals of other nodes, so the final
        // counts use only the totals of this node.
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

    /// Number of segments of the result in the spool, if this command asks for the result of an attempt that has ended
    /// and is in the spool. Otherwise `None`.
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
            AgentState::Spooled(StoredResult::Segments(segments)) if self.head.as_ref() == Some(head) => {
                // A result in memory is not remembered, because it is lost when its run is forgotten.
                Some(segments)
            }
            _ => None,
        };
        self.ended.push_back(EndedAttempt { run: head.run.clone(), attempt: head.attempt, kept });
    }

    pub(super) fn spool_result(&mut self, result: Arc<NodeResult>) -> Vec<AgentAction> {
        // The run was aborted while the data plane computed the final counts, so the result is dropped.
        if self.state != AgentState::Finishing {
            return Vec::new();
        }
        self.state = AgentState::Spooling;
        vec![AgentAction::Spool(result)]
    }

    pub(super) fn on_result_spooled(&mut self, segments: u64) -> Vec<AgentAction> {
        let kept = AgentState::Spooled(StoredResult::Segments(segments));
        let actions = self.advance_if_in_state(&AgentState::Spooling, kept, NodeReply::Spooled { segments });
        if self.orphan
            && let Some(head) = self.head.clone()
        {
            // No controller waits for the result. The spool keeps it until a controller collects it.
            self.forget_run(head);
        }
        actions
    }

    /// Forgets the current run if it has released its ports and `next` is another run, so that `next` can be prepared.
    pub(super) fn forget_released_run(&mut self, next: &MessageHead) {
        if let Some(own) = self.head.clone()
            && self.has_released_ports()
            && own.run != next.run
        {
            self.forget_run(own);
        }
    }

    /// True if the current run is a run of a fleet that has released its ports: it failed, or its result
    /// is in the spool.
    pub(super) fn has_released_ports(&self) -> bool {
        let done =
            matches!(self.state, AgentState::Spooled(StoredResult::Segments(_)) | AgentState::Failed(_));
        self.lease.is_some() && done
    }

    /// Records a sign of life from the controller.
    pub(super) fn record_contact(&mut self, now: MonoTime) {
        self.heard = now;
        // The controller sends messages again and will collect the result, so the run must not be forgotten when the
        // result is in the spool.
        self.orphan = false;
    }
}
