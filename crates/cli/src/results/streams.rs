//! Tables with one row per stream.

use super::columns::{ShownColumn, always_shown, report_table, shown_if_fits};
use crate::output::TextStyle;
use packetrig_report::columns::{ReportTable, StreamTable};
use packetrig_report::{RunReport, StreamReport};

const COUNTS: &[ShownColumn] = &[
    always_shown("stream", "stream"),
    always_shown("sent", "sent"),
    always_shown("received", "received"),
    always_shown("lost", "lost"),
    shown_if_fits("lost_percent", "loss", 10),
    shown_if_fits("bursts", "bursts", 4),
    shown_if_fits("longest_burst", "longest burst", 2),
    shown_if_fits("loss_seconds", "s with loss", 3),
    shown_if_fits("duplicates", "dupl.", 9),
    shown_if_fits("reordered", "reord.", 8),
    shown_if_fits("max_extent", "reorder extent", 1),
    shown_if_fits("altered", "altered", 6),
    shown_if_fits("corrupt", "corrupt", 5),
    shown_if_fits("unnumbered", "bad tag", 0),
    shown_if_fits("rx_l2_bps", "rx rate", 7),
];

// Lateness is always shown: without it, nobody can tell whether the sender or the network made the bursts.
const SENDING: &[ShownColumn] = &[
    always_shown("stream", "stream"),
    always_shown("planned", "planned"),
    shown_if_fits("unsent", "unsent", 6),
    always_shown("late", "late"),
    shown_if_fits("tx_fps_milli", "frames/s", 7),
    shown_if_fits("tx_l2_bps", "layer 2", 5),
    shown_if_fits("tx_l1_bps", "layer 1", 0),
    shown_if_fits("rate_error_ppm", "rate error", 2),
    shown_if_fits("send_error_p50_ns", "send error p50", 3),
    shown_if_fits("send_error_p99_ns", "p99", 1),
    shown_if_fits("send_error_max_ns", "max", 4),
];

const LATENCY: &[ShownColumn] = &[
    always_shown("stream", "stream"),
    shown_if_fits("latency_min_ns", "min", 8),
    shown_if_fits("latency_mean_ns", "mean", 6),
    always_shown("latency_p50_ns", "p50"),
    shown_if_fits("latency_p90_ns", "p90", 2),
    always_shown("latency_p99_ns", "p99"),
    shown_if_fits("latency_p999_ns", "p99.9", 4),
    shown_if_fits("latency_p9999_ns", "p99.99", 0),
    always_shown("latency_max_ns", "max"),
    shown_if_fits("latency_error_p99_ns", "error (p99)", 9).with_prefix("≤ "),
    shown_if_fits("jitter_rfc3550_ns", "RFC 3550", 3),
    shown_if_fits("jitter_pdv_p999_ns", "PDV p99.9", 7),
    shown_if_fits("jitter_ipdv_mean_ns", "IPDV mean", 1),
    // Only a run over nodes with separate clocks has this error.
    shown_if_fits("latency_clock_bound_ns", "clock error", 5).with_prefix("± ").hidden_when_empty(),
];

/// Table of sent, received and lost frames.
pub(super) fn counts_table(report: &RunReport, style: TextStyle) -> String {
    report_table::<StreamTable>(COUNTS, &StreamTable::report_rows(report), "streams", style)
}

/// Table of deviations from the schedule.
pub(super) fn sending_table(report: &RunReport, style: TextStyle) -> String {
    streams_with(SENDING, report, |stream| stream.sent.is_some(), style)
}

/// Table of latency and jitter.
pub(super) fn latency_table(report: &RunReport, style: TextStyle) -> String {
    streams_with(LATENCY, report, |stream| stream.latency.is_some(), style)
}

fn streams_with(
    columns: &[ShownColumn],
    report: &RunReport,
    has_values: fn(&StreamReport) -> bool,
    style: TextStyle,
) -> String {
    // A stream without any of these values would be a row of dashes.
    let rows: Vec<&StreamReport> = report.streams.iter().filter(|stream| has_values(stream)).collect();
    report_table::<StreamTable>(columns, &rows, "streams", style)
}
