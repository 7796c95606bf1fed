//! Writes rows of flows directly as JSON or as a protobuf message, because clients poll them and
//! there may be thousands.
//!
//! The members of a row, with their JSON names and field numbers, are listed once, for both forms. All other answers
//! are built as JSON values, which [`crate::shape`] converts.

use super::metrics::WantedColumns;
use crate::shape::{write_json_float, write_json_text};
use crate::tester::{FlowRow, TesterRefusal, TransmitState};
use std::fmt::Write as _;

/// Bits per frame that layer 2 does not count: preamble (7 bytes), start of frame (1) and inter-frame gap (12).
const LAYER1_OVERHEAD_BITS: f64 = 160.0;
/// Estimated length of a row in JSON. A longer row costs only a reallocation.
const ESTIMATED_ROW_BYTES: usize = 512;

/// The rows of an answer, checked: none of their numbers is NaN or infinite.
#[derive(Debug)]
pub(crate) struct FlowRows {
    rows: Vec<FlowRow>,
    columns: WantedColumns,
}

/// The value of one member of a row.
#[derive(Clone, Copy)]
enum MemberValue<'a> {
    Text(&'a str),
    /// A value of an enumeration: its name and its number in the model.
    Word(&'static str, u64),
    Count(u64),
    Float(f64),
    /// A nested message of 64-bit floats: name, field number and value of each.
    Group(&'a [(&'static str, u32, f64)]),
}

/// Condition under which a row has a member.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MemberRule {
    /// Present whenever it has a value, whatever the filter.
    Always,
    /// Member of the first model version. Present if the filter names it, or if the filter is empty.
    Old,
    /// Member of a later model version. Present if the filter names it; with an empty filter, only for
    /// clients that know it.
    New,
}

/// Receives the members of a row. `number` is the field number in the model.
trait MemberSink {
    fn add_member(&mut self, name: &'static str, number: u32, says: MemberValue<'_>);
}

impl FlowRows {
    /// Refuses NaN and infinity: they are bugs of the tester, and must not become numbers that look measured.
    pub(super) fn new(rows: Vec<FlowRow>, columns: WantedColumns) -> Result<Self, TesterRefusal> {
        // All rows are checked before the answer begins, because an error cannot be sent in the middle of an answer.
        let mut wrong = NonFiniteNumberFinder(None);
        for row in &rows {
            write_members(row, &columns, &mut wrong);
        }
        match wrong.0 {
            None => Ok(Self { rows, columns }),
            Some((name, value)) => Err(TesterRefusal::internal(format!(
                "metric `{name}` is {value}: this is a bug in packetrig"
            ))),
        }
    }

    /// Writes the `MetricsResponse` as JSON.
    pub(crate) fn to_json(&self) -> String {
        let mut out = String::with_capacity(self.rows.len() * ESTIMATED_ROW_BYTES + ESTIMATED_ROW_BYTES);
        out.push_str("{\"choice\":\"flow_metrics\",\"flow_metrics\":[");
        for (index, row) in self.rows.iter().enumerate() {
            out.push_str(if index > 0 { ",{" } else { "{" });
            write_members(row, &self.columns, &mut JsonMembers { out: &mut out, is_first: true });
            out.push('}');
        }
        out.push_str("]}");
        out
    }

    /// Writes the `MetricsResponse` as an encoded protobuf message.
    pub(crate) fn to_message(&self) -> Vec<u8> {
        let mut out = MessageFields(Vec::with_capacity(
            self.rows.len() * ESTIMATED_ROW_BYTES / 2 + ESTIMATED_ROW_BYTES,
        ));
        // Field 1, `choice`, as a varint: 1 is `flow_metrics`. Each row is then field 3.
        out.push_varint(1 << 3);
        out.push_varint(1);
        // Each row is first written to this buffer, because its length must be written before its bytes.
        let mut one = MessageFields(Vec::with_capacity(ESTIMATED_ROW_BYTES));
        for row in &self.rows {
            one.0.clear();
            write_members(row, &self.columns, &mut one);
            out.push_bytes(3, &one.0);
        }
        out.0
    }
}

/// Passes the members of a row to `out` in alphabetical order, as all other answers order them.
fn write_members(row: &FlowRow, columns: &WantedColumns, out: &mut impl MemberSink) {
    let latency = row.latency.map(|latency| {
        [
            ("average_ns", 3, latency.average),
            ("maximum_ns", 2, latency.maximum),
            ("minimum_ns", 1, latency.minimum),
        ]
    });
    let stamps = row
        .timestamps
        .map(|(first, last)| [("first_timestamp_ns", 1, first), ("last_timestamp_ns", 2, last)]);
    let latency = latency.as_ref().map(|values| MemberValue::Group(values));
    let stamps = stamps.as_ref().map(|values| MemberValue::Group(values));
    let tx = row.bytes_tx_rate;
    let rx = row.bytes_rx_rate;
    let all = [
        RowMember::in_first_version("bytes_rx", 9, MemberValue::Count(row.bytes_rx)),
        RowMember::in_first_version("bytes_tx", 8, MemberValue::Count(row.bytes_tx)),
        RowMember::in_first_version("frames_rx", 7, MemberValue::Count(row.frames_rx)),
        RowMember::in_first_version("frames_rx_rate", 11, MemberValue::Float(row.frames_rx_rate)),
        RowMember::in_first_version("frames_tx", 6, MemberValue::Count(row.frames_tx)),
        RowMember::in_first_version("frames_tx_rate", 10, MemberValue::Float(row.frames_tx_rate)),
        RowMember::always("latency", 14, latency),
        RowMember::always("loss", 12, row.loss.map(MemberValue::Float)),
        RowMember::always("name", 1, Some(MemberValue::Text(&row.name))),
        RowMember::always("port_rx", 3, Some(MemberValue::Text(&row.port_rx))),
        RowMember::always("port_tx", 2, Some(MemberValue::Text(&row.port_tx))),
        RowMember::added_later("rx_l1_rate_bps", 17, layer1_rate(rx, row.frames_rx_rate)),
        RowMember::added_later("rx_rate_bps", 21, rx * 8.0),
        RowMember::added_later("rx_rate_bytes", 19, rx),
        RowMember::added_later("rx_rate_kbps", 23, rx * 8e-3),
        RowMember::added_later("rx_rate_mbps", 25, rx * 8e-6),
        RowMember::always("timestamps", 13, stamps),
        RowMember::in_first_version("transmit", 5, transmit_state_value(row.transmit)),
        RowMember::added_later("tx_l1_rate_bps", 16, layer1_rate(tx, row.frames_tx_rate)),
        RowMember::added_later("tx_rate_bps", 20, tx * 8.0),
        RowMember::added_later("tx_rate_bytes", 18, tx),
        RowMember::added_later("tx_rate_kbps", 22, tx * 8e-3),
        RowMember::added_later("tx_rate_mbps", 24, tx * 8e-6),
    ];
    for member in all {
        if let Some(value) = member.value
            && (member.rule == MemberRule::Always
                || columns.has_column(member.name, member.rule == MemberRule::New))
        {
            out.add_member(member.name, member.number, value);
        }
    }
}

/// A member that a row may have.
struct RowMember<'a> {
    name: &'static str,
    /// Field number of the member in the model.
    number: u32,
    rule: MemberRule,
    value: Option<MemberValue<'a>>,
}

impl<'a> RowMember<'a> {
    const fn always(name: &'static str, number: u32, value: Option<MemberValue<'a>>) -> Self {
        Self { name, number, rule: MemberRule::Always, value }
    }

    const fn in_first_version(name: &'static str, number: u32, value: MemberValue<'a>) -> Self {
        Self { name, number, rule: MemberRule::Old, value: Some(value) }
    }

    /// All members that later versions of the model have added are floats.
    const fn added_later(name: &'static str, number: u32, value: f64) -> Self {
        Self { name, number, rule: MemberRule::New, value: Some(MemberValue::Float(value)) }
    }
}

fn layer1_rate(bytes: f64, frames: f64) -> f64 {
    bytes * 8.0 + frames * LAYER1_OVERHEAD_BITS
}

const fn transmit_state_value(state: TransmitState) -> MemberValue<'static> {
    match state {
        TransmitState::Started => MemberValue::Word("started", 1),
        TransmitState::Stopped => MemberValue::Word("stopped", 2),
        TransmitState::Paused => MemberValue::Word("paused", 3),
    }
}

/// Writes members into a JSON object.
struct JsonMembers<'a> {
    out: &'a mut String,
    is_first: bool,
}

impl MemberSink for JsonMembers<'_> {
    fn add_member(&mut self, name: &'static str, _: u32, says: MemberValue<'_>) {
        self.out.push_str(if std::mem::take(&mut self.is_first) { "\"" } else { ",\"" });
        self.out.push_str(name);
        self.out.push_str("\":");
        match says {
            MemberValue::Text(text) | MemberValue::Word(text, _) => write_json_text(self.out, text),
            // ProtoJSON writes 64-bit integers as text, because many JSON parsers read numbers as floats.
            MemberValue::Count(count) => {
                write!(self.out, "\"{count}\"").expect("writing to text cannot fail");
            }
            MemberValue::Float(value) => write_json_float(self.out, value),
            MemberValue::Group(values) => {
                self.out.push('{');
                let mut inner = JsonMembers { out: &mut *self.out, is_first: true };
                for (name, number, value) in values {
                    inner.add_member(name, *number, MemberValue::Float(*value));
                }
                self.out.push('}');
            }
        }
    }
}

/// Writes fields of a protobuf message.
struct MessageFields(Vec<u8>);

impl MessageFields {
    // Protobuf's base-128 varint: seven bits per byte, the lowest first; the top bit is set if more bytes follow.
    fn push_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        self.0.push(value.to_le_bytes()[0]);
    }

    // Wire types of protobuf: 0 a varint, 1 eight bytes, 2 a length and that many bytes, 5 four bytes.
    fn push_tag(&mut self, number: u32, kind: u32) {
        self.push_varint(u64::from(number << 3 | kind));
    }

    fn push_bytes(&mut self, number: u32, bytes: &[u8]) {
        self.push_tag(number, 2);
        self.push_varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }
}

impl MemberSink for MessageFields {
    fn add_member(&mut self, _: &'static str, number: u32, says: MemberValue<'_>) {
        match says {
            MemberValue::Text(text) => self.push_bytes(number, text.as_bytes()),
            // On the wire a value of an enumeration is a varint, like a count.
            MemberValue::Word(_, value) | MemberValue::Count(value) => {
                self.push_tag(number, 0);
                self.push_varint(value);
            }
            MemberValue::Float(value) => {
                // In the model, the floats of a row have 32 bits, but those of its nested messages have 64.
                self.push_tag(number, 5);
                #[expect(clippy::cast_possible_truncation, reason = "the model's field is that wide")]
                self.0.extend((value as f32).to_le_bytes());
            }
            MemberValue::Group(values) => {
                self.push_tag(number, 2);
                // Each number takes nine bytes: one for its tag and eight for its value.
                self.push_varint(values.len() as u64 * 9);
                for (_, number, value) in values {
                    self.push_tag(*number, 1);
                    self.0.extend(value.to_le_bytes());
                }
            }
        }
    }
}

/// Finds the first member that is NaN or infinite, and writes nothing.
struct NonFiniteNumberFinder(Option<(&'static str, f64)>);

impl MemberSink for NonFiniteNumberFinder {
    fn add_member(&mut self, name: &'static str, _: u32, says: MemberValue<'_>) {
        match says {
            MemberValue::Float(value) if !value.is_finite() => {
                self.0.get_or_insert((name, value));
            }
            MemberValue::Group(values) => {
                for (name, number, value) in values {
                    self.add_member(name, *number, MemberValue::Float(*value));
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::{self, DocumentProblems};
    use crate::tester::LatencyFigures;
    use serde_json::Value;

    fn row() -> FlowRow {
        FlowRow {
            name: "a \"flow\"\n".to_owned(),
            port_tx: "p1".to_owned(),
            port_rx: "p2,p3".to_owned(),
            transmit: TransmitState::Paused,
            frames_tx: u64::MAX,
            frames_rx: 300,
            bytes_tx: 1,
            bytes_rx: 0,
            frames_tx_rate: 0.5,
            frames_rx_rate: 1024.0,
            bytes_tx_rate: 64.0,
            bytes_rx_rate: 2.0f64.powi(40),
            loss: Some(12.5),
            timestamps: Some((1.5e18, 2.5e18)),
            latency: Some(LatencyFigures { minimum: 1.0, average: 2.25, maximum: 3.0 }),
        }
    }

    fn rows(named: &[&str], knows_new_members: bool) -> FlowRows {
        let columns =
            WantedColumns { named: named.iter().map(|&n| n.to_owned()).collect(), knows_new_members };
        FlowRows::new(vec![row(), FlowRow::default()], columns).expect("finite")
    }

    #[test]
    fn flow_rows_encode_equally_as_message_and_json() {
        let of = shape::message_descriptor("MetricsResponse");
        for (named, newest) in [(&[][..], true), (&[][..], false), (&["frames_rx", "tx_rate_kbps"][..], true)]
        {
            let rows = rows(named, newest);
            let json: Value = serde_json::from_str(&rows.to_json()).expect("JSON");
            let mut complaints = DocumentProblems::default();
            let message = shape::decode_message(&rows.to_message(), &of, &mut complaints).expect("a message");
            let settled = |document| {
                let mut complaints = DocumentProblems::default();
                let settled = shape::normalise_document(document, &of, &mut complaints);
                assert!(complaints.is_empty(), "{:?}", complaints.into_lines());
                shape::encode_message(&settled, &of).expect("fits")
            };
            assert!(complaints.is_empty());
            assert_eq!(settled(json.clone()), settled(message), "{json}");
        }
        let full = rows(&[], true).to_json();
        let json: Value = serde_json::from_str(&full).expect("JSON");
        assert_eq!(json["flow_metrics"][0].as_object().map(serde_json::Map::len), Some(23));
        assert_eq!(shape::format_json(&json), full, "printed as everything else is");
    }

    #[test]
    fn flow_row_with_nan_is_refused_by_name() {
        let columns = || WantedColumns { named: Vec::new(), knows_new_members: false };
        let bad = FlowRow { loss: Some(f64::NAN), ..row() };
        let refusal = FlowRows::new(vec![row(), bad], columns()).expect_err("refused");
        assert!(refusal.errors[0].starts_with("metric `loss` is NaN"));
    }
}
