use super::*;

fn link(index: u32, kind: &str, master: Option<u32>, peer: Option<u32>) -> StackLink {
    let link = Link {
        in_service: true,
        index,
        name: format!("if{index}"),
        kind: Some(kind.to_owned()).filter(|kind| !kind.is_empty()),
        mac: None,
        mtu: 1500,
        mtu_limit: None,
        up: true,
        carrier: true,
        loopback: false,
        promiscuous: false,
        master,
        peer,
        peer_netns: None,
        qdisc: None,
    };
    StackLink { link, default_route: false, addresses: Vec::new() }
}

/// An interface whose peer or lower interface is in the namespace with that number.
fn far(of: StackLink, netns: i32) -> StackLink {
    StackLink { link: Link { peer_netns: Some(netns), ..of.link }, ..of }
}

fn routed(of: StackLink) -> StackLink {
    StackLink { default_route: true, ..of }
}

fn namespace(links: &[StackLink], known: &[(i32, usize)]) -> StackNamespace {
    StackNamespace {
        label: String::new(),
        links: links.to_vec(),
        known: known.iter().copied().collect(),
        has_unknown_routes: false,
    }
}

/// Numbers of those that count, in one namespace.
fn stack(links: &[StackLink], index: u32) -> Vec<u32> {
    let found = find_stacked(&[namespace(links, &[])], index);
    found.into_iter().filter(|(_, reach)| *reach != InterfaceReach::CableEnd).map(|((_, of), _)| of).collect()
}

#[test]
fn stack_includes_upper_lower_and_sibling_interfaces() {
    // A card in a bond in a bridge, a VLAN on the bridge, a macvlan on the VLAN; a second card in the bridge.
    let all = [
        link(1, "", Some(2), None),
        link(2, "bond", Some(3), None),
        link(3, "bridge", None, None),
        link(4, "vlan", None, Some(3)),
        link(5, "macvlan", None, Some(4)),
        link(6, "", Some(3), None),
        link(7, "", None, None),
        link(8, "vxlan", None, Some(7)),
    ];
    for member in 1..=6 {
        assert_eq!(stack(&all, member), [1, 2, 3, 4, 5, 6], "from {member}");
    }
    assert_eq!(stack(&all, 8), [7, 8]);
}

#[test]
fn cable_ends_stack_unless_far_end_is_bridged() {
    let plain = [
        link(1, "veth", None, Some(2)),
        routed(link(2, "veth", None, Some(1))),
        link(3, "vlan", None, Some(2)),
    ];
    assert_eq!(stack(&plain, 1), [1]);
    let bridged = [
        link(1, "veth", None, Some(2)),
        link(2, "veth", Some(4), Some(1)),
        link(3, "", Some(4), None),
        link(4, "bridge", None, None),
        // Beyond a second cable of the same bridge.
        link(5, "veth", Some(4), Some(6)),
        link(6, "veth", Some(7), Some(5)),
        link(7, "bridge", None, None),
        link(8, "", Some(7), None),
    ];
    let found = find_stacked(&[namespace(&bridged, &[])], 1);
    assert_eq!(
        (found[&(0, 1)], found[&(0, 3)], found[&(0, 8)]),
        (InterfaceReach::Stacked, InterfaceReach::BeyondCable, InterfaceReach::BeyondCable)
    );
}

#[test]
fn other_namespaces_are_looked_into_both_ways() {
    // Here a cable's end and a card; there its other end in a bridge, and a macvlan on our card.
    let here = namespace(&[far(link(1, "veth", None, Some(1)), 7), link(2, "", None, None)], &[(7, 1)]);
    let there = namespace(
        &[
            far(link(1, "veth", Some(2), Some(1)), 5),
            link(2, "bridge", None, None),
            link(3, "", Some(2), None),
            far(link(4, "macvlan", None, Some(2)), 5),
        ],
        &[(5, 0)],
    );
    let all = [here, there];
    assert_eq!(find_stacked(&all, 1)[&(1, 3)], InterfaceReach::BeyondCable);
    assert_eq!(find_stacked(&all, 2)[&(1, 4)], InterfaceReach::Stacked);
    // One that cannot be looked into ends the stack.
    let alone = [namespace(&[far(link(1, "veth", None, Some(1)), 9)], &[])];
    assert_eq!(find_stacked(&alone, 1).len(), 1);
}

#[test]
fn stack_spans_switch_but_not_vrf_members() {
    let switch = [
        link(1, "", Some(2), None),
        link(2, SWITCH_KIND, None, None),
        link(3, SWITCH_KIND, None, None),
        link(4, "", Some(2), None),
    ];
    assert_eq!(stack(&switch, 1), [1, 2, 3, 4]);
    let vrf = [link(1, "", Some(2), None), link(2, "vrf", None, None), link(3, "", Some(2), None)];
    assert_eq!(stack(&vrf, 1), [1]);
}

#[test]
fn tunnel_without_lower_interface_follows_routes() {
    let all = [link(1, "gretap", None, None), routed(link(2, "", None, None)), link(3, "", None, None)];
    assert_eq!(stack(&all, 1), [1, 2]);
    assert_eq!(stack(&all, 3), [3]);
}
