//! Checks packets of other programs: only what a host may send as a probe, from an own address.
//!
//! Allowed are echo and timestamp requests of ICMP, echo requests of ICMPv6, TCP and UDP, in IP packets without options, extension
//! headers and fragments. Everything else could reach hosts for which nobody asked: source routes and tunnels lead past the target,
//! redirects and neighbour discovery change what others send.
//!
//! Invariant: source and target of a [`PacketEnds`] are those that the network reads in the packet.

use super::PacketRefusal;
use crate::frame::{
    ETHER_IPV4, ETHER_IPV6, ETHERNET, IPV4, IPV6, PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_TCP, PROTOCOL_UDP,
    UDP,
};
use packetrig_wire::checksum;
use std::net::IpAddr;

/// Bytes of a TCP header without options.
const TCP: usize = 20;
const ECHO_REQUEST: u8 = 8;
const TIMESTAMP_REQUEST: u8 = 13;
const ECHO_REQUEST_V6: u8 = 128;

/// By what answers to a packet are known.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketEnds {
    pub source: IpAddr,
    pub target: IpAddr,
    pub flow: PacketFlow,
    /// Bytes of the IP packet.
    pub length: usize,
}

/// Hardware addresses of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameMacs {
    pub to: [u8; 6],
    pub from: [u8; 6],
}

/// Checks a frame without FCS, which may be padded.
pub fn check_frame(frame: &[u8]) -> Result<(FrameMacs, PacketEnds), PacketRefusal> {
    let (header, packet) = frame.split_at_checked(ETHERNET).ok_or(PacketRefusal::Malformed)?;
    let (to, rest) = header.split_first_chunk().ok_or(PacketRefusal::Malformed)?;
    let (from, ether_type) = rest.split_first_chunk().ok_or(PacketRefusal::Malformed)?;
    let ends = check_padded_packet(packet)?;
    let expected = if ends.source.is_ipv4() { ETHER_IPV4 } else { ETHER_IPV6 };
    let is_named = ether_type == expected.to_be_bytes();
    if is_named { Ok((FrameMacs { to: *to, from: *from }, ends)) } else { Err(PacketRefusal::Malformed) }
}

/// Checks an IP packet.
pub fn check_packet(packet: &[u8]) -> Result<PacketEnds, PacketRefusal> {
    let ends = check_padded_packet(packet)?;
    if ends.length == packet.len() { Ok(ends) } else { Err(PacketRefusal::Malformed) }
}

fn check_padded_packet(packet: &[u8]) -> Result<PacketEnds, PacketRefusal> {
    let ends = match packet.first().map(|first| first >> 4) {
        Some(4) => ipv4(packet),
        Some(6) => ipv6(packet),
        _ => None,
    };
    ends.ok_or(PacketRefusal::Malformed)
}

fn ipv4(packet: &[u8]) -> Option<PacketEnds> {
    let header = packet.first_chunk::<IPV4>()?;
    let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
    // 0x45: no options. The flag "don't fragment" is the only one that may be set.
    let is_plain = header[0] == 0x45 && u16::from_be_bytes([header[6], header[7]]) & 0xbfff == 0;
    if !is_plain || checksum::sum(header) != 0xffff {
        return None;
    }
    let carried = packet.get(IPV4..length)?;
    let flow = match header[9] {
        PROTOCOL_ICMP if matches!(carried, [ECHO_REQUEST | TIMESTAMP_REQUEST, 0, ..]) => icmp(carried)?,
        protocol => transport(protocol, carried)?,
    };
    let source = IpAddr::from([header[12], header[13], header[14], header[15]]);
    let target = IpAddr::from([header[16], header[17], header[18], header[19]]);
    Some(PacketEnds { source, target, flow, length })
}

fn ipv6(packet: &[u8]) -> Option<PacketEnds> {
    let header = packet.first_chunk::<IPV6>()?;
    let length = IPV6 + usize::from(u16::from_be_bytes([header[4], header[5]]));
    let carried = packet.get(IPV6..length)?;
    let flow = match header[6] {
        PROTOCOL_ICMPV6 if matches!(carried, [ECHO_REQUEST_V6, 0, ..]) => icmp(carried)?,
        protocol => transport(protocol, carried)?,
    };
    let source = IpAddr::from(*packet.get(8..)?.first_chunk::<16>()?);
    let target = IpAddr::from(*packet.get(24..)?.first_chunk::<16>()?);
    Some(PacketEnds { source, target, flow, length })
}

fn icmp(carried: &[u8]) -> Option<PacketFlow> {
    let header = carried.first_chunk::<UDP>()?;
    Some(PacketFlow::Icmp { identifier: u16::from_be_bytes([header[4], header[5]]) })
}

fn transport(protocol: u8, carried: &[u8]) -> Option<PacketFlow> {
    let ports = carried.first_chunk::<4>()?;
    let own_port = u16::from_be_bytes([ports[0], ports[1]]);
    let target_port = u16::from_be_bytes([ports[2], ports[3]]);
    match protocol {
        PROTOCOL_UDP if carried.len() >= UDP => {
            let length = usize::from(u16::from_be_bytes([carried[4], carried[5]]));
            (length == carried.len()).then_some(PacketFlow::Udp { own_port, target_port })
        }
        PROTOCOL_TCP if carried.len() >= TCP => Some(PacketFlow::Tcp { own_port, target_port }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{FrameEnds, TcpSegment};

    fn ends(source: &str, target: &str) -> FrameEnds {
        let (source, target) = (source.parse().unwrap(), target.parse().unwrap());
        FrameEnds { own_mac: [2; 6], next_mac: [4; 6], source, target, class: 0 }
    }

    fn frames() -> Vec<(Vec<u8>, PacketFlow)> {
        let mut all = Vec::new();
        for ends in [ends("10.0.0.1", "10.0.0.2"), ends("2001:db8::1", "2001:db8::2")] {
            let mut frame = Vec::new();
            ends.udp(7, 9, b"abc", &mut frame);
            all.push((frame.clone(), PacketFlow::Udp { own_port: 7, target_port: 9 }));
            ends.echo(77, 1, b"", &mut frame);
            all.push((frame.clone(), PacketFlow::Icmp { identifier: 77 }));
            ends.tcp(
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

    /// An IPv4 frame with one byte changed and the header's checksum right again.
    fn changed(frame: &[u8], at: usize, to: u8) -> Vec<u8> {
        let mut frame = frame.to_vec();
        frame[at] = to;
        frame[24..26].fill(0);
        let sum = !checksum::sum(&frame[ETHERNET..ETHERNET + IPV4]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        frame
    }

    #[test]
    fn whatever_could_reach_others_is_refused() {
        let (udp, _) = frames().remove(0);
        assert!(check_frame(&changed(&udp, 23, 17)).is_ok(), "the change alone does no harm");
        let forbidden: [(usize, u8, &str); 8] = [
            (14, 0x46, "options, such as a source route"),
            (14, 0x65, "the version of another protocol"),
            (20, 0x20, "a fragment"),
            (23, 4, "a tunnel: IP in IP"),
            (23, 41, "a tunnel: IPv6 in IP"),
            (23, 47, "a tunnel: GRE"),
            (23, 2, "IGMP"),
            (17, 0xff, "a length beyond the frame"),
        ];
        for (at, to, what) in forbidden {
            assert_eq!(check_frame(&changed(&udp, at, to)), Err(PacketRefusal::Malformed), "{what}");
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
            assert!(check_frame(&other).is_err(), "another EtherType");
        }
        let (mut udp, _) = frames().remove(0);
        udp[24] ^= 1;
        assert!(check_frame(&udp).is_err(), "a wrong checksum");
        let (udp, _) = frames().remove(0);
        assert!(check_packet(&udp[ETHERNET..]).is_err(), "padding is for frames only");
    }
}
