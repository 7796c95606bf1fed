//! Checks the form of packets of other programs: only packets that a host may send as a probe pass. The caller checks
//! whether the source address belongs to this machine, and whether the target may be probed.
//!
//! Allowed are echo and timestamp requests of ICMP, echo requests of ICMPv6, TCP and UDP, in IP packets without options, extension
//! headers and fragments. All other packets could affect other hosts than the target: source routes and tunnels lead past it;
//! redirects and neighbour discovery change the traffic of other hosts.
//!
//! Invariant: [`PacketEndpoints`] has the same source and target as the network reads in the packet.

use crate::answer::{AnswerContent, ProbeAnswer};
use crate::frame::{
    ETHER_IPV4, ETHER_IPV6, ETHERNET, IPV4, IPV6, PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_TCP, PROTOCOL_UDP,
    UDP, transport_sum,
};
use packetrig_wire::checksum;
use std::net::IpAddr;

/// Bytes of a TCP header without options.
const TCP: usize = 20;
const ECHO_REQUEST: u8 = 8;
const TIMESTAMP_REQUEST: u8 = 13;
const ECHO_REQUEST_V6: u8 = 128;

// Offsets of fields in their headers.
const ETHERTYPE_OFFSET: usize = 12;
const IPV4_LENGTH: usize = 2;
const IPV4_FRAGMENT: usize = 6;
const IPV4_PROTOCOL: usize = 9;
const IPV4_CHECKSUM: usize = 10;
const IPV6_LENGTH: usize = 4;
const IPV6_PROTOCOL: usize = 6;

/// The fields that identify the answers to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PacketFlow {
    /// The identifier of an echo or timestamp request.
    Icmp {
        identifier: u16,
    },
    Tcp {
        own_port: u16,
        target_port: u16,
    },
    Udp {
        own_port: u16,
        target_port: u16,
    },
}

/// The fields that distinguish the answer to one ICMP request from the answers to other requests of its flow:
/// the remaining bytes of the request's first eight. An error quotes these bytes, and the reply differs from
/// them in a known way. The checksum represents the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestMark {
    pub sequence: u16,
    /// Type of the request: echo or timestamp.
    pub kind: u8,
    /// 0 replaces all ones, because both mean the same number.
    checksum: u16,
}

impl RequestMark {
    /// Reads the mark from the first eight bytes of a request.
    pub const fn from_request(header: [u8; UDP]) -> Self {
        let [kind, _, high, low, _, _, first, second] = header;
        Self::new(kind, u16::from_be_bytes([first, second]), u16::from_be_bytes([high, low]))
    }

    /// Computes the mark of the echo request that this reply answers: both have the same identifier, sequence number
    /// and payload. `None` if `reply` is not an echo reply.
    pub fn from_reply(reply: &ProbeAnswer<'_>) -> Option<Self> {
        let AnswerContent::Echo { identifier, sequence, payload } = reply.content else { return None };
        let (protocol, kind) = if reply.to.is_ipv4() {
            (PROTOCOL_ICMP, ECHO_REQUEST)
        } else {
            (PROTOCOL_ICMPV6, ECHO_REQUEST_V6)
        };
        // The checksum of the request is computed again: type and checksum are the only fields that a reply changes.
        let mut request = vec![kind, 0, 0, 0];
        request.extend(identifier.to_be_bytes());
        request.extend(sequence.to_be_bytes());
        request.extend(payload);
        let checksum = !transport_sum(reply.to, reply.from, protocol, &request);
        Some(Self::new(kind, sequence, checksum))
    }

    const fn new(kind: u8, sequence: u16, checksum: u16) -> Self {
        // 0xffff and 0 are the same number in ones' complement, and a sum that is computed may be either (RFC 1624).
        Self { sequence, kind, checksum: if checksum == u16::MAX { 0 } else { checksum } }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketEndpoints {
    pub source: IpAddr,
    pub target: IpAddr,
    pub flow: PacketFlow,
    /// Mark of an ICMP request; `None` for other packets.
    pub mark: Option<RequestMark>,
    /// Bytes of the IP packet.
    pub length: usize,
}

/// Hardware addresses of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameMacs {
    pub to: [u8; 6],
    pub from: [u8; 6],
}

/// Error of the check: the form of the packet is wrong or not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedPacket {
    /// Offset of the first wrong field, from the start of the checked frame or packet.
    pub byte: usize,
}

const fn malformed_at_byte(byte: usize) -> MalformedPacket {
    MalformedPacket { byte }
}

/// Checks an Ethernet frame without FCS. There may be padding after its IP packet.
pub fn check_frame(frame: &[u8]) -> Result<(FrameMacs, PacketEndpoints), MalformedPacket> {
    let (header, packet) = frame.split_at_checked(ETHERNET).ok_or(malformed_at_byte(0))?;
    let (to, rest) = header.split_first_chunk().ok_or(malformed_at_byte(0))?;
    let (from, ether_type) = rest.split_first_chunk().ok_or(malformed_at_byte(0))?;
    let ends = check_padded_packet(packet).map_err(|wrong| malformed_at_byte(ETHERNET + wrong.byte))?;
    let expected = if ends.source.is_ipv4() { ETHER_IPV4 } else { ETHER_IPV6 };
    // The EtherType must agree with the version in the packet: a receiver chooses its parser by the EtherType.
    let is_named = ether_type == expected.to_be_bytes();
    if is_named {
        Ok((FrameMacs { to: *to, from: *from }, ends))
    } else {
        Err(malformed_at_byte(ETHERTYPE_OFFSET))
    }
}

/// Checks an IP packet without padding.
pub fn check_packet(packet: &[u8]) -> Result<PacketEndpoints, MalformedPacket> {
    let ends = check_padded_packet(packet)?;
    let length = if ends.source.is_ipv4() { IPV4_LENGTH } else { IPV6_LENGTH };
    if ends.length == packet.len() { Ok(ends) } else { Err(malformed_at_byte(length)) }
}

fn check_padded_packet(packet: &[u8]) -> Result<PacketEndpoints, MalformedPacket> {
    match packet.first().map(|first| first >> 4) {
        Some(4) => check_ipv4(packet),
        Some(6) => check_ipv6(packet),
        _ => Err(malformed_at_byte(0)),
    }
}

fn check_ipv4(packet: &[u8]) -> Result<PacketEndpoints, MalformedPacket> {
    let header = packet.first_chunk::<IPV4>().ok_or(malformed_at_byte(0))?;
    let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
    // 0x45 means version 4 without options. "Don't fragment" is the only flag that may be set.
    if header[0] != 0x45 {
        return Err(malformed_at_byte(0));
    }
    if u16::from_be_bytes([header[6], header[7]]) & 0xbfff != 0 {
        return Err(malformed_at_byte(IPV4_FRAGMENT));
    }
    if checksum::ones_complement_sum(header) != 0xffff {
        return Err(malformed_at_byte(IPV4_CHECKSUM));
    }
    let carried = packet.get(IPV4..length).ok_or(malformed_at_byte(IPV4_LENGTH))?;
    let flow = match header[9] {
        PROTOCOL_ICMP => check_icmp(carried, &[ECHO_REQUEST, TIMESTAMP_REQUEST]).map_err(|byte| IPV4 + byte),
        protocol => check_transport(protocol, carried).map_err(|wrong| {
            if wrong == TransportFault::Protocol { IPV4_PROTOCOL } else { IPV4 + wrong.wrong_byte() }
        }),
    };
    let source = IpAddr::from([header[12], header[13], header[14], header[15]]);
    let target = IpAddr::from([header[16], header[17], header[18], header[19]]);
    let flow = flow.map_err(malformed_at_byte)?;
    Ok(PacketEndpoints { source, target, flow, mark: request_mark(flow, carried), length })
}

fn check_ipv6(packet: &[u8]) -> Result<PacketEndpoints, MalformedPacket> {
    let header = packet.first_chunk::<IPV6>().ok_or(malformed_at_byte(0))?;
    let length = IPV6 + usize::from(u16::from_be_bytes([header[4], header[5]]));
    let carried = packet.get(IPV6..length).ok_or(malformed_at_byte(IPV6_LENGTH))?;
    // An extension header would have its own number here, so such packets are refused.
    let flow = match header[6] {
        PROTOCOL_ICMPV6 => check_icmp(carried, &[ECHO_REQUEST_V6]).map_err(|byte| IPV6 + byte),
        protocol => check_transport(protocol, carried).map_err(|wrong| {
            if wrong == TransportFault::Protocol { IPV6_PROTOCOL } else { IPV6 + wrong.wrong_byte() }
        }),
    };
    let [source, target] = [8, 24].map(|at| packet.get(at..).and_then(|rest| rest.first_chunk::<16>()));
    let (source, target) = source.zip(target).ok_or(malformed_at_byte(0))?;
    let (source, target) = (IpAddr::from(*source), IpAddr::from(*target));
    let flow = flow.map_err(malformed_at_byte)?;
    Ok(PacketEndpoints { source, target, flow, mark: request_mark(flow, carried), length })
}

fn request_mark(flow: PacketFlow, carried: &[u8]) -> Option<RequestMark> {
    let is_request = matches!(flow, PacketFlow::Icmp { .. });
    carried.first_chunk().filter(|_| is_request).map(|header| RequestMark::from_request(*header))
}

/// Returns the identifier of an ICMP request; the error is the offset of the first wrong byte.
fn check_icmp(carried: &[u8], requests: &[u8]) -> Result<PacketFlow, usize> {
    let header = carried.first_chunk::<UDP>().ok_or(0_usize)?;
    if !requests.contains(&header[0]) {
        return Err(0);
    }
    // Echo and timestamp requests have code 0 (RFC 792; RFC 4443, 4.1).
    if header[1] != 0 {
        return Err(1);
    }
    Ok(PacketFlow::Icmp { identifier: u16::from_be_bytes([header[4], header[5]]) })
}

/// What is wrong with a TCP segment or a UDP datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TransportFault {
    /// The packet is neither TCP nor UDP.
    Protocol,
    TooShort,
    /// The length in the UDP header is wrong.
    Length,
}

impl TransportFault {
    /// Offset of the first wrong field in the segment or datagram.
    const fn wrong_byte(self) -> usize {
        match self {
            Self::Length => 4,
            Self::Protocol | Self::TooShort => 0,
        }
    }
}

fn check_transport(protocol: u8, carried: &[u8]) -> Result<PacketFlow, TransportFault> {
    let shortest = match protocol {
        PROTOCOL_UDP => UDP,
        PROTOCOL_TCP => TCP,
        _ => return Err(TransportFault::Protocol),
    };
    let ports = carried.first_chunk::<4>().filter(|_| carried.len() >= shortest);
    let ports = ports.ok_or(TransportFault::TooShort)?;
    let own_port = u16::from_be_bytes([ports[0], ports[1]]);
    let target_port = u16::from_be_bytes([ports[2], ports[3]]);
    // TCP has no length field: the remaining bytes of the packet are the segment.
    if protocol == PROTOCOL_TCP {
        return Ok(PacketFlow::Tcp { own_port, target_port });
    }
    let length = carried.get(4..6).map(|length| usize::from(u16::from_be_bytes([length[0], length[1]])));
    // A shorter length would hide bytes behind the datagram, which a receiver might read as something else.
    if length == Some(carried.len()) {
        Ok(PacketFlow::Udp { own_port, target_port })
    } else {
        Err(TransportFault::Length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{ProbeFrameEndpoints, TcpSegment};

    fn ends(source: &str, target: &str) -> ProbeFrameEndpoints {
        let (source, target) = (source.parse().unwrap(), target.parse().unwrap());
        ProbeFrameEndpoints { own_mac: [2; 6], next_mac: [4; 6], source, target, class: 0 }
    }

    fn frames() -> Vec<(Vec<u8>, PacketFlow)> {
        let mut all = Vec::new();
        for ends in [ends("10.0.0.1", "10.0.0.2"), ends("2001:db8::1", "2001:db8::2")] {
            let mut frame = Vec::new();
            ends.write_udp_frame(7, 9, b"abc", &mut frame);
            all.push((frame.clone(), PacketFlow::Udp { own_port: 7, target_port: 9 }));
            ends.write_echo_frame(77, 1, b"", &mut frame);
            all.push((frame.clone(), PacketFlow::Icmp { identifier: 77 }));
            ends.write_tcp_frame(
                &TcpSegment { source_port: 1, target_port: 2, flags: 2, ..TcpSegment::default() },
                &mut frame,
            );
            all.push((frame.clone(), PacketFlow::Tcp { own_port: 1, target_port: 2 }));
        }
        all
    }

    #[test]
    fn probes_of_every_kind_pass_with_their_ends() {
        for (frame, flow) in frames() {
            let (macs, ends) = check_frame(&frame).unwrap();
            assert_eq!(macs, FrameMacs { to: [4; 6], from: [2; 6] });
            assert_eq!(ends.flow, flow);
            assert!(ends.source.to_string().ends_with('1') && ends.target.to_string().ends_with('2'));
            assert_eq!(check_packet(&frame[ETHERNET..][..ends.length]), Ok(ends), "the same without padding");
        }
    }

    #[test]
    fn reply_mark_matches_only_its_request() {
        for ends in [ends("10.0.0.1", "10.0.0.2"), ends("2001:db8::1", "2001:db8::2")] {
            let request_mark = |sequence, payload: &[u8]| {
                let mut frame = Vec::new();
                ends.write_echo_frame(77, sequence, payload, &mut frame);
                check_frame(&frame).unwrap().1.mark.unwrap()
            };
            for payload in [&b""[..], b"odd", b"even", &[0xff; 64]] {
                let content = AnswerContent::Echo { identifier: 77, sequence: 3, payload };
                let (from, to) = (ends.target, ends.source);
                let reply = ProbeAnswer { from, to, hop_limit: 64, class: 0, is_sound: true, content };
                assert_eq!(RequestMark::from_reply(&reply), Some(request_mark(3, payload)));
                assert_ne!(RequestMark::from_reply(&reply), Some(request_mark(4, payload)), "the sequence");
                assert_ne!(RequestMark::from_reply(&reply), Some(request_mark(3, b"another")), "the payload");
            }
        }
    }

    /// An IPv4 frame with one byte changed and the header's checksum right again.
    fn changed(frame: &[u8], at: usize, to: u8) -> Vec<u8> {
        let mut frame = frame.to_vec();
        frame[at] = to;
        frame[24..26].fill(0);
        let sum = !checksum::ones_complement_sum(&frame[ETHERNET..ETHERNET + IPV4]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        frame
    }

    #[test]
    fn whatever_could_reach_others_is_refused() {
        let (udp, _) = frames().remove(0);
        assert!(check_frame(&changed(&udp, 23, 17)).is_ok(), "the change alone does no harm");
        // The byte that is changed, and the one at which the field begins.
        let forbidden: [(usize, u8, usize, &str); 9] = [
            (14, 0x46, 14, "options, such as a source route"),
            (14, 0x35, 14, "the version of another protocol"),
            (20, 0x20, 20, "a fragment"),
            (23, 4, 23, "a tunnel: IP in IP"),
            (23, 41, 23, "a tunnel: IPv6 in IP"),
            (23, 47, 23, "a tunnel: GRE"),
            (23, 2, 23, "IGMP"),
            (17, 0xff, 16, "a length beyond the frame"),
            (39, 99, 38, "a datagram of another length"),
        ];
        for (at, to, byte, what) in forbidden {
            assert_eq!(check_frame(&changed(&udp, at, to)), Err(MalformedPacket { byte }), "{what}");
        }
        let (echo, _) = frames().remove(1);
        for kind in [0, 3, 5, 9, 10, 15, 17] {
            assert!(check_frame(&changed(&echo, 34, kind)).is_err(), "ICMP type {kind}");
        }
        let (six, _) = frames().remove(4);
        for (at, to, what) in
            [(54, 133, "neighbour discovery"), (54, 137, "a redirect"), (20, 43, "a routing header")]
        {
            let mut frame = six.clone();
            frame[at] = to;
            assert!(check_frame(&frame).is_err(), "{what}");
        }
    }

    #[test]
    fn damage_and_other_frames_are_refused() {
        for (frame, _) in frames() {
            for length in 0..ETHERNET + IPV4 + 8 {
                assert!(check_frame(&frame[..length]).is_err());
            }
            let mut other = frame.clone();
            other[12] ^= 0x80;
            assert_eq!(check_frame(&other), Err(MalformedPacket { byte: 12 }), "another EtherType");
        }
        let (mut udp, _) = frames().remove(0);
        udp[24] ^= 1;
        assert_eq!(check_frame(&udp), Err(MalformedPacket { byte: 24 }), "a wrong checksum");
        let (udp, _) = frames().remove(0);
        assert!(check_packet(&udp[ETHERNET..]).is_err(), "padding is for frames only");
    }
}
