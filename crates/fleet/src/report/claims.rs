//! What of a node's result can be about the plan at all.
//!
//! A result comes from another machine. Its rows name ports and streams by their index, and a report looks them up; a row that
//! names none would end the controller, and a million rows about one stream would keep it busy. Such rows are left out, counted
//! and forbid PASS.

use crate::message::PortPlace;
use packetrig_plan::Plan;
use packetrig_stats::caveat::{Caveat, CaveatKind};
use packetrig_stats::result::NodeResult;
use std::collections::{BTreeMap, BTreeSet};

/// Rows about one thing. An honest node has one, or one for each of its workers.
const MOST_ROWS: u32 = 64;

/// The result without rows that its node cannot have: about nothing in the plan, or about ports of other nodes. Without
/// `places` all ports are its own.
pub(super) fn within(plan: &Plan, places: &[PortPlace], mut result: NodeResult) -> NodeResult {
    let node = result.node.clone();
    let part = PlanPart { plan, places, node: &node };
    let left_out = keep(&mut result.ports, |row| part.port(row.port))
        + keep(&mut result.send, |row| part.sent_stream(row.stream))
        + keep(&mut result.receive, |row| part.stream(row.stream).zip(part.port(row.port)))
        + keep(&mut result.misdelivered, |row| part.stream(row.stream).zip(part.port(row.port)))
        + keep(&mut result.other_runs, |row| part.port(row.port))
        + keep(&mut result.captures, |row| part.port(row.port));
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

/// What of a plan a node's rows may be about. Each method gives the index back if it is.
struct PlanPart<'a> {
    plan: &'a Plan,
    places: &'a [PortPlace],
    node: &'a str,
}

impl PlanPart<'_> {
    fn is_own(&self, port: usize) -> bool {
        self.places.get(port).is_none_or(|place| place.node.0 == self.node)
    }

    fn port(&self, port: usize) -> Option<usize> {
        (port < self.plan.ports.len() && self.is_own(port)).then_some(port)
    }

    fn stream(&self, stream: usize) -> Option<usize> {
        (stream < self.plan.streams.len()).then_some(stream)
    }

    fn sent_stream(&self, stream: usize) -> Option<usize> {
        self.stream(stream).filter(|stream| self.is_own(self.plan.streams[*stream].tx))
    }
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
