//! Cuts out the part of a plan that one node of a fleet needs: its own ports, the flows that begin or end at these
//! ports, and the ports at the other ends of these flows. Placeholders give the number of the ports and flows that are
//! left out, so that the others keep the numbers that they have in the whole plan.
//!
//! A part is checked like any document; only [`crate::PlanParseOptions::part`] allows the placeholders. The length
//! of a part does not depend on the length of the plan, except for the sections that name ports of all nodes:
//! devices, captures, layer 1.

use crate::document::{self, DocumentMember, DocumentNode, DocumentValue};
use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;

/// Member of a placeholder: the number of ports or flows of other nodes that it replaces.
pub(crate) const OTHER_NODES_MEMBER: &str = "x_elsewhere";

/// A plan that can be cut into parts.
#[derive(Clone, Debug)]
pub struct PlanPartCutter {
    /// Everything but ports and flows, as members of a JSON object.
    rest: String,
    ports: Vec<String>,
    /// Numbers of the ports that `rest` names.
    named_by_rest: BTreeSet<usize>,
    flows: Vec<FlowText>,
    /// For each port, the numbers of the flows that begin or end at it.
    flows_at: Vec<Vec<usize>>,
}

/// The JSON text of a flow between ports, with the numbers of its ports.
#[derive(Clone, Debug)]
struct FlowText {
    text: String,
    tx: usize,
    ports: BTreeSet<usize>,
}

impl PlanPartCutter {
    /// Prepares a plan for cutting. `None` for an invalid document, or if a flow goes from device to device: the number
    /// of its streams depends on all devices.
    pub fn from_document(document: &str) -> Option<Self> {
        let root = document::parse_document(document).ok()?;
        let members = as_members(&root)?;
        let ports = list_items(members, "ports");
        let numbers =
            ports.iter().enumerate().filter_map(|(number, port)| Some((read_name_member(port)?, number)));
        let numbers: HashMap<String, usize> = numbers.collect();
        let flows = list_items(members, "flows").iter().map(|flow| FlowText::from_node(flow, &numbers));
        let flows: Vec<FlowText> = flows.collect::<Option<_>>()?;
        let mut rest = String::new();
        let mut named_by_rest = BTreeSet::new();
        for member in members.iter().filter(|member| member.name != "flows" && member.name != "ports") {
            write_member(&mut rest, member);
            // Any text that equals a port's name counts: a missing port would make the part invalid.
            collect_named_ports(&member.node, &numbers, &mut named_by_rest);
        }
        let mut flows_at = vec![Vec::new(); ports.len()];
        for (number, flow) in flows.iter().enumerate() {
            for port in &flow.ports {
                // An index by port: a part is made for each of many nodes with few ports, and must
                // not search all flows.
                flows_at[*port].push(number);
            }
        }
        let ports = ports.iter().map(to_json_text).collect();
        Some(Self { rest, ports, named_by_rest, flows, flows_at })
    }

    /// Returns the part of the plan for a node that has the ports with these numbers.
    pub fn cut_plan_part_for_ports(&self, own: &[usize]) -> PlanPart {
        let flows: BTreeSet<usize> =
            own.iter().filter_map(|port| self.flows_at.get(*port)).flatten().copied().collect();
        let mut ports: BTreeSet<usize> =
            flows.iter().flat_map(|flow| &self.flows[*flow].ports).copied().collect();
        ports.extend(own);
        // Devices, captures and layer 1 are sent whole, so every port that they name must be in the part.
        ports.extend(&self.named_by_rest);
        let mut text = format!("{{{}\"ports\":[", self.rest);
        let mut next = 0;
        for port in &ports {
            // The set is sorted, so the difference is the number of ports that are left out before this one.
            write_placeholder(&mut text, *port - next, None);
            text.push_str(&self.ports[*port]);
            text.push(',');
            next = port + 1;
        }
        write_placeholder(&mut text, self.ports.len() - next, None);
        close_bracket(&mut text, ']');
        text.push_str(",\"flows\":[");
        next = 0;
        for flow in &flows {
            // A placeholder uses the sending port of its first flow. That port is on another node, so this
            // node sends nothing for the placeholder.
            write_placeholder(&mut text, *flow - next, self.flows.get(next));
            text.push_str(&self.flows[*flow].text);
            text.push(',');
            next = flow + 1;
        }
        write_placeholder(&mut text, self.flows.len() - next, self.flows.get(next));
        close_bracket(&mut text, ']');
        text.push('}');
        PlanPart { document: text, ports }
    }
}

/// The part of a plan for one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanPart {
    /// The text of the part. It must be read with [`crate::PlanParseOptions::part`].
    pub document: String,
    /// The numbers of the ports that the part contains.
    pub ports: BTreeSet<usize>,
}

/// Writes a placeholder for `count` ports or flows of other nodes. A placeholder for flows has the sending port
/// of the first one.
fn write_placeholder(text: &mut String, count: usize, first: Option<&FlowText>) {
    if count == 0 {
        return;
    }
    match first {
        Some(flow) => write!(text, "{{\"{OTHER_NODES_MEMBER}\":{count},\"tx\":{}}},", flow.tx),
        None => write!(text, "{{\"{OTHER_NODES_MEMBER}\":{count}}},"),
    }
    .expect("writing to text cannot fail");
}

impl FlowText {
    fn from_node(flow: &DocumentNode<'_>, ports: &HashMap<String, usize>) -> Option<Self> {
        let NamedPorts { tx, rx } = read_port_names(document::find_member(as_members(flow)?, "tx_rx")?)?;
        // If the flow names an unknown port, the whole plan is not cut: a part must not hide the mistake.
        let ends = std::iter::once(&tx).chain(&rx).map(|name| ports.get(name).copied());
        Some(Self { text: to_json_text(flow), tx: *ports.get(&tx)?, ports: ends.collect::<Option<_>>()? })
    }
}

/// Adds to `found` each port whose name occurs as a text in the value, at any depth.
fn collect_named_ports(
    value: &DocumentNode<'_>,
    ports: &HashMap<String, usize>,
    found: &mut BTreeSet<usize>,
) {
    match &value.value {
        DocumentValue::Null => {}
        DocumentValue::Scalar(text) => found.extend(ports.get(&**text)),
        DocumentValue::List(items) => {
            for item in items {
                collect_named_ports(item, ports, found);
            }
        }
        DocumentValue::Object(members) => {
            for member in members {
                collect_named_ports(&member.node, ports, found);
            }
        }
    }
}

fn read_name_member(item: &DocumentNode<'_>) -> Option<String> {
    document::find_member(as_members(item)?, "name").and_then(scalar_text)
}

/// The names of a flow's sending port and of its receiving ports.
struct NamedPorts {
    tx: String,
    rx: Vec<String>,
}

/// Reads the port names of a flow; `None` if the flow connects devices.
fn read_port_names(tx_rx: &DocumentNode<'_>) -> Option<NamedPorts> {
    let ends = as_members(tx_rx)?;
    if document::find_member(ends, "device").is_some() {
        return None;
    }
    let port = document::find_member(ends, "port")?;
    let mut tx = None;
    let mut rx = Vec::new();
    for member in as_members(port)? {
        // OTG has two forms for receivers, `rx_names` and the deprecated `rx_name`. As in
        // `read_port_ends`, both are accepted.
        match (&*member.name, &member.node.value) {
            ("tx_name", DocumentValue::Scalar(text)) => tx = Some(text.to_string()),
            ("rx_name" | "rx_names", DocumentValue::Scalar(text)) => rx.push(text.to_string()),
            ("rx_names", DocumentValue::List(items)) => rx.extend(items.iter().filter_map(scalar_text)),
            _ => {}
        }
    }
    Some(NamedPorts { tx: tx?, rx })
}

fn as_members<'a>(node: &'a DocumentNode<'a>) -> Option<&'a [DocumentMember<'a>]> {
    if let DocumentValue::Object(members) = &node.value { Some(members) } else { None }
}

/// The items of the list with this name; none if it is missing.
fn list_items<'a>(members: &'a [DocumentMember<'a>], name: &str) -> &'a [DocumentNode<'a>] {
    document::find_member(members, name).map_or(&[], as_list)
}

fn as_list<'a>(node: &'a DocumentNode<'a>) -> &'a [DocumentNode<'a>] {
    if let DocumentValue::List(items) = &node.value { items } else { &[] }
}

fn scalar_text(node: &DocumentNode<'_>) -> Option<String> {
    if let DocumentValue::Scalar(text) = &node.value { Some(text.to_string()) } else { None }
}

/// Writes a member, followed by a comma.
fn write_member(text: &mut String, member: &DocumentMember<'_>) {
    write_json_string(text, &member.name);
    text.push(':');
    write_json_value(text, &member.node);
    text.push(',');
}

fn to_json_text(node: &DocumentNode<'_>) -> String {
    let mut text = String::new();
    write_json_value(&mut text, node);
    text
}

fn write_json_value(text: &mut String, node: &DocumentNode<'_>) {
    match &node.value {
        DocumentValue::Null => text.push_str("null"),
        // A number is written as a string, too: the reader accepts both.
        DocumentValue::Scalar(scalar) => write_json_string(text, scalar),
        DocumentValue::List(items) => {
            text.push('[');
            for item in items {
                write_json_value(text, item);
                text.push(',');
            }
            close_bracket(text, ']');
        }
        DocumentValue::Object(members) => {
            text.push('{');
            for member in members {
                write_member(text, member);
            }
            close_bracket(text, '}');
        }
    }
}

/// Replaces the last comma, if there is one, with the bracket.
fn close_bracket(text: &mut String, bracket: char) {
    if text.ends_with(',') {
        text.pop();
    }
    text.push(bracket);
}

fn write_json_string(text: &mut String, words: &str) {
    text.push('"');
    for c in words.chars() {
        // The reader parses YAML, which does not allow unescaped control characters and DEL.
        match c {
            '"' | '\\' => text.extend(['\\', c]),
            c if c < ' ' || c == '\u{7f}' => {
                write!(text, "\\u{:04x}", u32::from(c)).expect("writing to text cannot fail");
            }
            c => text.push(c),
        }
    }
    text.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Plan, PlanParseOptions, Stream};

    fn read(text: &str) -> Plan {
        Plan::from_text_with(text, PlanParseOptions { seed: 7, fleet: true, ..PlanParseOptions::default() })
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

    /// The stream without its position in the text.
    fn essence(stream: &Stream) -> String {
        format!("{:?}", Stream { place: document::TextPosition::default(), ..stream.clone() })
    }

    fn read_part(text: &str) -> Plan {
        Plan::from_text_with(text, PlanParseOptions { seed: 7, fleet: true, part: true })
            .unwrap_or_else(|error| panic!("{error:?}\n{text}"))
    }

    #[test]
    fn plan_part_keeps_own_ports_and_numbering() {
        let document = mesh(40);
        let whole = read(&document);
        let part = PlanPartCutter::from_document(&document).unwrap().cut_plan_part_for_ports(&[7]);
        assert_eq!(part.ports, BTreeSet::from([6, 7, 8]), "its own, and both it speaks with");
        let own = read_part(&part.document);
        assert_eq!((own.ports.len(), own.streams.len()), (40, 40));
        for number in 0..40 {
            assert_eq!(
                own.ports[number] == whole.ports[number],
                part.ports.contains(&number),
                "port {number}"
            );
            let is_own = [6, 7].contains(&number);
            assert_eq!(
                essence(&own.streams[number]) == essence(&whole.streams[number]),
                is_own,
                "stream {number}"
            );
            assert!(is_own || own.streams[number].tx != 7, "what others send is not sent here");
        }
    }

    #[test]
    fn plan_part_length_ignores_fleet_size() {
        let length = |nodes: usize| {
            PlanPartCutter::from_document(&mesh(nodes)).unwrap().cut_plan_part_for_ports(&[7]).document.len()
        };
        assert!(length(1000) < length(40) + 40, "{} and {}", length(1000), length(40));
        assert_eq!(
            read_part(
                &PlanPartCutter::from_document(&mesh(400)).unwrap().cut_plan_part_for_ports(&[]).document
            )
            .streams
            .len(),
            400
        );
    }

    #[test]
    fn capture_ports_are_in_every_plan_part() {
        let captures = "captures: [{name: c, port_names: ['p \"3\"'], format: pcapng}]\n";
        let document = format!("{captures}{}", mesh(40));
        let part = PlanPartCutter::from_document(&document).unwrap().cut_plan_part_for_ports(&[20]);
        assert_eq!(part.ports, BTreeSet::from([3, 19, 20, 21]));
        assert_eq!(read_part(&part.document).captures[0].ports, [3]);
    }

    #[test]
    fn probes_are_complete_in_every_plan_part() {
        let port = |node: usize| format!("{{name: p{node}, location: node{node}/eth1}}");
        let address = |node: usize| format!("{{port: p{node}, address: 198.18.0.{node}}}");
        let list = |what: &dyn Fn(usize) -> String| (1..=100).map(what).collect::<Vec<_>>().join(", ");
        let names = list(&|node| format!("p{node}"));
        let document = format!(
            "{{ports: [{}], x_probes: {{method: oneway, poisson: true, count: 7, from: [{names}], to: [{names}], addresses: [{}]}}}}",
            list(&port),
            list(&address)
        );
        let part = PlanPartCutter::from_document(&document).unwrap().cut_plan_part_for_ports(&[7]);
        let (whole, own) = (read(&document).probes, read_part(&part.document).probes);
        assert!(whole.is_some() && whole == own);
    }

    #[test]
    fn plan_part_is_refused_unless_expected_and_valid() {
        let part = PlanPartCutter::from_document(&mesh(40)).unwrap().cut_plan_part_for_ports(&[7]).document;
        assert!(Plan::from_text_with(&part, PlanParseOptions { seed: 7, fleet: true, part: false }).is_err());
        for bad in [
            r#"{"ports":[{"x_elsewhere":0}]}"#,
            r#"{"ports":[{"x_elsewhere":4000000000}]}"#,
            r#"{"ports":[{"x_elsewhere":9,"name":"a"}]}"#,
            r#"{"ports":[{"x_elsewhere":9}],"flows":[{"x_elsewhere":65537,"tx":0}]}"#,
            r#"{"ports":[{"x_elsewhere":9}],"flows":[{"x_elsewhere":2,"tx":9}]}"#,
            r#"{"ports":[{"x_elsewhere":9}],"flows":[{"x_elsewhere":2}]}"#,
        ] {
            assert!(
                Plan::from_text_with(bad, PlanParseOptions { seed: 7, fleet: true, part: true }).is_err(),
                "{bad}"
            );
        }
    }

    #[test]
    fn flows_between_devices_are_not_taken_apart() {
        let device = "flows: [{name: f, tx_rx: {choice: device, device: {tx_names: [a], rx_names: [b]}}}]";
        assert!(PlanPartCutter::from_document(device).is_none());
        assert!(PlanPartCutter::from_document("ports: []").is_some());
        assert!(PlanPartCutter::from_document("[").is_none());
    }
}
