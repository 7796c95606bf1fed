//! What concerns a run over several nodes: their clocks, how far apart they began, what arrived of the whole load.

use super::{ALL_COLUMNS, MOST_ROWS, left_out, short};
use crate::numbers::{count, scaled};
use crate::output::Style;
use crate::table::fitted_table;
use packetrig_fleet::outcome::Outcome;
use packetrig_fleet::report::{LoadFactor, NodeReport, RunReport, SkewReport};
use packetrig_units::Nanos;

const UNKNOWN: &str = "–";

/// A row per node and what follows from them together; nothing of a run on one node.
pub(super) fn nodes(report: &RunReport, style: Style) -> String {
    if report.nodes.len() < 2 {
        return String::new();
    }
    let header = ["node", "ports", "sent", "received", "clock", "offset", "bound", "start", "bound"];
    let rows: Vec<_> = report.nodes.iter().take(MOST_ROWS).map(row).collect();
    let least_important = ["ports", "bound", "offset", "start"];
    let mut text = fitted_table(style.width(), &header, &rows, &least_important, ALL_COLUMNS);
    text.push_str(&left_out(report.nodes.len(), "nodes", "nodes.csv"));
    let coverage = report.coverage;
    text.extend([format!("  reported: {} of {} nodes\n", coverage.reported, coverage.expected)]);
    if let Outcome::Partial { reasons, .. } = &report.outcome {
        text.extend(reasons.iter().take(MOST_ROWS).map(|reason| format!("  partial: {reason}\n")));
    }
    text.extend(report.skew.as_ref().map(skew));
    text
}

/// The factor k, if several ports sent.
pub(super) fn load(report: &RunReport) -> String {
    let line = |load: LoadFactor| {
        let rate = |milli: u64| scaled(milli as f64 / 1000.0, "frames/s");
        format!(
            "  k = {:.4}: {} of {} arrived, from {} senders\n",
            load.k,
            rate(load.received_milli),
            rate(load.asked_milli),
            load.senders
        )
    };
    report.load.map(line).unwrap_or_default()
}

fn row(node: &NodeReport) -> Vec<String> {
    let known = |value: Option<u64>| value.map_or_else(unknown, count);
    let bound = |bound: Option<Nanos>| bound.map_or_else(unknown, |bound| format!("± {bound}"));
    let signed = |ns: Option<i64>| ns.map_or_else(unknown, signed_time);
    let clock = node.clock;
    let source = match clock {
        _ if !node.reported => "did not report".to_owned(),
        Some(clock) => clock.source.name().to_owned(),
        None => "not known".to_owned(),
    };
    vec![
        short(&node.node),
        if node.reported { node.ports.to_string() } else { unknown() },
        known(node.sent),
        known(node.received),
        source,
        signed(clock.and_then(|clock| clock.offset_ns)),
        bound(clock.and_then(|clock| clock.bound)),
        signed(node.start.and_then(|start| start.skew_ns)),
        bound(node.start.and_then(|start| start.bound)),
    ]
}

fn skew(skew: &SkewReport) -> String {
    let seen = match skew.spread.zip(skew.bound) {
        Some((spread, bound)) => format!("senders began {spread} apart (± {bound})"),
        None => "how far apart senders began is not known".to_owned(),
    };
    let judged = match skew.verdict.zip(skew.wanted) {
        Some((verdict, wanted)) => format!("; wanted at most {wanted}: {verdict}"),
        None => String::new(),
    };
    let unknown = match skew.unknown.as_slice() {
        [] => String::new(),
        nodes => format!("; nothing known of {}", nodes.join(", ")),
    };
    format!("  start skew: {seen}{judged}{unknown}\n")
}

fn signed_time(ns: i64) -> String {
    let sign = if ns < 0 { "-" } else { "" };
    format!("{sign}{}", Nanos::new(ns.unsigned_abs()))
}

fn unknown() -> String {
    UNKNOWN.to_owned()
}
