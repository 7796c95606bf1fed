use super::*;
use packetrig_plan::timeline::StreamTimeline;
use packetrig_units::{FrameRate, Nanos};
use packetrig_wire::payload::PayloadPattern;
use packetrig_wire::size::SizeMix;
use packetrig_wire::{FrameSpec, FrameTemplate};
use proptest::prelude::*;

fn spec(number: u16, size: SizePattern, timeline: StreamTimeline) -> Arc<StreamSpec> {
    let frames = FrameSpec {
        headers: Vec::new(),
        size,
        payload: PayloadPattern::default(),
        tagged: true,
        routed: false,
    };
    let template = Arc::new(FrameTemplate::new(frames).unwrap());
    Arc::new(StreamSpec {
        number,
        source: crate::stream::FrameSource::Made(template),
        timeline,
        latency: true,
        sent_elsewhere: false,
        untimed: false,
    })
}

fn any_size() -> impl Strategy<Value = SizePattern> {
    let size = FrameSize::new;
    prop_oneof![
        Just(SizePattern::Fixed(size(64))),
        Just(SizePattern::Increment { start: size(64), end: size(200), step: 40 }),
        Just(SizePattern::Weighted(SizeMix::new(&[(size(64), 3), (size(1518), 1)]).unwrap())),
    ]
}

fn any_timeline() -> impl Strategy<Value = StreamTimeline> {
    let shape = prop_oneof![
        (0u64..900).prop_map(SendPattern::Frames),
        (1u64..20_000_000).prop_map(|ns| SendPattern::Within(Nanos::new(ns))),
        (1u64..9, 1u64..60, 0u64..3_000_000).prop_map(|(bursts, frames, pause)| SendPattern::Bursts {
            bursts,
            frames,
            pause: Nanos::new(pause)
        }),
    ];
    (100u64..3_000_000, 1u64..7, 0u64..1_000_000, shape).prop_map(|(frames, seconds, delay, shape)| {
        StreamTimeline { rate: FrameRate::new(frames, seconds).unwrap(), delay: Nanos::new(delay), shape }
    })
}

proptest! {
    /// Asserts that every frame is in one run, exact to the nanosecond, with its size, in the order of all streams.
    #[test]
    fn runs_hold_every_frame_at_its_time(lanes in prop::collection::vec((any_size(), any_timeline()), 1..4), grant in 1_000u64..5_000_000) {
        let specs: Vec<_> = (0..).zip(lanes).map(|(n, (size, timeline))| spec(n, size, timeline)).collect();
        let start = MonoTime::from_nanos(1_000_000_000);
        let mut runs = FrameRunPlanner::new(&specs, start);
        let mut next = vec![0u64; specs.len()];
        let mut until = start;
        let mut last = start;
        while !runs.is_over() {
            until = until + Nanos::new(grant);
            while let Some(run) = runs.next_run(until) {
                prop_assert_eq!(run.number, next[run.lane]);
                prop_assert!(run.count > 0 && run.due >= last);
                let spec = &specs[run.lane];
                for n in 0..run.count {
                    let due = run.due + Nanos::new((n * run.step) >> 20);
                    let exact = start + spec.timeline.due_time(run.number + n);
                    prop_assert!(due <= exact && exact.since(due) <= Nanos::new(2), "frame {} of lane {}", run.number + n, run.lane);
                    prop_assert!(due < until);
                    prop_assert_eq!(spec.source.template().unwrap().frame_size(run.number + n), run.size);
                    last = last.max(due);
                }
                next[run.lane] += run.count;
            }
        }
        let totals: Vec<u64> = specs.iter().map(|spec| spec.timeline.total_frames().unwrap()).collect();
        prop_assert_eq!(next, totals);
    }
}
