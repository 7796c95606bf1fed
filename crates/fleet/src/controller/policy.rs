//! The user's policies for missing nodes: before the start the run may leave them out; after the start the other
//! nodes stop or continue.

use super::peer::{ControllerPeer, PeerProgress};
use super::{ControllerMachine, ControllerPhase};
use crate::message::{NodeCommand, NodeName};
use packetrig_report::event::RunEventKind;
use packetrig_report::outcome::{NodeFault, SPLIT_START_MARK};
use packetrig_units::Blame;
use packetrig_units::{MonoTime, Share};
use std::collections::BTreeMap;

/// Policies of the user about missing nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunPolicies {
    /// Nodes that must be ready at the start.
    pub start: StartPolicy,
    /// Reaction of the other nodes to the loss of a node after the start.
    pub on_loss: LostNodePolicy,
}

/// Minimum number of nodes for a start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StartPolicy {
    /// All nodes must be ready.
    #[default]
    All,
    /// At least this many nodes must be ready.
    Quorum(usize),
    /// At least this fraction of the nodes must be ready.
    AtLeast(Share),
}

/// Effect of a lost node on the other nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LostNodePolicy {
    /// They stop and report.
    #[default]
    Abort,
    /// They continue to the end of the plan.
    Continue,
}

impl StartPolicy {
    /// True if `present` of `all` nodes are enough.
    pub fn allows_run_start(self, present: usize, all: usize) -> bool {
        // A run needs at least one node, whatever fraction the user accepts.
        present > 0
            && match self {
                Self::All => present == all,
                Self::Quorum(wanted) => present >= wanted,
                // present / all >= share, without a division that rounds.
                Self::AtLeast(share) => {
                    present as u128 * u128::from(Share::WHOLE_LINK.billionths())
                        >= all as u128 * u128::from(share.billionths())
                }
            }
    }
}

impl ControllerMachine {
    /// Replaces the default policies by those of the user.
    #[must_use]
    pub const fn with_policies(mut self, policies: RunPolicies) -> Self {
        self.policies = policies;
        self
    }

    /// Leaves out nodes of the plan before the run begins, because they are absent. The texts are the reasons.
    #[must_use]
    pub fn without_nodes(mut self, absent: BTreeMap<NodeName, String>) -> Self {
        for (node, why) in absent {
            self.peers.remove(&node);
            let why = format!("node {node} was left out: {why}");
            // The node never got a command, so it has nothing to release.
            self.left_out.insert(node, ExcludedNode { why, released: true });
        }
        self
    }

    /// True if the run may start without `missing` of its nodes.
    fn may_start_without(&self, missing: usize) -> bool {
        // All nodes of the plan count: nodes that earlier attempts excluded are still missing.
        let all = self.peers.len() + self.left_out.len();
        let present = self.peers.present_count();
        self.policies.start.allows_run_start(present.saturating_sub(missing), all)
    }

    /// Begins a new attempt without `stragglers`, the nodes that are not ready. Returns `false`, and changes nothing,
    /// if the user's policy does not allow a start without them.
    pub(super) fn try_exclude_nodes(&mut self, stragglers: Vec<(NodeName, String)>, now: MonoTime) -> bool {
        if !self.may_start_without(stragglers.len()) {
            return false;
        }
        // Fencing: the nodes of the new attempt refuse commands of the old one, and the controller ignores its replies.
        self.head.attempt += 1;
        for (node, why) in stragglers {
            self.peers.remove(&node);
            let text = format!("node {node} was left out: {why}");
            self.emit_event(RunEventKind::Finding(text.clone()));
            self.left_out.insert(node, ExcludedNode { why: text, released: false });
        }
        // This stores the record before it sends the aborts to the nodes that were left out.
        self.prepare_nodes(now);
        true
    }

    /// Lists the nodes that have not reached `wanted`, each with the text `why`.
    pub(super) fn list_stragglers(&self, wanted: PeerProgress, why: &str) -> Vec<(NodeName, String)> {
        self.peers_behind(wanted).map(|(node, _)| (node.clone(), why.to_owned())).collect()
    }

    /// Deadline for acknowledgements of the confirmation.
    pub(super) fn confirmation_deadline(&self, start: MonoTime) -> MonoTime {
        start + self.limits.confirm
    }

    /// Marks nodes without an acknowledged confirmation as lost: they count as not started.
    pub(super) fn give_up_unconfirmed_nodes(&mut self, start: MonoTime, now: MonoTime) {
        if now < self.confirmation_deadline(start) || self.have_all_peers_reached(PeerProgress::Confirmed) {
            return;
        }
        let why = format!("did not confirm the start {SPLIT_START_MARK}");
        let behind = self.list_stragglers(PeerProgress::Confirmed, &why);
        for (node, why) in behind {
            self.give_up_node(&node, format!("node {node}: {why}"), now);
        }
    }

    /// Stops waiting for a node; its result may still arrive. Depending on the policies, the other nodes stop.
    pub(super) fn give_up_node(&mut self, node: &NodeName, reason: String, now: MonoTime) {
        let leased = self.limits.lease.is_some();
        let Some(mut peer) = self.peers.get_mut(node) else { return };
        // The result of a node that has reported is complete, whatever happens to the node afterwards.
        if peer.lost || peer.progress == PeerProgress::Reported {
            return;
        }
        peer.lost = true;
        let never_started = peer.progress < PeerProgress::Confirmed;
        // Dropping the guard updates the counts that the policy reads below.
        drop(peer);
        self.emit_event(RunEventKind::Finding(reason.clone()));
        self.reasons.push((Some(node.clone()), reason));
        if !leased {
            // Without leases a node has no spool, so its counts cannot arrive later. The abort frees its ports.
            self.send_command(node.clone(), NodeCommand::Abort);
        }
        // For a node that never started, the policy for the start decides.
        let goes_on = if never_started {
            self.may_start_without(0)
        } else {
            self.policies.on_loss == LostNodePolicy::Continue
        };
        if !goes_on {
            self.stop_senders(now);
        }
    }

    /// Handles the failure of a node before the start, when nothing has been sent: leaves the node out if the policy
    /// allows this, otherwise the run fails.
    pub(super) fn on_node_failure_before_start(
        &mut self,
        node: &NodeName,
        blame: Blame,
        what: &str,
        now: MonoTime,
    ) {
        // Once a confirmation was sent, a node may start at the old start time, whatever a new attempt says.
        let can_begin_again = matches!(
            self.phase,
            ControllerPhase::Preparing { .. }
                | ControllerPhase::Arming { .. }
                | ControllerPhase::Committing { .. }
        );
        if can_begin_again && self.try_exclude_nodes(vec![(node.clone(), what.to_owned())], now) {
            return;
        }
        // In a run on a single machine, errors need no node name.
        let text = if *node == NodeName::local() { what.to_owned() } else { format!("node {node}: {what}") };
        self.fail_run(NodeFault { blame, text }, now);
    }
}

/// A node that was left out, and whether it has confirmed the release of its ports.
#[derive(Clone, Debug)]
pub(super) struct ExcludedNode {
    pub(super) why: String,
    pub(super) released: bool,
}

impl ControllerPeer {
    /// True if the node has reported that it sends nothing more, or is gone.
    pub(super) fn has_stopped_sending(&self) -> bool {
        self.gone || self.progress >= PeerProgress::Done
    }
}
