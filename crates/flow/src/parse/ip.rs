//! IPv4 and IPv6 headers, and the headers between them and what they carry.
//!
//! A length of zero where there can be none is what a capture on the sending machine shows of packets that the card will
//! cut to size, and what IPv6 says of jumbograms: the frame's own length counts then.

use super::span::{FrameSpan, be16};
use super::{length, mapped};
use crate::{IgnoredReason, PacketInfo, flags};

/// Headers between IP and transport; more is nonsense.
const MOST: u32 = 12;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const NOTHING: u8 = 59;
const DESTINATION: u8 = 60;
const MOBILITY: u8 = 135;
const HIP: u8 = 139;
const SHIM6: u8 = 140;

/// What a fragment is known by, besides its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FragmentId {
    pub(super) id: u32,
    /// IPv4: the protocol its header states, which belongs to the identity. IPv6: 0.
    pub(super) protocol: u8,
}

/// Which part of a packet this is.
#[derive(Clone, Copy, Debug)]
pub(super) enum PacketPart {
    Whole,
    First(FragmentId),
    Later(FragmentId),
}

/// What is inside an IP packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct IpPayload<'a> {
    pub(super) bytes: FrameSpan<'a>,
    pub(super) part: PacketPart,
}

/// Reads an IPv4 header into `packet`.
#[inline]
pub(super) fn v4<'a>(bytes: FrameSpan<'a>, packet: &mut PacketInfo) -> Result<IpPayload<'a>, IgnoredReason> {
    let (head, _) = bytes.split::<20>().ok_or(IgnoredReason::ShortIp)?;
    let own = usize::from(head[0] & 15) * 4;
    let stated = usize::from(be16(head, 2));
    let total = if stated == 0 { bytes.wire() } else { stated };
    if head[0] >> 4 != 4 || own < 20 || total < own {
        return Err(IgnoredReason::BadIp);
    }
    if bytes.wire() < own {
        return Err(IgnoredReason::ShortIp);
    }
    let packet_bytes = bytes.limit(total);
    packet.source = mapped([head[12], head[13], head[14], head[15]]);
    packet.destination = mapped([head[16], head[17], head[18], head[19]]);
    packet.bytes = length(total);
    (packet.tos, packet.ttl, packet.protocol) = (head[1], head[8], head[9]);
    packet.flags = if packet_bytes.missing > 0 { flags::CUT } else { 0 };
    let id = FragmentId { id: be16(head, 4).into(), protocol: head[9] };
    let offset = be16(head, 6);
    let rest = packet_bytes.skip(own).unwrap_or_else(|| packet_bytes.cut());
    if offset & 0x1fff != 0 {
        packet.flags |= flags::FRAGMENT | flags::LATER_FRAGMENT;
        return Ok(IpPayload { bytes: rest, part: PacketPart::Later(id) });
    }
    let part = if offset & 0x2000 == 0 { PacketPart::Whole } else { PacketPart::First(id) };
    if matches!(part, PacketPart::First(_)) {
        packet.flags |= flags::FRAGMENT;
    }
    if packet.protocol == AUTHENTICATION {
        let IpPayload { bytes, .. } = extensions(rest, packet)?;
        return Ok(IpPayload { bytes, part });
    }
    Ok(IpPayload { bytes: rest, part })
}

/// Reads an IPv6 header and those that extend it into `packet`.
#[inline]
pub(super) fn v6<'a>(bytes: FrameSpan<'a>, packet: &mut PacketInfo) -> Result<IpPayload<'a>, IgnoredReason> {
    let (head, rest) = bytes.split::<40>().ok_or(IgnoredReason::ShortIp)?;
    if head[0] >> 4 != 6 {
        return Err(IgnoredReason::BadIp);
    }
    let stated = usize::from(be16(head, 4));
    let payload = if stated == 0 && head[6] != NOTHING { rest.wire() } else { stated };
    let rest = rest.limit(payload);
    let (Some(source), Some(destination)) = (head[8..].first_chunk(), head[24..].first_chunk()) else {
        return Err(IgnoredReason::ShortIp);
    };
    (packet.source, packet.destination) = (*source, *destination);
    packet.bytes = length(payload + 40);
    (packet.tos, packet.ttl, packet.protocol) = (head[0] << 4 | head[1] >> 4, head[7], head[6]);
    packet.flags = flags::IPV6 | if rest.missing > 0 { flags::CUT } else { 0 };
    extensions(rest, packet)
}

/// Follows the chain from `packet.protocol` to what is not an extension. Of a header that is cut, its number stays.
fn extensions<'a>(bytes: FrameSpan<'a>, packet: &mut PacketInfo) -> Result<IpPayload<'a>, IgnoredReason> {
    let (mut bytes, mut part) = (bytes, PacketPart::Whole);
    // The last turn finds no extension any more.
    for _ in 0..=MOST {
        let next = match packet.protocol {
            HOP_BY_HOP | ROUTING | DESTINATION | MOBILITY | HIP | SHIM6 => option(bytes, 8, 1),
            AUTHENTICATION => option(bytes, 4, 2),
            FRAGMENT if packet.flags & flags::IPV6 != 0 => {
                let found = fragment(bytes, packet);
                part = found.map_or(part, |(_, _, part)| part);
                found.map(|(next, rest, _)| (next, rest))
            }
            _ => return Ok(IpPayload { bytes, part }),
        };
        let Some((next, rest)) = next else {
            packet.flags |= flags::CUT;
            return Ok(IpPayload { bytes: bytes.cut(), part });
        };
        (packet.protocol, bytes) = (next, rest);
        if matches!(part, PacketPart::Later(_)) {
            return Ok(IpPayload { bytes, part });
        }
    }
    Err(IgnoredReason::TooDeep)
}

/// A header that states its length in units, less some: what comes after it.
fn option(bytes: FrameSpan<'_>, unit: usize, more: usize) -> Option<(u8, FrameSpan<'_>)> {
    let ([next, len], _) = bytes.split::<2>()?;
    Some((*next, bytes.skip((usize::from(*len) + more) * unit)?))
}

fn fragment<'a>(bytes: FrameSpan<'a>, packet: &mut PacketInfo) -> Option<(u8, FrameSpan<'a>, PacketPart)> {
    let ([next, _, a, b, id @ ..], rest) = bytes.split::<8>()?;
    let id = FragmentId { id: u32::from_be_bytes(*id), protocol: 0 };
    let offset = u16::from_be_bytes([*a, *b]);
    let part = match (offset & 0xfff8, offset & 1) {
        // A packet that is its own only fragment (RFC 6946).
        (0, 0) => return Some((*next, rest, PacketPart::Whole)),
        (0, _) => PacketPart::First(id),
        _ => PacketPart::Later(id),
    };
    packet.flags |= flags::FRAGMENT;
    if matches!(part, PacketPart::Later(_)) {
        packet.flags |= flags::LATER_FRAGMENT;
    }
    Some((*next, rest, part))
}
