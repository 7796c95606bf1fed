//! Reads the calls that switch something, and performs actions that have an answer.

use crate::tester::{FlowChange, PingResult, PingTask, SwitchedState, Tester, TesterRefusal};
use serde_json::{Value, json};
use std::net::IpAddr;

/// The member of `object` that `choice` names.
fn chosen<'a>(
    object: &'a Value,
    path: &str,
    default: Option<&'a str>,
) -> Result<(&'a str, &'a Value), TesterRefusal> {
    let choice = object["choice"].as_str().or(default);
    let choice = choice.ok_or_else(|| missing(path, "choice"))?;
    Ok((choice, &object[choice]))
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
    let (choice, inner) = chosen(request, "", None)?;
    match choice {
        "traffic" => traffic(inner),
        "protocol" => {
            let (_, all) = chosen(inner, "protocol", None)?;
            Ok(SwitchedState::Protocols { on: state_of(all, "protocol.all")? == "start" })
        }
        _ => match chosen(inner, "port", None)? {
            ("link", link) => Ok(SwitchedState::Link {
                up: state_of(link, "port.link")? == "up",
                ports: names(link, "port_names"),
            }),
            (_, capture) => {
                let on = state_of(capture, "port.capture")? == "start";
                Ok(SwitchedState::Capture { on, ports: names(capture, "port_names") })
            }
        },
    }
}

fn traffic(inner: &Value) -> Result<SwitchedState, TesterRefusal> {
    let (_, transmit) = chosen(inner, "traffic", Some("flow_transmit"))?;
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
    let (_, protocol) = chosen(request, "", None)?;
    let (family, inner) = chosen(protocol, "protocol", None)?;
    let path = format!("protocol.{family}.ping.requests");
    let (_, ping) = chosen(inner, &format!("protocol.{family}"), Some("ping"))?;
    let requests = ping["requests"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut pings = Vec::new();
    let mut errors = Vec::new();
    for (index, request) in requests.iter().enumerate() {
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
    let mut member = |name: &str| {
        let text = request[name].as_str();
        if text.is_none() {
            errors.push(format!("{name}: required"));
        }
        text.unwrap_or_default()
    };
    let (source, destination) = (member("src_name"), member("dst_ip"));
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

fn row(result: &PingResult) -> Value {
    json!({
        "src_name": result.source,
        "dst_ip": result.destination.to_string(),
        "result": if result.succeeded { "succeeded" } else { "failed" },
    })
}
