//! What a node says that sends no frames: it offers one port, and its streams are whole and in order.

use packetrig_fleet::hello::{FLEET_PROTOCOL_VERSION, NodeHello, OfferedPort};
use packetrig_stats::content::ContentCounts;
use packetrig_stats::counts::{StreamRxCounts, StreamTxCounts};
use packetrig_stats::latency::Latency;
use packetrig_stats::outage::OutageList;
use packetrig_stats::result::{ReceiveResult, SendResult};
use packetrig_stats::sequence::SequenceCounts;
use packetrig_stats::series::{QualitySeries, RateSeries};

/// The one port of each node.
pub(crate) const INTERFACE: &str = "eth1";
/// Frames of each stream, and how long they take.
pub(crate) const FRAMES: u64 = 50;
pub(crate) const FRAMES_PER_SECOND: u64 = 10;

pub(crate) fn hello() -> NodeHello {
    let port = OfferedPort {
        interface: INTERFACE.to_owned(),
        labels: Vec::new(),
        driver: "none".to_owned(),
        speed: None,
        up: true,
        back_ends: Vec::new(),
        addresses: Vec::new(),
    };
    NodeHello {
        incarnation: 1,
        protocol: FLEET_PROTOCOL_VERSION,
        ports: vec![port],
        disk_free: u64::MAX,
        ..NodeHello::default()
    }
}

pub(crate) fn received(frames: u64) -> StreamRxCounts {
    let sequence = SequenceCounts { unique: frames, ..SequenceCounts::default() };
    StreamRxCounts { frames, sequence, ..StreamRxCounts::default() }
}

pub(crate) fn send_result(stream: usize, frames: u64) -> SendResult {
    SendResult {
        untagged_contents: ContentCounts::default(),
        stream,
        counts: StreamTxCounts { frames, ..StreamTxCounts::default() },
        planned: FRAMES,
        send_error: Latency::with_digits(2),
        stamp_bound: Latency::with_digits(2),
        series: RateSeries::default(),
    }
}

pub(crate) fn receive_result(stream: usize, port: usize, frames: u64) -> ReceiveResult {
    ReceiveResult {
        outages: OutageList::default(),
        quality: QualitySeries::default(),
        stream,
        port,
        counts: received(frames),
        latency: None,
        jitter: None,
        series: RateSeries::default(),
    }
}
