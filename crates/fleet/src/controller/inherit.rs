//! Ends runs that an earlier controller left unfinished: stops their senders and collects their results.

use super::peer::PeerProgress;
use super::{ControllerMachine, ControllerPhase, RunLimits, RunRecord};
use crate::message::{NodeName, RunPreparation};
use packetrig_report::event::RunEventKind;
use packetrig_report::outcome::{NodeFault, RunOutcome, RunState};
use packetrig_units::Blame;
use packetrig_units::MonoTime;
use std::collections::BTreeSet;

/// Text in the report of an inherited run that says why the run is incomplete.
const CONTROLLER_LOST_REASON: &str = "the controller of this run was lost";

impl ControllerMachine {
    /// Creates a controller that ends the run of `record` in `epoch`, or in the epoch of the record if that is higher.
    /// It starts no sender.
    pub fn from_record(record: RunRecord, epoch: u64, limits: RunLimits) -> Self {
        let mut head = record.head.clone();
        // Nodes refuse epochs below the highest one that they have seen, so the epoch is at least that of the record.
        head.epoch = epoch.max(head.epoch);
        let mut controller = Self::new(head, RunPreparation::default(), &record.nodes, limits);
        controller.inherited = Some(record);
        controller
    }

    /// Lets the run end before its results are collected: the nodes keep them in their spools for the controller that
    /// began the run. It is for a controller that has only the record of the run.
    #[must_use]
    pub const fn without_collecting_results(mut self) -> Self {
        self.leaves_results = true;
        self
    }

    /// Sends no command to these nodes, because other controllers lead them now. The results of these nodes
    /// arrive without a command.
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
            // No start was confirmed, so no frame was sent. Leases may still be valid, and the earlier controller
            // granted the last one before now.
            self.peers.change_all_peers(|peer| peer.granted = Some(now));
            return self.fail_run(NodeFault { blame: Blame::Peer, text }, now);
        }
        // The earlier controller granted the last lease before now.
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
            // The controller of the other run has ended this run on the node. The spool of the
            // node delivers the result.
            peer.raise_progress(PeerProgress::Spooled, now);
            peer.granted = None;
            peer.lost = true;
            drop(peer);
            self.reasons.push((Some(node.clone()), format!("node {node}: another run uses it now")));
        }
        // The senders may be running, even if the record does not say so. An order to stop does no harm in any state.
        self.phase = ControllerPhase::Running { start: now };
        self.enter_state(RunState::Running);
        self.stop_senders(now);
    }

    /// Ends the run for this controller, because another controller has taken it over. This
    /// controller sends nothing more.
    pub(super) fn on_deposed(&mut self) {
        // If a confirmation was sent, a node may start although this controller sends nothing more.
        let began = self.has_started() || matches!(self.phase, ControllerPhase::Confirming { .. });
        let text = "another controller has taken over this run".to_owned();
        let outcome = if began {
            let reasons = vec![text];
            RunOutcome::Partial { reasons, stopped: self.stopped_by_user }
        } else {
            RunOutcome::Failed { fault: NodeFault { blame: Blame::Peer, text } }
        };
        if !matches!(self.phase, ControllerPhase::Ended(_)) {
            // Only the other controller may write the record now, so the state is emitted but not recorded.
            self.emit_event(RunEventKind::StateChanged(outcome.state()));
            self.emit_event(RunEventKind::Ended(outcome.clone()));
            self.phase = ControllerPhase::Ended(outcome);
        }
    }
}
