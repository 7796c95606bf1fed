//! Virtual time: the measurement must equal the known behaviour of a link, to the frame and to the nanosecond.

mod bed;

use bed::{KEY, START, Trial, stream, template, timeline};
use packetrig_engine::chaos::ChaosLevel;
use packetrig_engine::gate::SendGate;
use packetrig_engine::sender::LATE_SENDING_GRACE;
use packetrig_engine::sim::{ClockSkew, FaultChance, LinkSpec};
use packetrig_engine::stream::{FrameSource, StreamSpec};
use packetrig_plan::timeline::{SendPattern, StreamTimeline};
use packetrig_units::{BitRate, FrameRate, Nanos};
use packetrig_wire::header::HeaderKind;
use packetrig_wire::tag::TagForm;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Bytes of Ethernet, IPv4 and UDP headers.
const UDP_HEADERS: usize = 42;

fn delayed(ns: u64) -> LinkSpec {
    LinkSpec { delay: Nanos::new(ns), ..LinkSpec::default() }
}

fn thousand(pps: u64) -> Vec<Arc<StreamSpec>> {
    vec![stream(0, 128, timeline(pps, SendPattern::Frames(1000)))]
}

/// A gate under a lease of an hour.
fn leased() -> SendGate {
    let gate = SendGate::under_lease();
    gate.set_deadline(packetrig_sys::clock::boottime_ns() + 3_600_000_000_000);
    gate
}

#[test]
fn ended_lease_stops_streams_and_limits_planned_frames() {
    let streams = vec![
        stream(0, 128, timeline(10_000, SendPattern::Endless)),
        stream(1, 128, timeline(1_000, SendPattern::Frames(20))),
    ];
    let shut = Some(Nanos::from_millis(50));
    let outcome = Trial { gate: leased(), shut, ..Trial::of(streams, delayed(1_000)) }.run().unwrap();
    let told: Vec<_> =
        outcome.send.iter().map(|sent| (sent.counts.frames, sent.counts.lease_ended)).collect();
    // Frames due up to that instant. The other stream had sent all its frames before.
    assert_eq!(told, [(501, true), (20, false)]);
    assert_eq!(outcome.send[0].planned, 501, "nothing was due that was not sent");
    assert_eq!(outcome.receive[0].counts.sequence.lost, 0);
}

#[test]
fn unstarted_lease_sends_nothing_lasting_lease_sends_all() {
    let never =
        Trial { gate: SendGate::under_lease(), ..Trial::of(thousand(10_000), delayed(10)) }.run().unwrap();
    let sent = &never.send[0];
    assert_eq!((sent.counts.frames, sent.planned, sent.counts.lease_ended), (0, 0, true));
    let lasting = Trial { gate: leased(), ..Trial::of(thousand(10_000), delayed(10)) }.run().unwrap();
    let sent = &lasting.send[0];
    assert_eq!((sent.counts.frames, sent.planned, sent.counts.lease_ended), (1000, 1000, false));
}

#[test]
fn first_frame_of_stream_is_stamped_at_departure() {
    let late = StreamTimeline { delay: Nanos::from_millis(7), ..timeline(1_000, SendPattern::Frames(3)) };
    let streams = vec![stream(0, 128, timeline(1_000, SendPattern::Frames(3))), stream(1, 128, late)];
    let outcome = Trial::of(streams, delayed(10)).run().unwrap();
    let first: Vec<_> = outcome.send.iter().map(|sent| sent.counts.first).collect();
    assert_eq!(first, [Some(START), Some(START + Nanos::from_millis(7))], "at T and its delay");
}

#[test]
fn a_known_delay_is_the_latency_exactly() {
    let outcome = Trial::of(thousand(10_000), delayed(123_456)).run().unwrap();
    let received = &outcome.receive[0];
    let latency = received.latency.as_ref().unwrap();
    let wanted = Some(Nanos::new(123_456));
    assert_eq!(
        (latency.min(), latency.mean(), latency.max(), latency.count()),
        (wanted, wanted, wanted, 1000)
    );
    let jitter = received.jitter.unwrap();
    assert_eq!((jitter.rfc3550, jitter.pdv_p999, jitter.ipdv_max), (Nanos::ZERO, Nanos::ZERO, Nanos::ZERO));
    assert_eq!(received.counts.first, Some(START + Nanos::new(123_456)));
    assert_eq!(received.counts.last, Some(START + Nanos::new(123_456 + 999 * 100_000)));
    assert_eq!((received.counts.frames, received.counts.bytes), (1000, 128_000));
    let sent = &outcome.send[0];
    assert_eq!(
        (sent.planned, sent.counts.frames, sent.counts.bytes, sent.counts.late),
        (1000, 1000, 128_000, 0)
    );
    assert_eq!((sent.send_error.max(), sent.stamp_bound.max()), (Some(Nanos::ZERO), Some(Nanos::ZERO)));
}

#[test]
fn serialization_time_is_part_of_latency() {
    let rate = Some(BitRate::new(1_000_000_000));
    let outcome = Trial::of(thousand(10_000), LinkSpec { rate, ..delayed(1000) }).run().unwrap();
    let latency = outcome.receive[0].latency.as_ref().unwrap();
    // (128 + 20) * 8 bits at 1 Gbit/s.
    assert_eq!((latency.min(), latency.max()), (Some(Nanos::new(2184)), Some(Nanos::new(2184))));
}

#[test]
fn latency_histogram_spans_link_jitter() {
    let link = LinkSpec { jitter: Nanos::from_micros(50), ..delayed(100_000) };
    let outcome = Trial::of(thousand(1000), link).run().unwrap();
    let latency = outcome.receive[0].latency.as_ref().unwrap();
    let (min, max) = (latency.min().unwrap().as_u64(), latency.max().unwrap().as_u64());
    assert!((100_000..102_000).contains(&min) && (148_000..=150_000).contains(&max), "{min} {max}");
    assert!(outcome.receive[0].jitter.unwrap().ipdv_max.as_u64() > 40_000);
}

#[test]
fn losses_are_found_one_by_one() {
    let link = LinkSpec { loss: FaultChance::at_positions([0, 10, 11, 12, 999]), ..LinkSpec::default() };
    let outcome = Trial::of(thousand(100), link).run().unwrap();
    let sequence = &outcome.receive[0].counts.sequence;
    assert_eq!((sequence.lost, sequence.unique), (5, 995));
    assert_eq!((sequence.loss_bursts, sequence.longest_burst, sequence.loss_seconds), (3, 3, 2));
}

#[test]
fn copies_and_late_frames_are_told_apart() {
    let link = LinkSpec {
        duplicate: FaultChance::at_positions([5, 6]),
        hold: FaultChance::at_positions([100, 200]),
        hold_for: 3,
        ..LinkSpec::default()
    };
    let outcome = Trial::of(thousand(10_000), link).run().unwrap();
    let sequence = &outcome.receive[0].counts.sequence;
    assert_eq!((sequence.duplicates, sequence.reordered, sequence.max_extent), (2, 2, 3));
    assert_eq!((sequence.unique, sequence.lost, sequence.stale), (1000, 0, 0));
    // Two frames three places late, six frames one place early.
    assert_eq!((sequence.density.get(&3), sequence.density.get(&-1)), (Some(&2), Some(&6)));
    assert_eq!(outcome.receive[0].latency.as_ref().unwrap().count(), 1000, "copies have no latency");
}

#[test]
fn damage_is_named_after_where_it_is() {
    let damaged = |byte| {
        let link = LinkSpec {
            corrupt: FaultChance::at_positions([7, 8]),
            corrupt_byte: byte,
            ..LinkSpec::default()
        };
        let outcome = Trial::of(thousand(10_000), link).run().unwrap();
        let counts = outcome.receive.into_iter().next().unwrap().counts;
        assert_eq!(outcome.rx.foreign, 0);
        (counts.altered, counts.corrupt, counts.unnumbered, counts.sequence.lost)
    };
    assert_eq!(damaged(0), (2, 0, 0, 0), "destination address");
    assert_eq!(damaged(UDP_HEADERS + 5), (0, 2, 0, 0), "payload");
    assert_eq!(damaged(124 - 12), (0, 0, 2, 2), "number in the tag: the frame is ours, but which one?");
}

#[test]
fn clock_skew_shifts_measured_latency() {
    let skewed = |skew| Trial { skew, ..Trial::of(thousand(1000), delayed(100_000)) }.run().unwrap();
    let ahead = skewed(ClockSkew { offset_ns: 7_000, drift_ns_per_s: 0 });
    assert_eq!(ahead.receive[0].latency.as_ref().unwrap().max(), Some(Nanos::new(107_000)));
    let behind = skewed(ClockSkew { offset_ns: -500_000, drift_ns_per_s: 0 });
    assert_eq!(behind.receive[0].counts.negative, 1000, "arrive before they were sent");
    // Over the 999 ms of the stream a clock that gains 10 us a second makes the last frame 9.99 us later than the first.
    let drifting = skewed(ClockSkew { offset_ns: 0, drift_ns_per_s: 10_000 });
    let latency = drifting.receive[0].latency.as_ref().unwrap();
    let spread = latency.max().unwrap().saturating_sub(latency.min().unwrap());
    assert_eq!(spread, Nanos::new(9_990));
}

#[test]
fn a_million_frames_do_not_drift() {
    let timeline = StreamTimeline {
        rate: FrameRate::new(1_000_003, 7).unwrap(),
        delay: Nanos::from_micros(3),
        shape: SendPattern::Frames(1_000_000),
    };
    let outcome = Trial::of(vec![stream(0, 64, timeline)], delayed(1)).run().unwrap();
    let sent = &outcome.send[0];
    assert_eq!(
        (sent.counts.frames, sent.counts.late, sent.send_error.max()),
        (1_000_000, 0, Some(Nanos::ZERO))
    );
    assert_eq!(sent.counts.first, Some(START + Nanos::from_micros(3)));
    assert_eq!(sent.counts.last, Some(START + timeline.due_time(999_999)));
    // 999 999 intervals of 7 000 000 000 / 1 000 003 ns, rounded down once.
    assert_eq!(timeline.due_time(999_999), Nanos::new(3_000 + 6_999_972_000));
    assert_eq!(outcome.receive[0].counts.sequence.unique, 1_000_000);
    assert_eq!(sent.series.seconds.iter().map(|(frames, _)| frames).sum::<u64>(), 1_000_000);
}

#[test]
fn short_tags_count_exactly_beyond_their_width() {
    let template = template(HeaderKind::Tcp, 64);
    assert_eq!(template.tag_form(template.frame_size(0)), Some(TagForm::Short));
    let timeline = timeline(1_000_000, SendPattern::Frames(1_100_000));
    let spec = Arc::new(StreamSpec {
        number: 4095,
        source: FrameSource::Made(template),
        timeline,
        latency: true,
        sent_elsewhere: false,
        untimed: false,
    });
    let link = LinkSpec { loss: FaultChance::at_positions([3, 1_048_575, 1_048_576]), ..LinkSpec::default() };
    let outcome = Trial::of(vec![spec], link).run().unwrap();
    let received = &outcome.receive[0];
    assert_eq!((received.counts.sequence.lost, received.counts.sequence.unique), (3, 1_099_997));
    assert_eq!(received.counts.sequence.longest_burst, 2);
    assert_eq!((received.latency.is_none(), received.jitter.is_none()), (true, true));
}

#[test]
fn one_frame_in_ten_seconds() {
    let timeline = StreamTimeline {
        rate: FrameRate::new(1, 10).unwrap(),
        delay: Nanos::ZERO,
        shape: SendPattern::Within(Nanos::from_secs(35)),
    };
    let outcome = Trial::of(vec![stream(0, 64, timeline)], delayed(1)).run().unwrap();
    assert_eq!(outcome.send[0].counts.last, Some(START + Nanos::from_secs(30)));
    assert_eq!(outcome.receive[0].counts.sequence.unique, 4);
    let frames: Vec<u64> = outcome.send[0].series.seconds.iter().map(|(frames, _)| *frames).collect();
    assert_eq!((frames.len(), frames[0], frames[10], frames[30]), (31, 1, 1, 1));
}

#[test]
fn bursts_keep_their_pauses() {
    let shape = SendPattern::Bursts { bursts: 3, frames: 10, pause: Nanos::from_millis(1) };
    let outcome = Trial::of(vec![stream(0, 64, timeline(1_000_000, shape))], delayed(1)).run().unwrap();
    assert_eq!(outcome.send[0].counts.frames, 30);
    assert_eq!(outcome.send[0].counts.last, Some(START + Nanos::from_micros(2 * 1010 + 9)));
    assert_eq!(outcome.send[0].send_error.max(), Some(Nanos::ZERO));
}

/// A link that takes 1000 frames of 125 bytes on the line in a second.
fn slow() -> LinkSpec {
    LinkSpec { rate: Some(BitRate::new(1_000_000)), queue: Nanos::from_micros(1), ..LinkSpec::default() }
}

#[test]
fn slow_sender_reports_shortfall_and_keeps_time_limit() {
    let timeline = timeline(2000, SendPattern::Within(Nanos::from_secs(2)));
    let outcome = Trial::of(vec![stream(0, 105, timeline)], slow()).run().unwrap();
    let sent = &outcome.send[0];
    assert_eq!(sent.planned, 4000);
    // 2000 fit the line; the ring takes some more, which leave later.
    assert!((2000..=2400).contains(&sent.counts.frames), "{}", sent.counts.frames);
    assert!(sent.counts.last.unwrap() < START + Nanos::from_secs(2) + LATE_SENDING_GRACE);
    assert!(sent.counts.late > 1500);
    assert_eq!(outcome.tx.handed_over, sent.counts.frames, "what is in the ring still leaves");
    assert_eq!(outcome.receive[0].counts.sequence.lost, 0, "unsent is not lost");
}

#[test]
fn fixed_frame_count_is_sent_however_slowly() {
    let outcome =
        Trial::of(vec![stream(0, 105, timeline(2000, SendPattern::Frames(4000)))], slow()).run().unwrap();
    let sent = &outcome.send[0];
    assert_eq!((sent.planned, sent.counts.frames), (4000, 4000));
    assert!(sent.send_error.max().unwrap() > Nanos::from_millis(1700), "{:?}", sent.send_error.max());
    assert!(
        sent.stamp_bound.max().unwrap() > Nanos::from_millis(1),
        "the ring held frames after they were stamped"
    );
    assert_eq!(outcome.receive[0].counts.sequence.unique, 4000);
}

#[test]
fn stopping_leaves_the_rest_unsent() {
    let endless = stream(0, 64, timeline(1000, SendPattern::Endless));
    let limited = stream(1, 64, timeline(1000, SendPattern::Frames(5000)));
    let stop = Some(Nanos::from_micros(1_500_500));
    let outcome = Trial { stop, ..Trial::of(vec![endless, limited], delayed(10)) }.run().unwrap();
    for sent in &outcome.send {
        assert_eq!((sent.planned, sent.counts.frames), (1501, 1501));
    }
    assert_eq!(outcome.receive[1].counts.sequence.lost, 0);
}

#[test]
fn streams_with_the_same_headers_are_told_apart() {
    let streams: Vec<_> = (0..4096).map(|n| stream(n, 64, timeline(100, SendPattern::Frames(3)))).collect();
    let link = LinkSpec { loss: FaultChance::at_positions([5000]), ..delayed(1) };
    let outcome = Trial::of(streams, link).run().unwrap();
    let lost: Vec<u64> = outcome.receive.iter().map(|received| received.counts.sequence.lost).collect();
    assert_eq!((lost.len(), lost.iter().sum::<u64>()), (4096, 1));
    assert_eq!(lost[5000 - 4096], 1, "the second frame of stream 904");
    assert_eq!(outcome.rx.foreign, 0);
}

#[test]
fn frames_of_another_run_are_foreign() {
    let clock = packetrig_engine::sim::VirtualClock::new(START);
    let link = packetrig_engine::sim::SimLink::new(LinkSpec::default());
    let mut receiver = packetrig_engine::receiver::TestReceiver::new(packetrig_engine::sim::SimRx::new(
        vec![link.clone()],
        clock.clone(),
    ));
    let mut sender = packetrig_engine::sender::TestSender::new(
        packetrig_engine::sim::SimTx::new(vec![link], clock.clone()),
        clock,
    );
    use packetrig_engine::stream::{RxJob, StreamControl, StreamRx, StreamTx, TxJob};
    let ours = stream(0, 128, timeline(1000, SendPattern::Frames(1)));
    let template = {
        let mut spec = ours.source.template().unwrap().spec().clone();
        spec.headers[0] = spec.headers[0].clone().with_field("dst", 0x0200_0000_0099);
        Arc::new(packetrig_wire::FrameTemplate::new(spec).unwrap())
    };
    let theirs = Arc::new(StreamSpec { source: FrameSource::Made(template), ..(*ours).clone() });
    receiver
        .arm_receiver(RxJob {
            elsewhere: Vec::new(),
            earlier_runs: Vec::new(),
            port: 0,
            key: KEY,
            streams: vec![ours],
            taps: Vec::new(),
            has_devices: false,
        })
        .unwrap();
    sender
        .arm_sender(TxJob {
            key: packetrig_wire::tag::TagKey(78),
            streams: vec![theirs],
            steered: false,
            gate: SendGate::without_lease(),
        })
        .unwrap();
    sender.apply_control(StreamControl::StartAt(START));
    sender.send_due(START).unwrap();
    receiver.receive_arrivals(START).unwrap();
    let counters = receiver.port_counters().unwrap();
    assert_eq!((counters.seen, counters.foreign, counters.unnumbered), (1, 1, 0));
    assert_eq!(receiver.finish_receiving(&[0]).streams[0].counts.frames, 0);
}

/// Gives these frames, one each millisecond.
struct Arrivals {
    frames: std::vec::IntoIter<Vec<u8>>,
    at: packetrig_units::MonoTime,
}

impl packetrig_engine::port::FrameRx for Arrivals {
    fn receive_frames(
        &mut self,
        most: usize,
        sink: &mut dyn FnMut(packetrig_engine::port::RxFrame<'_>),
    ) -> Result<usize, packetrig_engine::Error> {
        let frames: Vec<_> = self.frames.by_ref().take(most).collect();
        for bytes in &frames {
            self.at = self.at + Nanos::from_millis(1);
            let stamp = packetrig_stats::port::StampKind::Software;
            sink(packetrig_engine::port::RxFrame::single_packet(bytes, bytes.len(), self.at, stamp));
        }
        Ok(frames.len())
    }

    fn wait_for_frames(&mut self, _: Nanos) -> Result<(), packetrig_engine::Error> {
        Ok(())
    }

    fn read_rx_counters(&mut self) -> Result<packetrig_stats::port::RxCounters, packetrig_engine::Error> {
        Ok(packetrig_stats::port::RxCounters::default())
    }

    fn clock_bound(&self) -> Nanos {
        Nanos::ZERO
    }
}

#[test]
fn implausible_sequence_number_damages_only_its_frame() {
    use packetrig_engine::stream::{RxJob, StreamControl, StreamRx};
    let spec = stream(0, 128, timeline(1000, SendPattern::Frames(1_000_000)));
    let template = Arc::clone(spec.source.template().unwrap());
    let frame = |number: u64| {
        let time = START.as_nanos() + number.min(1000) * 1_000_000;
        let stamp = packetrig_wire::tag::TagStamp { key: KEY, stream: 0, time };
        let mut bytes = vec![0; 128];
        let len = template.render_frame(number, stamp, &mut bytes);
        bytes.truncate(len);
        bytes
    };
    // 900 000 is a number of this stream, but it is due in a quarter of an hour.
    let numbers = (0..100).chain([900_000]).chain(100..200);
    let frames: Vec<Vec<u8>> = numbers.map(frame).collect();
    let mut receiver =
        packetrig_engine::receiver::TestReceiver::new(Arrivals { frames: frames.into_iter(), at: START });
    let job = RxJob {
        elsewhere: Vec::new(),
        earlier_runs: Vec::new(),
        port: 0,
        key: KEY,
        streams: vec![spec],
        taps: Vec::new(),
        has_devices: false,
    };
    receiver.arm_receiver(job).unwrap();
    receiver.apply_control(StreamControl::StartAt(START));
    receiver.receive_arrivals(START).unwrap();
    let counts = receiver.finish_receiving(&[200]).streams.remove(0).counts;
    assert_eq!((counts.sequence.unique, counts.unnumbered), (200, 1));
    assert_eq!((counts.sequence.reordered, counts.sequence.lost), (0, 0));
}

#[test]
fn an_injected_failure_comes_out() {
    let tx_mood = ChaosLevel { fail_at: Some(10), ..ChaosLevel::default() };
    let error = Trial { tx_mood, ..Trial::of(thousand(1000), LinkSpec::default()) }.run().err().unwrap();
    assert_eq!(error.to_string(), "injected failure of call 10");
}

prop_compose! {
    fn any_link()(
        seed: u64,
        loss in 0u32..100_000,
        duplicate in 0u32..100_000,
        corrupt in 0u32..100_000,
        hold in 0u32..100_000,
        hold_for in 1u32..20,
        delay in 0u64..1_000_000,
        jitter in 0u64..100_000,
    ) -> LinkSpec {
        LinkSpec {
            seed,
            loss: FaultChance::per_million(loss),
            duplicate: FaultChance::per_million(duplicate),
            corrupt: FaultChance::per_million(corrupt),
            corrupt_byte: UDP_HEADERS + 3,
            hold: FaultChance::per_million(hold),
            hold_for,
            delay: Nanos::new(delay),
            jitter: Nanos::new(jitter),
            ..LinkSpec::default()
        }
    }
}

prop_compose! {
    fn any_mood()(
        seed: u64,
        full in 0u32..300_000,
        partial in 0u32..300_000,
        storm in 0u32..50_000,
        storm_length in 0u32..50,
        flap_every in proptest::option::of(50u64..500),
        flap_length in 0u64..100,
    ) -> ChaosLevel {
        ChaosLevel { seed, full, partial, storm, storm_length, flap_every, flap_length, fail_at: None }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn injected_faults_are_counted_despite_port_chaos(
        link in any_link(), tx_mood in any_mood(), rx_mood in any_mood(), refuse in 0u32..50_000, pps in 1_000u64..1_000_000
    ) {
        let streams = vec![stream(0, 128, timeline(pps, SendPattern::Frames(2000)))];
        let refuse = FaultChance::per_million(refuse);
        let outcome = Trial { refuse, tx_mood, rx_mood, ..Trial::of(streams, link) }.run().unwrap();
        let (truth, sent, received) = (&outcome.truth, &outcome.send[0], &outcome.receive[0].counts);
        let sequence = &received.sequence;
        let (lost, held): (BTreeSet<_>, BTreeSet<_>) = (truth.lost.iter().collect(), truth.held.iter().collect());

        prop_assert_eq!(sent.counts.frames, 2000);
        prop_assert_eq!(outcome.tx.handed_over + outcome.tx.refused, 2000);
        prop_assert_eq!(truth.entered, outcome.tx.handed_over);
        prop_assert_eq!(outcome.rx.seen, truth.delivered);
        prop_assert_eq!(outcome.rx.seen, received.frames + outcome.rx.foreign + outcome.rx.unnumbered);
        prop_assert_eq!(received.frames, sequence.unique + sequence.duplicates + sequence.stale);
        prop_assert_eq!(sequence.unique + sequence.lost, 2000);
        prop_assert_eq!(sequence.lost, lost.len() as u64 + outcome.tx.refused);
        prop_assert_eq!(sequence.duplicates, truth.duplicated.len() as u64);
        let copies = truth.corrupted.iter().filter(|p| truth.duplicated.contains(p)).count();
        prop_assert_eq!(received.corrupt, (truth.corrupted.len() + copies) as u64);
        prop_assert_eq!((received.altered, outcome.rx.foreign, outcome.rx.unnumbered), (0, 0, 0));
        // A frame held back is late if any other frame came behind it.
        let last_on_time = (0..truth.entered).rev().find(|p| !lost.contains(p) && !held.contains(p));
        let late = held.iter().filter(|p| last_on_time.is_some_and(|last| last > ***p)).count();
        prop_assert_eq!(sequence.reordered, late as u64);
        prop_assert_eq!(sent.send_error.count(), 2000);
    }
}
