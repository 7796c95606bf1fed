//! Ports and their layer 1.

use super::{NamedObjectPaths, PortNames, resolve_port_name, site};
use crate::parts::OTHER_NODES_MEMBER;
use crate::reader::DocumentObject;
use crate::{PlanParseOptions, Port, PortHost, PortLocation};
use packetrig_units::BitRate;

/// OTG's speeds, in Mbit/s.
const OTG_SPEEDS: &[(&str, u64)] = &[
    ("speed_10_fd_mbps", 10),
    ("speed_10_hd_mbps", 10),
    ("speed_100_fd_mbps", 100),
    ("speed_100_hd_mbps", 100),
    ("speed_1_gbps", 1_000),
    ("speed_10_gbps", 10_000),
    ("speed_25_gbps", 25_000),
    ("speed_40_gbps", 40_000),
    ("speed_50_gbps", 50_000),
    ("speed_100_gbps", 100_000),
    ("speed_200_gbps", 200_000),
    ("speed_400_gbps", 400_000),
    ("speed_800_gbps", 800_000),
];

pub(super) fn read_ports<'a>(
    config: &DocumentObject<'a>,
    options: PlanParseOptions,
    names: &mut NamedObjectPaths<'a>,
) -> Vec<Port> {
    let mut ports: Vec<Port> = Vec::new();
    let mut taken = site::UsedPortLocations::new();
    for item in config.iter_items("ports").into_iter().flatten() {
        let Some(object) = item.as_object() else { continue };
        if let Some(count) = read_placeholder(&object, options, MAX_PORTS - ports.len().min(MAX_PORTS)) {
            object.refuse_unread_members();
            ports.resize(ports.len() + count, placeholder_port());
            continue;
        }
        let name = names.read_unique_name(&object);
        let place = object
            .require_member("location")
            .and_then(|item| site::read_location(&item, options, &name, &mut taken));
        object.refuse_unread_members();
        // A port without a location is already an error. It is kept, so that references to it cause no further errors.
        let nowhere = site::PortPlace { site: PortHost::Here, location: PortLocation::unknown_location() };
        ports.push(new_port_at(name, place.unwrap_or(nowhere)));
    }
    ports
}

fn new_port_at(name: String, place: site::PortPlace) -> Port {
    Port { name, site: place.site, location: place.location, speed: None, mtu: None, promiscuous: true }
}

/// Placeholders cannot raise the number of ports of a plan above this.
const MAX_PORTS: usize = 1 << 16;

/// The number of ports or flows of other nodes that a placeholder in a part of a plan replaces, at most `most`.
/// `None` if the object is no placeholder.
pub(super) fn read_placeholder(
    object: &DocumentObject<'_>,
    options: PlanParseOptions,
    most: usize,
) -> Option<usize> {
    // Only a part of a plan has placeholders. In other documents the member stays unread, and so it is refused.
    if !options.part {
        return None;
    }
    let item = object.read_member(OTHER_NODES_MEMBER)?;
    // A refused count is already recorded as an error.
    Some(item.as_number(1, most.max(1) as u128).and_then(|count| usize::try_from(count).ok()).unwrap_or(0))
}

fn placeholder_port() -> Port {
    // No node has an empty name, so this port belongs to no machine.
    let site = PortHost::Node(String::new());
    new_port_at(String::new(), site::PortPlace { site, location: PortLocation::unknown_location() })
}

pub(super) fn read_layer1<'a>(
    config: &DocumentObject<'a>,
    ports: &mut [Port],
    port_names: &PortNames,
    names: &mut NamedObjectPaths<'a>,
) {
    for item in config.read_items("layer1") {
        let Some(object) = item.as_object() else { continue };
        names.read_unique_name(&object);
        let named = object.require_member("port_names").map(|item| item.as_list()).unwrap_or_default();
        let members: Vec<usize> =
            named.iter().filter_map(|item| resolve_port_name(item, port_names)).collect();
        let words: Vec<&'static str> = OTG_SPEEDS.iter().map(|(word, _)| *word).collect();
        // A wrong word is already an error; the fallback only lets the reading continue.
        let speed = object.read_member("speed").map(|_| object.read_word("speed", &words, OTG_SPEEDS[4].0));
        let mbits = speed.and_then(|word| OTG_SPEEDS.iter().find(|(known, _)| *known == word));
        let mtu = object.read_member("mtu").map(|_| object.read_number("mtu", 1500, 64, 14_000));
        let promiscuous = object.read_member("promiscuous").map(|_| object.read_flag("promiscuous", true));
        object.ignore_members(
            &["media", "ieee_media_defaults", "auto_negotiate", "auto_negotiation", "flow_control"],
            "packetrig does not change these settings of a link",
        );
        object.refuse_unread_members();
        for member in members {
            let port = &mut ports[member];
            // If the entry lacks a member, the port keeps the value of an earlier entry.
            port.speed = mbits.map(|(_, mbits)| BitRate::new(mbits * 1_000_000)).or(port.speed);
            port.mtu = mtu.and_then(|mtu| u32::try_from(mtu).ok()).or(port.mtu);
            port.promiscuous = promiscuous.unwrap_or(port.promiscuous);
        }
    }
}
