//! Rows of the nodes in a report: the counts of each node, its clock, and its start relative to the start
//! time of the run.
//!
//! Times of different nodes are converted to the controller's clock before they are compared, and carry the bound of the
//! conversion. The time of a first frame is its stamp; how long it then took to reach the wire is unknown here.

use super::figures::saturating_sum_of;
use super::lookup::ResultLookup;
use packetrig_plan::timeline::StreamTimeline;
use packetrig_stats::clock::{ClockRecord, FitSource};
use packetrig_stats::port::StampKind;
use packetrig_stats::result::{MachineInfo, NodeResult, SendResult};
use packetrig_units::{MonoTime, Nanos, clamp_to_u64};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A node of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeReport {
    pub node: String,
    /// True if the node's result has arrived. Otherwise all other fields are unknown.
    pub reported: bool,
    /// Number of ports of the plan on this node.
    pub ports: usize,
    /// Frames that its senders handed over to the kernel; absent if the node did not report.
    pub sent: Option<u64>,
    /// Frames of the run that its receivers counted, copies included; absent if it did not report.
    pub received: Option<u64>,
    /// Its clock at the start of the run; absent if it is unknown.
    pub clock: Option<NodeClock>,
    /// Departure of its first frame; absent if it sent nothing, or if its streams had no schedule.
    pub start: Option<NodeStart>,
    /// The machine of the node; absent if the node did not report, or if its version is too old.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineInfo>,
}

/// Comparison of a node's clock with the controller's at the start of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeClock {
    /// Source of the comparison.
    pub source: FitSource,
    /// The node's clock minus the controller's clock at the start of the run, by the best available comparison. The
    /// offset and its bound are absent if the comparisons before and after the run contradict each other.
    pub offset_ns: Option<i64>,
    /// Error bound of `offset_ns`.
    pub bound: Option<Nanos>,
    /// The comparisons, with their times.
    pub record: ClockRecord,
}

/// Departure of the first frame of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStart {
    /// Delay of the departure after its due time, by the controller's clock; negative if the frame left
    /// early. Absent if the relation of the clocks is unknown.
    pub skew_ns: Option<i64>,
    /// Error bound of `skew_ns`.
    pub bound: Option<Nanos>,
    /// Delay of the departure after its due time, by the node's own clock; negative if the frame left early.
    pub late_ns: i64,
    /// Source of the departure's timestamp.
    pub stamp: Option<StampKind>,
}

/// Verdict on the wanted skew of the starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum SkewVerdict {
    /// The skew was met, whatever the true value within the bounds.
    Met,
    /// The skew was not met, whatever the true value within the bounds.
    NotMet,
    /// The bounds leave the result open.
    Unknown,
}

impl fmt::Display for SkewVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Met => "MET",
            Self::NotMet => "NOT_MET",
            Self::Unknown => "INCONCLUSIVE",
        })
    }
}

/// Differences between nodes in how late their first frames left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkewReport {
    /// Time from the earliest to the latest start, among nodes with a known clock; absent for fewer than two nodes.
    pub spread: Option<Nanos>,
    /// Largest time by which the true spread can exceed `spread`, by the error bounds of all nodes.
    pub bound: Option<Nanos>,
    /// Lower bound of the true spread: nodes with narrow error bounds may prove a larger spread than the
    /// other nodes. Absent in reports of earlier versions.
    #[serde(default)]
    pub least: Option<Nanos>,
    /// Wanted maximum of the spread.
    pub wanted: Option<Nanos>,
    /// Verdict on the wanted maximum; absent if nothing was wanted.
    pub verdict: Option<SkewVerdict>,
    /// Nodes with an unknown start time.
    pub unknown: Vec<String>,
}

/// Builds one row for each of `names`, in their order.
pub(super) fn build_node_rows(
    names: &[String],
    lookup: &ResultLookup<'_>,
    timelines: &[StreamTimeline],
) -> Vec<NodeReport> {
    let rows = names.iter().map(|name| {
        lookup
            .node_result(name)
            .map_or_else(|| build_missing_node_report(name), |node| node_report(node, timelines))
    });
    rows.collect()
}

fn build_missing_node_report(name: &str) -> NodeReport {
    NodeReport {
        node: name.to_owned(),
        reported: false,
        ports: 0,
        sent: None,
        received: None,
        clock: None,
        start: None,
        machine: None,
    }
}

fn node_report(node: &NodeResult, timelines: &[StreamTimeline]) -> NodeReport {
    NodeReport {
        node: node.node.clone(),
        reported: true,
        ports: node.ports.len(),
        sent: Some(saturating_sum_of(
            node.send.iter().map(|row| row.counts.frames).chain(sent_probe_counts(node)),
        )),
        received: Some(saturating_sum_of(
            node.receive.iter().map(|row| row.counts.frames).chain(received_probe_counts(node)),
        )),
        clock: node.clock.as_ref().map(|clock| build_node_clock(node, clock)),
        start: find_first_departure(node, timelines),
        machine: node.machine.clone().map(shorten_machine_texts),
    }
}

/// Maximum length of a text about a machine, in characters.
const MAX_TEXT: usize = 128;

/// Shortens the texts about a machine. They come from another machine, so they can be of any length.
fn shorten_machine_texts(machine: MachineInfo) -> MachineInfo {
    MachineInfo {
        kernel: shorten_text(&machine.kernel),
        architecture: shorten_text(&machine.architecture),
        processor: machine.processor.map(|model| shorten_text(&model)),
        processors: machine.processors,
    }
}

fn shorten_text(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MAX_TEXT).collect()
}

/// Numbers of sent probes and reflections of a node.
fn sent_probe_counts(node: &NodeResult) -> impl Iterator<Item = u64> {
    let probes = node.probes.iter();
    probes.flat_map(|probes| {
        let reflected = probes.reflected.iter().filter_map(|row| row.reflected);
        probes.lines.iter().map(|row| row.counts.sent).chain(reflected)
    })
}

/// Numbers of received answers, and of probes of other nodes.
fn received_probe_counts(node: &NodeResult) -> impl Iterator<Item = u64> {
    let probes = node.probes.iter();
    probes.flat_map(|probes| {
        let requests = probes.reflected.iter().map(|row| row.requests);
        probes.lines.iter().map(|row| row.counts.answered).chain(requests)
    })
}

/// How far the monotonic clock of one node is ahead of that of another during a run, with its error bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeClockLead {
    pub(super) offset_ns: i64,
    pub(super) bound: Nanos,
    /// True if both nodes use the same clock.
    pub(super) is_same: bool,
}

/// How far the clock of `far` is ahead of the clock of `near` while `near` sent; `None` if a clock is unknown
/// or its comparisons contradict each other.
pub(super) fn node_clock_lead(near: &NodeResult, far: &NodeResult) -> Option<NodeClockLead> {
    let (own, other) = (near.clock.as_ref()?, far.clock.as_ref()?);
    // Both nodes use the controller's clock, so the difference is 0.
    if own.source == FitSource::Same && other.source == FitSource::Same {
        return Some(NodeClockLead { offset_ns: 0, bound: Nanos::ZERO, is_same: true });
    }
    let lead_at = |local: MonoTime| {
        let at = own.before.to_controller(local);
        let (own, other) = (own.best_fit_near(at)?, other.best_fit_near(at)?);
        Some((other.clock_lead_over(&own, at).offset_ns, own.bound_at(at) + other.bound_at(at)))
    };
    let (first, last) = (lead_at(near.started)?, lead_at(near.senders_done)?);
    let drifted = first.0.abs_diff(last.0);
    // One offset is used for the whole run, so it is wrong by up to half of the clocks' drift during the run.
    Some(NodeClockLead {
        offset_ns: first.0.midpoint(last.0),
        bound: first.1.max(last.1) + Nanos::new(drifted.div_ceil(2)),
        is_same: false,
    })
}

fn build_node_clock(node: &NodeResult, record: &ClockRecord) -> NodeClock {
    let near = record.best_fit_near(record.before.to_controller(node.started));
    NodeClock {
        source: record.source,
        offset_ns: near.map(|fit| fit.offset_ns),
        bound: near.map(|fit| fit.bound),
        record: *record,
    }
}

/// The earliest due frame of this node, among the frames that left.
fn find_first_departure(node: &NodeResult, timelines: &[StreamTimeline]) -> Option<NodeStart> {
    // The frame with the smallest due time is used, not the first departure: otherwise the early frame of
    // another stream would hide a late first frame.
    let departures = node.send.iter().filter_map(|row| FirstDeparture::from_send_result(row, timelines));
    let probe = node.probes.as_ref().and_then(|probes| probes.first);
    let probe = probe.map(|probe| FirstDeparture { due: probe.due.since(node.started), left: probe.left });
    let first = departures.chain(probe).min()?;
    let skew = node.clock.and_then(|clock| compute_bounded_skew(&clock, node.started, &first));
    Some(NodeStart {
        skew_ns: skew.map(|skew| skew.ns),
        bound: skew.map(|skew| skew.bound),
        late_ns: first.left.signed_since(node.started + first.due),
        // The greatest kind is the worst one: the bound must hold for every port of the node.
        stamp: node.ports.iter().map(|port| port.info.tx_stamp).max(),
    })
}

/// Due time of the first frame of a stream, counted from the start of the run, and its departure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FirstDeparture {
    due: Nanos,
    left: MonoTime,
}

impl FirstDeparture {
    fn from_send_result(row: &SendResult, timelines: &[StreamTimeline]) -> Option<Self> {
        Some(Self { due: timelines.get(row.stream)?.due_time(0), left: row.counts.first? })
    }
}

/// Delay of a departure after its due time, with its error bound.
#[derive(Clone, Copy, Debug)]
struct BoundedSkew {
    ns: i64,
    bound: Nanos,
}

fn compute_bounded_skew(
    clock: &ClockRecord,
    started: MonoTime,
    first: &FirstDeparture,
) -> Option<BoundedSkew> {
    // The node converted the start time of the run with the clock fit that it had then. The final fit is better, so it
    // shows when the frame really left.
    let start = clock.before.to_controller(started);
    clock
        .to_controller(first.left)
        .map(|(left, bound)| BoundedSkew { ns: left.signed_since(start + first.due), bound })
}

impl SkewReport {
    /// Compares the starts of nodes; `None` unless several nodes sent, or may have sent without a report.
    pub(super) fn from_nodes(rows: &[NodeReport], wanted: Option<Nanos>) -> Option<Self> {
        let starts: Vec<_> = rows.iter().filter_map(|row| Some((row, row.start?))).collect();
        let silent: Vec<&NodeReport> = rows.iter().filter(|row| !row.reported).collect();
        // A node without a result may have started, so its start counts as unknown.
        if rows.len() < 2 || starts.len() + silent.len() < 2 {
            return None;
        }
        let known: Vec<KnownSkew> =
            starts.iter().filter_map(|(_, start)| KnownSkew::from_node_start(start)).collect();
        let blank = starts
            .iter()
            .filter(|(_, start)| KnownSkew::from_node_start(start).is_none())
            .map(|(row, _)| *row);
        let unknown: Vec<String> = blank.chain(silent).map(|row| row.node.clone()).collect();
        let spread = StartSpread::from_skews(&known);
        let verdict = wanted.map(|wanted| match spread {
            // The verdict is NOT_MET only if it holds for the smallest possible spread. It is MET only if it
            // holds for the largest possible spread and every start is known.
            Some(spread) if spread.least > i128::from(wanted.as_u64()) => SkewVerdict::NotMet,
            Some(spread) if unknown.is_empty() && spread.most <= i128::from(wanted.as_u64()) => {
                SkewVerdict::Met
            }
            _ => SkewVerdict::Unknown,
        });
        Some(Self {
            spread: spread.map(|spread| clamp_to_nanos(spread.seen)),
            bound: spread.map(|spread| clamp_to_nanos(spread.most - spread.seen)),
            least: spread.map(|spread| clamp_to_nanos(spread.least)),
            wanted,
            verdict,
            unknown,
        })
    }

    /// Largest spread that is possible within the bounds.
    fn largest_spread(&self) -> Option<Nanos> {
        Some(Nanos::new(self.spread?.as_u64().saturating_add(self.bound?.as_u64())))
    }

    /// Describes the spread for a person: the observed value, and the limits of the true value. `time` formats a time.
    pub fn describe_spread(&self, time: fn(Nanos) -> String) -> Option<String> {
        let (seen, most) = (self.spread?, self.largest_spread()?);
        if most == seen {
            return Some(format!("{} apart", time(seen)));
        }
        let least = self.least.filter(|least| *least > Nanos::ZERO);
        let least = least.map(|least| format!("at least {} and ", time(least)));
        Some(format!("{} apart ({}at most {})", time(seen), least.unwrap_or_default(), time(most)))
    }

    /// Describes why the wanted skew was not met, or why this is unknown. A larger skew is no fault of the device under
    /// test, but the run was not as requested.
    pub(super) fn describe_doubt(&self) -> Option<String> {
        let wanted = self.wanted?;
        let seen = self
            .describe_spread(|time| time.to_string())
            .unwrap_or_else(|| "at times that are not known".to_owned());
        match self.verdict? {
            SkewVerdict::Met => None,
            SkewVerdict::NotMet => {
                Some(format!("start skew NOT_MET: senders began {seen}; wanted at most {wanted}"))
            }
            SkewVerdict::Unknown if self.unknown.is_empty() => Some(format!(
                "start skew INCONCLUSIVE: senders began {seen}, and the clocks are not exact enough to \
                     compare this with the limit of {wanted}"
            )),
            SkewVerdict::Unknown => {
                let nodes = self.unknown.join(", ");
                Some(format!(
                    "start skew INCONCLUSIVE: it is not known when {nodes} began; wanted at most {wanted}"
                ))
            }
        }
    }
}

/// Clamps negative times to zero.
fn clamp_to_nanos(ns: i128) -> Nanos {
    Nanos::new(clamp_to_u64(ns.max(0).unsigned_abs()))
}

/// A known skew with its error bound, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct KnownSkew {
    skew: i128,
    bound: i128,
}

impl KnownSkew {
    fn from_node_start(start: &NodeStart) -> Option<Self> {
        Some(Self { skew: start.skew_ns?.into(), bound: start.bound?.as_u64().into() })
    }
}

/// Time from the first to the last start.
#[derive(Clone, Copy, Debug)]
struct StartSpread {
    seen: i128,
    /// Largest possible spread: the latest start was as late, and the earliest start as early, as their bounds allow.
    most: i128,
    /// Smallest possible spread: the latest start was as early, and the earliest start as late, as their bounds allow.
    least: i128,
}

impl StartSpread {
    fn from_skews(known: &[KnownSkew]) -> Option<Self> {
        if known.len() < 2 {
            return None;
        }
        Some(Self {
            seen: span_of_starts(known, |k| k.skew, |k| k.skew)?,
            most: span_of_starts(known, |k| k.skew + k.bound, |k| k.skew - k.bound)?,
            // May be below zero when the bounds overlap. Then nothing is certain, and the report shows zero.
            least: span_of_starts(known, |k| k.skew - k.bound, |k| k.skew + k.bound)?,
        })
    }
}

/// Time from the earliest to the latest start. `late` and `early` return the values of a skew that are used
/// for the latest and for the earliest start.
fn span_of_starts(
    known: &[KnownSkew],
    late: fn(&KnownSkew) -> i128,
    early: fn(&KnownSkew) -> i128,
) -> Option<i128> {
    Some(known.iter().map(late).max()? - known.iter().map(early).min()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_texts_are_cleaned_and_truncated() {
        let long = MachineInfo {
            kernel: "6\n".repeat(500),
            processor: Some("é".repeat(500)),
            ..MachineInfo::default()
        };
        let bounded = shorten_machine_texts(long);
        assert_eq!(bounded.kernel, "6".repeat(MAX_TEXT));
        assert_eq!(bounded.processor, Some("é".repeat(MAX_TEXT)));
    }
}
