//! Answers requests for metrics: counters of ports and flows as rows of OTG.
//!
//! Clients have different versions of the model. Over HTTP, a call fails if the answer has one member that the client
//! does not know, and a Go client panics if a scalar is missing. So an empty filter selects only the members of the
//! first version over HTTP, and also the newer members over gRPC. Any other filter selects the members that it names.

use super::calls::ApiReply;
use super::control::read_names;
use super::flow_rows::FlowRows;
use crate::tester::{PortRow, Tester, TesterRefusal};
use serde_json::{Map, Number, Value, json};

/// Columns of ports that a later version of the model has added.
const NEW_PORT_COLUMNS: &[&str] = &["last_change", "speed"];
/// The filter of a request: the members that the client wants in each row.
#[derive(Debug)]
pub(super) struct WantedColumns {
    pub(super) named: Vec<String>,
    pub(super) knows_new_members: bool,
}

impl WantedColumns {
    pub(super) fn has_column(&self, name: &str, is_new: bool) -> bool {
        // Some clients fail on members that they do not know, so an empty filter does not select new members for them.
        if self.named.is_empty() {
            return !is_new || self.knows_new_members;
        }
        self.named.iter().any(|named| named == name)
    }
}

/// Answers a `MetricsRequest`.
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
    // Every row has the name of its port: without it, the client could not tell the rows apart.
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
