use super::packet::{AUTHENTICATED_PACKET_BYTES, UNAUTHENTICATED_PACKET_BYTES};
use super::reflector::{ArrivedRequest, ReflectorSettings};
use super::tlv::{FollowUp, MeasuredCounts, ServiceClass, TlvKind, flags};
use super::*;
use crate::answer::{self, PathFailure};
use crate::frame::{self, ProbeFrameEndpoints};
use crate::method::{ProbeMethod, ProbeReply, ReplyMeaning};
use packetrig_units::{MonoTime, Nanos};
use proptest::prelude::*;
use std::net::SocketAddr;

const NOW: u64 = 1_795_000_000_123_456_789;

fn key() -> SessionKey {
    SessionKey::from_text("000102030405060708090a0b0c0d0e0f1011\n").unwrap()
}

fn request(sequence: u32, format: TimeFormat) -> StampRequest {
    StampRequest {
        sequence,
        sent: format.encode_time(NOW),
        estimate: ErrorEstimate::from_error(1_000, format, true),
        session: 7,
    }
}

fn settings(key: Option<SessionKey>) -> ReflectorSettings {
    ReflectorSettings { key, is_stateful: true, interval: Nanos::ZERO, burst: 1, synchronised_ns: None }
}

fn arrived(bytes: &[u8], at: u64) -> ArrivedRequest<'_> {
    ArrivedRequest {
        bytes,
        from: "192.0.2.1:40000".parse::<SocketAddr>().unwrap(),
        to_port: STAMP_PORT,
        at: MonoTime::from_nanos(at),
        realtime_ns: NOW + at,
        bound_ns: 500,
        hops: Some(63),
        class: Some(0xb9),
    }
}

fn reflect(reflector: &mut StampReflector, bytes: &[u8], at: u64) -> Result<Vec<u8>, ReflectionRefusal> {
    let mut out = Vec::new();
    let ready = reflector.reflect_request(&arrived(bytes, at), &mut out)?;
    reflector.finish_reflection(&ready, NOW + at + 50, &mut out);
    reflector.record_departure_stamp(&ready, NOW + at + 70, 2);
    Ok(out)
}

#[test]
fn session_digest_matches_rfc4231_vectors() {
    // RFC 4231, test case 2 would need a key of four bytes; test case 1 has twenty.
    let key = SessionKey::new(vec![0x0b; 20]).unwrap();
    let expected =
        [0xb0, 0x34, 0x4c, 0x61, 0xd8, 0xdb, 0x38, 0x53, 0x5c, 0xa8, 0xaf, 0xce, 0xaf, 0x0b, 0xf1, 0x2b];
    assert_eq!(key.compute_digest(&[b"Hi ", b"There"]), expected);
    assert!(
        key.is_digest_right(&[b"Hi There"], &expected) && !key.is_digest_right(&[b"Hi there"], &expected)
    );
    assert!(!key.is_digest_right(&[b"Hi There"], &expected[..15]));
    // Test case 6: longer than a block.
    let key = SessionKey::new(vec![0xaa; 131]).unwrap();
    let text = b"Test Using Larger Than Block-Size Key - Hash Key First";
    assert_eq!(key.compute_digest(&[text])[..4], [0x60, 0xe4, 0x31, 0x59]);
    assert!(SessionKey::from_text("0102").is_none() && SessionKey::from_text(&"zz".repeat(20)).is_none());
}

#[test]
fn fields_are_where_the_rfcs_have_them() {
    let mut packet = Vec::new();
    request(0x0102_0304, TimeFormat::Ptp).write_packet(None, &mut packet);
    assert_eq!((packet.len(), &packet[..4]), (UNAUTHENTICATED_PACKET_BYTES, &[1, 2, 3, 4][..]));
    assert_eq!(packet[4..8], 1_795_000_000_u32.to_be_bytes());
    assert_eq!(packet[8..12], 123_456_789_u32.to_be_bytes());
    assert_eq!((packet[12] >> 6, &packet[14..16]), (3, &[0, 7][..]));
    assert!(packet[16..].iter().all(|byte| *byte == 0));
    request(5, TimeFormat::Ntp).write_packet(Some(&key()), &mut packet);
    assert_eq!(packet.len(), AUTHENTICATED_PACKET_BYTES);
    assert_eq!(packet[16..20], (1_795_000_000_u32.wrapping_add(2_208_988_800)).to_be_bytes());
    assert_eq!(packet[96..], key().compute_digest(&[&packet[..96]]));
}

#[test]
fn a_request_is_reflected_with_all_it_said() {
    for key in [None, Some(key())] {
        for format in [TimeFormat::Ntp, TimeFormat::Ptp] {
            let mut reflector = StampReflector::new(settings(key.clone()));
            for sequence in [3, 5] {
                let mut packet = Vec::new();
                request(sequence, format).write_packet(key.as_ref(), &mut packet);
                let back = reflect(&mut reflector, &packet, u64::from(sequence) * 1000).unwrap();
                assert_eq!(back.len(), packet.len());
                let read = StampReflection::read_packet(&back, key.as_ref()).unwrap();
                // The reflector counts: what is missing before was lost on the way to it.
                assert_eq!((read.sequence, read.hops), (u32::from(sequence == 5), 63));
                assert_eq!(read.request, request(sequence, format));
                assert_eq!(format.decode_time(read.received), Some(NOW + u64::from(sequence) * 1000));
                assert_eq!(format.decode_time(read.sent), Some(NOW + u64::from(sequence) * 1000 + 50));
                assert!(read.estimate.error_ns().unwrap() >= 500 && !read.estimate.is_synchronised);
            }
        }
    }
}

#[test]
fn requested_tlvs_are_filled_in_by_reflector() {
    let mut reflector = StampReflector::new(settings(Some(key())));
    let mut back = Vec::new();
    for sequence in 0..2 {
        let mut packet = Vec::new();
        request(sequence, TimeFormat::Ptp).write_packet(Some(&key()), &mut packet);
        tlv::push_tlv(&mut packet, TlvKind::FollowUpTelemetry, &[0; 16]);
        tlv::push_tlv(
            &mut packet,
            TlvKind::DirectMeasurement,
            &MeasuredCounts { sent: 9, ..MeasuredCounts::default() }.to_value(),
        );
        tlv::push_tlv(
            &mut packet,
            TlvKind::ClassOfService,
            &ServiceClass { wanted: 10, ..ServiceClass::default() }.to_value(),
        );
        tlv::push_tlv(&mut packet, TlvKind::Location, &[0; 4]);
        tlv::push_tlv(&mut packet, TlvKind::TimestampInformation, &[0; 4]);
        tlv::push_tlv(&mut packet, TlvKind::Other(200), &[1, 2, 3]);
        tlv::push_tlv(&mut packet, TlvKind::AccessReport, &[1, 2, 3]);
        tlv::push_digest(&mut packet, AUTHENTICATED_PACKET_BYTES, &key());
        back = reflect(&mut reflector, &packet, 1_000 + u64::from(sequence)).unwrap();
        assert_eq!(back.len(), packet.len());
        assert!(tlv::has_valid_digest(&back, AUTHENTICATED_PACKET_BYTES, &key()));
    }
    let found: Vec<_> = tlv::read_tlvs(&back[AUTHENTICATED_PACKET_BYTES..]).collect();
    let follow_up = FollowUp::from_value(found[0].value).unwrap();
    assert_eq!(
        follow_up,
        FollowUp { sequence: 0, sent: TimeFormat::Ptp.encode_time(NOW + 1_070), method: 2 }
    );
    assert_eq!(
        MeasuredCounts::from_value(found[1].value),
        Some(MeasuredCounts { sent: 9, received: 2, reflected: 2 })
    );
    let class = ServiceClass { wanted: 10, arrived: 46, ecn: 1, is_refused: true };
    assert_eq!(ServiceClass::from_value(found[2].value), Some(class));
    assert_eq!(found[3].value, [STAMP_PORT.to_be_bytes(), 40_000_u16.to_be_bytes()].concat());
    assert_eq!(found[4].value, [5, 2, 5, 2]);
    let marks: Vec<u8> = found.iter().map(|tlv| tlv.flags).collect();
    assert_eq!(marks, [0, 0, 0, 0, 0, flags::UNRECOGNIZED_FLAG, flags::MALFORMED_FLAG, 0]);
}

#[test]
fn tampered_or_repeated_request_is_refused() {
    let mut reflector = StampReflector::new(settings(Some(key())));
    let mut packet = Vec::new();
    request(1, TimeFormat::Ptp).write_packet(Some(&key()), &mut packet);
    for at in 0..packet.len() {
        let mut tampered = packet.clone();
        tampered[at] ^= 1;
        assert_eq!(reflect(&mut reflector, &tampered, 5), Err(ReflectionRefusal::Unreadable), "byte {at}");
    }
    assert!(reflect(&mut reflector, &packet, 5).is_ok());
    assert_eq!(reflect(&mut reflector, &packet, 6), Err(ReflectionRefusal::Repeated));
    let mut unsealed = Vec::new();
    request(2, TimeFormat::Ptp).write_packet(Some(&key()), &mut unsealed);
    tlv::push_tlv(&mut unsealed, TlvKind::ExtraPadding, &[0; 9]);
    assert_eq!(reflect(&mut reflector, &unsealed, 7), Err(ReflectionRefusal::Unsealed));
    // RFC 8972 lets padding, and nothing else, stand behind the digest.
    let mut padded = Vec::new();
    request(3, TimeFormat::Ptp).write_packet(Some(&key()), &mut padded);
    tlv::push_digest(&mut padded, AUTHENTICATED_PACKET_BYTES, &key());
    tlv::push_tlv(&mut padded, TlvKind::ExtraPadding, &[0; 9]);
    assert_eq!(reflect(&mut reflector, &padded, 8).map(|back| back.len()), Ok(padded.len()));
    tlv::push_tlv(&mut padded, TlvKind::Location, &[0; 16]);
    assert_eq!(reflect(&mut reflector, &padded, 9), Err(ReflectionRefusal::Unsealed));
    // Out of order is not repeated; too old may be.
    let mut at = |sequence| {
        request(sequence, TimeFormat::Ptp).write_packet(Some(&key()), &mut packet);
        reflect(&mut reflector, &packet, 8).err()
    };
    assert_eq!(
        [at(70), at(69), at(69), at(6), at(7)],
        [None, None, Some(ReflectionRefusal::Repeated), Some(ReflectionRefusal::Repeated), None]
    );
}

#[test]
fn a_sender_that_hurries_is_not_answered() {
    let interval = Nanos::from_millis(1);
    let mut reflector = StampReflector::new(ReflectorSettings { interval, ..settings(None) });
    let mut packet = Vec::new();
    request(0, TimeFormat::Ptp).write_packet(None, &mut packet);
    assert!(reflect(&mut reflector, &packet, 1_000_000).is_ok());
    assert_eq!(reflect(&mut reflector, &packet, 1_999_999), Err(ReflectionRefusal::TooSoon));
    assert!(reflect(&mut reflector, &packet, 2_000_000).is_ok());
    // A burst gets as many reflections as are allowed at once, and one more for each interval.
    let mut reflector = StampReflector::new(ReflectorSettings { interval, burst: 3, ..settings(None) });
    let mut answered = |at: u64| reflect(&mut reflector, &packet, at).is_ok();
    assert_eq!([0, 0, 0, 0].map(|after| answered(5_000_000 + after)), [true, true, true, false]);
    assert_eq!(
        [999_999, 1_000_000, 1_000_001].map(|after| answered(5_000_000 + after)),
        [false, true, false]
    );
    assert_eq!([0, 0, 0, 0].map(|after| answered(50_000_000 + after)), [true, true, true, false]);
    // Too short to be one: nothing, whoever asks.
    assert_eq!(
        reflect(&mut reflector, &packet[..UNAUTHENTICATED_PACKET_BYTES - 1], 9_000_000),
        Err(ReflectionRefusal::Unreadable)
    );
}

fn ends() -> ProbeFrameEndpoints {
    let (source, target) = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
    ProbeFrameEndpoints { own_mac: [2; 6], next_mac: [4; 6], source, target, class: 0 }
}

fn sender(key: Option<SessionKey>) -> StampSender {
    let session = sender::StampSenderSettings {
        ports: (40_000, STAMP_PORT),
        key,
        format: TimeFormat::Ptp,
        number: 7,
        realtime_offset_ns: i64::try_from(NOW).unwrap(),
        synchronised_ns: None,
        follow_up: true,
    };
    StampSender::new(ends(), session)
}

/// Fields that a sender reads of a reflection.
fn heard(sender: &mut StampSender, payload: &[u8]) -> Option<ProbeReply> {
    let ends = ends();
    let back = ProbeFrameEndpoints { source: ends.target, target: ends.source, ..ends };
    let mut frame = Vec::new();
    back.write_udp_frame(STAMP_PORT, 40_000, payload, &mut frame);
    sender.read_reply(&answer::read_answer(&frame, false).unwrap())
}

#[test]
fn sender_and_reflector_agree_on_directional_loss() {
    for key in [None, Some(key())] {
        let mut reflector = StampReflector::new(settings(key.clone()));
        let mut sender = sender(key);
        let mut replies = 0;
        for number in 0..10 {
            let mut frame = Vec::new();
            sender.write_probe(number, MonoTime::from_nanos(1_000 + u64::from(number)), 300, &mut frame);
            assert_eq!(frame.len(), 300);
            // Two are lost on the way there, one on the way back.
            if number == 2 || number == 6 {
                continue;
            }
            let back = reflect(&mut reflector, &frame[42..], 5_000 + u64::from(number)).unwrap();
            if number == 4 {
                continue;
            }
            let reply = heard(&mut sender, &back).unwrap();
            assert_eq!((reply.number, reply.is_sound), (number, true));
            let far = reply.far_arrival.unwrap();
            assert!(far.lo <= NOW + 5_000 + u64::from(number) && far.hi >= NOW + 5_000 + u64::from(number));
            replies += 1;
        }
        let told = sender.build_session_facts();
        assert_eq!((told.is_stateful, told.lost_there, told.lost_back), (true, Some(2), Some(1)));
        assert_eq!((replies, told.invalid.total()), (7, 0));
        // No reflection reports the departure of the last one, and the departure of the lost one belongs to no probe.
        assert_eq!(sender.follow_ups().keys().copied().collect::<Vec<_>>(), [0, 1, 5, 7, 8]);
        assert_eq!(sender.follow_ups()[&8], NOW + 5_008 + 70);
    }
}

#[test]
fn reordering_and_copies_distort_no_directional_loss() {
    let mut reflector = StampReflector::new(settings(None));
    let mut sender = sender(None);
    let mut requests: Vec<Vec<u8>> = Vec::new();
    for number in 0..10 {
        let mut frame = Vec::new();
        sender.write_probe(number, MonoTime::from_nanos(u64::from(number)), 100, &mut frame);
        requests.push(frame[42..].to_vec());
    }
    // The first comes twice, two change places, and the last is lost on the way there.
    for number in [0, 0, 1, 2, 4, 3, 5, 6, 7, 8] {
        let back = reflect(&mut reflector, &requests[number], 5).unwrap();
        assert!(heard(&mut sender, &back).is_some());
    }
    let told = sender.build_session_facts();
    assert_eq!((told.is_stateful, told.lost_there, told.lost_back), (true, Some(1), Some(0)));
}

#[test]
fn a_reflector_that_begins_anew_does_no_harm() {
    let mut sender = sender(None);
    for begin in [0, 5] {
        let mut reflector = StampReflector::new(settings(None));
        for number in begin..begin + 5 {
            let mut frame = Vec::new();
            sender.write_probe(number, MonoTime::from_nanos(u64::from(number)), 100, &mut frame);
            let back = reflect(&mut reflector, &frame[42..], 5).unwrap();
            assert!(heard(&mut sender, &back).is_some());
        }
    }
    let told = sender.build_session_facts();
    assert_eq!((told.is_stateful, told.lost_there, told.lost_back), (true, Some(5), Some(0)));
}

#[test]
fn far_clock_follows_utc_in_every_reflection() {
    let follows = |claims: &[Option<u64>]| {
        let mut sender = sender(None);
        for (number, synchronised_ns) in (0..).zip(claims) {
            let mut reflector = StampReflector::new(ReflectorSettings {
                synchronised_ns: *synchronised_ns,
                ..settings(None)
            });
            let mut frame = Vec::new();
            sender.write_probe(number, MonoTime::from_nanos(u64::from(number)), 100, &mut frame);
            let back = reflect(&mut reflector, &frame[42..], 5).unwrap();
            assert!(heard(&mut sender, &back).is_some());
        }
        sender.build_session_facts().is_far_synchronised
    };
    assert!(follows(&[Some(1_000); 2]) && !follows(&[]));
    assert!(!follows(&[None, Some(1_000)]) && !follows(&[Some(1_000), None]));
}

#[test]
fn reply_with_zero_session_number_is_accepted() {
    let mut reflector = StampReflector::new(settings(None));
    let mut sender = sender(None);
    let mut frame = Vec::new();
    sender.write_probe(3, MonoTime::from_nanos(1), 100, &mut frame);
    let mut back = reflect(&mut reflector, &frame[42..], 5).unwrap();
    // RFC 8972 puts the number in place of the zeros of RFC 8762.
    back[14..16].copy_from_slice(&[0, 0]);
    assert_eq!(heard(&mut sender, &back).unwrap().number, 3);
    back[14..16].copy_from_slice(&[0, 9]);
    assert_eq!(heard(&mut sender, &back), None, "another session");
}

#[test]
fn prohibited_or_unreachable_session_error_is_matched() {
    let (ends, mut sender) = (ends(), sender(None));
    let mut frame = Vec::new();
    for number in 0..3 {
        sender.write_probe(number, MonoTime::from_nanos(1), 100, &mut frame);
    }
    let mut told = |code: u8, quoted: usize| {
        let error = crate::method::error_about(ends, &frame[..frame::ETHERNET + quoted], 3, code);
        sender
            .read_reply(&answer::read_answer(&error, false).unwrap())
            .map(|reply| (reply.number, reply.says))
    };
    let prohibited = ReplyMeaning::Trouble(PathFailure::Prohibited);
    assert_eq!(told(13, 60), Some((2, prohibited)));
    assert_eq!(told(13, 28), Some((2, prohibited)), "a quote of the ports only");
    let unreachable = ReplyMeaning::Trouble(PathFailure::PortUnreachable);
    assert_eq!(told(3, 60), Some((2, unreachable)), "no reflector is there");
    assert_eq!(told(3, 28), None);
}

#[test]
fn an_invalid_reflection_says_why() {
    let mut reflector = StampReflector::new(settings(None));
    let mut sender = sender(None);
    let mut frame = Vec::new();
    sender.write_probe(0, MonoTime::from_nanos(1), 200, &mut frame);
    let back = reflect(&mut reflector, &frame[42..], 5).unwrap();
    // twampy's responder answers with 38 bytes, and base TWAMP has 41 without padding.
    for short in [41, 38] {
        assert_eq!(heard(&mut sender, &back[..short]), None);
    }
    let mut other = back.clone();
    other[14] ^= 1;
    assert_eq!(heard(&mut sender, &other), None);
    other[27] ^= 1;
    assert_eq!(heard(&mut sender, &other), None);
    let invalid = sender.build_session_facts().invalid;
    assert_eq!((invalid.too_short, invalid.shortest_bytes, invalid.needed_bytes), (2, Some(38), Some(44)));
    assert_eq!((invalid.never_sent, invalid.other_session, invalid.wrong_digest), (1, 1, 0));
    assert!(invalid.to_text().contains("2 too short (38 of the 44 bytes"), "{}", invalid.to_text());
}

#[test]
fn a_tampered_reflection_is_no_reply() {
    let mut reflector = StampReflector::new(settings(Some(key())));
    let mut sender = sender(Some(key()));
    let mut frame = Vec::new();
    sender.write_probe(0, MonoTime::from_nanos(1), 200, &mut frame);
    let back = reflect(&mut reflector, &frame[42..], 5).unwrap();
    // The flags of the digest's own TLV are what no digest covers.
    let flags = back.len() - tlv::HEADER - DIGEST_BYTES;
    for at in (0..back.len()).filter(|at| *at != flags) {
        let mut tampered = back.clone();
        tampered[at] ^= 0x10;
        assert_eq!(heard(&mut sender, &tampered), None, "byte {at}");
    }
    assert_eq!(sender.build_session_facts().invalid.total(), back.len() as u64 - 1);
    assert!(heard(&mut sender, &back).is_some());
}

proptest! {
    #[test]
    fn times_are_read_as_written(ns in 946_684_800_000_000_000_u64..2_085_000_000_000_000_000) {
        for format in [TimeFormat::Ntp, TimeFormat::Ptp] {
            prop_assert_eq!(format.decode_time(format.encode_time(ns)), Some(ns));
        }
    }

    #[test]
    fn an_estimate_holds_its_error(error in 0_u64..1 << 62, synchronised: bool) {
        let estimate = ErrorEstimate::from_error(error, TimeFormat::Ptp, synchronised);
        let read = ErrorEstimate::from_bits(estimate.to_bits());
        prop_assert_eq!(read, estimate);
        let said = read.error_ns().unwrap();
        // Two digits of eight bits are kept, rounded up at every step.
        prop_assert!(said >= error && said <= error + error / 64 + 2);
    }

    #[test]
    fn garbage_is_never_reflected_longer_and_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let mut reflector = StampReflector::new(settings(None));
        if let Ok(back) = reflect(&mut reflector, &bytes, 1) {
            prop_assert_eq!(back.len(), bytes.len());
        }
        let mut sealed = StampReflector::new(settings(Some(key())));
        prop_assert!(reflect(&mut sealed, &bytes, 1).is_err());
        let _ = tlv::read_tlvs(&bytes).count();
        let _ = StampReflection::read_packet(&bytes, None);
    }
}

#[test]
fn forgotten_sessions_are_removed_in_batches() {
    let interval = Nanos::from_millis(1);
    let mut reflector = StampReflector::new(ReflectorSettings { interval, ..settings(None) });
    let mut bytes = Vec::new();
    request(1, TimeFormat::Ntp).write_packet(None, &mut bytes);
    let mut rounds = 0;
    let mut before = 0;
    for number in 0..40_000_u32 {
        let from = (std::net::Ipv4Addr::from_bits(0xc612_0000 + number), 9_000).into();
        let arrived = ArrivedRequest { from, ..arrived(&bytes, u64::from(number) * 1_000) };
        assert!(reflector.reflect_request(&arrived, &mut Vec::new()).is_ok());
        let now = reflector.remembered_session_count();
        assert!(now <= 4_096);
        // All are looked through only when some are forgotten.
        rounds += u32::from(now <= before);
        before = now;
    }
    assert!(rounds > 0 && rounds <= 40_000 / 512, "{rounds}");
}
