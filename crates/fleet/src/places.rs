//! Assigns an interface of the fleet to each port of a plan: the interface that the plan names, or any free one with
//! the label that the plan asks for.
//!
//! If the user allows a start without some nodes, ports may also be placed on nodes that cannot take part now. The
//! report then lists these nodes as unavailable.
//!
//! The assignment uses only the last hellos of the nodes. The result is a place (node and interface) for every port, or
//! all problems that prevent this.
//!
//! Invariant: no interface is assigned twice; the same plan and the same nodes give the same places; if there is a way
//! to assign an interface to every port that names only a label, it is found.

use crate::members::{FleetMembers, MemberRow};
use crate::message::{NodeName, PortPlace, RunId};
use packetrig_plan::{Plan, PlanProblem, PlanProblems, PortHost};
use packetrig_units::MonoTime;
use std::collections::{BTreeMap, BTreeSet};

/// Places (node and interface) of the ports of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortPlaceAssignment {
    /// The place of each port, in the order of the plan's ports.
    pub places: Vec<PortPlace>,
    /// Nodes of these places that cannot take part in the run, each with the reason.
    pub unavailable: BTreeMap<NodeName, String>,
}

/// Returns the nodes of these places, each once, sorted by name.
pub fn nodes_of_places(places: &[PortPlace]) -> Vec<NodeName> {
    let names: BTreeSet<&NodeName> = places.iter().map(|place| &place.node).collect();
    names.into_iter().cloned().collect()
}

/// Finds a place for each port of `plan`, only on nodes that can take part in `run`. Nodes that belong to another
/// run are not used.
pub fn assign_places(
    plan: &Plan,
    members: &FleetMembers,
    run: Option<&RunId>,
    now: MonoTime,
) -> Result<PortPlaceAssignment, PlanProblems> {
    PlaceSearch::new(plan, members.member_rows(now), run).assign_all_ports()
}

/// Like [`assign_places`], but if too few nodes can take part, also uses nodes that cannot. The result names these.
pub fn assign_places_with_unavailable_nodes(
    plan: &Plan,
    members: &FleetMembers,
    run: Option<&RunId>,
    now: MonoTime,
) -> Result<PortPlaceAssignment, PlanProblems> {
    PlaceSearch { takes_unavailable: true, ..PlaceSearch::new(plan, members.member_rows(now), run) }
        .assign_all_ports()
}

/// An interface of a node that the node's owner offers.
#[derive(Debug)]
struct OfferedInterface {
    place: PortPlace,
    labels: Vec<String>,
    up: bool,
    /// Reason why the node of the interface cannot take part in the run.
    hindrance: Option<String>,
    /// Port of the plan to which the interface is assigned.
    given: Option<usize>,
}

#[derive(Debug)]
struct PlaceSearch<'a> {
    plan: &'a Plan,
    rows: Vec<MemberRow>,
    offers: Vec<OfferedInterface>,
    hindered: Vec<Option<String>>,
    /// Indices in `offers` of the interfaces with each label, in rising order.
    by_label: BTreeMap<String, Vec<usize>>,
    /// Ports of the plan that are assigned to each node.
    given_at: BTreeMap<NodeName, NodePorts>,
    /// True if ports may be placed on nodes that cannot take part.
    takes_unavailable: bool,
    problems: Vec<PlanProblem>,
}

/// Number of ports of the plan on one node.
#[derive(Debug, Default)]
struct NodePorts {
    all: usize,
    by_site: BTreeMap<PortHost, usize>,
}

fn port_location_path(index: usize) -> String {
    format!("ports[{index}].location")
}

fn port_location_problem(index: usize, message: String) -> PlanProblem {
    PlanProblem::error(port_location_path(index), message)
}

impl<'a> PlaceSearch<'a> {
    fn new(plan: &'a Plan, rows: Vec<MemberRow>, run: Option<&RunId>) -> Self {
        let hindered: Vec<_> = rows.iter().map(|row| row.find_exclusion_reason(run)).collect();
        let mut offers: Vec<OfferedInterface> = Vec::new();
        for (row, hindrance) in rows.iter().zip(&hindered) {
            offers.extend(row.hello.ports.iter().map(|port| OfferedInterface {
                place: PortPlace { node: row.node.clone(), interface: port.interface.clone() },
                // A label of the node applies to all its ports, so a plan need not distinguish labels of
                // nodes and of ports.
                labels: row.labels().chain(&port.labels).cloned().collect(),
                up: port.up,
                hindrance: hindrance.clone(),
                given: None,
            }));
        }
        // `assign_named_port` needs this order for its binary search. The order also makes the result reproducible.
        offers.sort_by(|one, other| one.place.cmp(&other.place));
        let mut by_label: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (number, offer) in offers.iter().enumerate() {
            for label in offer.labels.iter().collect::<BTreeSet<_>>() {
                by_label.entry(label.clone()).or_default().push(number);
            }
        }
        Self {
            plan,
            rows,
            offers,
            hindered,
            by_label,
            given_at: BTreeMap::new(),
            takes_unavailable: false,
            problems: Vec::new(),
        }
    }

    fn assign_all_ports(mut self) -> Result<PortPlaceAssignment, PlanProblems> {
        for (index, port) in self.plan.ports.iter().enumerate() {
            if let Err(problem) = self.assign_named_port(index, &port.site, &port.location.to_string()) {
                self.problems.push(*problem);
            }
        }
        // Ports with a named interface are assigned first, because only ports with a label have a choice.
        for index in 0..self.plan.ports.len() {
            let by_label = matches!(self.plan.ports[index].site, PortHost::Any(_));
            // A node that cannot take part is used last, because its ports will be missing in the run.
            if by_label
                && !self.assign_port_by_label(index, &mut BTreeSet::new())
                && !self.assign_to_absent_node(index)
            {
                self.add_shortage_problem(index);
            }
        }
        self.into_assignment()
    }

    /// Assigns to the port the interface that its location names. Does nothing for a port with a label.
    fn assign_named_port(
        &mut self,
        index: usize,
        site: &PortHost,
        interface: &str,
    ) -> Result<(), Box<PlanProblem>> {
        let node = match site {
            PortHost::Any(_) => return Ok(()),
            PortHost::Here => {
                let message = format!("`{interface}` does not name its node; write NODE/{interface}");
                return Err(port_location_problem(index, message).into());
            }
            PortHost::Node(node) => node,
        };
        // Rows are sorted by node, and offers by node and interface.
        let Ok(row) = self.rows.binary_search_by(|row| row.node.0.as_str().cmp(node)) else {
            let known: Vec<&str> = self.rows.iter().map(|row| row.node.0.as_str()).collect();
            let hint = match known.as_slice() {
                [] => "no node has joined yet; see `packetrig fleet status`".to_owned(),
                known => format!("nodes of this fleet: {}", join_first_texts(known)),
            };
            return Err(port_location_problem(index, format!("there is no node `{node}`"))
                .with_hint(hint)
                .into());
        };
        let hindered = self.hindered[row].as_ref();
        if let Some(hindrance) = hindered.filter(|_| !self.takes_unavailable) {
            return Err(
                port_location_problem(index, format!("node `{node}` cannot take part: {hindrance}")).into()
            );
        }
        let wanted = (node.as_str(), interface);
        let found = self.offers.binary_search_by(|offer| {
            (offer.place.node.0.as_str(), offer.place.interface.as_str()).cmp(&wanted)
        });
        let Ok(number) = found else {
            let offered: Vec<&str> =
                self.rows[row].hello.ports.iter().map(|port| port.interface.as_str()).collect();
            let hint = match offered.as_slice() {
                [] => format!("the owner of `{node}` offers no port"),
                offered => format!("its owner offers: {}", join_first_texts(offered)),
            };
            let message = format!("node `{node}` does not offer a port `{interface}`");
            return Err(port_location_problem(index, message).with_hint(hint).into());
        };
        let offer = &self.offers[number];
        if !offer.up && hindered.is_none() {
            // The link state matters only for nodes that can take part: in the last hello of another it is out of date.
            return Err(
                port_location_problem(index, format!("the link of `{node}/{interface}` is down")).into()
            );
        }
        if let Some(other) = offer.given {
            let other = &self.plan.ports[other].name;
            return Err(port_location_problem(
                index,
                format!("`{node}/{interface}` is already assigned to port `{other}`"),
            )
            .into());
        }
        self.assign_offer(number, index);
        Ok(())
    }

    /// Assigns the offered interface to the port.
    fn assign_offer(&mut self, offer: usize, port: usize) {
        let ports = &self.plan.ports;
        let node = self.offers[offer].place.node.clone();
        let at_node = self.given_at.entry(node).or_default();
        match self.offers[offer].given.replace(port) {
            // The interface was assigned to another port: the number of assigned ports of the node does not change.
            Some(before) => {
                if let Some(count) = at_node.by_site.get_mut(&ports[before].site) {
                    *count -= 1;
                }
            }
            None => at_node.all += 1,
        }
        *at_node.by_site.entry(ports[port].site.clone()).or_default() += 1;
    }

    /// Assigns any interface with the port's label. If all are in use, moves another port with a label to a free
    /// interface. Returns true if the port has an interface now.
    fn assign_port_by_label(&mut self, index: usize, tried: &mut BTreeSet<usize>) -> bool {
        let candidates = self.candidate_offers(index);
        if let Some(free) = candidates.iter().find(|offer| self.offers[**offer].given.is_none()) {
            self.assign_offer(*free, index);
            return true;
        }
        // Bipartite matching by augmenting paths. `tried` ensures that each offer is visited only once, so the search
        // ends. It finds a place whenever one exists.
        for offer in candidates {
            // An offer that was tried cannot help: the port that has it found no other interface.
            let Some(holder) = self.offers[offer].given.filter(|_| tried.insert(offer)) else { continue };
            // A port with a named interface cannot move.
            if matches!(self.plan.ports[holder].site, PortHost::Any(_))
                && self.assign_port_by_label(holder, tried)
            {
                self.assign_offer(offer, index);
                return true;
            }
        }
        false
    }

    /// Assigns an interface of a node that cannot take part, if that is allowed. Returns true if the port
    /// has an interface now.
    fn assign_to_absent_node(&mut self, index: usize) -> bool {
        let PortHost::Any(label) = &self.plan.ports[index].site else { return false };
        let mut labelled = self.by_label.get(label).into_iter().flatten().copied();
        let unavailable = labelled.find(|number| {
            let offer = &self.offers[*number];
            offer.given.is_none() && offer.hindrance.is_some()
        });
        let Some(unavailable) = unavailable.filter(|_| self.takes_unavailable) else { return false };
        self.assign_offer(unavailable, index);
        true
    }

    /// Returns the usable offers with the label of a port. Offers on nodes with the fewest assigned ports come first.
    fn candidate_offers(&self, index: usize) -> Vec<usize> {
        let PortHost::Any(label) = &self.plan.ports[index].site else { return Vec::new() };
        let mut found = self.by_label.get(label).cloned().unwrap_or_default();
        found.retain(|number| self.offers[*number].up && self.offers[*number].hindrance.is_none());
        // This order distributes ports with the same label over the nodes.
        found.sort_by_cached_key(|offer| {
            let given = self.given_at.get(&self.offers[*offer].place.node);
            let alike = given.and_then(|given| given.by_site.get(&self.plan.ports[index].site)).copied();
            // The order of the offers breaks ties.
            (alike.unwrap_or(0), given.map_or(0, |given| given.all), *offer)
        });
        found
    }

    fn add_shortage_problem(&mut self, index: usize) {
        let port = &self.plan.ports[index];
        let PortHost::Any(label) = &port.site else { return };
        let wanted = self.plan.ports.iter().filter(|other| other.site == port.site).count();
        let labelled: Vec<&OfferedInterface> =
            self.offers.iter().filter(|offer| offer.labels.contains(label)).collect();
        let usable = labelled.iter().filter(|offer| offer.up && offer.hindrance.is_none()).count();
        // A set, because several ports may have the same reason.
        let mut reasons: BTreeSet<String> = BTreeSet::new();
        for offer in &labelled {
            let PortPlace { node, interface } = &offer.place;
            match &offer.hindrance {
                Some(hindrance) => reasons.insert(format!("node `{node}` cannot take part: {hindrance}")),
                None if !offer.up => reasons.insert(format!("the link of `{node}/{interface}` is down")),
                None => false,
            };
        }
        let hint = match (labelled.len(), reasons.is_empty()) {
            (0, _) => format!("no node and no port has the label `{label}`"),
            (_, true) => "other ports of the plan use all ports with this label".to_owned(),
            (_, false) => join_first_texts(&reasons.iter().map(String::as_str).collect::<Vec<_>>()),
        };
        let message = format!(
            "no port is left for `any-{label}`: the plan needs {wanted}; usable ports with this label: {usable}"
        );
        self.problems.push(PlanProblem::error(port_location_path(index), message).with_hint(hint));
    }

    fn into_assignment(self) -> Result<PortPlaceAssignment, PlanProblems> {
        if !self.problems.is_empty() {
            return Err(PlanProblems(self.problems));
        }
        let mut given: Vec<(usize, OfferedInterface)> =
            self.offers.into_iter().filter_map(|offer| Some((offer.given?, offer))).collect();
        given.sort_by_key(|(index, _)| *index);
        let mut settlement = PortPlaceAssignment::default();
        // Without problems, every port has a place.
        for (_, OfferedInterface { place, hindrance, .. }) in given {
            settlement.unavailable.extend(hindrance.map(|why| (place.node.clone(), why)));
            settlement.places.push(place);
        }
        Ok(settlement)
    }
}

/// Counts the ports with a label on all nodes, also on nodes that cannot take part. `any-LABEL*all` means
/// this number of ports.
pub fn count_labelled_ports_in_fleet(label: &str, members: &FleetMembers) -> usize {
    // The time matters only for the silence of nodes, which is not used here.
    members.member_rows(MonoTime::default()).iter().map(|row| count_labelled_ports_of_node(label, row)).sum()
}

fn count_labelled_ports_of_node(label: &str, row: &MemberRow) -> usize {
    let is_whole = row.labels().any(|own| own == label);
    let ports = row.hello.ports.iter();
    ports.filter(|port| is_whole || port.labels.iter().any(|own| own == label)).count()
}

/// Joins texts for a message. Of a long list, only the first eight are named and the others counted.
fn join_first_texts(words: &[&str]) -> String {
    const MAX_LISTED: usize = 8;
    match words.len().checked_sub(MAX_LISTED) {
        None | Some(0) => words.join(", "),
        Some(more) => format!("{} and {more} more", words[..MAX_LISTED].join(", ")),
    }
}

#[cfg(test)]
mod tests;
