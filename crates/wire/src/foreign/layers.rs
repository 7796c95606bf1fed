//! Finds the headers of an Ethernet frame.

use super::word_at;
use std::ops::Range;

const IPV4_ETHERTYPE: u16 = 0x0800;
const IPV6_ETHERTYPE: u16 = 0x86dd;
const MAX_VLAN_TAGS: usize = 4;
/// Maximum number of IPv6 extension headers. Longer chains do not occur in practice.
const MAX_EXTENSIONS: usize = 8;

const ICMP_PROTOCOL: u8 = 1;
const TCP_PROTOCOL: u8 = 6;
const UDP_PROTOCOL: u8 = 17;
const ICMP_V6: u8 = 58;
const UDP_LITE: u8 = 136;

/// The headers of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketLayers {
    /// Offset of the EtherType after all VLAN tags.
    pub type_at: usize,
    /// The outermost IP header.
    pub ip: Option<IpHeaderLayer>,
    /// The transport header of the outermost IP packet. It is absent in later fragments, and if the frame is
    /// shorter than the length in its IP header.
    pub transport: Option<TransportLayer>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpHeaderLayer {
    pub at: usize,
    /// True for version 6, false for version 4.
    pub is_v6: bool,
    /// True if the packet is a fragment.
    pub is_fragment: bool,
    /// True if the transport checksum covers the destination address in this header. It is false for a source
    /// route with segments left.
    pub is_final: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportLayer {
    pub at: usize,
    pub protocol: u8,
    /// The payload, according to the lengths in the headers.
    pub payload: Range<usize>,
    /// Offset of the checksum; `None` for a UDP checksum of zero, which means that none was computed.
    pub checksum_at: Option<usize>,
}

impl TransportLayer {
    /// Returns whether the checksum also covers the IP addresses.
    pub fn checksum_covers_addresses(&self) -> bool {
        self.protocol != ICMP_PROTOCOL
    }

    /// Returns whether a checksum of zero means that there is none.
    pub fn zero_means_no_checksum(&self) -> bool {
        matches!(self.protocol, UDP_PROTOCOL | UDP_LITE)
    }

    /// Returns whether the payload is data of the sender (TCP, UDP, ICMP echo) and not part of the protocol.
    pub fn has_user_payload(&self, frame: &[u8]) -> bool {
        let kind = frame.get(self.at);
        match self.protocol {
            TCP_PROTOCOL | UDP_PROTOCOL => true,
            // Echo request and reply.
            ICMP_PROTOCOL => matches!(kind, Some(0 | 8)),
            ICMP_V6 => matches!(kind, Some(128 | 129)),
            _ => false,
        }
    }
}

/// The packet that an IP header carries, according to the fields of the header.
struct CarriedPacket {
    protocol: u8,
    at: usize,
    end: usize,
    is_first: bool,
}

impl PacketLayers {
    /// Finds the headers of a frame without FCS; `None` if the frame is too short for Ethernet.
    pub fn from_frame(frame: &[u8]) -> Option<Self> {
        let mut type_at = 12;
        for _ in 0..MAX_VLAN_TAGS {
            match word_at(frame, type_at)? {
                0x8100 | 0x88a8 | 0x9100 => type_at += 4,
                _ => break,
            }
        }
        let found = match word_at(frame, type_at)? {
            IPV4_ETHERTYPE => find_ipv4_header(frame, type_at + 2),
            IPV6_ETHERTYPE => find_ipv6_header(frame, type_at + 2),
            _ => None,
        };
        let Some(FoundIpHeader { ip, carried }) = found else {
            return Some(Self { type_at, ip: None, transport: None });
        };
        let transport = carried.and_then(|carried| find_transport(frame, &carried));
        Some(Self { type_at, ip: Some(ip), transport })
    }
}

/// An IP header, and the packet that it carries, if the beginning of that packet is in this frame.
struct FoundIpHeader {
    ip: IpHeaderLayer,
    carried: Option<CarriedPacket>,
}

fn find_ipv4_header(frame: &[u8], at: usize) -> Option<FoundIpHeader> {
    let header: &[u8; 20] = frame.get(at..)?.first_chunk()?;
    let header_len = usize::from(header[0] & 0x0f) * 4;
    if header[0] >> 4 != 4 || header_len < 20 {
        return None;
    }
    let fragment = u16::from_be_bytes([header[6], header[7]]);
    let end = at + usize::from(u16::from_be_bytes([header[2], header[3]]));
    let ip = IpHeaderLayer { at, is_v6: false, is_fragment: fragment & 0x3fff != 0, is_final: true };
    let carried = CarriedPacket {
        protocol: header[9],
        at: at + header_len,
        end,
        // The fragment offset is in the low 13 bits. If it is zero, this is the first fragment or a whole
        // packet.
        is_first: fragment.trailing_zeros() >= 13,
    };
    Some(FoundIpHeader { ip, carried: Some(carried) })
}

fn find_ipv6_header(frame: &[u8], at: usize) -> Option<FoundIpHeader> {
    let header: &[u8; 40] = frame.get(at..)?.first_chunk()?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let end = at + 40 + usize::from(u16::from_be_bytes([header[4], header[5]]));
    let mut ip = IpHeaderLayer { at, is_v6: true, is_fragment: false, is_final: true };
    let carried = skip_extensions(frame, header[6], at + 40, end, &mut ip);
    Some(FoundIpHeader { ip, carried })
}

/// Finds the header after the extension headers; `None` in later fragments, and after too many extension
/// headers. `next` is the type of the first header.
fn skip_extensions(
    frame: &[u8],
    mut next: u8,
    mut at: usize,
    end: usize,
    ip: &mut IpHeaderLayer,
) -> Option<CarriedPacket> {
    let mut is_first = true;
    for _ in 0..MAX_EXTENSIONS {
        // Every header that is possible here has at least eight bytes.
        let [following, length, _, left] = *frame.get(at..)?.first_chunk()?;
        let taken = match next {
            // Hop-by-hop options, routing and destination options. If a routing header has segments left, the
            // IP header contains the address of the next hop, but the checksum covers the last address (RFC
            // 8200 section 8.1).
            0 | 43 | 60 => {
                ip.is_final &= next != 43 || left == 0;
                usize::from(length) * 8 + 8
            }
            // Fragment header: the offset in units of eight bytes, and whether more fragments follow.
            44 => {
                let fragment = word_at(frame, at + 2)?;
                ip.is_fragment |= fragment & 0xfff9 != 0;
                is_first &= fragment & 0xfff8 == 0;
                8
            }
            protocol => return Some(CarriedPacket { protocol, at, end, is_first }),
        };
        // A later fragment continues with a part of the payload, not with a header.
        if !is_first {
            return None;
        }
        next = following;
        at += taken;
    }
    None
}

fn find_transport(frame: &[u8], carried: &CarriedPacket) -> Option<TransportLayer> {
    let CarriedPacket { protocol, at, end, is_first } = *carried;
    // A truncated frame lacks a part of the bytes that its checksum covers, so the checksum cannot be
    // corrected.
    if !is_first || end > frame.len() {
        return None;
    }
    let checksum_at = match protocol {
        TCP_PROTOCOL => at + 16,
        UDP_PROTOCOL | UDP_LITE => at + 6,
        ICMP_PROTOCOL | ICMP_V6 => at + 2,
        _ => return None,
    };
    let header_len = if protocol == TCP_PROTOCOL { usize::from(frame.get(at + 12)? >> 4) * 4 } else { 8 };
    let least = if protocol == TCP_PROTOCOL { 20 } else { 8 };
    let is_whole = header_len >= least && at + header_len <= end;
    let checksum = word_at(frame, checksum_at)?;
    // RFC 768: a UDP checksum of zero was not computed. Correcting it would give a meaningless checksum.
    let has_checksum = checksum != 0 || protocol != UDP_PROTOCOL;
    is_whole.then(|| TransportLayer {
        at,
        protocol,
        payload: at + header_len..end,
        checksum_at: has_checksum.then_some(checksum_at),
    })
}
