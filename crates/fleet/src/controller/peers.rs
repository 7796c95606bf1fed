//! All nodes of a run, counted by their progress.
//!
//! After every reply the controller checks whether all nodes have reached a step. Checking each of ten thousand nodes
//! would take too long, so the nodes at each step are counted.
//!
//! Invariant: while no [`ControllerPeerGuard`] exists, the counts agree with the nodes.

use super::peer::{ControllerPeer, PeerProgress};
use crate::message::NodeName;
use packetrig_units::MonoTime;
use std::collections::{BTreeMap, btree_map};
use std::ops::{Deref, DerefMut};

#[derive(Clone, Debug, Default)]
pub(super) struct ControllerPeers {
    nodes: BTreeMap<NodeName, ControllerPeer>,
    /// Number of nodes that the controller waits for, by their progress.
    waited_for: [usize; PeerProgress::STEP_COUNT],
    /// Number of nodes without a result.
    without_result: usize,
    /// Number of the nodes without a result from which a result may still arrive.
    owing_result: usize,
}

/// Mutable access to one node. Dropping it updates the counts.
pub(super) struct ControllerPeerGuard<'a> {
    peer: &'a mut ControllerPeer,
    before: PeerContribution,
    waited_for: &'a mut [usize; PeerProgress::STEP_COUNT],
    without_result: &'a mut usize,
    owing_result: &'a mut usize,
}

/// Contribution of one node to the counts.
#[derive(Clone, Copy)]
struct PeerContribution {
    /// Step that the node has reached; `None` if the controller does not wait for the node any more.
    step: Option<usize>,
    is_without_result: bool,
    owes_result: bool,
}

impl PeerContribution {
    fn from_peer(peer: &ControllerPeer) -> Self {
        Self {
            step: (!peer.lost).then_some(peer.progress as usize),
            is_without_result: peer.result.is_none(),
            owes_result: peer.owes_result(),
        }
    }
}

impl ControllerPeers {
    pub(super) fn new(nodes: &[NodeName]) -> Self {
        let mut peers = Self::default();
        for node in nodes {
            peers.nodes.entry(node.clone()).or_insert_with(|| ControllerPeer::new(MonoTime::default()));
        }
        // The nodes are counted in the map, because a name may be given twice.
        peers.waited_for[PeerProgress::Asked as usize] = peers.nodes.len();
        peers.without_result = peers.nodes.len();
        peers.owing_result = peers.nodes.len();
        peers
    }

    pub(super) fn get(&self, node: &NodeName) -> Option<&ControllerPeer> {
        self.nodes.get(node)
    }

    pub(super) fn get_mut(&mut self, node: &NodeName) -> Option<ControllerPeerGuard<'_>> {
        let peer = self.nodes.get_mut(node)?;
        let before = PeerContribution::from_peer(peer);
        Some(ControllerPeerGuard {
            peer,
            before,
            waited_for: &mut self.waited_for,
            without_result: &mut self.without_result,
            owing_result: &mut self.owing_result,
        })
    }

    pub(super) fn remove(&mut self, node: &NodeName) {
        let Some(peer) = self.nodes.remove(node) else { return };
        let counted = PeerContribution::from_peer(&peer);
        if let Some(step) = counted.step {
            self.waited_for[step] -= 1;
        }
        self.without_result -= usize::from(counted.is_without_result);
        self.owing_result -= usize::from(counted.owes_result);
    }

    /// Changes all nodes and counts them anew.
    pub(super) fn change_all_peers(&mut self, change: impl Fn(&mut ControllerPeer)) {
        self.waited_for = [0; PeerProgress::STEP_COUNT];
        self.without_result = 0;
        self.owing_result = 0;
        for peer in self.nodes.values_mut() {
            change(peer);
            let counted = PeerContribution::from_peer(peer);
            if let Some(step) = counted.step {
                self.waited_for[step] += 1;
            }
            self.without_result += usize::from(counted.is_without_result);
            self.owing_result += usize::from(counted.owes_result);
        }
    }

    /// True if the controller does not wait for the node any more, or if the node is not part of the run.
    pub(super) fn is_lost(&self, node: &NodeName) -> bool {
        self.nodes.get(node).is_none_or(|peer| peer.lost)
    }

    pub(super) fn iter(&self) -> btree_map::Iter<'_, NodeName, ControllerPeer> {
        self.nodes.iter()
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &NodeName> {
        self.nodes.keys()
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &ControllerPeer> {
        self.nodes.values()
    }

    pub(super) fn into_values(self) -> impl Iterator<Item = ControllerPeer> {
        self.nodes.into_values()
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Number of nodes that the controller waits for.
    pub(super) fn present_count(&self) -> usize {
        self.waited_for.iter().sum()
    }

    /// True if every node that the controller waits for has reached this step.
    pub(super) fn have_all_peers_reached(&self, wanted: PeerProgress) -> bool {
        // One comparison for each step, however large the fleet.
        self.waited_for[..wanted as usize].iter().all(|count| *count == 0)
    }

    /// True if the results of all nodes have arrived, also those of lost nodes.
    pub(super) const fn have_all_results(&self) -> bool {
        self.without_result == 0
    }

    /// True if no result can arrive any more.
    pub(super) const fn have_no_pending_results(&self) -> bool {
        self.owing_result == 0
    }
}

impl Deref for ControllerPeerGuard<'_> {
    type Target = ControllerPeer;

    fn deref(&self) -> &ControllerPeer {
        self.peer
    }
}

impl DerefMut for ControllerPeerGuard<'_> {
    fn deref_mut(&mut self) -> &mut ControllerPeer {
        self.peer
    }
}

impl Drop for ControllerPeerGuard<'_> {
    fn drop(&mut self) {
        let now = PeerContribution::from_peer(self.peer);
        if let Some(step) = self.before.step {
            self.waited_for[step] -= 1;
        }
        if let Some(step) = now.step {
            self.waited_for[step] += 1;
        }
        // The new value is added before the subtraction, so that no count passes below zero in between.
        *self.without_result += usize::from(now.is_without_result);
        *self.without_result -= usize::from(self.before.is_without_result);
        *self.owing_result += usize::from(now.owes_result);
        *self.owing_result -= usize::from(self.before.owes_result);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: u64) -> NodeName {
        NodeName(format!("n{number}"))
    }

    #[test]
    fn peer_counts_match_nodes_after_any_update() {
        const STEPS: [PeerProgress; 4] =
            [PeerProgress::Armed, PeerProgress::Started, PeerProgress::Done, PeerProgress::Reported];
        let mut peers = ControllerPeers::new(&(0..20).map(name).collect::<Vec<_>>());
        let mut state = 7_u64;
        for _ in 0..5000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let node = name((state >> 33) % 20);
            let step = STEPS[(state >> 40) as usize % STEPS.len()];
            if let Some(mut peer) = peers.get_mut(&node) {
                match (state >> 50) % 5 {
                    0 => peer.lost = !peer.lost,
                    1 => peer.result = Some(std::sync::Arc::default()),
                    2 => peer.progress = PeerProgress::Asked,
                    _ => peer.raise_progress(step, MonoTime::default()),
                }
            }
            if (state >> 56) == 3 {
                peers.remove(&node);
            }
            if (state >> 56) == 5 {
                peers.change_all_peers(|peer| peer.progress = PeerProgress::Prepared);
            }
            for wanted in STEPS {
                let all = peers.values().all(|peer| peer.lost || peer.progress >= wanted);
                assert_eq!(peers.have_all_peers_reached(wanted), all);
            }
            assert_eq!(peers.present_count(), peers.values().filter(|peer| !peer.lost).count());
            assert_eq!(peers.have_all_results(), peers.values().all(|peer| peer.result.is_some()));
            assert_eq!(peers.have_no_pending_results(), peers.values().all(|peer| !peer.owes_result()));
        }
    }
}
