//! The results of a node in a run: the value that goes from the data plane to the report.

use crate::caveat::Caveat;
use crate::clock::ClockRecord;
use crate::content::ContentCounts;
use crate::counts::{StreamRxCounts, StreamTxCounts};
use crate::jitter::JitterSummary;
use crate::latency::Latency;
use crate::ledger::FrameLedger;
use crate::outage::OutageList;
use crate::port::{PortInfo, RxCounters, TxCounters};
use crate::port_event::PortEvent;
use crate::probe::ProbeNodeResult;
use crate::ranges::NumberRanges;
use crate::series::{QualitySeries, RateSeries};
use packetrig_units::text::{deserialize_line, deserialize_optional_line};
use packetrig_units::{MonoTime, Nanos};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Longest text about a node, in characters. Texts of results come from other machines, so they are read as one line each.
const MAX_NODE_TEXT_CHARACTERS: usize = 1000;

/// All counts at one moment of a run in progress. Indices are those of the plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CountSample {
    /// Time of the sample.
    pub at: MonoTime,
    /// Age of the oldest receiver counts in the sample. A receiver publishes them a few times a second, or
    /// later if it gets no processor time.
    #[serde(default)]
    pub receivers_behind: Nanos,
    /// (stream, counts) at the senders of this node.
    pub tx: Vec<(usize, StreamTxCounts)>,
    /// (stream, port, counts) at the receivers of this node.
    pub rx: Vec<(usize, usize, StreamRxCounts)>,
    /// (port, transmit half, receive half).
    pub ports: Vec<(usize, TxCounters, RxCounters)>,
    /// The neighbours that emulated interfaces of this node resolve: one for each interface and gateway.
    #[serde(default)]
    pub neighbours: Vec<NeighbourState>,
    /// Latency so far over all streams of this node, as (min, mean, max); absent without latency.
    pub latency: Option<(Nanos, Nanos, Nanos)>,
    /// The captures of this node.
    #[serde(default)]
    pub captures: Vec<CaptureState>,
    /// Recent echo requests of this node's interfaces: (number, whether the answer came); absent until this is known.
    #[serde(default)]
    pub pings: Vec<(u64, Option<bool>)>,
    /// The probes of this node; absent in a run of streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probes: Option<ProbeProgress>,
}

/// Progress of the probes of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeProgress {
    /// Probes, or trains of a capacity, that have left.
    pub sent: u64,
    /// Answers to probes; zero for probes that have no reflector.
    pub answered: u64,
}

impl ProbeProgress {
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            sent: self.sent.saturating_add(other.sent),
            answered: self.answered.saturating_add(other.answered),
        }
    }
}

impl CountSample {
    /// Adds the counts of another node of the run. Latencies are not merged: if the other node has a latency,
    /// it replaces this one.
    #[must_use]
    pub fn merged_with(mut self, other: &Self) -> Self {
        self.tx.extend_from_slice(&other.tx);
        self.rx.extend(other.rx.iter().cloned());
        self.ports.extend_from_slice(&other.ports);
        self.neighbours.extend(other.neighbours.iter().cloned());
        self.captures.extend(other.captures.iter().cloned());
        self.pings.extend_from_slice(&other.pings);
        self.receivers_behind = self.receivers_behind.max(other.receivers_behind);
        // `None` only if no node has probes: an unknown number must not become 0.
        self.probes = self.probes.into_iter().chain(other.probes).reduce(ProbeProgress::plus);
        // The later time, so that the sample is not older than any of its counts.
        Self { at: self.at.max(other.at), latency: other.latency.or(self.latency), ..self }
    }
}

/// Total of the frames that a stream sent: its receivers measure their loss against it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentTotal {
    /// Index in the plan.
    pub stream: usize,
    pub frames: u64,
}

/// The state of a capture during the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureState {
    pub port: usize,
    /// Frames are being captured.
    pub is_running: bool,
    /// File of the last capture, once it is complete.
    pub file: Option<String>,
}

/// A neighbour of an emulated interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeighbourState {
    /// Name of the interface.
    #[serde(deserialize_with = "deserialize_line::<MAX_NODE_TEXT_CHARACTERS, _>")]
    pub interface: String,
    pub address: IpAddr,
    /// MAC address of the neighbour, once it is known.
    pub mac: Option<[u8; 6]>,
}

/// A stream at its sender.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SendResult {
    /// Index of the stream in the plan.
    pub stream: usize,
    pub counts: StreamTxCounts,
    /// Frames due by the time it ended.
    pub planned: u64,
    /// |actual - due| of the moment each frame was built.
    pub send_error: Latency,
    /// Time from the stamp in the tag to the return of the kernel call that took the frame: the uncertainty of the send time.
    pub stamp_bound: Latency,
    /// Frames and bytes per second of the run.
    pub series: RateSeries,
    /// Content of the frames that left without a tag.
    #[serde(default)]
    pub untagged_contents: ContentCounts,
}

/// A stream at one receiver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReceiveResult {
    /// Index of the stream in the plan.
    pub stream: usize,
    /// Index of the receiving port in the plan.
    pub port: usize,
    pub counts: StreamRxCounts,
    /// One-way latency; absent if it was not requested or if no frame carried a send time.
    pub latency: Option<Latency>,
    /// Jitter by its definitions; absent as latency is.
    pub jitter: Option<JitterSummary>,
    /// Frames and bytes per second of the run.
    pub series: RateSeries,
    /// Outages of the stream.
    #[serde(default)]
    pub outages: OutageList,
    /// Losses and delays per second of the run.
    #[serde(default)]
    pub quality: QualitySeries,
}

/// Frames of a stream that arrived at a port where the plan does not expect them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MisdeliveredFrames {
    /// Index of the stream in the plan.
    pub stream: usize,
    /// Index of the port where they arrived.
    pub port: usize,
    /// All these frames, copies included.
    pub frames: u64,
    /// Frames to a group address (broadcast or multicast), which a switch sends to all its ports by rule.
    pub to_groups: u64,
    /// Numbers of these frames in the stream.
    pub numbers: NumberRanges,
}

/// Frames of another run that arrived at a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherRunFrames {
    /// Index of the port where they arrived.
    pub port: usize,
    /// The run, if this machine knows it.
    #[serde(default, deserialize_with = "deserialize_optional_line::<MAX_NODE_TEXT_CHARACTERS, _>")]
    pub run: Option<String>,
    pub frames: u64,
}

/// Maximum number of frames that a port sent within a time, by the times at which they were built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendingPeaks {
    pub in_1ms: u64,
    pub in_10ms: u64,
    pub in_100ms: u64,
}

/// Frames that left sooner after earlier frames than planned, because the sender had been delayed. A device
/// that carries the plan may drop this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentAheadBurst {
    /// Time at which the first of these frames left.
    pub from: MonoTime,
    /// Time at which the last of these frames left.
    pub until: MonoTime,
    pub frames: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PortResult {
    /// Index in the plan.
    pub port: usize,
    pub info: PortInfo,
    pub tx: TxCounters,
    pub rx: RxCounters,
    /// Part of the ledger that is about this port.
    pub ledger: FrameLedger,
    /// Frames and bytes sent per second (all streams).
    pub tx_series: RateSeries,
    /// Frames and bytes received per second (all streams).
    pub rx_series: RateSeries,
    /// Largest doubt of converting arrival stamps to the monotonic clock.
    pub clock_bound: Nanos,
    /// Events of its interface during the run.
    #[serde(default)]
    pub events: Vec<PortEvent>,
    /// Content of the frames that arrived without a tag, where frames of a file were expected.
    #[serde(default)]
    pub untagged_contents: ContentCounts,
    /// The most frames that left within short times.
    #[serde(default)]
    pub peaks: Option<SendingPeaks>,
    /// Frames that left closer together than planned.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sent_ahead: Vec<SentAheadBurst>,
}

/// A capture file written during the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureResult {
    pub port: usize,
    pub file: String,
    pub written: u64,
    /// Frames that passed the filter and were lost on the way to the file.
    pub dropped: u64,
}

/// The machine that a node runs on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineInfo {
    /// Kernel release of the node.
    #[serde(deserialize_with = "deserialize_line::<MAX_NODE_TEXT_CHARACTERS, _>")]
    pub kernel: String,
    /// Name of its instruction set, such as `x86_64`.
    #[serde(deserialize_with = "deserialize_line::<MAX_NODE_TEXT_CHARACTERS, _>")]
    pub architecture: String,
    /// Model of its processors; absent if the kernel does not say.
    #[serde(default, deserialize_with = "deserialize_optional_line::<MAX_NODE_TEXT_CHARACTERS, _>")]
    pub processor: Option<String>,
    /// Processors that the node may use; absent if the kernel does not say.
    pub processors: Option<u32>,
}

/// All results of one node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeResult {
    /// The node's name; `local` on one machine.
    #[serde(deserialize_with = "deserialize_line::<MAX_NODE_TEXT_CHARACTERS, _>")]
    pub node: String,
    /// Instant of the start, on this node's clock.
    pub started: MonoTime,
    /// Instant the last sender was done.
    pub senders_done: MonoTime,
    /// Instant the receivers stopped.
    pub ended: MonoTime,
    /// Per stream sent here.
    pub send: Vec<SendResult>,
    /// Per stream and port received here.
    pub receive: Vec<ReceiveResult>,
    /// Frames at ports here that expect none of their stream.
    #[serde(default)]
    pub misdelivered: Vec<MisdeliveredFrames>,
    /// Frames of other runs at ports here.
    #[serde(default)]
    pub other_runs: Vec<OtherRunFrames>,
    pub ports: Vec<PortResult>,
    pub captures: Vec<CaptureResult>,
    /// Results of the probes, in a run with probes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probes: Option<ProbeNodeResult>,
    pub caveats: Vec<Caveat>,
    /// Relation of its clock to the controller's; absent if it is the only node or nothing is known.
    #[serde(default)]
    pub clock: Option<ClockRecord>,
    /// Absent from a node of an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineInfo>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caveat::CaveatKind;
    use crate::probe::{ProbeLineEndReason, ProbeLineResult};

    #[test]
    fn texts_of_results_are_one_bounded_line() {
        let bad = "a\nVerdict: PASS\u{1b}[31m".to_owned() + &"x".repeat(10_000);
        let line = ProbeLineResult {
            mechanism: bad.clone(),
            why: bad.clone(),
            ..ProbeLineResult::without_probes(0, 1, ProbeLineEndReason::Failed(bad.clone()))
        };
        let result = NodeResult {
            node: bad.clone(),
            caveats: vec![Caveat {
                doubt: CaveatKind::SentLate,
                subject: bad.clone(),
                text: bad.clone(),
                matters: false,
            }],
            other_runs: vec![OtherRunFrames { port: 0, run: Some(bad.clone()), frames: 1 }],
            machine: Some(MachineInfo {
                kernel: bad.clone(),
                architecture: bad.clone(),
                processor: Some(bad.clone()),
                processors: None,
            }),
            probes: Some(ProbeNodeResult { lines: vec![line], ..ProbeNodeResult::default() }),
            ..NodeResult::default()
        };
        let sent = serde_json::to_string(&result).expect("it is JSON");
        let read: NodeResult = serde_json::from_str(&sent).expect("it is a result");
        let shown = format!("{read:?}");
        assert!(!shown.contains("a\\nVerdict"), "{shown}");
        let texts = [&read.node, &read.caveats[0].subject, &read.caveats[0].text];
        for text in texts {
            assert!(text.starts_with("a\\u{a}Verdict: PASS\\u{1b}[31m") && text.chars().count() <= 4096);
            assert!(!text.contains(char::is_control));
        }
        let again: NodeResult =
            serde_json::from_str(&serde_json::to_string(&read).expect("it is JSON")).expect("it is a result");
        assert_eq!(again, read, "a line stays as it is");
    }
}
