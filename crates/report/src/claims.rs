//! Checks a node's result: removes rows that are not about the plan and rows that cannot be true.
//!
//! A result comes from another machine. Its rows name ports and streams by their index, and a report looks
//! them up. A row with an invalid index would crash the controller, and a million rows about one stream would
//! keep it busy. A count that is larger than the total that contains it, or a count that no port can reach,
//! would make figures of the whole run wrong. Such rows are removed and counted, and a run with such rows
//! does not PASS. All sums saturate nevertheless, because counts that were not checked must not wrap around.

use crate::PortPlace;
use packetrig_plan::Plan;
use packetrig_stats::caveat::{Caveat, CaveatKind};
use packetrig_stats::counts::{StreamRxCounts, StreamTxCounts};
use packetrig_stats::probe::{ProbeCounts, ProbeNodeResult};
use packetrig_stats::result::NodeResult;
use packetrig_stats::sequence::SequenceCounts;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of rows about one subject. A correct node sends one row, or one for each of its workers.
const MAX_ROWS: u32 = 64;
/// Largest possible count of frames: a year at 285 million frames per second.
const MAX_FRAMES: u64 = 1 << 53;

/// Removes rows that this node cannot have: rows with impossible counts, rows about nothing in the plan, and
/// rows about ports of other nodes. Without `places`, all ports belong to the node.
pub(super) fn remove_implausible_rows(
    plan: &Plan,
    places: &[PortPlace],
    mut result: NodeResult,
) -> NodeResult {
    let node = result.node.clone();
    let part = PlanPart { plan, places, node: &node };
    // Impossible rows are removed first, so that a false row does not replace a true row about the same subject.
    let impossible = remove_impossible_rows(&mut result);
    let foreign = retain_valid_rows(&mut result.ports, |row| part.own_port_index(row.port))
        + retain_valid_rows(&mut result.send, |row| part.own_sent_stream_index(row.stream))
        + retain_valid_rows(&mut result.receive, |row| {
            part.valid_stream_index(row.stream).zip(part.own_port_index(row.port))
        })
        + retain_valid_rows(&mut result.misdelivered, |row| {
            part.valid_stream_index(row.stream).zip(part.own_port_index(row.port))
        })
        + retain_valid_rows(&mut result.other_runs, |row| part.own_port_index(row.port))
        + retain_valid_rows(&mut result.captures, |row| part.own_port_index(row.port))
        + retain_plausible_probes(&mut result, &part);
    let reasons =
        [(foreign, "are not about its own ports and streams"), (impossible, "contain impossible counts")];
    for (rows, reason) in reasons.into_iter().filter(|(rows, _)| *rows > 0) {
        result.caveats.push(Caveat {
            doubt: CaveatKind::Unbalanced,
            subject: node.clone(),
            text: format!("rows of its result {reason} and were left out (number: {rows})"),
            matters: true,
        });
    }
    result
}

/// Removes rows with counts that no node can have; returns their number.
fn remove_impossible_rows(result: &mut NodeResult) -> usize {
    retain_possible_rows(&mut result.send, |row| {
        let StreamTxCounts { frames, untagged, late, .. } = row.counts;
        // If a part is larger than its total, a later subtraction would wrap around or saturate at a wrong
        // figure.
        untagged <= frames && late <= frames && are_possible_counts(&[frames, row.planned])
    }) + retain_possible_rows(&mut result.receive, |row| {
        let StreamRxCounts { frames, altered, corrupt, unnumbered, .. } = row.counts;
        let SequenceCounts { unique, duplicates, stale, lost, .. } = row.counts.sequence;
        are_possible_counts(&[frames, altered, corrupt, unnumbered, unique, duplicates, stale, lost])
    }) + retain_possible_rows(&mut result.misdelivered, |row| {
        row.to_groups <= row.frames && row.numbers.numbers <= row.frames && are_possible_counts(&[row.frames])
    }) + retain_possible_rows(&mut result.other_runs, |row| are_possible_counts(&[row.frames]))
        + retain_possible_rows(&mut result.captures, |row| are_possible_counts(&[row.written, row.dropped]))
        + result.probes.as_mut().map_or(0, remove_impossible_probes)
}

fn remove_impossible_probes(probes: &mut ProbeNodeResult) -> usize {
    retain_possible_rows(&mut probes.lines, |row| {
        let ProbeCounts { planned, sent, answered, lost, refused, .. } = row.counts;
        let directions = [&row.there, &row.back].into_iter();
        let times = directions.flat_map(|one| [one.by_wall_clocks, one.by_exchanges, one.variation]);
        let mut times = times.chain([row.round_trip, row.path, row.release_error]).flatten();
        let rate = row.capacity.as_ref().and_then(|capacity| capacity.rate);
        // Saturating: the sum of three counts of another machine must not wrap below `sent`.
        let accounted = answered.saturating_add(lost).saturating_add(refused);
        sent <= planned
            && accounted <= sent
            && are_possible_counts(&[planned])
            && rate.is_none_or(|rate| rate.is_ordered())
            && times.all(|times| times.is_ordered() && times.samples <= sent)
    }) + retain_possible_rows(&mut probes.reflected, |row| {
        are_possible_counts(&[row.requests])
            && row.reflected.is_none_or(|reflected| reflected <= row.requests)
    })
}

/// Removes rows about probe lines that the node does not send, or about ports of other nodes; returns their number.
fn retain_plausible_probes(result: &mut NodeResult, part: &PlanPart<'_>) -> usize {
    let Some(probes) = result.probes.as_mut() else { return 0 };
    // A plan without probes has no lines, so every row about one is foreign.
    let Some(plan) = part.plan.probes.as_ref() else {
        let rows = probes.lines.len() + probes.reflected.len();
        result.probes = None;
        return rows;
    };
    let lines = plan.lines.len();
    retain_one_row_each(&mut probes.lines, |row| {
        let number = (row.line < lines).then_some(row.line)?;
        part.own_port_index(plan.lines[number].from).map(|_| number)
    }) + retain_one_row_each(&mut probes.reflected, |row| Some((part.own_port_index(row.at)?, row.from)))
}

/// Keeps the first row about each subject, and removes rows without a valid subject (`thing` returns `None`).
/// Returns the number of removed rows.
fn retain_one_row_each<T, K: Ord>(rows: &mut Vec<T>, thing: impl Fn(&T) -> Option<K>) -> usize {
    let before = rows.len();
    let mut kept = BTreeSet::new();
    rows.retain(|row| thing(row).is_some_and(|thing| kept.insert(thing)));
    before - rows.len()
}

fn retain_possible_rows<T>(rows: &mut Vec<T>, is_possible: impl Fn(&T) -> bool) -> usize {
    let before = rows.len();
    rows.retain(is_possible);
    before - rows.len()
}

fn are_possible_counts(counts: &[u64]) -> bool {
    counts.iter().all(|count| *count <= MAX_FRAMES)
}

/// The part of a plan that the rows of a node may be about. Methods that end in `_index` return the index if
/// it is valid for this node, else `None`.
struct PlanPart<'a> {
    plan: &'a Plan,
    places: &'a [PortPlace],
    node: &'a str,
}

impl PlanPart<'_> {
    fn is_own_port(&self, port: usize) -> bool {
        // A run on one machine has no list of places, because all ports belong to this machine.
        self.places.get(port).is_none_or(|place| place.node.0 == self.node)
    }

    fn own_port_index(&self, port: usize) -> Option<usize> {
        (port < self.plan.ports.len() && self.is_own_port(port)).then_some(port)
    }

    fn valid_stream_index(&self, stream: usize) -> Option<usize> {
        (stream < self.plan.streams.len()).then_some(stream)
    }

    fn own_sent_stream_index(&self, stream: usize) -> Option<usize> {
        self.valid_stream_index(stream).filter(|stream| self.is_own_port(self.plan.streams[*stream].tx))
    }
}

/// Keeps up to `MAX_ROWS` rows about each subject, and removes rows without a valid subject (`thing` returns
/// `None`). Returns the number of removed rows.
fn retain_valid_rows<T, K: Ord>(rows: &mut Vec<T>, thing: impl Fn(&T) -> Option<K>) -> usize {
    let before = rows.len();
    let mut kept: BTreeMap<K, u32> = BTreeMap::new();
    rows.retain(|row| {
        let Some(thing) = thing(row) else { return false };
        // Several workers of one port may each have a row, so up to `MAX_ROWS` rows are kept.
        let count = kept.entry(thing).or_insert(0);
        *count += 1;
        *count <= MAX_ROWS
    });
    before - rows.len()
}

/// Returns the caveats of all nodes, each once, in the order of the results; caveats of the kind
/// `without` are left out.
pub(super) fn distinct_caveats_except(results: &[NodeResult], without: CaveatKind) -> Vec<Caveat> {
    let mut seen = BTreeSet::new();
    let all = results.iter().flat_map(|node| &node.caveats).filter(|caveat| caveat.doubt != without);
    all.filter(|caveat| seen.insert((caveat.doubt, &caveat.subject, &caveat.text, caveat.matters)))
        .cloned()
        .collect()
}
