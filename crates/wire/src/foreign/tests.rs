use super::*;
use crate::FrameComparison;
use crate::tag::{TagForm, TagKey, TagStamp, tag_candidates};
use etherparse::{PacketBuilder, PacketHeaders, SlicedPacket, TransportSlice};
use proptest::prelude::*;

const KEY: TagKey = TagKey(7);
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

#[derive(Clone, Copy, Debug)]
enum TestProtocol {
    Tcp,
    Udp,
    Echo,
}

fn frame(v6: bool, protocol: TestProtocol, vlan: bool, payload: &[u8]) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2(MAC, [2, 0, 0, 0, 0, 2]);
    let mut out = Vec::new();
    macro_rules! finish {
        ($ip:expr) => {
            match protocol {
                TestProtocol::Tcp => $ip.tcp(1000, 2000, 5, 6).write(&mut out, payload),
                TestProtocol::Udp => $ip.udp(1000, 2000).write(&mut out, payload),
                TestProtocol::Echo if v6 => $ip.icmpv6_echo_request(3, 4).write(&mut out, payload),
                TestProtocol::Echo => $ip.icmpv4_echo_request(3, 4).write(&mut out, payload),
            }
            .unwrap()
        };
    }
    let (a, b) = ([10, 1, 2, 3], [10, 9, 8, 7]);
    let (mut c, mut d) = ([0; 16], [0xff; 16]);
    (c[0], d[0]) = (0x20, 0x20);
    match (v6, vlan) {
        (false, false) => finish!(builder.ipv4(a, b, 64)),
        (false, true) => finish!(builder.single_vlan(9.try_into().unwrap()).ipv4(a, b, 64)),
        (true, false) => finish!(builder.ipv6(c, d, 64)),
        (true, true) => finish!(builder.single_vlan(9.try_into().unwrap()).ipv6(c, d, 64)),
    }
    out
}

/// Reports whether the checksums of a frame are those that another library computes.
fn is_sound(frame: &[u8]) -> bool {
    let packet = PacketHeaders::from_ethernet_slice(frame).unwrap();
    let ip = packet.net.as_ref().unwrap();
    let payload = SlicedPacket::from_ethernet(frame).unwrap();
    let data = match &payload.transport {
        Some(TransportSlice::Udp(udp)) => udp.payload(),
        Some(TransportSlice::Tcp(tcp)) => tcp.payload(),
        Some(TransportSlice::Icmpv4(icmp)) => icmp.payload(),
        Some(TransportSlice::Icmpv6(icmp)) => icmp.payload(),
        _ => return false,
    };
    let v4 = ip.ipv4_ref().map(|(header, _)| header);
    let v6 = ip.ipv6_ref().map(|(header, _)| header);
    let transport = packet.transport.clone().unwrap();
    let (found, wanted) = match (&transport, v4, v6) {
        (etherparse::TransportHeader::Udp(h), Some(ip), _) => (h.checksum, h.calc_checksum_ipv4(ip, data)),
        (etherparse::TransportHeader::Udp(h), _, Some(ip)) => (h.checksum, h.calc_checksum_ipv6(ip, data)),
        (etherparse::TransportHeader::Tcp(h), Some(ip), _) => (h.checksum, h.calc_checksum_ipv4(ip, data)),
        (etherparse::TransportHeader::Tcp(h), _, Some(ip)) => (h.checksum, h.calc_checksum_ipv6(ip, data)),
        (etherparse::TransportHeader::Icmpv4(h), ..) => (h.checksum, Ok(h.icmp_type.calc_checksum(data))),
        (etherparse::TransportHeader::Icmpv6(h), _, Some(ip)) => {
            let sum = h.icmp_type.calc_checksum(ip.source, ip.destination, data);
            (h.checksum, sum)
        }
        _ => return false,
    };
    found == wanted.unwrap()
        && v4.is_none_or(|header| header.header_checksum == header.calc_header_checksum())
}

fn protocols() -> impl Strategy<Value = TestProtocol> {
    prop_oneof![Just(TestProtocol::Tcp), Just(TestProtocol::Udp), Just(TestProtocol::Echo)]
}

fn everything() -> FrameRewrite {
    FrameRewrite {
        src_mac: Some([4; 6]),
        dst_mac: Some([6; 6]),
        addresses: vec![
            "10.1.0.0/16=198.18.0.0/16".parse().unwrap(),
            "10.0.0.0/8=172.0.0.0/8".parse().unwrap(),
            "2000::/8=fd00::/8".parse().unwrap(),
        ],
        vlan: None,
    }
}

#[test]
fn addresses_move_with_their_host_bits() {
    let mut moved = frame(false, TestProtocol::Udp, false, &[1; 20]);
    everything().rewrite_frame(&mut moved);
    assert_eq!(moved[..12], [[6; 6], [4; 6]].concat());
    assert_eq!(moved[26..34], [198, 18, 2, 3, 172, 9, 8, 7]);
    assert!(is_sound(&moved));
}

#[test]
fn vlan_tags_are_pushed_set_and_popped() {
    let plain = frame(false, TestProtocol::Udp, false, &[1; 20]);
    let edit = |text: &str, frame: &[u8]| {
        let mut frame = frame.to_vec();
        FrameRewrite { vlan: Some(text.parse().unwrap()), ..FrameRewrite::default() }
            .rewrite_frame(&mut frame);
        frame
    };
    let pushed = edit("push:7", &plain);
    assert_eq!(pushed[12..18], [0x81, 0, 0, 7, 8, 0]);
    assert_eq!(edit("set:300", &pushed)[12..18], [0x81, 0, 1, 44, 8, 0]);
    assert_eq!(edit("pop", &pushed), plain);
    assert_eq!((edit("pop", &plain), edit("set:7", &plain)), (plain.clone(), plain));
}

#[test]
fn meaningless_vlan_edit_or_address_map_is_refused() {
    for text in ["push", "push:4096", "set:", "drop", ""] {
        assert!(text.parse::<VlanEdit>().is_err(), "{text}");
    }
    for text in
        ["10.0.0.0/8", "10.0.0.0/8=10.0.0.0/9", "10.0.0.0/8=2001::/8", "1.2.3.4/33=1.2.3.4/33", "=", ""]
    {
        assert!(text.parse::<AddressMap>().is_err(), "{text}");
    }
    for text in
        ["10.0.0.0/8=198.18.0.0/8", "0.0.0.0/0=1.2.3.4/0", "2001::/16=2002::/16", "1.1.1.1/32=2.2.2.2/32"]
    {
        assert_eq!(text.parse::<AddressMap>().unwrap().to_string(), text);
    }
}

#[test]
fn a_frame_without_a_checksum_stays_without() {
    let mut frame = frame(false, TestProtocol::Udp, false, &[1; 20]);
    frame[40..42].fill(0);
    everything().rewrite_frame(&mut frame);
    PayloadTagPosition::from_frame(&frame).unwrap().write_tag(
        0,
        TagStamp { key: KEY, stream: 0, time: 0 },
        &mut frame,
    );
    assert_eq!(frame[40..42], [0, 0]);
}

#[test]
fn a_wrong_checksum_stays_wrong_by_as_much() {
    let right = frame(false, TestProtocol::Tcp, false, &[1; 20]);
    let mut wrong = right.clone();
    wrong[50] = wrong[50].wrapping_add(1);
    let [mut right, mut wrong] = [right, wrong];
    for frame in [&mut right, &mut wrong] {
        everything().rewrite_frame(frame);
    }
    assert!(is_sound(&right) && !is_sound(&wrong));
    assert_eq!(right[50].wrapping_add(1), wrong[50]);
}

#[test]
fn tag_skips_fragments_neighbour_discovery_and_small_payloads() {
    let whole = frame(false, TestProtocol::Udp, false, &[1; 20]);
    for fragment in [[0x20, 0], [0, 5]] {
        let mut frame = whole.clone();
        frame[20..22].copy_from_slice(&fragment);
        assert_eq!(PayloadTagPosition::from_frame(&frame), None);
    }
    let mut solicitation = frame(true, TestProtocol::Echo, false, &[1; 24]);
    solicitation[54] = 135;
    assert_eq!(PayloadTagPosition::from_frame(&solicitation), None);
    assert_eq!(PayloadTagPosition::from_frame(&frame(false, TestProtocol::Tcp, false, &[1; 5])), None);
    let small = PayloadTagPosition::from_frame(&frame(false, TestProtocol::Tcp, false, &[1; 6])).unwrap();
    assert_eq!(small.form(), TagForm::Short);
}

proptest! {
    #[test]
    fn a_tagged_frame_is_sound_and_found(
        v6: bool, protocol in protocols(), vlan: bool, payload in prop::collection::vec(any::<u8>(), 6..200),
        n in 0u64..1 << 20, time: u64, padding in 0usize..9
    ) {
        let mut frame = frame(v6, protocol, vlan, &payload);
        everything().rewrite_frame(&mut frame);
        prop_assert!(is_sound(&frame));
        frame.resize(frame.len() + padding, 0);
        let place = PayloadTagPosition::from_frame(&frame).unwrap();
        place.write_tag(n, TagStamp { key: KEY, stream: 3, time }, &mut frame);
        prop_assert!(is_sound(&frame[..frame.len() - padding]));
        let ours = |found: &crate::tag::FoundTag| found.tag.form == place.form() && found.tag.stream == 3;
        let found = tag_candidates(&frame, KEY).find(ours).unwrap();
        prop_assert_eq!(u64::from(found.tag.sequence), n);
        prop_assert_eq!(compare_payload_with_tag(&frame, &found), Some(FrameComparison::Intact));
        if place.form() == TagForm::Full && payload.len() > 16 {
            let at = found.end - 17;
            frame[at] ^= 0x10;
            prop_assert_eq!(compare_payload_with_tag(&frame, &found), Some(FrameComparison::Corrupt));
        }
    }

    #[test]
    fn any_bytes_are_fine(mut bytes in prop::collection::vec(any::<u8>(), 0..120), v6: bool, at: prop::sample::Index, value: u8) {
        let mut damaged = frame(v6, TestProtocol::Tcp, true, &[0; 30]);
        let at = at.index(damaged.len());
        damaged[at] = value;
        for frame in [&mut bytes, &mut damaged] {
            for vlan in ["push:1", "set:2", "pop"] {
                FrameRewrite { vlan: vlan.parse().ok(), ..everything() }.rewrite_frame(frame);
                if let Some(place) = PayloadTagPosition::from_frame(frame) {
                    place.write_tag(1, TagStamp { key: KEY, stream: 1, time: 1 }, frame);
                }
                for found in tag_candidates(frame, KEY) {
                    compare_payload_with_tag(frame, &found);
                }
            }
        }
    }
}

/// As Linux leaves it: the field has the sum of the pseudo header.
#[test]
fn unfinished_checksum_is_completed_to_the_right_one() {
    for (v6, protocol) in
        [false, true].into_iter().flat_map(|v6| [(v6, TestProtocol::Tcp), (v6, TestProtocol::Udp)])
    {
        let right = frame(v6, protocol, v6, b"seven b");
        let layers = PacketLayers::from_frame(&right).unwrap();
        let (ip, transport) = (layers.ip.unwrap(), layers.transport.unwrap());
        let addresses = if v6 { ip.at + 8..ip.at + 40 } else { ip.at + 12..ip.at + 20 };
        let length = u16::try_from(transport.payload.end - transport.at).unwrap();
        let pseudo = [&right[addresses], &[0, transport.protocol], &length.to_be_bytes()].concat();
        let at = transport.checksum_at.unwrap();
        let mut unfinished = right.clone();
        unfinished[at..at + 2].copy_from_slice(&ones_complement_sum(&pseudo).to_be_bytes());
        assert!(complete_checksum(&mut unfinished));
        assert_eq!(unfinished, right, "{v6} {protocol:?}");
        assert!(is_sound(&unfinished));
    }
    assert!(!complete_checksum(&mut [0; 60]));
}

#[test]
fn merged_frame_is_split_into_sound_packets() {
    let payload: Vec<u8> = (0..=250).cycle().take(3001).collect();
    for (v6, protocol) in
        [false, true].into_iter().flat_map(|v6| [(v6, TestProtocol::Tcp), (v6, TestProtocol::Udp)])
    {
        let mut whole = frame(v6, protocol, !v6, &payload);
        let transport = PacketLayers::from_frame(&whole).unwrap().transport.unwrap();
        let is_tcp = matches!(protocol, TestProtocol::Tcp);
        if is_tcp {
            // CWR, ACK, PSH, FIN.
            whole[transport.at + 13] |= 0x99;
        }
        let (mut scratch, mut packets) = (Vec::new(), Vec::new());
        assert!(split_merged_frame(&whole, 1000, Some(transport.at), &mut scratch, &mut |packet| packets
            .push(packet.to_vec())));
        assert!(packets.iter().all(|packet| is_sound(packet)), "{v6} {protocol:?}");
        let parts: Vec<_> = packets.iter().map(|packet| &packet[transport.payload.start..]).collect();
        assert_eq!(parts.iter().map(|part| part.len()).collect::<Vec<_>>(), [1000, 1000, 1000, 1]);
        assert_eq!(parts.concat(), payload);
        if is_tcp {
            let of = |packet: &Vec<u8>| (packet[transport.at + 7], packet[transport.at + 13] & 0x99);
            // The sequence number begins with 5; 5 + 1000 = 0x3ed, 5 + 2000 = 0x7d5, 5 + 3000 = 0xbbd.
            assert_eq!(
                packets.iter().map(of).collect::<Vec<_>>(),
                [(5, 0x90), (0xed, 0x10), (0xd5, 0x10), (0xbd, 0x19)]
            );
        }
        assert!(!split_merged_frame(&whole, 1000, Some(transport.at + 8), &mut scratch, &mut |_| panic!(
            "a tunnel's"
        )));
        assert!(!split_merged_frame(&whole[..200], 1000, None, &mut scratch, &mut |_| panic!("cut")));
        let bare = frame(v6, protocol, false, b"");
        assert!(!split_merged_frame(&bare, 1000, None, &mut scratch, &mut |_| panic!("nothing to divide")));
    }
}
