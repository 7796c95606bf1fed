//! Leases of the nodes, on the controller's side.

use super::peer::PeerProgress;
use super::{ControllerAction, ControllerMachine, ControllerPeer, ControllerPhase};
use crate::message::{LeaseGrant, MessageHead, NodeName, Nonce};
use packetrig_units::MonoTime;

impl ControllerMachine {
    /// Answers a node that asks for a renewal.
    pub(super) fn on_renewal(&mut self, node: NodeName, head: MessageHead, nonce: Nonce, now: MonoTime) {
        let Some(go_on) = self.may_node_continue(&node, &head) else { return };
        if let Some(mut peer) = self.peers.get_mut(&node)
            && head == self.head
        {
            peer.heard = now;
            // If the senders of a node are done, the controller need not wait for its lease.
            if go_on && peer.progress < PeerProgress::Done {
                peer.granted = Some(now);
            }
        }
        self.actions.push(ControllerAction::Grant(node, head, LeaseGrant { nonce, go_on }));
    }

    /// Decides on a renewal. `None` gives no answer, and then the lease runs out: another controller decides, or the
    /// node does not have the current attempt yet.
    fn may_node_continue(&self, node: &NodeName, head: &MessageHead) -> Option<bool> {
        let peer = self.peers.get(node);
        // A later controller leads that node. Even a "stop" from here would be an answer of the wrong one.
        if head.epoch > self.head.epoch {
            return None;
        }
        if *head == self.head {
            return Some(peer.is_some_and(|peer| self.needs_lease(peer)));
        }
        // The node will get the current attempt soon, and keeps its ports until then.
        let is_behind = head.run == self.head.run && head.epoch == self.head.epoch;
        let is_expected = is_behind && peer.is_some_and(|peer| !peer.lost) && self.may_senders_need_lease();
        if is_expected { None } else { Some(false) }
    }

    /// True if a node of the current attempt has a task that needs a lease.
    fn needs_lease(&self, peer: &ControllerPeer) -> bool {
        let senders = peer.progress < PeerProgress::Done && self.may_senders_need_lease();
        // Emulated interfaces must exist as long as frames are in flight.
        !peer.lost && (senders || peer.progress == PeerProgress::Done && self.is_running_or_draining())
    }

    /// True while frames may be in flight.
    const fn is_running_or_draining(&self) -> bool {
        matches!(self.phase, ControllerPhase::Running { .. } | ControllerPhase::Draining { .. })
    }

    /// True while nodes may need a lease to send, now or later in this run.
    const fn may_senders_need_lease(&self) -> bool {
        match self.phase {
            ControllerPhase::Preparing { .. }
            | ControllerPhase::Arming { .. }
            | ControllerPhase::Committing { .. }
            | ControllerPhase::Confirming { .. }
            | ControllerPhase::Running { .. } => self.stopping.is_none(),
            ControllerPhase::Draft
            | ControllerPhase::Draining { .. }
            | ControllerPhase::Collecting { .. }
            | ControllerPhase::Cancelling { .. }
            | ControllerPhase::Ended(_) => false,
        }
    }

    /// Time at which the last silent node has certainly stopped sending; `None` if every node has reported that it
    /// stopped, or without leases.
    pub(super) fn silent_nodes_stop_time(&self) -> Option<MonoTime> {
        let terms = self.limits.lease?;
        // `granted` is the time of the controller's answer. The node counts from its question, which was earlier, so
        // this is an upper bound.
        let unheard = self.peers.values().filter(|peer| !peer.has_peer_stopped() && !peer.released);
        unheard.filter_map(|peer| peer.granted).map(|at| terms.certain_stop_time(at)).max()
    }

    pub(super) fn have_all_senders_stopped(&self, now: MonoTime) -> bool {
        self.silent_nodes_stop_time().is_none_or(|at| now >= at)
    }
}
