//! Headers below IP: Ethernet, VLAN tags, MPLS, PPPoE, in any order.
//!
//! An MPLS stack does not state the type of its payload. IP is recognised by its version and a consistent header;
//! Ethernet (a pseudowire), with a control word or without, by a known type.

use super::span::{FrameSpan, be_u16};
use super::tunnel::TunnelPayload;
use crate::{IgnoredReason, PacketInfo};

/// Maximum number of headers below IP that are followed. Real frames have far fewer.
const MAX_LINK_HEADERS: u32 = 24;
/// Maximum number of labels of one MPLS stack.
const MAX_LABELS: usize = 16;

const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;
const PPPOE_ETHERTYPE: u16 = 0x8864;
/// LLC and SNAP headers (RFC 1042) before an EtherType.
const SNAP_HEADER: [u8; 6] = [0xaa, 0xaa, 3, 0, 0, 0];

/// An IP packet, with the version that the header below it states or its own first byte.
#[derive(Clone, Copy, Debug)]
pub(super) enum Layer3<'a> {
    V4(FrameSpan<'a>),
    V6(FrameSpan<'a>),
}

#[derive(Clone, Copy)]
pub(super) enum LinkHeaderType {
    Ethernet,
    Type(u16),
    Ppp,
}

/// Reads the headers from an Ethernet header down to IP.
pub(super) fn read_ethernet_to_ip<'a>(
    bytes: FrameSpan<'a>,
    packet: &mut PacketInfo,
) -> Result<Layer3<'a>, IgnoredReason> {
    read_headers_to_ip(LinkHeaderType::Ethernet, bytes, packet)
}

/// Reads the headers in the payload of a tunnel down to IP.
pub(super) fn read_tunnel_payload_to_ip<'a>(
    kind: TunnelPayload,
    bytes: FrameSpan<'a>,
    packet: &mut PacketInfo,
) -> Result<Layer3<'a>, IgnoredReason> {
    match kind {
        TunnelPayload::Ethernet => {
            // The labels before the tunnel do not belong to the inner packet.
            packet.mpls = [0; 3];
            read_headers_to_ip(LinkHeaderType::Ethernet, bytes, packet)
        }
        TunnelPayload::Type(kind) => read_headers_to_ip(LinkHeaderType::Type(kind), bytes, packet),
        TunnelPayload::Ip => read_ip_version(bytes),
    }
}

/// Reads the version of an IP packet from its first byte.
pub(super) fn read_ip_version(bytes: FrameSpan<'_>) -> Result<Layer3<'_>, IgnoredReason> {
    match bytes.bytes.first().map(|first| first >> 4) {
        None => Err(IgnoredReason::ShortIp),
        Some(4) => Ok(Layer3::V4(bytes)),
        Some(6) => Ok(Layer3::V6(bytes)),
        Some(_) => Err(IgnoredReason::NotIp),
    }
}

/// Follows the headers from the stated type to IP.
#[inline]
pub(super) fn read_headers_to_ip<'a>(
    first: LinkHeaderType,
    bytes: FrameSpan<'a>,
    packet: &mut PacketInfo,
) -> Result<Layer3<'a>, IgnoredReason> {
    let mut next = first;
    let mut bytes = bytes;
    let mut tags = 0;
    // The loop runs once more than headers are allowed: the last iteration finds IP.
    for _ in 0..=MAX_LINK_HEADERS {
        next = match next {
            LinkHeaderType::Ethernet => {
                // In a pseudowire, the tags of the inner frame count, not those of the outer frame.
                tags = 0;
                read_ethernet(&mut bytes, packet)?
            }
            LinkHeaderType::Type(IPV4) => return Ok(Layer3::V4(bytes)),
            LinkHeaderType::Type(IPV6) => return Ok(Layer3::V6(bytes)),
            LinkHeaderType::Type(kind) if is_vlan_ether_type(kind) => {
                tags += 1;
                read_vlan(&mut bytes, tags, packet)?
            }
            LinkHeaderType::Type(kind) if is_mpls_ether_type(kind) => read_mpls(&mut bytes, packet)?,
            LinkHeaderType::Type(PPPOE_ETHERTYPE) => read_pppoe(&mut bytes)?,
            LinkHeaderType::Type(ARP) => return Err(IgnoredReason::Arp),
            LinkHeaderType::Type(kind) => read_llc(kind, &mut bytes)?,
            LinkHeaderType::Ppp => read_ppp(&mut bytes)?,
        };
    }
    Err(IgnoredReason::TooDeep)
}

#[inline]
pub(super) const fn is_vlan_ether_type(kind: u16) -> bool {
    matches!(kind, 0x8100 | 0x88a8 | 0x9100)
}

const fn is_mpls_ether_type(kind: u16) -> bool {
    matches!(kind, 0x8847 | 0x8848)
}

/// Result of reading one header: the type of the next header. The header that was read is removed from the bytes.
type NextHeaderResult = Result<LinkHeaderType, IgnoredReason>;

#[inline]
fn read_ethernet(bytes: &mut FrameSpan<'_>, packet: &mut PacketInfo) -> NextHeaderResult {
    let head = bytes.read_array::<14>().ok_or(IgnoredReason::ShortLink)?;
    let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, k0, k1] = *head;
    packet.destination_mac = [d0, d1, d2, d3, d4, d5];
    packet.source_mac = [s0, s1, s2, s3, s4, s5];
    // A pseudowire brings a second Ethernet header. The tags of the outer
    // one do not belong to the inner frame.
    packet.vlan = 0;
    packet.inner_vlan = 0;
    Ok(LinkHeaderType::Type(u16::from_be_bytes([k0, k1])))
}

fn read_vlan(bytes: &mut FrameSpan<'_>, number: u32, packet: &mut PacketInfo) -> NextHeaderResult {
    let [a, b, c, d] = *bytes.read_array().ok_or(IgnoredReason::ShortLink)?;
    let vlan = u16::from_be_bytes([a, b]) & 0xfff;
    match number {
        1 => packet.vlan = vlan,
        2 => packet.inner_vlan = vlan,
        // A third tag has no column; the packet counts all the same.
        _ => {}
    }
    Ok(LinkHeaderType::Type(u16::from_be_bytes([c, d])))
}

/// Reads the headers of IEEE 802.3: a length in place of a type, then LLC, and a type after SNAP.
fn read_llc(kind: u16, bytes: &mut FrameSpan<'_>) -> NextHeaderResult {
    if kind >= 0x600 {
        return Err(IgnoredReason::NotIp);
    }
    // IEEE 802.3 pads short frames, and only this length says where the padding begins.
    *bytes = bytes.limit_length(kind.into());
    let [snap @ .., a, b] = *bytes.read_array::<8>().ok_or(IgnoredReason::NotIp)?;
    if snap == SNAP_HEADER {
        Ok(LinkHeaderType::Type(u16::from_be_bytes([a, b])))
    } else {
        Err(IgnoredReason::NotIp)
    }
}

fn read_pppoe(bytes: &mut FrameSpan<'_>) -> NextHeaderResult {
    let [version, code, _, _, a, b] = *bytes.read_array().ok_or(IgnoredReason::ShortLink)?;
    // RFC 2516 section 4: version 1 and type 1; code 0 is session data, any other code is signalling.
    if version != 0x11 || code != 0 {
        return Err(IgnoredReason::NotIp);
    }
    *bytes = bytes.limit_length(u16::from_be_bytes([a, b]).into());
    Ok(LinkHeaderType::Ppp)
}

/// Reads a protocol number of PPP, which may be written in one byte.
fn read_ppp(bytes: &mut FrameSpan<'_>) -> NextHeaderResult {
    let [first] = *bytes.read_array().ok_or(IgnoredReason::ShortLink)?;
    let mut protocol = u16::from(first);
    // RFC 1661 section 2: the last byte of a protocol number is odd, the one before it is even.
    if first & 1 == 0 {
        let [second] = *bytes.read_array().ok_or(IgnoredReason::ShortLink)?;
        protocol = u16::from_be_bytes([first, second]);
    }
    ppp_type(protocol).map(LinkHeaderType::Type).ok_or(IgnoredReason::NotIp)
}

/// Returns the Ethernet type of a PPP protocol's payload; `None` if such a payload is not metered.
pub(super) const fn ppp_type(protocol: u16) -> Option<u16> {
    match protocol {
        0x0021 => Some(IPV4),
        0x0057 => Some(IPV6),
        // MPLS, unicast and multicast (RFC 3032 section 4.3).
        0x0281 => Some(0x8847),
        0x0283 => Some(0x8848),
        _ => None,
    }
}

fn read_mpls(bytes: &mut FrameSpan<'_>, packet: &mut PacketInfo) -> NextHeaderResult {
    packet.mpls = [0; 3];
    for depth in 0..MAX_LABELS {
        let entry = u32::from_be_bytes(*bytes.read_array().ok_or(IgnoredReason::ShortLink)?);
        if let Some(place) = packet.mpls.get_mut(depth) {
            *place = entry;
        }
        // The bottom of the stack (RFC 3032 section 2.1).
        if entry & 0x100 != 0 {
            return guess_mpls_payload(bytes);
        }
    }
    Err(IgnoredReason::TooDeep)
}

/// Guesses the type of an MPLS stack's payload, the surest guess first: an IP header that is consistent, then Ethernet,
/// then Ethernet after a control word.
fn guess_mpls_payload(bytes: &mut FrameSpan<'_>) -> NextHeaderResult {
    let first = bytes.bytes.first().ok_or(IgnoredReason::ShortIp)?;
    match first >> 4 {
        4 if has_ipv4_header(*bytes) => Ok(LinkHeaderType::Type(IPV4)),
        6 if has_ipv6_header(*bytes) => Ok(LinkHeaderType::Type(IPV6)),
        // A tagged frame looks like Ethernet even from its fifth byte on. So this check comes before the one for
        // a control word, which skips four bytes.
        _ if has_ethernet_header(*bytes) => Ok(LinkHeaderType::Ethernet),
        // RFC 4385 section 3: a control word begins with four zero bits, so that it does not look like IP.
        0 => {
            *bytes =
                bytes.skip(4).filter(|behind| has_ethernet_header(*behind)).ok_or(IgnoredReason::NotIp)?;
            Ok(LinkHeaderType::Ethernet)
        }
        // An IP header that is cut or wrong: its reader says how.
        4 => Ok(LinkHeaderType::Type(IPV4)),
        6 => Ok(LinkHeaderType::Type(IPV6)),
        _ => Err(IgnoredReason::NotIp),
    }
}

/// Returns whether the bytes begin with a consistent IPv4 header with a valid checksum.
fn has_ipv4_header(bytes: FrameSpan<'_>) -> bool {
    let Some(first) = bytes.bytes.first() else { return false };
    let len = usize::from(first & 15) * 4;
    let Some(head) = bytes.bytes.get(..len.max(20)) else { return false };
    let total = usize::from(be_u16(head, 2));
    let sum: u32 = head.chunks_exact(2).map(|pair| u32::from(be_u16(pair, 0))).sum();
    // The sum of a valid header, its checksum included, is all ones (RFC 1071). One fold is enough: a carry
    // out of it would leave a small number, never all ones.
    len >= 20 && (len..=bytes.wire_len()).contains(&total) && (sum & 0xffff) + (sum >> 16) == 0xffff
}

/// Returns whether the bytes begin with an IPv6 header that states their length, except for at most eight bytes of
/// padding or FCS. IPv6 has no header checksum.
fn has_ipv6_header(bytes: FrameSpan<'_>) -> bool {
    let Some(head) = bytes.bytes.first_chunk::<40>() else { return false };
    let behind = bytes.wire_len().checked_sub(usize::from(be_u16(head, 4)) + 40);
    behind.is_some_and(|behind| behind <= 8)
}

/// Returns whether the bytes begin with an Ethernet header of a known type. If the type is IP, the version after
/// the header must agree.
fn has_ethernet_header(bytes: FrameSpan<'_>) -> bool {
    let Some(head) = bytes.bytes.first_chunk::<15>() else { return false };
    match be_u16(head, 12) {
        IPV4 => head[14] >> 4 == 4,
        IPV6 => head[14] >> 4 == 6,
        kind => {
            is_vlan_ether_type(kind) || is_mpls_ether_type(kind) || kind == ARP || kind == PPPOE_ETHERTYPE
        }
    }
}
