//! Writes the frames of probes: Ethernet, IP and a segment, datagram or echo request, with their checksums.
//!
//! [`crate::answer`] reads answers; the tests check the two modules against each other.
//!
//! Invariant: a frame has right lengths and checksums, and is never shorter than [`MIN_FRAME_BYTES`].

use packetrig_units::clamp_to_u16;
use packetrig_wire::checksum::ChecksumSum;
use std::net::IpAddr;

/// Shortest Ethernet frame without FCS.
pub const MIN_FRAME_BYTES: usize = 60;
/// Bytes of an Ethernet header.
pub const ETHERNET: usize = 14;
pub const IPV4: usize = 20;
pub const IPV6: usize = 40;
/// Bytes of a UDP header, and also of the ICMP header of an echo request.
pub const UDP: usize = 8;
const DEFAULT_HOP_LIMIT: u8 = 64;

pub(crate) const ETHER_IPV4: u16 = 0x0800;
pub(crate) const ETHER_IPV6: u16 = 0x86dd;
pub(crate) const PROTOCOL_ICMP: u8 = 1;
pub(crate) const PROTOCOL_TCP: u8 = 6;
pub(crate) const PROTOCOL_UDP: u8 = 17;
pub(crate) const PROTOCOL_ICMPV6: u8 = 58;

/// Addresses of sender and target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeFrameEndpoints {
    /// Hardware address of the sender.
    pub own_mac: [u8; 6],
    /// Hardware address of the next hop.
    pub next_mac: [u8; 6],
    /// Source address; always one of the sender's own addresses.
    pub source: IpAddr,
    /// Address of the target, of the same family.
    pub target: IpAddr,
    /// Differentiated services code point and ECN bits.
    pub class: u8,
}

/// A TCP segment, to be written or as it was received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpSegment<'a> {
    pub source_port: u16,
    pub target_port: u16,
    pub sequence: u32,
    pub acknowledgement: u32,
    /// FIN 1, SYN 2, RST 4, PSH 8, ACK 16.
    pub flags: u8,
    pub window: u16,
    /// Encoded TCP options. Their length must be a multiple of four.
    pub options: &'a [u8],
    pub payload: &'a [u8],
}

/// Bits of [`TcpSegment::flags`].
pub mod flags {
    pub const FIN: u8 = 1;
    pub const SYN: u8 = 2;
    pub const RST: u8 = 4;
    pub const PSH: u8 = 8;
    pub const ACK: u8 = 16;
}

impl ProbeFrameEndpoints {
    /// Bytes of the Ethernet and IP headers.
    pub const fn header_bytes(&self) -> usize {
        ETHERNET + if self.source.is_ipv4() { IPV4 } else { IPV6 }
    }

    /// Writes a UDP datagram into `frame` and replaces its old content.
    pub fn write_udp_frame(&self, source_port: u16, target_port: u16, payload: &[u8], frame: &mut Vec<u8>) {
        let at = self.begin_frame(PROTOCOL_UDP, UDP + payload.len(), frame);
        frame.extend(source_port.to_be_bytes());
        frame.extend(target_port.to_be_bytes());
        frame.extend(clamp_to_u16(UDP + payload.len()).to_be_bytes());
        frame.extend([0, 0]);
        frame.extend(payload);
        // RFC 768: zero in the field means "no checksum", so a computed zero is sent as all ones, which means the same
        // number in ones' complement.
        let sum = match self.compute_transport_checksum(PROTOCOL_UDP, &frame[at..]) {
            0 => 0xffff,
            sum => sum,
        };
        put_be16(frame, at + 6, sum);
        pad_frame(frame);
    }

    /// Writes an echo request of ICMP or ICMPv6 into `frame` and replaces its old content.
    pub fn write_echo_frame(&self, identifier: u16, sequence: u16, payload: &[u8], frame: &mut Vec<u8>) {
        let protocol = if self.source.is_ipv4() { PROTOCOL_ICMP } else { PROTOCOL_ICMPV6 };
        let kind = if self.source.is_ipv4() { 8 } else { 128 };
        let at = self.begin_frame(protocol, UDP + payload.len(), frame);
        frame.extend([kind, 0, 0, 0]);
        frame.extend(identifier.to_be_bytes());
        frame.extend(sequence.to_be_bytes());
        frame.extend(payload);
        let sum = self.compute_transport_checksum(protocol, &frame[at..]);
        put_be16(frame, at + 2, sum);
        pad_frame(frame);
    }

    pub fn write_tcp_frame(&self, segment: &TcpSegment<'_>, frame: &mut Vec<u8>) {
        // The data offset counts words of four bytes, in four bits. Bytes of the options after the last whole
        // word are cut off.
        let header = 20 + segment.options.len() / 4 * 4;
        let at = self.begin_frame(PROTOCOL_TCP, header + segment.payload.len(), frame);
        frame.extend(segment.source_port.to_be_bytes());
        frame.extend(segment.target_port.to_be_bytes());
        frame.extend(segment.sequence.to_be_bytes());
        frame.extend(segment.acknowledgement.to_be_bytes());
        let [words, ..] = (header / 4).min(15).to_le_bytes();
        frame.extend([words << 4, segment.flags]);
        frame.extend(segment.window.to_be_bytes());
        frame.extend([0; 4]);
        frame.extend(&segment.options[..header - 20]);
        frame.extend(segment.payload);
        let sum = self.compute_transport_checksum(PROTOCOL_TCP, &frame[at..]);
        put_be16(frame, at + 16, sum);
        pad_frame(frame);
    }

    /// Writes Ethernet and IP headers for `carried` bytes into the cleared frame. Returns the offset after them.
    fn begin_frame(&self, protocol: u8, carried: usize, frame: &mut Vec<u8>) -> usize {
        frame.clear();
        frame.extend(self.next_mac);
        frame.extend(self.own_mac);
        if let (IpAddr::V4(source), IpAddr::V4(target)) = (self.source, self.target) {
            frame.extend(ETHER_IPV4.to_be_bytes());
            frame.extend([0x45, self.class]);
            frame.extend(clamp_to_u16(IPV4 + carried).to_be_bytes());
            // "Don't fragment" is set, so the identification may be zero (RFC 6864, 4.1).
            frame.extend([0, 0, 0x40, 0, DEFAULT_HOP_LIMIT, protocol, 0, 0]);
            frame.extend(source.octets());
            frame.extend(target.octets());
            let sum = !packetrig_wire::checksum::ones_complement_sum(&frame[ETHERNET..]);
            put_be16(frame, ETHERNET + 10, sum);
        } else {
            frame.extend(ETHER_IPV6.to_be_bytes());
            frame.extend([0x60 | self.class >> 4, self.class << 4, 0, 0]);
            frame.extend(clamp_to_u16(carried).to_be_bytes());
            frame.extend([protocol, DEFAULT_HOP_LIMIT]);
            frame.extend(ipv6_octets(self.source));
            frame.extend(ipv6_octets(self.target));
        }
        frame.len()
    }

    fn compute_transport_checksum(&self, protocol: u8, carried: &[u8]) -> u16 {
        !transport_sum(self.source, self.target, protocol, carried)
    }
}

/// The ones' complement sum over the IP payload, with the pseudo header if the protocol has one. It is all
/// ones if the checksum in the payload is right.
pub(crate) fn transport_sum(source: IpAddr, target: IpAddr, protocol: u8, carried: &[u8]) -> u16 {
    // ICMP has no pseudo header (RFC 792). The other protocols have one, ICMPv6 included (RFC 4443, 2.3).
    let mut sum = ChecksumSum::default();
    if protocol != PROTOCOL_ICMP {
        for ip in [source, target] {
            match ip {
                IpAddr::V4(ip) => sum.add_bytes(&ip.octets()),
                IpAddr::V6(ip) => sum.add_bytes(&ip.octets()),
            }
        }
        // IPv6's pseudo header has wider fields (RFC 8200, 8.1), but the added zeros change no sum.
        sum.add_bytes(&[0, protocol]);
        sum.add_bytes(&clamp_to_u16(carried.len()).to_be_bytes());
    }
    sum.add_bytes(carried);
    sum.folded_sum()
}

/// Returns the bytes of an IPv6 address. An IPv4 address is mapped (`::ffff:`), which happens only if source and target
/// have different families; no caller passes such a pair.
fn ipv6_octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

fn put_be16(frame: &mut [u8], at: usize, value: u16) {
    frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn pad_frame(frame: &mut Vec<u8>) {
    if frame.len() < MIN_FRAME_BYTES {
        frame.resize(MIN_FRAME_BYTES, 0);
    }
}

/// Returns the text that tells the receiver of a probe where it comes from (RFC 9511), cut to `room` bytes: `about`, or
/// `packetrig probe` if `about` is `None`.
pub fn attribution_bytes_or_default(about: Option<&str>, room: usize) -> &[u8] {
    let text = about.unwrap_or("packetrig probe").as_bytes();
    &text[..text.len().min(room)]
}
