//! Measures the cost of a lease for a sender: frames per second into a port that does nothing, without and with one.
#![expect(clippy::print_stdout, reason = "a measurement is printed")]

use packetrig_engine::Error;
use packetrig_engine::clock::RealClock;
use packetrig_engine::gate::SendGate;
use packetrig_engine::port::{FrameTx, WorkerClock};
use packetrig_engine::sender::TestSender;
use packetrig_engine::stream::{FrameSource, StreamControl, StreamSpec, StreamTx, TxJob};
use packetrig_plan::Plan;
use packetrig_plan::timeline::{SendPattern, StreamTimeline};
use packetrig_stats::port::TxCounters;
use packetrig_sys::clock;
use packetrig_units::{FrameRate, Nanos};
use packetrig_wire::tag::TagKey;
use std::sync::Arc;

/// Takes everything at once.
struct Nowhere(Vec<u8>);

impl FrameTx for Nowhere {
    fn fill_slots(&mut self, want: usize, fill: &mut dyn FnMut(&mut [u8]) -> Option<usize>) -> usize {
        (0..want).take_while(|_| fill(&mut self.0).is_some()).count()
    }
    fn flush_frames(&mut self) -> Result<(), Error> {
        Ok(())
    }
    fn pending_frames(&self) -> usize {
        0
    }
    fn read_tx_counters(&mut self) -> Result<TxCounters, Error> {
        Ok(TxCounters::default())
    }
}

/// Frames sent in a fifth of a second, of a stream that can never keep up.
fn frames(gate: SendGate) -> Result<u64, Box<dyn std::error::Error>> {
    let text = "ports: [{name: a, location: lo}]\nflows: [{name: f, tx_rx: {choice: port, port: {tx_name: a, rx_names: []}}, size: {choice: fixed, fixed: 64}, metrics: {enable: true}}]";
    let plan = Plan::from_text(text).map_err(|problems| problems.to_string())?;
    let rate = FrameRate::per_second(1_000_000_000).ok_or("a rate")?;
    let timeline = StreamTimeline { rate, delay: Nanos::ZERO, shape: SendPattern::Endless };
    let source = FrameSource::from_origin(&plan.streams[0].frames);
    let spec = Arc::new(StreamSpec {
        number: 0,
        source,
        timeline,
        latency: true,
        sent_elsewhere: false,
        untimed: false,
    });
    let mut sender = TestSender::new(Nowhere(vec![0; 2048]), RealClock::new());
    sender.arm_sender(TxJob { key: TagKey(1), streams: vec![spec], steered: false, gate })?;
    let clock = RealClock::new();
    let start = clock.now();
    sender.apply_control(StreamControl::StartAt(start));
    let end = start + Nanos::from_millis(200);
    loop {
        let now = clock.now();
        if now >= end {
            break;
        }
        sender.send_due(now)?;
    }
    Ok(sender.stream_counts()[0].frames)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut without, mut with) = (0, 0);
    for _ in 0..15 {
        without = without.max(frames(SendGate::without_lease())?);
        let gate = SendGate::under_lease();
        gate.set_deadline(clock::boottime_ns() + 3_600_000_000_000);
        with = with.max(frames(gate)?);
    }
    println!(
        "without a lease {} frames/s, with one {} frames/s, ratio {:.4}",
        without * 5,
        with * 5,
        with as f64 / without as f64
    );
    Ok(())
}
