//! The state of a run from the server's API (`docs/book/page-api.md`). Values that the server may not know are `None`;
//! other numbers are 0 if the server did not send them.
//!
//! Names come from other machines: [`make_printable`] makes them harmless before they are shown.

use crate::numbers;
use packetrig_program::escape_unsafe_text;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::collections::BTreeMap;

/// Data of the event `live`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct LiveFacts {
    pub(super) configuration: u64,
    pub(super) run: Option<RunFacts>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RunFacts {
    pub(super) id: Option<String>,
    pub(super) state: Option<String>,
    pub(super) ended: Option<String>,
    pub(super) elapsed_ms: u64,
    pub(super) totals: TotalFacts,
    /// Frame counts; the keys are the names of the ledger's accounts in `report.json`.
    pub(super) ledger: BTreeMap<String, FrameCount>,
    pub(super) losses: LossFacts,
    pub(super) ports: Vec<Value>,
    pub(super) streams: StreamFacts,
    pub(super) findings: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct TotalFacts {
    pub(super) frames_tx: FrameCount,
    pub(super) frames_rx: FrameCount,
    pub(super) frames_tx_rate: Option<f64>,
    pub(super) frames_rx_rate: Option<f64>,
    pub(super) bytes_tx_rate: Option<f64>,
    pub(super) bytes_rx_rate: Option<f64>,
    pub(super) started: u64,
    pub(super) paused: u64,
    pub(super) latency_ns: Option<LatencyFacts>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct LatencyFacts {
    pub(super) min: Option<f64>,
    pub(super) mean: Option<f64>,
    pub(super) max: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct LossFacts {
    pub(super) lost: FrameCount,
    pub(super) in_flight_or_lost: FrameCount,
    pub(super) in_motion: bool,
    pub(super) sender: Option<FrameCount>,
    pub(super) path_or_in_doubt: Option<FrameCount>,
    pub(super) receiver: Option<FrameCount>,
}

/// A row of the table of streams or of ports.
pub(super) trait LiveRow {
    /// The value in the column with this name; `null` if it is not known or was not sent.
    fn value(&self, column: &str) -> &Value;
}

/// A port is a JSON object, as the server sends it.
impl LiveRow for &Value {
    fn value(&self, column: &str) -> &Value {
        &self[column]
    }
}

/// The requested rows of streams, in columns as the server sends them.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StreamFacts {
    pub(super) total: usize,
    pub(super) matching: usize,
    pub(super) from: usize,
    /// Values of each column, by its name; a stream has the same index in all columns.
    columns: BTreeMap<String, Vec<Value>>,
}

/// The row of one stream: its value in each column that the server sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamRow<'a> {
    columns: &'a BTreeMap<String, Vec<Value>>,
    at: usize,
}

impl LiveRow for StreamRow<'_> {
    fn value(&self, column: &str) -> &Value {
        self.columns.get(column).and_then(|values| values.get(self.at)).unwrap_or(&Value::Null)
    }
}

impl StreamRow<'_> {
    pub(super) fn name(&self) -> &str {
        self.value("name").as_str().unwrap_or_default()
    }
}

impl StreamFacts {
    /// Returns the stream at this position of the sorted and filtered table; `None` if the server did not send its row.
    pub(super) fn row_at(&self, place: usize) -> Option<StreamRow<'_>> {
        // The server sends a window of rows, which begins at `from`.
        let at = place.checked_sub(self.from)?;
        // The names decide how many rows came. A shorter column gives an unknown value and no error.
        (at < self.names().len()).then_some(StreamRow { columns: &self.columns, at })
    }

    fn names(&self) -> &[Value] {
        self.columns.get("name").map_or(&[], Vec::as_slice)
    }

    /// Returns the position of the stream with this name, if its row was sent. A flow with several routes has several
    /// rows of the same name: then returns the position that is nearest to `near`.
    pub(super) fn find_stream_position(&self, name: &str, near: usize) -> Option<usize> {
        let names = self.names().iter().enumerate();
        names
            .filter(|(_, other)| other.as_str() == Some(name))
            .map(|(at, _)| self.from + at)
            .min_by_key(|place| place.abs_diff(near))
    }
}

/// Reads a count of the API, which is a number or a text; `None` for any other value.
pub(super) fn parse_api_count(value: &Value) -> Option<u64> {
    FrameCount::deserialize(value).ok().map(|count| count.0)
}

/// A count of the API. The server sends a count as text if JavaScript would round the number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FrameCount(pub(super) u64);

impl<'de> Deserialize<'de> for FrameCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // One type accepts both forms: the server writes text only for counts that JavaScript would round.
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(u64),
            Text(String),
        }
        match Form::deserialize(deserializer)? {
            Form::Number(number) => Ok(Self(number)),
            Form::Text(text) => text.parse().map(Self).map_err(serde::de::Error::custom),
        }
    }
}

impl LossFacts {
    /// Describes the losses so far in one sentence.
    pub(super) fn loss_sentence(&self) -> String {
        let lost = match self.lost.0 {
            0 => "no frame is lost".to_owned(),
            1 => "1 frame is lost".to_owned(),
            lost => format!("{} frames are lost", numbers::format_count(lost)),
        };
        // Frames in flight are named beside the losses, because they look lost until they arrive.
        match self.in_flight_or_lost.0 {
            0 => lost,
            1 => format!("{lost}; 1 other frame is in flight or lost"),
            open => format!("{lost}; {} other frames are in flight or lost", numbers::format_count(open)),
        }
    }

    /// Returns the losses in our sender, on the path and in our receiver; `None` where losses were not measured.
    pub(super) fn losses_by_place(&self) -> [(&'static str, Option<u64>); 3] {
        [
            ("our sender", self.sender),
            ("path or in doubt", self.path_or_in_doubt),
            ("our receiver", self.receiver),
        ]
        .map(|(place, count)| (place, count.map(|FrameCount(count)| count)))
    }
}

/// Makes text from another machine safe to print: one line, without control codes of terminals.
pub(super) fn make_printable(text: &str) -> String {
    let mut harmless = String::with_capacity(text.len());
    for c in text.chars() {
        // `escape_unsafe_text` keeps the colours, tabs and line ends that packetrig adds; here packetrig adds none.
        if c.is_control() { harmless.extend(c.escape_default()) } else { harmless.push(c) }
    }
    escape_unsafe_text(&harmless).into_owned()
}

/// Formats a count; `not measured` if there is none.
pub(super) fn count_or_unmeasured(count: Option<u64>) -> String {
    count.map_or_else(|| "not measured".to_owned(), numbers::format_count)
}

/// Formats a time in ns; a dash if it is not known.
pub(super) fn format_latency_or_dash(ns: Option<f64>) -> String {
    ns.map_or_else(|| "–".to_owned(), numbers::format_short_time)
}

/// Formats a rate per second; a dash if it is not known.
pub(super) fn format_rate_or_dash(value: Option<f64>, unit: &str) -> String {
    value.map_or_else(|| "–".to_owned(), |value| numbers::format_short(value, unit))
}

/// Formats a rate in bytes per second (of layer 2) as bit/s; a dash if it is not known.
pub(super) fn format_bit_rate_or_dash(bytes: Option<f64>) -> String {
    format_rate_or_dash(bytes.map(|bytes| bytes * 8.0), "bit/s")
}
