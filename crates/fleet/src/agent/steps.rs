//! Handles the steps of a run: one function for each command, and one for each answer of the data plane.

use super::changes::LastChange;
use super::{AgentAction, AgentMachine, AgentState, MAX_START_TIME_DIFFERENCE, StoredResult};
use crate::message::{MessageHead, NodeReply, PlanHash, RunPreparation, SentTotal, StopReason};
use packetrig_report::outcome::NodeFault;
use packetrig_stats::port::PortInfo;
use packetrig_stats::result::NodeResult;
use packetrig_units::{MonoTime, Nanos};
use std::sync::Arc;

impl AgentMachine {
    pub(super) fn prepare_run(
        &mut self,
        head: MessageHead,
        preparation: Box<RunPreparation>,
    ) -> Vec<AgentAction> {
        if self.head.as_ref() == Some(&head) {
            return self.report_state();
        }
        // In a fleet the node gets only its part of the plan, but the head carries the hash of the whole plan.
        let part_of = preparation.part_of.clone();
        if part_of.unwrap_or_else(|| PlanHash::from_document(preparation.document.text())) != head.plan {
            return vec![AgentAction::Reply(
                head,
                NodeReply::Refused("the plan does not match its announced hash".to_owned()),
            )];
        }
        self.forget_released_run(&head);
        let newer = self.head.as_ref().is_some_and(|own| own.attempt < head.attempt && own.plan == head.plan);
        match self.state {
            AgentState::Idle => {
                self.head = Some(head);
                self.state = AgentState::Preparing;
                self.steered = preparation.terms.steered;
                // The numbers of changes begin anew in each run.
                self.change = LastChange::default();
                if let (Some(lease), Some(every)) = (&mut self.lease, preparation.renew_every) {
                    lease.set_renewal_interval(every);
                }
                vec![AgentAction::Prepare(preparation)]
            }
            // No start was confirmed, so no frame was sent. The new attempt uses the open ports.
            AgentState::Prepared
            | AgentState::Leasing
            | AgentState::Armed
            | AgentState::Waiting { confirmed: false, .. }
                if newer =>
            {
                // The next attempt requests its own lease when it is armed.
                self.stop_lease_renewal();
                self.head = Some(head);
                self.state = AgentState::Prepared;
                self.reply_to_controller(NodeReply::Prepared { ports: self.ports.clone() })
            }
            _ => {
                vec![AgentAction::Reply(
                    head,
                    NodeReply::Refused("an earlier attempt is still running".to_owned()),
                )]
            }
        }
    }

    pub(super) fn on_ports_prepared(&mut self, ports: Vec<PortInfo>) -> Vec<AgentAction> {
        // The list of ports is kept, because PREPARE may be repeated and gets the same reply.
        self.ports.clone_from(&ports);
        self.advance_if_in_state(&AgentState::Preparing, AgentState::Prepared, NodeReply::Prepared { ports })
    }

    pub(super) fn arm_receivers(&mut self) -> Vec<AgentAction> {
        if self.state == AgentState::Prepared {
            self.state = AgentState::Arming;
            return vec![AgentAction::Arm];
        }
        self.report_state()
    }

    pub(super) fn on_ports_armed(&mut self, now: MonoTime) -> Vec<AgentAction> {
        // In a fleet ARMED waits for the first lease, see `on_lease_grant`.
        if self.state == AgentState::Arming && self.lease.is_some() {
            self.state = AgentState::Leasing;
            return self.start_lease_renewal(now);
        }
        self.advance_if_in_state(&AgentState::Arming, AgentState::Armed, NodeReply::Armed)
    }

    pub(super) fn commit_start(&mut self, start: MonoTime, guard: Nanos, now: MonoTime) -> Vec<AgentAction> {
        // For a repeated commit the state is not `Armed` any more, so it is only answered: the start time never
        // changes within an attempt.
        if self.state == AgentState::Armed {
            // In a steered run no stream begins at the start time.
            if now + guard >= start && !self.steered {
                return self.reply_to_controller(NodeReply::Late);
            }
            self.state = AgentState::Waiting { start, confirmed: false };
        }
        self.report_state()
    }

    pub(super) fn confirm_start(&mut self, start: MonoTime, now: MonoTime) -> Vec<AgentAction> {
        match self.state {
            AgentState::Waiting { start: own, confirmed: false } if self.is_same_start_time(own, start) => {
                // The senders need the time `margin` to receive the start time. If less is left, the node
                // refuses, and the controller reports that this node did not start. Otherwise the node would
                // start late without notice.
                if now + self.margin >= start && !self.steered {
                    return self.reply_to_controller(NodeReply::Late);
                }
                self.state = AgentState::Waiting { start, confirmed: true };
                let mut actions = vec![AgentAction::StartAt(start)];
                actions.extend(self.reply_to_controller(NodeReply::Confirmed));
                actions
            }
            // The node had accepted the start time, but it has passed without a confirmation.
            AgentState::Armed => self.reply_to_controller(NodeReply::Late),
            AgentState::Prepared => {
                self.reply_to_controller(NodeReply::Refused("no start time was committed".to_owned()))
            }
            _ => self.report_state(),
        }
    }

    /// True if two times mean the same start.
    fn is_same_start_time(&self, committed: MonoTime, confirmed: MonoTime) -> bool {
        // In a fleet both times were converted from the controller's clock, the second one possibly with a better fit.
        let slack = if self.lease.is_some() { MAX_START_TIME_DIFFERENCE } else { Nanos::ZERO };
        committed.since(confirmed) <= slack && confirmed.since(committed) <= slack
    }

    pub(super) fn stop_run(&mut self) -> Vec<AgentAction> {
        match self.state {
            // The controller sends STOP after the start. A node without a confirmation also handles it: a controller
            // that was killed while it confirmed may have reached only other nodes. Then the counts of the receivers
            // are the result of this node, and a later confirmation does not start it any more.
            AgentState::Running | AgentState::Armed | AgentState::Waiting { .. } => {
                self.stop_senders(StopReason::Told)
            }
            _ => self.report_state(),
        }
    }

    pub(super) fn stop_senders(&mut self, why: StopReason) -> Vec<AgentAction> {
        // The state may have been `Waiting` or `Armed`, but `SendersDone` is handled only in the state `Running`.
        self.state = AgentState::Running;
        // The first event that ends the senders is the reason.
        self.why.get_or_insert(why);
        vec![AgentAction::StopSenders]
    }

    pub(super) fn on_senders_done(&mut self, sent: Vec<SentTotal>, lease_ended: bool) -> Vec<AgentAction> {
        // An abort or a fault may have ended the run here while its senders were stopping.
        if self.state != AgentState::Running {
            return Vec::new();
        }
        // Each sender checks the lease itself, and may notice its end before a tick does.
        let ended = if lease_ended { StopReason::LeaseOver } else { StopReason::Done };
        let why = *self.why.get_or_insert(ended);
        // The lease keeps emulated interfaces alive while other nodes send, but not beyond the owner's limit.
        if why == StopReason::OwnersLimit {
            self.stop_lease_renewal();
        }
        self.state = AgentState::Stopped(sent);
        self.report_state()
    }

    pub(super) fn finish_run(&mut self, sent: Vec<SentTotal>) -> Vec<AgentAction> {
        match self.state {
            AgentState::Stopped(_) => {
                // Nothing is sent any more, and receivers need no lease.
                self.stop_lease_renewal();
                self.state = AgentState::Finishing;
                vec![AgentAction::Finish(sent)]
            }
            // Barrier: receivers stop only after every sender has stopped.
            AgentState::Running => {
                self.reply_to_controller(NodeReply::Refused("its senders are still running".to_owned()))
            }
            _ => self.report_state(),
        }
    }

    pub(super) fn on_run_finished(&mut self, result: Arc<NodeResult>) -> Vec<AgentAction> {
        if self.lease.is_some() {
            return self.spool_result(result);
        }
        let reply = NodeReply::Result(Arc::clone(&result));
        self.advance_if_in_state(
            &AgentState::Finishing,
            AgentState::Spooled(StoredResult::Result(result)),
            reply,
        )
    }

    pub(super) fn on_result_collected(&mut self, head: &MessageHead) -> Vec<AgentAction> {
        // COLLECTED may be repeated, or may concern a run that was already replaced by the next one.
        if self.head.as_ref() == Some(head)
            && matches!(self.state, AgentState::Spooled(_) | AgentState::Failed(_))
        {
            self.forget_run(head.clone());
        }
        Vec::new()
    }

    pub(super) fn abort_run(&mut self, head: MessageHead) -> Vec<AgentAction> {
        let mut actions = Vec::new();
        if self.head.as_ref().is_some_and(|own| own.run == head.run && own.attempt <= head.attempt) {
            actions.push(AgentAction::Release);
            self.forget_run(head.clone());
        } else {
            // ABORT may overtake its PREPARE, or be repeated. The attempt has ended here in either case.
            self.remember_ended_attempt(&head);
        }
        actions.push(AgentAction::Reply(head, NodeReply::Aborted));
        actions
    }

    pub(super) fn on_run_failed(&mut self, fault: NodeFault) -> Vec<AgentAction> {
        // In these states the run has no open ports on this node, so nothing is left to release.
        if matches!(self.state, AgentState::Idle | AgentState::Spooled(_) | AgentState::Failed(_)) {
            return Vec::new();
        }
        self.stop_lease_renewal();
        // This ends the run only on this node. The controller decides about the other nodes.
        self.state = AgentState::Failed(fault.clone());
        let mut actions = vec![AgentAction::Release];
        actions.extend(self.reply_to_controller(NodeReply::Failed(fault)));
        actions
    }

    pub(super) fn on_tick(&mut self, now: MonoTime) -> Vec<AgentAction> {
        // Silence is checked first: if the run ends because of it, the other actions of this tick do not matter.
        if self.silence_deadline().is_some_and(|at| now >= at) {
            return self.end_run_without_controller();
        }
        // The lease keeps emulated interfaces alive while other nodes send, but not beyond the owner's limit.
        if matches!(self.state, AgentState::Stopped(_)) && self.stop_at.is_some_and(|at| now >= at) {
            self.stop_lease_renewal();
        }
        let mut actions = self.renew_lease(now);
        actions.extend(self.handle_start_time(now));
        // The lease is checked last: when a late tick starts the run, the lease may have ended already.
        actions.extend(self.stop_expired_senders(now));
        actions
    }

    fn handle_start_time(&mut self, now: MonoTime) -> Vec<AgentAction> {
        match self.state {
            AgentState::Waiting { start, confirmed: true } if now >= start => {
                self.state = AgentState::Running;
                // The lease is checked for the start time, not for now: this tick may come later.
                if self.lease.as_ref().is_some_and(|lease| !lease.is_valid_at(start)) {
                    return self.stop_senders(StopReason::NoLease);
                }
                // The owner's limit counts from the start time, not from the preparation.
                self.stop_at = self.longest.map(|longest| start + longest);
                self.reply_to_controller(NodeReply::Started)
            }
            AgentState::Waiting { start, confirmed: false } if now >= start && !self.steered => {
                // The start time has passed without a confirmation. The receivers still run, so the node is
                // ready for another attempt.
                self.state = AgentState::Armed;
                self.reply_to_controller(NodeReply::Late)
            }
            _ => Vec::new(),
        }
    }
}
