//! Bytes of the frames that neighbours exchange: ARP (RFC 826), neighbour discovery (RFC 4861), echo
//! (RFC 792, RFC 4443).
//!
//! Parsers accept any bytes; they return `None` for frames that they do not understand.

use packetrig_plan::device::{DeviceInterface, Mac};
use packetrig_units::{clamp_to_u16, clamp_to_u32};
use packetrig_wire::checksum;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub(super) const BROADCAST_MAC: Mac = [0xff; 6];
const ARP_ETHERTYPE: u16 = 0x0806;
const IPV4_ETHERTYPE: u16 = 0x0800;
const IPV6_ETHERTYPE: u16 = 0x86dd;
const VLAN_TPIDS: [u16; 5] = [0x8100, 0x88a8, 0x9100, 0x9200, 0x9300];
/// Maximum number of VLAN tags that are parsed; no emulated interface has more.
const MAX_TAGS: usize = 6;
const ICMP_PROTOCOL: u8 = 1;
const ICMPV6: u8 = 58;
const IGMP: u8 = 2;
const UDP: u8 = 17;
const MDNS_PORT: u16 = 5353;
/// Minimum length of a frame without FCS.
const MIN_FRAME_BYTES: usize = 60;

/// A parsed Ethernet frame: its addresses and VLAN tags, and the bytes after the EtherType.
#[derive(Clone, Debug)]
pub(super) struct DeviceFrame<'a> {
    pub(super) to: Mac,
    pub(super) from: Mac,
    /// VLAN tags as (TPID, VLAN identifier), outermost first.
    pub(super) tags: Vec<(u16, u16)>,
    ether_type: u16,
    rest: &'a [u8],
}

/// A message that emulated interfaces handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DeviceMessage<'a> {
    /// A station asks for the MAC address of the IP address `target`.
    Asks { sender: IpAddr, mac: Option<Mac>, target: IpAddr },
    /// A station says that it has the IP address `target`.
    Tells { target: IpAddr, mac: Mac },
    /// An echo request or reply.
    Echo { reply: bool, from: IpAddr, to: IpAddr, id: u16, sequence: u16, data: &'a [u8] },
}

pub(super) fn read_u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|two| u16::from_be_bytes(*two))
}

fn read_mac_at(bytes: &[u8], at: usize) -> Option<Mac> {
    bytes.get(at..)?.first_chunk().copied()
}

fn read_ipv4_at(bytes: &[u8], at: usize) -> Option<Ipv4Addr> {
    bytes.get(at..)?.first_chunk::<4>().map(|octets| Ipv4Addr::from(*octets))
}

fn read_ipv6_at(bytes: &[u8], at: usize) -> Option<Ipv6Addr> {
    bytes.get(at..)?.first_chunk::<16>().map(|octets| Ipv6Addr::from(*octets))
}

impl<'a> DeviceFrame<'a> {
    pub(super) fn parse_frame(bytes: &'a [u8]) -> Option<Self> {
        let to = read_mac_at(bytes, 0)?;
        let from = read_mac_at(bytes, 6)?;
        let mut at = 12;
        let mut tags = Vec::new();
        let mut ether_type = read_u16_at(bytes, at)?;
        // The search is bounded, because a frame may consist only of tags, and a frame with more than six is
        // never for an emulated interface.
        while VLAN_TPIDS.contains(&ether_type) && tags.len() < MAX_TAGS {
            tags.push((ether_type, read_u16_at(bytes, at + 2)? & 0xfff));
            at += 4;
            ether_type = read_u16_at(bytes, at)?;
        }
        Some(Self { to, from, tags, ether_type, rest: bytes.get(at + 2..)? })
    }

    pub(super) fn parse_message(&self) -> Option<DeviceMessage<'a>> {
        match self.ether_type {
            ARP_ETHERTYPE => parse_arp(self.rest),
            IPV4_ETHERTYPE => parse_icmp(self.rest),
            IPV6_ETHERTYPE => parse_icmpv6(self.rest),
            _ => None,
        }
    }
}

fn parse_arp(bytes: &[u8]) -> Option<DeviceMessage<'_>> {
    // Hardware type Ethernet, protocol IPv4, and the lengths of their addresses.
    if bytes.get(..6)? != [0, 1, 8, 0, 6, 4] {
        return None;
    }
    let mac = read_mac_at(bytes, 8)?;
    let sender = read_ipv4_at(bytes, 14)?;
    let target = read_ipv4_at(bytes, 24)?;
    match read_u16_at(bytes, 6)? {
        1 => Some(DeviceMessage::Asks { sender: sender.into(), mac: Some(mac), target: target.into() }),
        2 => Some(DeviceMessage::Tells { target: sender.into(), mac }),
        _ => None,
    }
}

fn parse_icmp(bytes: &[u8]) -> Option<DeviceMessage<'_>> {
    let head = usize::from(bytes.first()? & 15) * 4;
    let length = usize::from(read_u16_at(bytes, 2)?);
    // Fragments are ignored. Bits 0 to 12 are the fragment offset and bit 13 is "more fragments" (RFC 791 3.1); "do not
    // fragment" above them may be set.
    let whole = read_u16_at(bytes, 6)?.trailing_zeros() >= 14;
    if bytes[0] >> 4 != 4 || head < 20 || *bytes.get(9)? != ICMP_PROTOCOL || !whole {
        return None;
    }
    // The length comes from the IP header, because a short frame has padding after the packet.
    let message = bytes.get(head..length)?;
    // A one's-complement sum over data that includes its own checksum is all ones (RFC 1071).
    if checksum::ones_complement_sum(bytes.get(..head)?) != 0xffff
        || checksum::ones_complement_sum(message) != 0xffff
    {
        return None;
    }
    let reply = match message.get(..2)? {
        [8, 0] => false,
        [0, 0] => true,
        _ => return None,
    };
    parse_icmp_echo(message, reply, read_ipv4_at(bytes, 12)?.into(), read_ipv4_at(bytes, 16)?.into())
}

fn parse_icmp_echo(message: &[u8], reply: bool, from: IpAddr, to: IpAddr) -> Option<DeviceMessage<'_>> {
    let id = read_u16_at(message, 4)?;
    let sequence = read_u16_at(message, 6)?;
    Some(DeviceMessage::Echo { reply, from, to, id, sequence, data: message.get(8..)? })
}

fn parse_icmpv6(bytes: &[u8]) -> Option<DeviceMessage<'_>> {
    if bytes.first()? >> 4 != 6 || *bytes.get(6)? != ICMPV6 {
        return None;
    }
    let from = read_ipv6_at(bytes, 8)?;
    let to = read_ipv6_at(bytes, 24)?;
    let message = bytes.get(40..40 + usize::from(read_u16_at(bytes, 4)?))?;
    if compute_icmpv6_checksum(from, to, message) != 0xffff {
        return None;
    }
    // A message of neighbour discovery counts only if its hop limit is still 255 and its code 0 (RFC 4861 7.1): a
    // router would have lowered the limit, so the sender is on this link.
    let local = bytes[7] == 255 && message.get(1) == Some(&0);
    match message.first()? {
        135 if local => {
            let mac = find_mac_option(message.get(24..)?, 1);
            Some(DeviceMessage::Asks { sender: from.into(), mac, target: read_ipv6_at(message, 8)?.into() })
        }
        136 if local => {
            let mac = find_mac_option(message.get(24..)?, 2)?;
            Some(DeviceMessage::Tells { target: read_ipv6_at(message, 8)?.into(), mac })
        }
        128 => parse_icmp_echo(message, false, from.into(), to.into()),
        129 => parse_icmp_echo(message, true, from.into(), to.into()),
        _ => None,
    }
}

/// Finds the MAC address in the neighbour discovery options: kind 1 is the source, 2 the target (RFC 4861 4.6.1).
fn find_mac_option(mut bytes: &[u8], kind: u8) -> Option<Mac> {
    loop {
        // The length counts units of 8 bytes, type and length byte included. A length of zero is invalid
        // (RFC 4861 4.6); it would make this loop endless.
        let length = usize::from(*bytes.get(1)?) * 8;
        let option = bytes.get(..length).filter(|option| !option.is_empty())?;
        if option[0] == kind {
            return read_mac_at(option, 2);
        }
        bytes = &bytes[length..];
    }
}

fn compute_icmpv6_checksum(from: Ipv6Addr, to: Ipv6Addr, message: &[u8]) -> u16 {
    let mut sum = checksum::ChecksumSum::default();
    // The pseudo-header of RFC 8200 8.1: both addresses, the length as 32 bits, three zero bytes and the protocol.
    sum.add_bytes(&from.octets());
    sum.add_bytes(&to.octets());
    sum.add_bytes(&clamp_to_u32(message.len()).to_be_bytes());
    sum.add_bytes(&u32::from(ICMPV6).to_be_bytes());
    sum.add_bytes(message);
    sum.folded_sum()
}

/// Returns the solicited-node multicast address of `ip`.
pub(super) fn solicited_node_address(ip: Ipv6Addr) -> Ipv6Addr {
    // RFC 4291 2.7.1: ff02::1:ff00:0/104 and the last 24 bits of the address.
    let [.., a, b, c] = ip.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]))
}

/// Returns the multicast MAC address of an IPv6 group.
pub(super) fn multicast_mac(ip: Ipv6Addr) -> Mac {
    // RFC 2464 section 7: 33:33 and the last four bytes of the group.
    let [.., a, b, c, d] = ip.octets();
    [0x33, 0x33, a, b, c, d]
}

/// Returns the link-local address of an interface (RFC 4291, modified EUI-64).
pub(super) fn link_local_address(mac: Mac) -> Ipv6Addr {
    let mut octets = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 0];
    octets[8..11].copy_from_slice(&mac[..3]);
    octets[13..].copy_from_slice(&mac[3..]);
    // The universal/local bit is inverted (RFC 4291 appendix A).
    octets[8] ^= 2;
    Ipv6Addr::from(octets)
}

fn build_ethernet_frame(interface: &DeviceInterface, to: Mac, ether_type: u16, packet: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(MIN_FRAME_BYTES.max(packet.len() + 32));
    frame.extend(to);
    frame.extend(interface.mac);
    for tag in &interface.vlans {
        frame.extend(tag.tpid.to_be_bytes());
        frame.extend((u16::from(tag.priority) << 13 | tag.id).to_be_bytes());
    }
    frame.extend(ether_type.to_be_bytes());
    frame.extend(packet);
    frame.resize(frame.len().max(MIN_FRAME_BYTES), 0);
    frame
}

/// Builds an ARP message: operation 1 is a request, 2 a reply.
pub(super) fn build_arp_frame(
    interface: &DeviceInterface,
    operation: u8,
    from: Ipv4Addr,
    to_mac: Mac,
    to: Ipv4Addr,
) -> Vec<u8> {
    let mut packet = vec![0, 1, 8, 0, 6, 4, 0, operation];
    packet.extend(interface.mac);
    packet.extend(from.octets());
    packet.extend(if operation == 1 { [0; 6] } else { to_mac });
    packet.extend(to.octets());
    build_ethernet_frame(interface, to_mac, ARP_ETHERTYPE, &packet)
}

/// Builds a neighbour solicitation for the MAC address of `target`.
pub(super) fn build_neighbour_solicitation(
    interface: &DeviceInterface,
    from: Ipv6Addr,
    target: Ipv6Addr,
) -> Vec<u8> {
    let mut message = vec![135, 0, 0, 0, 0, 0, 0, 0];
    message.extend(target.octets());
    message.extend([1, 1]);
    message.extend(interface.mac);
    let to = solicited_node_address(target);
    build_icmpv6_frame(interface, multicast_mac(to), Endpoints { from, to }, 255, message)
}

/// Builds a neighbour advertisement for `target`. Without a requester it is unsolicited and goes to all nodes.
pub(super) fn build_neighbour_advertisement(
    interface: &DeviceInterface,
    target: Ipv6Addr,
    requester: Option<(Mac, Ipv6Addr)>,
) -> Vec<u8> {
    // RFC 4861 4.4: 0x40 is "solicited", which is set only if the requester has an address; 0x20 is "override".
    let flags = if requester.is_some() { 0x60 } else { 0x20 };
    let mut message = vec![136, 0, 0, 0, flags, 0, 0, 0];
    message.extend(target.octets());
    message.extend([2, 1]);
    message.extend(interface.mac);
    let everybody = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let requester = requester.unwrap_or_else(|| (multicast_mac(everybody), everybody));
    build_icmpv6_frame(interface, requester.0, Endpoints { from: target, to: requester.1 }, 255, message)
}

/// Source and destination address of a packet.
#[derive(Clone, Copy)]
pub(super) struct Endpoints<A> {
    pub(super) from: A,
    pub(super) to: A,
}

/// Fields that identify an echo message.
#[derive(Clone, Copy)]
pub(super) struct EchoHeader {
    pub(super) reply: bool,
    pub(super) id: u16,
    pub(super) sequence: u16,
}

fn build_icmpv6_frame(
    interface: &DeviceInterface,
    mac: Mac,
    ends: Endpoints<Ipv6Addr>,
    hops: u8,
    mut message: Vec<u8>,
) -> Vec<u8> {
    let Endpoints { from, to } = ends;
    let sum = !compute_icmpv6_checksum(from, to, &message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(clamp_to_u16(message.len()).to_be_bytes());
    packet.extend([ICMPV6, hops]);
    packet.extend(from.octets());
    packet.extend(to.octets());
    packet.extend(message);
    build_ethernet_frame(interface, mac, IPV6_ETHERTYPE, &packet)
}

/// Builds an echo message from one address to another; `None` if one is IPv4 and the other IPv6.
pub(super) fn build_echo_frame(
    interface: &DeviceInterface,
    mac: Mac,
    ends: Endpoints<IpAddr>,
    echo: EchoHeader,
    data: &[u8],
) -> Option<Vec<u8>> {
    let kind = match (ends.from, echo.reply) {
        (IpAddr::V4(_), false) => 8,
        (IpAddr::V4(_), true) => 0,
        (IpAddr::V6(_), false) => 128,
        (IpAddr::V6(_), true) => 129,
    };
    let mut message = vec![kind, 0, 0, 0];
    message.extend(echo.id.to_be_bytes());
    message.extend(echo.sequence.to_be_bytes());
    message.extend(data);
    match (ends.from, ends.to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let sum = !checksum::ones_complement_sum(&message);
            message[2..4].copy_from_slice(&sum.to_be_bytes());
            let length = u16::try_from(20 + message.len()).ok()?;
            let mut packet = vec![0x45, 0];
            packet.extend(length.to_be_bytes());
            packet.extend([0, 0, 0, 0, 64, ICMP_PROTOCOL, 0, 0]);
            packet.extend(from.octets());
            packet.extend(to.octets());
            let sum = !checksum::ones_complement_sum(&packet);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
            packet.extend(message);
            Some(build_ethernet_frame(interface, mac, IPV4_ETHERTYPE, &packet))
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            Some(build_icmpv6_frame(interface, mac, Endpoints { from, to }, 64, message))
        }
        _ => None,
    }
}

/// Returns whether a frame belongs to a protocol that hosts and emulated interfaces use by themselves on a link:
/// ARP, ICMP, ICMPv6 (neighbour and multicast listener discovery), IGMP, multicast DNS.
pub fn is_link_protocol_frame(bytes: &[u8]) -> bool {
    let Some(frame) = DeviceFrame::parse_frame(bytes) else { return false };
    match frame.ether_type {
        ARP_ETHERTYPE => true,
        IPV4_ETHERTYPE => {
            let head = frame.rest.first().map_or(20, |first| usize::from(first & 15) * 4);
            match frame.rest.get(9) {
                Some(&(ICMP_PROTOCOL | IGMP)) => true,
                Some(&UDP) => read_u16_at(frame.rest, head + 2) == Some(MDNS_PORT),
                _ => false,
            }
        }
        // Multicast listener reports have a router alert option in a hop-by-hop header, which precedes ICMPv6.
        IPV6_ETHERTYPE if frame.rest.get(6) == Some(&0) => {
            is_ipv6_link_protocol(&frame, frame.rest.get(40), 48)
        }
        IPV6_ETHERTYPE => is_ipv6_link_protocol(&frame, frame.rest.get(6), 40),
        _ => false,
    }
}

fn is_ipv6_link_protocol(frame: &DeviceFrame<'_>, next: Option<&u8>, head: usize) -> bool {
    match next {
        Some(&ICMPV6) => true,
        Some(&UDP) => read_u16_at(frame.rest, head + 2) == Some(MDNS_PORT),
        _ => false,
    }
}
