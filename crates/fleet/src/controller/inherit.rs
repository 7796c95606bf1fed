//! A run that an earlier controller began and cannot end: it is stopped and what there is of it is collected.

use super::peer::PeerProgress;
use super::{ControllerMachine, ControllerPhase, RunLimits, RunRecord};
use crate::event::RunEventKind;
use crate::message::{NodeName, RunPreparation};
use crate::outcome::{NodeFault, RunOutcome, RunState};
use packetrig_units::Blame;
use packetrig_units::MonoTime;
use std::collections::BTreeSet;

/// What is missing of such a run.
const LOST: &str = "the controller of this run was lost";

impl ControllerMachine {
    /// The end of the run of `record`, in `epoch`, which is higher than the record's. Nothing is started.
    pub fn collecting(record: RunRecord, epoch: u64, limits: RunLimits) -> Self {
        let mut head = record.head.clone();
        head.epoch = epoch.max(head.epoch);
        let mut controller = Self::new(head, RunPreparation::default(), &record.nodes, limits);
        controller.inherited = Some(record);
        controller
    }

    /// The same for a controller that knows nothing of the run but its record: once the nodes have let go it is over. They
    /// keep their results for the controller that began it.
    #[must_use]
    pub const fn leaving_results(mut self) -> Self {
        self.leaves_results = true;
        self
    }

    /// The same where other controllers lead these nodes now: they get no command. Their results come by themselves.
    #[must_use]
    pub fn without_saying_to(mut self, nodes: BTreeSet<NodeName>) -> Self {
        self.elsewhere = nodes;
        self
    }

    pub(super) fn begin(&mut self, now: MonoTime) {
        let Some(record) = &self.inherited else { return self.prepare(now) };
        let left_out = record.left_out.clone();
        if !record.may_have_sent() {
            let text = format!("{LOST} before its start");
            // Nothing was confirmed, so nothing was sent. Leases may still run: the last answer of the
            // earlier controller was before now.
            self.peers.change_all(|peer| peer.granted = Some(now));
            return self.fail(NodeFault { blame: Blame::Peer, text }, now);
        }
        // The last renewal that the earlier controller answered was before now.
        self.peers.change_all(|peer| {
            peer.progress = PeerProgress::Started;
            peer.heard = now;
            peer.granted = Some(now);
        });
        self.reasons.push((None, LOST.to_owned()));
        let left_out = left_out.into_iter().map(|node| (None, format!("node {node} was left out")));
        self.reasons.extend(left_out);
        for node in self.elsewhere.clone() {
            let Some(mut peer) = self.peers.get_mut(&node) else { continue };
            peer.reach(PeerProgress::Spooled, now);
            peer.granted = None;
            peer.lost = true;
            drop(peer);
            self.reasons.push((Some(node.clone()), format!("node {node}: another run has it now")));
        }
        self.phase = ControllerPhase::Running { start: now };
        self.enter(RunState::Running);
        self.stop_senders(now);
    }

    /// Another controller has taken over: this one sends nothing more.
    pub(super) fn depose(&mut self) {
        let began = self.has_started() || matches!(self.phase, ControllerPhase::Confirming { .. });
        let text = "another controller has taken over this run".to_owned();
        let outcome = if began {
            let reasons = vec![text];
            RunOutcome::Partial { reasons, stopped: self.stopped_by_user }
        } else {
            RunOutcome::Failed { fault: NodeFault { blame: Blame::Peer, text } }
        };
        if !matches!(self.phase, ControllerPhase::Ended(_)) {
            // The record is the other one's now.
            self.emit(RunEventKind::StateChanged(outcome.state()));
            self.emit(RunEventKind::Ended(outcome.clone()));
            self.phase = ControllerPhase::Ended(outcome);
        }
    }
}
