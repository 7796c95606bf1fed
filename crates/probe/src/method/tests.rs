use super::*;
use crate::answer;
use std::net::IpAddr;

fn ends(source: &str, target: &str) -> ProbeFrameEndpoints {
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    ProbeFrameEndpoints {
        own_mac: [2; 6],
        next_mac: [4; 6],
        source: ip(source),
        target: ip(target),
        class: 0,
    }
}

fn there() -> [ProbeFrameEndpoints; 2] {
    [ends("192.0.2.1", "192.0.2.2"), ends("2001:db8::1", "2001:db8::2")]
}

fn back(ends: ProbeFrameEndpoints) -> ProbeFrameEndpoints {
    ProbeFrameEndpoints { source: ends.target, target: ends.source, ..ends }
}

fn written(method: &mut dyn ProbeMethod, number: u32, length: u32) -> Vec<u8> {
    let mut frame = Vec::new();
    method.write_probe(number, MonoTime::default(), length, &mut frame);
    frame
}

fn read(method: &mut dyn ProbeMethod, frame: &[u8]) -> Option<ProbeReply> {
    answer::read_answer(frame, false).and_then(|answer| method.read_reply(&answer))
}

#[test]
fn returned_datagram_matches_number_and_shows_damage() {
    for ends in there() {
        let mut method = DatagramMethod::new(ends, 4_000, 7, Some("https://lab.example/probes".into()));
        for number in [0, 70_000] {
            let probe = written(&mut method, number, 140);
            assert_eq!(probe.len(), 140);
            assert!(probe.windows(11).any(|part| part == b"lab.example"));
            let payload = probe[ends.header_bytes() + 8..].to_vec();
            let mut echo = Vec::new();
            back(ends).write_udp_frame(7, 4_000, &payload, &mut echo);
            assert_eq!(
                read(&mut method, &echo),
                Some(reply_without_peer_times(number, ReplyMeaning::Echo, true))
            );
            let mut changed = payload.clone();
            changed[50] ^= 4;
            back(ends).write_udp_frame(7, 4_000, &changed, &mut echo);
            assert_eq!(
                read(&mut method, &echo),
                Some(reply_without_peer_times(number, ReplyMeaning::Echo, false))
            );
            back(ends).write_udp_frame(7, 4_001, &payload, &mut echo);
            assert_eq!(read(&mut method, &echo), None, "to another port");
        }
    }
}

/// The router's or target's word about a probe.
pub(crate) fn error_about(ends: ProbeFrameEndpoints, probe: &[u8], kind: u8, code: u8) -> Vec<u8> {
    let (mut frame, back) = (Vec::new(), back(ends));
    back.write_echo_frame(0, 0, &probe[frame::ETHERNET..], &mut frame);
    let at = back.header_bytes();
    let protocol = if ends.source.is_ipv4() { 1 } else { 58 };
    frame[at..at + 4].copy_from_slice(&[kind, code, 0, 0]);
    let sum = !frame::transport_sum(back.source, back.target, protocol, &frame[at..]);
    frame[at + 2..at + 4].copy_from_slice(&sum.to_be_bytes());
    frame
}

#[test]
fn errors_about_probes_of_every_kind_are_known() {
    let ends = there()[0];
    let methods: [Box<dyn ProbeMethod>; 3] = [
        Box::new(EchoMethod::new(ends, 77, None)),
        Box::new(DatagramMethod::new(ends, 4_000, 33_434, None)),
        Box::new(SynMethod::new(ends, 4_000, 80, 9)),
    ];
    for mut method in methods {
        let probe = written(method.as_mut(), 12, 80);
        let prohibited = error_about(ends, &probe, 3, 13);
        let says = ReplyMeaning::Trouble(PathFailure::Prohibited);
        assert_eq!(
            read(method.as_mut(), &prohibited),
            Some(reply_without_peer_times(12, says, true)),
            "{method:?}"
        );
        // The shortest quote that is required: the header and eight bytes.
        let short = error_about(ends, &probe[..frame::ETHERNET + 28], 3, 13);
        assert_eq!(
            read(method.as_mut(), &short),
            Some(reply_without_peer_times(12, says, true)),
            "{method:?}"
        );
        let unreachable = error_about(ends, &probe, 3, 3);
        assert_eq!(
            read(method.as_mut(), &unreachable),
            Some(reply_without_peer_times(12, ReplyMeaning::Closed, true))
        );
        let elsewhere = ProbeFrameEndpoints { target: "192.0.2.9".parse().unwrap(), ..ends };
        let mut other = Vec::new();
        elsewhere.write_udp_frame(4_000, 33_434, &[0; 20], &mut other);
        assert_eq!(read(method.as_mut(), &error_about(ends, &other, 3, 3)), None);
    }
}

#[test]
fn syn_method_tells_open_from_closed_port() {
    for ends in there() {
        let mut method = SynMethod::new(ends, 4_000, 80, 3);
        for (number, flags, says) in [
            (0, flags::SYN | flags::ACK, ReplyMeaning::Open),
            (9, flags::RST | flags::ACK, ReplyMeaning::Closed),
        ] {
            let probe = written(&mut method, number, 60);
            let AnswerContent::Tcp(tcp) = answer::read_answer(&probe, false).unwrap().content else {
                panic!()
            };
            let segment = TcpSegment {
                source_port: 80,
                target_port: 4_000,
                acknowledgement: tcp.sequence.wrapping_add(1),
                flags,
                ..TcpSegment::default()
            };
            let mut frame = Vec::new();
            back(ends).write_tcp_frame(&segment, &mut frame);
            assert_eq!(read(&mut method, &frame), Some(reply_without_peer_times(number, says, true)));
            let off = TcpSegment { acknowledgement: tcp.sequence, ..segment };
            back(ends).write_tcp_frame(&off, &mut frame);
            assert_eq!(read(&mut method, &frame), None);
        }
    }
}

#[test]
fn probe_is_padded_to_fit_its_identification() {
    let mut method = EchoMethod::new(there()[1], 1, None);
    assert_eq!(written(&mut method, 0, 0).len(), 70);
    let mut method = EchoMethod::new(there()[0], 1, None);
    assert_eq!(written(&mut method, 0, 0).len(), 60);
}
