//! Frames of every kind, by hand.

use super::frames::*;
use super::*;
use crate::TunnelKind;

fn plain() -> Vec<u8> {
    udp(1000, 2000, b"payload")
}

#[test]
fn all_fields_of_a_plain_packet() {
    let mut frame = eth(0x0800, &v4(6, &tcp(1000, 443, 0x18, b"GET /")));
    let expected = PacketInfo {
        source: ipv4_mapped(LEFT),
        destination: ipv4_mapped(RIGHT),
        at_ns: 5,
        bytes: 45,
        frame_bytes: 60,
        source_port: 1000,
        destination_port: 443,
        protocol: 6,
        tcp_flags: 0x18,
        ttl: 63,
        tos: 0x28,
        input: 3,
        source_mac: FROM,
        destination_mac: TO,
        ..PacketInfo::default()
    };
    // The frame has the padding of a short frame, which is no part of the packet.
    frame.resize(60, 0);
    let mut parser = FrameParser::new(ParseOptions::default());
    let found = parsed_by(&mut parser, &frame, 60, 5).unwrap();
    assert_eq!(PacketInfo { content: 0, ..found }, expected);
}

#[test]
fn all_fields_of_an_ipv6_packet() {
    let frame = eth(0x86dd, &v6(17, &plain()));
    let expected = PacketInfo {
        source: LEFT6,
        destination: RIGHT6,
        bytes: 55,
        frame_bytes: 69,
        source_port: 1000,
        destination_port: 2000,
        protocol: 17,
        ttl: 61,
        tos: 0xb8,
        flags: flags::IPV6_FLAG,
        input: 3,
        source_mac: FROM,
        destination_mac: TO,
        ..PacketInfo::default()
    };
    assert_eq!(PacketInfo { content: 0, ..parsed(&frame).unwrap() }, expected);
}

#[test]
fn every_kind_leads_to_the_innermost_packet() {
    for (kind, frame) in every_kind() {
        let packet = parsed(&frame).unwrap_or_else(|why| panic!("{kind}: {why:?}"));
        let is_six = packet.flags & flags::IPV6_FLAG != 0;
        let (source, destination) =
            if is_six { (LEFT6, RIGHT6) } else { (ipv4_mapped(LEFT), ipv4_mapped(RIGHT)) };
        assert_eq!((packet.source, packet.destination), (source, destination), "{kind}");
        assert_eq!(packet.flags & flags::CUT_FLAG, 0, "{kind}");
    }
}

#[test]
fn icmp_has_type_and_code_for_a_port() {
    let port = |frame: &[u8]| parsed(frame).map(|packet| (packet.source_port, packet.destination_port));
    assert_eq!(port(&eth(0x0800, &v4(1, &icmp(8, 0)))), Ok((0, 0x0800)));
    assert_eq!(port(&eth(0x0800, &v4(1, &icmp(3, 13)))), Ok((0, 0x030d)));
    assert_eq!(port(&eth(0x86dd, &v6(58, &icmp(135, 0)))), Ok((0, 0x8700)));
}

#[test]
fn two_vlan_tags_are_kept_and_more_skipped() {
    let four = v4(17, &plain());
    for kind in [0x8100, 0x88a8, 0x9100] {
        let one = parsed(&eth(kind, &tag(5, 0x0800, &four))).unwrap();
        assert_eq!((one.vlan, one.inner_vlan), (5, 0));
        let three = eth(kind, &tag(5, 0x8100, &tag(0, 0x8100, &tag(7, 0x0800, &four))));
        let three = parsed(&three).unwrap();
        assert_eq!((three.vlan, three.inner_vlan, three.destination_port), (5, 0, 2000));
    }
    // The limit is 24 headers with the Ethernet header.
    let deep = |tags| {
        let innermost = tag(5, 0x0800, &four);
        let tagged = (1..tags).fold(innermost, |inside, _| tag(5, 0x8100, &inside));
        parsed(&eth(0x8100, &tagged)).map(|packet| packet.destination_port)
    };
    assert_eq!([deep(23), deep(24)], [Ok(2000), Err(IgnoredReason::TooDeep)]);
}

#[test]
fn mpls_labels_are_kept_and_inner_packet_parsed() {
    let (four, six) = (v4(17, &plain()), v6(17, &plain()));
    let labels = [entry(272, false), entry(305, false), entry(3, false)];
    let four = parsed(&eth(0x8847, &mpls(&[272, 305, 3, 4], &four))).unwrap();
    assert_eq!((four.mpls, four.source_port), (labels, 1000));
    assert_eq!(parsed(&eth(0x8848, &mpls(&[2], &six))).unwrap().source, LEFT6);
    assert_eq!(parsed(&eth(0x8847, &mpls(&[9; 17], &six))), Err(IgnoredReason::TooDeep));
    assert_eq!(
        parsed(&eth(0x8847, &mpls(&[9], &[0x10; 60]))),
        Err(IgnoredReason::NotIp),
        "a channel of its own"
    );
}

#[test]
fn pseudowires_are_told_from_ip() {
    let four = v4(17, &plain());
    // Receivers whose addresses begin like an IP header of version 4 or 6.
    for first in [0, 2, 0x45, 0x60] {
        let mut inner = eth(0x8100, &tag(9, 0x0800, &four));
        inner[0] = first;
        for word in [&[0; 4][..], &[]] {
            let frame = eth(0x8847, &mpls(&[16], &[word, &inner].concat()));
            let packet = parsed(&frame).unwrap();
            assert_eq!((packet.vlan, packet.source), (9, ipv4_mapped(LEFT)), "{first:#x} {word:?}");
            assert_eq!(packet.destination_mac[0], first);
            assert_eq!(packet.mpls[0], entry(16, true));
        }
    }
}

#[test]
fn ipv6_extension_headers_are_skipped_except_esp() {
    let protocol = |frame: &[u8]| parsed(frame).map(|p| (p.protocol, p.destination_port));
    for extension_of in [0, 43, 60, 135, 139, 140] {
        let frame = eth(0x86dd, &v6(extension_of, &extension(17, 3, &plain())));
        assert_eq!(protocol(&frame), Ok((17, 2000)), "{extension_of}");
    }
    assert_eq!(protocol(&eth(0x86dd, &v6(51, &authentication(89, b"hello")))), Ok((89, 0)));
    assert_eq!(protocol(&eth(0x86dd, &v6(50, &plain()))), Ok((50, 0)));
    assert_eq!(protocol(&eth(0x86dd, &v6(135, &extension(59, 3, b"")))), Ok((59, 0)));
    assert_eq!(protocol(&eth(0x86dd, &v6(59, b""))), Ok((59, 0)));
    let deep = |extensions| {
        let innermost = extension(17, 0, &plain());
        let extended = (1..extensions).fold(innermost, |inside, _| extension(60, 0, &inside));
        protocol(&eth(0x86dd, &v6(60, &extended)))
    };
    assert_eq!([deep(12), deep(13)], [Ok((17, 2000)), Err(IgnoredReason::TooDeep)]);
}

#[test]
fn packet_length_comes_from_header_or_frame() {
    let mut frame = eth(0x0800, &v4(17, &udp(1, 2, &[0; 100])));
    assert_eq!(parsed(&frame).unwrap().bytes, 128);
    frame[16..18].fill(0);
    assert_eq!(parsed(&frame).unwrap().bytes, 128, "a packet the card will cut to size");
    let mut jumbo = eth(0x86dd, &v6(0, &extension(17, 0, &udp(1, 2, &[0; 100]))));
    jumbo[18..20].fill(0);
    let jumbo = parsed(&jumbo).unwrap();
    assert_eq!((jumbo.bytes, jumbo.destination_port), (156, 2));
    let mut nothing = eth(0x86dd, &v6(59, b""));
    nothing.resize(60, 0);
    assert_eq!(parsed(&nothing).unwrap().bytes, 40);
}

#[test]
fn cut_frames_count_whole_and_say_so() {
    let frame = eth(0x0800, &v4(6, &tcp(1000, 443, 0x18, &[0; 1000])));
    let mut parser = FrameParser::new(ParseOptions::default());
    for (len, ports, tcp_flags) in
        [(1054, 1000, 0x18), (60, 1000, 0x18), (47, 1000, 0), (36, 0, 0), (34, 0, 0)]
    {
        let packet = parsed_by(&mut parser, &frame[..len], 1054, 0).unwrap();
        assert_eq!((packet.bytes, packet.frame_bytes), (1040, 1054), "{len}");
        assert_eq!(packet.flags & flags::CUT_FLAG != 0, len < 1054, "{len}");
        assert_eq!((packet.source_port, packet.tcp_flags), (ports, tcp_flags), "{len}");
    }
    assert_eq!(parsed_by(&mut parser, &frame[..33], 1054, 0), Err(IgnoredReason::ShortIp));
}

#[test]
fn unmetered_frame_has_its_ignore_reason() {
    let four = v4(17, &plain());
    let mut version = four.clone();
    version[0] = 0x55;
    let mut short_header = four.clone();
    short_header[0] = 0x44;
    let mut short_total = four.clone();
    short_total[3] = 19;
    let mut all_options = four[..20].to_vec();
    all_options[0] = 0x4f;
    all_options[3] = 60;
    for (frame, cause) in [
        (vec![], IgnoredReason::ShortLink),
        (vec![0; 13], IgnoredReason::ShortLink),
        (eth(0x8100, &[0, 5, 8]), IgnoredReason::ShortLink),
        (eth(0x8847, &[0, 5, 8]), IgnoredReason::ShortLink),
        (eth(0x8864, &[0x11, 0]), IgnoredReason::ShortLink),
        (eth(0x0806, &[0; 46]), IgnoredReason::Arp),
        (eth(0x8100, &tag(5, 0x0806, &[0; 28])), IgnoredReason::Arp),
        (eth(0x88cc, &[0; 46]), IgnoredReason::NotIp),
        (eth(0x8863, &[0x11; 46]), IgnoredReason::NotIp),
        (eth(0x8864, &pppoe(&[0xc0, 0x21], &[0; 40])), IgnoredReason::NotIp),
        (eth(0x0026, &[0x42; 46]), IgnoredReason::NotIp),
        (eth(0x0800, &four[..19]), IgnoredReason::ShortIp),
        (eth(0x0800, &all_options), IgnoredReason::ShortIp),
        (eth(0x86dd, &v6(17, &[])[..39]), IgnoredReason::ShortIp),
        (eth(0x0800, &version), IgnoredReason::BadIp),
        (eth(0x0800, &short_header), IgnoredReason::BadIp),
        (eth(0x0800, &short_total), IgnoredReason::BadIp),
        (eth(0x86dd, &[&[0x40][..], &v6(17, &plain())[1..]].concat()), IgnoredReason::BadIp),
    ] {
        assert_eq!(parsed(&frame), Err(cause), "{frame:02x?}");
    }
}

#[test]
fn ppp_over_ethernet_carries_mpls_of_both_kinds() {
    let four = v4(17, &plain());
    for protocol in [[0x02, 0x81], [0x02, 0x83]] {
        let frame = eth(0x8864, &pppoe(&protocol, &mpls(&[16], &four)));
        assert!(parsed(&frame).is_ok(), "{protocol:02x?}");
    }
}

#[test]
fn tunnels_say_what_they_are() {
    let told = |kind: &str| {
        let frame = every_kind().into_iter().find(|(name, _)| *name == kind).unwrap().1;
        parsed(&frame).map(|packet| (packet.tunnel, packet.tunnel_id)).unwrap()
    };
    assert_eq!(told("gre"), (TunnelKind::Gre, 0));
    assert_eq!(told("gre with all"), (TunnelKind::Gre, 0x105));
    assert_eq!(told("ethernet in gre"), (TunnelKind::Gre, 0x105));
    assert_eq!(told("vxlan"), (TunnelKind::Vxlan, 70_000));
    assert_eq!(told("geneve"), (TunnelKind::Geneve, 70_001));
    assert_eq!(told("geneve with options"), (TunnelKind::Geneve, 70_001));
    assert_eq!(told("gtp"), (TunnelKind::Gtp, 80_000));
    assert_eq!(told("gtp with all"), (TunnelKind::Gtp, 80_000));
    assert_eq!(told("ip in ip"), (TunnelKind::Ip, 0));
    assert_eq!(told("six in four"), (TunnelKind::Ip, 0));
}

#[test]
fn geneve_without_readable_content_is_udp() {
    let inside = eth(0x0800, &v4(17, &plain()));
    let whole = geneve(5, 0x6558, &[1; 8], &inside);
    let read = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut packet = whole.clone();
        change(&mut packet);
        parsed(&eth(0x0800, &v4(17, &packet))).map(|packet| packet.tunnel).unwrap()
    };
    assert_eq!(read(&|_| {}), TunnelKind::Geneve);
    // Another version, a control message, options that end behind the packet, and content that is no IP.
    assert_eq!(read(&|packet| packet[8] |= 0x40), TunnelKind::None);
    assert_eq!(read(&|packet| packet[9] |= 0x80), TunnelKind::None);
    assert_eq!(read(&|packet| packet[8] = 63), TunnelKind::None);
    assert_eq!(read(&|packet| packet[11] = 1), TunnelKind::None);
    // Critical options do not concern somebody who only looks.
    assert_eq!(read(&|packet| packet[9] |= 0x40), TunnelKind::Geneve);
}

#[test]
fn tunnel_packet_keeps_outer_addresses_and_link() {
    let inner = v4(1, &icmp(8, 0));
    let mut inside = eth(0x8100, &tag(7, 0x0800, &inner));
    inside[5] = 0x55;
    let frame = eth(0x8100, &tag(5, 0x86dd, &v6(17, &vxlan(70_000, &inside))));
    let packet = parsed(&frame).unwrap();
    assert_eq!((packet.outer_source, packet.outer_destination), (LEFT6, RIGHT6));
    assert_eq!((packet.vlan, packet.destination_mac[5]), (7, 0x55), "an Ethernet header of its own");
    assert_eq!((packet.bytes, packet.frame_bytes as usize), (32, frame.len()));
    let routed = parsed(&eth(0x8100, &tag(5, 0x86dd, &v6(47, &gre(0, 0x0800, &inner))))).unwrap();
    assert_eq!((routed.vlan, routed.source_mac), (5, FROM), "none of its own");
    assert_eq!((routed.flags, routed.source_port, routed.destination_port), (0, 0, 0x0800));
}

#[test]
fn tunnels_are_entered_to_configured_depth() {
    let (a, b) = ([198, 18, 1, 1], [198, 18, 1, 2]);
    let innermost = v4(17, &plain());
    let middle = v4_of(a, b, 47, &gre(0x20, 0x0800, &innermost));
    let frame = eth(0x0800, &v4_of(b, a, 17, &gtp(6, 0, &[], &middle)));
    let told = |depth| {
        let packet = deep(&frame, depth);
        (packet.source, packet.tunnel, packet.tunnel_id, packet.outer_source)
    };
    let outermost = ipv4_mapped(b);
    assert_eq!(told(0), (ipv4_mapped(b), TunnelKind::None, 0, [0; 16]));
    assert_eq!(told(1), (ipv4_mapped(a), TunnelKind::Gtp, 6, outermost));
    assert_eq!(told(2), (ipv4_mapped(LEFT), TunnelKind::Gre, 0x105, outermost));
    assert_eq!(told(3), told(2));
    assert_eq!(deep(&frame, 0).destination_port, 2152);
}

#[test]
fn unreadable_tunnel_payload_is_metered_as_outer() {
    let four = v4(17, &plain());
    let mut bad = four.clone();
    bad[0] = 0x45 ^ 0xf0;
    for inside in [
        v4(17, &vxlan(5, &eth(0x0806, &[0; 28]))),
        v4(17, &vxlan(5, &eth(0x0800, &bad))),
        v4(17, &vxlan(5, &eth(0x0800, &four[..12]))),
        v4(17, &udp(1, 4789, &[0; 60])),
        v4(17, &gtp(5, 0, &[], &[0; 40])),
        v4(17, &udp(1, 2152, &[0x32, 1, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0])),
        v4(47, &gre(0, 0, &[])),
        v4(47, &gre(0x40, 0x0800, &four)),
        v4(47, &[0x20, 1, 0x88, 0x0b, 0, 0, 0, 0]),
        v4(4, &bad),
    ] {
        let packet = parsed(&eth(0x0800, &inside)).unwrap();
        assert_eq!((packet.tunnel, packet.outer_source), (TunnelKind::None, [0; 16]), "{inside:02x?}");
        assert_eq!((packet.source, packet.bytes as usize), (ipv4_mapped(LEFT), inside.len()));
    }
}

#[test]
fn frames_of_files_need_not_begin_with_ethernet() {
    let (four, six) = (v4(17, &plain()), v6(17, &plain()));
    let cooked = [&[0, 0, 0, 1, 0, 6][..], &FROM, &[0, 0, 8, 0], &four].concat();
    let cooked2 =
        [&[0x81, 0][..], &[0; 2], &[0, 0, 0, 3], &[0, 1, 0, 6], &FROM, &[0, 0], &tag(5, 0x86dd, &six)];
    let cooked2 = cooked2.concat();
    let loopback = [&[2, 0, 0, 0][..], &four].concat();
    let [ppp, framed] = [&[0x21][..], &[0xff, 3, 0, 0x21]].map(|head| [head, &four].concat());
    let hdlc = [&[0x0f, 0, 0x86, 0xdd][..], &six].concat();
    let snap = [&[0xaa, 0xaa, 3, 0, 0, 0, 8, 0][..], &four].concat();
    // The frames are: from a station by an access point, with QoS; a plain one behind radiotap; and one behind PPI.
    let by = |control: [u8; 2], addresses: [[u8; 6]; 3], behind: &[u8]| {
        [&control[..], &[0, 0], addresses.as_flattened(), &[0x10, 0], behind, &snap].concat()
    };
    let wireless = by([0x88, 1], [[1; 6], FROM, TO], &[0, 0]);
    let radiotap = [&[0, 0, 8, 0, 0, 0, 0, 0][..], &by([0x08, 2], [TO, [1; 6], FROM], &[])].concat();
    let ppi = [&[0, 0, 8, 0, 105, 0, 0, 0][..], &by([0x08, 0], [TO, FROM, [1; 6]], &[])].concat();
    let nflog =
        [&[2, 0, 0, 1][..], &[8, 0, 1, 0, 0, 0, 8, 0], &[5, 0, 10, 0, 0, 0, 0, 0], &[0, 0, 9, 0], &four]
            .concat();
    let mut parser = FrameParser::new(ParseOptions::default());
    for (number, frame, expected) in [
        (1, eth(0x0800, &four), (ipv4_mapped(LEFT), FROM, 0)),
        (101, four.clone(), (ipv4_mapped(LEFT), [0; 6], 0)),
        (229, six.clone(), (LEFT6, [0; 6], 0)),
        (113, cooked, (ipv4_mapped(LEFT), FROM, 0)),
        (276, cooked2, (LEFT6, FROM, 5)),
        (0, loopback, (ipv4_mapped(LEFT), [0; 6], 0)),
        (9, ppp, (ipv4_mapped(LEFT), [0; 6], 0)),
        (50, framed, (ipv4_mapped(LEFT), [0; 6], 0)),
        (50, hdlc.clone(), (LEFT6, [0; 6], 0)),
        (104, hdlc, (LEFT6, [0; 6], 0)),
        (105, wireless.clone(), (ipv4_mapped(LEFT), FROM, 0)),
        (127, radiotap, (ipv4_mapped(LEFT), FROM, 0)),
        (192, ppi, (ipv4_mapped(LEFT), FROM, 0)),
        (239, nflog, (ipv4_mapped(LEFT), [0; 6], 0)),
    ] {
        let mut packet = PacketInfo { mpls: [9; 3], ..PacketInfo::default() };
        let link = LinkKind::from_number(number).unwrap();
        assert_eq!(parser.parse_frame_as(link, &frame, frame.len(), 0, 0, &mut packet), Ok(()), "{number}");
        assert_eq!((packet.source, packet.source_mac, packet.vlan), expected, "{number}");
        assert_eq!((packet.destination_port, packet.mpls), (2000, [0; 3]));
        for len in 0..frame.len().min(20) {
            let parsed = parser.parse_frame_as(link, &frame[..len], frame.len(), 0, 0, &mut packet);
            assert!(parsed.is_err(), "{number} cut to {len}");
        }
    }
    assert_eq!(LinkKind::from_number(195), None);
    assert_eq!(
        (describe_unread_link_type(195), describe_unread_link_type(9999)),
        ("195 (IEEE 802.15.4)".to_owned(), "9999".to_owned())
    );
    // Frames that are encrypted, aggregated, empty or no data count as not IP.
    for (at, bits) in [(1, 0x40), (24, 0x80), (0, 0x40), (0, 0x04), (22, 1)] {
        let mut frame = wireless.clone();
        frame[at] |= bits;
        let parsed =
            parser.parse_frame_as(LinkKind::Wireless, &frame, frame.len(), 0, 0, &mut PacketInfo::default());
        assert_eq!(parsed, Err(IgnoredReason::NotIp), "{at}");
    }
}
