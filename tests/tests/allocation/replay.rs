//! The same for frames that come from a file.

use super::{KEY, Player, START, send_these};
use packetrig_engine::receiver::TestReceiver;
use packetrig_engine::replay::{ReplayTrack, survey_file};
use packetrig_engine::stream::{FrameSource, RxJob, StreamControl, StreamRx, StreamSpec};
use packetrig_plan::recording::{PlannedRecording, ReplayTiming};
use packetrig_plan::timeline::StreamTimeline;
use packetrig_units::{FrameRate, Nanos};
use packetrig_wire::foreign::FrameRewrite;
use std::path::PathBuf;
use std::sync::Arc;

const FRAMES: u64 = 5_000;

fn stream(file: PathBuf, timing: ReplayTiming) -> Arc<StreamSpec> {
    let rewrite = FrameRewrite { vlan: "push:7".parse().ok(), ..FrameRewrite::default() };
    let facts = survey_file(&file, &rewrite).unwrap().facts;
    let recording = PlannedRecording { file, timing, loops: 3, rewrite, tagged: true, facts };
    let rate = recording.mean_rate().or_else(|| FrameRate::per_second(1_000_000)).unwrap();
    let timeline = StreamTimeline { rate, delay: Nanos::ZERO, shape: recording.send_pattern() };
    let source = FrameSource::Recorded(Arc::new(ReplayTrack::new(Arc::new(recording))));
    Arc::new(StreamSpec { number: 0, source, timeline, latency: true, sent_elsewhere: false, untimed: false })
}

#[test]
fn replaying_and_verifying_allocate_nothing() {
    let frames = packetrig_tests::recording::mixture(FRAMES, 2_000);
    let (_directory, file) = packetrig_tests::recording::stored(&frames);
    for timing in [ReplayTiming::Fastest, ReplayTiming::Even, ReplayTiming::Recorded("2x".parse().unwrap())] {
        let stream = stream(file.clone(), timing);
        let (tape, allocated) = send_these(vec![Arc::clone(&stream)], 3 * FRAMES);
        assert_eq!((tape.ends.len() as u64, allocated), (3 * FRAMES, 0), "{timing:?}");
        let mut receiver = TestReceiver::new(Player { tape, next: 0 });
        receiver
            .arm_receiver(RxJob {
                elsewhere: Vec::new(),
                earlier_runs: Vec::new(),
                port: 0,
                key: KEY,
                streams: vec![stream],
                taps: Vec::new(),
                has_devices: false,
            })
            .unwrap();
        receiver.apply_control(StreamControl::StartAt(START));
        let allocated = super::allocations(|| {
            for _ in 0..FRAMES {
                receiver.receive_arrivals(START).unwrap();
            }
        });
        let foreign = receiver.port_counters().unwrap().foreign;
        let counts = &receiver.finish_receiving(&[3 * FRAMES - foreign]).streams[0].counts;
        assert_eq!(
            (counts.sequence.lost, counts.frames + foreign, allocated),
            (0, 3 * FRAMES, 0),
            "{timing:?}"
        );
    }
}
