//! Single streams begin, pause and change while others go on, in virtual time: the numbers of frames go on, their patterns
//! begin anew with each start, and nothing is lost or altered on the way.

mod bed;

use bed::{KEY, START, timeline};
use packetrig_engine::gate::SendGate;
use packetrig_engine::receiver::TestReceiver;
use packetrig_engine::segment::StreamSegment;
use packetrig_engine::sender::TestSender;
use packetrig_engine::sim::{LinkSpec, SimLink, SimRx, SimTx, SimulationStage, VirtualClock};
use packetrig_engine::stream::{FrameSource, RxJob, StreamControl, StreamRx, StreamSpec, StreamTx, TxJob};
use packetrig_plan::timeline::{SendPattern, StreamTimeline};
use packetrig_stats::counts::{StreamRxCounts, StreamTxCounts};
use packetrig_stats::result::{ReceiveResult, SendResult};
use packetrig_units::{FrameSize, Nanos};
use packetrig_wire::header::{HeaderKind, PacketHeader};
use packetrig_wire::pattern::FieldPattern;
use packetrig_wire::payload::PayloadPattern;
use packetrig_wire::size::SizePattern;
use packetrig_wire::{FrameIndex, FrameSpec, FrameTemplate};
use std::sync::Arc;

/// Frames with the index of their pattern as source port.
fn counting(size: u32) -> Arc<FrameTemplate> {
    let ports = FieldPattern::Step { start: 1, step: 1, count: 50_000, down: false };
    let udp = PacketHeader::new(HeaderKind::Udp).with_field("src_port", ports);
    let headers = vec![PacketHeader::new(HeaderKind::Ethernet), PacketHeader::new(HeaderKind::Ipv4), udp];
    let size = SizePattern::Fixed(FrameSize::new(size));
    let spec =
        FrameSpec { headers, size, payload: PayloadPattern::IncrementByte, tagged: true, routed: false };
    Arc::new(FrameTemplate::new(spec).expect("headers fit"))
}

struct Bed {
    clock: VirtualClock,
    link: SimLink,
    tx: TestSender<SimTx<VirtualClock>, VirtualClock>,
    rx: TestReceiver<SimRx<VirtualClock>>,
}

impl Bed {
    fn new(streams: u16, timeline: StreamTimeline) -> Self {
        Self::under(SendGate::without_lease(), streams, timeline)
    }

    fn under(gate: SendGate, streams: u16, timeline: StreamTimeline) -> Self {
        let clock = VirtualClock::new(START - Nanos::from_millis(1));
        let link = SimLink::new(LinkSpec::default());
        let mut tx = TestSender::new(SimTx::new(vec![link.clone()], clock.clone()), clock.clone());
        let mut rx = TestReceiver::new(SimRx::new(vec![link.clone()], clock.clone()));
        let specs: Vec<_> = (0..streams).map(|number| spec(number, timeline)).collect();
        rx.arm_receiver(RxJob {
            elsewhere: Vec::new(),
            earlier_runs: Vec::new(),
            port: 1,
            key: KEY,
            streams: specs.clone(),
            taps: Vec::new(),
            has_devices: false,
        })
        .expect("armed");
        tx.arm_sender(TxJob { key: KEY, streams: specs, steered: true, gate }).expect("armed");
        let mut bed = Self { clock, link, tx, rx };
        bed.stage(|stage| stage.apply_control(StreamControl::StartAt(START)));
        bed
    }

    fn stage<R>(&mut self, act: impl FnOnce(&mut SimulationStage<'_>) -> R) -> R {
        act(&mut SimulationStage {
            clock: self.clock.clone(),
            links: vec![self.link.clone()],
            senders: vec![&mut self.tx],
            receivers: vec![&mut self.rx],
        })
    }

    /// Runs until this many milliseconds after T.
    fn run_to(&mut self, ms: u64) {
        self.stage(|stage| stage.run_until(START + Nanos::from_millis(ms))).expect("it goes on");
        // Nothing may be left to do before then.
        self.clock.advance_to(START + Nanos::from_millis(ms));
    }

    fn hold(&mut self, streams: &[u16]) -> Vec<(u16, u64)> {
        self.tx.steered_sender().expect("it can be steered").hold_streams(streams)
    }

    fn begin(&mut self, stream: u16, take: StreamSegment) {
        let takes = [(stream, take)];
        self.rx.steered_receiver().expect("it can be steered").announce_segments(&takes);
        self.tx.steered_sender().expect("it can be steered").begin_segments(&takes);
    }

    fn counts(&self, stream: usize) -> (StreamTxCounts, StreamRxCounts) {
        (self.tx.stream_counts()[stream], self.rx.stream_counts()[stream].clone())
    }

    fn finish(mut self) -> (Vec<SendResult>, Vec<ReceiveResult>) {
        self.stage(|stage| stage.apply_control(StreamControl::Stop));
        self.stage(|stage| stage.run_until(START + Nanos::from_secs(3_600))).expect("it goes on");
        let sent = self.tx.finish_sending();
        let totals: Vec<u64> = sent.iter().map(|sent| sent.counts.frames).collect();
        (sent, self.rx.finish_receiving(&totals).streams)
    }
}

fn spec(number: u16, timeline: StreamTimeline) -> Arc<StreamSpec> {
    Arc::new(StreamSpec {
        number,
        source: FrameSource::Made(counting(100)),
        timeline,
        latency: true,
        sent_elsewhere: false,
        untimed: false,
    })
}

fn at(ms: u64) -> Nanos {
    Nanos::from_millis(ms)
}

fn assert_clean(received: &ReceiveResult, frames: u64) {
    let counts = &received.counts;
    assert_eq!((counts.frames, counts.sequence.unique), (frames, frames));
    assert_eq!((counts.altered, counts.corrupt, counts.sequence.lost, counts.sequence.stale), (0, 0, 0, 0));
}

#[test]
fn held_stream_waits_without_disturbing_others() {
    let steady = timeline(1_000, SendPattern::Endless);
    let mut bed = Bed::new(2, steady);
    bed.run_to(10);
    assert_eq!(bed.counts(0).0.frames, 0);
    let whole = |at| StreamSegment::new(FrameIndex::from(0), at, counting(100), steady);
    bed.begin(0, whole(at(10)));
    bed.begin(1, whole(at(10)));
    bed.run_to(110);
    assert!(bed.counts(0).0.is_sending);
    let held = bed.hold(&[0]);
    bed.run_to(210);
    assert!(!bed.counts(0).0.is_sending);
    assert_eq!(held, [(0, bed.counts(0).0.frames)]);
    let (sent, received) = bed.finish();
    assert_eq!((sent[0].counts.frames, sent[1].counts.frames), (101, 201));
    assert!(sent.iter().all(|sent| sent.planned == sent.counts.frames && sent.counts.late == 0));
    assert_clean(&received[0], 101);
    assert_clean(&received[1], 201);
}

#[test]
fn lease_end_stops_stream_and_fixes_held_count() {
    let steady = timeline(1_000, SendPattern::Endless);
    let gate = SendGate::under_lease();
    gate.set_deadline(packetrig_sys::clock::boottime_ns() + 3_600_000_000_000);
    let mut bed = Bed::under(gate.clone(), 1, steady);
    bed.begin(0, StreamSegment::new(FrameIndex::from(0), at(10), counting(100), steady));
    bed.run_to(110);
    assert!(bed.counts(0).0.is_sending);
    gate.shut_now();
    bed.run_to(210);
    let counts = bed.counts(0).0;
    assert!(counts.lease_ended && !counts.is_sending, "{counts:?}");
    // After the lease, in virtual time: frames that came due since then do not count as held.
    assert_eq!(bed.hold(&[0]), [(0, counts.frames)]);
    let (sent, _) = bed.finish();
    assert_eq!((sent[0].counts.frames, sent[0].counts.lease_ended), (counts.frames, true));
    assert!(sent[0].planned <= counts.frames + 1, "{} of {}", counts.frames, sent[0].planned);
}

#[test]
fn paused_stream_resumes_and_restart_counts_anew() {
    let ten = timeline(1_000, SendPattern::Frames(10));
    let mut bed = Bed::new(1, ten);
    let first = StreamSegment::new(FrameIndex::from(0), at(10), counting(100), ten);
    bed.begin(0, first.clone());
    bed.run_to(13);
    let (_, left) = bed.hold(&[0])[0];
    assert_eq!(left, 4);
    bed.run_to(50);
    bed.begin(0, StreamSegment::new(first.frame_index(left), at(51), counting(100), ten));
    bed.run_to(100);
    let (sent, received) = bed.counts(0);
    assert_eq!((sent.since_start.frames, received.since_start.frames, sent.is_sending), (10, 10, false));
    let (_, next) = bed.hold(&[0])[0];
    bed.begin(0, StreamSegment::new(FrameIndex { number: next, index: 0 }, at(110), counting(100), ten));
    bed.run_to(112);
    let (sent, received) = bed.counts(0);
    assert_eq!((sent.since_start.frames, received.since_start.frames, received.delays.count), (3, 3, 3));
    assert_eq!(received.since_start.first, Some(START + at(110) + (received.delays.min)));
    assert_eq!((sent.frames, received.frames), (13, 13));
    let (sent, received) = bed.finish();
    assert_eq!((sent[0].planned, sent[0].counts.frames), (13, 13));
    assert_clean(&received[0], 13);
}

#[test]
fn rate_and_size_change_on_the_way() {
    let slow = timeline(1_000, SendPattern::Endless);
    let mut bed = Bed::new(1, slow);
    let first = StreamSegment::new(FrameIndex::from(0), at(10), counting(100), slow);
    bed.begin(0, first.clone());
    bed.run_to(60);
    let (_, next) = bed.hold(&[0])[0];
    let fast = timeline(10_000, SendPattern::Endless);
    bed.begin(
        0,
        StreamSegment::new(
            first.frame_index(next),
            first.due_time(next),
            counting(500),
            first.timeline_continued_at(next, fast),
        ),
    );
    bed.run_to(160);
    let (sent, _) = bed.counts(0);
    assert_eq!(sent.since_start.frames, sent.frames);
    assert_eq!(sent.frames, 51 + 991);
    assert_eq!(sent.bytes, 51 * 100 + 991 * 500);
    assert_clean(&bed.finish().1[0], 51 + 991);
}

#[test]
fn frames_unsent_before_hold_count_as_planned() {
    let steady = timeline(1_000, SendPattern::Endless);
    let mut bed = Bed::new(1, steady);
    bed.begin(0, StreamSegment::new(FrameIndex::from(0), at(10), counting(100), steady));
    bed.run_to(20);
    // The sender sleeps through five frames.
    bed.clock.advance_to(START + at(25));
    bed.hold(&[0]);
    let (sent, _) = bed.finish();
    assert_eq!((sent[0].counts.frames, sent[0].planned), (11, 15));
}

/// An endless stream that is ended by the user owes nothing, even if the sender had no processor just then.
#[test]
fn frames_due_before_stop_leave_late() {
    let steady = timeline(1_000, SendPattern::Endless);
    let mut bed = Bed::new(1, steady);
    bed.begin(0, StreamSegment::new(FrameIndex::from(0), at(10), counting(100), steady));
    bed.run_to(20);
    // The sender sleeps through five frames.
    bed.clock.advance_to(START + at(25));
    let (sent, received) = bed.finish();
    assert_eq!((sent[0].counts.frames, sent[0].planned), (15, 15));
    assert_clean(&received[0], 15);
}

#[test]
fn streams_can_be_taken_on_while_others_run() {
    let steady = timeline(1_000, SendPattern::Endless);
    let mut bed = Bed::new(1, steady);
    bed.begin(0, StreamSegment::new(FrameIndex::from(0), at(10), counting(100), steady));
    bed.run_to(20);
    bed.rx.steered_receiver().unwrap().add_streams(vec![spec(1, steady)], Vec::new());
    bed.tx.steered_sender().unwrap().add_streams(vec![spec(1, steady)]).unwrap();
    bed.begin(1, StreamSegment::new(FrameIndex::from(0), at(21), counting(100), steady));
    bed.run_to(30);
    let (_, received) = bed.finish();
    assert_clean(&received[0], 21);
    assert_clean(&received[1], 10);
}
