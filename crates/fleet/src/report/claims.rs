//! What of a node's result can be about the plan at all.
//!
//! A result comes from another machine. Its rows name ports and streams by their index, and a report looks them up; a row that
//! names none would end the controller, and a million rows about one stream would keep it busy. Such rows are left out, counted
//! and forbid PASS.

use crate::message::PortPlace;
use packetrig_plan::Plan;
use packetrig_stats::caveat::{Caveat, CaveatKind};
use packetrig_stats::result::{NodeResult, SendResult};
use std::collections::{BTreeMap, BTreeSet};

/// Rows about one thing. An honest node has one, or one for each of its workers.
const MOST_ROWS: u32 = 64;

/// The result without rows that its node cannot have: about nothing in the plan, or about ports of other nodes. Without
/// `places` all ports are its own.
pub(super) fn within(plan: &Plan, places: &[PortPlace], mut result: NodeResult) -> NodeResult {
    let node = result.node.clone();
    let is_own = |port: usize| places.get(port).is_none_or(|place| place.node.0 == node);
    let port = |port: usize| (port < plan.ports.len() && is_own(port)).then_some(port);
    let stream = |stream: usize| (stream < plan.streams.len()).then_some(stream);
    let sent = |row: &SendResult| stream(row.stream).filter(|stream| is_own(plan.streams[*stream].tx));
    let left_out = keep(&mut result.ports, |row| port(row.port))
        + keep(&mut result.send, sent)
        + keep(&mut result.receive, |row| stream(row.stream).zip(port(row.port)))
        + keep(&mut result.misdelivered, |row| stream(row.stream).zip(port(row.port)))
        + keep(&mut result.other_runs, |row| port(row.port))
        + keep(&mut result.captures, |row| port(row.port));
    if left_out > 0 {
        result.caveats.push(Caveat {
            doubt: CaveatKind::Unbalanced,
            subject: result.node.clone(),
            text: format!(
                "{left_out} rows of its result are not about its own ports and streams and were left out"
            ),
            matters: true,
        });
    }
    result
}

/// Keeps the first rows about each thing; how many were not.
fn keep<T, K: Ord>(rows: &mut Vec<T>, thing: impl Fn(&T) -> Option<K>) -> usize {
    let before = rows.len();
    let mut kept: BTreeMap<K, u32> = BTreeMap::new();
    rows.retain(|row| {
        let Some(thing) = thing(row) else { return false };
        // Not just the first row: workers of one port may have a row each.
        let count = kept.entry(thing).or_insert(0);
        *count += 1;
        *count <= MOST_ROWS
    });
    before - rows.len()
}

/// Each caveat once, in the order they came, without those of one kind.
pub(super) fn distinct_caveats(results: &[NodeResult], without: CaveatKind) -> Vec<Caveat> {
    let mut seen = BTreeSet::new();
    let all = results.iter().flat_map(|node| &node.caveats).filter(|caveat| caveat.doubt != without);
    all.filter(|caveat| seen.insert((caveat.doubt, &caveat.subject, &caveat.text, caveat.matters)))
        .cloned()
        .collect()
}
