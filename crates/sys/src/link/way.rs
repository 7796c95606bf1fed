//! Route of packets to an address: the interface, source address and next hop that the kernel chooses, and the hardware
//! address of the next hop.

use super::{Mac, NamespaceLinks, unreadable_answer};
use crate::Error;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use std::net::IpAddr;

const MISSING_RIGHTS_TEXT: &str = "needs CAP_NET_ADMIN: run as root, or send something to the address first (`ping`), so that the kernel knows the neighbour";

/// The route that the kernel chooses for packets to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelRoute {
    /// Number of the interface through which the packets leave.
    pub index: u32,
    /// Source address of the packets, if the kernel reports one.
    pub source: Option<IpAddr>,
    /// Router to which the packets go; `None` if the address is on the link itself.
    pub gateway: Option<IpAddr>,
    /// The address is this machine's own.
    pub is_local: bool,
}

/// The kernel's entry about a neighbour: its hardware address, or why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighbourEntry {
    At(Mac),
    /// The kernel has sent a request (ARP or NDP) and waits for an answer.
    Asked,
    Silent,
    Unknown,
}

impl NamespaceLinks {
    /// Finds the route to an address; `None` if there is none. With `through`, only routes through the interface
    /// with this number count.
    pub fn find_route(&mut self, to: IpAddr, through: Option<u32>) -> Result<Option<KernelRoute>, Error> {
        let mut message = RouteMessage::default();
        message.header.address_family = address_family_of(to);
        message.header.destination_prefix_length = if to.is_ipv4() { 32 } else { 128 };
        message.attributes.push(RouteAttribute::Destination(to.into()));
        message.attributes.extend(through.map(RouteAttribute::Oif));
        let mut found = None;
        let asked = self.netlink.request_answers(RouteNetlinkMessage::GetRoute(message), 0, &mut |answer| {
            if let RouteNetlinkMessage::NewRoute(route) = answer {
                found = route_from_message(&route);
            }
        });
        match asked {
            Ok(unread) if unread > 0 => Err(unreadable_answer("RTM_GETROUTE", &to.to_string())),
            Ok(_) => Ok(found),
            Err(error) if matches!(error.raw_os_error(), Some(NO_ROUTE)) => Ok(None),
            Err(error) => Err(Error::from_call("RTM_GETROUTE", to.to_string(), error)),
        }
    }

    /// Finds the kernel's entry for the neighbour with this address at the interface with this number.
    pub fn find_neighbour(&mut self, index: u32, ip: IpAddr) -> Result<NeighbourEntry, Error> {
        let mut found = NeighbourEntry::Unknown;
        let request = RouteNetlinkMessage::GetNeighbour(neighbour_message(index, ip));
        let asked = self.netlink.request_answers(request, 0, &mut |answer| {
            if let RouteNetlinkMessage::NewNeighbour(message) = answer {
                found = neighbour_from_message(&message);
            }
        });
        match asked {
            Ok(unread) if unread > 0 => Err(unreadable_answer("RTM_GETNEIGH", &ip.to_string())),
            Ok(_) => Ok(found),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(NeighbourEntry::Unknown),
            Err(error) => Err(Error::from_call("RTM_GETNEIGH", ip.to_string(), error)),
        }
    }

    /// Makes the kernel resolve a neighbour's hardware address, as it does before it sends. Does not wait.
    pub fn start_neighbour_resolution(&mut self, index: u32, ip: IpAddr) -> Result<(), Error> {
        let mut message = neighbour_message(index, ip);
        message.header.flags = NeighbourFlags::Use;
        let request = RouteNetlinkMessage::NewNeighbour(message);
        let asked = self.netlink.request_answers(request, NLM_F_CREATE | NLM_F_REPLACE, &mut |_| {});
        asked.map(drop).map_err(|error| {
            Error::from_call("RTM_NEWNEIGH", ip.to_string(), error).with_rights(MISSING_RIGHTS_TEXT)
        })
    }
}

/// The kernel's error for "no route". Some unusable routes come as normal
/// answers, which [`route_from_message`] rejects.
const NO_ROUTE: i32 = libc::ENETUNREACH;

fn address_family_of(ip: IpAddr) -> AddressFamily {
    if ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn neighbour_message(index: u32, ip: IpAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = address_family_of(ip);
    message.header.ifindex = index;
    message.attributes.push(NeighbourAttribute::Destination(match ip {
        IpAddr::V4(ip) => NeighbourAddress::Inet(ip),
        IpAddr::V6(ip) => NeighbourAddress::Inet6(ip),
    }));
    message
}

/// Converts a route; `None` if the kernel would not deliver packets to it (neither unicast nor local).
fn route_from_message(message: &RouteMessage) -> Option<KernelRoute> {
    let is_local = message.header.kind == RouteType::Local;
    if !is_local && message.header.kind != RouteType::Unicast {
        return None;
    }
    let mut route = KernelRoute { index: 0, source: None, gateway: None, is_local };
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Oif(index) => route.index = *index,
            RouteAttribute::PrefSource(ip) => route.source = ip_from_route_address(ip),
            RouteAttribute::Gateway(ip) => route.gateway = ip_from_route_address(ip),
            _ => {}
        }
    }
    Some(route)
}

fn ip_from_route_address(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(ip) => Some((*ip).into()),
        RouteAddress::Inet6(ip) => Some((*ip).into()),
        _ => None,
    }
}

fn neighbour_from_message(message: &NeighbourMessage) -> NeighbourEntry {
    let mac = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(bytes) => bytes.as_slice().try_into().ok(),
        _ => None,
    });
    match (message.header.state, mac) {
        (NeighbourState::Failed, _) => NeighbourEntry::Silent,
        (NeighbourState::Incomplete, _) => NeighbourEntry::Asked,
        (NeighbourState::None, _) | (_, None) => NeighbourEntry::Unknown,
        (_, Some(mac)) => NeighbourEntry::At(mac),
    }
}
