//! Devices: emulated interfaces and their addresses. Routing protocols of devices are not supported: each is an
//! error with its path.

use super::{NamedObjectPaths, PortNames, UNSUPPORTED_TEXT, resolve_port_name};
use crate::device::{DeviceAddress, DeviceInterface, Mac, VlanTag};
use crate::reader::{DocumentItem, DocumentObject};
use crate::recording;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const UNSUPPORTED_DEVICE_PROTOCOLS: &[&str] = &[
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
/// Maximum number of tags of an interface: the receive filter checks no more.
const MAX_TAGS: usize = 4;

/// The devices of a document.
#[derive(Default)]
pub(super) struct NamedDevices {
    /// Interfaces of all devices.
    pub(super) interfaces: Vec<DeviceInterface>,
    pub(super) names: Vec<String>,
}

pub(super) fn read_devices<'a>(
    config: &DocumentObject<'a>,
    ports: &PortNames,
    names: &mut NamedObjectPaths<'a>,
) -> NamedDevices {
    let mut devices = NamedDevices::default();
    let mut taken = AddressOwnersByNetwork::new();
    for item in config.read_items("devices") {
        let Some(object) = item.as_object() else { continue };
        let device = names.read_unique_name(&object);
        for item in object.read_items("ethernets") {
            devices.interfaces.extend(read_interface(&item, &device, ports, names, &mut taken));
        }
        object.refuse_members(UNSUPPORTED_DEVICE_PROTOCOLS, UNSUPPORTED_TEXT);
        object.refuse_unread_members();
        devices.names.push(device);
    }
    devices
}

fn read_interface<'a>(
    item: &DocumentItem<'a>,
    device: &str,
    ports: &PortNames,
    names: &mut NamedObjectPaths<'a>,
    taken: &mut AddressOwnersByNetwork,
) -> Option<DeviceInterface> {
    let object = item.as_object()?;
    let name = names.read_unique_name(&object);
    let port = object.require_member("connection").and_then(|item| read_connected_port(&item, ports));
    let mac = object.require_member("mac").and_then(|item| read_own_mac(&item));
    let vlans = read_vlans(&object, names);
    let mut addresses = Vec::new();
    for (list, is_v6) in [("ipv4_addresses", false), ("ipv6_addresses", true)] {
        addresses.extend(object.read_items(list).iter().filter_map(|item| read_address(item, is_v6, names)));
    }
    if object.read_number("mtu", 1500, 0, 65_535) != 1500 {
        object.item.add_item_warning("`mtu` has no effect: frames have the sizes that their flows set");
    }
    object.refuse_members(&["dhcpv4_interfaces", "dhcpv6_interfaces"], UNSUPPORTED_TEXT);
    object.refuse_unread_members();
    // A missing member ends the reading only here, after all members were read, so that users see all problems at once.
    let found = DeviceInterface { name, device: device.to_owned(), port: port?, mac: mac?, vlans, addresses };
    refuse_duplicate_addresses(item, &found, taken);
    Some(found)
}

/// For each network (a port and its VLAN tags), the name of the interface that has each address.
type AddressOwnersByNetwork = HashMap<(usize, Vec<(u16, u16)>), HashMap<IpAddr, String>>;

/// Refuses an address that another interface of the same network has: both would answer for it.
fn refuse_duplicate_addresses(
    item: &DocumentItem<'_>,
    found: &DeviceInterface,
    taken: &mut AddressOwnersByNetwork,
) {
    // The priority is left out, because it does not divide a link into networks.
    let tags = found.vlans.iter().map(|tag| (tag.tpid, tag.id)).collect();
    let network = taken.entry((found.port, tags)).or_default();
    let twins = found.addresses.iter().filter_map(|address| Some((address.ip, network.get(&address.ip)?)));
    for (ip, owner) in twins {
        item.add_item_error(format!("{ip} already belongs to interface `{owner}` on the same port and VLAN"));
    }
    // The first interface stays the owner, so that all errors about an address name the same interface.
    for address in &found.addresses {
        network.entry(address.ip).or_insert_with(|| found.name.clone());
    }
}

fn read_connected_port(item: &DocumentItem<'_>, ports: &PortNames) -> Option<usize> {
    let object = item.as_object()?;
    object.exclude_from_hints(&["lag_name", "vxlan_name", "simulated_link"]);
    let choice = object.read_choice(&["port_name", "lag_name", "vxlan_name", "simulated_link"], "port_name");
    if choice != "port_name" {
        object.item.add_item_error(format!("`{choice}` is not supported: {UNSUPPORTED_TEXT}"));
        return None;
    }
    let port = object.require_member("port_name").and_then(|item| resolve_port_name(&item, ports));
    object.refuse_unread_members();
    port
}

fn read_vlans<'a>(ethernet: &DocumentObject<'a>, names: &mut NamedObjectPaths<'a>) -> Vec<VlanTag> {
    let items = ethernet.read_items("vlans");
    if items.len() > MAX_TAGS {
        let message = format!("{} VLAN tags are too many; at most {MAX_TAGS} are possible", items.len());
        ethernet.item.add_item_error(message);
    }
    let words: Vec<&'static str> = TPIDS.iter().map(|(word, _)| *word).collect();
    items.iter().filter_map(|item| read_vlan_tag(item, &words, names)).collect()
}

fn read_vlan_tag<'a>(
    item: &DocumentItem<'a>,
    words: &[&'static str],
    names: &mut NamedObjectPaths<'a>,
) -> Option<VlanTag> {
    let object = item.as_object()?;
    names.read_unique_name(&object);
    let word = object.read_word("tpid", words, "x8100");
    let tpid = TPIDS.iter().find(|(known, _)| *known == word).map_or(0x8100, |(_, tpid)| *tpid);
    let priority = u8::try_from(object.read_number("priority", 0, 0, 7)).ok()?;
    let id = u16::try_from(object.read_number("id", 1, 0, 4095)).ok()?;
    object.refuse_unread_members();
    Some(VlanTag { tpid, priority, id })
}

fn read_address<'a>(
    item: &DocumentItem<'a>,
    is_v6: bool,
    names: &mut NamedObjectPaths<'a>,
) -> Option<DeviceAddress> {
    let object = item.as_object()?;
    let name = names.read_unique_name(&object);
    let ip = object.require_member("address").and_then(|item| read_own_ip(&item, is_v6));
    let gateway = object.require_member("gateway").and_then(|item| read_ip(&item, is_v6));
    let usual = if is_v6 { 64 } else { 24 };
    let longest = if is_v6 { 128 } else { 32 };
    let prefix = u8::try_from(object.read_number("prefix", usual, 1, longest)).ok()?;
    let gateway_mac = object.read_object("gateway_mac").and_then(read_gateway_mac);
    object.refuse_unread_members();
    let gateway = gateway?;
    // A multicast address names a group, so no single router would answer for it.
    if gateway.is_multicast() {
        item.add_item_error(format!("gateway {gateway} is a multicast address; use a unicast address"));
    }
    // OTG requires a gateway, so documents give the unspecified address to say that there is none.
    let gateway = (!gateway.is_unspecified()).then_some(gateway);
    Some(DeviceAddress { name, ip: ip?, prefix, gateway, gateway_mac })
}

fn read_gateway_mac(object: DocumentObject<'_>) -> Option<Mac> {
    let choice = object.read_choice(&["auto", "value"], "auto");
    let value = object.read_member("value");
    object.refuse_unread_members();
    match (choice, value) {
        ("value", Some(item)) => read_mac(&item),
        // OTG's default of `value` is 00:00:00:00:00:00.
        ("value", None) => Some([0; 6]),
        _ => None,
    }
}

/// Reads an address that an interface can have.
fn read_own_ip(item: &DocumentItem<'_>, is_v6: bool) -> Option<IpAddr> {
    let ip = read_ip(item, is_v6)?;
    if ip.is_unspecified() || ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST) {
        item.add_item_error(format!("{ip} cannot be the address of an interface"));
        return None;
    }
    Some(ip)
}

fn read_ip(item: &DocumentItem<'_>, is_v6: bool) -> Option<IpAddr> {
    let text = item.as_text()?;
    let ip = if is_v6 {
        text.parse::<Ipv6Addr>().ok().map(IpAddr::V6)
    } else {
        text.parse::<Ipv4Addr>().ok().map(IpAddr::V4)
    };
    if ip.is_none() {
        let wanted = if is_v6 { "an IPv6 address like 2001:2::1" } else { "an IPv4 address like 198.18.0.1" };
        item.add_item_error(format!("`{text}` is not {wanted}"));
    }
    ip
}

fn read_mac(item: &DocumentItem<'_>) -> Option<Mac> {
    let text = item.as_text()?;
    let mac = recording::parse_mac(text);
    if mac.is_none() {
        item.add_item_error(format!("`{text}` is not a MAC address like 02:00:00:00:00:01"));
    }
    mac
}

/// Reads a MAC address that an interface can have.
fn read_own_mac(item: &DocumentItem<'_>) -> Option<Mac> {
    let mac = read_mac(item)?;
    // The lowest bit of the first byte is the group bit (IEEE Std 802, 8.2).
    if mac[0] & 1 == 1 || mac == [0; 6] {
        item.add_item_error("the MAC address of an interface must be neither zero nor a group address");
        return None;
    }
    Some(mac)
}
