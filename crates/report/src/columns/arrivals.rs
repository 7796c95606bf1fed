//! Arrivals by receiving port, outage and second.

use super::ColumnKind::{Bytes, Frames, Nanoseconds, Number, Text};
use super::{CellValue, ReportColumn, ReportTable, map_port_names_to_nodes};
use crate::{FrameLoss, LatencyReport, OutageRow, PortShare, RunReport, StreamReport};
use packetrig_stats::series::QualitySecond;
use packetrig_units::Nanos;

/// The table of `receivers.csv`.
#[derive(Clone, Copy, Debug)]
pub struct ReceiverTable;

/// A stream at one of its receiving ports.
#[derive(Clone, Copy, Debug)]
pub struct ReceiverRow<'a> {
    stream: &'a StreamReport,
    share: &'a PortShare,
    node: Option<&'a str>,
}

impl ReportTable for ReceiverTable {
    const FILE: &'static str = "receivers.csv";
    const ABOUT: &'static str = "One row per stream and receiving port.";
    const COLUMNS: &'static [ReportColumn<Self>] = RECEIVER_COLUMNS;
    type Row<'a> = ReceiverRow<'a>;

    fn report_rows(report: &RunReport) -> Vec<Self::Row<'_>> {
        let nodes = map_port_names_to_nodes(report);
        let mut rows = Vec::new();
        for stream in &report.streams {
            for share in &stream.per_port {
                rows.push(ReceiverRow { stream, share, node: nodes.get(share.port.as_str()).copied() });
            }
        }
        rows
    }
}

type ReceiverColumn = ReportColumn<ReceiverTable>;

const RECEIVER_COLUMNS: &[ReceiverColumn] = &[
    ReceiverColumn::new("stream", Text, "Name of the stream.", |row| Some(CellValue::from(&row.stream.name))),
    ReceiverColumn::new("port", Text, "Name of the receiving port.", |row| {
        Some(CellValue::from(&row.share.port))
    }),
    ReceiverColumn::new("received", Frames, "Frames recognised here, copies included.", |row| {
        Some(CellValue::Count(row.share.received.frames))
    }),
    ReceiverColumn::new("received_bytes", Bytes, "Bytes of the frames in `received`, with FCS.", |row| {
        Some(CellValue::Count(row.share.received.bytes))
    }),
    ReceiverColumn::new(
        "unique",
        Frames,
        "Distinct frames received here; further copies are not counted.",
        |row| Some(CellValue::Count(row.share.received.sequence.unique)),
    ),
    ReceiverColumn::new(
        "expected",
        Frames,
        "Frames that should have arrived here; absent where receivers share the stream.",
        |row| loss_cell(row, |loss| Some(loss.expected)),
    ),
    ReceiverColumn::new("lost", Frames, "Expected frames that did not arrive here.", |row| {
        loss_cell(row, |loss| Some(loss.lost))
    }),
    ReceiverColumn::new("bursts", Number, "Number of loss bursts (consecutive lost frames).", |row| {
        loss_cell(row, |loss| loss.bursts)
    }),
    ReceiverColumn::new("duplicates", Frames, "Copies of frames that had arrived before.", |row| {
        Some(CellValue::Count(row.share.received.sequence.duplicates))
    }),
    ReceiverColumn::new(
        "reordered",
        Frames,
        "Frames that arrived after one with a higher number (RFC 4737).",
        |row| Some(CellValue::Count(row.share.received.sequence.reordered)),
    ),
    ReceiverColumn::new(
        "altered",
        Frames,
        "Frames with headers that changed on the way; their payload is intact.",
        |row| Some(CellValue::Count(row.share.received.altered)),
    ),
    ReceiverColumn::new("corrupt", Frames, "Frames with a damaged payload.", |row| {
        Some(CellValue::Count(row.share.received.corrupt))
    }),
    ReceiverColumn::new(
        "unnumbered",
        Frames,
        "Frames with a damaged test tag, recognised by their headers.",
        |row| Some(CellValue::Count(row.share.received.unnumbered)),
    ),
    ReceiverColumn::new("latency_mean_ns", Nanoseconds, "One-way latency: mean.", |row| {
        latency_cell(row, |times| times.mean)
    }),
    ReceiverColumn::new("latency_p99_ns", Nanoseconds, "One-way latency: 99 % are at or below.", |row| {
        latency_cell(row, |times| times.p99)
    }),
    ReceiverColumn::new("latency_max_ns", Nanoseconds, "One-way latency: the largest.", |row| {
        latency_cell(row, |times| times.max)
    }),
    ReceiverColumn::new(
        "node",
        Text,
        "The node that the port is on; empty if that node did not report.",
        |row| row.node.map(CellValue::from),
    ),
];

fn loss_cell(row: &ReceiverRow<'_>, of: fn(FrameLoss) -> Option<u64>) -> Option<CellValue> {
    row.share.loss.and_then(of).map(CellValue::Count)
}

fn latency_cell(row: &ReceiverRow<'_>, of: fn(LatencyReport) -> Nanos) -> Option<CellValue> {
    row.share.latency.map(|times| of(times).into())
}

/// The table of `outages.csv`.
#[derive(Clone, Copy, Debug)]
pub struct OutageTable;

/// An outage of a stream at a port.
#[derive(Clone, Copy, Debug)]
pub struct OutageTableRow<'a> {
    stream: &'a StreamReport,
    outage: &'a OutageRow,
    node: Option<&'a str>,
}

impl ReportTable for OutageTable {
    const FILE: &'static str = "outages.csv";
    const ABOUT: &'static str = "One row per outage; of each stream, only the 64 with the most lost frames. Times count from the run's start.";
    const COLUMNS: &'static [ReportColumn<Self>] = OUTAGE_COLUMNS;
    type Row<'a> = OutageTableRow<'a>;

    fn report_rows(report: &RunReport) -> Vec<Self::Row<'_>> {
        let nodes = map_port_names_to_nodes(report);
        let mut rows = Vec::new();
        for stream in &report.streams {
            for outage in stream.outages.iter().flat_map(|outages| &outages.listed) {
                rows.push(OutageTableRow { stream, outage, node: nodes.get(outage.port.as_str()).copied() });
            }
        }
        rows
    }
}

type OutageColumn = ReportColumn<OutageTable>;

const OUTAGE_COLUMNS: &[OutageColumn] = &[
    OutageColumn::new("stream", Text, "Name of the stream.", |row| Some(CellValue::from(&row.stream.name))),
    OutageColumn::new("port", Text, "Name of the receiving port.", |row| {
        Some(CellValue::from(&row.outage.port))
    }),
    OutageColumn::new("first", Number, "Number of the first lost frame.", |row| {
        Some(CellValue::Count(row.outage.first))
    }),
    OutageColumn::new("last", Number, "Number of the last lost frame.", |row| {
        Some(CellValue::Count(row.outage.last))
    }),
    OutageColumn::new("frames", Frames, "Number of lost frames from `first` to `last`.", |row| {
        Some(CellValue::Count(row.outage.frames))
    }),
    OutageColumn::new("gaps", Number, "Number of separate gaps that this outage joins.", |row| {
        Some(CellValue::Count(row.outage.gaps))
    }),
    OutageColumn::new(
        "begin_ns",
        Nanoseconds,
        "Arrival of the last frame before the outage; empty if no frame arrived before it.",
        |row| row.outage.begin.map(CellValue::from),
    ),
    OutageColumn::new(
        "end_ns",
        Nanoseconds,
        "Arrival of the first frame after the outage; empty if no frame arrived after it.",
        |row| row.outage.end.map(CellValue::from),
    ),
    OutageColumn::new(
        "in_doubt",
        Frames,
        "Lost frames that the rig, or a link without carrier, may have lost.",
        |row| Some(CellValue::Count(row.outage.in_doubt)),
    ),
    OutageColumn::new(
        "node",
        Text,
        "The node that the port is on; empty if that node did not report.",
        |row| row.node.map(CellValue::from),
    ),
];

/// The table of `quality.csv`.
#[derive(Clone, Copy, Debug)]
pub struct QualityTable;

/// A second of a stream.
#[derive(Clone, Copy, Debug)]
pub struct QualityRow<'a> {
    stream: &'a StreamReport,
    second: u64,
    quality: QualitySecond,
    /// Median and 99th percentile of the delays in this second.
    percentiles: Option<(Nanos, Nanos)>,
}

impl ReportTable for QualityTable {
    const FILE: &'static str = "quality.csv";
    const ABOUT: &'static str =
        "One row per stream and second of the run with lost frames or measured delays.";
    const COLUMNS: &'static [ReportColumn<Self>] = QUALITY_COLUMNS;
    type Row<'a> = QualityRow<'a>;

    fn report_rows(report: &RunReport) -> Vec<Self::Row<'_>> {
        let mut rows = Vec::new();
        for stream in &report.streams {
            let Some(got) = &stream.received else { continue };
            let seconds = got.quality.seconds.iter().enumerate();
            let all = seconds.filter(|(_, quality)| quality.lost > 0 || quality.delayed > 0);
            rows.extend(all.map(|(second, quality)| QualityRow {
                stream,
                second: second as u64,
                quality: *quality,
                percentiles: got.quality.percentiles_of(second),
            }));
        }
        rows
    }
}

type QualityColumn = ReportColumn<QualityTable>;

const QUALITY_COLUMNS: &[QualityColumn] = &[
    QualityColumn::new("stream", Text, "Name of the stream.", |row| Some(CellValue::from(&row.stream.name))),
    QualityColumn::new("second", Number, "Second of the run, from 0.", |row| {
        Some(CellValue::Count(row.second))
    }),
    QualityColumn::new("lost", Frames, "Frames due in this second that were lost.", |row| {
        Some(CellValue::Count(row.quality.lost))
    }),
    QualityColumn::new("delayed", Frames, "Frames of this second with a measured delay.", |row| {
        Some(CellValue::Count(row.quality.delayed))
    }),
    QualityColumn::new("latency_mean_ns", Nanoseconds, "Mean delay of the frames in `delayed`.", |row| {
        row.quality.delay_total_ns.checked_div(row.quality.delayed).map(CellValue::Count)
    }),
    QualityColumn::new(
        "latency_max_ns",
        Nanoseconds,
        "The longest delay of the frames in `delayed`.",
        |row| (row.quality.delayed > 0).then(|| row.quality.delay_max.into()),
    ),
    QualityColumn::new(
        "latency_p50_ns",
        Nanoseconds,
        "Median delay of the frames in `delayed`, at most 6.25 % too large; empty if several receivers measured delays, or if a frame was overtaken by a frame that was sent more than a second later.",
        |row| row.percentiles.map(|(p50, _)| p50.into()),
    ),
    QualityColumn::new(
        "latency_p99_ns",
        Nanoseconds,
        "99th percentile of the delays, with the same error as `latency_p50_ns`; empty in the same cases.",
        |row| row.percentiles.map(|(_, p99)| p99.into()),
    ),
];
