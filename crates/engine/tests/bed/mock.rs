//! A back end that implements the stream level only: no frame ever exists. It stands for senders in the kernel.

use packetrig_engine::Error;
use packetrig_engine::rig::{OpenPort, PortOpener};
use packetrig_engine::stream::{
    NextStep, ReceivedFrames, RxJob, StreamControl, StreamRx, StreamSpec, StreamTx, TxJob,
};
use packetrig_plan::Port;
use packetrig_stats::counts::DelaySummary;
use packetrig_stats::counts::{StreamRxCounts, StreamTxCounts};
use packetrig_stats::latency::Latency;
use packetrig_stats::port::{BackEnd, PortInfo, RxCounters, StampKind, TxCounters};
use packetrig_stats::result::{ReceiveResult, SendResult};
use packetrig_stats::sequence::SequenceWindow;
use packetrig_stats::series::RateSeries;
use packetrig_units::{FrameSize, MonoTime, Nanos};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

/// Constant latency of its results.
pub const LATENCY: Nanos = Nanos::new(4_321);

/// One wire between all its ports: frames sent so far, by stream.
#[derive(Default)]
pub struct MockPorts {
    pub wire: Arc<Mutex<Vec<u64>>>,
    /// Numbers that never arrive, of each stream.
    pub lost: BTreeSet<u64>,
    pub ring_dropped: u64,
}

impl PortOpener for MockPorts {
    fn open_port(&self, port: &Port, _largest: Option<FrameSize>) -> Result<OpenPort, Error> {
        let info = PortInfo {
            name: port.name.clone(),
            location: port.location.to_string(),
            back_end: BackEnd::Mock,
            why: "a test".into(),
            driver: "mock".into(),
            speed: None,
            max_frame: 1518,
            tx_stamp: StampKind::User,
            rx_stamp: StampKind::User,
        };
        let tx = MockTx {
            wire: Arc::clone(&self.wire),
            streams: vec![],
            sent: vec![],
            start: None,
            stopped: false,
        };
        let rx = MockRx {
            wire: Arc::clone(&self.wire),
            lost: self.lost.clone(),
            ring_dropped: self.ring_dropped,
            port: 0,
            streams: vec![],
            seen: 0,
        };
        Ok(OpenPort { info, tx: Box::new(tx), rx: Box::new(rx), hold: Box::new(()) })
    }
}

struct MockTx {
    wire: Arc<Mutex<Vec<u64>>>,
    streams: Vec<Arc<StreamSpec>>,
    sent: Vec<u64>,
    start: Option<MonoTime>,
    stopped: bool,
}

impl MockTx {
    fn send_until(&mut self, now: MonoTime) {
        let Some(start) = self.start else { return };
        let mut wire = self.wire.lock().expect("no test panics with it");
        for (spec, sent) in self.streams.iter().zip(&mut self.sent) {
            *sent = spec.timeline.frames_due_before(now.since(start)).max(*sent);
            let number = usize::from(spec.number);
            if wire.len() <= number {
                wire.resize(number + 1, 0);
            }
            wire[number] = *sent;
        }
    }

    fn bytes(spec: &StreamSpec, frames: u64) -> u64 {
        (0..frames)
            .map(|n| u64::from(spec.source.template().expect("these frames are made").frame_size(n).bytes()))
            .sum()
    }
}

impl StreamTx for MockTx {
    fn arm_sender(&mut self, job: TxJob) -> Result<(), Error> {
        self.sent = vec![0; job.streams.len()];
        self.streams = job.streams;
        Ok(())
    }

    fn apply_control(&mut self, control: StreamControl) {
        match control {
            StreamControl::StartAt(start) => self.start = Some(start),
            StreamControl::Stop => self.stopped = true,
        }
    }

    fn send_due(&mut self, now: MonoTime) -> Result<NextStep, Error> {
        if self.stopped {
            return Ok(NextStep::Done);
        }
        self.send_until(now);
        let ended = |(spec, sent): (&Arc<StreamSpec>, &u64)| spec.timeline.total_frames() == Some(*sent);
        let done = self.start.is_some() && self.streams.iter().zip(&self.sent).all(ended);
        Ok(if done { NextStep::Done } else { NextStep::IdleUntil(now + Nanos::from_millis(1)) })
    }

    fn stream_counts(&self) -> Vec<StreamTxCounts> {
        let counts = self.streams.iter().zip(&self.sent).map(|(spec, sent)| StreamTxCounts {
            frames: *sent,
            bytes: Self::bytes(spec, *sent),
            first: self.start,
            ..StreamTxCounts::default()
        });
        counts.collect()
    }

    fn port_counters(&mut self) -> Result<TxCounters, Error> {
        let sent = self.sent.iter().sum();
        Ok(TxCounters { handed_over: sent, refused: 0, on_wire: Some(sent), dropped: Some(0) })
    }

    fn finish_sending(&mut self) -> Vec<SendResult> {
        let results = self.streams.iter().zip(self.stream_counts()).map(|(spec, counts)| SendResult {
            untagged_contents: packetrig_stats::content::ContentCounts::default(),
            stream: spec.number.into(),
            planned: counts.frames,
            counts,
            send_error: Latency::with_digits(2),
            stamp_bound: Latency::with_digits(2),
            series: RateSeries::default(),
        });
        results.collect()
    }
}

struct Lane {
    spec: Arc<StreamSpec>,
    looked_at: u64,
    window: SequenceWindow,
    latency: Latency,
}

struct MockRx {
    wire: Arc<Mutex<Vec<u64>>>,
    lost: BTreeSet<u64>,
    ring_dropped: u64,
    port: usize,
    streams: Vec<Lane>,
    seen: u64,
}

impl MockRx {
    fn counts_of(lane: &Lane) -> StreamRxCounts {
        let sequence = lane.window.counts();
        StreamRxCounts {
            frames: sequence.unique,
            bytes: sequence.unique * 128,
            sequence,
            ..StreamRxCounts::default()
        }
    }
}

impl StreamRx for MockRx {
    fn arm_receiver(&mut self, job: RxJob) -> Result<(), Error> {
        self.port = job.port;
        let lane = |spec| Lane {
            spec,
            looked_at: 0,
            window: SequenceWindow::new(),
            latency: Latency::with_digits(3),
        };
        self.streams = job.streams.into_iter().map(lane).collect();
        Ok(())
    }

    fn apply_control(&mut self, _control: StreamControl) {}

    fn receive_arrivals(&mut self, now: MonoTime) -> Result<NextStep, Error> {
        let wire = self.wire.lock().expect("no test panics with it").clone();
        for lane in &mut self.streams {
            let sent = wire.get(usize::from(lane.spec.number)).copied().unwrap_or(0);
            for number in (lane.looked_at..sent).filter(|number| !self.lost.contains(number)) {
                lane.window.on_arrival(number, now, |_| 0);
                lane.latency.record_time(LATENCY);
                self.seen += 1;
            }
            lane.looked_at = sent;
        }
        Ok(NextStep::IdleUntil(now + Nanos::from_millis(1)))
    }

    fn wait_for_frames(&mut self, within: Nanos) -> Result<(), Error> {
        std::thread::sleep(within.to_std());
        Ok(())
    }

    fn stream_counts(&self) -> Vec<StreamRxCounts> {
        self.streams.iter().map(Self::counts_of).collect()
    }

    fn current_latency(&self) -> DelaySummary {
        let mut latency = DelaySummary::default();
        latency.record_delay(LATENCY);
        latency
    }

    fn port_counters(&mut self) -> Result<RxCounters, Error> {
        let arrived = Some(self.seen + self.ring_dropped);
        Ok(RxCounters { arrived, ring_dropped: self.ring_dropped, seen: self.seen, ..RxCounters::default() })
    }

    fn clock_bound(&self) -> Nanos {
        Nanos::new(9)
    }

    fn finish_receiving(&mut self, sent: &[u64]) -> ReceivedFrames {
        let mut streams = Vec::new();
        for (lane, sent) in self.streams.iter_mut().zip(sent) {
            lane.window.finish_stream(*sent, |_| 0);
            streams.push(ReceiveResult {
                outages: packetrig_stats::outage::OutageList::default(),
                quality: packetrig_stats::series::QualitySeries::default(),
                stream: lane.spec.number.into(),
                port: self.port,
                counts: Self::counts_of(lane),
                latency: Some(lane.latency.clone()),
                jitter: None,
                series: RateSeries::default(),
            });
        }
        ReceivedFrames { streams, ..ReceivedFrames::default() }
    }
}
