//! What a node says of itself.

use packetrig_fleet::hello::{ClockFacts, ClockSource, NodeHello, OfferedPort, PROTOCOL};
use packetrig_fleet::permit::{LendingPermit, PermittedPort};
use packetrig_plan::PortLocation;
use packetrig_stats::port::BackEnd;
use packetrig_sys::clock::state::{self, ClockState};
use packetrig_sys::facts::{self, InterfaceFacts};
use packetrig_sys::netns::NetNs;
use packetrig_sys::{clock, disk, xdp};
use packetrig_units::{BitRate, Nanos};
use std::path::PathBuf;
use std::sync::Arc;

/// Interfaces come and go slowly, and asking for them costs.
const LOOK: Nanos = Nanos::from_secs(5);

/// Keeps what changes rarely.
#[derive(Debug)]
pub(super) struct NodeDescriber {
    permit: Arc<LendingPermit>,
    /// Where results are kept.
    spool: PathBuf,
    incarnation: u64,
    identity: String,
    has_bpf: bool,
    ports: Vec<OfferedPort>,
    look_at: u64,
}

impl NodeDescriber {
    pub(super) fn new(permit: Arc<LendingPermit>, spool: PathBuf, incarnation: u64) -> Self {
        let identity = state::identity().unwrap_or_default();
        let has_bpf = xdp::obstacle().is_none();
        Self { permit, spool, incarnation, identity, has_bpf, ports: Vec::new(), look_at: 0 }
    }

    pub(super) fn hello(&mut self) -> NodeHello {
        let now = clock::monotonic_ns();
        if now >= self.look_at {
            self.look_at = now + LOOK.as_u64();
            self.ports = self.offered();
        }
        NodeHello {
            incarnation: self.incarnation,
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            labels: self.permit.labels.clone(),
            ports: self.ports.clone(),
            clock: self.clock(),
            disk_free: disk::free(&self.spool).unwrap_or(0),
            ..NodeHello::default()
        }
    }

    fn clock(&self) -> ClockFacts {
        let identity = self.identity.clone();
        match ClockState::read() {
            Ok(state) => ClockFacts {
                // The kernel does not say who keeps it true; NTP is what does where nobody says otherwise.
                source: if state.synchronised { ClockSource::Ntp } else { ClockSource::None },
                synchronised: state.synchronised,
                max_error: state.max_error_ns.map(Nanos::new),
                identity,
            },
            Err(_) => ClockFacts { identity, ..ClockFacts::default() },
        }
    }

    /// Ports of this namespace, and those of others that the owner names.
    fn offered(&self) -> Vec<OfferedPort> {
        let here = self.of_namespace(None);
        let named =
            self.permit.ports.iter().flatten().filter_map(|port| port.interface.parse::<PortLocation>().ok());
        let mut others: Vec<String> = named.filter_map(|location| location.namespace).collect();
        others.sort();
        others.dedup();
        let others = others.into_iter().flat_map(|namespace| self.of_namespace(Some(namespace)));
        here.into_iter().chain(others).collect()
    }

    /// What cannot be looked at is not offered.
    fn of_namespace(&self, namespace: Option<String>) -> Vec<OfferedPort> {
        let found = NetNs::open_or_current(namespace.as_deref()).and_then(|netns| facts::interfaces(&netns));
        let offered = |interface: InterfaceFacts| {
            let location =
                PortLocation { namespace: namespace.clone(), interface: interface.link.name.clone() };
            let lent = self.permit.port(&location.to_string(), interface.default_route)?;
            (interface.link.name != "lo").then(|| self.offer(lent, &interface))
        };
        found.unwrap_or_default().into_iter().filter_map(offered).collect()
    }

    fn offer(&self, lent: PermittedPort, interface: &InterfaceFacts) -> OfferedPort {
        let native = interface.xdp.as_ref().is_some_and(|xdp| xdp.native);
        let possible =
            [(BackEnd::Packet, true), (BackEnd::Xdp, self.has_bpf && native), (BackEnd::AfXdp, self.has_bpf)];
        let usable =
            possible.into_iter().filter(|(back_end, can)| *can && self.permit.allows_back_end(*back_end));
        OfferedPort {
            interface: lent.interface,
            labels: lent.labels,
            driver: interface.driver.as_ref().map(|driver| driver.name.clone()).unwrap_or_default(),
            speed: interface.speed.map(|speed| BitRate::new(u64::from(speed.mbits) * 1_000_000)),
            up: interface.link.up && interface.link.carrier,
            back_ends: usable.map(|(back_end, _)| back_end).collect(),
        }
    }
}
