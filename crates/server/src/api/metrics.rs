//! Counters of ports and flows as rows of OTG.
//!
//! Clients in use differ in age: over HTTP one member they do not know fails their whole call, and a Go client panics on
//! a scalar that it misses. So an empty filter gives all members of the first version and no other, a filter exactly
//! those named.

use super::control::names;
use crate::tester::{FlowRow, PortRow, Refusal, Tester, Transmit};
use serde_json::{Map, Number, Value, json};

/// Columns of ports that older clients do not know.
const NEW_PORT_COLUMNS: &[&str] = &["last_change", "speed"];
/// Members of flows that older clients do not know, and what each is of the bytes and frames per second.
const NEW_FLOW_RATES: &[(&str, f64, f64)] = &[
    ("l1_rate_bps", 8.0, L1_OVERHEAD_BITS),
    ("rate_bytes", 1.0, 0.0),
    ("rate_bps", 8.0, 0.0),
    ("rate_kbps", 8e-3, 0.0),
    ("rate_mbps", 8e-6, 0.0),
];
/// Preamble, start of frame and the gap: 20 bytes a frame that layer 2 does not count.
const L1_OVERHEAD_BITS: f64 = 160.0;

/// Which members of a row are wanted.
struct Columns {
    named: Vec<String>,
    knows_new_members: bool,
}

impl Columns {
    fn has(&self, name: &str, is_new: bool) -> bool {
        if self.named.is_empty() {
            return !is_new || self.knows_new_members;
        }
        self.named.iter().any(|named| named == name)
    }
}

/// Answers a `MetricsRequest`.
pub(super) fn metrics(
    tester: &dyn Tester,
    request: &Value,
    knows_new_members: bool,
) -> Result<Value, Refusal> {
    if request["choice"] == "flow" {
        let asked = &request["flow"];
        let columns = Columns { named: names(asked, "metric_names"), knows_new_members };
        let rows = tester.flows(&names(asked, "flow_names"))?;
        let rows: Result<Vec<Value>, Refusal> = rows.iter().map(|row| flow(row, &columns)).collect();
        return Ok(json!({ "choice": "flow_metrics", "flow_metrics": rows? }));
    }
    let asked = &request["port"];
    let columns = Columns { named: names(asked, "column_names"), knows_new_members };
    let rows = tester.ports(&names(asked, "port_names"))?;
    let rows: Result<Vec<Value>, Refusal> = rows.iter().map(|row| port(row, &columns)).collect();
    Ok(json!({ "choice": "port_metrics", "port_metrics": rows? }))
}

/// A float; what is none is a bug of the tester's and must not become a number that looks measured.
fn float(name: &str, value: f64) -> Result<Value, Refusal> {
    let number = Number::from_f64(value).map(Value::Number);
    number.ok_or_else(|| Refusal::internal(format!("{name} is {value}: this is a bug of packetrig")))
}

fn count(value: u64) -> Value {
    Value::String(value.to_string())
}

fn switch(on: bool, names: [&str; 2]) -> Value {
    Value::String(names[usize::from(on)].to_owned())
}

fn port(row: &PortRow, columns: &Columns) -> Result<Value, Refusal> {
    let mut members = Map::new();
    members.insert("name".to_owned(), Value::String(row.name.clone()));
    let all = [
        ("location", Some(Value::String(row.location.clone()))),
        ("link", Some(switch(row.link_up, ["down", "up"]))),
        ("capture", Some(switch(row.capturing, ["stopped", "started"]))),
        ("transmit", Some(switch(row.transmitting, ["stopped", "started"]))),
        ("frames_tx", Some(count(row.frames_tx))),
        ("frames_rx", Some(count(row.frames_rx))),
        ("bytes_tx", Some(count(row.bytes_tx))),
        ("bytes_rx", Some(count(row.bytes_rx))),
        ("frames_tx_rate", Some(float("frames_tx_rate", row.frames_tx_rate)?)),
        ("frames_rx_rate", Some(float("frames_rx_rate", row.frames_rx_rate)?)),
        ("bytes_tx_rate", Some(float("bytes_tx_rate", row.bytes_tx_rate)?)),
        ("bytes_rx_rate", Some(float("bytes_rx_rate", row.bytes_rx_rate)?)),
        ("last_change", row.last_change_ns.map(count)),
        ("speed", row.speed_kbytes.map(count)),
    ];
    for (name, value) in all {
        if let Some(value) = value.filter(|_| columns.has(name, NEW_PORT_COLUMNS.contains(&name))) {
            members.insert(name.to_owned(), value);
        }
    }
    Ok(Value::Object(members))
}

fn flow(row: &FlowRow, columns: &Columns) -> Result<Value, Refusal> {
    let transmit = match row.transmit {
        Transmit::Started => "started",
        Transmit::Stopped => "stopped",
        Transmit::Paused => "paused",
    };
    let mut members = Map::new();
    for (name, value) in [("name", &row.name), ("port_tx", &row.port_tx), ("port_rx", &row.port_rx)] {
        members.insert(name.to_owned(), Value::String(value.clone()));
    }
    let first = [
        ("transmit", Value::String(transmit.to_owned())),
        ("frames_tx", count(row.frames_tx)),
        ("frames_rx", count(row.frames_rx)),
        ("bytes_tx", count(row.bytes_tx)),
        ("bytes_rx", count(row.bytes_rx)),
        ("frames_tx_rate", float("frames_tx_rate", row.frames_tx_rate)?),
        ("frames_rx_rate", float("frames_rx_rate", row.frames_rx_rate)?),
    ];
    for (name, value) in first {
        if columns.has(name, false) {
            members.insert(name.to_owned(), value);
        }
    }
    let sides =
        [("tx", row.bytes_tx_rate, row.frames_tx_rate), ("rx", row.bytes_rx_rate, row.frames_rx_rate)];
    for (side, bytes, frames) in sides {
        for (name, per_byte, per_frame) in NEW_FLOW_RATES {
            let name = format!("{side}_{name}");
            if columns.has(&name, true) {
                let value = float(&name, bytes * per_byte + frames * per_frame)?;
                members.insert(name, value);
            }
        }
    }
    measured(row, &mut members)?;
    Ok(Value::Object(members))
}

/// What the configuration asks for, so that no filter has a name for it.
fn measured(row: &FlowRow, members: &mut Map<String, Value>) -> Result<(), Refusal> {
    if let Some(loss) = row.loss {
        members.insert("loss".to_owned(), float("loss", loss)?);
    }
    if let Some((first, last)) = row.timestamps {
        let stamps = json!({
            "first_timestamp_ns": float("first_timestamp_ns", first)?,
            "last_timestamp_ns": float("last_timestamp_ns", last)?,
        });
        members.insert("timestamps".to_owned(), stamps);
    }
    if let Some(latency) = row.latency {
        let latency = json!({
            "minimum_ns": float("minimum_ns", latency.minimum)?,
            "maximum_ns": float("maximum_ns", latency.maximum)?,
            "average_ns": float("average_ns", latency.average)?,
        });
        members.insert("latency".to_owned(), latency);
    }
    Ok(())
}
