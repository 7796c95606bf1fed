//! Interface to the user for remarks about runs, and for the decision to wait.

use crate::fleet::{HeldNodes, HeldNodesDecision};
use packetrig_fleet::term::TermState;
use packetrig_report::RunReport;
use packetrig_store::UnlistedRun;
use std::fmt;
use std::sync::Arc;

/// Receives remarks about runs in addition to their events, and prints or logs them. Its functions must not block.
pub trait RunOperator: Send + Sync {
    fn remark(&self, text: fmt::Arguments<'_>);
    /// Called when a run has ended without a report, but some of its files were kept.
    fn on_kept_files(&self, kept: &UnlistedRun);
    /// Called when a run has ended with this report, even if the report could not be stored.
    fn on_report(&self, _report: &RunReport) {}
    /// Returns whether the user wants to end the current wait.
    fn is_interrupted(&self) -> bool;
}

pub type SharedOperator = Arc<dyn RunOperator>;

/// Returns a function that decides what to do about nodes that other controllers lead. It decides to wait until the
/// user interrupts. If a controller that is known to be running leads one of the nodes, it waits only if `waits` is
/// set. When it first decides to wait, it names the nodes to the user.
pub(crate) fn build_waiting_policy(
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
        // This function is called several times a second, but the user needs the names only once.
        if !std::mem::replace(&mut is_reported, true) {
            for (node, held) in held {
                operator.remark(format_args!("waiting: node {node} {}", held.lead));
            }
        }
        if operator.is_interrupted() { HeldNodesDecision::GiveUp } else { HeldNodesDecision::Wait }
    }
}
