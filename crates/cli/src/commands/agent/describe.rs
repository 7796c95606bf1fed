//! Makes the hello message of a node, which tells controllers its ports, clock, free disk space and labels.

use packetrig_fleet::hello::{ClockFacts, ClockSource, FLEET_PROTOCOL_VERSION, NodeHello, OfferedPort};
use packetrig_fleet::permit::{LendingPermit, PermittedPort};
use packetrig_plan::PortLocation;
use packetrig_stats::port::BackEnd;
use packetrig_sys::clock::state::{self, ClockState};
use packetrig_sys::facts::{self, InterfaceFacts};
use packetrig_sys::netns::NetNs;
use packetrig_sys::{clock, disk, xdp};
use packetrig_units::{BitRate, Nanos};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// Interval between two readings of the interfaces. They change rarely, and reading takes several system calls for
/// each interface.
const PORT_READ_INTERVAL: Nanos = Nanos::from_secs(5);

/// Makes hello messages. Caches the ports, the identity of the clock and the support for BPF.
#[derive(Debug)]
pub(super) struct NodeDescriber {
    permit: Arc<LendingPermit>,
    /// The directory whose free space is reported.
    spool: PathBuf,
    incarnation: u64,
    identity: String,
    has_bpf: bool,
    ports: Vec<OfferedPort>,
    ports_due_ns: u64,
}

impl NodeDescriber {
    pub(super) fn new(permit: Arc<LendingPermit>, spool: PathBuf, incarnation: u64) -> Self {
        let identity = state::read_clock_identity().unwrap_or_default();
        let has_bpf = xdp::bpf_obstacle().is_none();
        Self { permit, spool, incarnation, identity, has_bpf, ports: Vec::new(), ports_due_ns: 0 }
    }

    pub(super) fn make_hello(&mut self) -> NodeHello {
        let now = clock::monotonic_ns();
        if now >= self.ports_due_ns {
            self.ports_due_ns = now + PORT_READ_INTERVAL.as_u64();
            self.ports = self.offered_ports();
        }
        NodeHello {
            incarnation: self.incarnation,
            protocol: FLEET_PROTOCOL_VERSION,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            labels: self.permit.labels.clone(),
            ports: self.ports.clone(),
            clock: self.clock_facts(),
            disk_free: disk::free_bytes(&self.spool).unwrap_or(0),
            ..NodeHello::default()
        }
    }

    fn clock_facts(&self) -> ClockFacts {
        let identity = self.identity.clone();
        match ClockState::read_current() {
            Ok(state) => ClockFacts {
                // adjtimex(2) reports that the clock is synchronised, but not with which source. Without
                // other information packetrig assumes NTP.
                source: if state.synchronised { ClockSource::Ntp } else { ClockSource::None },
                synchronised: state.synchronised,
                max_error: state.max_error_ns.map(Nanos::new),
                identity,
            },
            Err(_) => ClockFacts { identity, ..ClockFacts::default() },
        }
    }

    /// Ports that the node permit lends, in this namespace and in the namespaces that the permit names.
    fn offered_ports(&self) -> Vec<OfferedPort> {
        let here = self.ports_of_namespace(None);
        let named =
            self.permit.ports.iter().flatten().filter_map(|port| port.interface.parse::<PortLocation>().ok());
        let mut others: Vec<String> = named.filter_map(|location| location.namespace).collect();
        others.sort();
        // The owner may lend several ports of one namespace; each namespace is read once.
        others.dedup();
        let others = others.into_iter().flat_map(|namespace| self.ports_of_namespace(Some(namespace)));
        here.into_iter().chain(others).collect()
    }

    /// Lists the ports of a namespace. The list is empty if the namespace cannot be entered: the node must still send
    /// its hello with the ports of the other namespaces.
    fn ports_of_namespace(&self, namespace: Option<String>) -> Vec<OfferedPort> {
        let found = NetNs::open_named_or_current_namespace(namespace.as_deref())
            .and_then(|netns| facts::read_interface_facts(&netns));
        let interfaces = found.unwrap_or_default();
        interfaces.iter().filter_map(|interface| self.offered_port(namespace.as_ref(), interface)).collect()
    }

    fn offered_port(&self, namespace: Option<&String>, interface: &InterfaceFacts) -> Option<OfferedPort> {
        let name = &interface.link.name;
        // The loopback interface reaches no other machine, so no run can use it.
        if name == "lo" {
            return None;
        }
        let location = PortLocation { namespace: namespace.cloned(), interface: name.clone() };
        // Without a list from the owner, ports with the default route and ports of other namespaces are not lent.
        let lent = self.permit.find_permitted_port(&location.to_string(), interface.default_route)?;
        Some(self.describe_port(lent, interface))
    }

    fn describe_port(&self, lent: PermittedPort, interface: &InterfaceFacts) -> OfferedPort {
        // These are the back ends that a plan may request on this port; the rig chooses one for each run. `Xdp` sends
        // live frames, which need a driver with native XDP. AF_XDP sockets also work without it, in copy mode.
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
            // A port without carrier counts as down, because nothing could be sent through it.
            up: interface.link.up && interface.link.carrier,
            back_ends: usable.map(|(back_end, _)| back_end).collect(),
            addresses: interface
                .addresses
                .iter()
                .copied()
                .filter(|address| !is_link_local(*address))
                .collect(),
        }
    }
}

/// Returns true for a link-local address, which has a meaning only together with its interface.
fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}
