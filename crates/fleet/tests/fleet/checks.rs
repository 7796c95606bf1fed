//! Invariants that hold in every world.

use crate::node::Node;
use packetrig_report::outcome::RunOutcome;
use packetrig_stats::result::NodeResult;
use std::collections::BTreeSet;

/// Checks before receivers are told to stop: no sender is running, and sent frames had the drain to arrive.
pub(crate) fn before_finish(nodes: &mut [Node], now: u64, drain: u64) {
    for node in nodes {
        assert!(!node.is_sending(now), "{} sends while receivers are told to stop", node.name);
        if let Some(last) = node.last_frame {
            assert!(last + drain <= now + 20_000, "receivers outlive {} by the drain", node.name);
        }
    }
}

/// Checks after the last event.
pub(crate) fn at_the_end(nodes: &mut [Node], now: u64) {
    for node in nodes.iter_mut().filter(|node| node.alive && node.frozen.is_none()) {
        assert!(!node.is_sending(now), "{} still sends", node.name);
        assert!(node.agent.is_idle(), "{} still takes part: {:?}", node.name, node.agent);
    }
}

/// Checks the outcome of a run against the actions of its nodes.
pub(crate) fn results(outcome: &RunOutcome, results: Vec<NodeResult>, nodes: &[Node]) {
    let names: BTreeSet<&str> = results.iter().map(|result| result.node.as_str()).collect();
    assert_eq!(names.len(), results.len(), "a result is counted once");
    for name in &names {
        let finished = nodes.iter().find(|node| node.name.0 == *name).map(|node| node.finished);
        assert_eq!(finished, Some(1), "accounts are closed once");
    }
    match outcome {
        RunOutcome::Complete { stopped } => {
            assert_eq!(results.len(), nodes.len(), "no COMPLETE with missing data");
            let cut = nodes.iter().find(|node| !node.ended_by_plan);
            assert!(*stopped || cut.is_none(), "no COMPLETE if a sender was cut short");
        }
        RunOutcome::Failed { .. } | RunOutcome::Aborted => assert!(results.is_empty()),
        RunOutcome::Partial { reasons, .. } => assert!(!reasons.is_empty(), "PARTIAL says why"),
    }
}
