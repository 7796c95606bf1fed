//! IPv4 and IPv6 headers, and the headers between them and the transport.
//!
//! A stated length of zero has two causes: the packet was captured at its sender before the card cut it into segments,
//! or it is an IPv6 jumbogram (RFC 2675). Then the length of the frame counts, and the packet is marked: it may be
//! several on the wire.

use super::span::{FrameSpan, be_u16};
use super::{clamp_length, ipv4_mapped};
use crate::{IgnoredReason, PacketInfo, flags};

/// Maximum number of headers between IP and transport. No sensible packet has more.
const MAX_EXTENSION_HEADERS: u32 = 12;

const HOP_BY_HOP: u8 = 0;
const ROUTING_HEADER: u8 = 43;
const FRAGMENT_HEADER: u8 = 44;
const AUTHENTICATION_HEADER: u8 = 51;
const NO_NEXT_HEADER: u8 = 59;
const DESTINATION_OPTIONS_HEADER: u8 = 60;
const MOBILITY_HEADER: u8 = 135;
const HIP_HEADER: u8 = 139;
const SHIM6_HEADER: u8 = 140;

/// Identity of a fragment, besides its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FragmentId {
    pub(super) id: u32,
    /// IPv4: the protocol its header states, which belongs to the identity. IPv6: 0.
    pub(super) protocol: u8,
}

/// The part of an IP packet that a frame contains.
#[derive(Clone, Copy, Debug)]
pub(super) enum PacketPart {
    Whole,
    First(FragmentId),
    Later(FragmentId),
}

/// Payload of an IP packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct IpPayload<'a> {
    pub(super) bytes: FrameSpan<'a>,
    pub(super) part: PacketPart,
    /// Identification of an IPv4 packet; 0 for IPv6.
    pub(super) identification: u16,
}

/// Reads an IPv4 header into `packet`.
#[inline]
pub(super) fn read_ipv4<'a>(
    bytes: FrameSpan<'a>,
    packet: &mut PacketInfo,
) -> Result<IpPayload<'a>, IgnoredReason> {
    let head = bytes.bytes.first_chunk::<20>().ok_or(IgnoredReason::ShortIp)?;
    let own = usize::from(head[0] & 15) * 4;
    let stated = usize::from(be_u16(head, 2));
    // With BIG TCP, the kernel hands packets of more than 64 KiB to the card. Their length field is zero,
    // because 16 bits cannot hold it.
    let total = if stated == 0 { bytes.wire_len() } else { stated };
    if head[0] >> 4 != 4 || own < 20 || total < own {
        return Err(IgnoredReason::BadIp);
    }
    if bytes.wire_len() < own {
        return Err(IgnoredReason::ShortIp);
    }
    let packet_bytes = bytes.limit_length(total);
    packet.source = ipv4_mapped([head[12], head[13], head[14], head[15]]);
    packet.destination = ipv4_mapped([head[16], head[17], head[18], head[19]]);
    packet.bytes = clamp_length(total);
    packet.tos = head[1];
    packet.ttl = head[8];
    packet.protocol = head[9];
    packet.flags = if packet_bytes.missing > 0 { flags::CUT_FLAG } else { 0 };
    packet.flags |= if stated == 0 { flags::UNSPLIT_FLAG } else { 0 };
    let identification = be_u16(head, 4);
    let id = FragmentId { id: identification.into(), protocol: head[9] };
    let offset = be_u16(head, 6);
    // Options may reach beyond the end of a truncated frame: then the bytes after them are missing, but the
    // packet still counts.
    let rest = packet_bytes.skip(own).unwrap_or_else(|| packet_bytes.without_bytes());
    // The offset counts units of eight bytes (RFC 791 section 3.1). Only whether it is zero matters here.
    if offset & 0x1fff != 0 {
        packet.flags |= flags::FRAGMENT_FLAG | flags::LATER_FRAGMENT_FLAG;
        return Ok(IpPayload { bytes: rest, part: PacketPart::Later(id), identification });
    }
    // Offset zero and "more fragments": the first of several, which is the one with the transport header.
    let part = if offset & 0x2000 == 0 { PacketPart::Whole } else { PacketPart::First(id) };
    if matches!(part, PacketPart::First(_)) {
        packet.flags |= flags::FRAGMENT_FLAG;
    }
    // Of the headers that `read_extensions` knows, only the authentication header can follow IPv4 (RFC 4302).
    if packet.protocol == AUTHENTICATION_HEADER {
        let IpPayload { bytes, .. } = read_extensions(rest, packet)?;
        return Ok(IpPayload { bytes, part, identification });
    }
    Ok(IpPayload { bytes: rest, part, identification })
}

/// Reads an IPv6 header and its extension headers into `packet`.
#[inline]
pub(super) fn read_ipv6<'a>(
    bytes: FrameSpan<'a>,
    packet: &mut PacketInfo,
) -> Result<IpPayload<'a>, IgnoredReason> {
    let mut rest = bytes;
    let head = rest.read_array::<40>().ok_or(IgnoredReason::ShortIp)?;
    if head[0] >> 4 != 6 {
        return Err(IgnoredReason::BadIp);
    }
    let stated = usize::from(be_u16(head, 4));
    // "No next header" is the only case in which a payload of zero bytes is really empty.
    let states_none = stated == 0 && head[6] != NO_NEXT_HEADER;
    let payload = if states_none { rest.wire_len() } else { stated };
    let rest = rest.limit_length(payload);
    packet.source.copy_from_slice(&head[8..24]);
    packet.destination.copy_from_slice(&head[24..40]);
    packet.bytes = clamp_length(payload + 40);
    packet.tos = head[0] << 4 | head[1] >> 4;
    packet.ttl = head[7];
    packet.protocol = head[6];
    packet.flags = flags::IPV6_FLAG | if rest.missing > 0 { flags::CUT_FLAG } else { 0 };
    packet.flags |= if states_none { flags::UNSPLIT_FLAG } else { 0 };
    read_extensions(rest, packet)
}

/// Follows the chain from `packet.protocol` to the first header that is not an extension. If a header is truncated, its
/// number stays as the protocol.
fn read_extensions<'a>(
    bytes: FrameSpan<'a>,
    packet: &mut PacketInfo,
) -> Result<IpPayload<'a>, IgnoredReason> {
    let mut bytes = bytes;
    let mut part = PacketPart::Whole;
    // The loop runs once more than headers are allowed: the last iteration finds the transport.
    for _ in 0..=MAX_EXTENSION_HEADERS {
        let next = match packet.protocol {
            HOP_BY_HOP
            | ROUTING_HEADER
            | DESTINATION_OPTIONS_HEADER
            | MOBILITY_HEADER
            | HIP_HEADER
            | SHIM6_HEADER => read_option_header(bytes, 8, 1),
            // RFC 4302 section 2.2: the length of this header is in words of four bytes, minus two. All other headers
            // count units of eight bytes, minus one.
            AUTHENTICATION_HEADER => read_option_header(bytes, 4, 2),
            FRAGMENT_HEADER if packet.flags & flags::IPV6_FLAG != 0 => {
                let found = read_fragment(bytes, packet);
                part = found.map_or(part, |found| found.part);
                found.map(|found| found.next)
            }
            _ => return Ok(IpPayload { bytes, part, identification: 0 }),
        };
        // A header that was cut ends the chain. The packet still counts for its
        // addresses and the last known protocol.
        let Some(next) = next else {
            packet.flags |= flags::CUT_FLAG;
            return Ok(IpPayload { bytes: bytes.without_bytes(), part, identification: 0 });
        };
        packet.protocol = next.protocol;
        bytes = next.bytes;
        // A later fragment begins somewhere inside the packet: its first bytes are no header.
        if matches!(part, PacketPart::Later(_)) {
            return Ok(IpPayload { bytes, part, identification: 0 });
        }
    }
    Err(IgnoredReason::TooDeep)
}

/// Protocol and bytes after a header of the chain.
#[derive(Clone, Copy)]
struct NextHeader<'a> {
    protocol: u8,
    bytes: FrameSpan<'a>,
}

#[derive(Clone, Copy)]
struct FragmentHeader<'a> {
    next: NextHeader<'a>,
    part: PacketPart,
}

/// Reads a header that states its length in units of `unit` bytes, minus `more` units. Returns the bytes after it;
/// `None` if the header is truncated.
fn read_option_header(bytes: FrameSpan<'_>, unit: usize, more: usize) -> Option<NextHeader<'_>> {
    let [protocol, len] = *bytes.bytes.first_chunk()?;
    Some(NextHeader { protocol, bytes: bytes.skip((usize::from(len) + more) * unit)? })
}

fn read_fragment<'a>(bytes: FrameSpan<'a>, packet: &mut PacketInfo) -> Option<FragmentHeader<'a>> {
    let mut bytes = bytes;
    let [protocol, _, a, b, id @ ..] = *bytes.read_array::<8>()?;
    let next = NextHeader { protocol, bytes };
    let id = FragmentId { id: u32::from_be_bytes(id), protocol: 0 };
    let offset = u16::from_be_bytes([a, b]);
    let part = match (offset & 0xfff8, offset & 1) {
        // A packet that is its own only fragment (RFC 6946).
        (0, 0) => return Some(FragmentHeader { next, part: PacketPart::Whole }),
        (0, _) => PacketPart::First(id),
        _ => PacketPart::Later(id),
    };
    packet.flags |= flags::FRAGMENT_FLAG;
    if matches!(part, PacketPart::Later(_)) {
        packet.flags |= flags::LATER_FRAGMENT_FLAG;
    }
    Some(FragmentHeader { next, part })
}
