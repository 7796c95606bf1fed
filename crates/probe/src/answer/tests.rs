use super::*;
use crate::frame::{MIN_FRAME_BYTES, ProbeFrameEndpoints, TcpSegment, flags};
use proptest::prelude::*;

fn ends(source: &str, target: &str) -> ProbeFrameEndpoints {
    ProbeFrameEndpoints {
        own_mac: [2, 0, 0, 0, 0, 1],
        next_mac: [2, 0, 0, 0, 0, 2],
        source: source.parse().unwrap(),
        target: target.parse().unwrap(),
        class: 0x2e << 2,
    }
}

fn both() -> [ProbeFrameEndpoints; 2] {
    [ends("192.0.2.1", "198.51.100.7"), ends("2001:db8::1", "2001:db8:1::7")]
}

#[test]
fn written_frame_is_read_with_valid_checksums() {
    let mut frame = vec![9; 100];
    for ends in both() {
        for length in [0, 1, 17, 1400] {
            let payload = vec![0xa5; length];
            ends.write_udp_frame(40_000, 862, &payload, &mut frame);
            assert!(frame.len() >= MIN_FRAME_BYTES);
            let answer = read_answer(&frame, false).unwrap();
            assert_eq!((answer.from, answer.to, answer.hop_limit), (ends.source, ends.target, 64));
            assert_eq!(answer.class, ends.class);
            assert!(answer.is_sound);
            assert_eq!(answer.content, AnswerContent::Udp { from: 40_000, to: 862, payload: &payload });
            let segment = TcpSegment {
                source_port: 1,
                target_port: 80,
                sequence: 7,
                acknowledgement: 8,
                flags: flags::SYN | flags::ACK,
                window: 512,
                options: &[2, 4, 5, 180],
                payload: &payload,
            };
            ends.write_tcp_frame(&segment, &mut frame);
            let answer = read_answer(&frame, false).unwrap();
            let AnswerContent::Tcp(tcp) = answer.content else { panic!("{answer:?}") };
            assert!(answer.is_sound);
            assert_eq!((tcp.source_port, tcp.target_port, tcp.sequence, tcp.acknowledgement), (1, 80, 7, 8));
            assert_eq!((tcp.flags, tcp.window), (flags::SYN | flags::ACK, 512));
            assert_eq!((tcp.options, tcp.payload), (segment.options, segment.payload));
        }
    }
}

/// The request as its target sends it back.
fn echoed(ends: &ProbeFrameEndpoints, frame: &mut [u8]) {
    let at = ends.header_bytes();
    let (from, to) = if ends.source.is_ipv4() { (8, 0) } else { (128, 129) };
    assert_eq!(frame[at], from);
    frame[at..at + 4].copy_from_slice(&[to, 0, 0, 0]);
    let protocol = if from == 8 { PROTOCOL_ICMP } else { PROTOCOL_ICMPV6 };
    let end = at + UDP + 9;
    let sum = !transport_sum(ends.source, ends.target, protocol, &frame[at..end]);
    frame[at + 2..at + 4].copy_from_slice(&sum.to_be_bytes());
}

#[test]
fn an_echo_is_read_and_damage_is_seen() {
    let mut frame = Vec::new();
    for ends in both() {
        ends.write_echo_frame(77, 5, b"packetrig", &mut frame);
        assert_eq!(read_answer(&frame, false), None, "a request is no answer");
        echoed(&ends, &mut frame);
        let answer = read_answer(&frame, false).unwrap();
        assert_eq!(
            answer.content,
            AnswerContent::Echo { identifier: 77, sequence: 5, payload: b"packetrig" }
        );
        assert!(answer.is_sound);
        let at = ends.header_bytes() + 9;
        frame[at] ^= 1;
        assert!(!read_answer(&frame, false).unwrap().is_sound && read_answer(&frame, true).unwrap().is_sound);
    }
}

#[test]
fn an_error_says_which_probe_it_is_about() {
    for (ends, protocol, kind, code, what) in [
        (both()[0], 1, 3, 3, PathFailure::PortUnreachable),
        (both()[0], 1, 3, 13, PathFailure::Prohibited),
        (both()[0], 1, 11, 0, PathFailure::TooManyHops),
        (both()[1], 58, 1, 4, PathFailure::PortUnreachable),
        (both()[1], 58, 1, 1, PathFailure::Prohibited),
        (both()[1], 58, 2, 0, PathFailure::TooLong),
    ] {
        let mut probe = Vec::new();
        ends.write_udp_frame(4000, 33_434, &[1; 40], &mut probe);
        // The router's packet is built as an echo and then made what it is.
        let back = ProbeFrameEndpoints { source: ends.target, target: ends.source, ..ends };
        let mut frame = Vec::new();
        back.write_echo_frame(0, 0, &probe[ETHERNET..ETHERNET + 48], &mut frame);
        let at = back.header_bytes();
        frame[at..at + 4].copy_from_slice(&[kind, code, 0, 0]);
        let sum = !transport_sum(back.source, back.target, protocol, &frame[at..]);
        frame[at + 2..at + 4].copy_from_slice(&sum.to_be_bytes());
        let answer = read_answer(&frame, false).unwrap();
        let AnswerContent::Error { what: found, about } = answer.content else { panic!("{answer:?}") };
        assert!(answer.is_sound);
        assert_eq!((found, about.protocol, about.ports()), (what, 17, (4000, 33_434)));
        assert_eq!((about.source, about.target), (ends.source, ends.target));
    }
}

#[test]
fn fragments_and_what_is_cut_are_no_answers() {
    let [ends, _] = both();
    let mut frame = Vec::new();
    ends.write_udp_frame(1, 2, &[0; 100], &mut frame);
    assert_eq!(read_answer(&frame[..100], false), None);
    frame[ETHERNET + 6] = 0x20;
    assert_eq!(read_answer(&frame, false), None);
}

proptest! {
    #[test]
    fn garbage_never_panics(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), v6: bool, protocol in 0_u8..60) {
        if bytes.len() > 40 {
            let (ether, first) = if v6 { (ETHER_IPV6, 0x60) } else { (ETHER_IPV4, 0x45) };
            bytes[12..14].copy_from_slice(&ether.to_be_bytes());
            bytes[14] = first;
            let at = if v6 { 20 } else { 23 };
            bytes[at] = protocol;
        }
        let _ = read_answer(&bytes, false);
    }
}
