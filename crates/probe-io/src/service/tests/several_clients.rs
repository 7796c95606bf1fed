//! Clients beside each other: none disturbs another one.

use super::*;

/// Repeats an attempt until its packets were in time: a busy machine may keep this thread or the service from the processor until they are
/// due. `attempt` judges nothing before that, and says whether it was so.
fn repeat_until_in_time(mut attempt: impl FnMut() -> bool) {
    assert!((0..100).any(|_| attempt()), "nothing was in time");
}

/// Returns whether the service itself was on time: it gave the packet to the release mechanism before those around it were due.
fn was_begun_in_time(report: &PacketReport) -> bool {
    report.handed_over.is_some_and(|stamp| stamp.hi + 1_000_000 <= report.planned)
}

#[test]
fn no_train_keeps_others_from_a_target() {
    let service = TestedService::start(1_000);
    let (mut far, mut other) = (service.client(), service.client());
    let begin = soon();
    let train = |seconds: u64| {
        let packets = [0, seconds * 1_000_000].into_iter();
        packets.map(|us| PacketToRelease { train: 1, ..datagram(us, begin, us, "127.7.0.4") }).collect()
    };
    far.submit_packets(train(50)).unwrap();
    let refused = outcomes(&reports(&mut far, 2));
    assert_eq!(
        refused,
        [PacketOutcome::TrainRefused, PacketOutcome::Malformed],
        "it is too long for a train"
    );
    far.submit_packets(train(0)).unwrap();
    other.submit_packets(vec![from_port(8, datagram(1, begin, 10, "127.7.0.4"))]).unwrap();
    assert_eq!(outcomes(&reports(&mut far, 2)), [PacketOutcome::Sent; 2]);
    assert_eq!(outcomes(&reports(&mut other, 1)), [PacketOutcome::Sent]);
}

#[test]
fn packets_that_clash_are_moved_and_reported() {
    let service = TestedService::start(100);
    let (mut low, mut high) = (service.client(), ReleaseClient::connect(&service.socket, "high", 5).unwrap());
    assert_eq!(high.facts().priority, 5);
    repeat_until_in_time(|| {
        let begin = soon();
        let impatient = PacketToRelease { latest: 1_000, ..datagram(2, begin, 2, "127.0.0.1") };
        low.submit_packets(vec![datagram(1, begin, 0, "127.0.0.1"), impatient]).unwrap();
        high.submit_packets(vec![from_port(8, datagram(3, begin, 1, "127.0.0.1"))]).unwrap();
        let was_in_time = now() <= begin - Nanos::new(high.facts().lead_ns);
        let kept = reports(&mut high, 1)[0];
        let moved = reports(&mut low, 2);
        let is_judged = was_in_time && was_begun_in_time(&kept);
        if is_judged {
            assert_eq!((kept.outcome, kept.shifted), (PacketOutcome::Sent, 0));
            assert_eq!(outcomes(&moved), [PacketOutcome::Sent, PacketOutcome::Clash]);
            let is_flagged = moved[0].flags.has_flag(ReportFlags::SHIFTED);
            assert!(moved[0].shifted >= 16_000 && is_flagged, "{}", moved[0].shifted);
        }
        is_judged
    });
}

/// The target allows bursts of four.
#[test]
fn packets_that_clash_are_not_charged_to_target() {
    let service = TestedService::start(100);
    let (mut first, mut target) = (service.client(), 4..=250_u8);
    repeat_until_in_time(|| {
        let to = format!("127.7.0.{}", target.next().unwrap());
        let begin = soon();
        let impatient = (2..5).map(|n| PacketToRelease { latest: 1_000, ..datagram(n, begin, 2, &to) });
        let later = (5..8).map(|n| datagram(n, begin, n * 100, &to));
        first
            .submit_packets([datagram(1, begin, 0, &to)].into_iter().chain(impatient).chain(later).collect())
            .unwrap();
        let outcomes = outcomes(&reports(&mut first, 7));
        // On a busy machine they are late before they clash.
        let is_judged = outcomes[1..4] == [PacketOutcome::Clash; 3];
        if is_judged {
            assert_eq!(outcomes[4..], [PacketOutcome::Sent; 3]);
        }
        is_judged
    });
}

#[test]
fn interleaved_packet_submitted_in_time_leaves_on_time() {
    let service = TestedService::start(1_000);
    let (mut steady, mut other) = (service.client(), service.client());
    repeat_until_in_time(|| {
        service.released.lock().unwrap().clear();
        let begin = soon();
        steady.submit_packets((0..60).map(|n| datagram(n, begin, n * 1_000, "127.0.0.1")).collect()).unwrap();
        let at = begin + Nanos::from_micros(40_500);
        // The latest time that the service allows, and a little earlier.
        let latest = at - Nanos::new(other.facts().lead_ns) - outlet::SLICE_DURATION;
        clock::sleep_until_ns((latest - Nanos::from_millis(8)).as_nanos());
        other.submit_packets(vec![from_port(8, datagram(1_000, at, 0, "127.0.0.2"))]).unwrap();
        let was_in_time = now() <= latest;
        let report = reports(&mut other, 1)[0];
        reports(&mut steady, 60);
        let is_judged = was_in_time && was_begun_in_time(&report);
        if is_judged {
            assert_eq!(report.shifted, 0);
            let order: Vec<_> = service.released.lock().unwrap().iter().map(|(at, _)| *at).collect();
            assert!(order.is_sorted(), "a packet left after one that was due later");
        }
        is_judged
    });
}

#[test]
fn dead_client_loses_its_queued_packets() {
    let service = TestedService::start(100);
    let (mut dying, mut other) = (service.client(), service.client());
    let begin = soon();
    dying.submit_packets((0..50).map(|n| datagram(n, begin, 1_000_000 + n, "127.0.0.1")).collect()).unwrap();
    other.submit_packets(vec![from_port(8, datagram(7, begin, 1_200_000, "127.0.0.2"))]).unwrap();
    drop(dying);
    assert_eq!(outcomes(&reports(&mut other, 1)), [PacketOutcome::Sent]);
    assert_eq!(service.released.lock().unwrap().len(), 1);
}

#[test]
fn a_quota_is_each_clients_own() {
    let service = TestedService::start(5);
    let (mut greedy, mut other) = (service.client(), service.client());
    let begin = soon();
    let packets = |count, port| {
        (0..count).map(|n| from_port(port, datagram(n, begin, 50_000_000, "127.0.0.1"))).collect::<Vec<_>>()
    };
    let (_, accepted) = greedy.submit_packets(packets(9, 7)).unwrap();
    assert_eq!((accepted.accepted, accepted.refused, accepted.queued), (5, 4, 5));
    assert_eq!(outcomes(&reports(&mut greedy, 4)), [PacketOutcome::QueueFull; 4]);
    assert_eq!(other.submit_packets(packets(5, 8)).unwrap().1.accepted, 5);
}

#[test]
fn client_that_never_reads_does_not_disturb_others() {
    let service = TestedService::start(2_000);
    let deaf = SeqpacketStream::connect_to(&service.socket).unwrap();
    use packetrig_release::message::ClientMessage;
    let hello = ClientMessage::Hello { id: 0, version: 1, priority: 7, name: "deaf".into() };
    assert!(deaf.send_message(&hello.to_bytes()).unwrap());
    // More than the kernel keeps for it: each batch has an answer and a report.
    let mut sent = 0;
    for batch in 1..20_000 {
        let submit = ClientMessage::Submit {
            batch,
            packets: vec![datagram(batch, MonoTime::from_nanos(1), 0, "127.0.0.9")],
        };
        if !deaf.send_message(&submit.to_bytes()).unwrap() {
            break;
        }
        sent = batch;
        if batch % 100 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert!(sent > 100 && sent < 19_999, "the service stops reading from it: {sent}");
    let mut client = service.client();
    client.submit_packets(vec![datagram(1, soon(), 0, "127.0.0.1")]).unwrap();
    assert_eq!(outcomes(&reports(&mut client, 1)), [PacketOutcome::Sent]);
}

#[test]
fn two_clients_never_send_from_one_port() {
    let service = TestedService::start(100);
    let (mut first, mut second) = (service.client(), service.client());
    let at = || soon();
    // A free port: no program listens in this range by chance for long.
    let free = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for port in [7, free] {
        first.submit_packets(vec![from_port(port, datagram(1, at(), 0, "127.0.0.1"))]).unwrap();
        assert_eq!(outcomes(&reports(&mut first, 1)), [PacketOutcome::Sent]);
        second.submit_packets(vec![from_port(port, datagram(2, at(), 0, "127.0.0.1"))]).unwrap();
        let refused = reports(&mut second, 1)[0];
        assert_eq!(refused.outcome, PacketOutcome::WrongSource);
        assert_eq!(refused.fault, Some(PacketFault { packet: 0, byte: Some(32 + 20) }), "its source port");
    }
    let bound = std::net::UdpSocket::bind(("127.0.0.1", free));
    assert_eq!(
        bound.unwrap_err().kind(),
        std::io::ErrorKind::AddrInUse,
        "a local program cannot have it either"
    );
    drop(first);
    // The service notices on a thread of its own that the client is gone.
    let mut outcome = None;
    for n in 0..1_000 {
        second.submit_packets(vec![from_port(free, datagram(n, at(), 0, "127.0.0.1"))]).unwrap();
        outcome = Some(reports(&mut second, 1)[0].outcome);
        if outcome == Some(PacketOutcome::Sent) {
            break;
        }
    }
    assert_eq!(outcome, Some(PacketOutcome::Sent));
}

#[test]
fn client_may_send_from_own_socket_port() {
    let service = TestedService::start(100);
    let (mut parent, mut child) = (service.client(), service.client());
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    for client in [&mut parent, &mut child] {
        client.submit_packets(vec![from_port(port, datagram(1, soon(), 0, "127.0.0.1"))]).unwrap();
        assert_eq!(outcomes(&reports(client, 1)), [PacketOutcome::Sent]);
    }
}
