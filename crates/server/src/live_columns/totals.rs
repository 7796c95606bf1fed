//! Columns for the sums over all streams of a run in progress. Frames and bytes are counted since the run was opened,
//! rates cover the last second, and latencies are measured since the last start of each stream.

use super::LiveColumn;
use crate::tester::LatencyFigures;
use crate::viewing::LiveTotals;
use packetrig_report::columns::CellValue::{self, Count, Float};
use packetrig_report::columns::ColumnKind::{
    Bytes, BytesPerSecond, Frames, FramesPerSecond, Nanoseconds, Number,
};

type Column = LiveColumn<LiveTotals>;

/// The totals of a run.
pub(crate) const TOTAL_COLUMNS: &[Column] = &[
    Column::new("frames_tx", Frames, "Frames sent by all streams.", |totals| {
        Some(Count(totals.counts.frames_tx))
    })
    .on_page("Sent, frames")
    .with_metric("sent_frames_total"),
    Column::new("frames_rx", Frames, "Frames received, over all streams.", |totals| {
        Some(Count(totals.counts.frames_rx))
    })
    .on_page("Received, frames")
    .with_metric("received_frames_total"),
    Column::new("bytes_tx", Bytes, "Bytes sent by all streams, FCS included.", |totals| {
        Some(Count(totals.counts.bytes_tx))
    })
    .with_metric("sent_bytes_total"),
    Column::new("bytes_rx", Bytes, "Bytes received, over all streams, FCS included.", |totals| {
        Some(Count(totals.counts.bytes_rx))
    })
    .with_metric("received_bytes_total"),
    Column::new("gaps", Frames, "Frames missing between received frames.", |totals| {
        Some(Count(totals.counts.gaps))
    })
    .with_metric("sequence_gaps_total"),
    Column::new("frames_tx_rate", FramesPerSecond, "Frames sent per second.", |totals| {
        Some(Float(totals.frames_tx_rate))
    })
    .on_page("Sending, frames"),
    Column::new("frames_rx_rate", FramesPerSecond, "Frames received per second.", |totals| {
        Some(Float(totals.frames_rx_rate))
    })
    .on_page("Receiving, frames"),
    Column::new("bytes_tx_rate", BytesPerSecond, "Bytes sent per second, FCS included.", |totals| {
        Some(Float(totals.bytes_tx_rate))
    })
    .on_page("Sending, layer 2 with FCS"),
    Column::new("bytes_rx_rate", BytesPerSecond, "Bytes received per second, FCS included.", |totals| {
        Some(Float(totals.bytes_rx_rate))
    })
    .on_page("Receiving, layer 2 with FCS"),
    Column::new("started", Number, "Streams that transmit.", |totals| Some(Count(totals.started as u64)))
        .with_metric("started_streams"),
    Column::new("paused", Number, "Streams that are paused.", |totals| Some(Count(totals.paused as u64)))
        .with_metric("paused_streams"),
    Column::new("latency_ns.min", Nanoseconds, "Least latency since the streams last started.", |totals| {
        latency_figure(totals, |times| times.minimum)
    })
    .on_page("Least latency")
    .with_metric("latency_min_seconds"),
    Column::new("latency_ns.mean", Nanoseconds, "Mean latency since the streams last started.", |totals| {
        latency_figure(totals, |times| times.average)
    })
    .on_page("Mean latency")
    .with_metric("latency_mean_seconds"),
    Column::new("latency_ns.max", Nanoseconds, "Largest latency since the streams last started.", |totals| {
        latency_figure(totals, |times| times.maximum)
    })
    .on_page("Largest latency")
    .with_metric("latency_max_seconds"),
];

fn latency_figure(totals: &LiveTotals, figure: fn(&LatencyFigures) -> f64) -> Option<CellValue> {
    totals.latency.as_ref().map(|figures| Float(figure(figures)))
}
