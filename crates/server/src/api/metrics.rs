//! Counters of ports and flows as rows of OTG.
//!
//! Clients have different versions. Over HTTP, one member that a client does not know fails its whole call,
//! and a Go client panics if a scalar is missing. So over HTTP an empty filter selects only the members of the
//! first version; over gRPC it selects the newer ones, too. Any other filter selects the members that it names.

use super::calls::ApiReply;
use super::control::read_names;
use super::flow_rows::FlowRows;
use crate::tester::{PortRow, Tester, TesterRefusal};
use serde_json::{Map, Number, Value, json};

/// Columns of ports that older clients do not know.
const NEW_PORT_COLUMNS: &[&str] = &["last_change", "speed"];
/// The members of a row that a client requests.
#[derive(Debug)]
pub(super) struct WantedColumns {
    pub(super) named: Vec<String>,
    pub(super) knows_new_members: bool,
}

impl WantedColumns {
    pub(super) fn has_column(&self, name: &str, is_new: bool) -> bool {
        // Some clients fail on unknown members. So an empty filter selects new members only for clients that know them.
        if self.named.is_empty() {
            return !is_new || self.knows_new_members;
        }
        self.named.iter().any(|named| named == name)
    }
}

/// Answers a `MetricsConnection`.
pub(super) fn answer_metrics(
    tester: &dyn Tester,
    request: &Value,
    knows_new_members: bool,
) -> Result<ApiReply, TesterRefusal> {
    // Without a choice the request is for ports, which is OTG's default.
    if request["choice"] == "flow" {
        let asked = &request["flow"];
        let columns = WantedColumns { named: read_names(asked, "metric_names"), knows_new_members };
        let rows = tester.flow_rows(&read_names(asked, "flow_names"))?;
        return FlowRows::new(rows, columns).map(ApiReply::Flows);
    }
    let asked = &request["port"];
    let columns = WantedColumns { named: read_names(asked, "column_names"), knows_new_members };
    let rows = tester.port_rows(&read_names(asked, "port_names"))?;
    let rows: Result<Vec<Value>, TesterRefusal> =
        rows.iter().map(|row| build_port_json(row, &columns)).collect();
    Ok(ApiReply::Document(json!({ "choice": "port_metrics", "port_metrics": rows? })))
}

/// Converts a float to JSON. NaN and infinity are bugs of the tester, and must not become numbers that look measured.
fn require_finite(name: &str, value: f64) -> Result<Value, TesterRefusal> {
    let number = Number::from_f64(value).map(Value::Number);
    number.ok_or_else(|| {
        TesterRefusal::internal(format!("metric `{name}` is {value}: this is a bug in packetrig"))
    })
}

// ProtoJSON writes 64-bit integers as text, because a JSON reader that uses floats cannot hold all 64 bits.
fn format_count_text(value: u64) -> Value {
    Value::String(value.to_string())
}

fn format_switch_state(on: bool, names: [&str; 2]) -> Value {
    Value::String(names[usize::from(on)].to_owned())
}

fn build_port_json(row: &PortRow, columns: &WantedColumns) -> Result<Value, TesterRefusal> {
    let mut members = Map::new();
    // Without its name a row is useless, so no filter of columns leaves it out.
    members.insert("name".to_owned(), Value::String(row.name.clone()));
    let all = [
        ("location", Some(Value::String(row.location.clone()))),
        ("link", Some(format_switch_state(row.link_up, ["down", "up"]))),
        ("capture", Some(format_switch_state(row.capturing, ["stopped", "started"]))),
        ("transmit", Some(format_switch_state(row.transmitting, ["stopped", "started"]))),
        ("frames_tx", Some(format_count_text(row.frames_tx))),
        ("frames_rx", Some(format_count_text(row.frames_rx))),
        ("bytes_tx", Some(format_count_text(row.bytes_tx))),
        ("bytes_rx", Some(format_count_text(row.bytes_rx))),
        ("frames_tx_rate", Some(require_finite("frames_tx_rate", row.frames_tx_rate)?)),
        ("frames_rx_rate", Some(require_finite("frames_rx_rate", row.frames_rx_rate)?)),
        ("bytes_tx_rate", Some(require_finite("bytes_tx_rate", row.bytes_tx_rate)?)),
        ("bytes_rx_rate", Some(require_finite("bytes_rx_rate", row.bytes_rx_rate)?)),
        ("last_change", row.last_change_ns.map(format_count_text)),
        ("speed", row.speed_kbytes.map(format_count_text)),
    ];
    for (name, value) in all {
        if let Some(value) = value.filter(|_| columns.has_column(name, NEW_PORT_COLUMNS.contains(&name))) {
            members.insert(name.to_owned(), value);
        }
    }
    Ok(Value::Object(members))
}
