//! The results of a node in a run, which are passed from the data plane to the report.

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

/// Maximum length of a text about a node, in characters. The texts of results come from other machines, so
/// each is read as one line.
const MAX_NODE_TEXT_CHARACTERS: usize = 1000;

/// All counts at one moment of a run. The indices are those of the plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CountSample {
    /// Time of the sample.
    pub at: MonoTime,
    /// Age of the oldest receiver counts in the sample. A receiver publishes its counts a few times a second,
    /// or later if it gets no processor time.
    #[serde(default)]
    pub receivers_behind: Nanos,
    /// (stream, counts) at the senders of this node.
    pub tx: Vec<(usize, StreamTxCounts)>,
    /// (stream, port, counts) at the receivers of this node.
    pub rx: Vec<(usize, usize, StreamRxCounts)>,
    /// (port, counters of its transmit half, counters of its receive half).
    pub ports: Vec<(usize, TxCounters, RxCounters)>,
    /// The neighbours whose MAC addresses the emulated interfaces of this node resolve: one for
    /// each interface and gateway.
    #[serde(default)]
    pub neighbours: Vec<NeighbourState>,
    /// Latency so far over all streams of this node, as (min, mean, max); absent if no latency was measured.
    pub latency: Option<(Nanos, Nanos, Nanos)>,
    /// The captures of this node.
    #[serde(default)]
    pub captures: Vec<CaptureState>,
    /// Recent echo requests of this node's interfaces, as (number, whether the answer arrived). The second
    /// value is absent while this is not known.
    #[serde(default)]
    pub pings: Vec<(u64, Option<bool>)>,
    /// The probes of this node; absent in a run of streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probes: Option<ProbeProgress>,
}

/// The progress of the probes of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeProgress {
    /// Number of probes that have left, or of trains for a capacity measurement.
    pub sent: u64,
    /// Number of answers; zero for probes without a reflector.
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
    /// Returns this sample with the counts of another node of the run added. Latencies are not merged: if the
    /// other node has a latency, it replaces this one.
    #[must_use]
    pub fn merged_with(mut self, other: &Self) -> Self {
        self.tx.extend_from_slice(&other.tx);
        self.rx.extend(other.rx.iter().cloned());
        self.ports.extend_from_slice(&other.ports);
        self.neighbours.extend(other.neighbours.iter().cloned());
        self.captures.extend(other.captures.iter().cloned());
        self.pings.extend_from_slice(&other.pings);
        self.receivers_behind = self.receivers_behind.max(other.receivers_behind);
        // The result is `None` only if no node has probes: an unknown number must not become 0.
        self.probes = self.probes.into_iter().chain(other.probes).reduce(ProbeProgress::plus);
        // The later time is used, so that the sample is not older than any of its counts.
        Self { at: self.at.max(other.at), latency: other.latency.or(self.latency), ..self }
    }
}

/// The total number of frames that a stream sent, from which its receivers compute the loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentTotal {
    /// Index of the stream in the plan.
    pub stream: usize,
    pub frames: u64,
}

/// The state of a capture during the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureState {
    pub port: usize,
    /// True while frames are being captured.
    pub is_running: bool,
    /// File of the last capture; absent until it is complete.
    pub file: Option<String>,
}

/// A neighbour of an emulated interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeighbourState {
    /// Name of the interface.
    #[serde(deserialize_with = "deserialize_line::<MAX_NODE_TEXT_CHARACTERS, _>")]
    pub interface: String,
    pub address: IpAddr,
    /// MAC address of the neighbour; absent until it is known.
    pub mac: Option<[u8; 6]>,
}

/// The result of a stream at its sender.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SendResult {
    /// Index of the stream in the plan.
    pub stream: usize,
    pub counts: StreamTxCounts,
    /// Number of frames that were due by the time the stream ended.
    pub planned: u64,
    /// Distribution of the difference (without its sign) between the time when a frame was built and the time
    /// when it was due.
    pub send_error: Latency,
    /// Time between the timestamp in the tag and the return of the kernel call that accepted the frame: the
    /// uncertainty of the send time.
    pub stamp_bound: Latency,
    /// Frames and bytes per second of the run.
    pub series: RateSeries,
    /// Contents of the frames that left without a tag.
    #[serde(default)]
    pub untagged_contents: ContentCounts,
}

/// The result of a stream at one receiver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReceiveResult {
    /// Index of the stream in the plan.
    pub stream: usize,
    /// Index of the receiving port in the plan.
    pub port: usize,
    pub counts: StreamRxCounts,
    /// One-way latency; absent if it was not requested or if no frame carried a send time.
    pub latency: Option<Latency>,
    /// Jitter by its different definitions; absent in the same cases as the latency.
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
    /// Number of all these frames, copies included.
    pub frames: u64,
    /// Number of the frames to a group address (broadcast or multicast), which a switch normally sends to
    /// all of its ports.
    pub to_groups: u64,
    /// Sequence numbers of these frames in the stream.
    pub numbers: NumberRanges,
}

/// Frames of another run that arrived at a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherRunFrames {
    /// Index of the port where they arrived.
    pub port: usize,
    /// Name of the run, if this machine knows it.
    #[serde(default, deserialize_with = "deserialize_optional_line::<MAX_NODE_TEXT_CHARACTERS, _>")]
    pub run: Option<String>,
    pub frames: u64,
}

/// The maximum number of frames that a port sent within 1, 10 and 100 ms, computed from the times when
/// the frames were built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendingPeaks {
    pub in_1ms: u64,
    pub in_10ms: u64,
    pub in_100ms: u64,
}

/// Frames that followed earlier frames sooner than planned, because the sender had been delayed. A device
/// that can carry the planned load may still drop this number of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CatchUpBurst {
    /// Time at which the first of these frames left.
    pub from: MonoTime,
    /// Time at which the last of these frames left.
    pub until: MonoTime,
    pub frames: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PortResult {
    /// Index of the port in the plan.
    pub port: usize,
    pub info: PortInfo,
    pub tx: TxCounters,
    pub rx: RxCounters,
    /// The part of the ledger that concerns this port.
    pub ledger: FrameLedger,
    /// Frames and bytes sent per second (all streams).
    pub tx_series: RateSeries,
    /// Frames and bytes received per second (all streams).
    pub rx_series: RateSeries,
    /// Maximum error of the conversion of arrival timestamps to the monotonic clock.
    pub clock_bound: Nanos,
    /// Events of its interface during the run.
    #[serde(default)]
    pub events: Vec<PortEvent>,
    /// Contents of the frames that arrived without a tag, if the plan replays a capture file to this port.
    #[serde(default)]
    pub untagged_contents: ContentCounts,
    /// The maximum number of frames that left within short intervals.
    #[serde(default)]
    pub peaks: Option<SendingPeaks>,
    /// Frames that left closer together than planned.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sent_ahead: Vec<CatchUpBurst>,
}

/// A capture file written during the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureResult {
    pub port: usize,
    pub file: String,
    pub written: u64,
    /// Frames that passed the filter and were lost before they were written to the file.
    pub dropped: u64,
}

/// The machine that a node runs on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineInfo {
    /// Kernel release of the node.
    #[serde(deserialize_with = "deserialize_line::<MAX_NODE_TEXT_CHARACTERS, _>")]
    pub kernel: String,
    /// Name of the instruction set, such as `x86_64`.
    #[serde(deserialize_with = "deserialize_line::<MAX_NODE_TEXT_CHARACTERS, _>")]
    pub architecture: String,
    /// Model of the processors; absent if the kernel does not report it.
    #[serde(default, deserialize_with = "deserialize_optional_line::<MAX_NODE_TEXT_CHARACTERS, _>")]
    pub processor: Option<String>,
    /// Number of processors that the node may use; absent if the kernel does not report it.
    pub processors: Option<u32>,
}

/// All results of one node in a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeResult {
    /// The node's name; `local` on one machine.
    #[serde(deserialize_with = "deserialize_line::<MAX_NODE_TEXT_CHARACTERS, _>")]
    pub node: String,
    /// Time of the start, on this node's clock.
    pub started: MonoTime,
    /// Time at which the last sender finished.
    pub senders_done: MonoTime,
    /// Time at which the receivers stopped.
    pub ended: MonoTime,
    /// One result for each stream that this node sent.
    pub send: Vec<SendResult>,
    /// One result for each stream and port at which this node received it.
    pub receive: Vec<ReceiveResult>,
    /// Frames that arrived at ports of this node where their stream is not expected.
    #[serde(default)]
    pub misdelivered: Vec<MisdeliveredFrames>,
    /// Frames of other runs that arrived at ports of this node.
    #[serde(default)]
    pub other_runs: Vec<OtherRunFrames>,
    pub ports: Vec<PortResult>,
    pub captures: Vec<CaptureResult>,
    /// Results of the probes, in a run with probes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probes: Option<ProbeNodeResult>,
    pub caveats: Vec<Caveat>,
    /// Relation of this node's clock to the controller's clock; absent if there is only one node, or
    /// if nothing is known.
    #[serde(default)]
    pub clock: Option<ClockRecord>,
    /// The machine of the node; absent from a node with an older version.
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
