//! Reads the calls that switch something, and performs actions that have an answer.

use crate::tester::{FlowChange, PingResult, PingTask, SwitchedState, Tester, TesterRefusal};
use serde_json::{Value, json};
use std::net::IpAddr;

/// The member of an object that its `choice` names.
struct ChosenMember<'a> {
    name: &'a str,
    value: &'a Value,
}

fn chosen<'a>(
    object: &'a Value,
    path: &str,
    default: Option<&'a str>,
) -> Result<ChosenMember<'a>, TesterRefusal> {
    let choice = object["choice"].as_str().or(default);
    let name = choice.ok_or_else(|| missing(path, "choice"))?;
    Ok(ChosenMember { name, value: &object[name] })
}

fn missing(path: &str, name: &str) -> TesterRefusal {
    let dot = if path.is_empty() { "" } else { "." };
    TesterRefusal::validation(format!("{path}{dot}{name}: required"))
}

fn state_of<'a>(object: &'a Value, path: &str) -> Result<&'a str, TesterRefusal> {
    object["state"].as_str().ok_or_else(|| missing(path, "state"))
}

/// A list of names; empty if it is missing.
pub(super) fn names(object: &Value, member: &str) -> Vec<String> {
    let names = object[member].as_array().into_iter().flatten();
    names.filter_map(|name| name.as_str().map(str::to_owned)).collect()
}

/// Reads a `ControlState`.
pub(super) fn state(request: &Value) -> Result<SwitchedState, TesterRefusal> {
    let ChosenMember { name, value } = chosen(request, "", None)?;
    // The shape check admits only the words of the model, so the last arm of each match needs no error.
    match name {
        "traffic" => traffic(value),
        "protocol" => {
            let all = chosen(value, "protocol", None)?.value;
            Ok(SwitchedState::Protocols { on: state_of(all, "protocol.all")? == "start" })
        }
        _ => port(&chosen(value, "port", None)?),
    }
}

fn port(switched: &ChosenMember<'_>) -> Result<SwitchedState, TesterRefusal> {
    let ports = names(switched.value, "port_names");
    Ok(match switched.name {
        "link" => SwitchedState::Link { up: state_of(switched.value, "port.link")? == "up", ports },
        _ => SwitchedState::Capture { on: state_of(switched.value, "port.capture")? == "start", ports },
    })
}

fn traffic(inner: &Value) -> Result<SwitchedState, TesterRefusal> {
    let transmit = chosen(inner, "traffic", Some("flow_transmit"))?.value;
    let change = match state_of(transmit, "traffic.flow_transmit")? {
        "start" => FlowChange::Start,
        "stop" => FlowChange::Stop,
        "pause" => FlowChange::Pause,
        _ => FlowChange::Resume,
    };
    Ok(SwitchedState::Traffic { change, flows: names(transmit, "flow_names") })
}

/// Performs a `ControlAction`. The only ones are pings.
pub(super) fn action(tester: &dyn Tester, request: &Value) -> Result<Value, TesterRefusal> {
    let protocol = chosen(request, "", None)?.value;
    let ChosenMember { name: family, value: inner } = chosen(protocol, "protocol", None)?;
    let path = format!("protocol.{family}.ping.requests");
    let ping = chosen(inner, &format!("protocol.{family}"), Some("ping"))?.value;
    let requests = ping["requests"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut pings = Vec::new();
    let mut errors = Vec::new();
    for (index, request) in requests.iter().enumerate() {
        // All wrong requests are reported together: a client that gets one error at a time has to send as many times.
        match one(request, family == "ipv6") {
            Ok(ping) => pings.push(ping),
            Err(wrong) => errors.extend(wrong.iter().map(|of| format!("{path}[{index}].{of}"))),
        }
    }
    if !errors.is_empty() {
        return Err(TesterRefusal { errors, ..TesterRefusal::validation("") });
    }
    let rows: Vec<Value> = tester.ping(pings)?.iter().map(row).collect();
    let response = json!({
        "choice": "protocol",
        "protocol": { "choice": family, family: { "choice": "ping", "ping": { "responses": rows } } },
    });
    Ok(json!({ "warnings": [], "response": response }))
}

/// Reads one request of a ping, or returns the problems of its members.
fn one(request: &Value, is_ipv6: bool) -> Result<PingTask, Vec<String>> {
    let mut errors = Vec::new();
    let source = required_text(request, "src_name", &mut errors);
    let destination = required_text(request, "dst_ip", &mut errors);
    match destination.parse::<IpAddr>() {
        Ok(address) if address.is_ipv6() == is_ipv6 && errors.is_empty() => {
            Ok(PingTask { source: source.to_owned(), destination: address })
        }
        Ok(address) if address.is_ipv6() == is_ipv6 => Err(errors),
        _ => {
            if !destination.is_empty() {
                let family = if is_ipv6 { "an IPv6" } else { "an IPv4" };
                errors.push(format!("dst_ip: `{destination}` is not {family} address"));
            }
            Err(errors)
        }
    }
}

fn required_text<'a>(request: &'a Value, name: &str, errors: &mut Vec<String>) -> &'a str {
    let text = request[name].as_str();
    if text.is_none() {
        errors.push(format!("{name}: required"));
    }
    text.unwrap_or_default()
}

fn row(result: &PingResult) -> Value {
    json!({
        "src_name": result.source,
        "dst_ip": result.destination.to_string(),
        "result": if result.succeeded { "succeeded" } else { "failed" },
    })
}
