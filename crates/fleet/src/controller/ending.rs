//! How a run ends: by its plan, by the user, by a fault.

use super::{ControllerMachine, ControllerPhase};
use crate::event::RunEventKind;
use crate::message::{NodeCommand, NodeName};
use crate::outcome::{NodeFault, RunOutcome};
use packetrig_units::MonoTime;

impl ControllerMachine {
    pub(super) fn stop(&mut self, now: MonoTime) {
        match self.phase {
            ControllerPhase::Draft => self.end(RunOutcome::Aborted),
            ControllerPhase::Preparing { .. }
            | ControllerPhase::Arming { .. }
            | ControllerPhase::Committing { .. } => {
                self.cancel(RunOutcome::Aborted, now);
            }
            // Before T nothing was sent. A node that misses the abort stops when its lease is not renewed.
            ControllerPhase::Confirming { start, .. } if !self.has_passed(start, now) => {
                self.cancel(RunOutcome::Aborted, now);
            }
            ControllerPhase::Confirming { .. } | ControllerPhase::Running { .. } => {
                self.stopped_by_user = true;
                self.stop_senders(now);
            }
            // The plan's drain time is kept, so that what was sent can arrive; frames that still arrive do not prolong it any more. A stop
            // that ended the senders is repeated, and changes nothing.
            ControllerPhase::Draining { since, .. }
                if !self.stopped_by_user && !self.preparation.terms.steered =>
            {
                self.stopped_by_user = true;
                let until = (since + self.limits.drain).max(now);
                self.phase = ControllerPhase::Draining { since, until, limit: until };
            }
            // It ends by itself already.
            ControllerPhase::Draining { .. }
            | ControllerPhase::Collecting { .. }
            | ControllerPhase::Cancelling { .. }
            | ControllerPhase::Ended(_) => {}
        }
    }

    pub(super) fn stop_senders(&mut self, now: MonoTime) {
        if self.stopping.is_none() {
            self.stopping = Some(now + self.limits.stop);
            self.broadcast(now);
        }
    }

    pub(super) fn fail(&mut self, fault: NodeFault, now: MonoTime) {
        self.cancel(RunOutcome::Failed { fault }, now);
    }

    /// Ends as `ending` once every node has let go.
    pub(super) fn cancel(&mut self, ending: RunOutcome, now: MonoTime) {
        let until = now + self.limits.stop;
        // A node that may send on its lease is waited for until that lease has certainly ended, even if it
        // answers nothing.
        let until = self.quiet_at().map_or(until, |quiet| quiet.max(until));
        self.phase = ControllerPhase::Cancelling { until, ending };
        self.broadcast(now);
    }

    /// Whether no result of a node that was given up can come any more, or it was waited for long enough.
    pub(super) fn nothing_more(&self, late: MonoTime, now: MonoTime) -> bool {
        now >= late || self.peers.owe_no_result()
    }

    pub(super) fn end_of_run(&mut self) {
        // Of a steered run the stop is the end.
        let stopped = self.stopped_by_user && !self.preparation.terms.steered;
        let missing = !self.peers.have_all_results();
        let mut reasons: Vec<String> = self.left_out.values().map(|out| out.why.clone()).collect();
        for (node, text) in std::mem::take(&mut self.reasons) {
            let is_here = node.is_some_and(|node| self.has_result_of(&node));
            // For an inherited run only missing results count, not old findings about nodes that have reported since.
            if self.inherited.is_none() || !is_here {
                reasons.push(text);
            }
        }
        let whole = !missing && reasons.is_empty();
        self.end(if whole {
            RunOutcome::Complete { stopped }
        } else {
            RunOutcome::Partial { reasons, stopped }
        });
    }

    pub(super) fn end(&mut self, outcome: RunOutcome) {
        let lost: Vec<NodeName> =
            self.peers.iter().filter(|(_, peer)| peer.lost).map(|(n, _)| n.clone()).collect();
        // The record comes first here, too: what lost nodes are told follows from the end.
        self.conclude(outcome);
        for node in lost {
            self.dismiss(node);
        }
    }

    /// The last command to a node that was lost, which may have missed all earlier ones.
    pub(super) fn dismiss(&mut self, node: NodeName) {
        let Some(peer) = self.peers.get(&node) else { return };
        let command = if self.limits.lease.is_none() || peer.gone {
            NodeCommand::Abort
        } else if peer.result.is_some() {
            NodeCommand::Collected
        } else {
            // It spools its result until a controller collects.
            NodeCommand::Finish { sent: self.sent_totals() }
        };
        self.send(node, command);
    }

    pub(super) fn conclude(&mut self, outcome: RunOutcome) {
        self.enter(outcome.state());
        self.emit(RunEventKind::Ended(outcome.clone()));
        self.phase = ControllerPhase::Ended(outcome);
    }
}
