//! What happens without a node: before T it may be left out, after T the others stop or go on.

use super::peer::{ControllerPeer, PeerProgress};
use super::{ControllerMachine, ControllerPhase};
use crate::event::RunEventKind;
use crate::message::{NodeCommand, NodeName};
use crate::outcome::{NodeFault, SPLIT_START};
use packetrig_units::Blame;
use packetrig_units::{MonoTime, Share};
use std::collections::BTreeMap;

/// What the user accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunPolicies {
    /// Which nodes have to be ready at T.
    pub start: StartPolicy,
    /// What happens to the others when a node is lost after T.
    pub on_loss: OnLoss,
}

/// With how many nodes a run is started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StartPolicy {
    /// With all or not at all.
    #[default]
    All,
    /// With this many nodes at least.
    Quorum(usize),
    /// With this share of the nodes at least.
    AtLeast(Share),
}

/// What the loss of a node means for the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLoss {
    /// They stop and report.
    #[default]
    Abort,
    /// They go on to the end of the plan.
    Continue,
}

impl StartPolicy {
    /// Whether `present` of `all` nodes are enough.
    pub fn is_enough(self, present: usize, all: usize) -> bool {
        present > 0
            && match self {
                Self::All => present == all,
                Self::Quorum(wanted) => present >= wanted,
                // present / all >= share, without a division that rounds.
                Self::AtLeast(share) => {
                    present as u128 * u128::from(Share::WHOLE.billionths())
                        >= all as u128 * u128::from(share.billionths())
                }
            }
    }
}

impl ControllerMachine {
    /// What the user accepts, if it is not the default.
    #[must_use]
    pub const fn with_policies(mut self, policies: RunPolicies) -> Self {
        self.policies = policies;
        self
    }

    /// Nodes of the plan that are known not to be there, with the reason: they are left out from the beginning.
    #[must_use]
    pub fn without(mut self, absent: BTreeMap<NodeName, String>) -> Self {
        for (node, why) in absent {
            self.peers.remove(&node);
            let why = format!("node {node} was left out: {why}");
            self.left_out.insert(node, LeftNode { why, released: true });
        }
        self
    }

    /// Whether the run may be started without `missing` of its nodes.
    fn may_go_without(&self, missing: usize) -> bool {
        // Of all nodes of the plan: those that earlier attempts left out still count as missing.
        let all = self.peers.len() + self.left_out.len();
        let present = self.peers.present();
        self.policies.start.is_enough(present.saturating_sub(missing), all)
    }

    /// A node is not ready, or never will be: goes on without it in a new attempt, if the user accepts that.
    pub(super) fn leave_out(&mut self, stragglers: Vec<(NodeName, String)>, now: MonoTime) -> bool {
        if !self.may_go_without(stragglers.len()) {
            return false;
        }
        // Fences off the stragglers: from here on nobody accepts a command of the old attempt.
        self.head.attempt += 1;
        for (node, why) in stragglers {
            self.peers.remove(&node);
            let text = format!("node {node} was left out: {why}");
            self.emit(RunEventKind::Finding(text.clone()));
            self.left_out.insert(node, LeftNode { why: text, released: false });
        }
        // It is recorded before those left out are told.
        self.prepare(now);
        true
    }

    /// The nodes that have not reached `wanted`, each with the reason.
    pub(super) fn stragglers(&self, wanted: PeerProgress, why: &str) -> Vec<(NodeName, String)> {
        self.behind(wanted).map(|(node, _)| (node.clone(), why.to_owned())).collect()
    }

    /// Until when confirmations are waited for.
    pub(super) fn confirmed_by(&self, start: MonoTime) -> MonoTime {
        start + self.limits.confirm
    }

    /// Nodes that have not acknowledged the confirmation count as not started.
    pub(super) fn expire_confirmations(&mut self, start: MonoTime, now: MonoTime) {
        if now < self.confirmed_by(start) || self.all(PeerProgress::Confirmed) {
            return;
        }
        let why = format!("did not confirm the start {SPLIT_START}");
        let behind = self.stragglers(PeerProgress::Confirmed, &why);
        for (node, why) in behind {
            self.mark_lost(&node, format!("node {node}: {why}"), now);
        }
    }

    /// Goes on without a node, whose data may still come in.
    pub(super) fn mark_lost(&mut self, node: &NodeName, reason: String, now: MonoTime) {
        let leased = self.limits.lease.is_some();
        let Some(mut peer) = self.peers.get_mut(node) else { return };
        if peer.lost || peer.progress == PeerProgress::Reported {
            return;
        }
        peer.lost = true;
        let never_started = peer.progress < PeerProgress::Confirmed;
        drop(peer);
        self.emit(RunEventKind::Finding(reason.clone()));
        self.reasons.push((Some(node.clone()), reason));
        if !leased {
            // Its ports are needed more than what it has counted.
            self.send(node.clone(), NodeCommand::Abort);
        }
        // A node that never started falls under the policy for the start.
        let goes_on =
            if never_started { self.may_go_without(0) } else { self.policies.on_loss == OnLoss::Continue };
        if !goes_on {
            self.stop_senders(now);
        }
    }

    /// Before T nothing has been sent, and a run without this node may do; else it has failed.
    pub(super) fn trouble_before_start(&mut self, node: &NodeName, blame: Blame, what: &str, now: MonoTime) {
        // Once a confirmation is out, a new attempt could not take back the old T.
        let can_begin_again = matches!(
            self.phase,
            ControllerPhase::Preparing { .. }
                | ControllerPhase::Arming { .. }
                | ControllerPhase::Committing { .. }
        );
        if can_begin_again && self.leave_out(vec![(node.clone(), what.to_owned())], now) {
            return;
        }
        // One machine needs no node name in its errors.
        let text = if *node == NodeName::local() { what.to_owned() } else { format!("node {node}: {what}") };
        self.fail(NodeFault { blame, text }, now);
    }
}

/// A node that was left out.
#[derive(Clone, Debug)]
pub(super) struct LeftNode {
    pub(super) why: String,
    pub(super) released: bool,
}

impl ControllerPeer {
    /// Whether it sends nothing any more, by what it said itself.
    pub(super) fn has_stopped(&self) -> bool {
        self.gone || self.progress >= PeerProgress::Done
    }
}
