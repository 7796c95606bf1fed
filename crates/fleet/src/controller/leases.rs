//! Leases of the nodes, as the controller grants them.

use super::peer::PeerProgress;
use super::{ControllerAction, ControllerMachine, ControllerPeer, ControllerPhase};
use crate::message::{LeaseGrant, MessageHead, NodeName, Nonce};
use packetrig_units::MonoTime;

impl ControllerMachine {
    /// A node asks whether it may go on.
    pub(super) fn renewal(&mut self, node: NodeName, head: MessageHead, nonce: Nonce, now: MonoTime) {
        let Some(go_on) = self.may_go_on(&node, &head) else { return };
        if let Some(mut peer) = self.peers.get_mut(&node)
            && head == self.head
        {
            peer.heard = now;
            // A node whose senders are done has no lease to wait for.
            if go_on && peer.progress < PeerProgress::Done {
                peer.granted = Some(now);
            }
        }
        self.actions.push(ControllerAction::Grant(node, head, LeaseGrant { nonce, go_on }));
    }

    /// `None`: that is not for this controller to say, or will be clear soon; silence lets the lease run out.
    fn may_go_on(&self, node: &NodeName, head: &MessageHead) -> Option<bool> {
        let peer = self.peers.get(node);
        // A later controller leads that node. Even a "stop" from here would be an answer of the wrong one.
        if head.epoch > self.head.epoch {
            return None;
        }
        if *head == self.head {
            return Some(peer.is_some_and(|peer| self.is_needed(peer)));
        }
        // It is about to hear of the attempt under way, and keeps its ports until then.
        let is_behind = head.run == self.head.run && head.epoch == self.head.epoch;
        let is_expected = is_behind && peer.is_some_and(|peer| !peer.lost) && self.is_sending_time();
        if is_expected { None } else { Some(false) }
    }

    /// Whether a node of the attempt under way has something to do that needs a lease.
    fn is_needed(&self, peer: &ControllerPeer) -> bool {
        let senders = peer.progress < PeerProgress::Done && self.is_sending_time();
        // Its emulated interfaces are there as long as frames are under way.
        !peer.lost && (senders || peer.progress == PeerProgress::Done && self.is_traffic_time())
    }

    const fn is_traffic_time(&self) -> bool {
        matches!(self.phase, ControllerPhase::Running { .. } | ControllerPhase::Draining { .. })
    }

    const fn is_sending_time(&self) -> bool {
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

    /// When the last node that cannot be heard has certainly stopped; `None` if all have said so, or there are no leases.
    pub(super) fn quiet_at(&self) -> Option<MonoTime> {
        let terms = self.limits.lease?;
        // `granted` is when the controller answered. The node counts from its question, which was earlier, so
        // this is an upper bound.
        let unheard = self.peers.values().filter(|peer| !peer.has_stopped() && !peer.released);
        unheard.filter_map(|peer| peer.granted).map(|at| terms.certainly_stopped(at)).max()
    }

    pub(super) fn is_quiet(&self, now: MonoTime) -> bool {
        self.quiet_at().is_none_or(|at| now >= at)
    }
}
