//! The nodes that belong to the fleet, present or not: the enrolled nodes, with the last hello of each.

use packetrig_fleet::known::KnownNode;
use packetrig_fleet::labels::OperatorLabels;
use packetrig_fleet::members::FleetMembers;
use packetrig_report::NodeName;
use packetrig_sys::clock;
use std::collections::{BTreeMap, BTreeSet};

/// Last known state of each node, by name.
pub type KnownNodes = BTreeMap<NodeName, KnownNode>;

pub struct FleetRoster {
    /// Nodes that are enrolled in the fleet.
    pub enrolled: BTreeSet<NodeName>,
    /// Labels that the operator has given to nodes.
    pub labels: BTreeMap<NodeName, OperatorLabels>,
    /// Last known state of each node.
    pub known: KnownNodes,
    /// Saves these states for the next controller. This process does not need them again, so a failure does no harm.
    pub keep: Box<dyn FnMut(&KnownNodes) + Send>,
}

impl Default for FleetRoster {
    fn default() -> Self {
        Self {
            enrolled: BTreeSet::new(),
            labels: BTreeMap::new(),
            known: KnownNodes::new(),
            keep: Box::new(|_| {}),
        }
    }
}

impl std::fmt::Debug for FleetRoster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FleetRoster").field("enrolled", &self.enrolled).finish_non_exhaustive()
    }
}

impl FleetRoster {
    /// Adds to `members` the enrolled nodes that have sent no hello to this controller, and sets the
    /// labels of all nodes.
    pub fn restore_nodes(&self, members: &mut FleetMembers) {
        members.replace_labels(self.labels.clone());
        let here = crate::agent::now();
        for (node, known) in self.known.iter().filter(|(node, _)| self.enrolled.contains(node)) {
            members.restore_node(node, known, clock::wall_clock_ns(), here);
        }
    }

    /// Saves the state of the nodes that have sent a hello to this controller.
    pub(super) fn save_members(&mut self, members: &FleetMembers) {
        let mut is_news = false;
        for (node, member) in members.iter().filter(|(_, member)| member.was_heard_by_this_controller()) {
            let now_known = KnownNode::from_hello(member.hello(), clock::wall_clock_ns());
            if self.known.get(node).is_none_or(|before| now_known.should_replace(before)) {
                self.known.insert(node.clone(), now_known);
                is_news = true;
            }
        }
        // Nodes send a hello each second, so the states are saved only if one has changed.
        if is_news {
            self.known.retain(|node, _| self.enrolled.contains(node));
            (self.keep)(&self.known);
        }
    }
}
