//! One row per stream, however many receivers it has.

use super::ColumnKind::{
    BitsPerSecond, Bytes, Frames, MilliFramesPerSecond, Nanoseconds, Number, PartsPerMillion, Percent,
    Seconds, Text,
};
use super::TerminalTable::{Counts, Every, Latency, Sending};
use super::{ALWAYS_SHOWN_RANK, CellValue, ReportColumn, ReportTable};
use crate::{
    ArrivedFrames, ErrorDistribution, FrameLoss, LatencyReport, MeanRate, MisdeliveryReport, RunReport,
    SentFrames, StreamReport,
};
use packetrig_stats::jitter::JitterSummary;
use packetrig_units::Nanos;

/// The table of `streams.csv`.
#[derive(Clone, Copy, Debug)]
pub struct StreamTable;

impl ReportTable for StreamTable {
    const FILE: &'static str = "streams.csv";
    const ABOUT: &'static str =
        "One row per stream; a stream with several receivers has one row for all of them.";
    const COLUMNS: &'static [ReportColumn<Self>] = STREAM_COLUMNS;
    type Row<'a> = &'a StreamReport;

    fn report_rows(report: &RunReport) -> Vec<Self::Row<'_>> {
        report.streams.iter().collect()
    }
}

type Column = ReportColumn<StreamTable>;

const STREAM_COLUMNS: &[Column] = &[
    Column::new("stream", Text, "Name of the stream.", |row| Some(CellValue::from(&row.name)))
        .on_page(10, "stream")
        .on_terminal(Every, 0, "stream", ALWAYS_SHOWN_RANK),
    Column::new("tx_port", Text, "Name of the sending port.", |row| Some(CellValue::from(&row.tx_port)))
        .on_page(180, "from"),
    Column::new("rx_ports", Text, "Names of the receiving ports, separated by spaces.", |row| {
        Some(CellValue::Names(row.rx_ports.clone()))
    })
    .on_page(190, "to"),
    Column::new("planned", Frames, "Frames that were due by the time the sender ended.", |row| {
        sent_cell(row, |sent| sent.planned)
    })
    .on_terminal(Sending, 10, "planned", ALWAYS_SHOWN_RANK),
    Column::new("sent", Frames, "Frames that the sender handed over to the kernel.", |row| {
        sent_cell(row, |sent| sent.frames)
    })
    .on_page(100, "sent")
    .on_terminal(Counts, 10, "sent", ALWAYS_SHOWN_RANK),
    Column::new("unsent", Frames, "Frames that were planned and not sent.", |row| {
        sent_cell(row, |sent| sent.unsent)
    })
    .on_terminal(Sending, 20, "unsent", 6),
    // This column is always shown: without lateness, nobody can tell whether the sender or the network made the
    // bursts.
    Column::new("late", Frames, "Frames that left more than 1 ms after they were due.", |row| {
        sent_cell(row, |sent| sent.late)
    })
    .on_terminal(Sending, 30, "late", ALWAYS_SHOWN_RANK),
    Column::new("sent_bytes", Bytes, "Bytes of the frames sent, with FCS.", |row| {
        sent_cell(row, |sent| sent.bytes)
    }),
    Column::new("tx_fps_milli", MilliFramesPerSecond, "Mean frame rate sent.", |row| {
        tx_rate_cell(row, |rate| rate.frames_milli)
    })
    .on_page(130, "rate sent")
    .on_terminal(Sending, 40, "frames/s", 7),
    Column::new("tx_l2_bps", BitsPerSecond, "Mean rate sent on layer 2: frames with FCS.", |row| {
        tx_rate_cell(row, |rate| rate.l2.bits_per_second())
    })
    .on_terminal(Sending, 50, "layer 2", 5),
    Column::new(
        "tx_l1_bps",
        BitsPerSecond,
        "Mean rate sent on layer 1: with preamble and minimum gap.",
        |row| tx_rate_cell(row, |rate| rate.l1.bits_per_second()),
    )
    .on_terminal(Sending, 60, "layer 1", 0),
    Column::new(
        "rate_error_ppm",
        PartsPerMillion,
        "Deviation of the mean frame rate from the schedule; above zero is too fast.",
        |row| row.sent.as_ref()?.rate_error_ppm.map(CellValue::Signed),
    )
    .on_terminal(Sending, 70, "rate error", 2),
    Column::new(
        "send_error_p50_ns",
        Nanoseconds,
        "Distance of departures from their due times: median.",
        |row| send_error_cell(row, |spread| spread.p50),
    )
    .on_terminal(Sending, 80, "send error p50", 3),
    Column::new(
        "send_error_p99_ns",
        Nanoseconds,
        "Distance of departures from their due times: 99 % are at or below.",
        |row| send_error_cell(row, |spread| spread.p99),
    )
    .on_terminal(Sending, 90, "p99", 1),
    Column::new(
        "send_error_max_ns",
        Nanoseconds,
        "Distance of departures from their due times: the largest.",
        |row| send_error_cell(row, |spread| spread.max),
    )
    .on_terminal(Sending, 100, "max", 4),
    Column::new(
        "received",
        Frames,
        "Frames of the stream that receivers recognised, copies included.",
        |row| received_cell(row, |got| got.frames),
    )
    .on_page(110, "received")
    .on_terminal(Counts, 20, "received", ALWAYS_SHOWN_RANK),
    Column::new("received_bytes", Bytes, "Bytes of the frames received, with FCS.", |row| {
        received_cell(row, |got| got.bytes)
    }),
    Column::new(
        "unique",
        Frames,
        "Distinct frames at each receiver, summed over all receivers; further copies are not counted.",
        |row| received_cell(row, |got| got.sequence.unique),
    ),
    Column::new("rx_l2_bps", BitsPerSecond, "Mean rate received on layer 2.", |row| {
        Some(row.received.as_ref()?.rate?.l2.bits_per_second().into())
    })
    .on_page(150, "received, layer 2")
    .on_terminal(Counts, 140, "rx rate", 7),
    Column::new(
        "expected",
        Frames,
        "Frames that all receivers together should have counted: `sent` times `rx_tx_ratio`.",
        |row| loss_cell(row, |loss| loss.expected),
    ),
    Column::new(
        "lost",
        Frames,
        "Expected frames that did not arrive: `expected` minus `unique`, over all receivers.",
        |row| loss_cell(row, |loss| loss.lost),
    )
    .on_page(20, "lost")
    .on_terminal(Counts, 30, "lost", ALWAYS_SHOWN_RANK),
    Column::new("lost_percent", Percent, "Lost frames in percent of expected frames.", |row| {
        let loss = row.loss?;
        Some(CellValue::Share { part: loss.lost, whole: loss.expected, percent: loss.percent })
    })
    .on_page(30, "loss")
    .on_terminal(Counts, 40, "loss", 10),
    Column::new("longest_burst", Frames, "Length of the longest loss burst (consecutive lost frames).", |row| {
        row.loss?.longest_burst.map(CellValue::Count)
    })
    .on_terminal(Counts, 60, "longest burst", 2),
    Column::new("loss_seconds", Seconds, "Seconds of the schedule with at least one lost frame.", |row| {
        row.loss?.seconds.map(CellValue::Count)
    })
    .on_terminal(Counts, 70, "s with loss", 3),
    Column::new("duplicates", Frames, "Copies of frames that had arrived before.", |row| {
        received_cell(row, |got| got.sequence.duplicates)
    })
    .on_page(160, "copies")
    .on_terminal(Counts, 80, "dupl.", 9),
    Column::new(
        "reordered",
        Frames,
        "Frames that arrived after one with a higher number (RFC 4737).",
        |row| received_cell(row, |got| got.sequence.reordered),
    )
    .on_page(170, "reordered")
    .on_terminal(Counts, 90, "reord.", 8),
    Column::new("max_extent", Frames, "The largest reordering extent (RFC 4737).", |row| {
        received_cell(row, |got| got.sequence.max_extent)
    })
    .on_terminal(Counts, 100, "reorder extent", 1),
    Column::new(
        "stale",
        Frames,
        "Frames that arrived more than 65 536 frames late; they count as lost.",
        |row| received_cell(row, |got| got.sequence.stale),
    ),
    Column::new(
        "altered",
        Frames,
        "Frames with headers that changed on the way; their payload is intact.",
        |row| received_cell(row, |got| got.altered),
    )
    .on_terminal(Counts, 110, "altered", 6),
    Column::new("corrupt", Frames, "Frames with a damaged payload.", |row| {
        received_cell(row, |got| got.corrupt)
    })
    .on_terminal(Counts, 120, "corrupt", 5),
    Column::new(
        "unnumbered",
        Frames,
        "Frames with a damaged test tag, recognised by their headers.",
        |row| received_cell(row, |got| got.unnumbered),
    )
    .on_terminal(Counts, 130, "bad tag", 0),
    Column::new("latency_min_ns", Nanoseconds, "One-way latency: the smallest.", |row| {
        latency_cell(row, |times| times.min)
    })
    .on_terminal(Latency, 10, "min", 8),
    Column::new("latency_mean_ns", Nanoseconds, "One-way latency: mean.", |row| {
        latency_cell(row, |times| times.mean)
    })
    .on_terminal(Latency, 20, "mean", 6),
    Column::new("latency_max_ns", Nanoseconds, "One-way latency: the largest.", |row| {
        latency_cell(row, |times| times.max)
    })
    .on_page(90, "latency max")
    .on_terminal(Latency, 80, "max", ALWAYS_SHOWN_RANK),
    Column::new("latency_p50_ns", Nanoseconds, "One-way latency: median.", |row| {
        latency_cell(row, |times| times.p50)
    })
    .on_page(60, "latency p50")
    .on_terminal(Latency, 30, "p50", ALWAYS_SHOWN_RANK),
    Column::new("latency_p90_ns", Nanoseconds, "One-way latency: 90 % are at or below.", |row| {
        latency_cell(row, |times| times.p90)
    })
    .on_terminal(Latency, 40, "p90", 2),
    Column::new("latency_p99_ns", Nanoseconds, "One-way latency: 99 % are at or below.", |row| {
        latency_cell(row, |times| times.p99)
    })
    .on_page(70, "latency p99")
    .on_terminal(Latency, 50, "p99", ALWAYS_SHOWN_RANK),
    Column::new("latency_p999_ns", Nanoseconds, "One-way latency: 99.9 % are at or below.", |row| {
        latency_cell(row, |times| times.p999)
    })
    .on_page(80, "latency p99.9")
    .on_terminal(Latency, 60, "p99.9", 4),
    Column::new("latency_p9999_ns", Nanoseconds, "One-way latency: 99.99 % are at or below.", |row| {
        latency_cell(row, |times| times.p9999)
    })
    .on_terminal(Latency, 70, "p99.99", 0),
    Column::new(
        "latency_error_p99_ns",
        Nanoseconds,
        "Largest error of a latency for 99 % of the frames: it may be too large, and with two clocks also too small.",
        |row| row.latency.as_ref()?.error.p99().map(CellValue::from),
    )
    .on_terminal(Latency, 90, "error (p99)", 9)
    .with_prefix("≤ "),
    Column::new(
        "jitter_rfc3550_ns",
        Nanoseconds,
        "Interarrival jitter at the end of the stream (RFC 3550).",
        |row| jitter_cell(row, |jitter| jitter.rfc3550),
    )
    .on_terminal(Latency, 100, "RFC 3550", 3),
    Column::new(
        "jitter_pdv_p999_ns",
        Nanoseconds,
        "Packet delay variation (RFC 5481): p99.9 of the latency minus its minimum.",
        |row| jitter_cell(row, |jitter| jitter.pdv_p999),
    )
    .on_terminal(Latency, 110, "PDV p99.9", 7),
    Column::new(
        "jitter_ipdv_mean_ns",
        Nanoseconds,
        "Inter-packet delay variation (RFC 5481): mean.",
        |row| jitter_cell(row, |jitter| jitter.ipdv_mean),
    )
    .on_terminal(Latency, 120, "IPDV mean", 1),
    Column::new(
        "jitter_ipdv_max_ns",
        Nanoseconds,
        "Inter-packet delay variation (RFC 5481): the largest.",
        |row| jitter_cell(row, |jitter| jitter.ipdv_max),
    ),
    Column::new("first_rx_ns", Nanoseconds, "First arrival, counted from the start of the run.", |row| {
        row.received.as_ref()?.first.map(CellValue::from)
    }),
    Column::new("last_rx_ns", Nanoseconds, "Last arrival, counted from the start of the run.", |row| {
        row.received.as_ref()?.last.map(CellValue::from)
    }),
    Column::new(
        "latency_clock_bound_ns",
        Nanoseconds,
        "The part of the latency's error that the clocks of two nodes add.",
        |row| row.latency.as_ref()?.error.clock.map(CellValue::from),
    )
    // Only a run over nodes with separate clocks has this error.
    .on_terminal(Latency, 130, "clock error", 5)
    .with_prefix("± ")
    .hidden_when_unknown(),
    Column::new("bursts", Number, "Number of loss bursts (consecutive lost frames).", |row| {
        row.loss?.bursts.map(CellValue::Count)
    })
    .on_terminal(Counts, 50, "bursts", 4),
    Column::new(
        "in_doubt",
        Frames,
        "Lost frames that the rig, or a link without carrier, may have lost.",
        |row| loss_cell(row, |loss| loss.in_doubt),
    )
    .on_page(40, "in doubt"),
    Column::new(
        "longest_outage_ns",
        Nanoseconds,
        "The longest time between two arrivals with lost frames between them.",
        |row| row.outages.as_ref()?.longest.map(CellValue::from),
    )
    .on_page(50, "longest outage"),
    Column::new(
        "misdelivered",
        Frames,
        "Distinct frames that arrived at a wrong port and not at the right one.",
        |row| misdelivery_cell(row, |astray| astray.instead),
    ),
    Column::new(
        "flooded",
        Frames,
        "Distinct frames that arrived at a wrong port and also at the right one.",
        |row| misdelivery_cell(row, |astray| astray.flooded),
    ),
    Column::new("reflected", Frames, "Frames that came back to the port that sent them.", |row| {
        misdelivery_cell(row, |astray| astray.reflected)
    }),
    Column::new(
        "untagged_compared",
        Frames,
        "Frames without a test tag that were compared by content.",
        |row| Some(row.contents?.compared.into()),
    ),
    Column::new(
        "untagged_lost",
        Frames,
        "Frames without a test tag that did not arrive, according to the comparison by content.",
        |row| Some(row.contents?.lost.into()),
    ),
    Column::new(
        "delivered_fps_milli",
        MilliFramesPerSecond,
        "Distinct frames that arrived per second of the requested time; `min_rate` judges this value.",
        |row| row.delivered_milli.map(|rate| rate.value.into()),
    ),
    Column::new(
        "jitter_rfc3550_max_ns",
        Nanoseconds,
        "The largest interarrival jitter at any time (RFC 3550); `max_jitter` judges this value.",
        |row| jitter_cell(row, |jitter| jitter.rfc3550_max),
    ),
    Column::new(
        "certain_outage_ns",
        Nanoseconds,
        "Lower bound of the longest outage, without the part that the rig may have caused.",
        |row| row.outages.as_ref()?.longest_certain.map(CellValue::from),
    ),
    Column::new("asked_fps_milli", MilliFramesPerSecond, "Frame rate that the schedule asks for.", |row| {
        row.asked_milli.map(CellValue::Count)
    })
    .on_page(120, "asked rate"),
    Column::new("rx_fps_milli", MilliFramesPerSecond, "Mean frame rate received.", |row| {
        Some(row.received.as_ref()?.rate?.frames_milli.into())
    })
    .on_page(140, "rate received"),
];

fn sent_cell(row: &StreamReport, of: fn(&SentFrames) -> u64) -> Option<CellValue> {
    row.sent.as_ref().map(|sent| of(sent).into())
}

fn tx_rate_cell(row: &StreamReport, of: fn(MeanRate) -> u64) -> Option<CellValue> {
    row.sent.as_ref()?.rate.map(|rate| of(rate).into())
}

fn send_error_cell(row: &StreamReport, of: fn(ErrorDistribution) -> Nanos) -> Option<CellValue> {
    row.sent.as_ref()?.send_error.map(|spread| of(spread).into())
}

fn received_cell(row: &StreamReport, of: fn(&ArrivedFrames) -> u64) -> Option<CellValue> {
    row.received.as_ref().map(|got| of(got).into())
}

fn loss_cell(row: &StreamReport, of: fn(FrameLoss) -> u64) -> Option<CellValue> {
    row.loss.map(|loss| of(loss).into())
}

fn latency_cell(row: &StreamReport, of: fn(&LatencyReport) -> Nanos) -> Option<CellValue> {
    row.latency.as_ref().map(|times| of(times).into())
}

fn jitter_cell(row: &StreamReport, of: fn(&JitterSummary) -> Nanos) -> Option<CellValue> {
    row.jitter.as_ref().map(|jitter| of(jitter).into())
}

fn misdelivery_cell(row: &StreamReport, of: fn(&MisdeliveryReport) -> u64) -> Option<CellValue> {
    row.misdelivery.as_ref().map(|astray| of(astray).into())
}
