//! Tables with one row per stream.

use super::columns::render_report_table;
use crate::output::TextStyle;
use packetrig_report::columns::{ReportTable, StreamTable, TerminalTable};
use packetrig_report::{RunReport, StreamReport};

/// Formats the table of sent, received and lost frames of each stream.
pub(super) fn format_counts_table(report: &RunReport, style: TextStyle) -> String {
    render_report_table(
        report,
        &StreamTable::terminal_columns(TerminalTable::Counts),
        &StreamTable::report_rows(report),
        "streams",
        style,
    )
}

/// Formats the table of deviations from the send schedule, for the streams whose sender has reported.
pub(super) fn format_sending_table(report: &RunReport, style: TextStyle) -> String {
    format_streams_with_value(TerminalTable::Sending, report, |stream| stream.sent.is_some(), style)
}

/// Formats the table of latency and jitter, for the streams whose latency was measured.
pub(super) fn format_latency_table(report: &RunReport, style: TextStyle) -> String {
    format_streams_with_value(TerminalTable::Latency, report, |stream| stream.latency.is_some(), style)
}

fn format_streams_with_value(
    table: TerminalTable,
    report: &RunReport,
    has_values: fn(&StreamReport) -> bool,
    style: TextStyle,
) -> String {
    // A stream without any of these values would be a row of dashes.
    let rows: Vec<&StreamReport> = report.streams.iter().filter(|stream| has_values(stream)).collect();
    render_report_table(report, &StreamTable::terminal_columns(table), &rows, "streams", style)
}
