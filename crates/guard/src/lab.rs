//! The lab guard: test traffic stays off networks that people use.
//!
//! RFC 6815 confines benchmark traffic to isolated test networks. An interface that carries a default route,
//! or an address outside the blocks reserved for benchmarking, is refused until the user confirms it. The same
//! holds if an interface stacked with it (its bridge, VLANs on it, the card below it) has such a route or
//! address; see the module `stack`. All code that sends test traffic calls [`permit_port`] first.

use crate::Error;
use crate::stack::{
    InterfaceReach, StackLink, StackNamespace, find_stacked, leads_to_unknown_namespace, read_namespaces,
};
use packetrig_sys::netns::NetNs;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Fails if the interface with this number, or an interface stacked with it, looks like part of a network that
/// people use. `port` is the interface as the user wrote it. A port that the user `confirmed` is never refused.
pub fn permit_port(netns: &NetNs, index: u32, port: &str, confirmed: bool) -> Result<(), Error> {
    // A confirmed port must work even if the kernel does not list the stacked interfaces, so they are not read.
    if confirmed {
        return Ok(());
    }
    Ok(judge_port(port, &find_stacked_interfaces(&read_namespaces(netns)?, index), confirmed)?)
}

/// Returns the interfaces of a namespace that [`permit_port`] refuses, by number, each with the reason.
pub fn find_refusals(netns: &NetNs) -> Result<BTreeMap<u32, GuardRefusal>, Error> {
    let all = read_namespaces(netns)?;
    // `read_namespaces` puts this namespace first; the others are needed only to judge the interfaces of this one.
    let own = all.first().map(|own| own.links.as_slice()).unwrap_or_default();
    let mut refused = BTreeMap::new();
    for link in own.iter().map(|of| &of.link) {
        // The confirmation is ignored here: the list shows every refusal, also of ports that the
        // user may confirm later.
        if let Err(refusal) = judge_port(&link.name, &find_stacked_interfaces(&all, link.index), false) {
            refused.insert(link.index, refusal);
        }
    }
    Ok(refused)
}

/// Returns interface `index` of the first namespace and all interfaces that are stacked with it.
fn find_stacked_interfaces(all: &[StackNamespace], index: u32) -> Vec<StackedInterface> {
    let found = find_stacked(all, index);
    // The far end of a virtual cable belongs to the device under test, so it is not judged.
    let found = found.iter().filter(|(_, reach)| **reach != InterfaceReach::CableEnd);
    found
        .filter_map(|((namespace, number), reach)| {
            describe_interface(all, *namespace, *number, *reach, index)
        })
        .collect()
}

/// Describes interface `number` of a namespace, which was reached from interface `index` of the first namespace.
fn describe_interface(
    all: &[StackNamespace],
    namespace: usize,
    number: u32,
    reach: InterfaceReach,
    index: u32,
) -> Option<StackedInterface> {
    let of = all[namespace].links.iter().find(|of| of.link.index == number)?;
    let label = &all[namespace].label;
    let name = &of.link.name;
    Some(StackedInterface {
        name: if label.is_empty() { name.clone() } else { format!("{label}/{name}") },
        kinship: match reach {
            _ if namespace == 0 && number == index => InterfaceRelation::Itself,
            InterfaceReach::BeyondCable => InterfaceRelation::BeyondCable,
            _ => InterfaceRelation::Stacked,
        },
        loopback: of.link.loopback,
        default_route: of.default_route,
        unknown: find_hidden_surroundings(all, namespace, of),
        addresses: of.addresses.clone(),
    })
}

fn find_hidden_surroundings(
    all: &[StackNamespace],
    namespace: usize,
    of: &StackLink,
) -> Option<UnknownInterfaceFact> {
    if leads_to_unknown_namespace(all, namespace, &of.link) {
        return Some(UnknownInterfaceFact::FarEnd);
    }
    all[namespace].has_unknown_routes.then_some(UnknownInterfaceFact::Routes)
}

/// What is not known about an interface, because this process cannot enter a network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownInterfaceFact {
    /// The routes that leave through the interface.
    Routes,
    /// The interface below it, or the interface at the far end of its virtual cable.
    FarEnd,
}

/// Relation of an interface to the requested one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterfaceRelation {
    /// This is the requested interface.
    Itself,
    /// It is stacked with the requested interface on the same wire, such as a VLAN or a bridge.
    Stacked,
    /// Frames reach it through a bridge, bond or switch at the far end of a virtual cable.
    BeyondCable,
}

/// The requested interface, or an interface that is stacked with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackedInterface {
    pub name: String,
    /// Relation of this interface to the requested one.
    pub kinship: InterfaceRelation,
    /// It is the loopback interface.
    pub loopback: bool,
    /// A default route leaves through it.
    pub default_route: bool,
    /// What this process cannot find out about the interface; `None` if it knows everything.
    pub unknown: Option<UnknownInterfaceFact>,
    pub addresses: Vec<IpAddr>,
}

/// Refusal of an interface, with the reason. The user can override it with `--confirm`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("port {port} is refused: {reason}; use an isolated test network, or confirm with `--confirm {port}`")]
pub struct GuardRefusal {
    /// The interface as the user wrote it.
    pub port: String,
    pub reason: String,
}

/// Decides whether test traffic may leave through `port`, from the interfaces that are stacked with it.
pub fn judge_port(port: &str, relatives: &[StackedInterface], confirmed: bool) -> Result<(), GuardRefusal> {
    if confirmed {
        return Ok(());
    }
    match relatives.iter().find_map(find_objection) {
        Some(reason) => Err(GuardRefusal { port: port.to_owned(), reason }),
        None => Ok(()),
    }
}

fn find_objection(relative: &StackedInterface) -> Option<String> {
    let who = match relative.kinship {
        InterfaceRelation::Itself => "it".to_owned(),
        InterfaceRelation::BeyondCable => {
            format!("{}, at or beyond the far end of its cable,", relative.name)
        }
        InterfaceRelation::Stacked => format!("{}, which is in the same stack of interfaces,", relative.name),
    };
    if relative.loopback {
        return Some(format!("{who} is the loopback interface, which carries this machine's own traffic"));
    }
    if relative.default_route {
        return Some(format!(
            "{who} carries the default route, so test traffic could reach other people's networks"
        ));
    }
    // This check comes before the exemption of the device under test: routes of the device may lead back into a
    // network that people use.
    if let Some(reason) = find_objection_to_hidden_part(relative) {
        return Some(format!("{who} {reason}"));
    }
    // The device under test may have any address.
    if relative.kinship == InterfaceRelation::BeyondCable {
        return None;
    }
    let foreign = relative.addresses.iter().find(|address| !is_benchmarking_or_link_local(**address))?;
    Some(format!(
        "{who} has the address {foreign}, which is not a benchmarking address (198.18.0.0/15, 2001:2::/48)"
    ))
}

/// Objects to everything that is hidden. The only exception are hidden routes of an interface without an address beyond
/// a cable: that is a bridge in the device under test.
fn find_objection_to_hidden_part(relative: &StackedInterface) -> Option<&'static str> {
    let has_address = relative.addresses.iter().any(|address| !is_link_local(*address));
    match relative.unknown? {
        UnknownInterfaceFact::FarEnd => {
            Some("leads into a network namespace that this process cannot inspect")
        }
        UnknownInterfaceFact::Routes
            if relative.kinship == InterfaceRelation::BeyondCable && !has_address =>
        {
            None
        }
        UnknownInterfaceFact::Routes => {
            Some("is in a network namespace that this process cannot enter, so its routes are unknown")
        }
    }
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(four) => four.is_link_local(),
        IpAddr::V6(six) => six.is_unicast_link_local(),
    }
}

/// Returns whether an address is reserved for benchmarking (RFC 2544, RFC 5180), or never leaves a link.
fn is_benchmarking_or_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(four) => is_in_block(four, Ipv4Addr::new(198, 18, 0, 0), 15) || four.is_link_local(),
        IpAddr::V6(six) => {
            is_in_block_v6(six, Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 0), 48) || six.is_unicast_link_local()
        }
    }
}

fn is_in_block(address: Ipv4Addr, block: Ipv4Addr, prefix: u32) -> bool {
    // XOR clears the bits in which both addresses agree, so with an equal prefix the shifted result is zero.
    (address.to_bits() ^ block.to_bits()) >> (32 - prefix) == 0
}

fn is_in_block_v6(address: Ipv6Addr, block: Ipv6Addr, prefix: u32) -> bool {
    (address.to_bits() ^ block.to_bits()) >> (128 - prefix) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> StackedInterface {
        StackedInterface {
            name: "eth1".into(),
            kinship: InterfaceRelation::Itself,
            loopback: false,
            default_route: false,
            unknown: None,
            addresses: Vec::new(),
        }
    }

    fn with(addresses: &[&str]) -> Vec<StackedInterface> {
        vec![StackedInterface {
            addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
            ..plain()
        }]
    }

    #[test]
    fn interface_with_no_or_test_addresses_passes() {
        for addresses in [
            &[][..],
            &["198.18.0.1", "198.19.255.254"],
            &["2001:2::1", "2001:2:0:ffff::1"],
            &["169.254.7.7", "fe80::1"],
        ] {
            assert_eq!(judge_port("eth1", &with(addresses), false), Ok(()), "{addresses:?}");
        }
    }

    #[test]
    fn foreign_addresses_are_refused_by_name_until_confirmed() {
        for address in
            ["10.0.0.1", "198.17.255.255", "198.20.0.0", "2001:2:1::1", "2001:db8::1", "fd00::1", "8.8.8.8"]
        {
            let relatives = with(&["198.18.0.1", address]);
            let refusal = judge_port("ns/eth1", &relatives, false).unwrap_err().to_string();
            assert!(refusal.contains(address) && refusal.contains("--confirm ns/eth1"), "{refusal}");
            assert_eq!(judge_port("ns/eth1", &relatives, true), Ok(()));
        }
    }

    #[test]
    fn default_routes_and_loopback_are_refused() {
        let routed = StackedInterface { default_route: true, ..plain() };
        assert!(judge_port("eth1", &[routed], false).unwrap_err().reason.contains("default route"));
        let loopback = StackedInterface { loopback: true, ..plain() };
        assert!(judge_port("lo", &[loopback], false).unwrap_err().reason.contains("loopback"));
    }

    #[test]
    fn stacked_default_route_is_refused_by_name() {
        let bridge = StackedInterface {
            name: "br0".into(),
            kinship: InterfaceRelation::Stacked,
            default_route: true,
            ..plain()
        };
        let reason = judge_port("eth1", &[plain(), bridge.clone()], false).unwrap_err().reason;
        assert!(reason.contains("br0"), "{reason}");
        // The device under test may have any address, but not a default route.
        let beyond = StackedInterface { kinship: InterfaceRelation::BeyondCable, ..bridge };
        assert!(judge_port("eth1", std::slice::from_ref(&beyond), false).is_err());
        let address = "10.0.0.1".parse().unwrap();
        let tested = StackedInterface { default_route: false, addresses: vec![address], ..beyond };
        assert_eq!(judge_port("eth1", &[tested], false), Ok(()));
    }

    #[test]
    fn unseen_interface_is_refused_except_bridge_beyond_cable() {
        let unseen = |unknown, kinship| StackedInterface { unknown: Some(unknown), kinship, ..plain() };
        let refusal = |relative: StackedInterface| {
            judge_port("eth1", &[relative], false).err().map(|refusal| refusal.reason)
        };
        for kinship in [InterfaceRelation::Itself, InterfaceRelation::Stacked, InterfaceRelation::BeyondCable]
        {
            let reason = refusal(unseen(UnknownInterfaceFact::FarEnd, kinship)).unwrap();
            assert!(reason.contains("cannot inspect"), "{reason}");
        }
        let below = refusal(unseen(UnknownInterfaceFact::Routes, InterfaceRelation::Stacked)).unwrap();
        assert!(below.contains("routes are unknown"), "{below}");
        let bridge = unseen(UnknownInterfaceFact::Routes, InterfaceRelation::BeyondCable);
        assert_eq!(refusal(bridge.clone()), None);
        let link_only = StackedInterface { addresses: vec!["fe80::1".parse().unwrap()], ..bridge.clone() };
        assert_eq!(refusal(link_only), None);
        let addressed = StackedInterface { addresses: vec!["198.18.0.1".parse().unwrap()], ..bridge };
        assert!(refusal(addressed).is_some());
    }
}
