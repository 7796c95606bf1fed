//! The columns of the table of streams: their headings and exact values.

use super::elements::{Cell, Heading, number, words};
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

const fn column(
    name: &'static str,
    form: &'static str,
    value: fn(&StreamReport) -> Option<StreamValue>,
) -> StreamColumn {
    let heading = match form.as_bytes() {
        b"text" => words(name),
        b"frames" => number(name, "frames"),
        _ => number(name, ""),
    };
    StreamColumn { heading, form, value }
}

fn latency(stream: &StreamReport, of: fn(&LatencyReport) -> Nanos) -> Option<StreamValue> {
    stream.latency.as_ref().map(|latency| Time(of(latency)))
}

/// All columns, in their order.
pub(super) const COLUMNS: &[StreamColumn] = &[
    column("stream", "text", |stream| Some(Text(stream.name.clone()))),
    column("lost", "frames", |stream| Some(Frames(stream.loss?.lost))),
    column("loss", "share", |stream| {
        let loss = stream.loss?;
        Some(Share { part: loss.lost, whole: loss.expected })
    }),
    column("in doubt", "frames", |stream| Some(Frames(stream.loss?.in_doubt))),
    column("longest outage", "time", |stream| Some(Time(stream.outages.as_ref()?.longest?))),
    column("latency p50", "time", |stream| latency(stream, |latency| latency.p50)),
    column("latency p99", "time", |stream| latency(stream, |latency| latency.p99)),
    column("latency p99.9", "time", |stream| latency(stream, |latency| latency.p999)),
    column("latency max", "time", |stream| latency(stream, |latency| latency.max)),
    column("sent", "frames", |stream| Some(Frames(stream.sent.as_ref()?.frames))),
    column("received", "frames", |stream| Some(Frames(stream.received.as_ref()?.frames))),
    column("asked rate", "rate", |stream| Some(FrameRate(stream.asked_milli?))),
    column("rate sent", "rate", |stream| Some(FrameRate(stream.sent.as_ref()?.rate?.frames_milli))),
    column("rate received", "rate", |stream| Some(FrameRate(stream.received.as_ref()?.rate?.frames_milli))),
    column("received, layer 2", "bits", |stream| {
        Some(BitRate(stream.received.as_ref()?.rate?.l2.bits_per_second()))
    }),
    column("copies", "frames", |stream| Some(Frames(stream.received.as_ref()?.sequence.duplicates))),
    column("reordered", "frames", |stream| Some(Frames(stream.received.as_ref()?.sequence.reordered))),
    column("from", "text", |stream| Some(Text(stream.tx_port.clone()))),
    column("to", "text", |stream| Some(Text(stream.rx_ports.join(", ")))),
];

impl StreamValue {
    /// The cell that shows this value.
    pub(super) fn cell(&self) -> Cell {
        match self {
            Self::Text(text) => Cell::text(text.clone()),
            Self::Frames(frames) => Cell::count(*frames),
            Self::FrameRate(milli) => Cell::number(*milli, quantity::frame_rate(*milli)),
            Self::BitRate(bits) => Cell::number(*bits, quantity::scaled(*bits as f64, "bit/s")),
            Self::Time(time) => Cell::number(time.as_u64(), quantity::time(*time)),
            Self::Share { part, whole } => {
                Cell::valued(share_value(*part, *whole), quantity::percent(*part, *whole))
            }
        }
    }

    /// The value for the page's script. Numbers that it cannot hold exactly are texts.
    pub(super) fn data(&self) -> StreamDatum {
        match self {
            Self::Text(text) => StreamDatum::Text(text.clone()),
            Self::Frames(value) | Self::FrameRate(value) | Self::BitRate(value) => StreamDatum::of(*value),
            Self::Time(time) => StreamDatum::of(time.as_u64()),
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
    fn of(value: u64) -> Self {
        // JavaScript numbers are exact up to 2^53.
        if value <= 1 << 53 { Self::Number(value) } else { Self::Text(value.to_string()) }
    }
}
