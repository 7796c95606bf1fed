//! Record of a run: the state that a later controller needs.

use super::{ControllerAction, ControllerMachine, ControllerPhase};
use crate::message::{MessageHead, NodeName, RunId};
use packetrig_report::outcome::RunState;
use packetrig_units::MonoTime;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// State of a run as it is stored in the record store. A new state is stored before any message that depends on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRecord {
    /// Run, attempt, epoch and plan.
    pub head: MessageHead,
    pub state: RunState,
    pub nodes: Vec<NodeName>,
    /// Nodes that were left out of this attempt.
    pub left_out: Vec<NodeName>,
    /// Start time, on the clock of the controller that wrote the record; present from the commit until
    /// the senders have stopped.
    pub start: Option<MonoTime>,
    /// Nodes that have no ports open for this run any more: nodes that were absent, left-out nodes that have confirmed
    /// their release, and nodes that a later controller released because it needed them for another run.
    #[serde(default)]
    pub released: BTreeSet<NodeName>,
}

impl RunRecord {
    /// Key of the record of a run.
    pub fn record_key(run: &RunId) -> String {
        format!("run.{run}")
    }
    /// All nodes of the plan, including nodes that were left out.
    pub fn all_nodes(&self) -> Vec<NodeName> {
        let mut nodes: Vec<NodeName> = self.nodes.iter().chain(&self.left_out).cloned().collect();
        nodes.sort();
        nodes
    }
    /// Nodes that may still have open ports or a result of the run.
    pub fn unreleased_nodes(&self) -> BTreeSet<NodeName> {
        self.all_nodes().into_iter().filter(|node| !self.released.contains(node)).collect()
    }
    /// True if no controller has recorded the end of the run.
    pub const fn is_unfinished(&self) -> bool {
        !self.state.is_final()
    }
    /// True if a node may have sent frames, because the start may have been confirmed to at least one node.
    pub fn may_have_sent(&self) -> bool {
        // The state `Confirmed` is stored before the first confirmation is sent, so an earlier state proves that
        // no confirmation was sent.
        self.state >= RunState::Confirmed
    }
}

impl ControllerMachine {
    pub(super) fn record_state(&mut self, state: RunState) {
        let start = match self.phase {
            ControllerPhase::Committing { start, .. }
            | ControllerPhase::Confirming { start, .. }
            | ControllerPhase::Running { start } => Some(start),
            _ => None,
        };
        // Nodes that the earlier controller left out stay in the record, for any further controller.
        let inherited = self.inherited.as_ref();
        let mut left_out: BTreeSet<NodeName> =
            inherited.iter().flat_map(|record| &record.left_out).cloned().collect();
        let mut released = inherited.map_or_else(BTreeSet::new, |record| record.released.clone());
        for (node, out) in &self.left_out {
            left_out.insert(node.clone());
            if out.released {
                released.insert(node.clone());
            }
        }
        // The record is stored before the commands of this state are sent, so that a later controller knows at least as
        // much as the nodes.
        self.actions.push(ControllerAction::Record(RunRecord {
            head: self.head.clone(),
            state,
            nodes: self.peers.names().cloned().collect(),
            left_out: left_out.into_iter().collect(),
            start,
            released,
        }));
    }
}
