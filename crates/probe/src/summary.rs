//! Summarises how well a sender kept its departure times and distances, and which probes are doubtful.
//!
//! Invariant: errors are computed only for probes that left; other probes are only counted.

use crate::{ProbeFlag, ProbeRecord, ProbeStamp};
use serde::Serialize;

/// The spread of errors, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ErrorSpread {
    pub least: i64,
    pub p50: i64,
    /// Absent if there are fewer than 20 values.
    pub p95: Option<i64>,
    /// Absent if there are fewer than 100 values.
    pub p99: Option<i64>,
    pub most: i64,
}

impl ErrorSpread {
    /// Computes the spread of some values; `None` if there are none.
    pub fn from_values(mut values: Vec<i64>) -> Option<Self> {
        values.sort_unstable();
        Some(Self {
            least: *values.first()?,
            p50: nearest_rank(&values, 50),
            p95: percentile_of_sorted(&values, 95),
            p99: percentile_of_sorted(&values, 99),
            most: *values.last()?,
        })
    }
}

/// Nearest rank: the smallest value such that at least this percentage of all values are not larger. `sorted`
/// must not be empty.
pub(crate) fn nearest_rank<T: Copy>(sorted: &[T], percent: usize) -> T {
    sorted[(sorted.len() * percent).div_ceil(100).max(1) - 1]
}

/// A percentile; `None` unless at least one value lies above it, because the 99th percentile of fewer than
/// 100 values would only be the largest value.
pub(crate) fn percentile_of_sorted<T: Copy>(sorted: &[T], percent: usize) -> Option<T> {
    (sorted.len() * (100 - percent) >= 100).then(|| nearest_rank(sorted, percent))
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReleaseSummary {
    pub planned: u64,
    pub sent: u64,
    pub unsent: u64,
    pub dropped: u64,
    pub late: u64,
    pub early: u64,
    pub stolen: u64,
    pub stamps_missing: u64,
    pub stamps_disagree: u64,
    /// Deviation of each departure from its planned time, by the best stamp of the probe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release_error_ns: Option<ErrorSpread>,
    /// Error of the distances within trains, without sign.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spacing_error_ns: Option<ErrorSpread>,
    /// Error bound of the departure stamps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stamp_bound_ns: Option<ErrorSpread>,
}

impl ReleaseSummary {
    /// Summarises records that are in order of their numbers.
    pub fn from_records(records: &[ProbeRecord]) -> Self {
        let gone: Vec<_> = records.iter().filter(|record| has_departed(record)).collect();
        // Only neighbours that have both left are compared: a gap in the numbers would count as an
        // error of the distance.
        let neighbours =
            gone.windows(2).filter(|two| two[0].train == two[1].train && two[0].number + 1 == two[1].number);
        Self {
            planned: records.len() as u64,
            sent: gone.len() as u64,
            unsent: count_flagged_probes(records, ProbeFlag::Unsent),
            dropped: count_flagged_probes(records, ProbeFlag::Dropped),
            late: count_flagged_probes(records, ProbeFlag::Late),
            early: count_flagged_probes(records, ProbeFlag::Early),
            stolen: count_flagged_probes(records, ProbeFlag::Stolen),
            stamps_missing: count_flagged_probes(records, ProbeFlag::StampMissing),
            stamps_disagree: count_flagged_probes(records, ProbeFlag::StampsDisagree),
            release_error_ns: ErrorSpread::from_values(
                gone.iter().map(|record| release_error(record)).collect(),
            ),
            spacing_error_ns: ErrorSpread::from_values(
                neighbours.map(|two| spacing_error(two[0], two[1])).collect(),
            ),
            stamp_bound_ns: ErrorSpread::from_values(
                gone.iter().map(|record| stamp_bound_or_zero(record)).collect(),
            ),
        }
    }

    /// Returns whether more than 1 % of the planned probes were late or dropped.
    pub const fn is_doubtful(&self) -> bool {
        (self.late + self.dropped) * 100 > self.planned
    }
}

fn count_flagged_probes(records: &[ProbeRecord], flag: ProbeFlag) -> u64 {
    records.iter().filter(|record| record.flags.contains(&flag)).count() as u64
}

fn departed_at_or_zero(record: &ProbeRecord) -> u64 {
    record.local_departure().map_or(0, ProbeStamp::middle)
}

fn release_error(record: &ProbeRecord) -> i64 {
    signed_difference(departed_at_or_zero(record), record.planned.as_nanos())
}

fn spacing_error(before: &ProbeRecord, after: &ProbeRecord) -> i64 {
    let planned = after.planned.since(before.planned).as_u64().cast_signed();
    (signed_difference(departed_at_or_zero(after), departed_at_or_zero(before)) - planned).saturating_abs()
}

fn stamp_bound_or_zero(record: &ProbeRecord) -> i64 {
    record.local_departure().map_or(0, |stamp| stamp.bound().cast_signed())
}

const fn signed_difference(to: u64, from: u64) -> i64 {
    to.cast_signed().wrapping_sub(from.cast_signed())
}

fn has_departed(record: &ProbeRecord) -> bool {
    // A frame that the kernel dropped can have a release stamp, but it never reached the wire.
    let not = [ProbeFlag::Unsent, ProbeFlag::Dropped];
    record.local_departure().is_some() && !record.flags.iter().any(|flag| not.contains(flag))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PlannedProbe, ProbeKind, ProbeStamp, StampSource};
    use packetrig_units::{MonoTime, Nanos};

    fn record(number: u32, train: u32, planned: u64, left: Option<u64>, flags: &[ProbeFlag]) -> ProbeRecord {
        let probe = PlannedProbe { number, train, kind: ProbeKind::Train, at: Nanos::ZERO, length: 60 };
        let mut record = ProbeRecord::from_planned(probe, MonoTime::from_nanos(planned));
        record.released =
            left.map(|at| ProbeStamp::with_bound(StampSource::Program, MonoTime::from_nanos(at), 3));
        record.flags = flags.to_vec();
        record
    }

    #[test]
    fn errors_are_of_what_has_left() {
        let records = [
            record(0, 0, 1_000, Some(1_010), &[]),
            record(1, 0, 2_000, Some(1_990), &[ProbeFlag::Stolen]),
            record(2, 0, 3_000, Some(9_000), &[ProbeFlag::Dropped]),
            record(3, 0, 4_000, None, &[ProbeFlag::Unsent]),
            record(4, 1, 5_000, Some(5_500), &[ProbeFlag::Late]),
        ];
        let summary = ReleaseSummary::from_records(&records);
        assert_eq!((summary.planned, summary.sent, summary.unsent, summary.dropped), (5, 3, 1, 1));
        assert_eq!((summary.late, summary.early, summary.stolen), (1, 0, 1));
        let release = summary.release_error_ns.unwrap();
        assert_eq!((release.least, release.p50, release.most), (-10, 10, 500));
        let spacing = summary.spacing_error_ns.unwrap();
        assert_eq!((spacing.least, spacing.most), (20, 20), "only neighbours of one train");
        assert_eq!(summary.stamp_bound_ns.unwrap().p50, 3);
        assert!(summary.is_doubtful());
        assert!(
            !ReleaseSummary { planned: 200, late: 1, dropped: 1, ..ReleaseSummary::default() }.is_doubtful()
        );
    }

    #[test]
    fn percentile_beyond_sample_size_is_absent() {
        let known = |count: i64| {
            let spread = ErrorSpread::from_values((1..=count).collect()).unwrap();
            (spread.p95, spread.p99)
        };
        assert_eq!([known(1), known(19)], [(None, None); 2]);
        assert_eq!([known(20), known(99)], [(Some(19), None), (Some(95), None)]);
        assert_eq!(known(100), (Some(95), Some(99)));
    }

    #[test]
    fn quantiles_are_values_that_occurred() {
        assert_eq!(ErrorSpread::from_values(vec![]), None);
        let spread = ErrorSpread::from_values((1..=1_000).rev().collect()).unwrap();
        assert_eq!(spread, ErrorSpread { least: 1, p50: 500, p95: Some(950), p99: Some(990), most: 1_000 });
    }
}
