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

    /// Decides whether a node may continue to send. `None` means that the node gets no answer: a later controller leads
    /// it, or it does not have the current attempt yet. Without an answer the lease runs out.
    fn may_node_continue(&self, node: &NodeName, head: &MessageHead) -> Option<bool> {
        let peer = self.peers.get(node);
        // A later controller leads that node, so this controller must not answer, not even with an order to stop.
        if head.epoch > self.head.epoch {
            return None;
        }
        if *head == self.head {
            return Some(peer.is_some_and(|peer| self.needs_lease(peer)));
        }
        // The node will get the current attempt soon. An order to stop would make it release the ports
        // that it needs then.
        let is_behind = head.run == self.head.run && head.epoch == self.head.epoch;
        let is_expected = is_behind && peer.is_some_and(|peer| !peer.lost) && self.may_senders_need_lease();
        if is_expected { None } else { Some(false) }
    }

    /// True if a node of the current attempt needs a lease: for its senders, or for its emulated interfaces.
    fn needs_lease(&self, peer: &ControllerPeer) -> bool {
        let senders = peer.progress < PeerProgress::Done && self.may_senders_need_lease();
        // A node keeps its emulated interfaces only while it has a lease, and needs them while frames are in flight.
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

    /// Time at which all nodes have certainly stopped sending, even those that have not reported it; `None` if every
    /// node has reported it or never had a lease, or outside a fleet.
    pub(super) fn certain_stop_time_of_all_nodes(&self) -> Option<MonoTime> {
        let terms = self.limits.lease?;
        // `granted` is the time of the controller's answer. The node counts its lease from its question, which was
        // earlier, so the computed time is an upper bound.
        let unheard = self.peers.values().filter(|peer| !peer.has_stopped_sending() && !peer.released);
        unheard.filter_map(|peer| peer.granted).map(|at| terms.certain_stop_time(at)).max()
    }

    pub(super) fn have_all_senders_stopped(&self, now: MonoTime) -> bool {
        self.certain_stop_time_of_all_nodes().is_none_or(|at| now >= at)
    }
}
