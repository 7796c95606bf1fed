//! Packets of one client: each leaves when it is due and is reported once.

use super::*;

#[test]
fn packets_leave_when_due_and_are_reported_once() {
    let service = TestedService::start(100);
    let mut client = service.client();
    assert_eq!((client.facts().interface_name.as_str(), client.facts().mechanism), ("lo", 1));
    let begin = soon();
    // Handed over out of order.
    let packets =
        [2_000, 0, 500].iter().zip(0..).map(|(us, cookie)| datagram(cookie, begin, *us, "127.0.0.1"));
    let (batch, accepted) = client.submit_packets(packets.collect()).unwrap();
    assert_eq!((accepted.accepted, accepted.refused), (3, 0));
    let reports = reports(&mut client, 3);
    assert_eq!(outcomes(&reports), [PacketOutcome::Sent; 3]);
    assert!(reports.iter().all(|report| report.batch == batch && report.departed_at().is_some()));
    assert_eq!(reports[0].planned, (begin + Nanos::from_micros(2_000)).as_nanos());
    let released = service.wait_for(3);
    assert_eq!(released[0].1, frame("127.0.0.1", "127.0.0.1"), "the service adds the Ethernet header");
    assert!(released.windows(2).all(|two| two[0].0 <= two[1].0));
    assert_eq!(client.next_event(Duration::from_millis(50)).unwrap(), None, "no packet is reported twice");
    drop(client);
    assert_eq!(service.end()[0].counts.sent, 3);
}

#[test]
fn times_of_the_wall_clock_are_understood() {
    let service = TestedService::start(100);
    let mut client = service.client();
    let begin = soon();
    let ahead = begin.since(now()).as_u64();
    let realtime = PacketToRelease {
        clock: ReleaseClock::Realtime,
        release_at: clock::wall_clock_ns() + ahead,
        ..datagram(1, begin, 0, "127.0.0.1")
    };
    let tai = PacketToRelease {
        clock: ReleaseClock::Tai,
        release_at: clock::tai_ns() + ahead,
        ..datagram(2, begin, 0, "127.0.0.1")
    };
    client.submit_packets(vec![realtime, tai]).unwrap();
    for report in reports(&mut client, 2) {
        assert_eq!(report.outcome, PacketOutcome::Sent);
        // The clocks were read one after the other here, so the times are near and not equal.
        assert!(report.planned.abs_diff(begin.as_nanos()) < 1_000_000_000, "{}", report.planned);
    }
}

#[test]
fn a_train_leaves_whole_or_not_at_all() {
    let service = TestedService::start(100);
    let mut client = service.client();
    let begin = soon();
    let train = |number, target: &str| {
        (0..6)
            .map(|n| PacketToRelease { train: number, ..datagram(n, begin, n * 10, target) })
            .collect::<Vec<_>>()
    };
    // The target has a burst of four.
    client.submit_packets(train(1, "127.7.0.2")).unwrap();
    assert_eq!(outcomes(&reports(&mut client, 6)), [PacketOutcome::OverLimit; 6]);
    let mut spoiled = train(2, "127.0.0.1");
    spoiled[3].bytes[12] = 9;
    client.submit_packets(spoiled).unwrap();
    let spoiled = outcomes(&reports(&mut client, 6));
    assert_eq!(spoiled.iter().filter(|outcome| **outcome == PacketOutcome::TrainRefused).count(), 5);
    client.submit_packets(train(3, "127.0.0.1")).unwrap();
    assert_eq!(outcomes(&reports(&mut client, 6)), [PacketOutcome::Sent; 6]);
    assert_eq!(service.released.lock().unwrap().len(), 6);
}

#[test]
fn unsent_frames_are_reported_as_failed() {
    let service = TestedService::start(100);
    let mut client = service.client();
    let begin = soon();
    client
        .submit_packets(vec![datagram(1, begin, 0, "127.0.0.1"), datagram(2, begin, 100, "127.0.0.66")])
        .unwrap();
    assert_eq!(outcomes(&reports(&mut client, 2)), [PacketOutcome::Sent, PacketOutcome::Failed]);
    client.submit_packets(vec![datagram(3, soon(), 0, "127.0.0.1")]).unwrap();
    assert_eq!(outcomes(&reports(&mut client, 1)), [PacketOutcome::Sent], "the service goes on");
}

#[test]
fn cancelled_packets_do_not_leave() {
    let service = TestedService::start(100);
    let mut client = service.client();
    let begin = soon();
    let late =
        |train| PacketToRelease { train, ..datagram(u64::from(train), begin, 60_000_000, "127.0.0.1") };
    let (batch, _) = client.submit_packets(vec![late(1), late(2), late(3)]).unwrap();
    client.submit_packets(vec![late(4)]).unwrap();
    assert_eq!(client.cancel_packets(batch, 2).unwrap(), 1);
    assert_eq!(client.cancel_packets(batch, 0).unwrap(), 2);
    assert_eq!(client.query_status().unwrap().queued, 1);
    assert_eq!(outcomes(&reports(&mut client, 3)), [PacketOutcome::Cancelled; 3]);
    drop(client);
    assert!(service.released.lock().unwrap().is_empty());
}

#[test]
fn packets_sent_during_shutdown_are_reported() {
    let service = TestedService::start(1_000);
    let mut client = service.client();
    let begin = soon();
    client.submit_packets((0..80).map(|n| datagram(n, begin, n * 1_000, "127.0.0.1")).collect()).unwrap();
    service.wait_for(20);
    service.stop.store(true, Ordering::Relaxed);
    let all = outcomes(&reports(&mut client, 80));
    let sent = all.iter().filter(|outcome| **outcome == PacketOutcome::Sent).count();
    assert!(
        sent >= 20 && all.iter().all(|o| matches!(o, PacketOutcome::Sent | PacketOutcome::Ended)),
        "{all:?}"
    );
    assert_eq!(service.released.lock().unwrap().len(), sent);
}

#[test]
fn the_end_of_the_service_is_reported() {
    let service = TestedService::start(5);
    let mut client = service.client();
    client.submit_packets(vec![datagram(1, soon(), 60_000_000, "127.0.0.1")]).unwrap();
    service.stop.store(true, Ordering::Relaxed);
    assert_eq!(outcomes(&reports(&mut client, 1)), [PacketOutcome::Ended]);
    assert!(matches!(client.next_event(SOON), Err(ReleaseError::Closed)));
}
