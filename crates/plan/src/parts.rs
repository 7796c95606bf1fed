//! What a node of a fleet needs of a long plan: all ports, the flows that begin or end at its own, and of the others only what
//! keeps its own in their places.
//!
//! A part is a document like any other and is read with the same care; its streams have the numbers that they have in
//! the whole. What
//! is left of the flows of others is short and alike, but there is some of each: all parts together still grow with the square.

use crate::document::{self, Node, Value};
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Members of a flow that tell who it is for. Its size stays too: it has to hold the test tag.
const OUTLINE: [&str; 4] = ["name", "tx_rx", "metrics", "size"];

/// A plan that can be given out in parts.
#[derive(Clone, Debug)]
pub struct PlanParts {
    /// Everything but the flows, as members of a JSON object.
    rest: String,
    flows: Vec<FlowTexts>,
}

/// A flow between ports, written down.
#[derive(Clone, Debug)]
struct FlowTexts {
    whole: String,
    outline: String,
    ports: BTreeSet<String>,
}

impl PlanParts {
    /// Of a plan that can be read. `None` if a flow goes from device to device: how many streams it has depends on all of them.
    pub fn of(document: &str) -> Option<Self> {
        let root = document::parse(document).ok()?;
        let members = object(&root)?;
        let mut rest = String::new();
        for (name, _, value) in members.iter().filter(|(name, ..)| name != "flows") {
            write_member(&mut rest, name, value);
        }
        let flows = members.iter().find(|(name, ..)| name == "flows");
        let flows = flows.map_or(&[][..], |(.., flows)| list(flows)).iter().map(FlowTexts::of);
        Some(Self { rest, flows: flows.collect::<Option<_>>()? })
    }

    /// The part for a node that has the ports with these names.
    pub fn part(&self, has_port: &dyn Fn(&str) -> bool) -> String {
        let mut text = format!("{{{}\"flows\":[", self.rest);
        for flow in &self.flows {
            let concerns = flow.ports.iter().any(|port| has_port(port));
            text.push_str(if concerns { &flow.whole } else { &flow.outline });
            text.push(',');
        }
        if text.ends_with(',') {
            text.pop();
        }
        text.push_str("]}");
        text
    }
}

impl FlowTexts {
    fn of(flow: &Node) -> Option<Self> {
        let members = object(flow)?;
        let member = |name: &str| members.iter().find(|(own, ..)| own == name).map(|(.., value)| value);
        let ports = port_names(member("tx_rx")?)?;
        let mut outline = "{".to_owned();
        for name in OUTLINE {
            if let Some(value) = member(name) {
                write_member(&mut outline, name, value);
            }
        }
        outline.pop();
        outline.push('}');
        let mut whole = String::new();
        write_value(&mut whole, flow);
        Some(Self { whole, outline, ports })
    }
}

/// Names of the ports at both ends; `None` if the ends are devices.
fn port_names(tx_rx: &Node) -> Option<BTreeSet<String>> {
    let ends = object(tx_rx)?;
    if ends.iter().any(|(name, ..)| name == "device") {
        return None;
    }
    let (.., port) = ends.iter().find(|(name, ..)| name == "port")?;
    let named = |(name, _, value): &(String, document::Place, Node)| match (name.as_str(), &value.value) {
        ("tx_name" | "rx_name" | "rx_names", Value::Scalar(text)) => vec![text.clone()],
        ("rx_names", Value::List(items)) => items.iter().filter_map(scalar).collect(),
        _ => Vec::new(),
    };
    Some(object(port)?.iter().flat_map(named).collect())
}

fn object(node: &Node) -> Option<&[(String, document::Place, Node)]> {
    if let Value::Object(members) = &node.value { Some(members) } else { None }
}

fn list(node: &Node) -> &[Node] {
    if let Value::List(items) = &node.value { items } else { &[] }
}

fn scalar(node: &Node) -> Option<String> {
    if let Value::Scalar(text) = &node.value { Some(text.clone()) } else { None }
}

/// A member and the comma behind it.
fn write_member(text: &mut String, name: &str, value: &Node) {
    write_text(text, name);
    text.push(':');
    write_value(text, value);
    text.push(',');
}

fn write_value(text: &mut String, node: &Node) {
    match &node.value {
        Value::Null => text.push_str("null"),
        // Whether it is a number is for whoever reads it.
        Value::Scalar(scalar) => write_text(text, scalar),
        Value::List(items) => {
            text.push('[');
            for item in items {
                write_value(text, item);
                text.push(',');
            }
            close(text, ']');
        }
        Value::Object(members) => {
            text.push('{');
            for (name, _, value) in members {
                write_member(text, name, value);
            }
            close(text, '}');
        }
    }
}

/// Puts the bracket in the place of the last comma, if there is one.
fn close(text: &mut String, bracket: char) {
    if text.ends_with(',') {
        text.pop();
    }
    text.push(bracket);
}

fn write_text(text: &mut String, words: &str) {
    text.push('"');
    for c in words.chars() {
        match c {
            '"' | '\\' => text.extend(['\\', c]),
            // A string takes any text, so this cannot fail.
            c if c < ' ' || c == '\u{7f}' => write!(text, "\\u{:04x}", u32::from(c)).unwrap_or(()),
            c => text.push(c),
        }
    }
    text.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Plan, ReadOptions, Stream};

    fn read(text: &str) -> Plan {
        Plan::read_with(text, ReadOptions { seed: 7, fleet: true })
            .unwrap_or_else(|error| panic!("{error:?}\n{text}"))
    }

    fn mesh(nodes: usize) -> String {
        let port = |node: usize| format!("- {{name: \"p \\\"{node}\\\"\", location: node{node}/eth1}}\n");
        let flow = |node: usize| {
            let other = (node + 1) % nodes;
            format!(
                "- name: flow {node}
  tx_rx: {{choice: port, port: {{tx_name: 'p \"{node}\"', rx_names: ['p \"{other}\"']}}}}
  packet:
  - {{choice: ethernet, ethernet: {{dst: {{choice: value, value: '02:00:00:00:00:01'}}, src: {{choice: value, value: '02:00:00:00:00:02'}}}}}}
  - {{choice: ipv4, ipv4: {{src: {{choice: increment, increment: {{start: 10.0.0.1, step: 0.0.0.1, count: 250}}}}}}}}
  size: {{choice: random, random: {{min: 128, max: 512}}}}
  rate: {{choice: percentage, percentage: 3}}
  duration: {{choice: fixed_packets, fixed_packets: {{packets: 1000}}}}
  metrics: {{enable: true, latency: {{enable: true}}}}
"
            )
        };
        let ports: String = (0..nodes).map(port).collect();
        let flows: String = (0..nodes).map(flow).collect();
        format!("options: {{port_options: {{location_preemption: false}}}}\nports:\n{ports}flows:\n{flows}")
    }

    /// What does not depend on where it stands in the text.
    fn essence(stream: &Stream) -> String {
        format!("{:?}", Stream { place: document::Place::default(), ..stream.clone() })
    }

    #[test]
    fn a_part_says_the_same_of_its_own_ports_and_keeps_all_numbers() {
        let document = mesh(40);
        let whole = read(&document);
        let parts = PlanParts::of(&document).unwrap();
        let part = read(&parts.part(&|port| port == "p \"7\""));
        let names = |plan: &Plan| plan.ports.iter().map(|port| port.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&part), names(&whole));
        assert_eq!(part.streams.len(), whole.streams.len());
        for (index, (own, all)) in part.streams.iter().zip(&whole.streams).enumerate() {
            assert_eq!((&own.name, own.tx, &own.rx), (&all.name, all.tx, &all.rx));
            assert_eq!(format!("{:?}", own.metrics), format!("{:?}", all.metrics));
            if [6, 7].contains(&index) {
                assert_eq!(essence(own), essence(all), "stream {index}");
            } else {
                assert_ne!(essence(own), essence(all), "stream {index}");
            }
        }
    }

    #[test]
    fn a_part_is_a_small_part_of_a_long_plan() {
        let document = mesh(400);
        let part = PlanParts::of(&document).unwrap().part(&|port| port == "p \"7\"");
        assert!(part.len() * 2 < document.len(), "{} of {}", part.len(), document.len());
        assert_eq!(read(&PlanParts::of(&document).unwrap().part(&|_| false)).streams.len(), 400);
    }

    #[test]
    fn flows_between_devices_are_not_taken_apart() {
        let device = "flows: [{name: f, tx_rx: {choice: device, device: {tx_names: [a], rx_names: [b]}}}]";
        assert!(PlanParts::of(device).is_none());
        assert!(PlanParts::of("ports: []").is_some());
        assert!(PlanParts::of("[").is_none());
    }
}
