//! The result of a series.
//!
//! Invariant: `probes = told + sum of ambiguous`, and ambiguous probes are part of no rate.

use super::{AmbiguityReason, ArrivalOrder, ForwardOutcome, ProbeVerdict};
use crate::summary::{nearest_rank, percentile_of_sorted};
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct OneprobeOutcome {
    pub number: u32,
    /// Departure time of its first segment, if it was sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left: Option<u64>,
    pub verdict: ProbeVerdict,
    /// Time from the first segment's departure to its answer, in nanoseconds, if nothing was lost or reordered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round_trip_ns: Option<u64>,
}

/// Loss and reordering of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DirectionCounts {
    /// Number of segments that were sent.
    pub sent: u64,
    pub lost: u64,
    /// Pairs whose segments both arrived, in a known order.
    pub ordered: u64,
    /// Number of the `ordered` pairs that arrived in changed order.
    pub reordered: u64,
}

impl DirectionCounts {
    /// Share of segments that were lost; `None` if none was sent.
    pub fn loss_share(&self) -> Option<f64> {
        (self.sent > 0).then(|| self.lost as f64 / self.sent as f64)
    }

    /// Share of pairs that changed their order; `None` if no order is known.
    pub fn reordering_share(&self) -> Option<f64> {
        (self.ordered > 0).then(|| self.reordered as f64 / self.ordered as f64)
    }

    fn count_arrival_order(&mut self, order: ArrivalOrder) {
        self.ordered += u64::from(order != ArrivalOrder::Unknown);
        self.reordered += u64::from(order == ArrivalOrder::Changed);
    }
}

/// The spread of times, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TimeSpread {
    pub samples: u64,
    pub min_ns: u64,
    pub p50_ns: u64,
    /// Absent if there are fewer than 20 samples.
    pub p95_ns: Option<u64>,
    /// Absent if there are fewer than 100 samples.
    pub p99_ns: Option<u64>,
    pub max_ns: u64,
}

impl TimeSpread {
    /// Computes the spread of some times; `None` if there are none.
    pub fn from_times(times: &[u64]) -> Option<Self> {
        let mut sorted = times.to_vec();
        sorted.sort_unstable();
        Some(Self {
            samples: sorted.len() as u64,
            min_ns: *sorted.first()?,
            p50_ns: nearest_rank(&sorted, 50),
            p95_ns: percentile_of_sorted(&sorted, 95),
            p99_ns: percentile_of_sorted(&sorted, 99),
            max_ns: *sorted.last()?,
        })
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct OneprobeReport {
    /// Probes: pairs of segments.
    pub probes: u64,
    /// Probes with a certain outcome: the received segments have only one explanation.
    pub told: u64,
    /// Ambiguous probes, by reason.
    pub ambiguous: BTreeMap<AmbiguityReason, u64>,
    /// Counts of the direction to the server.
    pub forward: DirectionCounts,
    /// Counts of the direction from the server.
    pub reverse: DirectionCounts,
    /// Round trips of data, in nanoseconds.
    #[serde(skip)]
    pub round_trips: Vec<u64>,
    /// Round trips of handshakes, in nanoseconds. The server's kernel answers a handshake without the web server.
    #[serde(skip)]
    pub handshakes: Vec<u64>,
    /// Connections that were opened.
    pub connections: u64,
    #[serde(skip)]
    pub outcomes: Vec<OneprobeOutcome>,
}

impl OneprobeReport {
    /// Adds a probe to the counts.
    pub(super) fn add_outcome(&mut self, outcome: OneprobeOutcome) {
        self.probes += 1;
        self.outcomes.push(outcome);
        match outcome.verdict {
            ProbeVerdict::Ambiguous(why) => *self.ambiguous.entry(why).or_default() += 1,
            ProbeVerdict::Told { forward, reverse } => {
                self.told += 1;
                // Both segments were sent: the verdict of an unsent pair is `Ambiguous`.
                self.forward.sent += 2;
                self.forward.lost += forward.lost_segments();
                if let ForwardOutcome::Both(order) = forward {
                    self.forward.count_arrival_order(order);
                }
                self.reverse.sent += reverse.sent;
                self.reverse.lost += reverse.lost_segments();
                self.reverse.count_arrival_order(reverse.order);
                self.round_trips.extend(outcome.round_trip_ns);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_are_of_ranks() {
        let spread = TimeSpread::from_times(&(1..=200).rev().collect::<Vec<_>>()).unwrap();
        let all = (spread.min_ns, spread.p50_ns, spread.p95_ns, spread.p99_ns, spread.max_ns);
        assert_eq!((spread.samples, all), (200, (1, 100, Some(190), Some(198), 200)));
        assert_eq!(TimeSpread::from_times(&[]), None);
        assert_eq!(
            TimeSpread::from_times(&[7]).map(|spread| (spread.min_ns, spread.p99_ns)),
            Some((7, None))
        );
    }
}
