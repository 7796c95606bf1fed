//! Ends a run: by its plan, at the user's request, or after a fault.

use super::{ControllerMachine, ControllerPhase};
use crate::message::{NodeCommand, NodeName};
use packetrig_report::event::RunEventKind;
use packetrig_report::outcome::{NodeFault, RunOutcome};
use packetrig_units::MonoTime;

impl ControllerMachine {
    pub(super) fn stop_run(&mut self, now: MonoTime) {
        match self.phase {
            ControllerPhase::Draft => self.end_run(RunOutcome::Aborted),
            ControllerPhase::Preparing { .. }
            | ControllerPhase::Arming { .. }
            | ControllerPhase::Committing { .. } => {
                self.cancel_run(RunOutcome::Aborted, now);
            }
            // Nothing was sent before the start time. A node that misses the abort stops when its lease is not renewed.
            ControllerPhase::Confirming { start, .. } if !self.has_start_passed(start, now) => {
                self.cancel_run(RunOutcome::Aborted, now);
            }
            ControllerPhase::Confirming { .. } | ControllerPhase::Running { .. } => {
                self.stopped_by_user = true;
                self.stop_senders(now);
            }
            // The receivers still run for the plan's drain time, so that frames in flight can arrive. Later arrivals do
            // not prolong it any more. A repeated stop changes nothing.
            ControllerPhase::Draining { since, .. }
                if !self.stopped_by_user && !self.preparation.terms.steered =>
            {
                self.stopped_by_user = true;
                let until = (since + self.limits.drain).max(now);
                self.phase = ControllerPhase::Draining { since, until, limit: until };
            }
            // These phases end without an order.
            ControllerPhase::Draining { .. }
            | ControllerPhase::Collecting { .. }
            | ControllerPhase::Cancelling { .. }
            | ControllerPhase::Ended(_) => {}
        }
    }

    pub(super) fn stop_senders(&mut self, now: MonoTime) {
        // The deadline counts from the first stop: a repeated one must not postpone it.
        if self.stopping.is_none() {
            self.stopping = Some(now + self.limits.stop);
            // The stop is sent at once: it must not wait for the next repetition.
            self.broadcast_commands(now);
        }
    }

    pub(super) fn fail_run(&mut self, fault: NodeFault, now: MonoTime) {
        self.cancel_run(RunOutcome::Failed { fault }, now);
    }

    /// Cancels the run: orders all nodes to abort it. The run ends with `ending` once every node has released it, or
    /// when the time to wait for the nodes is over.
    pub(super) fn cancel_run(&mut self, ending: RunOutcome, now: MonoTime) {
        let until = now + self.limits.stop;
        // The controller waits for a node that may send on its lease until that lease has certainly ended,
        // even if the node does not answer.
        let until = self.certain_stop_time_of_all_nodes().map_or(until, |quiet| quiet.max(until));
        self.phase = ControllerPhase::Cancelling { until, ending };
        self.broadcast_commands(now);
    }

    /// True if no result of a lost node can arrive any more, or if the time to wait for results is over.
    pub(super) fn has_no_more_results_due(&self, late: MonoTime, now: MonoTime) -> bool {
        now >= late || self.peers.have_no_pending_results()
    }

    pub(super) fn end_run_by_results(&mut self) {
        // The stop is the regular end of a steered run.
        let stopped = self.stopped_by_user && !self.preparation.terms.steered;
        let missing = !self.peers.have_all_results();
        let mut reasons: Vec<String> = self.left_out.values().map(|out| out.why.clone()).collect();
        for (node, text) in std::mem::take(&mut self.reasons) {
            let is_here = node.is_some_and(|node| self.has_result_of(&node));
            // In an inherited run, nodes may have reported after a reason about them was recorded.
            // Such reasons are dropped.
            if self.inherited.is_none() || !is_here {
                reasons.push(text);
            }
        }
        let whole = !missing && reasons.is_empty();
        self.end_run(if whole {
            RunOutcome::Complete { stopped }
        } else {
            RunOutcome::Partial { reasons, stopped }
        });
    }

    pub(super) fn end_run(&mut self, outcome: RunOutcome) {
        let lost: Vec<NodeName> =
            self.peers.iter().filter(|(_, peer)| peer.lost).map(|(n, _)| n.clone()).collect();
        // The record of the final state is stored before the commands to lost nodes are sent.
        self.enter_final_state(outcome);
        for node in lost {
            self.send_final_command(node);
        }
    }

    /// Sends a lost node the command with which it ends the run, because the node may have missed all earlier commands.
    pub(super) fn send_final_command(&mut self, node: NodeName) {
        let Some(peer) = self.peers.get(&node) else { return };
        let command = if self.limits.lease.is_none() || peer.gone {
            // Without a spool, or after its agent has failed, no result can follow.
            NodeCommand::Abort
        } else if peer.result.is_some() {
            NodeCommand::Collected
        } else {
            // The node spools its result until a controller collects it.
            NodeCommand::Finish { sent: self.sent_totals() }
        };
        self.send_command(node, command);
    }

    pub(super) fn enter_final_state(&mut self, outcome: RunOutcome) {
        self.enter_state(outcome.state());
        self.emit_event(RunEventKind::Ended(outcome.clone()));
        self.phase = ControllerPhase::Ended(outcome);
    }
}
