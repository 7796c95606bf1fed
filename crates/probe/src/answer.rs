//! Reads received frames as answers to probes.
//!
//! This module does not find out which probe an answer belongs to: the method that wrote the probes does, by
//! identifier, ports and numbers.
//!
//! Invariant: a [`ProbeAnswer`] comes from a complete IP packet, never from a fragment. Garbage gives `None`,
//! and never a panic.

use crate::frame::{
    ETHER_IPV4, ETHER_IPV6, ETHERNET, IPV4, IPV6, PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_TCP, PROTOCOL_UDP,
    TcpSegment, UDP, transport_sum,
};
use packetrig_wire::checksum;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A received IP packet that may answer a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeAnswer<'a> {
    pub from: IpAddr,
    pub to: IpAddr,
    /// TTL (IPv4) or hop limit (IPv6) of the packet on arrival.
    pub hop_limit: u8,
    /// Differentiated services code point and ECN bits.
    pub class: u8,
    /// True if all checksums that can be checked are right (see [`read_answer`]).
    pub is_sound: bool,
    pub content: AnswerContent<'a>,
}

/// IP payload of a received packet that may answer a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerContent<'a> {
    /// An echo reply of ICMP or ICMPv6.
    Echo {
        identifier: u16,
        sequence: u16,
        /// The payload of the request, sent back.
        payload: &'a [u8],
    },
    Udp {
        from: u16,
        /// Destination port of the answer.
        to: u16,
        payload: &'a [u8],
    },
    Tcp(TcpSegment<'a>),
    /// An ICMP error. It quotes the beginning of the packet that caused it.
    Error {
        what: PathFailure,
        about: QuotedPacket<'a>,
    },
}

/// The error that a router on the path, or the target, reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PathFailure {
    /// No program listens at the port.
    PortUnreachable,
    /// Administratively prohibited: probing must end.
    Prohibited,
    /// The target cannot be reached.
    Unreachable,
    /// The hop limit was used up.
    TooManyHops,
    /// The packet is too long for a link of the path.
    TooLong,
    Other,
}

/// The part of the undeliverable packet that an ICMP error quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotedPacket<'a> {
    pub source: IpAddr,
    pub target: IpAddr,
    /// IP protocol of the packet: 1 or 58 for echo, 6 for TCP, 17 for UDP.
    pub protocol: u8,
    /// The first four bytes of the IP payload: both ports, or type, code and checksum.
    pub first: [u8; 4],
    /// The next four bytes of the IP payload: the sequence number of TCP, or identifier and sequence of an echo.
    pub second: [u8; 4],
    /// The rest of the quote; often empty (RFC 792 demands only eight bytes of the IP payload).
    pub rest: &'a [u8],
}

impl QuotedPacket<'_> {
    pub const fn ports(&self) -> (u16, u16) {
        let [a, b, c, d] = self.first;
        (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))
    }

    /// Identifier and sequence number; meaningless unless the quoted packet is an echo request.
    pub const fn echo_numbers(&self) -> (u16, u16) {
        let [a, b, c, d] = self.second;
        (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))
    }
}

/// The parsed IP header of a packet, and its payload.
struct IpPacket<'a> {
    from: IpAddr,
    to: IpAddr,
    hop_limit: u8,
    class: u8,
    protocol: u8,
    is_sound: bool,
    carried: &'a [u8],
}

/// Parses a received Ethernet frame without FCS; `None` if it contains no packet that could answer a probe.
/// `lacks_checksum`: the sender is on this machine and left the checksum of the IP payload to a network card, so that
/// checksum is not checked.
pub fn read_answer(frame: &[u8], lacks_checksum: bool) -> Option<ProbeAnswer<'_>> {
    let packet = read_ip_packet(read_be16(frame, 12)?, frame.get(ETHERNET..)?, false)?;
    let is_sound = packet.is_sound && (lacks_checksum || is_transport_checksum_right(&packet));
    let content = read_answer_content(&packet)?;
    let IpPacket { from, to, hop_limit, class, .. } = packet;
    Some(ProbeAnswer { from, to, hop_limit, class, is_sound, content })
}

/// Returns whether the checksum of the IP payload is right. A UDP checksum of zero means "no checksum", which only IPv4
/// allows (RFC 768; RFC 8200, 8.1).
fn is_transport_checksum_right(packet: &IpPacket<'_>) -> bool {
    // Over IPv6 the sum must be present, because IPv6 has no header checksum that would protect the addresses.
    let has_none = packet.protocol == PROTOCOL_UDP && packet.carried.get(6..8) == Some(&[0, 0]);
    has_none && packet.from.is_ipv4()
        || transport_sum(packet.from, packet.to, packet.protocol, packet.carried) == 0xffff
}

/// Reads an IP packet. If `is_quoted`, the packet is quoted in an ICMP error, so it may be shorter
/// than its header says.
fn read_ip_packet(ether_type: u16, bytes: &[u8], is_quoted: bool) -> Option<IpPacket<'_>> {
    match ether_type {
        ETHER_IPV4 => read_ipv4(bytes, is_quoted),
        ETHER_IPV6 => read_ipv6(bytes, is_quoted),
        _ => None,
    }
}

fn read_ipv4(bytes: &[u8], is_quoted: bool) -> Option<IpPacket<'_>> {
    let first = *bytes.first()?;
    let header = usize::from(first & 15) * 4;
    let length = usize::from(read_be16(bytes, 2)?);
    // Fragment offset and "more fragments" flag: the first of several fragments is refused, too.
    let is_piece = read_be16(bytes, 6)? & 0x3fff != 0;
    if first >> 4 != 4 || header < IPV4 || is_piece {
        return None;
    }
    // The packet may end before the frame does: short frames are padded to the Ethernet minimum.
    let end = if is_quoted { bytes.len().min(length) } else { length };
    Some(IpPacket {
        from: ipv4_address(bytes, 12)?,
        to: ipv4_address(bytes, 16)?,
        hop_limit: bytes[8],
        class: bytes[1],
        protocol: bytes[9],
        is_sound: checksum::ones_complement_sum(bytes.get(..header)?) == 0xffff,
        carried: bytes.get(header..end)?,
    })
}

fn read_ipv6(bytes: &[u8], is_quoted: bool) -> Option<IpPacket<'_>> {
    let head = bytes.first_chunk::<IPV6>()?;
    if head[0] >> 4 != 6 {
        return None;
    }
    let end = IPV6 + usize::from(read_be16(bytes, 4)?);
    let end = if is_quoted { bytes.len().min(end) } else { end };
    Some(IpPacket {
        from: ipv6_address(bytes, 8)?,
        to: ipv6_address(bytes, 24)?,
        hop_limit: head[7],
        class: head[0] << 4 | head[1] >> 4,
        // Extension headers are not parsed: hosts put none into their answers to our probes.
        protocol: head[6],
        // IPv6 has no header checksum. The checksum of its payload covers the addresses, through the pseudo-header.
        is_sound: true,
        carried: bytes.get(IPV6..end)?,
    })
}

fn read_answer_content<'a>(packet: &IpPacket<'a>) -> Option<AnswerContent<'a>> {
    let carried = packet.carried;
    match packet.protocol {
        PROTOCOL_UDP => {
            // The length in the UDP header ends the payload: the IP packet may have more bytes behind it.
            let length = usize::from(read_be16(carried, 4)?);
            let payload = carried.get(UDP..length)?;
            Some(AnswerContent::Udp { from: read_be16(carried, 0)?, to: read_be16(carried, 2)?, payload })
        }
        PROTOCOL_TCP => read_tcp(carried).map(AnswerContent::Tcp),
        PROTOCOL_ICMP | PROTOCOL_ICMPV6 => read_icmp(packet.protocol, carried),
        _ => None,
    }
}

fn read_tcp(carried: &[u8]) -> Option<TcpSegment<'_>> {
    let header = usize::from(*carried.get(12)? >> 4) * 4;
    Some(TcpSegment {
        source_port: read_be16(carried, 0)?,
        target_port: read_be16(carried, 2)?,
        sequence: read_be32(carried, 4)?,
        acknowledgement: read_be32(carried, 8)?,
        flags: *carried.get(13)?,
        window: read_be16(carried, 14)?,
        // A data offset below five words makes an invalid range, and `get` then refuses the whole segment.
        options: carried.get(20..header)?,
        payload: carried.get(header..)?,
    })
}

fn read_icmp(protocol: u8, carried: &[u8]) -> Option<AnswerContent<'_>> {
    let kind = *carried.first()?;
    let code = *carried.get(1)?;
    // Echo replies are types 0 (RFC 792) and 129 (RFC 4443, 4.2); the other types that are accepted are errors.
    let ether_type = match (protocol, kind) {
        (PROTOCOL_ICMP, 0) | (PROTOCOL_ICMPV6, 129) => {
            let payload = carried.get(UDP..)?;
            return Some(AnswerContent::Echo {
                identifier: read_be16(carried, 4)?,
                sequence: read_be16(carried, 6)?,
                payload,
            });
        }
        (PROTOCOL_ICMP, 3 | 11 | 12) => ETHER_IPV4,
        (PROTOCOL_ICMPV6, 1..=4) => ETHER_IPV6,
        _ => return None,
    };
    // An ICMP error has a header of eight bytes; then comes the packet that caused it, from the IP header on.
    let quoted = read_ip_packet(ether_type, carried.get(UDP..)?, true)?;
    let about = QuotedPacket {
        source: quoted.from,
        target: quoted.to,
        protocol: quoted.protocol,
        // RFC 792 requires a quote of eight bytes of the IP payload; with fewer, the probe cannot be identified.
        first: *quoted.carried.first_chunk()?,
        second: *quoted.carried.get(4..)?.first_chunk()?,
        rest: quoted.carried.get(UDP..)?,
    };
    Some(AnswerContent::Error { what: classify_icmp_error(protocol, kind, code), about })
}

fn classify_icmp_error(protocol: u8, kind: u8, code: u8) -> PathFailure {
    // Prohibited: RFC 792 type 3 with codes 9 and 10 (RFC 1122, 3.2.2.1) and 13 (RFC 1812, 5.2.7.1); ICMPv6 type 1 with codes 1, 5
    // and 6 (RFC 4443, 3.1).
    match (protocol, kind, code) {
        (PROTOCOL_ICMP, 3, 3) | (PROTOCOL_ICMPV6, 1, 4) => PathFailure::PortUnreachable,
        (PROTOCOL_ICMP, 3, 9 | 10 | 13) | (PROTOCOL_ICMPV6, 1, 1 | 5 | 6) => PathFailure::Prohibited,
        (PROTOCOL_ICMP, 3, 4) | (PROTOCOL_ICMPV6, 2, _) => PathFailure::TooLong,
        (PROTOCOL_ICMP, 11, _) | (PROTOCOL_ICMPV6, 3, _) => PathFailure::TooManyHops,
        (PROTOCOL_ICMP, 3, _) | (PROTOCOL_ICMPV6, 1, _) => PathFailure::Unreachable,
        _ => PathFailure::Other,
    }
}

fn ipv4_address(bytes: &[u8], at: usize) -> Option<IpAddr> {
    Some(IpAddr::V4(Ipv4Addr::from(*bytes.get(at..)?.first_chunk::<4>()?)))
}

fn ipv6_address(bytes: &[u8], at: usize) -> Option<IpAddr> {
    Some(IpAddr::V6(Ipv6Addr::from(*bytes.get(at..)?.first_chunk::<16>()?)))
}

fn read_be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_be_bytes)
}

fn read_be32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_be_bytes)
}

#[cfg(test)]
mod tests;
