use super::*;
use crate::header::{FieldSetting, HeaderKind};
use crate::tag::{TagKey, find_tag};
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use proptest::prelude::*;

const KEY: TagKey = TagKey(0x0123_4567_89ab_cdef);
const SRC: u128 = 0xc612_0001;
const DST: u128 = 0xc613_0001;

fn ethernet() -> PacketHeader {
    PacketHeader::new(HeaderKind::Ethernet)
        .with_field("dst", 0x0200_0000_0002)
        .with_field("src", 0x0200_0000_0001)
}

fn ipv4() -> PacketHeader {
    PacketHeader::new(HeaderKind::Ipv4).with_field("src", SRC).with_field("dst", DST)
}

fn spec(headers: Vec<PacketHeader>, size: u32) -> FrameSpec {
    FrameSpec {
        headers,
        size: SizePattern::Fixed(FrameSize::new(size)),
        payload: PayloadPattern::IncrementByte,
        tagged: true,
        routed: false,
    }
}

fn stamp() -> TagStamp {
    TagStamp { key: KEY, stream: 5, time: 123_456_789 }
}

fn frame(template: &FrameTemplate, n: u64) -> Vec<u8> {
    let mut out = vec![0; template.frame_size(n).kernel_len()];
    assert_eq!(template.render_frame(n, stamp(), &mut out), out.len());
    out
}

fn verdict(template: &FrameTemplate, n: u64, frame: &[u8]) -> Option<FrameComparison> {
    let found = find_tag(frame, KEY)?;
    let mut scratch = vec![0; template.header_len()];
    Some(template.verify_frame(n, KEY, &found, frame, &mut scratch))
}

/// Lengths and checksums of the outermost IP packet, judged by an independent parser.
fn judge(frame: &[u8]) {
    let packet = SlicedPacket::from_ethernet(frame).unwrap();
    let payload_len = |ip_payload: usize| {
        let taken = frame.len() - ip_payload;
        assert!(taken < frame.len());
    };
    match (&packet.net, &packet.transport) {
        (Some(NetSlice::Ipv4(ip)), transport) => {
            assert_eq!(ip.header().header_checksum(), ip.header().to_header().calc_header_checksum());
            payload_len(ip.payload().payload.len());
            match transport {
                Some(TransportSlice::Udp(udp)) => {
                    let header = udp.to_header();
                    assert_eq!(usize::from(header.length), ip.payload().payload.len());
                    let wanted = header
                        .calc_checksum_ipv4_raw(
                            ip.header().source(),
                            ip.header().destination(),
                            udp.payload(),
                        )
                        .unwrap();
                    assert_eq!(header.checksum, wanted);
                }
                Some(TransportSlice::Tcp(tcp)) => {
                    let wanted = tcp
                        .to_header()
                        .calc_checksum_ipv4_raw(
                            ip.header().source(),
                            ip.header().destination(),
                            tcp.payload(),
                        )
                        .unwrap();
                    assert_eq!(tcp.checksum(), wanted);
                }
                _ => {}
            }
        }
        (Some(NetSlice::Ipv6(ip)), Some(TransportSlice::Udp(udp))) => {
            let wanted = udp
                .to_header()
                .calc_checksum_ipv6_raw(ip.header().source(), ip.header().destination(), udp.payload())
                .unwrap();
            assert_eq!(udp.checksum(), wanted);
        }
        other => panic!("not judged: {other:?}"),
    }
}

#[test]
fn minimum_udp_frame_fits_full_tag_tcp_short() {
    let udp =
        FrameTemplate::new(spec(vec![ethernet(), ipv4(), PacketHeader::new(HeaderKind::Udp)], 64)).unwrap();
    let tcp =
        FrameTemplate::new(spec(vec![ethernet(), ipv4(), PacketHeader::new(HeaderKind::Tcp)], 64)).unwrap();
    assert_eq!(udp.tag_form(FrameSize::MIN), Some(TagForm::Full));
    assert_eq!(tcp.tag_form(FrameSize::MIN), Some(TagForm::Short));
    for template in [udp, tcp] {
        judge(&frame(&template, 3));
        assert_eq!(verdict(&template, 3, &frame(&template, 3)), Some(FrameComparison::Intact));
    }
}

#[test]
fn ipv4_total_length_and_types_follow_headers() {
    let vlan = PacketHeader::new(HeaderKind::Vlan).with_field("id", 100);
    let template =
        FrameTemplate::new(spec(vec![ethernet(), vlan, ipv4(), PacketHeader::new(HeaderKind::Udp)], 128))
            .unwrap();
    let bytes = frame(&template, 0);
    assert_eq!(bytes[12..18], [0x81, 0, 0, 100, 8, 0]);
    assert_eq!(bytes[18..22], [0x45, 0, 0, 128 - 18 - 4]);
    assert_eq!(bytes[27], 17);
    let plain = FrameTemplate::new(spec(vec![ethernet(), ipv4()], 128)).unwrap();
    assert_eq!(frame(&plain, 0)[16..18], [0, 110]);
}

#[test]
fn vxlan_inner_packet_ends_before_inner_fcs() {
    let headers = vec![
        ethernet(),
        PacketHeader::new(HeaderKind::Ipv6).with_field("src", 1u128 << 96).with_field("dst", 2u128 << 96),
        PacketHeader::new(HeaderKind::Udp).with_field("dst_port", 4789),
        PacketHeader::new(HeaderKind::Vxlan).with_field("vni", 7),
        ethernet(),
        ipv4(),
        PacketHeader::new(HeaderKind::Tcp),
    ];
    let template = FrameTemplate::new(spec(headers, 256)).unwrap();
    let bytes = frame(&template, 9);
    let word = |at: usize| usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
    // The example of the OTG conformance suite: 198, 198, 164 with 168 bytes left.
    assert_eq!((word(18), word(58), word(86)), (198, 198, 164));
    judge(&bytes);
    let mut inner = bytes[70..].to_vec();
    inner.truncate(14 + 164);
    judge(&inner);
    assert_eq!(verdict(&template, 9, &bytes), Some(FrameComparison::Intact));
}

#[test]
fn gre_checksum_and_mpls_stack() {
    let gre = PacketHeader::new(HeaderKind::Gre).with_field("checksum_present", 1);
    let headers = vec![ethernet(), ipv4(), gre, ipv4(), PacketHeader::new(HeaderKind::Icmp)];
    let bytes = frame(&FrameTemplate::new(spec(headers, 200)).unwrap(), 0);
    assert_eq!(bytes[23], 47);
    assert_eq!(bytes[36..38], [8, 0]);
    assert_eq!(ones_complement_sum(&bytes[34..]), 0xffff);
    assert_eq!(ones_complement_sum(&bytes[62..]), 0xffff);
    let headers =
        vec![ethernet(), PacketHeader::new(HeaderKind::Mpls), PacketHeader::new(HeaderKind::Mpls), ipv4()];
    let bytes = frame(&FrameTemplate::new(spec(headers, 100)).unwrap(), 0);
    assert_eq!(bytes[12..22], [0x88, 0x47, 0, 1, 0, 64, 0, 1, 1, 64]);
}

#[test]
fn bad_checksum_is_wrong_given_one_is_kept() {
    let mut udp = PacketHeader::new(HeaderKind::Udp);
    udp.set_field("checksum", FieldSetting::BadChecksum);
    let bytes = frame(&FrameTemplate::new(spec(vec![ethernet(), ipv4(), udp], 100)).unwrap(), 0);
    assert_ne!(bytes[40..42], [0, 0]);
    let good = frame(
        &FrameTemplate::new(spec(vec![ethernet(), ipv4(), PacketHeader::new(HeaderKind::Udp)], 100)).unwrap(),
        0,
    );
    assert_ne!(bytes[40..42], good[40..42]);
    let given = PacketHeader::new(HeaderKind::Udp).with_field("checksum", 0x1234);
    let bytes = frame(&FrameTemplate::new(spec(vec![ethernet(), ipv4(), given], 100)).unwrap(), 0);
    assert_eq!(bytes[40..42], [0x12, 0x34]);
}

#[test]
fn frames_too_small_for_their_headers_are_refused() {
    let headers = vec![ethernet(), PacketHeader::new(HeaderKind::Ipv6), PacketHeader::new(HeaderKind::Udp)];
    let error = FrameTemplate::new(spec(headers, 64)).unwrap_err();
    assert_eq!(error, Error::TooSmall { headers: 62, needed: 66, smallest: 64 });
}

#[test]
fn without_a_tag_the_payload_is_as_asked() {
    let untagged = FrameSpec { tagged: false, ..spec(vec![ethernet(), ipv4()], 100) };
    let bytes = frame(&FrameTemplate::new(untagged).unwrap(), 0);
    assert_eq!(bytes[34..], PayloadPattern::IncrementByte.fill_bytes(62));
}

#[test]
fn identical_header_streams_are_told_apart_by_tag() {
    let template =
        FrameTemplate::new(spec(vec![ethernet(), ipv4(), PacketHeader::new(HeaderKind::Tcp)], 64)).unwrap();
    for stream in 0..4096 {
        let mut out = [0; 60];
        template.render_frame(77, TagStamp { stream, ..stamp() }, &mut out);
        let found = find_tag(&out, KEY).unwrap();
        if found.tag.form == TagForm::Short {
            assert_eq!((found.tag.stream, found.tag.sequence), (stream, 77));
        }
    }
}

#[test]
fn altered_frames_are_noticed_but_still_recognised() {
    let template =
        FrameTemplate::new(spec(vec![ethernet(), ipv4(), PacketHeader::new(HeaderKind::Udp)], 100)).unwrap();
    let sent = frame(&template, 4);
    let mut ttl = sent.clone();
    ttl[22] -= 1;
    assert_eq!(verdict(&template, 4, &ttl), Some(FrameComparison::Altered));
    let mut pushed = sent.clone();
    pushed.splice(12..12, [0x81, 0, 0, 9]);
    assert_eq!(verdict(&template, 4, &pushed), Some(FrameComparison::Altered));
    let small = FrameTemplate::new(spec(vec![ethernet(), ipv4()], 64)).unwrap();
    let vlan =
        FrameTemplate::new(spec(vec![ethernet(), PacketHeader::new(HeaderKind::Vlan), ipv4()], 64)).unwrap();
    let mut popped = frame(&vlan, 4);
    popped.drain(12..16);
    popped.resize(60, 0);
    assert_eq!(verdict(&vlan, 4, &popped), Some(FrameComparison::Altered));
    assert_eq!(verdict(&small, 4, &frame(&small, 4)), Some(FrameComparison::Intact));
}

#[test]
fn routed_frames_are_intact_after_a_router() {
    for (headers, ttl) in [
        (vec![ethernet(), ipv4(), PacketHeader::new(HeaderKind::Udp)], 22),
        (
            vec![ethernet(), PacketHeader::new(HeaderKind::Vlan), ipv4(), PacketHeader::new(HeaderKind::Udp)],
            26,
        ),
        (vec![ethernet(), PacketHeader::new(HeaderKind::Ipv6), PacketHeader::new(HeaderKind::Udp)], 21),
    ] {
        let is_v4 = headers.iter().any(|header| header.kind() == HeaderKind::Ipv4);
        let template = FrameTemplate::new(FrameSpec { routed: true, ..spec(headers, 100) }).unwrap();
        let mut routed = frame(&template, 4);
        routed[..12].fill(6);
        routed[ttl] -= 2;
        // RFC 1624: a checksum rises by what a word of the header falls.
        let check = u16::from_be_bytes([routed[ttl + 2], routed[ttl + 3]]);
        if is_v4 {
            routed[ttl + 2..ttl + 4].copy_from_slice(&(check + 0x200).to_be_bytes());
        }
        assert_eq!(verdict(&template, 4, &routed), Some(FrameComparison::Intact), "{ttl}");
        assert!(template.matches_constant_headers(&routed));
        let mut wrong = [routed.clone(), routed.clone(), routed.clone()];
        // A router does not raise the hop limit, nor change the class of traffic or the addresses.
        wrong[0][ttl] = 255;
        wrong[1][if is_v4 { ttl - 7 } else { ttl - 6 }] ^= 0x40;
        wrong[2][ttl + 10] ^= 1;
        for wrong in wrong {
            assert_eq!(verdict(&template, 4, &wrong), Some(FrameComparison::Altered), "{ttl}");
        }
    }
}

fn any_stack() -> impl Strategy<Value = Vec<PacketHeader>> {
    let l2 = prop_oneof![
        Just(vec![ethernet()]),
        Just(vec![ethernet(), PacketHeader::new(HeaderKind::Vlan).with_field("id", 5)]),
        Just(vec![
            ethernet().with_field("ether_type", 0x88a8),
            PacketHeader::new(HeaderKind::Vlan),
            PacketHeader::new(HeaderKind::Vlan)
        ]),
    ];
    let varying = |count| FieldPattern::Step { start: 1000, step: 3, count, down: false };
    let l3 = (0u8..3, 1u64..300).prop_map(move |(kind, count)| match kind {
        0 => vec![ipv4(), PacketHeader::new(HeaderKind::Udp).with_field("src_port", varying(count))],
        1 => vec![ipv4().with_field("dst", varying(count)), PacketHeader::new(HeaderKind::Tcp)],
        _ => vec![
            PacketHeader::new(HeaderKind::Ipv6).with_field("src", varying(count)),
            PacketHeader::new(HeaderKind::Udp),
        ],
    });
    (l2, l3).prop_map(|(mut l2, l3)| {
        l2.extend(l3);
        l2
    })
}

proptest! {
    #[test]
    fn any_frame_parses_with_right_lengths_and_checksums(headers in any_stack(), size in 90u32..1519, n: u64, tagged: bool) {
        let template = FrameTemplate::new(FrameSpec { tagged, ..spec(headers, size) }).unwrap();
        let bytes = frame(&template, n);
        judge(&bytes);
        if tagged {
            prop_assert_eq!(verdict(&template, n, &bytes), Some(FrameComparison::Intact));
        }
        prop_assert!(template.matches_constant_headers(&bytes));
    }

    #[test]
    fn one_flipped_bit_is_always_noticed(headers in any_stack(), size in 90u32..400, n: u64, at: prop::sample::Index, bit in 0u8..8) {
        let template = FrameTemplate::new(spec(headers, size)).unwrap();
        let mut bytes = frame(&template, n);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        match verdict(&template, n, &bytes) {
            Some(FrameComparison::Intact) => prop_assert!(false, "not noticed at {at}"),
            Some(FrameComparison::Altered) => prop_assert!(at < template.header_len()),
            Some(FrameComparison::Corrupt) => prop_assert!(at >= template.header_len()),
            // The tag itself was hit.
            None => prop_assert!(at >= bytes.len() - 16),
        }
    }

    #[test]
    fn foreign_frames_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), n: u64, tag_it: bool) {
        let template = FrameTemplate::new(spec(vec![ethernet(), ipv4()], 120)).unwrap();
        let mut bytes = bytes;
        if tag_it && bytes.len() >= 16 {
            let end = bytes.len();
            stamp().make_tag(n, TagForm::Full).write_tag(KEY, 0, &mut bytes[end - 16..]);
        }
        verdict(&template, n, &bytes);
        template.matches_constant_headers(&bytes);
    }
}
