use super::*;
use crate::lab::{ProbeLab, permitted, send};
use crate::listener::{PacketListener, SilencedPort, WantedPackets};
use packetrig_probe::ProbeStamp;
use packetrig_probe::answer::AnswerContent;
use packetrig_probe::frame::{TcpSegment, flags};
use packetrig_sys::kernel;

/// Sends a frame and reads what `found` makes of the answers.
fn ask<T>(
    way: &ProbePath,
    port: Option<u16>,
    frame: &[u8],
    found: impl Fn(AnswerContent<'_>) -> Option<T>,
) -> (T, ProbeStamp, u64) {
    let wanted = WantedPackets { addresses: vec![way.ends.source], port };
    let mut listener = PacketListener::open_at_interface(&way.location, way.index, &wanted).unwrap();
    let at = send(way, frame);
    let deadline = clock::monotonic_ns() + 5_000_000_000;
    let mut heard = None;
    while heard.is_none() && clock::monotonic_ns() < deadline {
        listener.wait_for_frames(Nanos::from_millis(50)).unwrap();
        listener.receive_waiting_frames(|one| {
            let answer = one.read_answer().filter(|answer| answer.is_sound);
            if let Some(it) = answer.and_then(|answer| found(answer.content)) {
                heard = Some((it, one.at));
            }
        });
    }
    let (it, stamp) = heard.expect("an answer");
    (it, stamp, at)
}

fn echoes(way: &ProbePath) {
    let mut frame = Vec::new();
    way.ends.write_echo_frame(77, 3, b"anybody?", &mut frame);
    let is_it = |content: AnswerContent<'_>| match content {
        AnswerContent::Echo { identifier: 77, sequence: 3, payload: b"anybody?" } => Some(()),
        _ => None,
    };
    let ((), stamp, at) = ask(way, None, &frame, is_it);
    assert!(stamp.hi >= at && stamp.lo <= clock::monotonic_ns(), "{stamp:?} {at}");
}

#[test]
fn path_to_neighbour_is_found_for_both_families() {
    let Some(lab) = ProbeLab::new() else { return };
    for (ip, source) in [("192.0.2.2", "192.0.2.1"), ("2001:db8::2", "2001:db8::1")] {
        let way = find_path(Some(&lab.near), permitted(ip), None).unwrap();
        assert_eq!((way.location.interface.as_str(), way.mtu, way.is_loopback), ("a", 1500, false));
        assert_eq!(way.ends.source, source.parse::<IpAddr>().unwrap());
        echoes(&way);
    }
}

#[test]
fn own_address_uses_loopback_and_restores_its_setting() {
    let Some(lab) = ProbeLab::new() else { return };
    let netns = NetNs::open_named_namespace(&lab.near).unwrap();
    let setting = || kernel::read_setting(&netns, "net/ipv4/conf/lo/route_localnet").unwrap();
    for ip in ["127.0.0.1", "192.0.2.1", "::1", "2001:db8::1"] {
        let way = find_path(Some(&lab.near), permitted(ip), None).unwrap();
        assert!(way.is_loopback, "{ip}");
        let opened = open_loopback(&way).unwrap();
        // Another probe of this machine that ends first.
        drop(open_loopback(&way).unwrap());
        echoes(&way);
        assert_eq!(setting(), if ip.contains('.') { "1" } else { "0" });
        drop(opened);
        assert_eq!(setting(), "0");
    }
}

#[test]
fn missing_path_error_names_its_cause() {
    let Some(lab) = ProbeLab::new() else { return };
    let way = |ip, through| find_path(Some(&lab.near), permitted(ip), through);
    assert!(matches!(way("198.51.100.1", None), Err(Error::NoRoute(_, None))));
    assert!(matches!(way("192.0.2.77", None), Err(Error::NobodyThere(_, _))));
    assert!(matches!(way("192.0.2.2", Some("nosuch")), Err(Error::Kernel(_))));
    assert!(way("192.0.2.2", Some("a")).is_ok());
}

#[test]
fn silenced_port_receives_answers_but_sends_no_reset() {
    let Some(lab) = ProbeLab::new() else { return };
    let far = NetNs::open_named_namespace(&lab.far).unwrap();
    let listener = far.run_in_namespace(|| std::net::TcpListener::bind("192.0.2.2:0").unwrap()).unwrap();
    let target_port = listener.local_addr().unwrap().port();
    let way = find_path(Some(&lab.near), permitted("192.0.2.2"), None).unwrap();
    let hush = SilencedPort::reserve_any_port(Some(&lab.near), way.ends.source).unwrap();
    let syn = TcpSegment {
        source_port: hush.port(),
        target_port,
        sequence: 1_000,
        flags: flags::SYN,
        window: 1_024,
        ..TcpSegment::default()
    };
    let mut frame = Vec::new();
    way.ends.write_tcp_frame(&syn, &mut frame);
    let flags_of = |content: AnswerContent<'_>| match content {
        AnswerContent::Tcp(tcp) => Some((tcp.flags, tcp.acknowledgement)),
        _ => None,
    };
    // A listener at the far end receives what we send: the first segment, and no reset behind it.
    let there = PortLocation { namespace: Some(lab.far.clone()), interface: "b".into() };
    let index = NamespaceLinks::open_in(&far).unwrap().find_link_by_name("b").unwrap().index;
    let wanted = WantedPackets { addresses: vec![way.ends.target], port: Some(target_port) };
    let mut far_listener = PacketListener::open_at_interface(&there, index, &wanted).unwrap();
    let (answer, _, _) = ask(&way, Some(hush.port()), &frame, flags_of);
    assert_eq!(answer, (flags::SYN | flags::ACK, 1_001));
    std::thread::sleep(std::time::Duration::from_millis(50));
    let mut seen = Vec::new();
    far_listener.receive_waiting_frames(|heard| {
        seen.extend(heard.read_answer().and_then(|answer| flags_of(answer.content)).map(|(flags, _)| flags));
    });
    assert_eq!(seen, [flags::SYN]);
}
