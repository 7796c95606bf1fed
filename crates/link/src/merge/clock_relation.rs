//! Relation between the clocks of two captures, found from packets that are in both.
//!
//! The two stamps of one packet give the difference of the clocks at that time, with the jitter of both captures.
//! Medians of many pairs are the knots of a line, and times between two knots are interpolated, so that clocks
//! may drift. If the difference jumps by more than delays explain ([`super::clock_steps`]), a clock was set, and
//! a new line begins.

use super::PacketSample;
use super::clock_drift::ClockDrift;
use super::clock_steps::find_clock_steps;
use super::sample::SampledPacket;
use packetrig_units::Nanos;

/// Number of pairs for one knot. Single delayed packets do not move the median of so many pairs.
const PAIRS_PER_KNOT: usize = 32;
/// Number of neighbours on each side with which the difference of a pair is compared.
const NEIGHBOURS_PER_SIDE: usize = 15;
/// A pair counts as two different packets, and is removed, if its difference is further than this from the median
/// around it, and further than [`OUTLIER_DISTANCE_FACTOR`] times the usual distance.
const MIN_OUTLIER_DISTANCE_NS: u64 = 10_000_000;
const OUTLIER_DISTANCE_FACTOR: u64 = 30;

/// Converts times of the other capture to the clock of the reference.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClockRelation {
    lines: Vec<ClockRelationSegment>,
    pairs: usize,
    jitter_ns: u64,
    drift: Option<ClockDrift>,
}

/// The relation of the clocks between two clock steps.
#[derive(Clone, Debug, PartialEq)]
struct ClockRelationSegment {
    /// Number of the first packet of the other capture to which this segment applies.
    first: u64,
    knots: Vec<ClockKnot>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ClockKnot {
    /// Time in the clock of the other capture.
    at_ns: u64,
    /// Reference clock minus other clock.
    ahead_ns: i64,
}

/// One packet in both captures.
#[derive(Clone, Copy, Debug)]
pub(super) struct StampPair {
    pub(super) number: u64,
    pub(super) at_ns: u64,
    pub(super) ahead_ns: i64,
}

/// A step of the relation, because a clock was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockStep {
    /// Time in the clock of the reference, after the step.
    pub at_ns: u64,
    /// Change of the difference between the clocks (reference minus other).
    pub by_ns: i64,
}

impl ClockRelation {
    /// Relates two captures; `None` if no packet is in both.
    pub fn between_samples(reference: &PacketSample, other: &PacketSample) -> Option<Self> {
        let common = reference.common_packets(other);
        let pairs: Vec<StampPair> = common.iter().map(|(ours, theirs)| stamp_pair(ours, theirs)).collect();
        let pairs = remove_stray_pairs(&pairs);
        if pairs.is_empty() {
            return None;
        }
        let mut relation = Self { pairs: pairs.len(), ..Self::default() };
        let mut longest: &[StampPair] = &[];
        let ends = find_clock_steps(&pairs).into_iter().chain([pairs.len()]);
        let mut begin = 0;
        for end in ends {
            let line = &pairs[begin..end];
            let knots = compute_median_knots(line);
            relation.lines.push(ClockRelationSegment { first: line[0].number, knots });
            // The drift is estimated over the longest line, because a step would distort it.
            longest = if time_span_of_pairs(line) > time_span_of_pairs(longest) { line } else { longest };
            begin = end;
        }
        relation.drift = ClockDrift::from_pairs(longest);
        // The largest residual is used, because the tolerance of a merge must cover every packet.
        let residuals =
            pairs.iter().map(|pair| relation.ahead_ns(pair.number, pair.at_ns).abs_diff(pair.ahead_ns));
        relation.jitter_ns = residuals.max().unwrap_or(0);
        Some(relation)
    }

    /// Converts the time at which the other capture recorded its packet `number` to the clock of the reference.
    pub fn to_reference(&self, number: u64, at_ns: u64) -> u64 {
        at_ns.saturating_add_signed(self.ahead_ns(number, at_ns))
    }

    fn ahead_ns(&self, number: u64, at_ns: u64) -> i64 {
        // Packets before the first pair use the first segment of the clock relation.
        let line = self.lines.partition_point(|line| line.first <= number).saturating_sub(1);
        self.lines.get(line).map_or(0, |line| line.ahead_ns(at_ns))
    }

    /// Returns the difference at the first common packets: reference clock minus other clock.
    pub fn initial_clock_difference_ns(&self) -> i64 {
        self.lines.first().and_then(|line| line.knots.first()).map_or(0, |knot| knot.ahead_ns)
    }

    /// Drift of the reference against the other clock, over the longest time without a step; `None` if that time
    /// has too few common packets for an estimate.
    pub fn drift(&self) -> Option<ClockDrift> {
        self.drift
    }

    /// Largest difference between the two stamps of a packet after conversion to the reference clock.
    pub fn jitter(&self) -> Nanos {
        Nanos::new(self.jitter_ns)
    }

    /// Number of common packets from which the relation was computed.
    pub fn pair_count(&self) -> usize {
        self.pairs
    }

    pub fn clock_steps(&self) -> Vec<ClockStep> {
        let between = self.lines.windows(2).filter_map(|two| {
            let before = two[0].knots.last()?;
            let after = two[1].knots.first()?;
            let at_ns = after.at_ns.saturating_add_signed(after.ahead_ns);
            Some(ClockStep { at_ns, by_ns: after.ahead_ns - before.ahead_ns })
        });
        between.collect()
    }
}

impl ClockRelationSegment {
    fn ahead_ns(&self, at_ns: u64) -> i64 {
        let [first, .., last] = &self.knots[..] else {
            return self.knots.first().map_or(0, |knot| knot.ahead_ns);
        };
        // Before the first knot and after the last one, the line through the nearest two knots is continued.
        let behind = self.knots.partition_point(|knot| knot.at_ns <= at_ns).clamp(1, self.knots.len() - 1);
        let (one, two) = (&self.knots[behind - 1], &self.knots[behind]);
        // Stamps of a capture may be equal or out of order, so two knots may have the same time.
        let length = two.at_ns.saturating_sub(one.at_ns);
        if length == 0 {
            return if at_ns < first.at_ns { first.ahead_ns } else { last.ahead_ns };
        }
        let share = signed_difference(at_ns, one.at_ns) as f64 / length as f64;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a float becomes the nearest integer that there is"
        )]
        let since_one = (share * (two.ahead_ns - one.ahead_ns) as f64).round() as i64;
        one.ahead_ns.saturating_add(since_one)
    }
}

fn stamp_pair(ours: &SampledPacket, theirs: &SampledPacket) -> StampPair {
    let ahead_ns = signed_difference(ours.at_ns, theirs.at_ns);
    StampPair { number: theirs.number, at_ns: theirs.at_ns, ahead_ns }
}

pub(super) fn signed_difference(left: u64, right: u64) -> i64 {
    // `i64::MAX` nanoseconds are 292 years, so the difference of two real stamps always fits.
    let distance = i64::try_from(left.abs_diff(right)).unwrap_or(i64::MAX);
    if left < right { -distance } else { distance }
}

/// Returns the time from the first to the last pair, in ns; 0 without pairs.
fn time_span_of_pairs(pairs: &[StampPair]) -> u64 {
    pairs.first().zip(pairs.last()).map_or(0, |(first, last)| last.at_ns.saturating_sub(first.at_ns))
}

/// Removes pairs with differences that are far from those of their neighbours. Such a pair arises if two packets have
/// the same content and each capture lost a different one of them.
fn remove_stray_pairs(pairs: &[StampPair]) -> Vec<StampPair> {
    let distance = |index: usize| {
        let around = &pairs
            [index.saturating_sub(NEIGHBOURS_PER_SIDE)..pairs.len().min(index + NEIGHBOURS_PER_SIDE + 1)];
        pairs[index].ahead_ns.abs_diff(median(around.iter().map(|pair| pair.ahead_ns)))
    };
    let distances: Vec<u64> = (0..pairs.len()).map(distance).collect();
    // On a path with varying delays all distances are large, and such pairs are not strays.
    let usual = median(distances.iter().map(|distance| i64::try_from(*distance).unwrap_or(i64::MAX)));
    let most = MIN_OUTLIER_DISTANCE_NS.max(usual.unsigned_abs().saturating_mul(OUTLIER_DISTANCE_FACTOR));
    let near = pairs.iter().zip(&distances).filter(|(_, distance)| **distance <= most);
    near.map(|(pair, _)| *pair).collect()
}

fn compute_median_knots(pairs: &[StampPair]) -> Vec<ClockKnot> {
    let groups = pairs.chunks(PAIRS_PER_KNOT);
    groups
        .map(|group| ClockKnot {
            at_ns: mean_stamp_time(group),
            ahead_ns: median(group.iter().map(|pair| pair.ahead_ns)),
        })
        .collect()
}

/// Returns the mean time of the pairs, in ns; 0 without pairs.
pub(super) fn mean_stamp_time(group: &[StampPair]) -> u64 {
    let first = group.iter().map(|pair| pair.at_ns).min().unwrap_or(0);
    let sum: u128 = group.iter().map(|pair| u128::from(pair.at_ns - first)).sum();
    first + u64::try_from(sum / group.len().max(1) as u128).unwrap_or(0)
}

pub(super) fn median(values: impl Iterator<Item = i64>) -> i64 {
    let mut values: Vec<i64> = values.collect();
    if values.is_empty() {
        return 0;
    }
    let half = values.len() / 2;
    *values.select_nth_unstable(half).1
}

#[cfg(test)]
mod tests;
