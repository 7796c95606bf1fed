//! Maps the ports of the plan to interfaces of this node.
//!
//! A port keeps its index in the plan on every node, in tags, counters and results; a rig opens and counts
//! only its own ports.

use super::RigOptions;
use super::site::{OwnerPermit, PermitPort, PermitQuestion, PlanPortLocations};
use crate::Error;
use packetrig_plan::device::Mac;
use packetrig_plan::recording::FrameOrigin;
use packetrig_plan::{BoundPlan, Plan, PlanProblem, PlanProblems, PortLocation};
use packetrig_stats::port::{BackEnd, PortInfo};
use packetrig_stats::terms::SharedRunOptions;
use packetrig_sys::ethtool::EthtoolCalls;
use packetrig_sys::netns::NetNs;
use packetrig_units::BitRate;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Clone, Debug)]
pub(super) struct PortAssignment {
    site: PlanPortLocations,
    terms: SharedRunOptions,
}

impl PortAssignment {
    pub(super) fn from_options(plan: &Plan, options: &RigOptions) -> Result<Self, Error> {
        let places = Self { site: options.site.clone(), terms: options.terms.clone() };
        let PlanPortLocations::PartOfFleet { places: given, .. } = &places.site else { return Ok(places) };
        // The list of interfaces comes from another machine, so its length may not match the plan.
        if given.len() != plan.ports.len() {
            let message = format!(
                "the plan has {} ports, but {} interfaces are assigned to them",
                plan.ports.len(),
                given.len()
            );
            return Err(Error::NotPermitted(vec![message]));
        }
        let mut problems = Vec::new();
        for (port, place) in given.iter().enumerate() {
            // `None` is a port on another node.
            let Some(location) = place else { continue };
            if let Some(other) = given[..port].iter().position(|other| other.as_ref() == Some(location)) {
                let message =
                    format!("interface `{location}` is used by port `{}` already", plan.ports[other].name);
                problems.push(PlanProblem::error(format!("ports[{port}].location"), message));
            }
        }
        if problems.is_empty() { Ok(places) } else { Err(Error::Plan(PlanProblems(problems))) }
    }

    /// Returns whether another program sends the frames of local ports (back end `process`).
    pub(super) fn is_sent_by_engine(&self) -> bool {
        self.terms.back_end == Some(BackEnd::Process)
    }

    fn assigned_locations(&self) -> Option<&[Option<PortLocation>]> {
        match &self.site {
            PlanPortLocations::EveryPortHere => None,
            PlanPortLocations::PartOfFleet { places, .. } => Some(places),
        }
    }

    /// Returns the owner's permit; `None` if the plan is for this machine alone.
    pub(super) fn permit(&self) -> Option<Arc<dyn OwnerPermit>> {
        match &self.site {
            PlanPortLocations::EveryPortHere => None,
            PlanPortLocations::PartOfFleet { permit, .. } => Some(Arc::clone(permit)),
        }
    }

    /// Checks the owner's permit before any port is opened. Values that depend on an open port are checked later.
    pub(super) fn check_permit_before_open(&self, plan: &Plan) -> Result<(), Error> {
        if self.permit().is_none() {
            return Ok(());
        }
        let ports = self.list_local_permit_ports(plan, &[]);
        let mut speeds = vec![None; plan.ports.len()];
        for port in &ports {
            speeds[port.port] = port.link_speed;
        }
        // This check comes before opening, because opening a port changes its interface: if the owner
        // refuses, the interface must be unchanged.
        let bound = plan.clone().bind_to_links_of_node(&speeds, &|port| self.is_local_port(port));
        let bound = match bound {
            Ok(bound) => bound,
            // Some links report their speed only when they are up. Without the speed, all but the
            // streams is checked now.
            // streams is checked now.
            Err(_) => {
                Plan { streams: Vec::new(), ..plan.clone() }.bind_to_links_of_node(&speeds, &|_| true)?
            }
        };
        self.check_permit(&bound, &ports)
    }

    /// Checks the owner's permit again with the values of open ports, such as the link speed.
    pub(super) fn check_permit_of_open_ports(
        &self,
        plan: &BoundPlan,
        infos: &[(usize, PortInfo)],
    ) -> Result<(), Error> {
        if self.permit().is_none() {
            return Ok(());
        }
        self.check_permit(plan, &self.list_local_permit_ports(&plan.plan, infos))
    }

    fn check_permit(&self, plan: &BoundPlan, ports: &[PermitPort]) -> Result<(), Error> {
        let Some(permit) = self.permit() else { return Ok(()) };
        let replays = self.list_local_replay_files(&plan.plan);
        let question = PermitQuestion { plan, ports, replays: &replays, terms: &self.terms };
        let objections = permit.list_objections(&question);
        if objections.is_empty() { Ok(()) } else { Err(Error::NotPermitted(objections)) }
    }

    /// Checks that the permit allows sending to this address.
    pub(super) fn check_address_permitted(&self, address: IpAddr) -> Result<(), Error> {
        if self.permit().is_none_or(|permit| permit.allows_address(address)) {
            return Ok(());
        }
        Err(Error::NotPermitted(vec![format!("sending to {address} is not allowed")]))
    }

    fn list_local_permit_ports(&self, plan: &Plan, infos: &[(usize, PortInfo)]) -> Vec<PermitPort> {
        let here = plan.ports.iter().enumerate().filter(|(index, _)| self.is_local_port(*index));
        let ports = here.map(|(index, port)| PermitPort {
            port: index,
            interface: port.location.clone(),
            link_speed: read_local_link_speed(&port.location),
            back_end: infos.iter().find(|(of, _)| *of == index).map(|(_, info)| info.back_end),
        });
        ports.collect()
    }

    /// Returns the files that local ports read frames from; `None` for a file whose absolute path cannot be found.
    fn list_local_replay_files(&self, plan: &Plan) -> Vec<Option<PathBuf>> {
        let here = plan.streams.iter().filter(|stream| self.is_local_port(stream.tx));
        let files = here.filter_map(|stream| match &stream.frames {
            FrameOrigin::Recorded(recording) => Some(recording.file.canonicalize().ok()),
            FrameOrigin::Made(_) => None,
        });
        files.collect()
    }

    pub(super) fn is_local_port(&self, port: usize) -> bool {
        self.assigned_locations().is_none_or(|places| places.get(port).is_some_and(Option::is_some))
    }

    /// Writes the locations of the local ports into the plan.
    pub(super) fn write_local_locations_into_plan(&self, plan: &mut Plan) {
        for (port, place) in plan.ports.iter_mut().zip(self.assigned_locations().unwrap_or_default()) {
            if let Some(location) = place {
                port.location.clone_from(location);
            }
        }
    }
}

/// Reads the speed that a link of this machine reports; `None` if it reports none or cannot be read.
fn read_local_link_speed(location: &PortLocation) -> Option<BitRate> {
    let netns = NetNs::open_named_or_current_namespace(location.namespace.as_deref()).ok()?;
    let speed = EthtoolCalls::open_in(&netns).ok()?.read_link_speed(&location.interface).ok().flatten()?;
    Some(BitRate::new(u64::from(speed.mbits) * 1_000_000))
}

/// Returns the MAC address of the emulated interface with the address `ip`; `None` unless exactly one has it.
pub(super) fn find_mac_by_address(plan: &Plan, ip: IpAddr) -> Option<Mac> {
    let mut owners = plan.interfaces.iter().filter(|of| of.addresses.iter().any(|address| address.ip == ip));
    let owner = owners.next()?;
    owners.next().is_none().then_some(owner.mac)
}

#[cfg(test)]
mod tests;
