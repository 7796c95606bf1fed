//! Reads requests that change a state (ports, traffic), and performs actions that return a result (pings).

use crate::tester::{FlowChange, PingResult, PingTask, RequestedState, Tester, TesterRefusal};
use serde_json::{Value, json};
use std::net::IpAddr;

/// The member of an OTG object that the member `choice` of the object selects.
struct ChoiceMember<'a> {
    name: &'a str,
    value: &'a Value,
}

fn read_choice<'a>(
    object: &'a Value,
    path: &str,
    default: Option<&'a str>,
) -> Result<ChoiceMember<'a>, TesterRefusal> {
    let choice = object["choice"].as_str().or(default);
    let name = choice.ok_or_else(|| missing_member_refusal(path, "choice"))?;
    // A missing member reads as `null`: a state in it is then missing, and a list in it is empty.
    Ok(ChoiceMember { name, value: &object[name] })
}

fn missing_member_refusal(path: &str, name: &str) -> TesterRefusal {
    let dot = if path.is_empty() { "" } else { "." };
    TesterRefusal::validation(format!("{path}{dot}{name}: required"))
}

fn read_state_word<'a>(object: &'a Value, path: &str) -> Result<&'a str, TesterRefusal> {
    object["state"].as_str().ok_or_else(|| missing_member_refusal(path, "state"))
}

/// Reads the list of names in `member`; empty if the object has no such member.
pub(super) fn read_names(object: &Value, member: &str) -> Vec<String> {
    let names = object[member].as_array().into_iter().flatten();
    names.filter_map(|name| name.as_str().map(str::to_owned)).collect()
}

/// Reads a `ControlState`: the new state, and the ports or flows that get it.
pub(super) fn read_control_state(request: &Value) -> Result<RequestedState, TesterRefusal> {
    let ChoiceMember { name, value } = read_choice(request, "", None)?;
    // The request matches the model, so its words are those of the enumerations. The last arm of each
    // match needs no error.
    match name {
        "traffic" => read_traffic_state(value),
        "protocol" => {
            let all = read_choice(value, "protocol", None)?.value;
            Ok(RequestedState::Protocols { on: read_state_word(all, "protocol.all")? == "start" })
        }
        _ => read_port_state(&read_choice(value, "port", None)?),
    }
}

fn read_port_state(switched: &ChoiceMember<'_>) -> Result<RequestedState, TesterRefusal> {
    let ports = read_names(switched.value, "port_names");
    Ok(match switched.name {
        "link" => RequestedState::Link { up: read_state_word(switched.value, "port.link")? == "up", ports },
        _ => {
            RequestedState::Capture { on: read_state_word(switched.value, "port.capture")? == "start", ports }
        }
    })
}

fn read_traffic_state(inner: &Value) -> Result<RequestedState, TesterRefusal> {
    let transmit = read_choice(inner, "traffic", Some("flow_transmit"))?.value;
    let change = match read_state_word(transmit, "traffic.flow_transmit")? {
        "start" => FlowChange::Start,
        "stop" => FlowChange::Stop,
        "pause" => FlowChange::Pause,
        _ => FlowChange::Resume,
    };
    Ok(RequestedState::Traffic { change, flows: read_names(transmit, "flow_names") })
}

/// Performs a `ControlAction`. Pings are the only supported actions.
pub(super) fn perform_action(tester: &dyn Tester, request: &Value) -> Result<Value, TesterRefusal> {
    let protocol = read_choice(request, "", None)?.value;
    let ChoiceMember { name: family, value: inner } = read_choice(protocol, "protocol", None)?;
    let path = format!("protocol.{family}.ping.requests");
    let ping = read_choice(inner, &format!("protocol.{family}"), Some("ping"))?.value;
    let requests = ping["requests"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut pings = Vec::new();
    let mut errors = Vec::new();
    for (index, request) in requests.iter().enumerate() {
        // The errors of all pings are reported together. Otherwise a client would find one error with each attempt.
        match read_ping_task(request, family == "ipv6") {
            Ok(ping) => pings.push(ping),
            Err(wrong) => errors.extend(wrong.iter().map(|of| format!("{path}[{index}].{of}"))),
        }
    }
    if !errors.is_empty() {
        return Err(TesterRefusal { errors, ..TesterRefusal::validation("") });
    }
    let rows: Vec<Value> = tester.send_pings(pings)?.iter().map(build_ping_json).collect();
    let response = json!({
        "choice": "protocol",
        "protocol": { "choice": family, family: { "choice": "ping", "ping": { "responses": rows } } },
    });
    // The list `warnings` is present even if it is empty, as in every answer to a change.
    Ok(json!({ "warnings": [], "response": response }))
}

/// Reads one ping request. `Err` lists all its missing or wrong members, each as `MEMBER: MESSAGE`.
fn read_ping_task(request: &Value, is_ipv6: bool) -> Result<PingTask, Vec<String>> {
    let mut errors = Vec::new();
    let source = read_required_text(request, "src_name", &mut errors);
    let destination = read_required_text(request, "dst_ip", &mut errors);
    match destination.parse::<IpAddr>() {
        Ok(address) if address.is_ipv6() == is_ipv6 && errors.is_empty() => {
            Ok(PingTask { source: source.to_owned(), destination: address })
        }
        // The address is valid, but another member is missing.
        Ok(address) if address.is_ipv6() == is_ipv6 => Err(errors),
        _ => {
            // A missing address is reported already.
            if request["dst_ip"].is_string() {
                let family = if is_ipv6 { "an IPv6" } else { "an IPv4" };
                errors.push(format!("dst_ip: `{destination}` is not {family} address"));
            }
            Err(errors)
        }
    }
}

fn read_required_text<'a>(request: &'a Value, name: &str, errors: &mut Vec<String>) -> &'a str {
    let text = request[name].as_str();
    if text.is_none() {
        errors.push(format!("{name}: required"));
    }
    text.unwrap_or_default()
}

fn build_ping_json(result: &PingResult) -> Value {
    json!({
        "src_name": result.source,
        "dst_ip": result.destination.to_string(),
        "result": if result.succeeded { "succeeded" } else { "failed" },
    })
}
