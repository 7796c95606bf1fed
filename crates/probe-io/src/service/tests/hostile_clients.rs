//! Clients that want more than they may.

use super::*;
use crate::service::admission::{RefusedConnection, client_rights};
use crate::service::connection::ClientRights;
use packetrig_release::message::{ClientMessage, ErrorPosition, ProtocolErrorCode, ServiceMessage};
use packetrig_sys::caps::ThreadRights;

#[test]
fn hostile_client_cannot_send_forbidden_packets() {
    let service = TestedService::start(100);
    let mut client = service.client();
    let begin = soon();
    let good = || datagram(0, begin, 0, "127.0.0.1");
    let framed = |bytes| PacketToRelease { kind: PacketKind::Frame, bytes, ..good() };
    let mut foreign_mac = frame("127.0.0.1", "127.0.0.1");
    foreign_mac[0] = 0xff;
    let mut too_long = good();
    too_long.bytes = vec![0; 65_000 - 32];
    let cases = [
        (datagram(0, begin, 0, "127.0.0.9"), PacketOutcome::NotPermitted),
        (datagram(0, begin, 0, "192.0.2.1"), PacketOutcome::NotPermitted),
        (datagram(0, begin, 0, "255.255.255.255"), PacketOutcome::NotPermitted),
        (framed(frame("192.0.2.7", "127.0.0.1")), PacketOutcome::WrongSource),
        (framed(foreign_mac), PacketOutcome::WrongSource),
        (framed(vec![0; 60]), PacketOutcome::Malformed),
        (too_long, PacketOutcome::Malformed),
        (datagram(0, begin, 200_000_000, "127.0.0.1"), PacketOutcome::TooFarAhead),
        (
            PacketToRelease { latest: 1, ..datagram(0, MonoTime::from_nanos(5), 0, "127.0.0.1") },
            PacketOutcome::Late,
        ),
    ];
    let count = cases.len() as u64;
    for (packet, outcome) in cases {
        let (_, accepted) = client.submit_packets(vec![packet]).unwrap();
        assert_eq!((accepted.accepted, accepted.refused), (0, 1), "{outcome:?}");
        assert_eq!(outcomes(&reports(&mut client, 1)), [outcome]);
    }
    client.submit_packets(vec![framed(frame("127.0.0.1", "127.0.0.1"))]).unwrap();
    assert_eq!(service.wait_for(1).len(), 1, "only the good one left");
    drop(client);
    assert_eq!(service.end()[0].counts.refused.values().sum::<u64>(), count);
}

#[test]
fn target_limits_hold_for_overdue_packets() {
    let service = TestedService::start(100);
    let mut client = service.client();
    // At 20 packets per second, 50 packets would have been allowed in the seconds that have passed.
    let past = now() - Nanos::from_secs(5);
    let packets = (0..50).map(|n| datagram(n, past, n * 50_000, "127.7.0.1")).collect();
    client.submit_packets(packets).unwrap();
    let reports = reports(&mut client, 50);
    let sent = reports.iter().filter(|report| report.outcome == PacketOutcome::Sent).count();
    assert!((4..=8).contains(&sent), "{sent}");
    assert!(reports.iter().all(|r| matches!(r.outcome, PacketOutcome::Sent | PacketOutcome::OverLimit)));
    assert_eq!(service.released.lock().unwrap().len(), sent);
}

#[test]
fn sparse_overdue_train_is_limited_as_a_whole() {
    let service = TestedService::start(1_000);
    let mut client = service.client();
    // Each packet would be a burst of its own, and all are overdue.
    let past = now() - Nanos::from_secs(5);
    let train: Vec<_> =
        (0..50).map(|n| PacketToRelease { train: 1, ..datagram(n, past, n * 2_000, "127.7.0.3") }).collect();
    client.submit_packets(train).unwrap();
    assert_eq!(outcomes(&reports(&mut client, 50)), [PacketOutcome::OverLimit; 50]);
    assert!(service.released.lock().unwrap().is_empty());
}

#[test]
fn unknown_user_is_refused_by_service() {
    let options = ServiceOptions {
        allowed: vec![AllowedUser { user: 4_242, priority: 3 }],
        quota: ClientQuota { packets: 1, bytes: 1 },
        horizon: Nanos::from_secs(1),
        tolerance: Nanos::ZERO,
        least_limits: TargetLimits::DEFAULT_LIMITS,
    };
    let own = ThreadRights::current().user;
    assert_eq!(client_rights(own, &options), Some(ClientRights { priority: 7, is_trusted: true }));
    assert_eq!(client_rights(4_242, &options), Some(ClientRights { priority: 3, is_trusted: false }));
    assert_eq!(client_rights(4_243, &options), None);
    let directory = TemporaryDirectory::new();
    let path = directory.0.join("socket");
    let listener = SeqpacketListener::listen_at(&path, SocketAccess::AllUsers).unwrap();
    let client = std::thread::spawn(move || ReleaseClient::connect(&path, "stranger", 0));
    let stream = listener.accept_connection_within(10_000_000_000).unwrap().unwrap();
    let refused = RefusedConnection::new(stream, ProtocolErrorCode::NotAllowed, "user 7 may not".to_owned());
    while refused.is_open() {
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(refused);
    let told = client.join().unwrap().unwrap_err();
    assert!(matches!(&told, ReleaseError::Refused { text, .. } if text == "user 7 may not"), "{told}");
}

#[test]
fn messages_that_break_the_protocol_end_the_connection() {
    let service = TestedService::start(10);
    let submit = ClientMessage::Submit { batch: 1, packets: vec![datagram(1, soon(), 0, "127.0.0.1")] };
    let version = ClientMessage::Hello { id: 3, version: 9, priority: 0, name: String::new() };
    for (message, code) in [(b"garbage".to_vec(), 1), (submit.to_bytes(), 1), (version.to_bytes(), 2)] {
        let stream = SeqpacketStream::connect_to(&service.socket).unwrap();
        assert!(stream.send_message(&message).unwrap());
        let told = message_from(&stream);
        assert!(
            matches!(told, ServiceMessage::Error { code: found, closes: true, .. } if found as u16 == code)
        );
        stream.wait_until_ready(false, 10_000_000_000).unwrap();
        assert_eq!(stream.receive_message(&mut [0; 8]).unwrap(), ReceivedMessage::Closed);
    }
    assert!(service.released.lock().unwrap().is_empty());
}

/// The next message of the service.
fn message_from(stream: &SeqpacketStream) -> ServiceMessage {
    stream.wait_until_ready(false, 10_000_000_000).unwrap();
    let mut buffer = [0; 1_000];
    let ReceivedMessage::Message(length) = stream.receive_message(&mut buffer).unwrap() else {
        panic!("the service says something")
    };
    ServiceMessage::from_bytes(&buffer[..length]).unwrap()
}

#[test]
fn message_error_names_packet_and_field() {
    let service = TestedService::start(10);
    let packets = (0..3).map(|n| datagram(n, soon(), 0, "127.0.0.1")).collect();
    let mut submit = ClientMessage::Submit { batch: 9, packets }.to_bytes();
    // A packet has 32 + 40 bytes here; `kind` is at 30.
    let kind = 24 + 2 * 72 + 30;
    submit[kind] = 9;
    let stream = SeqpacketStream::connect_to(&service.socket).unwrap();
    let hello = ClientMessage::Hello { id: 1, version: 1, priority: 0, name: "wrong".into() };
    assert!(stream.send_message(&hello.to_bytes()).unwrap() && stream.send_message(&submit).unwrap());
    assert!(matches!(message_from(&stream), ServiceMessage::Welcome { .. }));
    let ServiceMessage::Error { id, code, text, place, .. } = message_from(&stream) else {
        panic!("the message is refused")
    };
    assert_eq!((id, code), (9, ProtocolErrorCode::BrokenMessage));
    assert_eq!(place, Some(ErrorPosition { packet: Some(2), byte: 198 }));
    assert_eq!(text, "`kind` of packet 2 (byte 198 of the message) is missing or wrong");
}

#[test]
fn refused_packet_report_names_wrong_field() {
    let service = TestedService::start(100);
    let mut client = service.client();
    let begin = soon();
    let changed = |at: usize, to: u8| {
        let mut packet = datagram(0, begin, 0, "127.0.0.1");
        packet.bytes[at] = to;
        packet
    };
    let good = || datagram(0, begin, 0, "127.0.0.1");
    let frame_of = |bytes| PacketToRelease { kind: PacketKind::Frame, bytes, ..good() };
    let cases = [
        (changed(10, 7), 32 + 10, "the checksum of IPv4"),
        (changed(0, 0x46), 32, "options"),
        (datagram(0, begin, 0, "127.0.0.9"), 32 + 16, "the target"),
        (frame_of(frame("192.0.2.7", "127.0.0.1")), 32 + 14 + 12, "the source"),
        (datagram(0, begin, 200_000_000, "127.0.0.1"), 8, "release_at"),
    ];
    // A good one before them: the number is that of the packet in the batch.
    let batch: Vec<_> =
        std::iter::once(good()).chain(cases.iter().map(|(packet, ..)| packet.clone())).collect();
    let batch = (0..).zip(batch).map(|(cookie, packet)| PacketToRelease { cookie, ..packet }).collect();
    client.submit_packets(batch).unwrap();
    let all = reports(&mut client, cases.len() + 1);
    assert_eq!((all[0].outcome, all[0].fault), (PacketOutcome::Sent, None));
    for ((number, report), (_, byte, what)) in (1..).zip(&all[1..]).zip(&cases) {
        assert_eq!(report.fault, Some(PacketFault { packet: number, byte: Some(*byte) }), "{what}");
    }
}

#[test]
fn a_client_learns_what_it_may_do() {
    let service = TestedService::start(100);
    let mut client = service.client();
    let facts = client.facts();
    assert_eq!((facts.train_packets, facts.train_ns, facts.frame_bytes), (256, 100_000_000, 1_000));
    // The smallest of both networks of the permit.
    assert_eq!((facts.limits.packets_per_s, facts.limits.burst, facts.limits.most), (20, 4, 5_000));
    let wide = client.query_limits("127.0.0.1".parse().unwrap()).unwrap().unwrap();
    assert_eq!(
        (wide.packets_per_s, wide.bits_per_s, wide.burst, wide.most),
        (100_000, 1_000_000_000, 2_000, 5_000)
    );
    assert_eq!(client.query_limits("127.7.0.1".parse().unwrap()).unwrap().unwrap().burst, 4);
    for target in ["127.0.0.9", "192.0.2.1", "::1"] {
        let limits = client.query_limits(target.parse().unwrap()).unwrap();
        assert_eq!(limits.is_some(), target == "::1", "{target}");
    }
}

#[test]
fn reconnecting_does_not_reset_total_packet_limit() {
    let service = TestedService::start(5_000);
    let outcomes_of = |port: u16, count: u64| {
        let mut client = service.client();
        let mut all = Vec::new();
        for part in (0..count).collect::<Vec<_>>().chunks(500) {
            let packets = part.iter().map(|n| from_port(port, datagram(*n, now(), 0, "127.0.0.3"))).collect();
            client.submit_packets(packets).unwrap();
            all.extend(outcomes(&reports(&mut client, part.len())));
        }
        all
    };
    // `most` is 5000.
    assert_eq!(outcomes_of(7, 5_000), [PacketOutcome::Sent; 5_000]);
    assert_eq!(outcomes_of(8, 10), [PacketOutcome::OverLimit; 10]);
}

/// Refused packets that the service has handled after a flood of whole batches on this many connections, at least for this long.
fn handled_in_a_flood(service: &TestedService, connections: usize, lasts: Duration) -> (u64, u64) {
    let packets: Vec<_> = (0..200).map(|n| datagram(n, MonoTime::from_nanos(1), 0, "127.0.0.9")).collect();
    let batch = ClientMessage::Submit { batch: 1, packets }.to_bytes();
    let hello = ClientMessage::Hello { id: 1, version: 1, priority: 0, name: "flood".into() }.to_bytes();
    let streams: Vec<_> =
        (0..connections).map(|_| SeqpacketStream::connect_to(&service.socket).unwrap()).collect();
    let began = clock::monotonic_ns();
    let mut refused = 0;
    let mut buffer = vec![0; 65_536];
    for stream in &streams {
        assert!(stream.send_message(&hello).unwrap());
    }
    while u128::from(clock::monotonic_ns() - began) < lasts.as_nanos() {
        for stream in &streams {
            let _ = stream.send_message(&batch).unwrap();
            while let ReceivedMessage::Message(length) = stream.receive_message(&mut buffer).unwrap() {
                if let Some(ServiceMessage::Accepted { refused: more, .. }) =
                    ServiceMessage::from_bytes(&buffer[..length])
                {
                    refused += u64::from(more);
                }
            }
        }
    }
    (refused, clock::monotonic_ns() - began)
}

#[test]
fn refused_packet_flood_is_bounded_by_allowance() {
    let service = TestedService::start(100);
    let (refused, ns) = handled_in_a_flood(&service, 1, Duration::from_secs(3));
    // A burst of 10 000 units, 5000 a second, and the last batch. An upper bound: a slow machine handles fewer.
    let most = 10_000 + 5_000 * ns / 1_000_000_000 + 205;
    assert!(refused > 0 && refused <= most, "{refused} of {most}");
    // Others are served meanwhile, also those of the same user.
    let mut client = service.client();
    client.submit_packets(vec![datagram(1, soon(), 0, "127.0.0.1")]).unwrap();
    assert_eq!(outcomes(&reports(&mut client, 1)), [PacketOutcome::Sent]);
}

#[test]
fn more_connections_give_user_no_more_work() {
    let service = TestedService::start(100);
    let (refused, ns) = handled_in_a_flood(&service, 16, Duration::from_secs(4));
    // Their used-up allowance does not keep other users from the service.
    let mut client = service.client();
    client.submit_packets(vec![datagram(1, soon(), 0, "127.0.0.1")]).unwrap();
    assert_eq!(outcomes(&reports(&mut client, 1)), [PacketOutcome::Sent]);
    // Each connection gets a little beyond what the user gets.
    let most = 40_000 + (20_000 + 16 * 500) * ns / 1_000_000_000 + 16 * 405;
    assert!(refused > 0 && refused <= most, "{refused} of {most}");
}

#[test]
fn reconnecting_client_is_bounded_by_allowance() {
    let service = TestedService::start(100);
    let hello = ClientMessage::Hello { id: 1, version: 1, priority: 0, name: "again".into() }.to_bytes();
    let began = clock::monotonic_ns();
    let mut welcomed: u64 = 0;
    while clock::monotonic_ns() - began < 3_000_000_000 {
        let stream = SeqpacketStream::connect_to(&service.socket).unwrap();
        if stream.send_message(&hello).unwrap_or(false) {
            stream.wait_until_ready(false, 20_000_000).unwrap();
            let came = stream.receive_message(&mut [0; 1_000]);
            welcomed += u64::from(matches!(came, Ok(ReceivedMessage::Message(152))));
        }
    }
    let most = 200 + 100 * (clock::monotonic_ns() - began) / 1_000_000_000 + 1;
    assert!(welcomed > 0 && welcomed <= most, "{welcomed} of {most}");
}
