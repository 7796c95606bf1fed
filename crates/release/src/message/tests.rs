use super::*;
use proptest::prelude::*;

fn packet(train: u32, clock: ReleaseClock, kind: PacketKind, bytes: Vec<u8>) -> PacketToRelease {
    PacketToRelease { cookie: 9, clock, release_at: u64::MAX - 3, latest: 17, train, kind, bytes }
}

#[test]
fn the_layout_is_that_of_the_page() {
    let hello = ClientMessage::Hello { id: 5, version: 1, priority: 3, name: "scamper".into() }.to_bytes();
    assert_eq!(hello.len(), 64);
    assert_eq!(hello[0..2], 1_u16.to_ne_bytes());
    assert_eq!(hello[4..8], 64_u32.to_ne_bytes());
    assert_eq!(hello[8..16], 5_u64.to_ne_bytes());
    assert_eq!(hello[16..20], 0x5052_5253_u32.to_ne_bytes());
    assert_eq!((hello[22], &hello[24..32]), (3, &b"scamper\0"[..]));
    let packets = vec![packet(7, ReleaseClock::Tai, PacketKind::IpPacket, vec![0xaa; 29])];
    let submit = ClientMessage::Submit { batch: 8, packets }.to_bytes();
    assert_eq!(submit.len(), 24 + 32 + 32);
    assert_eq!(submit[24..32], 9_u64.to_ne_bytes());
    assert_eq!(submit[48..52], 7_u32.to_ne_bytes());
    assert_eq!(submit[52..54], 29_u16.to_ne_bytes());
    assert_eq!(submit[54..57], [2, 11, 0xaa]);
    assert_eq!(submit[84..88], [0xaa, 0, 0, 0]);
    let stamp = PacketStamp { clock: StampClockName::Device(2), reader: StampReader::Hardware, lo: 1, hi: 2 };
    let report =
        PacketReport { wire: Some(stamp), ..PacketReport::new_unsent(1, 2, 3, 4, PacketOutcome::Clash) };
    let written = ServiceMessage::Report { reports: vec![report; 2] }.to_bytes();
    assert_eq!(written.len(), 24 + 2 * 160 + 2 * 8);
    assert_eq!(written[24 + 2 * 160..][..4], [0xff; 4], "no fault");
    assert_eq!(written[24 + 36..24 + 38], 8_u16.to_ne_bytes());
    assert_eq!(written[24 + 136..24 + 144], 1_u64.to_ne_bytes());
    assert_eq!(written[24 + 152..24 + 154], [2, 4]);
    let accepted = ServiceMessage::Accepted { batch: 1, accepted: 2, refused: 3, queued: 4 };
    assert_eq!(accepted.to_bytes().len(), 32);
    let error = ServiceMessage::Error {
        id: 1,
        code: ProtocolErrorCode::NotAllowed,
        closes: true,
        text: "x".repeat(300),
        place: Some(ErrorPosition { packet: Some(3), byte: 54 }),
    };
    let error = error.to_bytes();
    assert_eq!(error.len(), 232);
    assert_eq!(error[224..], [3_u32.to_ne_bytes(), 54_u32.to_ne_bytes()].concat());
    let target = ClientMessage::Target { id: 0, address: "192.0.2.1".parse().unwrap() }.to_bytes();
    assert_eq!((target.len(), &target[26..32]), (32, &[0xff, 0xff, 192, 0, 2, 1][..]));
    assert_eq!(ServiceMessage::State { id: 0, state: ClientStatus::default() }.to_bytes().len(), 64);
    assert_eq!(ClientMessage::Listen { id: 0, filter: None }.to_bytes().len(), 40);
    assert_eq!(ClientMessage::Cancel { id: 0, batch: 0, train: 0 }.to_bytes().len(), 32);
}

#[test]
fn service_message_survives_round_trip() {
    let facts = ServiceFacts {
        version: 1,
        mechanism: 3,
        interface: 4,
        interface_name: "eth1".into(),
        mac: [1, 2, 3, 4, 5, 6],
        mtu: 1_500,
        batch_packets: 6,
        quota_packets: 7,
        quota_bytes: 8,
        lead_ns: 9,
        tolerance_ns: 10,
        horizon_ns: 11,
        priority: 2,
        train_packets: 12,
        train_ns: 13,
        frame_bytes: 14,
        targets: 15,
        limits: PacketLimits { packets_per_s: 16, bits_per_s: 17, most: 18, burst: 19 },
    };
    let limits = facts.limits;
    let welcome = ServiceMessage::Welcome { id: 3, facts };
    assert_eq!(welcome.to_bytes().len(), 152);
    let arrival = PacketStamp { clock: StampClockName::Monotonic, reader: StampReader::Kernel, lo: 5, hi: 6 };
    let answer =
        ReceivedAnswer { arrival, lost: 1, lacks_checksum: true, frame_size: 60, bytes: b"hello".to_vec() };
    let all = [
        welcome,
        ServiceMessage::Answer(answer),
        ServiceMessage::Cancelled { id: 1, count: 5 },
        ServiceMessage::Listening { id: 77 },
        ServiceMessage::State {
            id: 1,
            state: ClientStatus { queued: 1, late: 2, ..ClientStatus::default() },
        },
        ServiceMessage::Error {
            id: 2,
            code: ProtocolErrorCode::CannotListen,
            closes: false,
            text: "é".into(),
            place: None,
        },
        ServiceMessage::Limits { id: 3, address: "2001:db8::1".parse().unwrap(), limits: None },
        ServiceMessage::Limits { id: 4, address: "192.0.2.1".parse().unwrap(), limits: Some(limits) },
    ];
    for message in all {
        let mut longer = message.to_bytes();
        assert_eq!(ServiceMessage::from_bytes(&longer).as_ref(), Some(&message));
        longer.extend([7; 8]);
        let length = u32::try_from(longer.len()).unwrap();
        longer[4..8].copy_from_slice(&length.to_ne_bytes());
        assert_eq!(ServiceMessage::from_bytes(&longer), Some(message), "a later service may add fields");
    }
}

#[test]
fn reports_of_all_outcomes_survive_round_trip() {
    for outcome in PacketOutcome::ALL {
        let fault = Some(PacketFault { packet: 7, byte: Some(42) });
        let whole = PacketReport::new_unsent(1, 2, 3, 4, *outcome);
        let reports = vec![PacketReport { fault, ..whole }, whole];
        let message = ServiceMessage::Report { reports };
        assert_eq!(ServiceMessage::from_bytes(&message.to_bytes()), Some(message));
    }
}

/// Numbers of a later service: a client of this version must go on.
#[test]
fn client_reads_numbers_of_later_service() {
    let stamp = PacketStamp { clock: StampClockName::Monotonic, reader: StampReader::Kernel, lo: 1, hi: 2 };
    let report =
        PacketReport { wire: Some(stamp), ..PacketReport::new_unsent(1, 2, 3, 4, PacketOutcome::Clash) };
    let bytes = ServiceMessage::Report { reports: vec![report] }.to_bytes();
    let read = |at: usize, to: u8| {
        let mut bytes = bytes.clone();
        bytes[24 + at] = to;
        match ServiceMessage::from_bytes(&bytes) {
            Some(ServiceMessage::Report { reports }) => reports[0],
            other => panic!("{other:?}"),
        }
    };
    let without_stamp = PacketReport { wire: None, ..report };
    assert_eq!([read(152, 9), read(153, 9)], [without_stamp; 2], "clock and source");
    let unknown = PacketReport { outcome: PacketOutcome::Unknown, ..report };
    assert_eq!((read(36, 77), unknown.outcome.name()), (unknown, "unknown"));
    let answer =
        ReceivedAnswer { arrival: stamp, lost: 0, lacks_checksum: true, frame_size: 60, bytes: vec![] };
    let mut bytes = ServiceMessage::Answer(answer.clone()).to_bytes();
    bytes[46..48].copy_from_slice(&7_u16.to_ne_bytes());
    assert_eq!(ServiceMessage::from_bytes(&bytes), Some(ServiceMessage::Answer(answer)));
    let text = "later".to_owned();
    let error =
        ServiceMessage::Error { id: 1, code: ProtocolErrorCode::Unknown, closes: true, text, place: None };
    let mut bytes = error.to_bytes();
    bytes[16..18].copy_from_slice(&99_u16.to_ne_bytes());
    assert_eq!(ServiceMessage::from_bytes(&bytes), Some(error));
}

#[test]
fn messages_that_break_the_rules_are_refused() {
    let good = ClientMessage::Submit {
        batch: 1,
        packets: vec![packet(0, ReleaseClock::Monotonic, PacketKind::Frame, vec![1; 61])],
    };
    let bytes = good.to_bytes();
    assert_eq!(ClientMessage::from_bytes(&bytes), Ok(good));
    // The reported place is the broken one.
    let broken_fields = [
        (0, "type", 0, None),
        (2, "reserved", 2, None),
        (4, "length", 4, None),
        (20, "reserved", 20, None),
        (54, "kind", 54, Some(0)),
        (55, "clock", 55, Some(0)),
        (bytes.len() - 1, "bytes or padding", 56, Some(0)),
    ];
    for (at, field, byte, packet) in broken_fields {
        let mut broken = bytes.clone();
        broken[at] ^= 0x40;
        assert_eq!(
            ClientMessage::from_bytes(&broken),
            Err(BrokenMessage { field, byte, packet }),
            "byte {at}"
        );
    }
    let mut more = bytes.clone();
    more[16] = 2;
    let missing = BrokenMessage { field: "cookie", byte: 120, packet: Some(1) };
    assert_eq!(
        ClientMessage::from_bytes(&more),
        Err(missing),
        "a second packet is announced and is not there"
    );
    assert_eq!(missing.to_string(), "`cookie` of packet 1 (byte 120 of the message) is missing or wrong");
    let empty = ClientMessage::from_bytes(&ClientMessage::Submit { batch: 1, packets: vec![] }.to_bytes());
    assert_eq!(empty, Err(BrokenMessage { field: "count", byte: 16, packet: None }));
    assert!(ClientMessage::from_bytes(&[]).is_err());
}

fn client_messages() -> impl Strategy<Value = ClientMessage> {
    let clock =
        prop::sample::select(vec![ReleaseClock::Realtime, ReleaseClock::Monotonic, ReleaseClock::Tai]);
    let kind = prop::sample::select(vec![PacketKind::Frame, PacketKind::IpPacket]);
    let bytes = prop::collection::vec(any::<u8>(), 0..100);
    let packets = (any::<u32>(), clock, kind, bytes).prop_map(|(t, c, k, b)| packet(t, c, k, b));
    let from = prop::option::of(any::<[u8; 4]>().prop_map(std::net::IpAddr::from))
        .prop_filter("zeros mean all", |from| from.is_none_or(|ip| !ip.is_unspecified()));
    let filter =
        (prop::option::of(1_u8..), prop::option::of(1_u16..), from, prop::option::of(1_u32..)).prop_map(
            |(protocol, own_port, from, most_bytes)| AnswerFilter { protocol, own_port, from, most_bytes },
        );
    prop_oneof![
        (any::<u64>(), any::<u8>(), "[a-zé]{0,10}").prop_map(|(id, priority, name)| ClientMessage::Hello {
            id,
            version: VERSION,
            priority,
            name
        }),
        (1_u64.., prop::collection::vec(packets, 1..5))
            .prop_map(|(batch, packets)| ClientMessage::Submit { batch, packets }),
        any::<(u64, u64, u32)>().prop_map(|(id, batch, train)| ClientMessage::Cancel { id, batch, train }),
        (any::<u64>(), prop::option::of(filter))
            .prop_map(|(id, filter)| ClientMessage::Listen { id, filter }),
        any::<u64>().prop_map(|id| ClientMessage::Status { id }),
        any::<(u64, [u8; 4])>()
            .prop_map(|(id, address)| ClientMessage::Target { id, address: address.into() }),
    ]
}

proptest! {
    #[test]
    fn client_message_survives_round_trip(message in client_messages()) {
        let bytes = message.to_bytes();
        prop_assert_eq!(bytes.len() % 8, 0);
        prop_assert_eq!(ClientMessage::from_bytes(&bytes), Ok(message));
    }

    #[test]
    fn garbage_and_damage_never_panic(message in client_messages(), at in any::<prop::sample::Index>(), to: u8, garbage: Vec<u8>) {
        let mut bytes = message.to_bytes();
        let at = at.index(bytes.len());
        bytes[at] = to;
        // Every accepted message is the same when it is written and read again.
        if let Ok(read) = ClientMessage::from_bytes(&bytes) {
            prop_assert_eq!(ClientMessage::from_bytes(&read.to_bytes()), Ok(read));
        }
        drop((ClientMessage::from_bytes(&garbage), ServiceMessage::from_bytes(&garbage), ServiceMessage::from_bytes(&bytes)));
    }
}
