//! Results of a run over several nodes: their clocks, the skew of their starts, the share of the load that arrived.

use super::MOST_ROWS;
use super::columns::{ShownColumn, always, if_room, report_table};
use crate::numbers::{percent, scaled};
use crate::output::TextStyle;
use packetrig_fleet::outcome::RunOutcome;
use packetrig_fleet::report::columns::{NodeTable, ReportTable};
use packetrig_fleet::report::{LoadFactor, RunReport, SkewReport};

const NODES: &[ShownColumn] = &[
    always("node", "node"),
    always("reported", "reported"),
    if_room("ports", "ports", 0),
    always("sent", "sent"),
    always("received", "received"),
    always("clock_source", "clock"),
    if_room("clock_offset_ns", "offset", 2),
    if_room("clock_bound_ns", "bound", 1).prefixed("± "),
    if_room("start_skew_ns", "start", 3),
    if_room("start_skew_bound_ns", "bound", 1).prefixed("± "),
];

/// A row per node, then coverage and start skew; empty for a run on one node.
pub(super) fn nodes(report: &RunReport, style: TextStyle) -> String {
    // With one node, its row would repeat the totals.
    if report.nodes.len() < 2 {
        return String::new();
    }
    let mut text = report_table::<NodeTable>(NODES, &NodeTable::rows(report), "nodes", style);
    let coverage = report.coverage;
    text.extend([format!("  reported: {} of {} nodes\n", coverage.reported, coverage.expected)]);
    if let RunOutcome::Partial { reasons, .. } = &report.outcome {
        text.extend(reasons.iter().take(MOST_ROWS).map(|reason| format!("  partial: {reason}\n")));
    }
    text.extend(report.skew.as_ref().map(skew));
    text
}

/// The factor k, the share of the whole load that arrived, if several ports sent.
pub(super) fn load(report: &RunReport) -> String {
    report.load.map(load_line).unwrap_or_default()
}

fn load_line(load: LoadFactor) -> String {
    // Frames per second come in thousandths.
    let received = scaled(load.received_milli as f64 / 1000.0, "frames/s");
    let requested = scaled(load.asked_milli as f64 / 1000.0, "frames/s");
    let share = percent(load.received_milli, load.asked_milli);
    format!(
        "  received {share} of the requested load: {received} of {requested}, from {} senders\n",
        load.senders
    )
}

fn skew(skew: &SkewReport) -> String {
    let seen = match skew.seen(|time| time.to_string()) {
        Some(seen) => format!("senders began {seen}"),
        None => "the start times of senders are not known".to_owned(),
    };
    let judged = match skew.verdict.zip(skew.wanted) {
        Some((verdict, wanted)) => format!("; wanted at most {wanted}: {verdict}"),
        None => String::new(),
    };
    let unknown = match skew.unknown.as_slice() {
        [] => String::new(),
        nodes => format!("; unknown for {}", nodes.join(", ")),
    };
    format!("  start skew: {seen}{judged}{unknown}\n")
}
