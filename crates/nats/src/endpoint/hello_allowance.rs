//! Limits the number of hellos of one node that are checked.
//!
//! A node sends a hello once a second, and one for each roll call of a controller. Hellos beyond the limit are
//! received and dropped without any further work.

use packetrig_fleet::message::NodeName;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum average number of hellos of one node per second.
const HELLOS_PER_SECOND: u64 = 32;
/// Maximum number of hellos of one node in a burst.
const MAX_HELLO_BURST: u64 = 64;
const HELLO_PERIOD_NS: u64 = 1_000_000_000 / HELLOS_PER_SECOND;
/// Once this many nodes are remembered, silent nodes are forgotten.
const MAX_REMEMBERED_NODES: usize = 4096;

/// Token buckets for the hellos of all nodes. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct HelloRateLimiter {
    /// Time at which the token bucket of each node is full again.
    whole_at: Arc<Mutex<BTreeMap<NodeName, u64>>>,
}

impl HelloRateLimiter {
    /// Takes one token from the bucket of this node; false if the bucket is empty, so the hello must be dropped.
    pub(super) fn try_take_hello(&self, node: NodeName, now_ns: u64) -> bool {
        let mut whole_at = self.whole_at.lock().unwrap_or_else(PoisonError::into_inner);
        if whole_at.len() >= MAX_REMEMBERED_NODES {
            // A full bucket need not be stored: a node without an entry starts with a full one.
            whole_at.retain(|_, at| *at > now_ns);
        }
        // The token bucket is stored as the time at which it is full, so no counter has to be refilled.
        let at = whole_at.entry(node).or_insert(now_ns);
        let next = now_ns.max(*at).saturating_add(HELLO_PERIOD_NS);
        let is_allowed = next <= now_ns.saturating_add(MAX_HELLO_BURST * HELLO_PERIOD_NS);
        if is_allowed {
            *at = next;
        }
        is_allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_uses_up_its_own_hellos_only() {
        let allowance = HelloRateLimiter::default();
        let take = |node: &str, at| allowance.try_take_hello(NodeName(node.into()), at);
        let taken = (0..1000).filter(|_| take("a", 0)).count() as u64;
        assert_eq!(taken, MAX_HELLO_BURST);
        assert!(take("b", 0));
        // A flood of ten seconds.
        let taken = (0..10_000).filter(|number| take("a", number * 1_000_000)).count() as u64;
        assert!((10 * HELLOS_PER_SECOND - 2..=10 * HELLOS_PER_SECOND + 2).contains(&taken), "{taken}");
        let taken = (0..1000).filter(|_| take("a", 100_000_000_000)).count() as u64;
        assert_eq!(taken, MAX_HELLO_BURST, "it has been silent for long");
    }

    #[test]
    fn silent_nodes_are_forgotten() {
        let allowance = HelloRateLimiter::default();
        for number in 0..3 * MAX_REMEMBERED_NODES as u64 {
            assert!(allowance.try_take_hello(NodeName(format!("n{number}")), number * HELLO_PERIOD_NS * 2));
        }
        assert!(allowance.whole_at.lock().unwrap().len() <= MAX_REMEMBERED_NODES);
    }
}
