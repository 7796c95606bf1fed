//! Control of emulated interfaces during a run: neighbour states, pings, and streams that wait for a MAC address.

use super::TestRig;
use super::prepare::build_stream_spec;
use crate::Error;
use crate::device::PingState;
use crate::port::WorkerClock;
use packetrig_plan::device::{DeviceNeighbour, Mac};
use packetrig_plan::{PingRequest, PlanProblem, PlanProblems};
use packetrig_stats::result::NeighbourState;
use packetrig_units::Nanos;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Time limit for finding the neighbours of streams; it covers several requests.
const RESOLVE_TIMEOUT: Nanos = Nanos::from_millis(3_000);
/// Time within which the first lease should arrive after a node is armed.
const FIRST_LEASE_TIMEOUT: Nanos = Nanos::from_millis(1_000);
const NEIGHBOUR_CHECK_INTERVAL: Nanos = Nanos::from_millis(10);
/// Time limit for the answer to a ping.
const PING_TIMEOUT: Nanos = Nanos::from_millis(3_000);

/// Identifies a ping: the port that sends it, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PingId {
    port: usize,
    number: u64,
}

/// Source address of a ping.
struct PingSource {
    port: usize,
    /// Index of the interface in the plan.
    interface: usize,
    /// Index of the address in the interface's list of addresses.
    address: usize,
}

/// An echo request of the user, with its outcome.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestedPing {
    number: u64,
    /// Identifies the ping at its port while the ping is in progress; `None` afterwards.
    id: Option<PingId>,
    succeeded: Option<bool>,
}

/// Maximum number of pings that a sample of counts reports.
const MAX_REPORTED_PINGS: usize = 256;

impl TestRig {
    /// Starts the pings whose source is on this node. An unknown source is an error, but the pings before it in the
    /// list have been started by then.
    pub(super) fn send_pings(&mut self, pings: &[PingRequest]) -> Result<(), Error> {
        // All targets are checked before the first request is sent.
        for ping in pings.iter().filter(|ping| !self.is_source_on_other_node(&ping.source)) {
            self.places.check_address_permitted(ping.to)?;
        }
        for ping in pings {
            if self.is_source_on_other_node(&ping.source) {
                continue;
            }
            let Some(id) = self.start_ping(&ping.source, ping.to)? else {
                let message = format!(
                    "cannot ping {}: no device of the plan has an address or interface named `{}`",
                    ping.to, ping.source
                );
                return Err(Error::Plan(PlanProblems(vec![PlanProblem::error("devices", message)])));
            };
            // The list is bounded: a user may ping all day, and every sample carries the outcomes.
            if self.pings.len() == MAX_REPORTED_PINGS {
                self.pings.pop_front();
            }
            self.pings.push_back(RequestedPing { number: ping.number, id: Some(id), succeeded: None });
        }
        Ok(())
    }

    /// Returns whether an address or interface of this name belongs to another node.
    fn is_source_on_other_node(&self, source: &str) -> bool {
        let mut elsewhere = self.plan.plan.interfaces.iter().filter(|of| !self.places.is_local_port(of.port));
        elsewhere.any(|of| of.name == source || of.addresses.iter().any(|address| address.name == source))
    }

    /// Returns the number of each ping and whether it succeeded; `None` while it is in progress.
    pub(super) fn poll_pings(&mut self) -> Result<Vec<(u64, Option<bool>)>, Error> {
        for place in 0..self.pings.len() {
            let Some(id) = self.pings[place].id else { continue };
            let succeeded = match self.take_ping_state(id)? {
                PingState::Waiting => continue,
                PingState::Succeeded => true,
                PingState::Failed => false,
            };
            self.pings[place].id = None;
            self.pings[place].succeeded = Some(succeeded);
        }
        Ok(self.pings.iter().map(|ping| (ping.number, ping.succeeded)).collect())
    }

    /// Returns one entry for each emulated interface and gateway of this node, with the gateway's MAC address if it is
    /// known. The states are at most about 100 ms old.
    pub fn neighbour_states(&self) -> Vec<NeighbourState> {
        let found = self.list_found_neighbours();
        let mut states = Vec::new();
        for (index, interface) in self.plan.plan.interfaces.iter().enumerate() {
            if !self.places.is_local_port(interface.port) {
                continue;
            }
            // Several addresses may share a gateway; it is listed once.
            let mut told = BTreeSet::new();
            for (address, of) in interface.addresses.iter().enumerate() {
                let Some(ip) = of.gateway.filter(|gateway| told.insert(*gateway)) else { continue };
                let asked = found.get(&DeviceNeighbour { interface: index, address, ip }).copied().flatten();
                // A MAC address that the plan gives needs no resolution.
                let mac = of.gateway_mac.or(asked);
                states.push(NeighbourState { interface: interface.name.clone(), address: ip, mac });
            }
        }
        states
    }

    fn list_found_neighbours(&self) -> BTreeMap<DeviceNeighbour, Option<Mac>> {
        let latest = self.running_ports.iter().filter_map(|running| running.host.as_ref()?.latest_counts());
        latest.flat_map(|latest| latest.neighbours).collect()
    }

    /// Switches the protocols of all emulated interfaces on or off. With `on`, the interfaces answer and send requests
    /// to their neighbours. Otherwise they do neither, and forget the neighbours that they found.
    pub fn set_protocols_enabled(&mut self, on: bool) -> Result<(), Error> {
        for host in self.running_ports.iter_mut().filter_map(|running| running.host.as_mut()) {
            host.run_on_worker(move |host| host.set_interfaces_enabled(on))?;
        }
        Ok(())
    }

    /// Permits the emulated interfaces to send neighbour requests before the first lease, for 4 s: arming the ports and
    /// waiting for the lease may take that long.
    pub(super) fn permit_neighbour_requests(&mut self) -> Result<(), Error> {
        for host in self.running_ports.iter_mut().filter_map(|running| running.host.as_mut()) {
            host.run_on_worker(|host| host.permit_sending_for(RESOLVE_TIMEOUT + FIRST_LEASE_TIMEOUT))?;
        }
        Ok(())
    }

    /// Starts a ping to `to` and does not wait for the answer; [`Self::take_ping_state`] returns the outcome. `source`
    /// names an address or an interface of the plan. Returns `None` if this node does not have it.
    pub fn start_ping(&mut self, source: &str, to: IpAddr) -> Result<Option<PingId>, Error> {
        self.places.check_address_permitted(to)?;
        let Some(PingSource { port, interface, address }) = self.find_ping_source(source, to) else {
            return Ok(None);
        };
        let Some(host) = self.running_port_mut(port).and_then(|running| running.host.as_mut()) else {
            return Ok(None);
        };
        let number = host.run_on_worker(move |host| host.start_ping(interface, address, to, PING_TIMEOUT))?;
        Ok(Some(PingId { port, number }))
    }

    /// Finds the source address of a ping: the address named `source`, or the first address of the interface named
    /// `source` that has the IP version of `to`.
    fn find_ping_source(&self, source: &str, to: IpAddr) -> Option<PingSource> {
        for (index, interface) in self.plan.plan.interfaces.iter().enumerate() {
            let found = interface.addresses.iter().position(|of| {
                of.name == source || interface.name == source && of.ip.is_ipv4() == to.is_ipv4()
            });
            if let Some(address) = found {
                return Some(PingSource { port: interface.port, interface: index, address });
            }
        }
        None
    }

    /// Returns the state of a ping. A finished ping is forgotten after this call and then counts as failed.
    pub fn take_ping_state(&mut self, ping: PingId) -> Result<PingState, Error> {
        let host = self.running_port_mut(ping.port).and_then(|running| running.host.as_mut());
        let state =
            host.map_or(Ok(None), |host| host.run_on_worker(move |host| host.take_ping_state(ping.number)))?;
        Ok(state.unwrap_or(PingState::Failed))
    }

    /// Finds the MAC addresses of these streams' next hops and compiles the streams with them. Fails if an address is
    /// not found within 3 s.
    pub(super) fn resolve_neighbours(&mut self, streams: &BTreeSet<usize>) -> Result<(), Error> {
        let all = &self.plan.plan.streams;
        let awaited: Vec<(usize, DeviceNeighbour)> =
            streams.iter().filter_map(|stream| Some((*stream, all.get(*stream)?.awaits?))).collect();
        if awaited.is_empty() {
            return Ok(());
        }
        let give_up = self.clock.now() + RESOLVE_TIMEOUT;
        let mut found = self.poll_neighbours(&awaited)?;
        while awaited.iter().any(|(_, neighbour)| !found.contains_key(neighbour)) {
            if self.clock.now() >= give_up {
                return Err(self.unresolved_neighbour_error(&awaited, &found));
            }
            // The emulated interfaces send requests on their own threads; this loop only reads their results.
            self.clock.wait_until(self.clock.now() + NEIGHBOUR_CHECK_INTERVAL);
            found = self.poll_neighbours(&awaited)?;
        }
        for (stream, neighbour) in awaited {
            let mac = found.get(&neighbour).copied();
            // The stream is compiled again only if the neighbour's MAC address is new or has changed.
            if mac != self.resolved.get(&stream).copied() {
                self.specs[stream] = build_stream_spec(&self.plan, &self.places, stream, mac)?;
                self.resolved.extend(mac.map(|mac| (stream, mac)));
            }
        }
        Ok(())
    }

    /// Makes the emulated interfaces send requests for these neighbours. Returns the MAC addresses that
    /// were found so far.
    fn poll_neighbours(
        &mut self,
        awaited: &[(usize, DeviceNeighbour)],
    ) -> Result<BTreeMap<DeviceNeighbour, Mac>, Error> {
        let mut found = BTreeMap::new();
        for running in &mut self.running_ports {
            let port = running.port_index();
            let Some(host) = running.host.as_mut() else { continue };
            let interfaces = &self.plan.plan.interfaces;
            let neighbours = awaited.iter().map(|(_, neighbour)| *neighbour);
            // A set, because many streams may await the same neighbour.
            let wanted: BTreeSet<DeviceNeighbour> =
                neighbours.filter(|neighbour| interfaces[neighbour.interface].port == port).collect();
            let wanted: Vec<DeviceNeighbour> = wanted.into_iter().collect();
            let known = host.run_on_worker(move |host| {
                host.request_neighbours(&wanted);
                host.neighbours()
            })?;
            found.extend(known.into_iter().filter_map(|(neighbour, mac)| Some((neighbour, mac?))));
        }
        Ok(found)
    }

    fn unresolved_neighbour_error(
        &self,
        awaited: &[(usize, DeviceNeighbour)],
        found: &BTreeMap<DeviceNeighbour, Mac>,
    ) -> Error {
        let missing = awaited.iter().find(|(_, neighbour)| !found.contains_key(neighbour));
        let Some((stream, neighbour)) = missing else {
            return Error::Bug("no neighbour is missing, but one was reported as missing");
        };
        Error::Unresolved {
            flow: self.plan.plan.streams[*stream].flow_name.clone(),
            interface: self.plan.plan.interfaces[neighbour.interface].name.clone(),
            address: neighbour.ip,
        }
    }
}
