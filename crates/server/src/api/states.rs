//! Answers requests for neighbours, and reads requests for captures.

use super::control::read_names;
use crate::tester::{CaptureRange, IpFamily, NeighbourRow, Tester, TesterRefusal};
use serde_json::{Map, Value, json};

/// Answers a `StatesRequest`: returns the neighbours of the named interfaces, or of all if none is named.
pub(super) fn answer_states(tester: &dyn Tester, request: &Value) -> Result<Value, TesterRefusal> {
    // OTG's default is `ipv4_neighbors`.
    let choice = request["choice"].as_str().unwrap_or("ipv4_neighbors");
    let family = if choice == "ipv6_neighbors" { IpFamily::V6 } else { IpFamily::V4 };
    let rows = tester.neighbour_rows(family, &read_names(&request[choice], "ethernet_names"))?;
    let rows: Vec<Value> = rows.iter().map(|row| build_neighbour_json(row, family)).collect();
    Ok(json!({ "choice": choice, choice: rows }))
}

fn build_neighbour_json(row: &NeighbourRow, family: IpFamily) -> Value {
    let address = if family == IpFamily::V6 { "ipv6_address" } else { "ipv4_address" };
    let mut members = Map::new();
    members.insert("ethernet_name".to_owned(), Value::String(row.ethernet.clone()));
    members.insert(address.to_owned(), Value::String(row.address.to_string()));
    // Clients wait for this member, which is absent until the neighbour has answered.
    if let Some(mac) = &row.mac {
        members.insert("link_layer_address".to_owned(), Value::String(mac.clone()));
    }
    Value::Object(members)
}

/// The port and the frames that a `CaptureRequest` asks for.
pub(super) struct WantedCapture<'a> {
    pub(super) port: &'a str,
    pub(super) part: CaptureRange,
}

/// Reads a `CaptureRequest`. Without a slice, it asks for the whole capture.
pub(super) fn read_capture_request(request: &Value) -> Result<WantedCapture<'_>, TesterRefusal> {
    let port =
        request["port_name"].as_str().ok_or_else(|| TesterRefusal::validation("port_name: required"))?;
    let packets = &request["packets"];
    if packets["choice"] != "slice" {
        return Ok(WantedCapture { port, part: CaptureRange::All });
    }
    let initial = &packets["slice"]["initial"];
    // OTG's defaults: 100 frames from the first one.
    let start = read_slice_number(initial, "start", 1)?;
    let count = read_slice_number(initial, "count", 100)?;
    Ok(WantedCapture { port, part: CaptureRange::Slice { start, count } })
}

fn read_slice_number(initial: &Value, name: &str, default: u64) -> Result<u64, TesterRefusal> {
    // Normalised JSON has 64-bit integers as text.
    match initial[name].as_str().map(str::parse::<u64>) {
        None => Ok(default),
        // OTG counts frames from 1, and a slice without frames would be no capture.
        Some(Ok(number)) if number > 0 => Ok(number),
        Some(_) => Err(TesterRefusal::validation(format!("packets.slice.initial.{name}: must be 1 or more"))),
    }
}
