//! Two runs of one plan on one segment: their frames differ in nothing but their tags.

mod bed;

use bed::{KEY, START, stream, template, timeline};
use packetrig_engine::Error;
use packetrig_engine::port::{FrameRx, RxFrame};
use packetrig_engine::receiver::TestReceiver;
use packetrig_engine::stream::{RxJob, StreamControl, StreamRx};
use packetrig_plan::timeline::SendPattern;
use packetrig_stats::port::{RxCounters, StampKind};
use packetrig_units::{MonoTime, Nanos};
use packetrig_wire::header::HeaderKind;
use packetrig_wire::tag::TagStamp;

/// Gives these frames, each with the time at which it came.
struct GivenFrames(Vec<(MonoTime, Vec<u8>)>);

impl FrameRx for GivenFrames {
    fn receive_frames(&mut self, most: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> Result<usize, Error> {
        let given = most.min(self.0.len());
        for (at, bytes) in self.0.drain(..given) {
            sink(RxFrame::single_packet(&bytes, bytes.len(), at, StampKind::Software));
        }
        Ok(given)
    }
    fn wait_for_frames(&mut self, _: Nanos) -> Result<(), Error> {
        Ok(())
    }
    fn read_rx_counters(&mut self) -> Result<RxCounters, Error> {
        Ok(RxCounters::default())
    }
    fn clock_bound(&self) -> Nanos {
        Nanos::ZERO
    }
}

/// Frame `number`, sent at a time and received 10 us later.
fn frame(number: u64, sent: MonoTime) -> (MonoTime, Vec<u8>) {
    let mut bytes = vec![0; 2048];
    let stamp = TagStamp { key: KEY, stream: 0, time: sent.as_nanos() };
    let length = template(HeaderKind::Udp, 128).render_frame(number, stamp, &mut bytes);
    bytes.truncate(length);
    (sent + Nanos::from_micros(10), bytes)
}

#[test]
fn tag_collision_makes_no_copy_of_old_frame() {
    let due = |number: u64| START + Nanos::from_millis(number);
    let mut frames: Vec<_> = (0..6000).map(|number| frame(number, due(number))).collect();
    // A real copy that the network delayed.
    let (_, copy) = frame(5990, due(5990));
    frames.push((due(6001), copy));
    // The other run began five seconds later. In one of 65 536 frames its mark is what this run's key makes.
    frames.extend([17, 900].map(|number| frame(number, due(number + 5_500))));
    frames.sort_by_key(|(at, _)| *at);
    let mut receiver = TestReceiver::new(GivenFrames(frames));
    let job = RxJob {
        port: 0,
        key: KEY,
        streams: vec![stream(0, 128, timeline(1000, SendPattern::Frames(6000)))],
        elsewhere: Vec::new(),
        earlier_runs: Vec::new(),
        taps: Vec::new(),
        has_devices: false,
    };
    receiver.arm_receiver(job).unwrap();
    receiver.apply_control(StreamControl::StartAt(START));
    for _ in 0..6010 {
        receiver.receive_arrivals(due(6010)).unwrap();
    }
    let unnumbered = receiver.port_counters().unwrap().unnumbered;
    let received = receiver.finish_receiving(&[6000]);
    let counts = &received.streams[0].counts;
    assert_eq!((counts.frames, counts.sequence.unique, counts.sequence.duplicates), (6001, 6000, 1));
    assert_eq!((counts.sequence.lost, unnumbered), (0, 2), "their headers are those of the stream");
}
