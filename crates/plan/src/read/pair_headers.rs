//! The headers of a device flow for one pair of interfaces: takes missing values from the interfaces, gives the pair
//! its share of varying values, and reverses the headers of the opposite direction.

use super::ends::{EndpointPair, FlowEndpoint, NamedEndpoints};
use crate::FlowShare;
use crate::device::{DeviceAddress, DeviceInterface, DeviceNeighbour, Mac, VlanTag};
use packetrig_wire::foreign::FrameRewrite;
use packetrig_wire::header::{AbsentValue, FieldSetting, HeaderKind, PacketHeader};
use packetrig_wire::pattern::FieldPattern;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The headers of one pair's frames.
pub(super) struct PairHeaders {
    pub(super) headers: Vec<PacketHeader>,
    /// The neighbour whose MAC address the headers need and that is not known yet.
    pub(super) awaits: Option<DeviceNeighbour>,
    /// True if the next hop is a router.
    pub(super) routed: bool,
}

/// Makes the headers for a pair. The error is a message for the user.
pub(super) fn build_headers_for_pair(
    headers: &[PacketHeader],
    pair: &EndpointPair,
    known: &NamedEndpoints<'_>,
) -> Result<PairHeaders, String> {
    let mut headers =
        if headers.is_empty() { vec![PacketHeader::new(HeaderKind::Ethernet)] } else { headers.to_vec() };
    // Values are divided among the pairs before the direction is reversed, so both directions of a pair have the same
    // share.
    for header in &mut headers {
        *header = select_part_values(header, pair.part)?;
    }
    if pair.is_reverse {
        reverse_direction(&mut headers);
    }
    let from = &known.interfaces[pair.from.interface];
    // Without an Ethernet header there are no tags and no MAC addresses to fill in.
    if headers[0].kind() != HeaderKind::Ethernet {
        return Ok(PairHeaders { headers, awaits: None, routed: false });
    }
    // The order matters: tags move the IP header, and the next hop depends on the addresses.
    insert_tags(&mut headers, &from.vlans);
    if headers[0].field_setting("src").is_none() {
        headers[0].set_field("src", mac_setting(from.mac));
    }
    fill_addresses(&mut headers, pair, known)?;
    // A MAC address in the document is the user's choice. It replaces the search for a next hop.
    let hop = if headers[0].field_setting("dst").is_some() {
        NextHop::default()
    } else {
        find_next_hop(&headers, pair, known)?
    };
    if let Some(mac) = hop.mac {
        headers[0].set_field("dst", mac_setting(mac));
    }
    Ok(PairHeaders { headers, awaits: hop.awaits, routed: hop.is_router })
}

/// Returns the header with the values that belong to this part of the flow's frames.
fn select_part_values(header: &PacketHeader, part: FlowShare) -> Result<PacketHeader, String> {
    // Frame n of part i is frame n * of + i of the flow, and must have that frame's values: all pairs together then
    // send exactly the values that the document asks for.
    let mut mine = header.clone();
    for (field, setting) in header.field_settings() {
        let FieldSetting::Pattern(pattern) = setting else { continue };
        let pattern = pattern.every_nth(part.index, part.of).ok_or_else(|| {
            format!(
                "the {} values of `{}.{}` cannot be divided among {} pairs of interfaces; make `count` a \
                    multiple of the number of pairs, or at most 65536",
                pattern.period(),
                header.kind().name(),
                field.name,
                part.of
            )
        })?;
        mine.set_field(field.name, FieldSetting::Pattern(pattern));
    }
    Ok(mine)
}

/// Reverses the direction of the frames: swaps IP addresses, and UDP and TCP ports. Swaps MAC addresses only if the
/// document gives both; otherwise removes them, and the MAC addresses of the interfaces are filled in later.
fn reverse_direction(headers: &mut [PacketHeader]) {
    let kinds: Vec<HeaderKind> = headers.iter().map(PacketHeader::kind).collect();
    for (index, header) in headers.iter_mut().enumerate() {
        match header.kind() {
            HeaderKind::Ethernet
                if header.field_setting("src").is_some() && header.field_setting("dst").is_some() =>
            {
                swap_settings(header, "src", "dst");
            }
            HeaderKind::Ethernet => {
                header.unset_field("src");
                header.unset_field("dst");
            }
            HeaderKind::Ipv4 | HeaderKind::Ipv6 => swap_settings(header, "src", "dst"),
            // The destination port of a tunnel announces the content of the packet in both directions, so
            // it is not swapped.
            HeaderKind::Udp if kinds.get(index + 1).is_some_and(|next| *next != HeaderKind::Custom) => {}
            HeaderKind::Udp | HeaderKind::Tcp => {
                set_default_value(header, "src_port");
                set_default_value(header, "dst_port");
                swap_settings(header, "src_port", "dst_port");
            }
            _ => {}
        }
    }
}

fn swap_settings(header: &mut PacketHeader, one: &str, other: &str) {
    // Both addresses are copied first: setting one of them would overwrite the other.
    let first = header.field_setting(one).cloned();
    let second = header.field_setting(other).cloned();
    for (name, setting) in [(one, second), (other, first)] {
        header.unset_field(name);
        if let Some(setting) = setting {
            header.set_field(name, setting);
        }
    }
}

/// Sets a field to the value that it has by default, so that it can be swapped.
fn set_default_value(header: &mut PacketHeader, name: &str) {
    let field = header.kind().fields().iter().find(|field| field.name == name);
    if let (None, Some(AbsentValue::Value(value))) =
        (header.field_setting(name), field.map(|field| field.absent))
    {
        header.set_field(name, FieldSetting::Pattern(FieldPattern::Value(value)));
    }
}

/// Puts the interface's VLAN tags after the Ethernet header, unless the document has tags there.
fn insert_tags(headers: &mut Vec<PacketHeader>, vlans: &[VlanTag]) {
    if vlans.is_empty() || headers.get(1).is_some_and(|header| header.kind() == HeaderKind::Vlan) {
        return;
    }
    // An EtherType in the document announces the header after the last tag, so it moves into the last tag.
    let innermost = headers[0].field_setting("ether_type").cloned();
    headers[0].set_field("ether_type", fixed_setting(vlans[0].tpid));
    for (index, vlan) in vlans.iter().enumerate() {
        let mut header = PacketHeader::new(HeaderKind::Vlan);
        header.set_field("priority", fixed_setting(vlan.priority.into()));
        header.set_field("id", fixed_setting(vlan.id));
        // The TPID field of a tag announces the next part: another tag, or the content of the frame.
        let next = vlans.get(index + 1).map(|next| fixed_setting(next.tpid));
        if let Some(follows) = next.or_else(|| innermost.clone()) {
            header.set_field("tpid", follows);
        }
        headers.insert(1 + index, header);
    }
}

/// The index of the outermost IP header, if it directly follows Ethernet and its tags.
fn find_outer_ip_header(headers: &[PacketHeader]) -> Option<usize> {
    // Only the outermost IP header is between the two interfaces. Inner headers belong to a tunnel.
    let first = headers.iter().skip(1).position(|header| header.kind() != HeaderKind::Vlan)? + 1;
    matches!(headers[first].kind(), HeaderKind::Ipv4 | HeaderKind::Ipv6).then_some(first)
}

/// Sets the addresses of the outermost IP header that the document does not give: those of the two interfaces.
fn fill_addresses(
    headers: &mut [PacketHeader],
    pair: &EndpointPair,
    known: &NamedEndpoints<'_>,
) -> Result<(), String> {
    let Some(at) = find_outer_ip_header(headers) else { return Ok(()) };
    let header = &mut headers[at];
    let is_v6 = header.kind() == HeaderKind::Ipv6;
    for (field, endpoint) in [("src", pair.from), ("dst", pair.to)] {
        if header.field_setting(field).is_none() {
            let source = find_endpoint_address(endpoint, is_v6, known)?;
            header.set_field(
                field,
                FieldSetting::Pattern(FieldPattern::Value(ip_to_number(source.address.ip))),
            );
        }
    }
    Ok(())
}

/// An address of an interface, with its index in the list of the interface.
struct IndexedAddress<'a> {
    index: usize,
    address: &'a DeviceAddress,
}

/// Finds the endpoint's address of this version of IP: the named address, or the first one of the interface.
fn find_endpoint_address<'a>(
    endpoint: FlowEndpoint,
    is_v6: bool,
    known: &NamedEndpoints<'a>,
) -> Result<IndexedAddress<'a>, String> {
    let interfaces: &'a [DeviceInterface] = known.interfaces;
    let addresses = interfaces[endpoint.interface].addresses.iter().enumerate();
    let mut fitting = addresses
        .map(|(index, address)| IndexedAddress { index, address })
        .filter(|found| found.address.ip.is_ipv6() == is_v6)
        .filter(|found| endpoint.address.is_none_or(|named| named == found.index));
    fitting.next().ok_or_else(|| {
        let version = if is_v6 { "IPv6" } else { "IPv4" };
        format!(
            "`{}` has no {version} address for the {version} header of the flow",
            known.endpoint_name(endpoint)
        )
    })
}

/// The host or router that the frames are sent to first.
#[derive(Default)]
struct NextHop {
    /// MAC address of the next hop, if it is known.
    mac: Option<Mac>,
    /// The neighbour whose MAC address must be resolved, if the next hop's is not known.
    awaits: Option<DeviceNeighbour>,
    is_router: bool,
}

impl NextHop {
    fn on_link(mac: Mac) -> Self {
        Self { mac: Some(mac), ..Self::default() }
    }
}

/// Finds the next hop: the destination itself if it is in the sender's network, otherwise the gateway. For frames
/// without an IP header it is the other interface.
fn find_next_hop(
    headers: &[PacketHeader],
    pair: &EndpointPair,
    known: &NamedEndpoints<'_>,
) -> Result<NextHop, String> {
    let Some(ip) = find_outer_ip_header(headers).map(|at| &headers[at]) else {
        return Ok(NextHop::on_link(known.interfaces[pair.to.interface].mac));
    };
    let is_v6 = ip.kind() == HeaderKind::Ipv6;
    let destination = constant_destination(ip);
    let IndexedAddress { index, address: source } = find_endpoint_address(pair.from, is_v6, known)?;
    let direct = destination.filter(|ip| source.is_on_link(*ip));
    // OTG: a MAC address given for the gateway replaces ARP and neighbour discovery.
    if let Some(mac) = source.gateway_mac {
        return Ok(NextHop { is_router: direct.is_none(), ..NextHop::on_link(mac) });
    }
    // No neighbour answers for a multicast group: its MAC address follows from its IP address.
    if let Some(mac) = destination.and_then(multicast_mac) {
        return Ok(NextHop::on_link(mac));
    }
    // Destinations that vary may be anywhere, so they go to the gateway, even if some are in the network.
    let ip = direct.or(source.gateway).ok_or_else(|| {
        format!(
            "`{}` has no gateway, and the destination varies or is not in its network; give it a `gateway`",
            known.endpoint_name(pair.from)
        )
    })?;
    let awaits = Some(DeviceNeighbour { interface: pair.from.interface, address: index, ip });
    Ok(NextHop { mac: None, awaits, is_router: direct.is_none() })
}

/// Directs the frames of a recording to the gateway of the sending interface or, without a gateway, to the other
/// interface. Returns the neighbour whose MAC address is not known yet, if there is one. The error is a
/// message for the user.
pub(super) fn direct_recording_to_gateway(
    rewrite: &mut FrameRewrite,
    pair: &EndpointPair,
    known: &NamedEndpoints<'_>,
) -> Result<Option<DeviceNeighbour>, String> {
    let from = &known.interfaces[pair.from.interface];
    rewrite.src_mac.get_or_insert(from.mac);
    let address = pair.from.address.unwrap_or(0);
    // A MAC address that the document gives stays, as it does in frames that packetrig makes itself.
    let Some(source) = from.addresses.get(address).filter(|_| rewrite.dst_mac.is_none()) else {
        rewrite.dst_mac.get_or_insert(known.interfaces[pair.to.interface].mac);
        return Ok(None);
    };
    if source.gateway_mac.is_some() {
        rewrite.dst_mac = source.gateway_mac;
        return Ok(None);
    }
    // Frames of a file may go to any address, so nothing shows whether one is in the network. The gateway
    // is the safe next hop.
    let ip = match source.gateway {
        Some(gateway) => gateway,
        None => find_endpoint_address(pair.to, source.ip.is_ipv6(), known)?.address.ip,
    };
    Ok(Some(DeviceNeighbour { interface: pair.from.interface, address, ip }))
}

/// The destination IP address, if it is the same for all frames.
fn constant_destination(ip: &PacketHeader) -> Option<IpAddr> {
    let Some(FieldSetting::Pattern(FieldPattern::Value(value))) = ip.field_setting("dst") else {
        return None;
    };
    Some(match ip.kind() {
        HeaderKind::Ipv6 => IpAddr::V6(Ipv6Addr::from_bits(*value)),
        _ => IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(*value).ok()?)),
    })
}

/// The MAC address of a multicast group: 01-00-5e and the low 23 bits (RFC 1112, 6.4), or 33-33 and the low 32 bits
/// (RFC 2464, 7). For 255.255.255.255 it is the broadcast address; for a unicast address, `None`.
fn multicast_mac(ip: IpAddr) -> Option<Mac> {
    match ip {
        IpAddr::V4(ip) if ip.is_broadcast() => Some([0xff; 6]),
        IpAddr::V4(ip) if ip.is_multicast() => {
            let [_, b, c, d] = ip.octets();
            Some([1, 0, 0x5e, b & 0x7f, c, d])
        }
        IpAddr::V6(ip) if ip.is_multicast() => {
            let [.., a, b, c, d] = ip.octets();
            Some([0x33, 0x33, a, b, c, d])
        }
        _ => None,
    }
}

fn ip_to_number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_bits().into(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

fn fixed_setting(value: u16) -> FieldSetting {
    FieldSetting::Pattern(FieldPattern::Value(value.into()))
}

fn mac_setting(mac: Mac) -> FieldSetting {
    FieldSetting::Pattern(FieldPattern::Value(
        mac.iter().fold(0, |value, byte| value << 8 | u128::from(*byte)),
    ))
}
