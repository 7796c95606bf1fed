//! The ends of a flow: a sending port and receiving ports, or pairs of emulated interfaces.

use super::{PortNames, resolve_port_name};
use crate::PlanProblem;
use crate::device::DeviceInterface;
use crate::nearest::nearest_name;
use crate::reader::{DocumentItem, DocumentObject};
use std::collections::{HashMap, HashSet};

/// The objects that `tx_rx` can name.
pub(super) struct NamedEndpoints<'a> {
    port_names: &'a PortNames,
    pub(super) interfaces: &'a [DeviceInterface],
    endpoints: HashMap<&'a str, FlowEndpoint>,
    devices: &'a [String],
}

/// An interface, or one address of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FlowEndpoint {
    pub(super) interface: usize,
    pub(super) address: Option<usize>,
}

/// Sender and receiver of one stream.
#[derive(Clone, Debug)]
pub(super) struct EndpointPair {
    pub(super) from: FlowEndpoint,
    pub(super) to: FlowEndpoint,
    /// True for the opposite direction, which has reversed headers.
    pub(super) is_reverse: bool,
    /// Share of the frames of this direction that the pair sends.
    pub(super) part: crate::FlowShare,
}

/// The ends of a flow.
#[derive(Clone, Debug)]
pub(super) enum FlowEndpoints {
    Ports(usize, Vec<usize>),
    Pairs(Vec<EndpointPair>),
}

impl<'a> NamedEndpoints<'a> {
    pub(super) fn new(
        port_names: &'a PortNames,
        interfaces: &'a [DeviceInterface],
        devices: &'a [String],
    ) -> Self {
        let mut endpoints = HashMap::new();
        for (interface, found) in interfaces.iter().enumerate() {
            // Names are unique over all objects (`NamedObjectPaths`), so interfaces and addresses share one map.
            endpoints.insert(&*found.name, FlowEndpoint { interface, address: None });
            for (address, named) in found.addresses.iter().enumerate() {
                endpoints.insert(&*named.name, FlowEndpoint { interface, address: Some(address) });
            }
        }
        Self { port_names, interfaces, endpoints, devices }
    }

    /// Number of ports of the plan.
    pub(super) fn port_count(&self) -> usize {
        self.port_names.names.len()
    }

    /// The name of an endpoint in the document.
    pub(super) fn endpoint_name(&self, endpoint: FlowEndpoint) -> &str {
        let interface = &self.interfaces[endpoint.interface];
        endpoint.address.map_or(&interface.name, |address| &interface.addresses[address].name)
    }

    fn find_endpoint(&self, item: &DocumentItem<'_>) -> Option<FlowEndpoint> {
        let name = item.as_text()?;
        let found = self.endpoints.get(name).copied();
        if found.is_none() {
            let problem =
                PlanProblem::error(&*item.path, format!("there is no interface or address `{name}`"));
            item.add_problem(match self.unknown_name_hint(name) {
                Some(hint) => problem.with_hint(hint),
                None => problem,
            });
        }
        found
    }

    fn unknown_name_hint(&self, name: &str) -> Option<String> {
        if self.devices.iter().any(|device| device == name) {
            let of_device = self.interfaces.iter().filter(|interface| interface.device == name);
            let names: Vec<&str> = of_device.map(|interface| &*interface.name).take(8).collect();
            return Some(format!(
                "`{name}` is a device; name its interfaces or their addresses here: {}",
                names.join(", ")
            ));
        }
        let names: Vec<&str> = self.endpoints.keys().copied().collect();
        nearest_name(name, &names).map(|near| format!("did you mean `{near}`?"))
    }
}

pub(super) fn read_flow_endpoints(
    item: &DocumentItem<'_>,
    known: &NamedEndpoints<'_>,
) -> Option<FlowEndpoints> {
    let object = item.as_object()?;
    let choice = object.read_choice(&["port", "device"], "port");
    let chosen = object.chosen_member_object(choice)?;
    object.refuse_unread_members();
    if choice == "device" { read_pairs(&chosen, known) } else { read_port_ends(&chosen, known.port_names) }
}

fn read_port_ends(port: &DocumentObject<'_>, ports: &PortNames) -> Option<FlowEndpoints> {
    let tx = port.require_member("tx_name").and_then(|item| resolve_port_name(&item, ports));
    let mut named = port.read_items("rx_names");
    // OTG has deprecated `rx_name`, but most scripts still send it.
    named.extend(port.read_member("rx_name"));
    let mut rx = Vec::new();
    let mut seen = HashSet::new();
    for item in &named {
        match resolve_port_name(item, ports) {
            // A receiver that is listed twice would count every frame twice.
            Some(port) if !seen.insert(port) => {
                item.add_item_error(format!("port `{}` is listed twice", ports.names[port]));
            }
            Some(port) => rx.push(port),
            None => {}
        }
    }
    Some(FlowEndpoints::Ports(tx?, rx))
}

fn read_pairs(object: &DocumentObject<'_>, known: &NamedEndpoints<'_>) -> Option<FlowEndpoints> {
    let one_to_one = object.read_word("mode", &["mesh", "one_to_one"], "mesh") == "one_to_one";
    let both_ways = object.read_flag("bidirectional", false);
    // Both lists are read before an error in one of them ends the reading, so that the problems of both are noted.
    let tx = read_endpoints(object, "tx_names", known);
    let rx = read_endpoints(object, "rx_names", known);
    let tx = tx?;
    let rx = rx?;
    if one_to_one && tx.len() != rx.len() {
        let message = format!(
            "`one_to_one` needs the same number of names in `tx_names` and `rx_names`, not {} and {}",
            tx.len(),
            rx.len()
        );
        object.item.add_item_error(message);
        return None;
    }
    if tx.is_empty() || rx.is_empty() {
        let message = "a flow between devices needs at least one name in `tx_names` and in `rx_names`";
        object.item.add_item_error(message);
        return None;
    }
    // The mesh is counted before it is built: two long lists of names would need gigabytes.
    let couples: Vec<(FlowEndpoint, FlowEndpoint)> = if one_to_one {
        tx.into_iter().zip(rx).collect()
    } else if tx.len().saturating_mul(rx.len()) > super::flow::MAX_STREAMS {
        object.item.add_item_error(format!(
            "{} pairs of interfaces are too many; a run can distinguish at most {} streams",
            tx.len() * rx.len(),
            super::flow::MAX_STREAMS
        ));
        return None;
    } else {
        tx.iter().flat_map(|from| rx.iter().map(|to| (*from, *to))).collect()
    };
    // A switch does not send a frame back to the port that it came from, so no frame would be measured.
    if let Some((same, _)) = couples.iter().find(|(from, to)| from == to) {
        object.item.add_item_error(format!("`{}` would send to itself", known.endpoint_name(*same)));
        return None;
    }
    Some(FlowEndpoints::Pairs(pairs_in_both_directions(&couples, both_ways)))
}

/// Reads the endpoints in the list `name`; `None` if one of them is unknown.
fn read_endpoints(
    object: &DocumentObject<'_>,
    name: &'static str,
    known: &NamedEndpoints<'_>,
) -> Option<Vec<FlowEndpoint>> {
    let items = object.require_member(name).map(|item| item.as_list()).unwrap_or_default();
    let found: Vec<FlowEndpoint> = items.iter().filter_map(|item| known.find_endpoint(item)).collect();
    // A shorter list would pair the wrong ends; the unknown name is already an error.
    (found.len() == items.len()).then_some(found)
}

/// Makes the pairs of a flow, with `both_ways` also those of the opposite direction. Each direction has the flow's
/// whole rate and amount, which its pairs divide among themselves.
fn pairs_in_both_directions(couples: &[(FlowEndpoint, FlowEndpoint)], both_ways: bool) -> Vec<EndpointPair> {
    let of = couples.len() as u64;
    let mut pairs: Vec<EndpointPair> = (0..)
        .zip(couples)
        .map(|(index, (from, to))| EndpointPair {
            from: *from,
            to: *to,
            is_reverse: false,
            part: crate::FlowShare { index, of },
        })
        .collect();
    if both_ways {
        let reverse: Vec<EndpointPair> = pairs
            .iter()
            .map(|pair| EndpointPair { from: pair.to, to: pair.from, is_reverse: true, part: pair.part })
            .collect();
        pairs.extend(reverse);
    }
    pairs
}
