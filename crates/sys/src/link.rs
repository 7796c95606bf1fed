//! Network interfaces: lists them, and makes, changes and removes virtual ones.
//!
//! A [`NamespaceLinks`] owns one netlink socket. It always sees the network namespace in which it was opened, whichever
//! thread uses it. Dropping it undoes no change: interfaces live until they are deleted or their namespace ends.

mod change;
mod stack;
mod way;

pub use way::{KernelRoute, NeighbourEntry};

use crate::netlink::NetlinkConversation;
use crate::{Error, netns::NetNs};
use netlink_packet_core::NLM_F_DUMP;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, Stats64};
use netlink_packet_route::route::{RouteAttribute, RouteMessage, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// A 48-bit hardware address.
pub type Mac = [u8; 6];

/// Netlink socket for the interfaces, addresses and routes of one network namespace.
#[derive(Debug)]
pub struct NamespaceLinks {
    netlink: NetlinkConversation,
}

#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "independent states, as the kernel's flags")]
pub struct Link {
    /// Number of the interface in its namespace.
    pub index: u32,
    pub name: String,
    /// Kind of a virtual interface: `veth`, `bridge`, `vlan` …; absent for a card.
    pub kind: Option<String>,
    /// Hardware address; `None` if the interface has none, or one of another length than 48 bits.
    pub mac: Option<Mac>,
    /// Largest packet after the Ethernet header, in bytes.
    pub mtu: u32,
    /// Largest MTU that the driver accepts, if it reports one.
    pub mtu_limit: Option<u32>,
    pub up: bool,
    /// There is a carrier: the link to the other end is up.
    pub carrier: bool,
    /// The kernel has noticed the carrier and sends through the queue of the interface. This becomes true
    /// a moment after `carrier`.
    #[serde(skip)]
    pub in_service: bool,
    pub loopback: bool,
    /// Receives frames for every hardware address.
    pub promiscuous: bool,
    /// Number of the bridge or bond to which the interface belongs.
    pub master: Option<u32>,
    /// Number of the interface on which this one is based, or of its peer; it may be in another namespace.
    pub peer: Option<u32>,
    /// Namespace of the interface `peer`, as the number that this namespace has for that one (-1: it has no number).
    /// `None` if `peer` is in this namespace.
    #[serde(skip)]
    pub peer_netns: Option<i32>,
    pub qdisc: Option<String>,
}

impl Link {
    /// Returns true if the interface can send and receive frames now.
    pub fn is_operational(&self) -> bool {
        self.up && self.carrier && self.in_service
    }
}

/// Cumulative counters of an interface, as `ip -s link` shows them. Bytes are without FCS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct LinkCounters {
    /// There is a carrier: the link to the other end is up.
    pub carrier: bool,
    pub rx_frames: u64,
    pub rx_bytes: u64,
    /// Received frames with errors.
    pub rx_errors: u64,
    /// Received frames dropped: by the kernel, or by a card without a free buffer.
    pub rx_dropped: u64,
    pub tx_frames: u64,
    pub tx_bytes: u64,
    pub tx_errors: u64,
    /// Frames dropped on transmit; a frame that is tried again counts at every failed attempt.
    pub tx_dropped: u64,
}

/// An interface with the counters of its driver at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkState {
    pub link: Link,
    /// Number of times that the carrier was gained or lost since the interface was made.
    pub carrier_changes: u64,
    /// Frames that the card or its driver dropped on receive because it had no free buffer.
    pub driver_dropped: u64,
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct LinkAddress {
    /// Number of the interface.
    pub index: u32,
    pub ip: IpAddr,
    /// Prefix length of the address.
    pub prefix: u8,
}

/// One end of a veth pair (a virtual cable).
#[derive(Clone, Copy, Debug)]
pub struct VethEnd<'a> {
    pub name: &'a str,
    /// Namespace of the interface; `None`: the namespace of the [`NamespaceLinks`].
    pub netns: Option<&'a NetNs>,
    /// Hardware address of the interface; `None` lets the kernel choose.
    pub mac: Option<Mac>,
}

impl NamespaceLinks {
    /// Opens a socket for the interfaces of `netns`.
    pub fn open_in(netns: &NetNs) -> Result<Self, Error> {
        Ok(Self { netlink: NetlinkConversation::open_in(netns, NETLINK_ROUTE)? })
    }

    /// Lists all interfaces, in order of their number. An interface is left out if the kernel's message about
    /// it cannot be parsed.
    pub fn list_links(&mut self) -> Result<Vec<Link>, Error> {
        self.request_links(LinkMessage::default())
    }

    fn request_links(&mut self, message: LinkMessage) -> Result<Vec<Link>, Error> {
        let mut links = Vec::new();
        let request = RouteNetlinkMessage::GetLink(message);
        let asked = self.netlink.request_answers(request, NLM_F_DUMP, &mut |answer| {
            if let RouteNetlinkMessage::NewLink(message) = answer {
                links.push(link_from_message(&message));
            }
        });
        asked.map_err(|e| Error::from_call("RTM_GETLINK", "interfaces", e))?;
        links.sort_by_key(|link| link.index);
        Ok(links)
    }

    /// Finds the interface of that name.
    pub fn find_link_by_name(&mut self, name: &str) -> Result<Link, Error> {
        // Longer names are not searched: the kernel would call such a name invalid and not missing.
        if name.is_empty() || name.len() >= libc::IFNAMSIZ {
            return Err(missing_interface(name));
        }
        let attributes = vec![LinkAttribute::IfName(name.to_owned())];
        self.fetch_link(0, attributes, name).map(|message| link_from_message(&message))
    }

    /// Finds the interface with this number.
    pub fn find_link_by_index(&mut self, index: u32) -> Result<Link, Error> {
        self.fetch_link(index, Vec::new(), &format!("number {index}"))
            .map(|message| link_from_message(&message))
    }

    /// Finds the interface with this number; `None` if there is none (any more).
    pub fn find_link_if_present(&mut self, index: u32) -> Result<Option<Link>, Error> {
        match self.find_link_by_index(index) {
            Err(Error::Missing { .. }) => Ok(None),
            answered => answered.map(Some),
        }
    }

    fn read_flags(&mut self, index: u32) -> Result<LinkFlags, Error> {
        Ok(self.fetch_link(index, Vec::new(), &format!("number {index}"))?.header.flags)
    }

    /// Reads the interface with this number and its driver's counters, in one request.
    pub fn read_state(&mut self, index: u32) -> Result<LinkState, Error> {
        let message = self.fetch_link(index, Vec::new(), &format!("number {index}"))?;
        let mut state =
            LinkState { link: link_from_message(&message), carrier_changes: 0, driver_dropped: 0 };
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::CarrierChanges(changes) => state.carrier_changes = (*changes).into(),
                LinkAttribute::Stats64(stats) => {
                    // Drivers count one event in one or more of these counters, so the largest counter is used.
                    let counts = [stats.rx_missed_errors, stats.rx_fifo_errors, stats.rx_over_errors];
                    state.driver_dropped = counts.into_iter().max().unwrap_or(0);
                }
                _ => {}
            }
        }
        Ok(state)
    }

    /// Reads the counters of the interface with this number. This takes two system calls, some microseconds.
    pub fn read_counters(&mut self, index: u32) -> Result<LinkCounters, Error> {
        let message = self.fetch_link(index, Vec::new(), &format!("number {index}"))?;
        let stats = message.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::Stats64(stats) => Some(link_counters_from_stats(stats)),
            _ => None,
        });
        let carrier = message.header.flags.contains(LinkFlags::LowerUp);
        Ok(LinkCounters { carrier, ..stats.unwrap_or_default() })
    }

    /// Lists the addresses of all interfaces. Fails if a message of the kernel cannot be parsed.
    pub fn list_addresses(&mut self) -> Result<Vec<LinkAddress>, Error> {
        self.request_addresses(AddressMessage::default())
    }

    fn request_addresses(&mut self, message: AddressMessage) -> Result<Vec<LinkAddress>, Error> {
        let mut addresses = Vec::new();
        let request = RouteNetlinkMessage::GetAddress(message);
        let asked = self.netlink.request_answers(request, NLM_F_DUMP, &mut |answer| {
            if let RouteNetlinkMessage::NewAddress(message) = answer {
                addresses.extend(address_from_message(&message));
            }
        });
        require_complete(asked, "RTM_GETADDR", "addresses")?;
        Ok(addresses)
    }

    /// Lists the addresses at which other machines may reach this one: no loopback addresses, and no link-local
    /// ones. Sorted, without duplicates.
    pub fn list_global_addresses(&mut self) -> Result<Vec<IpAddr>, Error> {
        let all = self.list_addresses()?.into_iter().map(|address| address.ip).filter(is_global_address);
        Ok(all.collect::<BTreeSet<_>>().into_iter().collect())
    }

    /// Lists the numbers of all interfaces with a default route, IPv4 or IPv6, in any routing table.
    pub fn list_default_route_interfaces(&mut self) -> Result<BTreeSet<u32>, Error> {
        let mut indices = BTreeSet::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut message = RouteMessage::default();
            message.header.address_family = family;
            let request = RouteNetlinkMessage::GetRoute(message);
            let asked = self.netlink.request_answers(request, NLM_F_DUMP, &mut |answer| {
                if let RouteNetlinkMessage::NewRoute(route) = answer {
                    indices.extend(default_route_exits(&route));
                }
            });
            require_complete(asked, "RTM_GETROUTE", "routes")?;
        }
        Ok(indices)
    }

    fn fetch_link(
        &mut self,
        index: u32,
        attributes: Vec<LinkAttribute>,
        object: &str,
    ) -> Result<LinkMessage, Error> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.attributes = attributes;
        let mut found = None;
        let asked = self.netlink.request_answers(RouteNetlinkMessage::GetLink(message), 0, &mut |answer| {
            if let RouteNetlinkMessage::NewLink(message) = answer {
                found = Some(message);
            }
        });
        match asked {
            Ok(unread) if unread > 0 => Err(unreadable_answer("RTM_GETLINK", object)),
            Ok(_) => found.ok_or_else(|| missing_interface(object)),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Err(missing_interface(object)),
            Err(error) => Err(Error::from_call("RTM_GETLINK", object, error)),
        }
    }
}

/// Requires a complete answer: routes and addresses decide whether an interface is safe to send on, so none of them may be
/// skipped.
fn require_complete(asked: std::io::Result<usize>, call: &'static str, object: &str) -> Result<(), Error> {
    match asked {
        Ok(0) => Ok(()),
        Ok(_) => Err(unreadable_answer(call, object)),
        Err(error) => Err(Error::from_call(call, object, error)),
    }
}

fn unreadable_answer(call: &'static str, object: &str) -> Error {
    let source =
        std::io::Error::new(std::io::ErrorKind::InvalidData, "packetrig cannot parse the kernel's answer");
    Error::from_call(call, object, source)
}

fn missing_interface(name: &str) -> Error {
    Error::Missing { what: "interface", name: name.to_owned(), remedy: "`ip link` lists the interfaces" }
}

fn link_from_message(message: &LinkMessage) -> Link {
    let flags = message.header.flags;
    let mut link = Link {
        index: message.header.index,
        name: String::new(),
        kind: None,
        mac: None,
        mtu: 0,
        mtu_limit: None,
        up: flags.contains(LinkFlags::Up),
        carrier: flags.contains(LinkFlags::LowerUp),
        in_service: flags.contains(LinkFlags::Running),
        loopback: flags.contains(LinkFlags::Loopback),
        promiscuous: flags.contains(LinkFlags::Promisc),
        master: None,
        peer: None,
        peer_netns: None,
        qdisc: None,
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Address(bytes) => link.mac = bytes.as_slice().try_into().ok(),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::MaxMtu(limit) => link.mtu_limit = (*limit > 0).then_some(*limit),
            LinkAttribute::Controller(index) => link.master = Some(*index),
            LinkAttribute::Link(index) => link.peer = Some(*index).filter(|index| *index > 0).or(link.peer),
            LinkAttribute::Qdisc(name) => link.qdisc = Some(name.clone()),
            // The count includes promiscuous mode that sockets requested, which the flag does not show.
            LinkAttribute::Promiscuity(count) => link.promiscuous |= *count > 0,
            // -1: the peer's namespace has no number here, so it cannot be identified.
            LinkAttribute::LinkNetNsId(id) => link.peer_netns = Some(*id),
            LinkAttribute::LinkInfo(infos) => {
                link.kind = link_kind_from_infos(infos);
                link.peer = link.peer.or_else(|| stack::vxlan_lower_interface(infos));
            }
            _ => {}
        }
    }
    link
}

fn link_kind_from_infos(infos: &[LinkInfo]) -> Option<String> {
    infos.iter().find_map(|info| match info {
        LinkInfo::Kind(InfoKind::Other(name)) => Some(name.clone()),
        LinkInfo::Kind(kind) => Some(kind.to_string()),
        _ => None,
    })
}

fn link_counters_from_stats(stats: &Stats64) -> LinkCounters {
    LinkCounters {
        carrier: false,
        rx_frames: stats.rx_packets,
        rx_bytes: stats.rx_bytes,
        rx_errors: stats.rx_errors,
        // A card without a free buffer counts the frame in a separate counter.
        rx_dropped: stats.rx_dropped + stats.rx_missed_errors,
        tx_frames: stats.tx_packets,
        tx_bytes: stats.tx_bytes,
        tx_errors: stats.tx_errors,
        tx_dropped: stats.tx_dropped,
    }
}

fn is_global_address(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local() && !ip.is_unspecified(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local() && !ip.is_unspecified(),
    }
}

fn address_from_message(message: &AddressMessage) -> Option<LinkAddress> {
    // On a point-to-point link `Local` is the address of this machine and `Address` that of the peer. On other links
    // both are the address of this machine.
    let local = message.attributes.iter().find_map(|a| match a {
        AddressAttribute::Local(ip) => Some(*ip),
        _ => None,
    });
    let ours = local.or_else(|| {
        message.attributes.iter().find_map(|a| match a {
            AddressAttribute::Address(ip) => Some(*ip),
            _ => None,
        })
    });
    ours.map(|ip| LinkAddress { index: message.header.index, ip, prefix: message.header.prefix_len })
}

fn default_route_exits(route: &RouteMessage) -> Vec<u32> {
    // The kernel may have an `unreachable` default route for IPv6: no packet leaves through it.
    if route.header.destination_prefix_length != 0 || route.header.kind != RouteType::Unicast {
        return Vec::new();
    }
    route
        .attributes
        .iter()
        .flat_map(|attribute| match attribute {
            RouteAttribute::Oif(index) => vec![*index],
            RouteAttribute::MultiPath(hops) => hops.iter().map(|hop| hop.interface_index).collect(),
            _ => Vec::new(),
        })
        .collect()
}

#[cfg(test)]
mod tests;
