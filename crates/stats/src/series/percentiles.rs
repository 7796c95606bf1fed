//! Percentiles of the delays of single seconds, with a fixed amount of memory.
//!
//! The delays of the current second are counted in log-linear buckets: 16 for each power of two, so a
//! percentile is at most 6.25 % too large. The result of a second takes four bytes.

use packetrig_units::Nanos;
use serde::{Deserialize, Serialize};

/// Binary logarithm of the number of buckets for each power of two.
const BUCKETS_PER_OCTAVE_LOG2: u32 = 4;
/// Each delay below this value has its own bucket.
const MAX_EXACT_DELAY: u64 = 2 << BUCKETS_PER_OCTAVE_LOG2;
const BUCKET_COUNT: usize = bucket_of(u64::MAX) as usize + 1;

/// Returns the bucket of a delay.
#[expect(clippy::cast_possible_truncation, reason = "there are fewer than 1000 buckets")]
const fn bucket_of(ns: u64) -> u16 {
    // Below this value, a bucket is no wider than a nanosecond.
    if ns < MAX_EXACT_DELAY {
        return ns as u16;
    }
    let shift = ns.ilog2() - BUCKETS_PER_OCTAVE_LOG2;
    let part = (ns >> shift) & ((1 << BUCKETS_PER_OCTAVE_LOG2) - 1);
    (MAX_EXACT_DELAY + ((shift as u64 - 1) << BUCKETS_PER_OCTAVE_LOG2) + part) as u16
}

/// Returns the longest delay that belongs to a bucket.
fn bucket_upper_bound(bucket: u16) -> u64 {
    let bucket = u64::from(bucket);
    if bucket < MAX_EXACT_DELAY {
        return bucket;
    }
    let power = (bucket - MAX_EXACT_DELAY) >> BUCKETS_PER_OCTAVE_LOG2;
    let part = (bucket - MAX_EXACT_DELAY) & ((1 << BUCKETS_PER_OCTAVE_LOG2) - 1);
    let lowest = ((1 << BUCKETS_PER_OCTAVE_LOG2) + part) << (power + 1);
    lowest + ((1 << (power + 1)) - 1)
}

/// The median and the 99th percentile of the delays of one second, as numbers of buckets. In files it is a
/// list of two times in nanoseconds, or null.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Option<[u64; 2]>", into = "Option<[u64; 2]>")]
pub struct DelayPercentiles([u16; 2]);

impl DelayPercentiles {
    /// No percentiles: the second has no delays, or its delays were counted at several receivers and cannot be merged.
    pub const NONE: Self = Self([u16::MAX; 2]);

    pub fn p50(self) -> Option<Nanos> {
        self.percentile_time(0)
    }

    pub fn p99(self) -> Option<Nanos> {
        self.percentile_time(1)
    }

    fn percentile_time(self, which: usize) -> Option<Nanos> {
        (self != Self::NONE).then(|| Nanos::new(bucket_upper_bound(self.0[which])))
    }
}

impl From<Option<[u64; 2]>> for DelayPercentiles {
    fn from(times: Option<[u64; 2]>) -> Self {
        times.map_or(Self::NONE, |times| Self(times.map(bucket_of)))
    }
}

impl From<DelayPercentiles> for Option<[u64; 2]> {
    fn from(percentiles: DelayPercentiles) -> Self {
        let times = percentiles.p50().zip(percentiles.p99());
        times.map(|(p50, p99)| [p50.as_u64(), p99.as_u64()])
    }
}

/// The delays of the latest second and of the one before. Two seconds are open, because the timestamps of
/// several rings do not arrive in exact order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LatestDelays {
    /// The second to which `delays[1]` belongs; `delays[0]` belongs to the second before.
    second: usize,
    delays: [SecondDelays; 2],
}

impl LatestDelays {
    pub(super) const fn new() -> Self {
        Self { second: 0, delays: [SecondDelays::new(), SecondDelays::new()] }
    }

    /// Counts a delay. The percentiles of seconds that are complete now are added to `closed`.
    pub(super) fn add_delay(&mut self, second: usize, delay: Nanos, closed: &mut Vec<DelayPercentiles>) {
        while second > self.second {
            self.close_older_second(closed);
            self.delays.swap(0, 1);
            // A second without delays does not need to be closed.
            self.second = if self.delays[0].is_empty() { second } else { self.second + 1 };
        }
        match self.second - second {
            0 => self.delays[1].add_delay(delay),
            1 => self.delays[0].add_delay(delay),
            // This delay arrives after its second was closed, so the percentiles of that second would be wrong.
            _ => {
                if let Some(of_second) = closed.get_mut(second) {
                    *of_second = DelayPercentiles::NONE;
                }
            }
        }
    }

    pub(super) fn close_all_seconds(&mut self, closed: &mut Vec<DelayPercentiles>) {
        self.close_older_second(closed);
        self.delays.swap(0, 1);
        self.second += 1;
        self.close_older_second(closed);
    }

    /// Adds the percentiles of the earlier of the two seconds to `closed`. Seconds before it that were
    /// skipped have no percentiles.
    fn close_older_second(&mut self, closed: &mut Vec<DelayPercentiles>) {
        if !self.delays[0].is_empty() {
            // Two seconds are open: `second`, and the one before it, which is closed here.
            closed.resize(self.second - 1, DelayPercentiles::NONE);
            closed.push(self.delays[0].take_percentiles());
        }
    }
}

/// The delays of one second.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SecondDelays {
    counts: [u32; BUCKET_COUNT],
    total: u32,
    /// The buckets outside `low..=high` are empty.
    low: u16,
    high: u16,
}

impl SecondDelays {
    const fn new() -> Self {
        Self { counts: [0; BUCKET_COUNT], total: 0, low: u16::MAX, high: 0 }
    }

    const fn is_empty(&self) -> bool {
        self.total == 0
    }

    fn add_delay(&mut self, delay: Nanos) {
        let bucket = bucket_of(delay.as_u64());
        let count = &mut self.counts[usize::from(bucket)];
        // No link carries more than 2^32 frames in a second, so the sums do not saturate in practice.
        *count = count.saturating_add(1);
        self.total = self.total.saturating_add(1);
        self.low = self.low.min(bucket);
        self.high = self.high.max(bucket);
    }

    /// Returns the percentiles of the added delays, and removes all delays.
    fn take_percentiles(&mut self) -> DelayPercentiles {
        let found = DelayPercentiles([self.quantile(1, 2), self.quantile(99, 100)]);
        // Only the used buckets are cleared: there are about 1000 buckets, and this runs in the receiver's thread.
        self.counts[usize::from(self.low)..=usize::from(self.high)].fill(0);
        self.total = 0;
        self.low = u16::MAX;
        self.high = 0;
        found
    }

    /// Returns the bucket of the smallest delay at or below which the share `part` / `whole` of the delays lies.
    fn quantile(&self, part: u64, whole: u64) -> u16 {
        // The rank is ceil(p * n), as for all percentiles of a report.
        let wanted = (u64::from(self.total) * part).div_ceil(whole);
        let mut seen = 0;
        // The last bucket needs no test, because it contains all remaining delays.
        for bucket in self.low..self.high {
            seen += u64::from(self.counts[usize::from(bucket)]);
            if seen >= wanted {
                return bucket;
            }
        }
        self.high
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_bucket_ends_within_a_sixteenth_above() {
        for ns in (0..5000).chain((0..64).flat_map(|power| [1 << power, (1 << power) + 1, u64::MAX >> power]))
        {
            let end = bucket_upper_bound(bucket_of(ns));
            assert!(end >= ns && end - ns <= ns / 16, "{ns} is in a bucket that ends at {end}");
            assert_eq!(bucket_of(end), bucket_of(ns), "{ns}");
        }
        assert!((0..5000).map(bucket_of).is_sorted());
    }

    #[test]
    fn percentiles_match_sorted_list_and_survive_file() {
        let mut state = 1_u64;
        let mut delays = Vec::new();
        let mut second = SecondDelays::new();
        for _ in 0..3 {
            delays.clear();
            for _ in 0..777 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let delay = state >> (20 + state % 40);
                delays.push(delay);
                second.add_delay(Nanos::new(delay));
            }
            delays.sort_unstable();
            let found = second.take_percentiles();
            for (time, rank) in
                [(found.p50(), 777_usize.div_ceil(2)), (found.p99(), (777 * 99_usize).div_ceil(100))]
            {
                let (time, exact) = (time.unwrap().as_u64(), delays[rank - 1]);
                assert!(time >= exact && time - exact <= exact / 16, "{time} for {exact}");
            }
            let text = serde_json::to_string(&[found, DelayPercentiles::NONE]).unwrap();
            assert_eq!(
                serde_json::from_str::<[DelayPercentiles; 2]>(&text).unwrap(),
                [found, DelayPercentiles::NONE]
            );
        }
        assert!(second.is_empty());
    }
}
