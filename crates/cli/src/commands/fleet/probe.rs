//! `packetrig fleet probe`: makes a plan with probes from the nodes of the fleet, and runs it like any other plan.

use crate::args::{
    CapacityProbes, FleetProbeCommand, MechanismArg, ProbedHost, ProbingNodes, ProbingOptions, ProbingRun,
    ProbingSchedule, TargetProbes,
};
use crate::commands::execution::{self, ExecutionRequest, FleetUnderControl, ProgressDisplay, ResultFormat};
use crate::document::PlanText;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::fleet_place::FleetPlace;
use crate::output::CommandOutput;
use packetrig_fleet::controller::{LostNodePolicy, RunPolicies};
use packetrig_fleet::hello::OfferedPort;
use packetrig_fleet::members::MemberRow;
use packetrig_units::Nanos;
use serde_json::{Map, Value, json};
use std::net::IpAddr;

pub(super) fn run_fleet_probe(
    arguments: &FleetProbeCommand,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    let request = match arguments {
        FleetProbeCommand::Oneway(probes) => ProbeRequest::new("oneway", &[], &probes.probing),
        FleetProbeCommand::Stamp(probes) => ProbeRequest::for_targets("stamp", probes),
        FleetProbeCommand::Ping(probes) => ProbeRequest::for_targets("ping", probes),
        FleetProbeCommand::Send(probes) => ProbeRequest {
            train: Some((probes.train, probes.gap)),
            ..ProbeRequest::new("send", &probes.targets, &probes.probing)
        },
        FleetProbeCommand::Capacity(probes) => {
            let schedule = capacity_schedule(probes);
            let hosts = probes.targets.iter().map(|host| host.0.as_str()).collect();
            let request = ProbeRequest {
                method: "capacity",
                hosts,
                // The probes are sent back to back: the path, not the sender, must spread them.
                train: Some((probes.longest, Nanos::ZERO)),
                slot: probes.slot,
                nodes: &probes.nodes,
                schedule: &schedule,
                run: &probes.run,
            };
            return request.run_probes(output);
        }
        FleetProbeCommand::Available(_) => return Err(not_on_fleet_error()),
    };
    request.run_probes(output)
}

/// Schedule of capacity probes, from the options that they share with other probes.
const fn capacity_schedule(probes: &CapacityProbes) -> ProbingSchedule {
    ProbingSchedule {
        count: probes.count,
        interval: probes.interval,
        poisson: false,
        seed: None,
        size: probes.size,
        exchange: probes.exchange,
    }
}

fn not_on_fleet_error() -> Error {
    let why = "the methods `available` and `oneprobe` do not work on a fleet yet; run `packetrig probe` on the node instead";
    Error::Usage(why.to_owned())
}

/// A request of `fleet probe`, for any method.
struct ProbeRequest<'a> {
    method: &'static str,
    /// Targets that are not nodes of the fleet.
    hosts: Vec<&'a str>,
    /// Number of probes in a train, and the gap between two of them.
    train: Option<(u32, Nanos)>,
    /// Time slot of each pair, if the user gave one; otherwise the default applies.
    slot: Option<Nanos>,
    nodes: &'a ProbingNodes,
    schedule: &'a ProbingSchedule,
    run: &'a ProbingRun,
}

impl<'a> ProbeRequest<'a> {
    fn new(
        method: &'static str,
        hosts: &'a [ProbedHost],
        ProbingOptions { nodes, schedule, run }: &'a ProbingOptions,
    ) -> Self {
        let hosts = hosts.iter().map(|host| host.0.as_str()).collect();
        Self { method, hosts, train: None, slot: None, nodes, schedule, run }
    }

    fn for_targets(method: &'static str, probes: &'a TargetProbes) -> Self {
        Self::new(method, &probes.targets, &probes.probing)
    }

    fn run_probes(&self, output: &mut CommandOutput) -> Result<CommandExit, Error> {
        let place = FleetPlace::from_arguments(&self.run.fleet)?.require_existing()?;
        let policies = RunPolicies {
            start: self.run.start_with.as_ref().map(|start| start.0).unwrap_or_default(),
            // Each pair is a separate measurement: a lost node does not affect the pairs of other nodes.
            on_loss: LostNodePolicy::Continue,
        };
        // This process becomes a controller before it makes the plan: only a controller knows the ports and addresses
        // of the members.
        let mut taken = FleetUnderControl::become_fleet_controller(
            &place,
            self.run.record.store.directory.as_deref(),
            policies,
        )?;
        let text = self.plan_document(&taken.read_members()?)?;
        let document = PlanText { name: "the options".to_owned(), text, is_from_options: true };
        if self.run.print_plan {
            return execution::print_plan(&document, &self.run.fleet, output);
        }
        let request = ExecutionRequest {
            name: self.run.record.name.clone(),
            out: self.run.record.out.clone(),
            store: self.run.record.store.directory.clone(),
            page: self.run.record.page,
            seed: self.schedule.seed,
            format: ResultFormat::from_flags(self.run.json, false),
            progress: ProgressDisplay::from_flags(self.run.quiet, false),
            fleet: self.run.fleet.clone(),
            policies,
            waits_for_nodes: self.run.wait_for_nodes,
            ..ExecutionRequest::new(document)
        };
        taken.execute_new_plan(&request, output)
    }

    /// Makes the plan that the arguments describe.
    fn plan_document(&self, members: &[MemberRow]) -> Result<String, Error> {
        let from = self.select_nodes(&self.nodes.from, members)?;
        // Without any target, the nodes probe each other. With hosts alone, no node is probed.
        let to = match (self.nodes.to.is_empty(), self.hosts.is_empty()) {
            (true, true) => self.select_nodes(&self.nodes.from, members)?,
            (true, false) => Vec::new(),
            (false, _) => self.select_nodes(&self.nodes.to, members)?,
        };
        let mut all: Vec<&ProbedNode> = from.iter().chain(&to).collect();
        // A node that both sends probes and is probed must be in the plan only once.
        all.sort_by_key(|node| &node.name);
        all.dedup_by_key(|node| &node.name);
        let ports: Vec<Value> = all
            .iter()
            .map(|node| json!({"name": node.name, "location": format!("{}/{}", node.name, node.interface)}))
            .collect();
        let addresses: Vec<Value> =
            all.iter().map(|node| json!({"port": node.name, "address": node.address})).collect();
        let mut probes = self.probe_fields();
        probes.insert("from".into(), node_names(&from).into());
        if !to.is_empty() {
            probes.insert("to".into(), node_names(&to).into());
        }
        if !self.hosts.is_empty() {
            probes.insert("targets".into(), self.hosts.clone().into());
        }
        probes.insert("addresses".into(), addresses.into());
        // JSON is also YAML: this quotes any name correctly, and the plan is read like a plan that
        // a user has written.
        let document = json!({"ports": ports, "x_probes": probes});
        Ok(format!("{document:#}\n"))
    }

    /// Fields of `x_probes` for the method and its schedule.
    fn probe_fields(&self) -> Map<String, Value> {
        let schedule = self.schedule;
        let mut probes = Map::new();
        let mut set = |name: &str, value: Value| drop(probes.insert(name.to_owned(), value));
        set("method", self.method.into());
        set("count", schedule.count.into());
        set("interval", schedule.interval.to_string().into());
        set("size", schedule.size.bytes().into());
        set("wait", schedule.exchange.wait.to_string().into());
        if schedule.poisson {
            set("poisson", true.into());
        }
        if let Some((train, gap)) = self.train {
            set("train", train.into());
            // A gap of zero is the default and is left out of the plan.
            if gap > Nanos::ZERO {
                set("gap", gap.to_string().into());
            }
        }
        if let Some(slot) = self.slot {
            set("slot", slot.to_string().into());
        }
        if let Some(port) = schedule.exchange.port {
            set("port", port.into());
        }
        if let MechanismArg::Only(mechanism) = schedule.exchange.mechanism {
            set("mechanism", mechanism.name().into());
        }
        probes
    }

    /// Selects the nodes with these names or labels (`any-LABEL`), or all nodes if `named` is empty, and sorts them.
    fn select_nodes(&self, named: &[String], members: &[MemberRow]) -> Result<Vec<ProbedNode>, Error> {
        let mut rows: Vec<&MemberRow> = Vec::new();
        for name in named {
            let found: Vec<&MemberRow> = members.iter().filter(|row| is_node_selected(name, row)).collect();
            if found.is_empty() {
                return Err(unknown_node_error(name));
            }
            rows.extend(found);
        }
        if named.is_empty() {
            rows.extend(members);
        }
        // A node may be named and have a named label, too.
        rows.sort_by_key(|row| &row.node);
        rows.dedup_by_key(|row| &row.node);
        if rows.is_empty() {
            return Err(Error::Usage(
                "the fleet has no node yet; `packetrig fleet invite` prints the line with which a node joins"
                    .to_owned(),
            ));
        }
        let through = self.nodes.through.as_deref();
        // One message lists all refusals: a user with many nodes must not correct them one by one.
        let (found, refused): (Vec<_>, Vec<_>) =
            rows.into_iter().map(|row| ProbedNode::from_member(row, through)).partition(Result::is_ok);
        let refused: Vec<String> = refused.into_iter().filter_map(Result::err).collect();
        if refused.is_empty() {
            Ok(found.into_iter().flatten().collect())
        } else {
            Err(Error::Usage(refused.join("; ")))
        }
    }
}

fn is_node_selected(name: &str, row: &MemberRow) -> bool {
    match name.strip_prefix("any-") {
        // This is the rule for plans, where `any-LABEL` stands for a port with this label.
        Some(label) => {
            let of_ports = row.hello.ports.iter().flat_map(|port| &port.labels);
            row.labels().chain(of_ports).any(|has| has == label)
        }
        None => row.node.0 == name,
    }
}

fn unknown_node_error(name: &str) -> Error {
    match name.strip_prefix("any-") {
        Some(label) => Error::Usage(format!("no node of the fleet has the label `{label}`")),
        None => Error::Usage(format!(
            "the fleet has no node called {name}, or it has never reported; `packetrig fleet status` lists the nodes"
        )),
    }
}

fn node_names(nodes: &[ProbedNode]) -> Vec<String> {
    nodes.iter().map(|node| node.name.clone()).collect()
}

/// True if this is the name of the port's interface, or one of its labels.
fn has_name_or_label(port: &OfferedPort, wanted: &str) -> bool {
    port.interface == wanted || port.labels.iter().any(|label| label == wanted)
}

/// A node, with the interface and the address that it uses to send and receive probes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ProbedNode {
    name: String,
    interface: String,
    address: IpAddr,
}

impl ProbedNode {
    /// Chooses the only port of the node that has an address and, if `through` is given, this name or label. The error
    /// says why there is no such port, or that there are several.
    fn from_member(row: &MemberRow, through: Option<&str>) -> Result<Self, String> {
        let name = &row.node.0;
        let ports = row.hello.ports.iter();
        let wanted: Vec<&OfferedPort> =
            ports.filter(|port| through.is_none_or(|wanted| has_name_or_label(port, wanted))).collect();
        let with_address: Vec<(&OfferedPort, IpAddr)> =
            wanted.iter().filter_map(|port| Some((*port, default_address(port)?))).collect();
        match with_address[..] {
            [(port, address)] => Ok(Self { name: name.clone(), interface: port.interface.clone(), address }),
            [] if wanted.is_empty() && through.is_some() => {
                Err(format!("node {name} lends no port called or labelled {}", through.unwrap_or_default()))
            }
            [] => Err(format!(
                "node {name} lends no port with an IP address, or --through excludes it; leave the node out with \
                    --from and --to"
            )),
            // The port is not guessed: the ports may be in different networks, and the result could be about
            // the wrong path.
            _ => {
                let ports: Vec<&str> = with_address.iter().map(|(port, _)| port.interface.as_str()).collect();
                Err(format!(
                    "node {name} lends several ports with an address ({}); choose one with --through",
                    ports.join(", ")
                ))
            }
        }
    }
}

/// The first IPv4 address of the port, otherwise its first IPv6 address; `None` if it has no address.
fn default_address(port: &OfferedPort) -> Option<IpAddr> {
    let mut addresses = port.addresses.clone();
    // The sort is stable, so it keeps the order of the kernel within each family.
    addresses.sort_by_key(IpAddr::is_ipv6);
    addresses.first().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_fleet::hello::NodeHello;
    use packetrig_fleet::members::NodePresence;
    use packetrig_report::NodeName;

    fn port(interface: &str, labels: &[&str], addresses: &[&str]) -> OfferedPort {
        OfferedPort {
            interface: interface.into(),
            labels: labels.iter().map(|label| (*label).to_owned()).collect(),
            driver: String::new(),
            speed: None,
            up: true,
            back_ends: Vec::new(),
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
        }
    }

    fn row(node: &str, ports: Vec<OfferedPort>) -> MemberRow {
        MemberRow {
            node: NodeName(node.into()),
            presence: NodePresence::Fresh,
            silent: Nanos::ZERO,
            restarts: 0,
            skew: None,
            operator_labels: Vec::new(),
            overruled_labels: Vec::new(),
            lead: None,
            hello: NodeHello { ports, ..NodeHello::default() },
        }
    }

    #[test]
    fn probed_port_must_be_unique_or_named() {
        let two =
            || vec![port("e1", &["lab"], &["2001:db8::1", "198.18.0.1"]), port("e2", &[], &["10.0.0.1"])];
        let of = |ports, through| {
            ProbedNode::from_member(&row("n", ports), through)
                .map(|node| (node.interface, node.address.to_string()))
        };
        let found = |interface: &str, address: &str| Ok((interface.to_owned(), address.to_owned()));
        assert_eq!(
            of(vec![port("e0", &[], &[]), port("e1", &[], &["198.18.0.1"])], None),
            found("e1", "198.18.0.1")
        );
        assert_eq!(of(two(), Some("lab")), found("e1", "198.18.0.1"));
        assert_eq!(of(two(), Some("e2")), found("e2", "10.0.0.1"));
        for (ports, through, why) in [
            (two(), None, "e1, e2"),
            (two(), Some("e3"), "called or labelled e3"),
            (vec![port("e0", &[], &[])], None, "no port with an IP address"),
        ] {
            let refused = of(ports, through).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
    }
}
