//! Compares the parser with another one, and with random bytes.

use super::frames::every_kind;
use super::*;
use crate::TunnelKind;
use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use proptest::prelude::*;

/// Reads the outermost packet of a frame by etherparse.
fn judged(frame: &[u8]) -> PacketInfo {
    let sliced = SlicedPacket::from_ethernet(frame).unwrap();
    let mut packet = PacketInfo::default();
    let vlans: Vec<u16> = sliced.vlan_ids().iter().map(|id| id.value()).collect();
    packet.vlan = vlans.first().copied().unwrap_or(0);
    packet.inner_vlan = vlans.get(1).copied().unwrap_or(0);
    match sliced.net.unwrap() {
        NetSlice::Ipv4(ip) => {
            let header = ip.header();
            packet.source = ipv4_mapped(header.source());
            packet.destination = ipv4_mapped(header.destination());
            packet.bytes = header.total_len().into();
            (packet.ttl, packet.protocol) = (header.ttl(), ip.payload().ip_number.0);
            packet.tos = header.dcp().value() << 2 | header.ecn().value();
        }
        NetSlice::Ipv6(ip) => {
            let header = ip.header();
            (packet.source, packet.destination) = (header.source(), header.destination());
            packet.bytes = u32::from(header.payload_length()) + 40;
            (packet.ttl, packet.protocol) = (header.hop_limit(), ip.payload().ip_number.0);
            packet.tos = header.traffic_class();
            packet.flags = flags::IPV6_FLAG;
        }
        NetSlice::Arp(_) => panic!("no IP"),
    }
    match sliced.transport {
        Some(TransportSlice::Udp(udp)) => {
            (packet.source_port, packet.destination_port) = (udp.source_port(), udp.destination_port());
        }
        Some(TransportSlice::Tcp(tcp)) => {
            (packet.source_port, packet.destination_port) = (tcp.source_port(), tcp.destination_port());
            packet.tcp_flags = tcp.slice()[13];
        }
        Some(TransportSlice::Icmpv4(icmp)) => {
            packet.destination_port = u16::from_be_bytes([icmp.type_u8(), icmp.code_u8()]);
        }
        Some(TransportSlice::Icmpv6(icmp)) => {
            packet.destination_port = u16::from_be_bytes([icmp.type_u8(), icmp.code_u8()]);
        }
        Some(TransportSlice::Igmp(_)) | None => {}
    }
    packet
}

fn assert_as_judged(frame: &[u8]) {
    let mut ours = deep(frame, 0);
    let frame_bytes = u32::try_from(frame.len()).unwrap();
    assert_eq!(ours.frame_bytes, frame_bytes);
    if ours.flags & flags::FRAGMENT_FLAG != 0 {
        // The judge reads no ports of fragments.
        (ours.source_port, ours.destination_port) = (0, 0);
    }
    ours.flags &= flags::IPV6_FLAG;
    ours.content = 0;
    (ours.frame_bytes, ours.input, ours.source_mac, ours.destination_mac) = (0, 0, [0; 6], [0; 6]);
    assert_eq!(ours, judged(frame), "{frame:02x?}");
}

#[test]
fn another_parser_agrees_on_every_kind_it_knows() {
    let unknown = ["mpls", "mpls6", "wire", "pppoe", "pppoe6", "snap", "sctp"];
    let mut known = 0;
    for (_, frame) in every_kind().iter().filter(|(kind, _)| !unknown.contains(kind)) {
        assert_as_judged(frame);
        known += 1;
    }
    assert!(known > 20);
}

proptest! {
    #[test]
    fn another_parser_agrees_on_frames_of_its_own(
        source: [u8; 16], destination: [u8; 16], ports: (u16, u16), vlans in 0..3_u8, vlan in 1..4095_u16,
        is_six: bool, kind in 0..3_u8, bits: u8, ttl: u8, payload in proptest::collection::vec(any::<u8>(), 0..99),
    ) {
        let id = |n| etherparse::VlanId::try_new(n).unwrap();
        let builder = PacketBuilder::ethernet2([1; 6], [2; 6]);
        let four = |bytes: [u8; 16]| [bytes[0], bytes[1], bytes[2], bytes[3]];
        let ip = |builder: etherparse::PacketBuilderStep<etherparse::Ethernet2Header>| match (vlans, is_six) {
            (0, false) => builder.ipv4(four(source), four(destination), ttl),
            (0, true) => builder.ipv6(source, destination, ttl),
            (1, false) => builder.single_vlan(id(vlan)).ipv4(four(source), four(destination), ttl),
            (1, true) => builder.single_vlan(id(vlan)).ipv6(source, destination, ttl),
            (_, false) => builder.double_vlan(id(vlan), id(7)).ipv4(four(source), four(destination), ttl),
            (_, true) => builder.double_vlan(id(vlan), id(7)).ipv6(source, destination, ttl),
        };
        let step = ip(builder);
        let mut frame = Vec::new();
        match kind {
            0 => step.udp(ports.0, ports.1).write(&mut frame, &payload).unwrap(),
            1 => {
                let mut tcp = step.tcp(ports.0, ports.1, 1, 2);
                if bits & 1 != 0 { tcp = tcp.syn(); }
                if bits & 2 != 0 { tcp = tcp.ack(3); }
                if bits & 4 != 0 { tcp = tcp.fin(); }
                tcp.write(&mut frame, &payload).unwrap();
            }
            _ if is_six => step.icmpv6_echo_request(1, 2).write(&mut frame, &payload).unwrap(),
            _ => step.icmpv4_echo_request(1, 2).write(&mut frame, &payload).unwrap(),
        }
        assert_as_judged(&frame);
    }

    #[test]
    fn arbitrary_bytes_parse_or_have_ignore_reason(bytes in proptest::collection::vec(any::<u8>(), 0..200), more in 0..2000_usize) {
        let mut parser = FrameParser::new(ParseOptions::default());
        let packet = parsed_by(&mut parser, &bytes, bytes.len() + more, 0);
        prop_assert!(packet.is_err() || bytes.len() >= 34);
    }

    #[test]
    fn damaged_frames_parse_or_have_ignore_reason(
        kind in 0..30_usize, damage in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..6), cut: usize, depth in 0..5_u8,
    ) {
        let mut parser = FrameParser::new(ParseOptions { depth, ..ParseOptions::default() });
        let (_, mut frame) = every_kind().swap_remove(kind);
        for (at, value) in damage {
            let len = frame.len();
            frame[at % len] = value;
        }
        let len = frame.len();
        let packet = parsed_by(&mut parser, &frame[..cut % (len + 1)], len, 0);
        prop_assert!(packet.is_ok_and(|packet| depth > 0 || packet.tunnel == TunnelKind::None) || packet.is_err());
    }
}

#[test]
fn truncated_frame_keeps_its_flow_or_is_short() {
    for (kind, frame) in every_kind() {
        let whole = deep(&frame, 0);
        for len in 0..frame.len() {
            let mut parser = FrameParser::new(ParseOptions { depth: 0, ..ParseOptions::default() });
            match parsed_by(&mut parser, &frame[..len], frame.len(), 0) {
                Ok(packet) => {
                    let told = |p: &PacketInfo| {
                        (p.source, p.destination, p.bytes, p.frame_bytes, p.vlan, p.mpls, p.ttl)
                    };
                    assert_eq!(told(&packet), told(&whole), "{kind} cut to {len}");
                    assert!(packet.flags & flags::CUT_FLAG != 0, "{kind} cut to {len}");
                    assert!([0, whole.source_port].contains(&packet.source_port), "{kind} cut to {len}");
                }
                Err(IgnoredReason::ShortLink | IgnoredReason::ShortIp) => {}
                Err(IgnoredReason::NotIp) => assert!(["wire", "snap"].contains(&kind), "{kind} cut to {len}"),
                Err(cause) => panic!("{kind} cut to {len}: {cause:?}"),
            }
        }
    }
}
