//! The user's side of runs that are opened, ended and kept here.

use crate::fleet::{HeldNodes, HeldNodesDecision};
use packetrig_fleet::term::TermState;
use packetrig_report::RunReport;
use packetrig_store::KeptRun;
use std::fmt;
use std::sync::Arc;

/// Receives remarks about runs besides their events, and prints or logs them. Runs do not wait for it.
pub trait RunOperator: Send + Sync {
    fn remark(&self, text: fmt::Arguments<'_>);
    /// A run has ended without a report, and left these files.
    fn on_left_files(&self, kept: &KeptRun);
    /// The report of a run was written.
    fn on_report(&self, _report: &RunReport) {}
    /// Returns whether the user wants to end the current wait.
    fn is_interrupted(&self) -> bool;
}

pub type SharedOperator = Arc<dyn RunOperator>;

/// Returns the function that decides about nodes that other controllers hold: it waits until the user ends it. If a running controller
/// holds a node, it waits only if `waits` is set. The first call names those nodes.
pub(crate) fn waiting_policy(
    operator: &dyn RunOperator,
    waits: bool,
) -> impl FnMut(&HeldNodes) -> HeldNodesDecision {
    let mut is_reported = false;
    move |held| {
        // If none of the controllers is known to be running, it always waits: within a few seconds it is
        // clear whether they are dead.
        let is_at_work = held.values().any(|held| held.state == TermState::Alive);
        if is_at_work && !waits {
            return HeldNodesDecision::GoWithout;
        }
        // Every look calls this function, several times a second, but the names are needed only once.
        if !std::mem::replace(&mut is_reported, true) {
            for (node, held) in held {
                operator.remark(format_args!("waiting: node {node} {}", held.lead));
            }
        }
        if operator.is_interrupted() { HeldNodesDecision::GiveUp } else { HeldNodesDecision::Wait }
    }
}
