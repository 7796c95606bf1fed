//! Finds the interfaces that are stacked with an interface: all that its frames can reach without leaving the machine.
//!
//! For each interface the kernel names its master (bridge, bond, switch) and the interface below it, which may be in
//! another namespace. The search follows both relations in both directions, so it finds all interfaces that share a
//! wire with the first one. It stops at the far end of a virtual cable (veth), unless that end belongs to a bridge,
//! bond or switch, which forwards the frames.

use packetrig_sys::link::{Link, LinkAddress, NamespaceLinks};
use packetrig_sys::netns::NetNs;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

/// Kinds of interface that are one end of a virtual cable: `peer` is the other end.
const CABLE_KINDS: [&str; 2] = ["veth", "netkit"];
/// Kinds of master whose members do not exchange frames.
const ISOLATING_KINDS: [&str; 2] = ["vrf", "dsa"];
/// All interfaces of this kind in a namespace are one switch.
const SWITCH_KIND: &str = "openvswitch";
/// Kinds of tunnel. A tunnel that is not bound to an interface sends along the routes of its namespace.
const TUNNEL_KINDS: [&str; 17] = [
    "gre",
    "gretap",
    "erspan",
    "ip6gre",
    "ip6gretap",
    "ip6erspan",
    "ipip",
    "ip6tnl",
    "sit",
    "vti",
    "vti6",
    "vxlan",
    "geneve",
    "wireguard",
    "bareudp",
    "xfrm",
    "amt",
];

/// Maximum number of namespaces that are read.
const MAX_NAMESPACES: usize = 1024;

/// An interface, and the facts that decide whether it is part of a network that people use.
#[derive(Clone, Debug)]
pub(crate) struct StackLink {
    pub(crate) link: Link,
    pub(crate) default_route: bool,
    pub(crate) addresses: Vec<IpAddr>,
}

/// The interfaces of one namespace.
#[derive(Clone, Debug, Default)]
pub(crate) struct StackNamespace {
    /// Name of the namespace before interface names in messages; empty for the namespace of the requested interface.
    pub(crate) label: String,
    pub(crate) links: Vec<StackLink>,
    /// Positions of namespaces in the list of all, by the numbers that this namespace has for them.
    pub(crate) known: BTreeMap<i32, usize>,
    /// The namespace cannot be entered: the kernel lists its interfaces and addresses, but not its routes.
    pub(crate) has_unknown_routes: bool,
}

/// The path on which frames reach an interface of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum InterfaceReach {
    /// Without a virtual cable: the interface shares a wire with the first one.
    Stacked,
    /// Through a bridge, bond or switch at the far end of a virtual cable.
    BeyondCable,
    /// The interface is the far end of a virtual cable.
    CableEnd,
}

/// An interface: the position of its namespace in the list, and its number in this namespace.
type StackNode = (usize, u32);

/// Returns all interfaces that are stacked with interface `index` of the first namespace, and how each is reached.
pub(crate) fn find_stacked(all: &[StackNamespace], index: u32) -> BTreeMap<StackNode, InterfaceReach> {
    let mut found = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let mut open = VecDeque::from([((0, index), InterfaceReach::Stacked)]);
    while let Some((node, reach)) = open.pop_front() {
        // An interface can be reached in several ways, which continue differently: the far end of a cable
        // leads only to its own master. So each pair is followed once, and the closest way is reported.
        if !seen.insert((node, reach)) {
            continue;
        }
        // `InterfaceReach` is ordered so that the smallest is the one that the lab guard objects to most.
        let best = found.entry(node).or_insert(reach);
        *best = reach.min(*best);
        let Some(own) = find_stack_link(all, node) else { continue };
        if reach == InterfaceReach::CableEnd {
            open.extend(find_masters(all, node, own).map(|next| (next, InterfaceReach::BeyondCable)));
            continue;
        }
        open.extend(find_neighbours(all, node, own).into_iter().map(|next| (next, reach)));
        let far_end = own.link.peer.filter(|_| is_cable(&own.link));
        let far_end = far_end.and_then(|peer| Some((find_peer_namespace(all, node.0, &own.link)?, peer)));
        open.extend(far_end.map(|next| (next, InterfaceReach::CableEnd)));
    }
    found
}

fn find_stack_link(all: &[StackNamespace], (namespace, index): StackNode) -> Option<&StackLink> {
    all.get(namespace)?.links.iter().find(|of| of.link.index == index)
}

fn is_link_of_kind(link: &Link, kinds: &[&str]) -> bool {
    link.kind.as_deref().is_some_and(|kind| kinds.contains(&kind))
}

fn is_cable(link: &Link) -> bool {
    is_link_of_kind(link, &CABLE_KINDS)
}

/// Returns the namespace in which a link's `peer` is a valid number; `None` if this namespace is not in the list.
fn find_peer_namespace(all: &[StackNamespace], own: usize, link: &Link) -> Option<usize> {
    match link.peer_netns {
        None => Some(own),
        Some(id) => all.get(own)?.known.get(&id).copied(),
    }
}

/// Returns whether an interface leads into a namespace that is not in the list.
pub(crate) fn leads_to_unknown_namespace(all: &[StackNamespace], own: usize, link: &Link) -> bool {
    !is_link_of_kind(link, &ISOLATING_KINDS) && find_peer_namespace(all, own, link).is_none()
}

/// Returns the interface below this one; `None` for a cable, or if there is none or its namespace is unknown.
fn find_interface_below(all: &[StackNamespace], own: usize, link: &Link) -> Option<StackNode> {
    let below = link.peer.filter(|_| !is_cable(link) && !is_link_of_kind(link, &ISOLATING_KINDS))?;
    Some((find_peer_namespace(all, own, link)?, below))
}

/// Returns the bridge, bond or switch that an interface is a member of, if there is one.
fn find_masters<'a>(
    all: &'a [StackNamespace],
    (namespace, _): StackNode,
    own: &'a StackLink,
) -> impl Iterator<Item = StackNode> + 'a {
    let master = own.link.master.map(|master| (namespace, master));
    let master = master.filter(|node| {
        find_stack_link(all, *node).is_none_or(|of| !is_link_of_kind(&of.link, &ISOLATING_KINDS))
    });
    master.into_iter()
}

/// Finds the interfaces that are directly connected to this one, except the far end of its cable.
fn find_neighbours(all: &[StackNamespace], node: StackNode, own: &StackLink) -> Vec<StackNode> {
    let namespace = node.0;
    let mut next: Vec<StackNode> =
        find_masters(all, node, own).chain(find_interface_below(all, namespace, &own.link)).collect();
    for (other, of) in all.iter().enumerate() {
        let above = of.links.iter().filter(|of| find_interface_below(all, other, &of.link) == Some(node));
        next.extend(above.map(|of| (other, of.link.index)));
    }
    let here = &all[namespace].links;
    if !is_link_of_kind(&own.link, &ISOLATING_KINDS) {
        let members = here.iter().filter(|of| of.link.master == Some(node.1));
        next.extend(members.map(|of| (namespace, of.link.index)));
    }
    if is_link_of_kind(&own.link, &[SWITCH_KIND]) {
        let ports = here.iter().filter(|of| is_link_of_kind(&of.link, &[SWITCH_KIND]));
        next.extend(ports.map(|of| (namespace, of.link.index)));
    }
    // Packets of an unbound tunnel leave by any route of its underlay. A bound tunnel has its interface as `peer`,
    // which `find_interface_below` finds.
    if is_link_of_kind(&own.link, &TUNNEL_KINDS) && own.link.peer.is_none() {
        let underlay = find_peer_namespace(all, namespace, &own.link);
        next.extend(underlay.into_iter().flat_map(|underlay| find_tunnel_exit_interfaces(all, underlay)));
    }
    next
}

/// Returns the interfaces through which the packets of a tunnel of this namespace may leave: those with a default
/// route, or all except loopback if the routes are unknown.
fn find_tunnel_exit_interfaces(
    all: &[StackNamespace],
    namespace: usize,
) -> impl Iterator<Item = StackNode> + '_ {
    let of = &all[namespace];
    let links = of.links.iter().filter(|link| link.default_route || of.has_unknown_routes);
    links.filter(|link| !link.link.loopback).map(move |link| (namespace, link.link.index))
}

/// Lists the given namespace first, then all other namespaces that can be entered, then namespaces that cannot be
/// entered, but that the kernel describes by their number.
pub(crate) fn read_namespaces(netns: &NetNs) -> Result<Vec<StackNamespace>, packetrig_sys::Error> {
    let own = netns.inode()?;
    // The given namespace must be number 0 in the list: `find_stacked` starts there.
    let others = NetNs::list_visible_namespaces()
        .into_iter()
        .filter(|other| other.inode().is_ok_and(|inode| inode != own));
    let others: Vec<NetNs> = others.collect();
    let mut all = vec![read_namespace(netns, String::new())?];
    // Namespaces that cannot be entered are queried by number, through a namespace that has a number for them.
    let mut found = vec![netns];
    for other in &others {
        let label = other.find_namespace_name().unwrap_or_else(|| other.label().to_owned());
        if let Ok(links) = read_namespace(other, label) {
            all.push(links);
            found.push(other);
        }
    }
    for (of, netns) in all.iter_mut().zip(&found) {
        of.known = read_namespace_numbers(netns, &found);
    }
    for (base, netns) in found.iter().enumerate() {
        add_unenterable_namespaces(&mut all, base, netns, &found);
    }
    Ok(all)
}

/// Adds the namespaces that cannot be entered and that interfaces of `base` lead to, then those that interfaces of the
/// added ones lead to, and so on.
fn add_unenterable_namespaces(all: &mut Vec<StackNamespace>, base: usize, netns: &NetNs, found: &[&NetNs]) {
    let mut known = all[base].known.clone();
    let mut tried = BTreeSet::new();
    let mut members = vec![base];
    let mut next = 0;
    while let Some(member) = members.get(next).copied() {
        next += 1;
        // The kernel answers for a namespace that cannot be entered, by the number that another namespace has
        // for it. The namespaces of its interfaces' peers are queried next; `tried` prevents repeated queries
        // for a refused number.
        let ids: BTreeSet<i32> = all[member].links.iter().filter_map(|of| of.link.peer_netns).collect();
        for id in ids {
            if known.contains_key(&id) || all.len() >= MAX_NAMESPACES || !tried.insert(id) {
                continue;
            }
            // A refusal is not an error: the interface that leads there is then reported as leading into an unknown
            // namespace.
            let Ok(numbered) = read_numbered_namespace(netns, id) else { continue };
            known.insert(id, all.len());
            members.push(all.len());
            all.push(numbered);
            // To answer, the kernel may have given numbers to further namespaces.
            known.extend(read_namespace_numbers(netns, found));
        }
    }
    for member in members {
        // The kernel gave all these numbers as seen from `base`, so its members share one map.
        all[member].known.clone_from(&known);
    }
}

/// Reads the namespace that has number `id` in `netns`. Its routes stay unknown.
fn read_numbered_namespace(netns: &NetNs, id: i32) -> Result<StackNamespace, packetrig_sys::Error> {
    let (links, addresses) = NamespaceLinks::list_in_numbered_namespace(netns, id)?;
    let links = links.into_iter().map(|link| build_stack_link(link, &addresses, false)).collect();
    Ok(StackNamespace {
        label: format!("namespace number {id}"),
        links,
        has_unknown_routes: true,
        ..Default::default()
    })
}

fn read_namespace(netns: &NetNs, label: String) -> Result<StackNamespace, packetrig_sys::Error> {
    let mut links = NamespaceLinks::open_in(netns)?;
    let addresses = links.list_addresses()?;
    let routes = links.list_default_route_interfaces()?;
    let links = links.list_links()?.into_iter().map(|link| {
        let default_route = routes.contains(&link.index);
        build_stack_link(link, &addresses, default_route)
    });
    Ok(StackNamespace { label, links: links.collect(), ..Default::default() })
}

fn build_stack_link(link: Link, addresses: &[LinkAddress], default_route: bool) -> StackLink {
    let addresses = addresses.iter().filter(|of| of.index == link.index).map(|of| of.ip).collect();
    StackLink { link, default_route, addresses }
}

fn read_namespace_numbers(netns: &NetNs, all: &[&NetNs]) -> BTreeMap<i32, usize> {
    let Ok(mut links) = NamespaceLinks::open_in(netns) else { return BTreeMap::new() };
    let numbered = all
        .iter()
        .enumerate()
        .filter_map(|(index, other)| Some((links.find_netns_id(other).ok().flatten()?, index)));
    numbered.collect()
}

#[cfg(test)]
mod tests;
