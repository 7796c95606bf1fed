//! Shared helpers of this crate's tests: streams made by hand, and a stage in virtual time.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    clippy::allow_attributes,
    reason = "each test crate uses a part of it"
)]

pub mod mock;
pub mod plans;

use packetrig_engine::Error;
use packetrig_engine::chaos::{ChaosLevel, ChaosWorker};
use packetrig_engine::gate::SendGate;
use packetrig_engine::receiver::TestReceiver;
use packetrig_engine::sender::TestSender;
use packetrig_engine::sim::{
    ClockSkew, FaultChance, LinkSpec, LinkTruth, SimLink, SimRx, SimTx, SimulationStage, VirtualClock,
};
use packetrig_engine::stream::{FrameSource, RxJob, StreamControl, StreamRx, StreamSpec, StreamTx, TxJob};
use packetrig_plan::timeline::{SendPattern, StreamTimeline};
use packetrig_stats::port::{RxCounters, TxCounters};
use packetrig_stats::result::{ReceiveResult, SendResult};
use packetrig_units::{FrameRate, FrameSize, MonoTime, Nanos};
use packetrig_wire::header::{HeaderKind, PacketHeader};
use packetrig_wire::payload::PayloadPattern;
use packetrig_wire::size::SizePattern;
use packetrig_wire::tag::TagKey;
use packetrig_wire::{FrameSpec, FrameTemplate};
use std::sync::Arc;

/// Key of every test's tags.
pub const KEY: TagKey = TagKey(77);
/// When virtual schedules begin.
pub const START: MonoTime = MonoTime::from_nanos(1_000_000_000_000);

/// Ethernet, IPv4 and the given transport.
pub fn template(transport: HeaderKind, size: u32) -> Arc<FrameTemplate> {
    let headers = vec![
        PacketHeader::new(HeaderKind::Ethernet)
            .with_field("dst", 0x0200_0000_0002)
            .with_field("src", 0x0200_0000_0001),
        PacketHeader::new(HeaderKind::Ipv4).with_field("src", 0xc612_0001).with_field("dst", 0xc613_0001),
        PacketHeader::new(transport),
    ];
    let size = SizePattern::Fixed(FrameSize::new(size));
    let spec =
        FrameSpec { headers, size, payload: PayloadPattern::IncrementByte, tagged: true, routed: false };
    Arc::new(FrameTemplate::new(spec).expect("headers fit"))
}

pub fn timeline(pps: u64, shape: SendPattern) -> StreamTimeline {
    StreamTimeline { rate: FrameRate::per_second(pps).expect("not zero"), delay: Nanos::ZERO, shape }
}

/// A UDP stream.
pub fn stream(number: u16, size: u32, timeline: StreamTimeline) -> Arc<StreamSpec> {
    Arc::new(StreamSpec {
        number,
        source: FrameSource::Made(template(HeaderKind::Udp, size)),
        timeline,
        latency: true,
        sent_elsewhere: false,
        untimed: false,
    })
}

/// A trial in virtual time: one port sends to another.
pub struct Trial {
    pub streams: Vec<Arc<StreamSpec>>,
    pub link: LinkSpec,
    pub refuse: FaultChance,
    pub skew: ClockSkew,
    pub tx_mood: ChaosLevel,
    pub rx_mood: ChaosLevel,
    pub gate: SendGate,
    /// Stop this long after the start.
    pub stop: Option<Nanos>,
    /// Shut the gate this long after the start.
    pub shut: Option<Nanos>,
}

pub struct Outcome {
    pub send: Vec<SendResult>,
    pub receive: Vec<ReceiveResult>,
    pub tx: TxCounters,
    pub rx: RxCounters,
    pub truth: LinkTruth,
}

impl Trial {
    pub fn of(streams: Vec<Arc<StreamSpec>>, link: LinkSpec) -> Self {
        Self {
            streams,
            link,
            refuse: FaultChance::NEVER,
            skew: ClockSkew::default(),
            tx_mood: ChaosLevel::default(),
            rx_mood: ChaosLevel::default(),
            gate: SendGate::without_lease(),
            stop: None,
            shut: None,
        }
    }

    pub fn run(self) -> Result<Outcome, Error> {
        let clock = VirtualClock::new(START - Nanos::from_millis(1));
        let link = SimLink::new(self.link);
        let tx = SimTx::new(vec![link.clone()], clock.clone()).with_refusals(self.refuse, 1);
        let rx = SimRx::new(vec![link.clone()], clock.clone()).with_skew(self.skew);
        let mut sender = TestSender::new(ChaosWorker::new(tx, self.tx_mood), clock.clone());
        let mut receiver = TestReceiver::new(ChaosWorker::new(rx, self.rx_mood));
        receiver.arm_receiver(RxJob {
            elsewhere: Vec::new(),
            earlier_runs: Vec::new(),
            port: 1,
            key: KEY,
            streams: self.streams.clone(),
            taps: Vec::new(),
            has_devices: false,
        })?;
        let gate = self.gate.clone();
        sender.arm_sender(TxJob { key: KEY, streams: self.streams, steered: false, gate: self.gate })?;
        let mut stage = SimulationStage {
            clock,
            links: vec![link.clone()],
            senders: vec![&mut sender],
            receivers: vec![&mut receiver],
        };
        stage.apply_control(StreamControl::StartAt(START));
        if let Some(stop) = self.stop {
            assert!(!stage.run_until(START + stop)?, "nothing was left to stop");
            stage.apply_control(StreamControl::Stop);
        }
        if let Some(shut) = self.shut {
            assert!(!stage.run_until(START + shut)?, "nothing was left to send");
            gate.shut_now();
        }
        assert!(stage.run_until(START + Nanos::from_secs(3_600))?, "it came to no end");
        let (tx, rx) = (sender.port_counters()?, receiver.port_counters()?);
        let send = sender.finish_sending();
        let sent: Vec<u64> = send.iter().map(|sent| sent.counts.frames).collect();
        Ok(Outcome { send, receive: receiver.finish_receiving(&sent).streams, tx, rx, truth: link.truth() })
    }
}
