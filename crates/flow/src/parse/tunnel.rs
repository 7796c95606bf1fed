//! Tunnels: GRE, VXLAN, Geneve, GTP-U, IP in IP.

use super::fast::{GENEVE, GTP_PORT, VXLAN};
use super::span::{FrameSpan, be_u16};
use crate::packet::protocol::UDP;
use crate::{PacketInfo, TunnelKind};

const IPIP_PROTOCOL: u8 = 4;
const IPV6_IN_IP_PROTOCOL: u8 = 41;
const GRE: u8 = 47;

/// First header of a tunnel's payload.
#[derive(Clone, Copy, Debug)]
pub(super) enum TunnelPayload {
    Ethernet,
    /// The type is an EtherType.
    Type(u16),
    /// IP of either version, or something else.
    Ip,
}

impl TunnelPayload {
    const fn from_type(kind: u16) -> Self {
        // "Transparent Ethernet bridging" (RFC 7637).
        if kind == 0x6558 { Self::Ethernet } else { Self::Type(kind) }
    }
}

/// Content of a tunnel.
#[derive(Clone, Copy, Debug)]
pub(super) struct TunnelContent<'a> {
    tunnel: TunnelKind,
    id: u32,
    pub(super) kind: TunnelPayload,
    pub(super) bytes: FrameSpan<'a>,
}

impl TunnelContent<'_> {
    /// Returns the properties of the inner packet that are known before it is read.
    pub(super) fn inner_packet(&self, outer: &PacketInfo) -> PacketInfo {
        // The record has the addresses of the outermost of nested tunnels
        // and the number of the innermost one.
        let is_outermost = outer.tunnel == TunnelKind::None;
        PacketInfo {
            tunnel: self.tunnel,
            tunnel_id: self.id,
            outer_source: if is_outermost { outer.source } else { outer.outer_source },
            outer_destination: if is_outermost { outer.destination } else { outer.outer_destination },
            source_port: 0,
            destination_port: 0,
            tcp_flags: 0,
            flags: 0,
            ..*outer
        }
    }
}

/// Reads the tunnel header of a whole packet, if it has one.
pub(super) fn read_tunnel<'a>(bytes: FrameSpan<'a>, packet: &PacketInfo) -> Option<TunnelContent<'a>> {
    match packet.protocol {
        IPIP_PROTOCOL => Some(ip_in_ip(0x0800, bytes)),
        IPV6_IN_IP_PROTOCOL => Some(ip_in_ip(0x86dd, bytes)),
        GRE => read_gre(bytes),
        // Any program may use these ports. If the payload is no tunnel, the packet is metered as UDP.
        UDP if packet.destination_port == VXLAN => read_vxlan(bytes.skip(8)?),
        UDP if packet.destination_port == GENEVE => read_geneve(bytes.skip(8)?),
        UDP if packet.destination_port == GTP_PORT => read_gtp(bytes.skip(8)?),
        _ => None,
    }
}

/// The protocol number of the outer header says the version of the inner one.
const fn ip_in_ip(kind: u16, bytes: FrameSpan<'_>) -> TunnelContent<'_> {
    TunnelContent { tunnel: TunnelKind::Ip, id: 0, kind: TunnelPayload::Type(kind), bytes }
}

/// Reads a GRE header (RFC 2784 and 2890). Source routes (RFC 1701) and version 1 (PPTP) are not read.
fn read_gre(bytes: FrameSpan<'_>) -> Option<TunnelContent<'_>> {
    const CHECKSUM: u16 = 0x8000;
    const ROUTES: u16 = 0x4000;
    const KEY: u16 = 0x2000;
    const SEQUENCE: u16 = 0x1000;
    let mut rest = bytes;
    let head = rest.read_array::<4>()?;
    let bits = be_u16(head, 0);
    let kind = be_u16(head, 2);
    // The low three bits are the version. Version 1 and source routes have other fields after the header.
    if bits & (ROUTES | 7) != 0 {
        return None;
    }
    // The optional fields come in this order, each only if its bit is set (RFC 2890 section 2).
    if bits & CHECKSUM != 0 {
        rest = rest.skip(4)?;
    }
    let mut id = 0;
    if bits & KEY != 0 {
        id = u32::from_be_bytes(*rest.read_array()?);
    }
    if bits & SEQUENCE != 0 {
        rest = rest.skip(4)?;
    }
    Some(TunnelContent { tunnel: TunnelKind::Gre, id, kind: TunnelPayload::from_type(kind), bytes: rest })
}

/// Reads a VXLAN header (RFC 7348). A header without a network number is not valid.
fn read_vxlan(bytes: FrameSpan<'_>) -> Option<TunnelContent<'_>> {
    let mut bytes = bytes;
    let [bits, _, _, _, a, b, c, _] = *bytes.read_array::<8>()?;
    let id = u32::from_be_bytes([0, a, b, c]);
    let has_number = bits & 8 != 0;
    has_number.then_some(TunnelContent {
        tunnel: TunnelKind::Vxlan,
        id,
        kind: TunnelPayload::Ethernet,
        bytes,
    })
}

/// Reads a Geneve header (RFC 8926) and skips its options. A control message carries no packet of a user.
fn read_geneve(bytes: FrameSpan<'_>) -> Option<TunnelContent<'_>> {
    const CONTROL: u8 = 0x80;
    let mut rest = bytes;
    let [head, bits, k0, k1, a, b, c, _] = *rest.read_array::<8>()?;
    // Two bits of version, then the length of the options in words.
    if head >> 6 != 0 || bits & CONTROL != 0 {
        return None;
    }
    let kind = TunnelPayload::from_type(u16::from_be_bytes([k0, k1]));
    let bytes = rest.skip(4 * usize::from(head & 0x3f))?;
    Some(TunnelContent { tunnel: TunnelKind::Geneve, id: u32::from_be_bytes([0, a, b, c]), kind, bytes })
}

/// Reads a GTP-U header (TS 29.281): a G-PDU of version 1 with its extension headers.
fn read_gtp(bytes: FrameSpan<'_>) -> Option<TunnelContent<'_>> {
    const MAX_EXTENSIONS: u32 = 8;
    const EXTENDED: u8 = 4;
    const NUMBERED: u8 = 2;
    const N_PDU_FLAG: u8 = 1;
    let mut rest = bytes;
    let [bits, message, _, _, teid @ ..] = *rest.read_array::<8>()?;
    // Version 1, protocol type GTP. Only message 255, a G-PDU, carries a packet of a user.
    if bits & 0xf0 != 0x30 || message != 255 {
        return None;
    }
    // Any of the three bits makes the header four bytes longer, with fields for all of them: sequence number, N-PDU
    // number, type of the first extension.
    let mut next = 0;
    if bits & (EXTENDED | NUMBERED | N_PDU_FLAG) != 0 {
        let [_, _, _, first] = *rest.read_array()?;
        next = if bits & EXTENDED == 0 { 0 } else { first };
    }
    for _ in 0..MAX_EXTENSIONS {
        if next == 0 {
            let id = u32::from_be_bytes(teid);
            return Some(TunnelContent { tunnel: TunnelKind::Gtp, id, kind: TunnelPayload::Ip, bytes: rest });
        }
        // An extension begins with its length in words and ends with the type of the next one. Length 0 is invalid and
        // would be read for ever.
        let bytes = 4 * usize::from(*rest.bytes.first()?);
        next = *rest.bytes.get(bytes.checked_sub(1)?)?;
        rest = rest.skip(bytes)?;
    }
    None
}
