//! Merged packets, counted as the packets that they were on the wire.
//!
//! A sender lets the card split a long packet into segments (TSO, USO), and a receiving kernel or card merges
//! the segments of a flow (GRO, LRO). On the wire each segment has all headers down to that of the transport,
//! and `segment_bytes` of the payload; the last segment has the remaining bytes.
//!
//! Invariant: the bytes of all segments are the payload once, and the headers once for each segment.

use super::ip::{self, PacketPart};
use super::link::{self, Layer3};
use super::span::FrameSpan;
use super::{LinkKind, transport, tunnel};
use crate::packet::protocol::{TCP, UDP};
use crate::{PacketInfo, flags};
use packetrig_units::{clamp_to_u16, clamp_to_u32};

/// Maximum number of nested IP headers that are read.
const MAX_IP_DEPTH: usize = 8;
/// Maximum number of packets in a merged one: the table adds them to a 16-bit counter that already holds one packet.
const MAX_MERGED_PACKETS: usize = u16::MAX as usize - 1;
/// The hop-by-hop header that a packet of more than 64 KiB has in the kernel and not on the wire (RFC 2675).
const JUMBO_OPTION_BYTES: usize = 8;

/// Kernel metadata about a merged packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeMetadata {
    /// Payload bytes of each packet on the wire; the last one may have fewer.
    pub segment_bytes: u16,
    /// Offset of the transport header that each packet on the wire has, if the kernel states it.
    pub transport_at: Option<usize>,
}

/// The packets on the wire that a merged packet represents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketSegments {
    count: usize,
    /// Payload bytes of each segment except the last one.
    longer: usize,
    payload: usize,
    /// Header bytes of each segment.
    headers: usize,
    full_len: usize,
    /// Offsets of the IP headers that each segment has; unused places are beyond the frame.
    ip_at: [usize; MAX_IP_DEPTH],
}

/// Some of the packets that a merged packet represents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelectedSegments {
    pub count: u16,
    /// True if the last one, which may be shorter, is among them.
    pub has_last: bool,
}

/// An IP packet in a frame, and its transport.
#[derive(Clone, Copy, Debug)]
struct NestedIpPacket {
    ip_at: usize,
    end: usize,
    transport_at: usize,
    protocol: u8,
}

impl PacketSegments {
    /// Computes the segments that an Ethernet frame was merged from. `None` if its TCP or UDP header cannot be found,
    /// or the note gives no valid number of segments.
    pub fn from_frame(frame: &[u8], full_len: usize, note: MergeMetadata) -> Option<Self> {
        let full_len = full_len.max(frame.len());
        let mut nested = [None; MAX_IP_DEPTH];
        find_nested_ips(frame, full_len, &mut nested);
        let is_repeated = |ip: &NestedIpPacket| match note.transport_at {
            Some(at) => ip.transport_at == at,
            // If packets of a tunnel were merged as packets of its outer header, the inner ones end
            // before the frame does.
            None => ip.end == full_len,
        };
        let repeated = nested.iter().rposition(|ip| ip.as_ref().is_some_and(is_repeated))?;
        let NestedIpPacket { ip_at, transport_at, protocol, .. } = nested[repeated]?;
        let own = match protocol {
            // TCP options are repeated in every segment, so the whole header counts, not only its 20 bytes.
            TCP => usize::from(frame.get(transport_at + 12)? >> 4) * 4,
            UDP => 8,
            // Segments of another transport cannot be computed: the length of its header is not known here.
            _ => return None,
        };
        // The segments on the wire are ordinary packets, so they lack the jumbo option.
        let surplus = if is_jumbogram(frame, ip_at) { JUMBO_OPTION_BYTES } else { 0 };
        let payload = full_len.checked_sub(transport_at + own)?;
        let headers = (transport_at + own).checked_sub(surplus)?;
        // A note of zero bytes would divide by zero, and a payload of none would
        // give no packet: both end in `None`.
        let longer = usize::from(note.segment_bytes);
        let count = payload.checked_add(longer)?.checked_sub(1)?.checked_div(longer)?;
        let mut ip_at = [usize::MAX; MAX_IP_DEPTH];
        for (at, ip) in ip_at.iter_mut().zip(nested.iter().take(repeated + 1).flatten()) {
            *at = ip.ip_at;
        }
        ((1..=MAX_MERGED_PACKETS).contains(&count)).then_some(Self {
            count,
            longer,
            payload,
            headers,
            full_len,
            ip_at,
        })
    }

    /// Returns the number of segments.
    pub const fn count(&self) -> usize {
        self.count
    }

    /// Returns the total length of the frames of all segments, in bytes.
    pub const fn frame_bytes(&self) -> usize {
        self.payload + self.count * self.headers
    }

    pub fn all_segments(&self) -> SelectedSegments {
        SelectedSegments { count: clamp_to_u16(self.count), has_last: true }
    }

    /// Changes a packet that was read from the merged frame, so that it represents the chosen segments.
    pub fn apply_segments(&self, chosen: SelectedSegments, packet: &mut PacketInfo) {
        packet.flags |= flags::MERGED_FLAG;
        packet.segments = chosen.count;
        packet.frame_bytes = clamp_to_u32(self.bytes_of_segments(chosen, self.headers));
        // A merged frame has no padding, so an IP packet whose header each segment has ends where the frame ends.
        let at = self.full_len.checked_sub(packet.bytes as usize).filter(|at| self.ip_at.contains(at));
        let ip_headers = at.and_then(|at| self.headers.checked_sub(at));
        if let Some(ip_headers) = ip_headers {
            packet.flags &= !flags::UNSPLIT_FLAG;
            packet.bytes = clamp_to_u32(self.bytes_of_segments(chosen, ip_headers));
            packet.segment_bytes = clamp_to_u16(self.longer + ip_headers);
        } else {
            // Each segment has its own packet in the tunnel, but only the first of these can be read.
            packet.flags |= flags::UNSPLIT_FLAG;
            packet.segment_bytes = clamp_to_u16(packet.bytes);
            packet.bytes = packet.bytes.saturating_mul(chosen.count.into());
        }
    }

    fn bytes_of_segments(&self, chosen: SelectedSegments, headers: usize) -> usize {
        // Only the last segment may be shorter, so the difference is subtracted once.
        let shorter = if chosen.has_last { self.count * self.longer - self.payload } else { 0 };
        usize::from(chosen.count) * (headers + self.longer) - shorter
    }
}

/// Lists the IP headers of a frame, from the outermost one inwards.
fn find_nested_ips(
    frame: &[u8],
    full_len: usize,
    nested: &mut [Option<NestedIpPacket>; MAX_IP_DEPTH],
) -> Option<()> {
    let mut packet = PacketInfo::default();
    let span = FrameSpan { bytes: frame, missing: full_len - frame.len() };
    let mut layer3 = LinkKind::Ethernet.find_ip_packet(span, &mut packet).ok()?;
    for place in nested {
        let (header, payload) = match layer3 {
            Layer3::V4(bytes) => (bytes, ip::read_ipv4(bytes, &mut packet).ok()?),
            Layer3::V6(bytes) => (bytes, ip::read_ipv6(bytes, &mut packet).ok()?),
        };
        // A fragment was never merged: the kernel merges whole packets of one flow.
        let PacketPart::Whole = payload.part else { return None };
        let ip_at = offset_in_frame(frame, header.bytes)?;
        *place = Some(NestedIpPacket {
            ip_at,
            end: ip_at + packet.bytes as usize,
            transport_at: offset_in_frame(frame, payload.bytes.bytes)?,
            protocol: packet.protocol,
        });
        // The ports are read first, because a tunnel is recognised by its port.
        transport::read_header(payload.bytes.bytes, &mut packet);
        let content = tunnel::read_tunnel(payload.bytes, &packet)?;
        packet = content.inner_packet(&packet);
        layer3 = link::read_tunnel_payload_to_ip(content.kind, content.bytes, &mut packet).ok()?;
    }
    None
}

/// Returns the offset of a part of a frame; `None` for an empty part.
fn offset_in_frame(frame: &[u8], part: &[u8]) -> Option<usize> {
    part.as_ptr()
        .addr()
        .checked_sub(frame.as_ptr().addr())
        // An empty part may come from `without_bytes`, which is no part of the frame.
        .filter(|at| *at <= frame.len() && !part.is_empty())
}

fn is_jumbogram(frame: &[u8], ip_at: usize) -> bool {
    // Version 6, no length of its own, and a hop-by-hop header with the jumbo payload option.
    let Some([version, _, _, _, 0, 0, 0, ..]) = frame.get(ip_at..ip_at + 40) else { return false };
    version >> 4 == 6 && frame.get(ip_at + 42) == Some(&0xc2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::{FrameParser, ParseOptions};

    const MAX: MergeMetadata = MergeMetadata { segment_bytes: 1000, transport_at: None };

    fn tcp(payload: usize) -> Vec<u8> {
        let mut segment = vec![0, 80, 4, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0x80, 0x10, 1, 0, 0, 0, 0, 0];
        segment.resize(32 + payload, 7);
        segment
    }

    fn udp(port: u16, payload: &[u8]) -> Vec<u8> {
        let length = u16::try_from(8 + payload.len()).unwrap();
        let [p0, p1] = port.to_be_bytes();
        let [l0, l1] = length.to_be_bytes();
        [&[4, 0, p0, p1, l0, l1, 0, 0][..], payload].concat()
    }

    fn v4(protocol: u8, payload: &[u8]) -> Vec<u8> {
        let [l0, l1] = u16::try_from(20 + payload.len()).unwrap().to_be_bytes();
        let head = [0x45, 0, l0, l1, 0, 0, 0x40, 0, 64, protocol, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2];
        [&head[..], payload].concat()
    }

    fn v6(protocol: u8, payload: &[u8]) -> Vec<u8> {
        let [l0, l1] = u16::try_from(payload.len()).unwrap().to_be_bytes();
        [&[0x60, 0, 0, 0, l0, l1, protocol, 64][..], &[0x20; 32], payload].concat()
    }

    fn ethernet(kind: u16, payload: &[u8]) -> Vec<u8> {
        [&[2; 12][..], &kind.to_be_bytes(), payload].concat()
    }

    fn tagged(kind: u16, payload: &[u8]) -> Vec<u8> {
        ethernet(0x8100, &[&[0, 100][..], &kind.to_be_bytes(), payload].concat())
    }

    /// Meters a merged frame of which the first `kept` bytes are captured.
    fn metered(frame: &[u8], kept: usize, depth: u8, note: MergeMetadata) -> (PacketInfo, PacketSegments) {
        let cut = &frame[..kept.min(frame.len())];
        let segments = PacketSegments::from_frame(cut, frame.len(), note).unwrap();
        let mut packet = PacketInfo::default();
        let options = ParseOptions { depth, ..ParseOptions::default() };
        FrameParser::new(options).parse_frame(cut, frame.len(), 1, 0, &mut packet).unwrap();
        segments.apply_segments(segments.all_segments(), &mut packet);
        (packet, segments)
    }

    #[test]
    fn merged_headers_count_per_segment_and_payload_once() {
        // Frame, bytes of link headers, bytes of IP and transport headers.
        let frames = [
            (ethernet(0x0800, &v4(TCP, &tcp(3500))), 14, 52),
            (tagged(0x0800, &v4(TCP, &tcp(3500))), 18, 52),
            (ethernet(0x86dd, &v6(TCP, &tcp(3500))), 14, 72),
            (ethernet(0x0800, &v4(UDP, &udp(53, &[7; 3500]))), 14, 28),
            (tagged(0x86dd, &v6(UDP, &udp(53, &[7; 3500]))), 18, 48),
        ];
        for (frame, link, headers) in frames {
            for kept in [128, usize::MAX] {
                let (packet, segments) = metered(&frame, kept, 2, MAX);
                assert_eq!((segments.count(), packet.packet_count()), (4, 4));
                assert_eq!(packet.bytes, 3500 + 4 * headers);
                assert_eq!(packet.frame_bytes, 3500 + 4 * (headers + link));
                assert_eq!(segments.frame_bytes(), packet.frame_bytes as usize);
                let each: Vec<u32> = packet.packet_lengths().collect();
                assert_eq!(each, [1000, 1000, 1000, 500].map(|payload| payload + headers));
                assert_eq!(packet.flags & flags::UNSPLIT_FLAG, 0);
            }
        }
    }

    #[test]
    fn equal_segments_have_no_shorter_last_one() {
        let frame = ethernet(0x0800, &v4(UDP, &udp(53, &[7; 3000])));
        let (packet, _) = metered(&frame, 128, 2, MAX);
        assert_eq!(packet.packet_lengths().collect::<Vec<_>>(), [1028; 3]);
    }

    #[test]
    fn chosen_segments_have_their_own_bytes() {
        let frame = ethernet(0x0800, &v4(UDP, &udp(53, &[7; 3500])));
        let (_, segments) = metered(&frame, 128, 2, MAX);
        let mut parser = FrameParser::new(ParseOptions::default());
        for (count, has_last, bytes) in [(2, false, 2056), (2, true, 1028 + 528), (1, true, 528)] {
            let mut packet = PacketInfo::default();
            parser.parse_frame(&frame, frame.len(), 1, 0, &mut packet).unwrap();
            segments.apply_segments(SelectedSegments { count, has_last }, &mut packet);
            assert_eq!((packet.packet_count(), packet.bytes), (count, bytes));
            assert_eq!(packet.packet_lengths().sum::<u32>(), bytes);
        }
    }

    fn vxlan(inner: &[u8]) -> Vec<u8> {
        udp(4789, &[&[8, 0, 0, 0, 0, 0, 5, 0][..], inner].concat())
    }

    #[test]
    fn tunnel_segments_carry_outer_and_inner_headers() {
        let inner = ethernet(0x0800, &v4(TCP, &tcp(3500)));
        let frame = ethernet(0x0800, &v4(UDP, &vxlan(&inner)));
        let outer = 14 + 20 + 8 + 8;
        let (packet, _) = metered(&frame, 150, 2, MAX);
        assert_eq!((packet.packet_count(), packet.bytes, packet.protocol), (4, 3500 + 4 * 52, TCP));
        assert_eq!(packet.frame_bytes, 3500 + 4 * (outer + 14 + 52));
        // If the inner packet is not read, the number of outer ones is the same.
        let (packet, _) = metered(&frame, 150, 0, MAX);
        assert_eq!(
            (packet.packet_count(), packet.bytes, packet.protocol),
            (4, 3500 + 4 * (36 + 14 + 52), UDP)
        );
    }

    #[test]
    fn tunnel_packets_merged_by_outer_header_are_marked() {
        // Three datagrams, each with an inner packet of its own: only that of the first one can be read.
        let inner = ethernet(0x0800, &v4(UDP, &udp(53, &[7; 942])));
        let each = [&[8, 0, 0, 0, 0, 0, 5, 0][..], &inner].concat();
        let frame = ethernet(0x0800, &v4(UDP, &udp(4789, &each.repeat(3))));
        let length = u16::try_from(each.len()).unwrap();
        for transport_at in [None, Some(34)] {
            let note = MergeMetadata { segment_bytes: length, transport_at };
            let (packet, segments) = metered(&frame, 128, 2, note);
            assert_eq!((segments.count(), packet.packet_count(), packet.bytes), (3, 3, 3 * 970));
            assert_eq!(packet.frame_bytes, 3 * (14 + 20 + 8 + u32::from(length)));
            assert_ne!(packet.flags & flags::UNSPLIT_FLAG, 0);
        }
    }

    #[test]
    fn unsupported_merged_frame_is_not_split() {
        let frame = ethernet(0x0800, &v4(TCP, &tcp(3500)));
        let none = |frame: &[u8], note| PacketSegments::from_frame(frame, 3566, note);
        assert_eq!(none(&frame, MergeMetadata { segment_bytes: 0, ..MAX }), None);
        assert_eq!(none(&frame[..40], MAX), None);
        assert_eq!(none(&frame, MergeMetadata { transport_at: Some(35), ..MAX }), None);
        assert_eq!(PacketSegments::from_frame(&ethernet(0x0806, &[0; 3000]), 3014, MAX), None);
        assert_eq!(PacketSegments::from_frame(&ethernet(0x0800, &v4(132, &[0; 3000])), 3034, MAX), None);
        for kept in 0..frame.len().min(90) {
            let _ = PacketSegments::from_frame(&frame[..kept], 3566, MAX);
        }
    }

    #[test]
    fn packet_over_64_kib_excludes_jumbo_option() {
        let segment = tcp(100_000);
        let option = [6, 0, 0xc2, 4, 0, 1, 0x86, 0xc8];
        let head = [&[0x60, 0, 0, 0, 0, 0, 0, 64][..], &[0x20; 32], &option, &segment].concat();
        let (packet, segments) = metered(&ethernet(0x86dd, &head), 128, 2, MAX);
        assert_eq!(segments.count(), 100);
        assert_eq!(packet.bytes, 100_000 + 100 * 72);
        // IPv4 of that length states none.
        let mut frame = ethernet(0x0800, &v4(TCP, &tcp(1)));
        frame.truncate(66);
        frame[16..18].fill(0);
        frame.extend(std::iter::repeat_n(7, 100_000));
        assert_eq!(metered(&frame, 128, 2, MAX).0.bytes, 100_000 + 100 * 52);
    }
}
