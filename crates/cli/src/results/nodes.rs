//! Results of a run over several nodes: their clocks, the skew of their starts, the share of the load that arrived.

use super::MAX_ROWS;
use super::columns::render_report_table;
use crate::numbers::{format_percent, format_scaled};
use crate::output::TextStyle;
use packetrig_report::columns::{NodeTable, ReportTable, TerminalTable};
use packetrig_report::outcome::RunOutcome;
use packetrig_report::{LoadFactor, RunReport, SkewReport};

/// Formats a table with a row per node, then the coverage and the start skew; empty for a run on one node.
pub(super) fn format_nodes(report: &RunReport, style: TextStyle) -> String {
    // The row of a single node would repeat the totals.
    if report.nodes.len() < 2 {
        return String::new();
    }
    let columns = NodeTable::terminal_columns(TerminalTable::Counts);
    let mut text = render_report_table(report, &columns, &NodeTable::report_rows(report), "nodes", style);
    let coverage = report.coverage;
    text.extend([format!("  reported: {} of {} nodes\n", coverage.reported, coverage.expected)]);
    if let RunOutcome::Partial { reasons, .. } = &report.outcome {
        text.extend(reasons.iter().take(MAX_ROWS).map(|reason| format!("  partial: {reason}\n")));
    }
    text.extend(report.skew.as_ref().map(format_skew_line));
    text
}

/// Formats the share of the requested load that was received; empty unless the report has it,
/// which needs several senders.
pub(super) fn format_load_factor(report: &RunReport) -> String {
    report.load.map(format_load_line).unwrap_or_default()
}

fn format_load_line(load: LoadFactor) -> String {
    // The report has thousandths of frames per second.
    let received = format_scaled(load.received_milli as f64 / 1000.0, "frames/s");
    let requested = format_scaled(load.asked_milli as f64 / 1000.0, "frames/s");
    let share = format_percent(load.received_milli, load.asked_milli);
    format!(
        "  received {share} of the requested load: {received} of {requested}, from {} senders\n",
        load.senders
    )
}

fn format_skew_line(skew: &SkewReport) -> String {
    let seen = match skew.describe_spread(|time| time.to_string()) {
        Some(seen) => format!("senders began {seen}"),
        None => "the start times of senders are not known".to_owned(),
    };
    // Without `--max-skew` the skew is shown and not judged.
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
