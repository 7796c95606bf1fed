//! The columns of the table of streams: their headings and exact values.

use super::elements::{Cell, Heading, number_column, word_column};
use crate::quantity;
use packetrig_fleet::report::{LatencyReport, StreamReport};
use packetrig_units::Nanos;
use serde::Serialize;

/// An exact value of the table.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum StreamValue {
    Text(String),
    Frames(u64),
    /// Frames per second, in thousandths.
    FrameRate(u64),
    BitRate(u64),
    Time(Nanos),
    Share {
        part: u64,
        whole: u64,
    },
}

/// A column of the table.
#[derive(Clone, Copy)]
pub(super) struct StreamColumn {
    pub(super) heading: Heading,
    /// The form in which the page's script shows values.
    pub(super) form: &'static str,
    /// `None` if it was not measured.
    pub(super) value: fn(&StreamReport) -> Option<StreamValue>,
}

use StreamValue::{BitRate, FrameRate, Frames, Share, Text, Time};

const fn stream_column(
    name: &'static str,
    form: &'static str,
    value: fn(&StreamReport) -> Option<StreamValue>,
) -> StreamColumn {
    // Bytes, because a `const fn` cannot match on a string of a variable.
    let heading = match form.as_bytes() {
        b"text" => word_column(name),
        b"frames" => number_column(name, "frames"),
        _ => number_column(name, ""),
    };
    StreamColumn { heading, form, value }
}

fn latency_value(stream: &StreamReport, of: fn(&LatencyReport) -> Nanos) -> Option<StreamValue> {
    stream.latency.as_ref().map(|latency| Time(of(latency)))
}

/// All columns, in their order.
pub(super) const COLUMNS: &[StreamColumn] = &[
    stream_column("stream", "text", |stream| Some(Text(stream.name.clone()))),
    stream_column("lost", "frames", |stream| Some(Frames(stream.loss?.lost))),
    stream_column("loss", "share", |stream| {
        let loss = stream.loss?;
        Some(Share { part: loss.lost, whole: loss.expected })
    }),
    stream_column("in doubt", "frames", |stream| Some(Frames(stream.loss?.in_doubt))),
    stream_column("longest outage", "time", |stream| Some(Time(stream.outages.as_ref()?.longest?))),
    stream_column("latency p50", "time", |stream| latency_value(stream, |latency| latency.p50)),
    stream_column("latency p99", "time", |stream| latency_value(stream, |latency| latency.p99)),
    stream_column("latency p99.9", "time", |stream| latency_value(stream, |latency| latency.p999)),
    stream_column("latency max", "time", |stream| latency_value(stream, |latency| latency.max)),
    stream_column("sent", "frames", |stream| Some(Frames(stream.sent.as_ref()?.frames))),
    stream_column("received", "frames", |stream| Some(Frames(stream.received.as_ref()?.frames))),
    stream_column("asked rate", "rate", |stream| Some(FrameRate(stream.asked_milli?))),
    stream_column("rate sent", "rate", |stream| Some(FrameRate(stream.sent.as_ref()?.rate?.frames_milli))),
    stream_column("rate received", "rate", |stream| {
        Some(FrameRate(stream.received.as_ref()?.rate?.frames_milli))
    }),
    stream_column("received, layer 2", "bits", |stream| {
        Some(BitRate(stream.received.as_ref()?.rate?.l2.bits_per_second()))
    }),
    stream_column("copies", "frames", |stream| Some(Frames(stream.received.as_ref()?.sequence.duplicates))),
    stream_column("reordered", "frames", |stream| Some(Frames(stream.received.as_ref()?.sequence.reordered))),
    stream_column("from", "text", |stream| Some(Text(stream.tx_port.clone()))),
    stream_column("to", "text", |stream| Some(Text(stream.rx_ports.join(", ")))),
];

impl StreamValue {
    /// The cell that shows this value.
    pub(super) fn to_cell(&self) -> Cell {
        match self {
            Self::Text(text) => Cell::text(text.clone()),
            Self::Frames(frames) => Cell::count(*frames),
            Self::FrameRate(milli) => Cell::number(*milli, quantity::frame_rate(*milli)),
            Self::BitRate(bits) => Cell::number(*bits, quantity::format_scaled(*bits as f64, "bit/s")),
            Self::Time(time) => Cell::number(time.as_u64(), quantity::format_time(*time)),
            Self::Share { part, whole } => {
                Cell::with_value(share_value(*part, *whole), quantity::format_percent(*part, *whole))
            }
        }
    }

    /// The value for the page's script. Numbers that it cannot hold exactly are texts.
    pub(super) fn to_datum(&self) -> StreamDatum {
        match self {
            Self::Text(text) => StreamDatum::Text(text.clone()),
            Self::Frames(value) | Self::FrameRate(value) | Self::BitRate(value) => {
                StreamDatum::from_number(*value)
            }
            Self::Time(time) => StreamDatum::from_number(time.as_u64()),
            // A quotient would be rounded, and shares of a few frames in 10^9 would become equal when they are
            // sorted.
            Self::Share { part, whole } => StreamDatum::Text(share_value(*part, *whole)),
        }
    }
}

/// The share as `part/whole`: exact, and the script can divide it.
fn share_value(part: u64, whole: u64) -> String {
    format!("{part}/{whole}")
}

/// A value in the data of the page.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(super) enum StreamDatum {
    Text(String),
    Number(u64),
}

impl StreamDatum {
    fn from_number(value: u64) -> Self {
        // JavaScript numbers are exact up to 2^53.
        if value <= 1 << 53 { Self::Number(value) } else { Self::Text(value.to_string()) }
    }
}
