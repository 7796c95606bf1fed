//! Frames and bytes, and losses and delays, for each second of a run.

mod percentiles;

pub use percentiles::DelayPercentiles;

use packetrig_units::{MonoTime, Nanos, clamp_to_usize};
use percentiles::LatestDelays;
use serde::{Deserialize, Serialize};

/// Counts for each whole second since an origin. Memory is reserved in advance, so that counting does not
/// allocate; counts after the last reserved second are added to `beyond`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateSeries {
    /// (frames, bytes) of second 0, 1, 2 …
    pub seconds: Vec<(u64, u64)>,
    /// (frames, bytes) after the last of these seconds.
    pub beyond: (u64, u64),
    #[serde(skip)]
    limit: usize,
}

impl RateSeries {
    /// Creates a series that counts up to `seconds` seconds separately.
    pub fn with_limit(seconds: usize) -> Self {
        Self { seconds: Vec::with_capacity(seconds), beyond: (0, 0), limit: seconds }
    }

    /// Counts `frames` and `bytes` at the time `at`. Times before `origin` count as second 0.
    pub fn add_frames(&mut self, origin: MonoTime, at: MonoTime, frames: u64, bytes: u64) {
        let second = clamp_to_usize(at.since(origin).as_u64() / 1_000_000_000);
        // The list grows only within its capacity: the receiver's thread must not allocate while it counts.
        if second >= self.seconds.len() && second < self.limit {
            self.seconds.resize(second + 1, (0, 0));
        }
        // Counts after the last second are added to one place, so that no frame is missing from the total.
        let entry = self.seconds.get_mut(second).unwrap_or(&mut self.beyond);
        entry.0 += frames;
        entry.1 += bytes;
    }

    /// Adds another series, second by second.
    pub fn merge(&mut self, other: &Self) {
        // Merging is done for the report, so it may allocate; `limit` bounds only the counting.
        if self.seconds.len() < other.seconds.len() {
            self.seconds.resize(other.seconds.len(), (0, 0));
        }
        for (mine, theirs) in self.seconds.iter_mut().zip(&other.seconds) {
            *mine = saturating_sum_of(*mine, *theirs);
        }
        self.beyond = saturating_sum_of(self.beyond, other.beyond);
    }
}

/// Adds pairs (frames, bytes). A series may come from another machine, with counts as large as their types
/// allow, so the sums saturate.
const fn saturating_sum_of(one: (u64, u64), other: (u64, u64)) -> (u64, u64) {
    (one.0.saturating_add(other.0), one.1.saturating_add(other.1))
}

/// Lost frames by the second in which they were due, and delays by the second in which the frames arrived.
/// Second 0 begins at the start of the run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QualitySeries {
    /// Second 0, 1, 2 …; later seconds than the limit are left out.
    pub seconds: Vec<QualitySecond>,
    /// Percentiles of the delays of each second, if they are known. Absent in reports of older versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub percentiles: Vec<DelayPercentiles>,
    #[serde(skip)]
    limit: usize,
    /// Delays of the latest two seconds. Absent in a series that was deserialised, and after
    /// [`Self::close_latest_seconds`].
    #[serde(skip)]
    latest: Option<Box<LatestDelays>>,
}

/// Losses and delays of one second. In files it is a list of these four numbers, in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "[u64; 4]", into = "[u64; 4]")]
pub struct QualitySecond {
    /// Frames due in this second that were lost.
    pub lost: u64,
    /// Frames with a measured delay.
    pub delayed: u64,
    /// Sum of these delays, in nanoseconds.
    pub delay_total_ns: u64,
    /// The longest of these delays.
    pub delay_max: Nanos,
}

impl From<[u64; 4]> for QualitySecond {
    fn from([lost, delayed, delay_total_ns, delay_max]: [u64; 4]) -> Self {
        Self { lost, delayed, delay_total_ns, delay_max: Nanos::new(delay_max) }
    }
}

impl From<QualitySecond> for [u64; 4] {
    fn from(second: QualitySecond) -> Self {
        [second.lost, second.delayed, second.delay_total_ns, second.delay_max.as_u64()]
    }
}

impl QualitySeries {
    /// Creates a series that counts up to this many seconds separately.
    pub fn with_limit(seconds: usize) -> Self {
        Self {
            seconds: Vec::with_capacity(seconds),
            percentiles: Vec::with_capacity(seconds),
            limit: seconds,
            // If no seconds are counted separately, the buckets of two seconds would only take memory.
            latest: (seconds > 0).then(|| Box::new(LatestDelays::new())),
        }
    }

    /// Computes the percentiles of the latest two seconds. To be called after the last delay: percentiles do
    /// not include later ones.
    pub fn close_latest_seconds(&mut self) {
        if let Some(mut latest) = self.latest.take() {
            latest.close_all_seconds(&mut self.percentiles);
        }
    }

    /// Returns the median and the 99th percentile of the delays of a second. Each is at most 6.25 % too
    /// large. `None` if they are not known.
    pub fn percentiles_of(&self, second: usize) -> Option<(Nanos, Nanos)> {
        let longest = self.seconds.get(second)?.delay_max;
        let found = self.percentiles.get(second)?;
        // The end of a bucket may be above the longest measured delay.
        Some((found.p50()?.min(longest), found.p99()?.min(longest)))
    }

    fn entry_of_second_mut(&mut self, second: u64) -> Option<&mut QualitySecond> {
        let second = clamp_to_usize(second);
        if second >= self.seconds.len() && second < self.limit {
            self.seconds.resize(second + 1, QualitySecond::default());
        }
        self.seconds.get_mut(second)
    }

    /// Counts the delay of a frame that arrived at `at`.
    pub fn add_delay(&mut self, origin: MonoTime, at: MonoTime, delay: Nanos) {
        // The second of the arrival counts, not that of the schedule, because a delay belongs to the time at
        // which it was observed.
        let number = at.since(origin).as_u64() / 1_000_000_000;
        let Some(second) = self.entry_of_second_mut(number) else { return };
        second.delayed += 1;
        second.delay_total_ns = second.delay_total_ns.saturating_add(delay.as_u64());
        second.delay_max = second.delay_max.max(delay);
        if let Some(latest) = &mut self.latest {
            latest.add_delay(clamp_to_usize(number), delay, &mut self.percentiles);
        }
    }

    /// Counts lost frames that were due in a second.
    pub fn add_lost_frames(&mut self, second: u64, frames: u64) {
        if let Some(second) = self.entry_of_second_mut(second) {
            second.lost += frames;
        }
    }

    /// Adds another series, second by second. Percentiles of a second are kept only if all delays of the
    /// second come from one of the two series.
    pub fn merge(&mut self, other: &Self) {
        // The percentiles come first, because they depend on which seconds had delays before the merge.
        self.merge_percentiles(other);
        if self.seconds.len() < other.seconds.len() {
            self.seconds.resize(other.seconds.len(), QualitySecond::default());
        }
        for (mine, theirs) in self.seconds.iter_mut().zip(&other.seconds) {
            mine.lost = mine.lost.saturating_add(theirs.lost);
            mine.delayed = mine.delayed.saturating_add(theirs.delayed);
            mine.delay_total_ns = mine.delay_total_ns.saturating_add(theirs.delay_total_ns);
            mine.delay_max = mine.delay_max.max(theirs.delay_max);
        }
    }

    fn merge_percentiles(&mut self, other: &Self) {
        let seconds = self.percentiles.len().max(other.percentiles.len());
        let merged = (0..seconds).map(|second| match (self.has_delays(second), other.has_delays(second)) {
            (true, false) => self.percentiles_or_none(second),
            (false, true) => other.percentiles_or_none(second),
            // The percentiles of two sets of delays cannot be merged.
            _ => DelayPercentiles::NONE,
        });
        self.percentiles = merged.collect();
    }

    fn has_delays(&self, second: usize) -> bool {
        self.seconds.get(second).is_some_and(|second| second.delayed > 0)
    }

    fn percentiles_or_none(&self, second: usize) -> DelayPercentiles {
        self.percentiles.get(second).copied().unwrap_or(DelayPercentiles::NONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_and_delays_go_into_their_second() {
        let origin = MonoTime::from_nanos(500);
        let mut series = QualitySeries::with_limit(3);
        series.add_lost_frames(2, 5);
        series.add_delay(origin, origin + Nanos::from_millis(1500), Nanos::new(40));
        series.add_delay(origin, origin + Nanos::from_millis(1600), Nanos::new(60));
        series.add_lost_frames(9, 1);
        let mut all = QualitySeries::default();
        all.merge(&series);
        all.merge(&series);
        let found: Vec<_> =
            all.seconds.iter().map(|s| (s.lost, s.delayed, s.delay_total_ns, s.delay_max.as_u64())).collect();
        assert_eq!(found, [(0, 0, 0, 0), (0, 4, 200, 60), (10, 0, 0, 0)]);
    }

    /// Percentiles of seconds 0, 1, 2 … in ns.
    fn medians(series: &QualitySeries) -> Vec<Option<u64>> {
        series.percentiles.iter().map(|second| second.p50().map(Nanos::as_u64)).collect()
    }

    #[test]
    fn each_second_has_percentiles_of_its_own_delays() {
        let origin = MonoTime::from_nanos(500);
        let mut series = QualitySeries::with_limit(9);
        for (ms, delay) in [(100, 10), (200, 12), (1100, 9), (300, 30), (2100, 7), (2200, 7), (4000, 20)] {
            series.add_delay(origin, origin + Nanos::from_millis(ms), Nanos::new(delay));
        }
        series.add_delay(origin, origin + Nanos::from_secs(9), Nanos::new(1));
        series.close_latest_seconds();
        assert_eq!(medians(&series), [Some(12), Some(9), Some(7), None, Some(20)]);
        assert_eq!(series.percentiles[0].p99().map(Nanos::as_u64), Some(30));
        assert_eq!(series.percentiles.capacity(), 9, "a receiver must not allocate");
        let read: QualitySeries = serde_json::from_str(&serde_json::to_string(&series).unwrap()).unwrap();
        assert_eq!((medians(&read), &read.seconds), (medians(&series), &series.seconds));
    }

    #[test]
    fn closed_second_with_later_delay_has_no_percentiles() {
        let origin = MonoTime::from_nanos(0);
        let mut series = QualitySeries::with_limit(9);
        for ms in [100, 1100, 3000, 200, 2100, 3900] {
            series.add_delay(origin, origin + Nanos::from_millis(ms), Nanos::new(ms));
        }
        series.close_latest_seconds();
        let known: Vec<bool> = medians(&series).iter().map(Option::is_some).collect();
        assert_eq!(known, [false, true, true, true], "second 0 was closed when second 3 began");
        assert_eq!(series.seconds[0].delayed, 2);
    }

    #[test]
    fn shared_second_of_two_receivers_has_no_percentiles() {
        let origin = MonoTime::from_nanos(0);
        let with = |seconds: &[u64]| {
            let mut series = QualitySeries::with_limit(9);
            for second in seconds {
                series.add_delay(origin, origin + Nanos::from_secs(*second), Nanos::new(10 + second));
            }
            series.close_latest_seconds();
            series
        };
        let mut all = QualitySeries::default();
        all.merge(&with(&[0, 1]));
        assert_eq!(medians(&all), [Some(10), Some(11)], "one receiver alone");
        all.merge(&with(&[1, 2]));
        assert_eq!(medians(&all), [Some(10), None, Some(12)]);
        let mut shared = with(&[0]);
        shared.percentiles.clear();
        shared.merge(&with(&[0, 1]));
        assert_eq!(medians(&shared), [None, Some(11)], "a node of an older version has none");
    }

    #[test]
    fn rate_series_counts_seconds_and_overflow_without_loss() {
        let origin = MonoTime::from_nanos(500);
        let mut series = RateSeries::with_limit(3);
        for ms in [0, 999, 1000, 2999, 3000, 9000] {
            series.add_frames(origin, origin + Nanos::from_millis(ms), 1, 64);
        }
        series.add_frames(origin, MonoTime::from_nanos(0), 1, 64);
        assert_eq!(series.seconds, [(3, 192), (1, 64), (1, 64)]);
        assert_eq!(series.beyond, (2, 128));
        let mut sum = RateSeries::with_limit(0);
        sum.merge(&series);
        sum.merge(&series);
        assert_eq!(sum.seconds[0], (6, 384));
    }
}
