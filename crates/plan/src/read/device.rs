//! Devices: emulated interfaces and their addresses. Their routing protocols are refused by path.

use super::{NOT_YET, PortNames, UniqueNames, port_named};
use crate::device::{DeviceAddress, DeviceInterface, Mac, VlanTag};
use crate::reader::{DocumentItem, DocumentObject};
use crate::recording;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const PROTOCOLS: &[&str] = &[
    "ipv4_loopbacks",
    "ipv6_loopbacks",
    "isis",
    "bgp",
    "vxlan",
    "rsvp",
    "dhcp_server",
    "ospfv2",
    "ospfv3",
    "macsec",
    "rocev2",
    "bmp",
];
/// OTG's names of tag protocol identifiers.
const TPIDS: &[(&str, u16)] =
    &[("x8100", 0x8100), ("x88A8", 0x88a8), ("x9100", 0x9100), ("x9200", 0x9200), ("x9300", 0x9300)];
/// Most tags of an interface: the receive filter checks no more.
const MOST_TAGS: usize = 4;

/// The devices of a document.
#[derive(Default)]
pub(super) struct NamedDevices {
    /// Interfaces of all devices.
    pub(super) interfaces: Vec<DeviceInterface>,
    pub(super) names: Vec<String>,
}

pub(super) fn devices(
    config: &DocumentObject<'_>,
    ports: &PortNames,
    names: &mut UniqueNames,
) -> NamedDevices {
    let mut devices = NamedDevices::default();
    let mut taken = TakenAddresses::new();
    for item in config.items("devices") {
        let Some(object) = item.object() else { continue };
        let device = names.claim(&object);
        for item in object.items("ethernets") {
            devices.interfaces.extend(ethernet(&item, &device, ports, names, &mut taken));
        }
        object.refuse(PROTOCOLS, NOT_YET);
        object.close();
        devices.names.push(device);
    }
    devices
}

fn ethernet(
    item: &DocumentItem<'_>,
    device: &str,
    ports: &PortNames,
    names: &mut UniqueNames,
    taken: &mut TakenAddresses,
) -> Option<DeviceInterface> {
    let object = item.object()?;
    let name = names.claim(&object);
    let port = object.require("connection").and_then(|item| connection(&item, ports));
    let mac = object.require("mac").and_then(|item| unicast(&item));
    let vlans = vlans(&object, names);
    let mut addresses = Vec::new();
    for (list, is_v6) in [("ipv4_addresses", false), ("ipv6_addresses", true)] {
        addresses.extend(object.items(list).iter().filter_map(|item| address(item, is_v6, names)));
    }
    if object.number("mtu", 1500, 0, 65_535) != 1500 {
        object.item.warn("`mtu` has no effect: frames have the sizes their flows give");
    }
    object.refuse(&["dhcpv4_interfaces", "dhcpv6_interfaces"], NOT_YET);
    object.close();
    // Missing members count only now, after all others were read, so that users see all problems at once.
    let found = DeviceInterface { name, device: device.to_owned(), port: port?, mac: mac?, vlans, addresses };
    refuse_twins(item, &found, taken);
    Some(found)
}

/// The interface that has an address, for each network (a port and VLAN tags).
type TakenAddresses = HashMap<(usize, Vec<(u16, u16)>), HashMap<IpAddr, String>>;

/// Refuses an address that another interface of the same network has: both would answer for it.
fn refuse_twins(item: &DocumentItem<'_>, found: &DeviceInterface, taken: &mut TakenAddresses) {
    // Without the priority, which does not divide a link into networks.
    let tags = found.vlans.iter().map(|tag| (tag.tpid, tag.id)).collect();
    let network = taken.entry((found.port, tags)).or_default();
    let twins = found.addresses.iter().filter_map(|address| Some((address.ip, network.get(&address.ip)?)));
    for (ip, owner) in twins {
        item.error(format!("{ip} already belongs to `{owner}`, on the same port and VLAN"));
    }
    for address in &found.addresses {
        network.entry(address.ip).or_insert_with(|| found.name.clone());
    }
}

fn connection(item: &DocumentItem<'_>, ports: &PortNames) -> Option<usize> {
    let object = item.object()?;
    object.do_not_suggest(&["lag_name", "vxlan_name", "simulated_link"]);
    let choice = object.choice(&["port_name", "lag_name", "vxlan_name", "simulated_link"], "port_name");
    if choice != "port_name" {
        object.item.error(format!("`{choice}` is not supported: {NOT_YET}"));
        return None;
    }
    let port = object.require("port_name").and_then(|item| port_named(&item, ports));
    object.close();
    port
}

fn vlans(ethernet: &DocumentObject<'_>, names: &mut UniqueNames) -> Vec<VlanTag> {
    let items = ethernet.items("vlans");
    if items.len() > MOST_TAGS {
        ethernet.item.error(format!("{} VLAN tags; at most {MOST_TAGS} are possible", items.len()));
    }
    let words: Vec<&'static str> = TPIDS.iter().map(|(word, _)| *word).collect();
    items.iter().filter_map(|item| vlan_tag(item, &words, names)).collect()
}

fn vlan_tag(item: &DocumentItem<'_>, words: &[&'static str], names: &mut UniqueNames) -> Option<VlanTag> {
    let object = item.object()?;
    names.claim(&object);
    let word = object.word("tpid", words, "x8100");
    let tpid = TPIDS.iter().find(|(known, _)| *known == word).map_or(0x8100, |(_, tpid)| *tpid);
    let priority = u8::try_from(object.number("priority", 0, 0, 7)).ok()?;
    let id = u16::try_from(object.number("id", 1, 0, 4095)).ok()?;
    object.close();
    Some(VlanTag { tpid, priority, id })
}

fn address(item: &DocumentItem<'_>, is_v6: bool, names: &mut UniqueNames) -> Option<DeviceAddress> {
    let object = item.object()?;
    let name = names.claim(&object);
    let ip = object.require("address").and_then(|item| own(&item, is_v6));
    let gateway = object.require("gateway").and_then(|item| ip_of(&item, is_v6));
    let usual = if is_v6 { 64 } else { 24 };
    let longest = if is_v6 { 128 } else { 32 };
    let prefix = u8::try_from(object.number("prefix", usual, 1, longest)).ok()?;
    let gateway_mac = object.object("gateway_mac").and_then(gateway_mac);
    object.close();
    let gateway = gateway?;
    if gateway.is_multicast() {
        item.error(format!("gateway {gateway} is a multicast address"));
    }
    // OTG requires a gateway, so documents give the unspecified address to say that there is none.
    let gateway = (!gateway.is_unspecified()).then_some(gateway);
    Some(DeviceAddress { name, ip: ip?, prefix, gateway, gateway_mac })
}

fn gateway_mac(object: DocumentObject<'_>) -> Option<Mac> {
    let choice = object.choice(&["auto", "value"], "auto");
    let value = object.get("value");
    object.close();
    match (choice, value) {
        ("value", Some(item)) => mac_of(&item),
        ("value", None) => Some([0; 6]),
        _ => None,
    }
}

/// Reads an address that an interface can have.
fn own(item: &DocumentItem<'_>, is_v6: bool) -> Option<IpAddr> {
    let ip = ip_of(item, is_v6)?;
    if ip.is_unspecified() || ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST) {
        item.error(format!("{ip} cannot be the address of an interface"));
        return None;
    }
    Some(ip)
}

fn ip_of(item: &DocumentItem<'_>, is_v6: bool) -> Option<IpAddr> {
    let text = item.text()?;
    let ip = if is_v6 {
        text.parse::<Ipv6Addr>().ok().map(IpAddr::V6)
    } else {
        text.parse::<Ipv4Addr>().ok().map(IpAddr::V4)
    };
    if ip.is_none() {
        let wanted = if is_v6 { "an IPv6 address like 2001:2::1" } else { "an IPv4 address like 198.18.0.1" };
        item.error(format!("`{text}` is not {wanted}"));
    }
    ip
}

fn mac_of(item: &DocumentItem<'_>) -> Option<Mac> {
    let text = item.text()?;
    let mac = recording::mac(text);
    if mac.is_none() {
        item.error(format!("`{text}` is not a MAC address like 02:00:00:00:00:01"));
    }
    mac
}

/// Reads a MAC address that an interface can have.
fn unicast(item: &DocumentItem<'_>) -> Option<Mac> {
    let mac = mac_of(item)?;
    // The lowest bit of the first byte is the group bit (IEEE Std 802, 8.2).
    if mac[0] & 1 == 1 || mac == [0; 6] {
        item.error("an interface needs a MAC address of its own: not zero, not a group address");
        return None;
    }
    Some(mac)
}
