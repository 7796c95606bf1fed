use super::*;
use packetrig_units::{FrameRate, FrameSize};
use packetrig_wire::FrameSpec;
use packetrig_wire::payload::PayloadPattern;
use packetrig_wire::size::SizePattern;
use proptest::prelude::*;

fn template() -> Arc<FrameTemplate> {
    let size = SizePattern::Fixed(FrameSize::new(64));
    let spec = FrameSpec {
        headers: Vec::new(),
        size,
        payload: PayloadPattern::IncrementByte,
        tagged: true,
        routed: false,
    };
    Arc::new(FrameTemplate::new(spec).expect("compiles"))
}

fn timeline(pps: u64, shape: SendPattern) -> StreamTimeline {
    StreamTimeline {
        rate: FrameRate::per_second(pps).expect("not zero"),
        delay: Nanos::from_millis(2),
        shape,
    }
}

fn take(first: FrameIndex, at: Nanos, timeline: StreamTimeline) -> StreamSegment {
    StreamSegment::new(first, at, template(), timeline)
}

#[test]
fn a_whole_stream_follows_its_timeline() {
    let timeline = timeline(1_000, SendPattern::Frames(10));
    let take = StreamSegment::for_whole_stream(template(), timeline);
    assert_eq!((take.due_time(0), take.due_time(3)), (timeline.due_time(0), timeline.due_time(3)));
    assert_eq!((take.end_number(), take.frame_index(7)), (10, FrameIndex::from(7)));
    assert!(take.starts_at_first_frame());
}

#[test]
fn after_a_pause_the_rest_follows() {
    let first = FrameIndex { number: 104, index: 4 };
    let take = take(first, Nanos::from_secs(9), timeline(1_000, SendPattern::Frames(10)));
    assert_eq!((take.due_time(104), take.due_time(105)), (Nanos::from_secs(9), Nanos::from_millis(9_001)));
    assert_eq!((take.end_number(), take.frame_index(109)), (110, FrameIndex { number: 109, index: 9 }));
    assert_eq!(take.first_number_due_from(Nanos::from_millis(9_002)), 106);
    assert!(!take.starts_at_first_frame());
}

#[test]
fn time_limit_is_extended_by_pause() {
    let limited = timeline(1_000, SendPattern::Within(Nanos::from_secs(1)));
    let take = take(FrameIndex { number: 400, index: 400 }, Nanos::from_secs(50), limited);
    assert_eq!(take.time_limit(), Some(Nanos::from_millis(50_600)));
    assert_eq!(take.end_number(), 1_000);
}

#[test]
fn new_rate_keeps_time_limit_not_frame_count() {
    let limited = |pps| timeline(pps, SendPattern::Within(Nanos::from_secs(1)));
    let slow = StreamSegment::for_whole_stream(template(), limited(100));
    // After 400 ms at 100 frames/s, 600 ms remain at 1000 frames/s.
    let fast =
        take(FrameIndex::from(40), Nanos::from_millis(402), slow.timeline_continued_at(40, limited(1_000)));
    assert_eq!((fast.end_number(), fast.time_limit()), (640, Some(Nanos::from_millis(1_002))));
    // Once more: 500 ms remain 100 frames later, and neither another rate nor the same one changes that.
    for pps in [200, 1_000] {
        let rhythm = fast.timeline_continued_at(140, limited(pps));
        let again = take(FrameIndex::from(140), Nanos::from_millis(602), rhythm);
        assert_eq!(
            (again.end_number(), again.time_limit()),
            (140 + pps / 2, Some(Nanos::from_millis(1_102)))
        );
    }
    // A rate too low for the frames sent so far.
    let slower =
        take(FrameIndex::from(40), Nanos::from_millis(402), slow.timeline_continued_at(40, limited(1)));
    assert_eq!(slower.due_time(41), Nanos::from_millis(1_402));
}

#[test]
fn frames_belong_to_the_take_that_was_theirs() {
    let of = |first: u64, index| {
        take(FrameIndex { number: first, index }, Nanos::ZERO, timeline(1, SendPattern::Endless))
    };
    let mut takes = StreamSegments::new(Some(of(0, 0)));
    takes.push(of(10, 0));
    takes.push(of(25, 15));
    let first_of =
        |takes: &StreamSegments, number| takes.find_segment(number).map(StreamSegment::first_number);
    assert_eq!([0, 9, 10, 24, 25, 99].map(|n| first_of(&takes, n).unwrap()), [0, 0, 10, 10, 25, 25]);
    // A segment without frames is replaced.
    takes.push(of(25, 0));
    assert!(takes.last().unwrap().starts_at_first_frame());
    for first in 30..60 {
        takes.push(of(first, 0));
    }
    assert_eq!(first_of(&takes, 3), Some(52));
    assert_eq!(StreamSegments::new(None).find_segment(3).map(StreamSegment::first_number), None);
}

proptest! {
    #[test]
    fn due_before_is_the_inverse_of_due(
        pps in 1u64..2_000_000, first in 0u64..1_000_000, index in 0u64..1_000_000, ms in 0u64..100_000, n in 0u64..100_000
    ) {
        let take = take(FrameIndex { number: first, index }, Nanos::from_millis(ms), timeline(pps, SendPattern::Endless));
        prop_assert!(take.due_time(first + n) <= take.due_time(first + n + 1));
        prop_assert_eq!(take.first_number_due_from(take.due_time(first + n) + Nanos::new(1)), first + n + 1);
        prop_assert_eq!(take.due_time(first), Nanos::from_millis(ms));
    }
}
