//! Ends runs that an earlier controller left unfinished: stops their senders and collects their results.

use super::peer::PeerProgress;
use super::{ControllerMachine, ControllerPhase, RunLimits, RunRecord};
use crate::message::{NodeName, RunPreparation};
use packetrig_report::event::RunEventKind;
use packetrig_report::outcome::{NodeFault, RunOutcome, RunState};
use packetrig_units::Blame;
use packetrig_units::MonoTime;
use std::collections::BTreeSet;

/// Reason in the report why an inherited run is incomplete.
const CONTROLLER_LOST_REASON: &str = "the controller of this run was lost";

impl ControllerMachine {
    /// Creates a machine that ends the run of `record` in `epoch`, which is higher than the
    /// record's. It starts nothing.
    pub fn from_record(record: RunRecord, epoch: u64, limits: RunLimits) -> Self {
        let mut head = record.head.clone();
        // Nodes refuse a lower epoch than they have seen, so the record's epoch is the minimum.
        head.epoch = epoch.max(head.epoch);
        let mut controller = Self::new(head, RunPreparation::default(), &record.nodes, limits);
        controller.inherited = Some(record);
        controller
    }

    /// Makes the machine end the run without its results, once the nodes have released it. The nodes keep their results
    /// for the controller that began the run. Used by a controller that has only the record of the run.
    #[must_use]
    pub const fn without_collecting_results(mut self) -> Self {
        self.leaves_results = true;
        self
    }

    /// Makes the machine send no command to these nodes, because other controllers lead them now. The results of these
    /// nodes arrive without a command.
    #[must_use]
    pub fn without_commands_to(mut self, nodes: BTreeSet<NodeName>) -> Self {
        self.elsewhere = nodes;
        self
    }

    pub(super) fn begin_run(&mut self, now: MonoTime) {
        let Some(record) = &self.inherited else { return self.prepare_nodes(now) };
        let left_out = record.left_out.clone();
        if !record.may_have_sent() {
            let text = format!("{CONTROLLER_LOST_REASON} before the run started");
            // No start was confirmed, so no frame was sent. Leases may still be valid: the earlier controller
            // gave its last answer before now.
            self.peers.change_all_peers(|peer| peer.granted = Some(now));
            return self.fail_run(NodeFault { blame: Blame::Peer, text }, now);
        }
        // The earlier controller answered the last renewal before now.
        self.peers.change_all_peers(|peer| {
            peer.progress = PeerProgress::Started;
            peer.heard = now;
            peer.granted = Some(now);
        });
        self.reasons.push((None, CONTROLLER_LOST_REASON.to_owned()));
        let left_out = left_out.into_iter().map(|node| (None, format!("node {node} was left out")));
        self.reasons.extend(left_out);
        for node in self.elsewhere.clone() {
            let Some(mut peer) = self.peers.get_mut(&node) else { continue };
            // The controller of the other run has ended this run on the node, and the node's
            // spool delivers the result.
            peer.raise_progress(PeerProgress::Spooled, now);
            peer.granted = None;
            peer.lost = true;
            drop(peer);
            self.reasons.push((Some(node.clone()), format!("node {node}: another run uses it now")));
        }
        // Whatever state the record names, the senders may be running. Stopping them is safe in every state.
        self.phase = ControllerPhase::Running { start: now };
        self.enter_state(RunState::Running);
        self.stop_senders(now);
    }

    /// Ends the machine, because another controller has taken over: this one sends nothing more.
    pub(super) fn on_deposed(&mut self) {
        // If a confirmation was sent, some node may start although this controller does nothing more.
        let began = self.has_started() || matches!(self.phase, ControllerPhase::Confirming { .. });
        let text = "another controller has taken over this run".to_owned();
        let outcome = if began {
            let reasons = vec![text];
            RunOutcome::Partial { reasons, stopped: self.stopped_by_user }
        } else {
            RunOutcome::Failed { fault: NodeFault { blame: Blame::Peer, text } }
        };
        if !matches!(self.phase, ControllerPhase::Ended(_)) {
            // The record belongs to the other controller now.
            self.emit_event(RunEventKind::StateChanged(outcome.state()));
            self.emit_event(RunEventKind::Ended(outcome.clone()));
            self.phase = ControllerPhase::Ended(outcome);
        }
    }
}
