//! What a series of records says of its sender: how well instants and distances were kept, and which doubts there are.
//!
//! Invariant: figures are of probes that have left; those that have not are counted, and nothing else is said of them.

use crate::{Flag, Record};
use serde::Serialize;

/// How errors are spread, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Spread {
    pub least: i64,
    pub p50: i64,
    pub p95: i64,
    pub p99: i64,
    pub most: i64,
}

impl Spread {
    /// Of these; `None` if there are none.
    pub fn of(mut values: Vec<i64>) -> Option<Self> {
        values.sort_unstable();
        let last = values.len().checked_sub(1)?;
        let at = |percent: usize| values[(values.len() * percent).div_ceil(100).clamp(1, last + 1) - 1];
        Some(Self { least: values[0], p50: at(50), p95: at(95), p99: at(99), most: values[last] })
    }
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Summary {
    pub planned: u64,
    pub sent: u64,
    pub unsent: u64,
    pub dropped: u64,
    pub late: u64,
    pub early: u64,
    pub stolen: u64,
    pub stamps_missing: u64,
    pub stamps_disagree: u64,
    /// When probes left against when they were to, by the truest stamp of each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release_error_ns: Option<Spread>,
    /// By how much distances within trains were off, either way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spacing_error_ns: Option<Spread>,
    /// How far those stamps may be off themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stamp_bound_ns: Option<Spread>,
}

impl Summary {
    /// Of these records, in order.
    pub fn of(records: &[Record]) -> Self {
        let with = |flag| records.iter().filter(|record| record.flags.contains(&flag)).count() as u64;
        let gone: Vec<_> = records.iter().filter(|record| has_left(record)).collect();
        let left = |record: &Record| record.left_here().map_or(0, crate::Stamp::middle);
        let difference = |a: u64, b: u64| a.cast_signed().wrapping_sub(b.cast_signed());
        let error = |record: &&Record| difference(left(record), record.planned.as_nanos());
        let spacing = |two: &[&Record]| {
            let planned = two[1].planned.since(two[0].planned).as_u64().cast_signed();
            (difference(left(two[1]), left(two[0])) - planned).saturating_abs()
        };
        let neighbours =
            gone.windows(2).filter(|two| two[0].train == two[1].train && two[0].number + 1 == two[1].number);
        let bound = |record: &&Record| record.left_here().map_or(0, |stamp| stamp.bound().cast_signed());
        Self {
            planned: records.len() as u64,
            sent: gone.len() as u64,
            unsent: with(Flag::Unsent),
            dropped: with(Flag::Dropped),
            late: with(Flag::Late),
            early: with(Flag::Early),
            stolen: with(Flag::Stolen),
            stamps_missing: with(Flag::StampMissing),
            stamps_disagree: with(Flag::StampsDisagree),
            release_error_ns: Spread::of(gone.iter().map(error).collect()),
            spacing_error_ns: Spread::of(neighbours.map(spacing).collect()),
            stamp_bound_ns: Spread::of(gone.iter().map(bound).collect()),
        }
    }

    /// Whether more than one in a hundred was late or dropped.
    pub const fn is_doubtful(&self) -> bool {
        (self.late + self.dropped) * 100 > self.planned
    }
}

fn has_left(record: &Record) -> bool {
    let not = [Flag::Unsent, Flag::Dropped];
    record.left_here().is_some() && !record.flags.iter().any(|flag| not.contains(flag))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kind, Planned, Source, Stamp};
    use packetrig_units::{MonoTime, Nanos};

    fn record(number: u32, train: u32, planned: u64, left: Option<u64>, flags: &[Flag]) -> Record {
        let probe = Planned { number, train, kind: Kind::Train, at: Nanos::ZERO, length: 60 };
        let mut record = Record::planned(probe, MonoTime::from_nanos(planned));
        record.released = left.map(|at| Stamp::around(Source::Program, MonoTime::from_nanos(at), 3));
        record.flags = flags.to_vec();
        record
    }

    #[test]
    fn errors_are_of_what_has_left() {
        let records = [
            record(0, 0, 1_000, Some(1_010), &[]),
            record(1, 0, 2_000, Some(1_990), &[Flag::Stolen]),
            record(2, 0, 3_000, Some(9_000), &[Flag::Dropped]),
            record(3, 0, 4_000, None, &[Flag::Unsent]),
            record(4, 1, 5_000, Some(5_500), &[Flag::Late]),
        ];
        let summary = Summary::of(&records);
        assert_eq!((summary.planned, summary.sent, summary.unsent, summary.dropped), (5, 3, 1, 1));
        assert_eq!((summary.late, summary.early, summary.stolen), (1, 0, 1));
        let release = summary.release_error_ns.unwrap();
        assert_eq!((release.least, release.p50, release.most), (-10, 10, 500));
        let spacing = summary.spacing_error_ns.unwrap();
        assert_eq!((spacing.least, spacing.most), (20, 20), "only neighbours of one train");
        assert_eq!(summary.stamp_bound_ns.unwrap().p50, 3);
        assert!(summary.is_doubtful());
        assert!(!Summary { planned: 200, late: 1, dropped: 1, ..Summary::default() }.is_doubtful());
    }

    #[test]
    fn quantiles_are_values_that_occurred() {
        assert_eq!(Spread::of(vec![]), None);
        let spread = Spread::of((1..=1_000).rev().collect()).unwrap();
        assert_eq!(spread, Spread { least: 1, p50: 500, p95: 950, p99: 990, most: 1_000 });
    }
}
