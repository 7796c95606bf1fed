//! Tables with one row per stream.

use super::columns::{ShownColumn, always, if_room, report_table};
use crate::output::TextStyle;
use packetrig_fleet::report::columns::{ReportTable, StreamTable};
use packetrig_fleet::report::{RunReport, StreamReport};

const COUNTS: &[ShownColumn] = &[
    always("stream", "stream"),
    always("sent", "sent"),
    always("received", "received"),
    always("lost", "lost"),
    if_room("lost_percent", "loss", 10),
    if_room("bursts", "bursts", 4),
    if_room("longest_burst", "longest burst", 2),
    if_room("loss_seconds", "s with loss", 3),
    if_room("duplicates", "dupl.", 9),
    if_room("reordered", "reord.", 8),
    if_room("max_extent", "reorder extent", 1),
    if_room("altered", "altered", 6),
    if_room("corrupt", "corrupt", 5),
    if_room("unnumbered", "bad tag", 0),
    if_room("rx_l2_bps", "rx rate", 7),
];

const SENDING: &[ShownColumn] = &[
    always("stream", "stream"),
    always("planned", "planned"),
    if_room("unsent", "unsent", 6),
    always("late", "late"),
    if_room("tx_fps_milli", "frames/s", 7),
    if_room("tx_l2_bps", "layer 2", 5),
    if_room("tx_l1_bps", "layer 1", 0),
    if_room("rate_error_ppm", "rate error", 2),
    if_room("send_error_p50_ns", "send error p50", 3),
    if_room("send_error_p99_ns", "p99", 1),
    if_room("send_error_max_ns", "max", 4),
];

const LATENCY: &[ShownColumn] = &[
    always("stream", "stream"),
    if_room("latency_min_ns", "min", 8),
    if_room("latency_mean_ns", "mean", 6),
    always("latency_p50_ns", "p50"),
    if_room("latency_p90_ns", "p90", 2),
    always("latency_p99_ns", "p99"),
    if_room("latency_p999_ns", "p99.9", 4),
    if_room("latency_p9999_ns", "p99.99", 0),
    always("latency_max_ns", "max"),
    if_room("latency_error_p99_ns", "error (p99)", 9).prefixed("≤ "),
    if_room("jitter_rfc3550_ns", "RFC 3550", 3),
    if_room("jitter_pdv_p999_ns", "PDV p99.9", 7),
    if_room("jitter_ipdv_mean_ns", "IPDV mean", 1),
    // Only a run over nodes with separate clocks has this error.
    if_room("latency_clock_bound_ns", "clock error", 5).prefixed("± ").hidden_when_empty(),
];

/// Table of sent, received and lost frames.
pub(super) fn counts(report: &RunReport, style: TextStyle) -> String {
    report_table::<StreamTable>(COUNTS, &StreamTable::rows(report), "streams", style)
}

/// Table of deviations from the schedule.
pub(super) fn sending(report: &RunReport, style: TextStyle) -> String {
    streams_with(SENDING, report, |stream| stream.sent.is_some(), style)
}

/// Table of latency and jitter.
pub(super) fn latency(report: &RunReport, style: TextStyle) -> String {
    streams_with(LATENCY, report, |stream| stream.latency.is_some(), style)
}

fn streams_with(
    columns: &[ShownColumn],
    report: &RunReport,
    has_values: fn(&StreamReport) -> bool,
    style: TextStyle,
) -> String {
    let rows: Vec<&StreamReport> = report.streams.iter().filter(|stream| has_values(stream)).collect();
    report_table::<StreamTable>(columns, &rows, "streams", style)
}
