//! Results of the probes of a node: one row for each *probe line* (the probes from a port to one destination) that the
//! node sent, and the requests that its reflectors answered.
//!
//! A time of one direction is a difference between two clocks. The node computes it from the wall clocks of both
//! ends. Only the controller, which has the results of all nodes, knows how these clocks are related. A second value
//! uses the clock comparison of the session itself.
//!
//! Invariant: a value that was not measured is absent, never zero.

use packetrig_units::text::{deserialize_line, deserialize_optional_line};
use packetrig_units::{MonoTime, Nanos};
use serde::{Deserialize, Serialize};

/// Maximum length of a text about probes, in characters. Such a text comes from another machine, so it is
/// read as one line.
const MAX_PROBE_TEXT_CHARACTERS: usize = 1000;

/// Number and distribution of times. Times may be below zero by up to the error bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeTimes {
    pub samples: u64,
    pub min_ns: i64,
    pub p50_ns: i64,
    /// Absent with fewer than 20 samples.
    pub p95_ns: Option<i64>,
    /// Absent with fewer than 100 samples.
    pub p99_ns: Option<i64>,
    pub max_ns: i64,
    /// Error bound of each of these times.
    pub bound_ns: u64,
}

impl ProbeTimes {
    /// Subtracts an offset with the error bound `bound` from all times.
    #[must_use]
    pub fn subtract_offset(self, offset_ns: i64, bound: Nanos) -> Self {
        Self {
            samples: self.samples,
            min_ns: self.min_ns.saturating_sub(offset_ns),
            p50_ns: self.p50_ns.saturating_sub(offset_ns),
            p95_ns: self.p95_ns.map(|ns| ns.saturating_sub(offset_ns)),
            p99_ns: self.p99_ns.map(|ns| ns.saturating_sub(offset_ns)),
            max_ns: self.max_ns.saturating_sub(offset_ns),
            bound_ns: self.bound_ns.saturating_add(bound.as_u64()),
        }
    }

    /// Returns whether the times are in ascending order, as they must be for one series.
    pub fn is_ordered(&self) -> bool {
        let times = [Some(self.min_ns), Some(self.p50_ns), self.p95_ns, self.p99_ns, Some(self.max_ns)];
        times.into_iter().flatten().is_sorted()
    }
}

/// Times of one direction of a probe line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectionTimes {
    /// Times computed from the wall clocks of both ends, as if these were one clock.
    pub by_wall_clocks: Option<ProbeTimes>,
    /// Times corrected by the clock offset that follows from the session's own exchanges of messages.
    pub by_exchanges: Option<ProbeTimes>,
    /// Times minus the smallest one.
    pub variation: Option<ProbeTimes>,
}

/// Reason why a probe line ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "why", content = "detail")]
pub enum ProbeLineEndReason {
    /// All probes of the schedule were sent.
    Done,
    /// The run was stopped.
    Stopped,
    /// The node's lease ended.
    LeaseEnded,
    /// More probes were lost than the limits of the target allow.
    Lossy,
    /// A host or router reported that probes are prohibited.
    Prohibited,
    /// The limits of the target did not allow more probes.
    Limits(#[serde(deserialize_with = "deserialize_line::<MAX_PROBE_TEXT_CHARACTERS, _>")] String),
    /// Sending failed, for example because there is no route.
    Failed(#[serde(deserialize_with = "deserialize_line::<MAX_PROBE_TEXT_CHARACTERS, _>")] String),
}

impl ProbeLineEndReason {
    /// Describes the end in words; `None` if all probes were sent.
    pub fn describe_end(&self) -> Option<String> {
        Some(match self {
            Self::Done => return None,
            Self::Stopped => "stopped before the end".to_owned(),
            Self::LeaseEnded => {
                "ended early because the node heard nothing from the controller and its lease expired"
                    .to_owned()
            }
            Self::Lossy => {
                "ended early because more probes were lost than the limits of the target allow".to_owned()
            }
            Self::Prohibited => "ended early because a host on the path prohibits the probes".to_owned(),
            Self::Limits(why) => format!("ended early because of the limits of the target: {why}"),
            Self::Failed(why) => why.clone(),
        })
    }
}

/// Counts of probes by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeCounts {
    pub planned: u64,
    pub sent: u64,
    /// Probes with a valid answer.
    pub answered: u64,
    /// Probes without a valid answer.
    pub lost: u64,
    /// Probes that a host or router reported as undeliverable.
    pub refused: u64,
    pub duplicates: u64,
    pub reordered: u64,
    pub corrupted: u64,
    /// Probes that left late or early, or whose timestamps are missing or contradict each other.
    pub doubtful: u64,
}

/// The rate of the narrowest link in one direction, measured by packet pairs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasuredCapacity {
    /// The estimate; absent if there is none.
    pub rate: Option<CapacityRange>,
    /// Reason why there is no estimate.
    #[serde(default, deserialize_with = "deserialize_optional_line::<MAX_PROBE_TEXT_CHARACTERS, _>")]
    pub why_not: Option<String>,
    /// Number of trains that were sent; `used` is the number of trains in the estimate.
    pub trains: u64,
    pub used: u64,
}

/// A rate with its range, in bits per second. The bits of a frame include its Ethernet header, but not its FCS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapacityRange {
    pub bits_per_s: u64,
    /// Lower end of the range that the method gives; `high` is the upper end.
    pub low: u64,
    pub high: u64,
    /// The same rate, in the bits of the IP packets alone.
    pub packet_bits_per_s: u64,
}

impl CapacityRange {
    pub const fn is_ordered(&self) -> bool {
        self.low <= self.bits_per_s && self.bits_per_s <= self.high
    }
}

/// The results of one probe line at a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeLineResult {
    /// Index of the line in the plan.
    pub line: usize,
    pub end: ProbeLineEndReason,
    pub counts: ProbeCounts,
    /// Number of probes lost in the forward direction, and of reflections lost in the reverse direction, according to
    /// the sequence numbers that the reflector writes. Absent if the reflector writes none.
    pub session_lost: Option<(u64, u64)>,
    pub round_trip: Option<ProbeTimes>,
    /// Round-trip times without the time that the reflector took.
    pub path: Option<ProbeTimes>,
    pub there: DirectionTimes,
    pub back: DirectionTimes,
    /// Capacity of the forward direction; absent unless the plan asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<MeasuredCapacity>,
    /// Departure times minus the planned times.
    pub release_error: Option<ProbeTimes>,
    /// The release mechanism; `why` is the reason for choosing it.
    #[serde(deserialize_with = "deserialize_line::<MAX_PROBE_TEXT_CHARACTERS, _>")]
    pub mechanism: String,
    #[serde(deserialize_with = "deserialize_line::<MAX_PROBE_TEXT_CHARACTERS, _>")]
    pub why: String,
}

impl ProbeLineResult {
    /// Returns the result of a line that sent no probe.
    pub fn without_probes(line: usize, planned: u64, end: ProbeLineEndReason) -> Self {
        Self {
            line,
            end,
            counts: ProbeCounts { planned, ..ProbeCounts::default() },
            session_lost: None,
            round_trip: None,
            path: None,
            there: DirectionTimes::default(),
            back: DirectionTimes::default(),
            capacity: None,
            release_error: None,
            mechanism: String::new(),
            why: String::new(),
        }
    }
}

/// The requests that a reflector received from one port of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReflectedRequests {
    /// Index of the port of the reflector in the plan.
    pub at: usize,
    /// Index of the port that sent the probes in the plan.
    pub from: usize,
    /// Requests that arrived at the reflector.
    pub requests: u64,
    /// Requests that were answered; absent if only the total for all senders is known.
    pub reflected: Option<u64>,
}

/// How far a node's wall clock is ahead of its monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WallClockOffset {
    pub offset_ns: i64,
    /// Error bound of the offset, including steps of the wall clock during the run.
    pub bound: Nanos,
}

/// The first probe of a node. It shows whether the nodes began together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstProbe {
    /// Planned departure time, on the node's clock.
    pub due: MonoTime,
    pub left: MonoTime,
}

/// The results of all probes of a node in a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeNodeResult {
    pub lines: Vec<ProbeLineResult>,
    pub reflected: Vec<ReflectedRequests>,
    pub wall_clock: WallClockOffset,
    #[serde(default)]
    pub first: Option<FirstProbe>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_time_offset_shifts_values_and_widens_bound() {
        let times = ProbeTimes {
            samples: 3,
            min_ns: 5,
            p50_ns: 7,
            p95_ns: Some(8),
            p99_ns: None,
            max_ns: 9,
            bound_ns: 2,
        };
        let moved = times.subtract_offset(6, Nanos::new(4));
        assert_eq!((moved.min_ns, moved.p50_ns, moved.max_ns, moved.bound_ns), (-1, 1, 3, 6));
        assert!(moved.is_ordered() && !ProbeTimes { min_ns: 8, ..times }.is_ordered());
    }
}
