//! A distribution of times in log-linear buckets. It can be merged, and its minimum, maximum, count and sum are exact.

mod bounds;

pub use bounds::{BoundedLatency, StampErrors};

use crate::counts::DelaySummary;
use hdrhistogram::Histogram;
use packetrig_units::{Nanos, clamp_to_u64};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// The longest time that the buckets distinguish; longer times count as this time in quantiles. Minimum,
/// maximum and mean are exact for all times.
const MAX_DISTINGUISHED_NS: u64 = 100_000_000_000;

/// A distribution of times from 1 ns to 100 s. While times are added, its memory has a fixed size: about 200
/// kB with three significant digits, 28 kB with two. It is serialised as its exact figures and the (value,
/// count) pairs that are not empty. A deserialised distribution takes no more memory than these pairs until a
/// value is added: a file of a hundred bytes must not cause an allocation of 200 kB.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(into = "SparseHistogram", try_from = "SparseHistogram")]
pub struct Latency {
    times: LatencyTimes,
    exact: ExactTimes,
}

#[derive(Clone, Debug)]
enum LatencyTimes {
    Counting(Histogram<u64>),
    Read { digits: u8, buckets: Vec<(u64, u64)> },
}

impl LatencyTimes {
    fn digits(&self) -> u8 {
        match self {
            Self::Counting(histogram) => histogram.sigfig(),
            Self::Read { digits, .. } => *digits,
        }
    }

    fn to_histogram(&self) -> Cow<'_, Histogram<u64>> {
        match self {
            Self::Counting(histogram) => Cow::Borrowed(histogram),
            // The histogram is built for each query, so that its memory is used only during the query.
            Self::Read { digits, buckets } => {
                let mut histogram = empty_histogram(*digits);
                for (value, count) in buckets {
                    histogram.saturating_record_n((*value).clamp(1, MAX_DISTINGUISHED_NS), *count);
                }
                Cow::Owned(histogram)
            }
        }
    }

    /// Returns the histogram that times are added to. Allocates only for a deserialised distribution.
    fn histogram_mut(&mut self) -> &mut Histogram<u64> {
        if let Self::Read { .. } = self {
            *self = Self::Counting(self.to_histogram().into_owned());
        }
        let Self::Counting(histogram) = self else { unreachable!("it was just made to count") };
        histogram
    }
}

fn empty_histogram(digits: u8) -> Histogram<u64> {
    Histogram::new_with_bounds(1, MAX_DISTINGUISHED_NS, digits.clamp(1, 3))
        .expect("bounds of 1 ns and 100 s, and 1 to 3 digits, are valid")
}

impl PartialEq for Latency {
    fn eq(&self, other: &Self) -> bool {
        // A distribution that was built up and a deserialised one are equal if they contain the same samples.
        let is_same = self.exact == other.exact && self.times.digits() == other.times.digits();
        is_same && self.buckets().eq(other.buckets())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ExactTimes {
    count: u64,
    sum: u128,
    min: u64,
    max: u64,
}

impl ExactTimes {
    const NO_EXACT_TIMES: Self = Self { count: 0, sum: 0, min: u64::MAX, max: 0 };
}

impl Latency {
    /// Creates an empty distribution with `digits` significant digits, from 1 to 3. Other values become
    /// the nearest of these.
    pub fn with_digits(digits: u8) -> Self {
        Self { times: LatencyTimes::Counting(empty_histogram(digits)), exact: ExactTimes::NO_EXACT_TIMES }
    }

    /// Adds one time. Does not allocate, except after deserialisation.
    pub fn record_time(&mut self, time: Nanos) {
        let ns = time.as_u64();
        // The histogram has buckets only from 1 ns to `MAX_DISTINGUISHED_NS`. The exact figures use the true value.
        self.times.histogram_mut().saturating_record(ns.clamp(1, MAX_DISTINGUISHED_NS));
        self.exact.count += 1;
        self.exact.sum += u128::from(ns);
        self.exact.min = self.exact.min.min(ns);
        self.exact.max = self.exact.max.max(ns);
    }

    /// Adds `count` times that all have this value.
    pub fn record_repeated_time(&mut self, time: Nanos, count: u64) {
        if count == 0 {
            return;
        }
        let ns = time.as_u64();
        self.times.histogram_mut().saturating_record_n(ns.clamp(1, MAX_DISTINGUISHED_NS), count);
        self.exact.count += count;
        self.exact.sum += u128::from(ns) * u128::from(count);
        self.exact.min = self.exact.min.min(ns);
        self.exact.max = self.exact.max.max(ns);
    }

    /// Adds another distribution to this one. The result has the coarser resolution of the two.
    pub fn merge(&mut self, other: &Self) {
        if other.digits() < self.digits() {
            // With the finer resolution, the samples of the coarser distribution would seem more exact than they are.
            let mine = std::mem::replace(self, Self::with_digits(other.digits()));
            self.add_buckets(&mine);
            self.exact = mine.exact;
        }
        self.add_buckets(other);
        // Figures from a file may be as large as their types allow, so the sums saturate.
        self.exact.count = self.exact.count.saturating_add(other.exact.count);
        self.exact.sum = self.exact.sum.saturating_add(other.exact.sum);
        self.exact.min = self.exact.min.min(other.exact.min);
        self.exact.max = self.exact.max.max(other.exact.max);
    }

    fn add_buckets(&mut self, other: &Self) {
        for (value, count) in other.buckets() {
            // The end of the last bucket may be above `MAX_DISTINGUISHED_NS`.
            self.times.histogram_mut().saturating_record_n(value.as_u64().min(MAX_DISTINGUISHED_NS), count);
        }
    }

    /// Returns the number of significant digits of the quantiles.
    fn digits(&self) -> u8 {
        self.times.digits()
    }

    /// Returns the number of recorded times.
    pub fn count(&self) -> u64 {
        self.exact.count
    }

    /// Returns the exact minimum; `None` if the distribution is empty.
    pub fn min(&self) -> Option<Nanos> {
        self.time_if_counted(self.exact.min)
    }

    pub fn max(&self) -> Option<Nanos> {
        self.time_if_counted(self.exact.max)
    }

    /// Returns the exact figures of this distribution, which can be merged with those of other distributions.
    pub fn summary(&self) -> DelaySummary {
        DelaySummary {
            count: self.exact.count,
            sum: self.exact.sum,
            min: self.min().unwrap_or_default(),
            max: self.max().unwrap_or_default(),
        }
    }

    /// Returns the mean, rounded down to whole nanoseconds; `None` if the distribution is empty.
    pub fn mean(&self) -> Option<Nanos> {
        let mean = self.exact.sum.checked_div(u128::from(self.exact.count))?;
        self.time_if_counted(clamp_to_u64(mean))
    }

    /// Returns the time at or below which `millionths` of the samples lie: 999 900 is p99.99.
    pub fn quantile(&self, millionths: u32) -> Option<Nanos> {
        let value = self.times.to_histogram().value_at_quantile(f64::from(millionths) / 1e6);
        // The histogram returns the upper end of a bucket, which is limited here to the exact minimum and maximum.
        self.time_if_counted(value.clamp(self.exact.min.min(self.exact.max), self.exact.max))
    }

    /// Returns pairs (upper end of a bucket, number of samples in it) in ascending order, without empty buckets.
    pub fn buckets(&self) -> impl Iterator<Item = (Nanos, u64)> {
        let histogram = self.times.to_histogram();
        let recorded = histogram.iter_recorded();
        let pairs = recorded.map(|pair| (Nanos::new(pair.value_iterated_to()), pair.count_at_value()));
        pairs.collect::<Vec<_>>().into_iter()
    }

    fn time_if_counted(&self, ns: u64) -> Option<Nanos> {
        (self.exact.count > 0).then(|| Nanos::new(ns))
    }
}

#[derive(Serialize, Deserialize)]
struct SparseHistogram {
    digits: u8,
    count: u64,
    /// The sum as text, because it may exceed the range of JSON numbers.
    sum: String,
    min: u64,
    max: u64,
    buckets: Vec<(u64, u64)>,
}

impl From<Latency> for SparseHistogram {
    fn from(latency: Latency) -> Self {
        Self {
            digits: latency.times.digits(),
            count: latency.exact.count,
            sum: latency.exact.sum.to_string(),
            min: latency.exact.min,
            max: latency.exact.max,
            buckets: latency.buckets().map(|(value, count)| (value.as_u64(), count)).collect(),
        }
    }
}

impl TryFrom<SparseHistogram> for Latency {
    type Error = String;

    fn try_from(sparse: SparseHistogram) -> Result<Self, String> {
        // The file may come from anywhere: with figures that contradict each other, quantiles would be wrong.
        let samples = sparse.buckets.iter().fold(0, |sum: u64, (_, count)| sum.saturating_add(*count));
        if samples != sparse.count {
            return Err(format!(
                "the buckets of a distribution contain {samples} samples, but its count is {}",
                sparse.count
            ));
        }
        let sum = sparse
            .sum
            .parse()
            .map_err(|_| format!("the sum of a distribution, `{}`, is not a whole number", sparse.sum))?;
        let exact = ExactTimes { count: sparse.count, sum, min: sparse.min, max: sparse.max };
        Ok(Self {
            times: LatencyTimes::Read { digits: sparse.digits.clamp(1, 3), buckets: sparse.buckets },
            exact,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(times: &[u64]) -> Latency {
        let mut latency = Latency::with_digits(3);
        for ns in times {
            latency.record_time(Nanos::new(*ns));
        }
        latency
    }

    #[test]
    fn an_empty_distribution_knows_nothing() {
        let empty = of(&[]);
        assert_eq!((empty.min(), empty.mean(), empty.quantile(500_000)), (None, None, None));
    }

    #[test]
    fn merge_keeps_coarser_bounds_in_any_order() {
        let mut coarse = Latency::with_digits(2);
        coarse.record_time(Nanos::from_millis(1));
        let (mut one, mut other) = (of(&[10]), coarse.clone());
        one.merge(&coarse);
        other.merge(&of(&[10]));
        assert!(one == other, "the order of two parts changes their sum");
        let exact = Latency::with_digits(3);
        let errors = StampErrors { leaving: Some(&exact), arriving: Some(Nanos::ZERO), clocks: Nanos::ZERO };
        let greatest = BoundedLatency::new(&one, errors).quantile(1_000_000).unwrap();
        assert!(greatest.least <= Nanos::from_millis(1), "{greatest:?}");
    }

    #[test]
    fn beyond_the_range_the_exact_figures_stay_exact() {
        let latency = of(&[0, 200_000_000_000]);
        assert_eq!(latency.max(), Some(Nanos::new(200_000_000_000)));
        assert_eq!(latency.min(), Some(Nanos::ZERO));
        assert_eq!(latency.mean(), Some(Nanos::new(100_000_000_000)));
    }

    #[test]
    fn deserialized_latency_allocates_histogram_on_first_addition() {
        let counted = of(&[5, 70_000, 70_000]);
        let text = serde_json::to_string(&counted).unwrap();
        let mut read: Latency = serde_json::from_str(&text).unwrap();
        assert!(matches!(&read.times, LatencyTimes::Read { buckets, .. } if buckets.len() == 2));
        assert_eq!((read.quantile(500_000), read.clone()), (counted.quantile(500_000), counted));
        assert!(matches!(read.times, LatencyTimes::Read { .. }), "asking adds nothing");
        read.record_time(Nanos::new(6));
        assert!(matches!(read.times, LatencyTimes::Counting(_)));
        assert_eq!(read, of(&[5, 70_000, 70_000, 6]));
        assert!(serde_json::from_str::<Latency>(&text.replace("\"count\":3", "\"count\":4")).is_err());
    }

    proptest! {
        #[test]
        fn quantiles_match_sorted_list_within_a_thousandth(
            mut times in prop::collection::vec(1u64..50_000_000_000, 1..300), millionths in 1u32..1_000_000
        ) {
            let found = of(&times).quantile(millionths).unwrap().as_u64();
            times.sort_unstable();
            let rank = (u64::from(millionths) * times.len() as u64).div_ceil(1_000_000).max(1);
            let wanted = times[usize::try_from(rank - 1).unwrap()];
            prop_assert!(found.abs_diff(wanted) <= wanted / 1000 + 1, "{found} for {wanted}");
        }

        #[test]
        fn merging_is_recording_both(a in prop::collection::vec(0u64..1_000_000, 0..50), b in prop::collection::vec(0u64..1_000_000, 0..50)) {
            let mut merged = of(&a);
            merged.merge(&of(&b));
            let both = of(&[a, b].concat());
            prop_assert_eq!((merged.count(), merged.min(), merged.max(), merged.mean()), (both.count(), both.min(), both.max(), both.mean()));
            prop_assert_eq!(merged.buckets().collect::<Vec<_>>(), both.buckets().collect::<Vec<_>>());
        }

        #[test]
        fn it_survives_a_journey(times in prop::collection::vec(0u64..1_000_000_000, 0..50)) {
            let latency = of(&times);
            let text = serde_json::to_string(&latency).unwrap();
            prop_assert_eq!(serde_json::from_str::<Latency>(&text).unwrap(), latency);
        }
    }
}
