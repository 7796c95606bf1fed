use super::*;
use std::net::{Ipv4Addr, Ipv6Addr};

/// A new namespace, or nothing where rights are missing.
fn namespace() -> Option<NetNs> {
    match NetNs::create_unnamed_namespace() {
        Ok(netns) => Some(netns),
        Err(error) => {
            assert!(error.is_permission_error(), "{error}");
            println!("skipped: {error}");
            None
        }
    }
}

#[test]
fn loopback_is_listed_and_found_without_any_rights() {
    let mut links = NamespaceLinks::open_in(&NetNs::current().unwrap()).unwrap();
    let listed = links.list_links().unwrap();
    let loopback = listed.iter().find(|link| link.loopback).expect("every namespace has one");
    let found = links.find_link_by_name(&loopback.name).unwrap();
    assert_eq!(links.find_link_by_index(loopback.index).unwrap().name, loopback.name);
    assert_eq!((found.index, found.mtu), (loopback.index, loopback.mtu));
    links.read_counters(loopback.index).unwrap();
}

#[test]
fn absent_interface_name_is_missing_not_failed() {
    let mut links = NamespaceLinks::open_in(&NetNs::current().unwrap()).unwrap();
    for name in ["nosuchlink0", "", "a-name-much-too-long-for-an-interface"] {
        let error = links.find_link_by_name(name).unwrap_err();
        assert!(matches!(&error, Error::Missing { what: "interface", .. }), "{name}: {error}");
    }
    assert!(links.read_counters(u32::MAX >> 1).is_err());
}

#[test]
fn veth_across_namespaces_is_created_changed_and_removed() {
    let (Some(left), Some(right)) = (namespace(), namespace()) else { return };
    let (mut here, mut there) =
        (NamespaceLinks::open_in(&left).unwrap(), NamespaceLinks::open_in(&right).unwrap());
    let mac = [2, 0, 0, 0, 0, 1];
    here.create_veth(
        VethEnd { name: "a", netns: None, mac: Some(mac) },
        VethEnd { name: "b", netns: Some(&right), mac: None },
    )
    .unwrap();
    let (a, b) = (here.find_link_by_name("a").unwrap(), there.find_link_by_name("b").unwrap());
    assert_eq!((a.kind.as_deref(), a.mac, a.up), (Some("veth"), Some(mac), false));
    assert_eq!(a.peer, Some(b.index));
    here.set_mtu(a.index, 9000).unwrap();
    here.set_mac(a.index, [2, 0, 0, 0, 0, 9]).unwrap();
    here.switch_interface(a.index, true).unwrap();
    assert!(!here.find_link_by_name("a").unwrap().carrier, "the other end is down");
    there.switch_interface(b.index, true).unwrap();
    let a = here.find_link_by_name("a").unwrap();
    assert!(a.up && a.carrier);
    assert_eq!((a.mtu, a.mac), (9000, Some([2, 0, 0, 0, 0, 9])));
    there.delete_link(b.index).unwrap();
    assert!(matches!(here.find_link_by_name("a"), Err(Error::Missing { .. })));
}

#[test]
fn a_bridge_takes_and_releases_ports() {
    let Some(netns) = namespace() else { return };
    let mut links = NamespaceLinks::open_in(&netns).unwrap();
    links.create_bridge("br0").unwrap();
    let end = |name| VethEnd { name, netns: None, mac: None };
    links.create_veth(end("a"), end("b")).unwrap();
    let (bridge, a) = (links.find_link_by_name("br0").unwrap(), links.find_link_by_name("a").unwrap());
    assert_eq!(bridge.kind.as_deref(), Some("bridge"));
    links.set_master(a.index, Some(bridge.index)).unwrap();
    assert_eq!(links.find_link_by_name("a").unwrap().master, Some(bridge.index));
    links.set_master(a.index, None).unwrap();
    assert_eq!(links.find_link_by_name("a").unwrap().master, None);
    assert!(links.create_bridge("br0").is_err(), "the name is taken");
}

#[test]
fn an_interface_moves_to_another_namespace() {
    let (Some(left), Some(right)) = (namespace(), namespace()) else { return };
    let (mut here, mut there) =
        (NamespaceLinks::open_in(&left).unwrap(), NamespaceLinks::open_in(&right).unwrap());
    here.create_bridge("br0").unwrap();
    let index = here.find_link_by_name("br0").unwrap().index;
    let moved = here.move_interface_to(index, &right);
    // A bridge is bound to its namespace; a cable's end is not.
    assert!(moved.is_err());
    let end = |name| VethEnd { name, netns: None, mac: None };
    here.create_veth(end("a"), end("b")).unwrap();
    let index = here.find_link_by_name("b").unwrap().index;
    here.move_interface_to(index, &right).unwrap();
    there.find_link_by_name("b").unwrap();
    assert!(here.find_link_by_name("b").is_err());
}

#[test]
fn addresses_and_default_routes_belong_to_their_interface() {
    let Some(netns) = namespace() else { return };
    let mut links = NamespaceLinks::open_in(&netns).unwrap();
    let end = |name| VethEnd { name, netns: None, mac: None };
    links.create_veth(end("a"), end("b")).unwrap();
    let (a, b) = (links.find_link_by_name("a").unwrap().index, links.find_link_by_name("b").unwrap().index);
    let (four, six) =
        (IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1)), "2001:2::1".parse::<Ipv6Addr>().unwrap().into());
    for index in [a, b] {
        links.switch_interface(index, true).unwrap();
    }
    links.add_address(a, four, 24).unwrap();
    links.add_address(a, six, 64).unwrap();
    let addresses = links.list_addresses().unwrap();
    assert!(addresses.contains(&LinkAddress { index: a, ip: four, prefix: 24 }));
    assert!(addresses.contains(&LinkAddress { index: a, ip: six, prefix: 64 }));
    assert_eq!(links.list_global_addresses().unwrap(), [four, six], "neither loopback nor of one link");
    assert!(links.list_default_route_interfaces().unwrap().is_empty());
    let route = |arguments: &'static [&'static str]| {
        let run = move || std::process::Command::new("ip").args(arguments).status();
        netns.run_in_namespace(run).unwrap().map(|status| assert!(status.success()))
    };
    match route(&["route", "add", "default", "via", "198.18.0.2"]) {
        Ok(()) => assert_eq!(links.list_default_route_interfaces().unwrap(), BTreeSet::from([a])),
        Err(error) => println!("skipped: ip: {error}"),
    }
}

#[test]
fn route_and_neighbour_are_requested_and_found() {
    let (Some(left), Some(right)) = (namespace(), namespace()) else { return };
    let (mut here, mut there) =
        (NamespaceLinks::open_in(&left).unwrap(), NamespaceLinks::open_in(&right).unwrap());
    let mac = [2, 0, 0, 0, 0, 9];
    let near = VethEnd { name: "a", netns: None, mac: None };
    here.create_veth(near, VethEnd { name: "b", netns: Some(&right), mac: Some(mac) }).unwrap();
    let (a, b) = (here.find_link_by_name("a").unwrap().index, there.find_link_by_name("b").unwrap().index);
    here.switch_interface(a, true).unwrap();
    there.switch_interface(b, true).unwrap();
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let (own, far, nobody) = (ip("192.0.2.1"), ip("192.0.2.2"), ip("192.0.2.3"));
    assert_eq!(here.find_route(far, None).unwrap(), None);
    here.add_address(a, own, 24).unwrap();
    there.add_address(b, far, 24).unwrap();
    let route = KernelRoute { index: a, source: Some(own), gateway: None, is_local: false };
    assert_eq!(here.find_route(far, None).unwrap(), Some(route));
    assert!(here.find_route(own, None).unwrap().unwrap().is_local);
    assert_eq!(here.find_neighbour(a, far).unwrap(), NeighbourEntry::Unknown);
    for (of, end) in [(far, NeighbourEntry::At(mac)), (nobody, NeighbourEntry::Silent)] {
        here.start_neighbour_resolution(a, of).unwrap();
        let mut found = here.find_neighbour(a, of).unwrap();
        while found == NeighbourEntry::Asked {
            std::thread::sleep(std::time::Duration::from_millis(5));
            found = here.find_neighbour(a, of).unwrap();
        }
        assert_eq!(found, end);
    }
}
