//! The fast path for nearly all frames: Ethernet, at most two VLAN tags, IP without options or extension headers, a
//! whole packet of TCP, UDP or ICMP.
//!
//! Invariant: the fast path gives the same packet as the general parser, and leaves everything unusual to that parser.

use super::content;
use super::link::is_vlan_ether_type;
use super::{FrameArrival, ipv4_mapped};
use crate::packet::protocol::{ICMP, ICMPV6, TCP, UDP};
use crate::{PacketInfo, flags};

/// UDP ports of tunnels.
pub(super) const VXLAN: u16 = 4789;
pub(super) const GENEVE: u16 = 6081;
pub(super) const GTP_PORT: u16 = 2152;

/// Bytes of a transport header that are needed: up to TCP's flags. Shorter packets of UDP and ICMP
/// take the general parser.
const NEEDED_TRANSPORT_BYTES: usize = 14;

/// Options of the fast path.
#[derive(Clone, Copy, Debug)]
pub(super) struct FastParser {
    pub(super) enters_tunnels: bool,
    pub(super) hashes_content: bool,
}

impl FastParser {
    /// Reads a frame if the fast path can. Returns false if it cannot; then `packet` may hold any value.
    #[inline]
    pub(super) fn try_read_frame(self, frame: &[u8], arrival: FrameArrival, packet: &mut PacketInfo) -> bool {
        let Some((head, mut rest)) = frame.split_first_chunk::<14>() else { return false };
        let mut kind = u16::from_be_bytes([head[12], head[13]]);
        let mut vlans = [0; 2];
        for vlan in &mut vlans {
            if !is_vlan_ether_type(kind) {
                break;
            }
            let Some((tag, behind)) = rest.split_first_chunk::<4>() else { return false };
            *vlan = u16::from_be_bytes([tag[0], tag[1]]) & 0xfff;
            kind = u16::from_be_bytes([tag[2], tag[3]]);
            rest = behind;
        }
        let link = FastLinkHeaders { head, vlans };
        match kind {
            0x0800 => self.read_ipv4(rest, link, arrival, packet),
            0x86dd => self.read_ipv6(rest, link, arrival, packet),
            _ => false,
        }
    }

    #[inline]
    fn read_ipv4(
        self,
        bytes: &[u8],
        link: FastLinkHeaders<'_>,
        arrival: FrameArrival,
        packet: &mut PacketInfo,
    ) -> bool {
        let Some((ip, behind)) = bytes.split_first_chunk::<20>() else { return false };
        let Some(transport) = behind.first_chunk::<NEEDED_TRANSPORT_BYTES>() else { return false };
        let total = u16::from_be_bytes([ip[2], ip[3]]);
        // The mask has the offset and "more fragments", but not "don't fragment", which most packets have.
        let is_fragment = u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff != 0;
        let Some(part) = read_transport(ip[9], transport, self.enters_tunnels) else { return false };
        // 0x45: version 4 and a header of 20 bytes. A packet shorter than the bytes that were read has padding there, and a
        // length of zero has a meaning of its own: both are for the general parser.
        if ip[0] != 0x45 || is_fragment || usize::from(total) < 20 + NEEDED_TRANSPORT_BYTES {
            return false;
        }
        *packet = PacketInfo {
            source: ipv4_mapped([ip[12], ip[13], ip[14], ip[15]]),
            destination: ipv4_mapped([ip[16], ip[17], ip[18], ip[19]]),
            at_ns: arrival.at_ns,
            bytes: total.into(),
            frame_bytes: arrival.frame_bytes,
            source_port: part.source,
            destination_port: part.destination,
            vlan: link.vlans[0],
            inner_vlan: link.vlans[1],
            protocol: ip[9],
            tcp_flags: part.flags,
            ttl: ip[8],
            tos: ip[1],
            flags: cut_short_flag(usize::from(total), bytes.len()),
            input: arrival.input,
            source_mac: link.mac_at(6),
            destination_mac: link.mac_at(0),
            content: self.hash_content(
                ip[9],
                u16::from_be_bytes([ip[4], ip[5]]),
                captured_payload(behind, total - 20),
            ),
            ..PacketInfo::default()
        };
        true
    }

    #[inline]
    fn read_ipv6(
        self,
        bytes: &[u8],
        link: FastLinkHeaders<'_>,
        arrival: FrameArrival,
        packet: &mut PacketInfo,
    ) -> bool {
        let Some((ip, behind)) = bytes.split_first_chunk::<40>() else { return false };
        let Some(transport) = behind.first_chunk::<NEEDED_TRANSPORT_BYTES>() else { return false };
        let payload = u16::from_be_bytes([ip[4], ip[5]]);
        let Some(part) = read_transport(ip[6], transport, self.enters_tunnels) else { return false };
        // A length of zero has a special meaning, and padding may follow a short payload: the
        // general parser handles both.
        if ip[0] >> 4 != 6 || usize::from(payload) < NEEDED_TRANSPORT_BYTES {
            return false;
        }
        let Some(source) = ip[8..].first_chunk() else { return false };
        let Some(destination) = ip[24..].first_chunk() else { return false };
        let total = usize::from(payload) + 40;
        *packet = PacketInfo {
            source: *source,
            destination: *destination,
            at_ns: arrival.at_ns,
            bytes: u32::from(payload) + 40,
            frame_bytes: arrival.frame_bytes,
            source_port: part.source,
            destination_port: part.destination,
            vlan: link.vlans[0],
            inner_vlan: link.vlans[1],
            protocol: ip[6],
            tcp_flags: part.flags,
            ttl: ip[7],
            tos: ip[0] << 4 | ip[1] >> 4,
            flags: flags::IPV6_FLAG | cut_short_flag(total, bytes.len()),
            input: arrival.input,
            source_mac: link.mac_at(6),
            destination_mac: link.mac_at(0),
            content: self.hash_content(ip[6], 0, captured_payload(behind, payload)),
            ..PacketInfo::default()
        };
        true
    }

    #[inline]
    fn hash_content(self, protocol: u8, identification: u16, payload: &[u8]) -> u32 {
        if self.hashes_content { content::hash_payload(protocol, identification, payload) } else { 0 }
    }
}

#[derive(Clone, Copy)]
struct FastLinkHeaders<'a> {
    head: &'a [u8; 14],
    vlans: [u16; 2],
}

impl FastLinkHeaders<'_> {
    #[inline]
    fn mac_at(self, at: usize) -> [u8; 6] {
        self.head[at..].first_chunk().copied().unwrap_or_default()
    }
}

/// Returns the captured part of a packet's payload, without the bytes that follow the packet in its frame.
#[inline]
fn captured_payload(behind: &[u8], payload: u16) -> &[u8] {
    &behind[..behind.len().min(payload.into())]
}

struct FastTransport {
    source: u16,
    destination: u16,
    flags: u8,
}

/// Reads the ports of TCP or UDP, or type and code of ICMP. `None` for other protocols, and for UDP that
/// may carry a tunnel.
#[inline]
fn read_transport(protocol: u8, head: &[u8; NEEDED_TRANSPORT_BYTES], tunnels: bool) -> Option<FastTransport> {
    let destination = u16::from_be_bytes([head[2], head[3]]);
    let flags = match protocol {
        TCP => head[13],
        ICMP | ICMPV6 => {
            let type_code = u16::from_be_bytes([head[0], head[1]]);
            return Some(FastTransport { source: 0, destination: type_code, flags: 0 });
        }
        // The general parser knows tunnels by the destination port alone, so a
        // packet from such a port is plain UDP.
        UDP if !(tunnels && matches!(destination, VXLAN | GENEVE | GTP_PORT)) => 0,
        _ => return None,
    };
    Some(FastTransport { source: u16::from_be_bytes([head[0], head[1]]), destination, flags })
}

#[inline]
fn cut_short_flag(total: usize, here: usize) -> u8 {
    if total > here { flags::CUT_FLAG } else { 0 }
}
