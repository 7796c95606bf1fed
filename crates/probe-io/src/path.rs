//! Finds the path from this machine to a target as the kernel would choose it: interface, addresses of
//! both ends, next hop.
//!
//! The module sends no probe. If the kernel does not know the hardware address of the next hop, the module
//! makes the kernel look it up (ARP or neighbour discovery), as any packet would.
//!
//! Invariant: no probe has a forged source. The source of a [`ProbePath`] is an address of the outgoing
//! interface; if the target is an address of this machine, the source is any address of this machine. Only a
//! [`PermittedTarget`] has a path.

use crate::Error;
use packetrig_plan::PortLocation;
use packetrig_probe::PermittedTarget;
use packetrig_probe::frame::{self, ProbeFrameEndpoints};
use packetrig_sys::link::{KernelRoute, Link, NamespaceLinks, NeighbourEntry};
use packetrig_sys::loopback::LoopbackSettingsHolder;
use packetrig_sys::netns::NetNs;
use packetrig_sys::{UnsupportedFeature, clock};
use packetrig_units::Nanos;
use std::net::IpAddr;

/// Time limit for the next hop to answer with its hardware address; the kernel itself asks three times, a second apart.
const NEIGHBOUR_TIMEOUT: Nanos = Nanos::from_millis(3_500);
const NEIGHBOUR_POLL_INTERVAL: Nanos = Nanos::from_millis(2);

/// The path of probes to a target: interface, addresses and next hop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbePath {
    pub location: PortLocation,
    pub index: u32,
    /// Bytes of the longest IP packet.
    pub mtu: u32,
    pub ends: ProbeFrameEndpoints,
    pub is_loopback: bool,
    /// The proof that the target may be probed.
    pub permitted: PermittedTarget,
}

impl ProbePath {
    /// Bytes of the longest frame: Ethernet header and MTU, without FCS.
    pub const fn longest_frame(&self) -> usize {
        frame::ETHERNET + self.mtu as usize
    }
}

/// Finds the path to a target from a namespace (`None`: the caller's). If `through` names an interface, the
/// path must leave through that interface.
pub fn find_path(
    namespace: Option<&str>,
    target: PermittedTarget,
    through: Option<&str>,
) -> Result<ProbePath, Error> {
    let netns = NetNs::open_named_or_current_namespace(namespace)?;
    let mut links = NamespaceLinks::open_in(&netns)?;
    let index = through.map(|name| links.find_link_by_name(name)).transpose()?.map(|link| link.index);
    let ip = target.ip();
    // The kernel's own look-up is used, so that probes take the path of ordinary packets, policy routing
    // included.
    let route = links.find_route(ip, index)?.ok_or_else(|| no_route_error(ip, through))?;
    let link = find_outgoing_link(&mut links, route)?;
    let source = find_route_source(&mut links, route, ip)?.ok_or_else(|| no_route_error(ip, through))?;
    let macs = resolve_hardware_addresses(&mut links, &link, route.gateway.unwrap_or(ip))?;
    Ok(ProbePath {
        location: PortLocation { namespace: namespace.map(str::to_owned), interface: link.name.clone() },
        index: link.index,
        mtu: link.mtu,
        ends: ProbeFrameEndpoints { own_mac: macs.own, next_mac: macs.next, source, target: ip, class: 0 },
        is_loopback: link.loopback,
        permitted: target,
    })
}

/// Returns the addresses that packets through an interface may have as their source: the addresses of the
/// interface, or, for the loopback interface, all addresses of the namespace.
pub fn own_addresses(location: &PortLocation) -> Result<Vec<IpAddr>, Error> {
    let netns = NetNs::open_named_or_current_namespace(location.namespace.as_deref())?;
    let mut links = NamespaceLinks::open_in(&netns)?;
    let link = links.find_link_by_name(&location.interface)?;
    let all = links.list_addresses()?.into_iter();
    Ok(all.filter(|address| link.loopback || address.index == link.index).map(|address| address.ip).collect())
}

fn no_route_error(ip: IpAddr, through: Option<&str>) -> Error {
    Error::NoRoute(ip, through.map(str::to_owned))
}

/// Returns the interface through which packets of a route leave: loopback if the target is an address of this machine.
fn find_outgoing_link(links: &mut NamespaceLinks, route: KernelRoute) -> Result<Link, Error> {
    let link = links.find_link_by_index(route.index)?;
    if !route.is_local || link.loopback {
        return Ok(link);
    }
    // For an address of this machine, the kernel names the interface that has the address. Packets to it go through loopback.
    let loopback = links.list_links()?.into_iter().find(|link| link.loopback);
    Ok(loopback.unwrap_or(link))
}

/// Returns the source address that the kernel chooses; `None` if the kernel names none, or one that the
/// interface does not have. Packets that stay inside this machine may have any of its addresses.
fn find_route_source(
    links: &mut NamespaceLinks,
    route: KernelRoute,
    to: IpAddr,
) -> Result<Option<IpAddr>, Error> {
    if route.is_local {
        // Packets to an address of this machine have the same address as their source unless the
        // route names another one.
        return Ok(Some(route.source.unwrap_or(to)));
    }
    let addresses = links.list_addresses()?;
    // The preferred source of a route may be an address of another interface. A probe with that
    // source would look forged.
    let chosen = route.source.filter(|ip| addresses.iter().any(|a| a.index == route.index && a.ip == *ip));
    Ok(chosen)
}

/// Ethernet addresses of frames to the next hop: of the outgoing interface (`own`) and of the next hop.
struct HardwareAddresses {
    own: [u8; 6],
    next: [u8; 6],
}

fn resolve_hardware_addresses(
    links: &mut NamespaceLinks,
    link: &Link,
    next: IpAddr,
) -> Result<HardwareAddresses, Error> {
    if link.loopback {
        // Both ends of the loopback interface have the zero address.
        return Ok(HardwareAddresses { own: [0; 6], next: [0; 6] });
    }
    let own = link.mac.ok_or_else(|| UnsupportedFeature {
        feature: "sending probes as Ethernet frames",
        needs: "an interface with a hardware address".into(),
        found: format!("{} has none", link.name),
    })?;
    let deadline = clock::monotonic_ns() + NEIGHBOUR_TIMEOUT.as_u64();
    let mut has_asked = false;
    // A failed neighbour entry may be out of date, so `Silent` counts only after a new request.
    loop {
        match links.find_neighbour(link.index, next)? {
            NeighbourEntry::At(mac) => return Ok(HardwareAddresses { own, next: mac }),
            NeighbourEntry::Silent if has_asked => break,
            // The kernel has already asked. Asking again would not speed up the answer.
            NeighbourEntry::Asked => {}
            NeighbourEntry::Unknown | NeighbourEntry::Silent => {
                links.start_neighbour_resolution(link.index, next)?;
                has_asked = true;
            }
        }
        if clock::monotonic_ns() >= deadline {
            break;
        }
        clock::sleep_until_ns(clock::monotonic_ns() + NEIGHBOUR_POLL_INTERVAL.as_u64());
    }
    Err(Error::NobodyThere(next, link.name.clone()))
}

/// Switches on the loopback settings that IPv4 probes through the loopback interface need, until the result is
/// dropped; `None` for all other paths. All processes that need the settings share them; the last one restores them.
pub fn open_loopback(way: &ProbePath) -> Result<Option<LoopbackSettingsHolder>, Error> {
    // The kernel discards frames between its own addresses as forged over IPv4 only.
    if !way.is_loopback || !way.ends.target.is_ipv4() {
        return Ok(None);
    }
    let netns = NetNs::open_named_or_current_namespace(way.location.namespace.as_deref())?;
    Ok(Some(LoopbackSettingsHolder::acquire_loopback_settings(&netns)?))
}

#[cfg(test)]
mod tests;
