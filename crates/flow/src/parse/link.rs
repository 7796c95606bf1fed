//! What lies below IP: Ethernet, VLAN tags, MPLS, PPPoE, in any order that makes sense.
//!
//! Behind an MPLS stack nothing says what follows. IP is told by its version and a header that adds up;
//! Ethernet (a pseudowire), with a control word or without, by a type that is known.

use super::span::{FrameSpan, be16};
use super::tunnel::TunnelPayload;
use crate::{IgnoredReason, PacketInfo};

/// Headers below IP in one go. Every turn reads at least two bytes; this bounds nothing but nonsense.
const MOST: u32 = 24;
/// Labels of one stack.
const MOST_LABELS: usize = 16;

const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;
const PPPOE: u16 = 0x8864;
/// The EtherType that means nothing: lengths are below 0x600.
const SNAP: [u8; 6] = [0xaa, 0xaa, 3, 0, 0, 0];

/// An IP packet, as the header below it says.
#[derive(Clone, Copy, Debug)]
pub(super) enum Layer3<'a> {
    V4(FrameSpan<'a>),
    V6(FrameSpan<'a>),
}

#[derive(Clone, Copy)]
pub(super) enum LinkNext {
    Ethernet,
    Type(u16),
    Ppp,
}

/// From an Ethernet header.
pub(super) fn ethernet<'a>(
    bytes: FrameSpan<'a>,
    packet: &mut PacketInfo,
) -> Result<Layer3<'a>, IgnoredReason> {
    walk(LinkNext::Ethernet, bytes, packet)
}

/// From what a tunnel says it carries.
pub(super) fn inside<'a>(
    kind: TunnelPayload,
    bytes: FrameSpan<'a>,
    packet: &mut PacketInfo,
) -> Result<Layer3<'a>, IgnoredReason> {
    match kind {
        TunnelPayload::Ethernet => {
            packet.mpls = [0; 3];
            walk(LinkNext::Ethernet, bytes, packet)
        }
        TunnelPayload::Type(kind) => walk(LinkNext::Type(kind), bytes, packet),
        TunnelPayload::Ip => ip(bytes),
    }
}

/// IP, as its version says.
pub(super) fn ip(bytes: FrameSpan<'_>) -> Result<Layer3<'_>, IgnoredReason> {
    match bytes.bytes.first().map(|first| first >> 4) {
        None => Err(IgnoredReason::ShortIp),
        Some(4) => Ok(Layer3::V4(bytes)),
        Some(6) => Ok(Layer3::V6(bytes)),
        Some(_) => Err(IgnoredReason::NotIp),
    }
}

/// From what is said to come next.
#[inline]
pub(super) fn walk<'a>(
    first: LinkNext,
    bytes: FrameSpan<'a>,
    packet: &mut PacketInfo,
) -> Result<Layer3<'a>, IgnoredReason> {
    let (mut next, mut bytes, mut tags) = (first, bytes, 0);
    // The last turn finds IP.
    for _ in 0..=MOST {
        (next, bytes) = match next {
            LinkNext::Ethernet => {
                tags = 0;
                ethernet_header(bytes, packet)?
            }
            LinkNext::Type(IPV4) => return Ok(Layer3::V4(bytes)),
            LinkNext::Type(IPV6) => return Ok(Layer3::V6(bytes)),
            LinkNext::Type(kind) if is_vlan(kind) => {
                tags += 1;
                vlan(bytes, tags, packet)?
            }
            LinkNext::Type(kind) if is_mpls(kind) => mpls(bytes, packet)?,
            LinkNext::Type(PPPOE) => pppoe(bytes)?,
            LinkNext::Type(ARP) => return Err(IgnoredReason::Arp),
            LinkNext::Type(kind) => llc(kind, bytes)?,
            LinkNext::Ppp => ppp(bytes)?,
        };
    }
    Err(IgnoredReason::TooDeep)
}

#[inline]
pub(super) const fn is_vlan(kind: u16) -> bool {
    matches!(kind, 0x8100 | 0x88a8 | 0x9100)
}

const fn is_mpls(kind: u16) -> bool {
    matches!(kind, 0x8847 | 0x8848)
}

type LinkStep<'a> = Result<(LinkNext, FrameSpan<'a>), IgnoredReason>;

#[inline]
fn ethernet_header<'a>(bytes: FrameSpan<'a>, packet: &mut PacketInfo) -> LinkStep<'a> {
    let (head, rest) = bytes.split::<14>().ok_or(IgnoredReason::ShortLink)?;
    let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, k0, k1] = *head;
    packet.destination_mac = [d0, d1, d2, d3, d4, d5];
    packet.source_mac = [s0, s1, s2, s3, s4, s5];
    (packet.vlan, packet.inner_vlan) = (0, 0);
    Ok((LinkNext::Type(u16::from_be_bytes([k0, k1])), rest))
}

fn vlan<'a>(bytes: FrameSpan<'a>, number: u32, packet: &mut PacketInfo) -> LinkStep<'a> {
    let ([a, b, c, d], rest) = bytes.split::<4>().ok_or(IgnoredReason::ShortLink)?;
    let vlan = u16::from_be_bytes([*a, *b]) & 0xfff;
    match number {
        1 => packet.vlan = vlan,
        2 => packet.inner_vlan = vlan,
        _ => {}
    }
    Ok((LinkNext::Type(u16::from_be_bytes([*c, *d])), rest))
}

/// IEEE 802.3: a length in place of a type, then LLC, and a type behind SNAP.
fn llc(kind: u16, bytes: FrameSpan<'_>) -> LinkStep<'_> {
    if kind >= 0x600 {
        return Err(IgnoredReason::NotIp);
    }
    let (head, rest) = bytes.limit(kind.into()).split::<8>().ok_or(IgnoredReason::NotIp)?;
    let [snap @ .., a, b] = *head;
    if snap == SNAP {
        Ok((LinkNext::Type(u16::from_be_bytes([a, b])), rest))
    } else {
        Err(IgnoredReason::NotIp)
    }
}

fn pppoe(bytes: FrameSpan<'_>) -> LinkStep<'_> {
    let ([version, code, _, _, a, b], rest) = bytes.split::<6>().ok_or(IgnoredReason::ShortLink)?;
    if *version != 0x11 || *code != 0 {
        return Err(IgnoredReason::NotIp);
    }
    Ok((LinkNext::Ppp, rest.limit(u16::from_be_bytes([*a, *b]).into())))
}

/// A protocol number of PPP, which may be written in one byte.
fn ppp(bytes: FrameSpan<'_>) -> LinkStep<'_> {
    let ([first], rest) = bytes.split::<1>().ok_or(IgnoredReason::ShortLink)?;
    let (protocol, rest) = if first & 1 == 1 {
        (u16::from(*first), rest)
    } else {
        let ([second], rest) = rest.split::<1>().ok_or(IgnoredReason::ShortLink)?;
        (u16::from_be_bytes([*first, *second]), rest)
    };
    let kind = match protocol {
        0x0021 => IPV4,
        0x0057 => IPV6,
        0x0281 => 0x8847,
        _ => return Err(IgnoredReason::NotIp),
    };
    Ok((LinkNext::Type(kind), rest))
}

fn mpls<'a>(bytes: FrameSpan<'a>, packet: &mut PacketInfo) -> LinkStep<'a> {
    packet.mpls = [0; 3];
    let mut rest = bytes;
    for depth in 0..MOST_LABELS {
        let (entry, behind) = rest.split::<4>().ok_or(IgnoredReason::ShortLink)?;
        let entry = u32::from_be_bytes(*entry);
        if let Some(place) = packet.mpls.get_mut(depth) {
            *place = entry;
        }
        if entry & 0x100 != 0 {
            return below_mpls(behind);
        }
        rest = behind;
    }
    Err(IgnoredReason::TooDeep)
}

fn below_mpls(bytes: FrameSpan<'_>) -> LinkStep<'_> {
    let first = bytes.bytes.first().ok_or(IgnoredReason::ShortIp)?;
    match first >> 4 {
        4 if is_ipv4(bytes) => Ok((LinkNext::Type(IPV4), bytes)),
        6 if is_ipv6(bytes) => Ok((LinkNext::Type(IPV6), bytes)),
        // A tagged frame looks like one even from its fifth byte on, so this is asked before a control word is thought of.
        _ if is_ethernet(bytes) => Ok((LinkNext::Ethernet, bytes)),
        0 => match bytes.skip(4).filter(|behind| is_ethernet(*behind)) {
            Some(behind) => Ok((LinkNext::Ethernet, behind)),
            None => Err(IgnoredReason::NotIp),
        },
        // Neither adds up: an IP header that is cut or wrong, which the next to read it will say.
        4 => Ok((LinkNext::Type(IPV4), bytes)),
        6 => Ok((LinkNext::Type(IPV6), bytes)),
        _ => Err(IgnoredReason::NotIp),
    }
}

/// Whether an IPv4 header here adds up, checksum included.
fn is_ipv4(bytes: FrameSpan<'_>) -> bool {
    let Some(first) = bytes.bytes.first() else { return false };
    let len = usize::from(first & 15) * 4;
    let Some(head) = bytes.bytes.get(..len.max(20)) else { return false };
    let total = usize::from(be16(head, 2));
    let sum: u32 = head.chunks_exact(2).map(|pair| u32::from(be16(pair, 0))).sum();
    len >= 20 && (len..=bytes.wire()).contains(&total) && (sum & 0xffff) + (sum >> 16) == 0xffff
}

/// Whether an IPv6 header here states the length there is, but for some padding or an FCS.
fn is_ipv6(bytes: FrameSpan<'_>) -> bool {
    let Some(head) = bytes.bytes.first_chunk::<40>() else { return false };
    let behind = bytes.wire().checked_sub(usize::from(be16(head, 4)) + 40);
    behind.is_some_and(|behind| behind <= 8)
}

/// Whether an Ethernet header of something known is here, and the IP header it announces begins as one.
fn is_ethernet(bytes: FrameSpan<'_>) -> bool {
    let Some(head) = bytes.bytes.first_chunk::<15>() else { return false };
    match be16(head, 12) {
        IPV4 => head[14] >> 4 == 4,
        IPV6 => head[14] >> 4 == 6,
        kind => is_vlan(kind) || is_mpls(kind) || kind == ARP || kind == PPPOE,
    }
}
