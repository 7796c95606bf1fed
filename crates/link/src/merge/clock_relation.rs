//! How the clock of one capture relates to that of another, found from packets that are in both.
//!
//! A pair of stamps of one packet gives the difference of the clocks at that time, with the jitter of both captures. Medians of many
//! pairs are the knots of a line: what lies between two knots is interpolated, so that clocks may drift. Where the difference jumps,
//! a clock was set, and a new line begins.

use super::PacketSample;
use super::sample::SampledPacket;
use packetrig_units::Nanos;

/// Pairs that make one knot: enough that their median is free of single delays.
const KNOT_PAIRS: usize = 32;
/// Neighbours on each side of a pair that say what the difference is about there.
const NEIGHBOURS: usize = 15;
/// Differences that are further than this from those around are not of the same packet, or of one that was delayed.
const MOST_JITTER_NS: u64 = 10_000_000;
/// What a clock may gain between two pairs without having been set: this, and this share of the time between them.
const STEP_NS: u64 = 1_000_000;
const MOST_DRIFT: f64 = 500e-6;

/// Gives the time of one capture, the other, in the clock of the reference.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClockRelation {
    lines: Vec<ClockLine>,
    pairs: usize,
    jitter_ns: u64,
}

/// The relation from one packet of the other capture on, until a clock was set.
#[derive(Clone, Debug, PartialEq)]
struct ClockLine {
    /// Number of its first packet.
    first: u64,
    knots: Vec<ClockKnot>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ClockKnot {
    /// In the clock of the other capture.
    at_ns: u64,
    /// What the reference shows more.
    ahead_ns: i64,
}

/// One packet in both captures.
#[derive(Clone, Copy, Debug)]
struct StampPair {
    number: u64,
    at_ns: u64,
    ahead_ns: i64,
}

/// A clock was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockStep {
    /// In the clock of the reference, after the step.
    pub at_ns: u64,
    /// How much more the reference shows after it.
    pub by_ns: i64,
}

impl ClockRelation {
    /// `None` if no packet is in both.
    pub fn between(reference: &PacketSample, other: &PacketSample) -> Option<Self> {
        let common = reference.common(other);
        let pairs: Vec<StampPair> = common.iter().map(|(ours, theirs)| pair(ours, theirs)).collect();
        let pairs = without_strays(&pairs);
        if pairs.is_empty() {
            return None;
        }
        let mut relation = Self { lines: Vec::new(), pairs: pairs.len(), jitter_ns: 0 };
        let mut rest = &pairs[..];
        while !rest.is_empty() {
            let end = rest.windows(2).position(|two| is_step(two[0], two[1])).map_or(rest.len(), |at| at + 1);
            relation.lines.push(ClockLine { first: rest[0].number, knots: knots(&rest[..end]) });
            rest = &rest[end..];
        }
        let residuals =
            pairs.iter().map(|pair| relation.ahead_ns(pair.number, pair.at_ns).abs_diff(pair.ahead_ns));
        relation.jitter_ns = residuals.max().unwrap_or(0);
        Some(relation)
    }

    /// The time in the clock of the reference at which the other capture took its packet `number` at `at_ns`.
    pub fn to_reference(&self, number: u64, at_ns: u64) -> u64 {
        at_ns.saturating_add_signed(self.ahead_ns(number, at_ns))
    }

    fn ahead_ns(&self, number: u64, at_ns: u64) -> i64 {
        let line = self.lines.partition_point(|line| line.first <= number).saturating_sub(1);
        self.lines.get(line).map_or(0, |line| line.ahead_ns(at_ns))
    }

    /// What the reference shows more at the first common packet.
    pub fn first_ahead_ns(&self) -> i64 {
        self.lines.first().and_then(|line| line.knots.first()).map_or(0, |knot| knot.ahead_ns)
    }

    /// Parts in a million that the clock of the reference is faster, over the longest time without a step; `None` if that is too
    /// short to tell.
    pub fn drift_ppm(&self) -> Option<f64> {
        let ends = self.lines.iter().filter_map(|line| Some((line.knots.first()?, line.knots.last()?)));
        let (first, last) = ends.max_by_key(|(first, last)| last.at_ns.saturating_sub(first.at_ns))?;
        let length = last.at_ns.saturating_sub(first.at_ns);
        (length > 0).then(|| (last.ahead_ns - first.ahead_ns) as f64 / length as f64 * 1e6)
    }

    /// The farthest that the stamps of one packet are apart when the clocks have been brought together.
    pub fn jitter(&self) -> Nanos {
        Nanos::new(self.jitter_ns)
    }

    /// Packets that it was found from.
    pub fn pairs(&self) -> usize {
        self.pairs
    }

    pub fn steps(&self) -> Vec<ClockStep> {
        let between = self.lines.windows(2).filter_map(|two| {
            let before = two[0].knots.last()?;
            let after = two[1].knots.first()?;
            let at_ns = after.at_ns.saturating_add_signed(after.ahead_ns);
            Some(ClockStep { at_ns, by_ns: after.ahead_ns - before.ahead_ns })
        });
        between.collect()
    }
}

impl ClockLine {
    fn ahead_ns(&self, at_ns: u64) -> i64 {
        let [first, .., last] = &self.knots[..] else {
            return self.knots.first().map_or(0, |knot| knot.ahead_ns);
        };
        // Before the first and behind the last knot the nearest two are continued.
        let behind = self.knots.partition_point(|knot| knot.at_ns <= at_ns).clamp(1, self.knots.len() - 1);
        let (one, two) = (&self.knots[behind - 1], &self.knots[behind]);
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

fn pair(ours: &SampledPacket, theirs: &SampledPacket) -> StampPair {
    let ahead_ns = signed_difference(ours.at_ns, theirs.at_ns);
    StampPair { number: theirs.number, at_ns: theirs.at_ns, ahead_ns }
}

fn signed_difference(left: u64, right: u64) -> i64 {
    let distance = i64::try_from(left.abs_diff(right)).unwrap_or(i64::MAX);
    if left < right { -distance } else { distance }
}

/// Without pairs whose difference is unlike those of their neighbours: a content that happened twice, and of which each capture lost
/// another one, looks like one packet.
fn without_strays(pairs: &[StampPair]) -> Vec<StampPair> {
    let usual = |index: usize| {
        let around = &pairs[index.saturating_sub(NEIGHBOURS)..pairs.len().min(index + NEIGHBOURS + 1)];
        median(around.iter().map(|pair| pair.ahead_ns))
    };
    let near =
        (0..pairs.len()).filter(|&index| pairs[index].ahead_ns.abs_diff(usual(index)) <= MOST_JITTER_NS);
    near.map(|index| pairs[index]).collect()
}

fn is_step(before: StampPair, after: StampPair) -> bool {
    let drifted = before.at_ns.abs_diff(after.at_ns) as f64 * MOST_DRIFT;
    before.ahead_ns.abs_diff(after.ahead_ns) as f64 > STEP_NS as f64 + drifted
}

fn knots(pairs: &[StampPair]) -> Vec<ClockKnot> {
    let groups = pairs.chunks(KNOT_PAIRS);
    groups
        .map(|group| ClockKnot {
            at_ns: middle(group),
            ahead_ns: median(group.iter().map(|pair| pair.ahead_ns)),
        })
        .collect()
}

/// The mean time of some pairs.
fn middle(group: &[StampPair]) -> u64 {
    let first = group.iter().map(|pair| pair.at_ns).min().unwrap_or(0);
    let sum: u128 = group.iter().map(|pair| u128::from(pair.at_ns - first)).sum();
    first + u64::try_from(sum / group.len().max(1) as u128).unwrap_or(0)
}

fn median(values: impl Iterator<Item = i64>) -> i64 {
    let mut values: Vec<i64> = values.collect();
    if values.is_empty() {
        return 0;
    }
    let half = values.len() / 2;
    *values.select_nth_unstable(half).1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::merge::PacketIdentity;
    use packetrig_wire::pattern::mix;

    const SECOND: u64 = 1_000_000_000;
    const BEGIN: u64 = 1_790_000_000 * SECOND;

    /// Samples of 20,000 packets, one each 5 ms, by the reference and by a clock that shows what `other` says.
    fn samples(other: impl Fn(u64, u64) -> u64) -> (PacketSample, PacketSample) {
        let (mut ours, mut theirs) = (PacketSample::new(4096), PacketSample::new(4096));
        for number in 0..20_000 {
            let at_ns = BEGIN + 5_000_000 * number;
            let identity = PacketIdentity(mix(7, number));
            ours.add(identity, number, at_ns + mix(8, number) % 3000);
            theirs.add(identity, number, other(number, at_ns) + mix(9, number) % 3000);
        }
        (ours, theirs)
    }

    #[test]
    fn a_clock_that_drifts_is_followed() {
        // It began 3 s late, and loses 40 parts in a million.
        let slow = |at_ns: u64| at_ns - 3 * SECOND - (at_ns - BEGIN) * 40 / 1_000_000;
        let (ours, theirs) = samples(|_, at_ns| slow(at_ns));
        let relation = ClockRelation::between(&ours, &theirs).unwrap();
        assert!((relation.drift_ppm().unwrap() - 40.0).abs() < 0.5, "{relation:?}");
        assert!(relation.jitter().as_u64() < 6000, "{:?}", relation.jitter());
        assert_eq!((relation.steps(), relation.pairs() > 4000), (vec![], true));
        for number in [0, 1, 777, 10_000, 19_999] {
            let at_ns = BEGIN + 5_000_000 * number;
            let found = relation.to_reference(number, slow(at_ns));
            assert!(found.abs_diff(at_ns) < 4000, "{number}: {}", found.abs_diff(at_ns));
        }
    }

    #[test]
    fn a_clock_that_was_set_begins_another_line() {
        for by in [-2_000_000_000_i64, 700_000_000] {
            let (ours, theirs) =
                samples(|number, at| if number < 12_000 { at } else { at.saturating_add_signed(by) });
            let relation = ClockRelation::between(&ours, &theirs).unwrap();
            let [step] = relation.steps()[..] else { panic!("{:?}", relation.steps()) };
            assert!((step.by_ns + by).abs() < 10_000, "{step:?}");
            assert!(step.at_ns.abs_diff(BEGIN + 60 * SECOND) < SECOND, "{step:?}");
            let after = (BEGIN + 15_000 * 5_000_000).saturating_add_signed(by);
            let found = relation.to_reference(15_000, after);
            assert!(found.abs_diff(BEGIN + 75 * SECOND) < 4000);
        }
    }

    #[test]
    fn what_looks_like_one_packet_and_is_not_does_not_count() {
        let (ours, theirs) = samples(|number, at| if number % 50 == 0 { at + 30 * SECOND } else { at });
        let relation = ClockRelation::between(&ours, &theirs).unwrap();
        assert!(relation.first_ahead_ns().abs() < 4000 && relation.steps().is_empty(), "{relation:?}");
        assert!(relation.jitter().as_u64() < 6000);
    }

    #[test]
    fn captures_of_different_links_have_no_relation() {
        let (ours, _) = samples(|_, at| at);
        assert_eq!(ClockRelation::between(&ours, &PacketSample::new(9)), None);
        assert_eq!(ClockRelation::default().to_reference(5, 77), 77);
    }
}
