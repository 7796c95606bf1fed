//! Checks whether the owner of a node permits the probes that the node is asked to send and to answer.
//!
//! Everything is checked before a socket is opened, and all refusals are reported at once.

use super::ProbePolicy;
use crate::plane::LentMachine;
use packetrig_engine::Error;
use packetrig_engine::packet::guard;
use packetrig_engine::rig::{PermitPort, PermitQuestion};
use packetrig_fleet::message::RunPreparation;
use packetrig_plan::probes::{PlannedProbeLine, ProbePlan};
use packetrig_plan::{Plan, PlanProblem, PlanProblems, PortLocation};
use packetrig_probe::{PermittedTarget, ReleaseMechanism};
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::netns::NetNs;
use std::net::{IpAddr, SocketAddr};

/// A port of this node that probes or is probed.
#[derive(Clone, Debug)]
pub(super) struct OwnProbePort {
    /// Index in the plan.
    pub(super) port: usize,
    pub(super) location: PortLocation,
    /// Source address of its probes, at which other ports also probe it.
    pub(super) address: Option<IpAddr>,
    pub(super) lines: Vec<PermittedProbeLine>,
    /// Ports to which its reflector answers, with their addresses.
    pub(super) askers: Vec<PermittedAsker>,
}

/// A line with a permitted target.
#[derive(Clone, Copy, Debug)]
pub(super) struct PermittedProbeLine {
    pub(super) number: usize,
    pub(super) line: PlannedProbeLine,
    pub(super) target: SocketAddr,
    pub(super) permitted: PermittedTarget,
}

/// A port that may get answers to its probes.
#[derive(Clone, Copy, Debug)]
pub(super) struct PermittedAsker {
    pub(super) port: usize,
    pub(super) address: IpAddr,
}

/// Selects the plan's ports on this machine, with their permitted lines. Fails if the owner forbids any
/// part of the request.
pub(super) fn select_permitted_probe_ports(
    preparation: &RunPreparation,
    plan: &Plan,
    probes: &ProbePlan,
    lent: &LentMachine,
) -> Result<Vec<OwnProbePort>, Error> {
    if preparation.terms.steered {
        return Err(plan_error(
            "x_probes",
            "a run that is controlled through `packetrig serve` cannot have probes",
        ));
    }
    let places = lent.local_port_locations(preparation)?;
    if let Some(name) = &probes.mechanism
        && name.parse::<ReleaseMechanism>().is_err()
    {
        return Err(plan_error("x_probes.mechanism", &format!("`{name}` is not a release mechanism")));
    }
    let here: Vec<(usize, PortLocation)> =
        places.into_iter().enumerate().filter_map(|(port, place)| Some((port, place?))).collect();
    let mut refusals = list_owner_permit_refusals(preparation, plan, &here, lent)?;
    let mut ports = Vec::with_capacity(here.len());
    for (port, location) in here {
        let address = probes.addresses.get(&port).copied();
        // An error here is not the owner's refusal but a mistake in the plan, so it is reported alone.
        check_interface(&location, address, lent)?;
        let (lines, askers) = select_permitted_peers(probes, port, &lent.probes, &mut refusals);
        ports.push(OwnProbePort { port, location, address, lines, askers });
    }
    if refusals.is_empty() { Ok(ports) } else { Err(Error::NotPermitted(refusals)) }
}

fn plan_error(path: &str, message: &str) -> Error {
    Error::Plan(PlanProblems(vec![PlanProblem::error(path, message.to_owned())]))
}

/// Returns the refusals by the owner's permit file: ports that are not lent, forbidden addresses, too high rates.
fn list_owner_permit_refusals(
    preparation: &RunPreparation,
    plan: &Plan,
    here: &[(usize, PortLocation)],
    lent: &LentMachine,
) -> Result<Vec<String>, Error> {
    // Link speeds are unknown here, because no interface is open yet.
    let bound = plan.clone().bind_to_links(&vec![None; plan.ports.len()])?;
    let ports: Vec<PermitPort> = here
        .iter()
        .map(|(port, interface)| PermitPort {
            port: *port,
            interface: interface.clone(),
            link_speed: None,
            back_end: None,
        })
        .collect();
    let question = PermitQuestion { plan: &bound, ports: &ports, replays: &[], terms: &preparation.terms };
    Ok(lent.permit.list_objections(&question))
}

/// Checks that the interface is for tests, or confirmed by the owner, and that it has its address from the plan.
fn check_interface(
    location: &PortLocation,
    address: Option<IpAddr>,
    lent: &LentMachine,
) -> Result<(), Error> {
    let netns = NetNs::open_named_or_current_namespace(location.namespace.as_deref())?;
    let mut links = NamespaceLinks::open_in(&netns)?;
    let index = links.find_link_by_name(&location.interface)?.index;
    guard::permit_port(&netns, index, &location.to_string(), lent.confirmed.contains(location))?;
    let Some(address) = address else { return Ok(()) };
    let has_it = links.list_addresses()?.iter().any(|own| own.index == index && own.ip == address);
    if has_it {
        Ok(())
    } else {
        Err(plan_error("x_probes.addresses", &format!("{location} does not have the address {address}")))
    }
}

/// Selects those lines and askers of a port whose addresses the permit for probes allows. Adds a refusal for each
/// other line or asker.
pub(super) fn select_permitted_peers(
    probes: &ProbePlan,
    port: usize,
    policy: &ProbePolicy,
    refusals: &mut Vec<String>,
) -> (Vec<PermittedProbeLine>, Vec<PermittedAsker>) {
    let today = (policy.today.0)();
    let mut ask = |address: IpAddr, what: &str| {
        let answer = policy.permit.permit_target(address, &today);
        // The error's advice to use `--allow` is for the command line only, so the refusal gets another text.
        answer.map_err(|_| refusals.push(refusal_text(what, address, policy, &today))).ok()
    };
    let mut lines = Vec::new();
    for (number, line) in probes.list_lines_sent_by(port) {
        let Some(target) = probes.target_address(line) else { continue };
        let permitted = ask(target.ip(), "probing");
        lines.extend(permitted.map(|permitted| PermittedProbeLine {
            number,
            line: *line,
            target,
            permitted,
        }));
    }
    let mut askers = Vec::new();
    for asker in probes.list_ports_probing(port) {
        let Some(address) = probes.addresses.get(&asker).copied() else { continue };
        askers.extend(ask(address, "answering probes from").map(|_| PermittedAsker { port: asker, address }));
    }
    (lines, askers)
}

fn refusal_text(what: &str, address: IpAddr, policy: &ProbePolicy, today: &str) -> String {
    use packetrig_probe::PermitRefusal;
    match policy.permit.permit_target(address, today) {
        Err(PermitRefusal::Ended(_, until)) => {
            format!("{what} {address} is no longer allowed: the permission expired on {until}")
        }
        Err(PermitRefusal::Forbidden(_)) => format!("{what} {address} is forbidden by the permit"),
        Err(PermitRefusal::NotOne(_)) => format!("{address} is not the address of a single host"),
        // `Ok` is impossible, because the same target was refused a moment ago.
        Err(PermitRefusal::NotAllowed(_)) | Ok(_) => {
            format!("{what} {address} is not allowed by the permit for probes")
        }
    }
}
