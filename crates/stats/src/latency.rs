//! A distribution of times, log-linear, mergeable, with exact minimum, maximum, count and sum.

use hdrhistogram::Histogram;
use packetrig_units::Nanos;
use serde::{Deserialize, Serialize};

/// The longest time told apart; longer ones count as this in quantiles. Minimum, maximum and mean stay exact.
const LONGEST: u64 = 100_000_000_000;

/// Distribution of times from 1 ns to 100 s. Memory is fixed: about 200 kB at three significant digits, 28 kB at two.
/// Serialised as its exact figures and the (value, count) pairs that are not empty.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "Sparse", try_from = "Sparse")]
pub struct Latency {
    histogram: Histogram<u64>,
    exact: Exact,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Exact {
    count: u64,
    sum: u128,
    min: u64,
    max: u64,
}

impl Exact {
    const EMPTY: Self = Self { count: 0, sum: 0, min: u64::MAX, max: 0 };
}

impl Latency {
    /// An empty distribution with `digits` significant digits (1 to 3; others are brought into range).
    pub fn with_digits(digits: u8) -> Self {
        let histogram = Histogram::new_with_bounds(1, LONGEST, digits.clamp(1, 3))
            .expect("bounds 1..LONGEST and 1 to 3 digits are legal");
        Self { histogram, exact: Exact::EMPTY }
    }

    /// Takes in one time. Never allocates.
    pub fn record(&mut self, time: Nanos) {
        let ns = time.as_u64();
        self.histogram.saturating_record(ns.clamp(1, LONGEST));
        self.exact.count += 1;
        self.exact.sum += u128::from(ns);
        self.exact.min = self.exact.min.min(ns);
        self.exact.max = self.exact.max.max(ns);
    }

    /// Takes in `count` times of which no more is known than this one.
    pub fn record_many(&mut self, time: Nanos, count: u64) {
        if count == 0 {
            return;
        }
        let ns = time.as_u64();
        self.histogram.saturating_record_n(ns.clamp(1, LONGEST), count);
        self.exact.count += count;
        self.exact.sum += u128::from(ns) * u128::from(count);
        self.exact.min = self.exact.min.min(ns);
        self.exact.max = self.exact.max.max(ns);
    }

    /// Adds another distribution to this one; the coarser resolution of the two is what remains.
    pub fn merge(&mut self, other: &Self) {
        for pair in other.histogram.iter_recorded() {
            self.histogram.saturating_record_n(pair.value_iterated_to().min(LONGEST), pair.count_at_value());
        }
        self.exact.count += other.exact.count;
        self.exact.sum += other.exact.sum;
        self.exact.min = self.exact.min.min(other.exact.min);
        self.exact.max = self.exact.max.max(other.exact.max);
    }

    /// How many times were taken in.
    pub fn count(&self) -> u64 {
        self.exact.count
    }

    /// The smallest, exact; `None` if empty.
    pub fn min(&self) -> Option<Nanos> {
        self.some(self.exact.min)
    }

    /// The largest, exact.
    pub fn max(&self) -> Option<Nanos> {
        self.some(self.exact.max)
    }

    /// The mean, to the nanosecond.
    pub fn mean(&self) -> Option<Nanos> {
        let mean = self.exact.sum.checked_div(u128::from(self.exact.count))?;
        self.some(u64::try_from(mean).unwrap_or(u64::MAX))
    }

    /// The time at or below which `millionths` of the samples lie: 999 900 is p99.99.
    pub fn quantile(&self, millionths: u32) -> Option<Nanos> {
        let value = self.histogram.value_at_quantile(f64::from(millionths) / 1e6);
        // The histogram rounds up to the end of its bucket; the exact ends are known better.
        self.some(value.clamp(self.exact.min.min(self.exact.max), self.exact.max))
    }

    /// (upper end of a bucket, samples in it), ascending, empty buckets left out.
    pub fn buckets(&self) -> impl Iterator<Item = (Nanos, u64)> {
        self.histogram
            .iter_recorded()
            .map(|pair| (Nanos::new(pair.value_iterated_to()), pair.count_at_value()))
    }

    fn some(&self, ns: u64) -> Option<Nanos> {
        (self.exact.count > 0).then(|| Nanos::new(ns))
    }
}

/// The serialised form.
#[derive(Serialize, Deserialize)]
struct Sparse {
    digits: u8,
    count: u64,
    /// As text: it may exceed what JSON numbers hold.
    sum: String,
    min: u64,
    max: u64,
    buckets: Vec<(u64, u64)>,
}

impl From<Latency> for Sparse {
    fn from(latency: Latency) -> Self {
        Self {
            digits: latency.histogram.sigfig(),
            count: latency.exact.count,
            sum: latency.exact.sum.to_string(),
            min: latency.exact.min,
            max: latency.exact.max,
            buckets: latency.buckets().map(|(value, count)| (value.as_u64(), count)).collect(),
        }
    }
}

impl TryFrom<Sparse> for Latency {
    type Error = String;

    fn try_from(sparse: Sparse) -> Result<Self, String> {
        let mut latency = Self::with_digits(sparse.digits);
        for (value, count) in &sparse.buckets {
            latency.histogram.saturating_record_n((*value).clamp(1, LONGEST), *count);
        }
        if latency.histogram.len() != sparse.count {
            return Err(format!(
                "a distribution of {} samples has buckets for {}",
                sparse.count,
                latency.histogram.len()
            ));
        }
        let sum = sparse.sum.parse().map_err(|_| format!("`{}` is not a sum", sparse.sum))?;
        latency.exact = Exact { count: sparse.count, sum, min: sparse.min, max: sparse.max };
        Ok(latency)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(times: &[u64]) -> Latency {
        let mut latency = Latency::with_digits(3);
        for ns in times {
            latency.record(Nanos::new(*ns));
        }
        latency
    }

    #[test]
    fn an_empty_distribution_knows_nothing() {
        let empty = of(&[]);
        assert_eq!((empty.min(), empty.mean(), empty.quantile(500_000)), (None, None, None));
    }

    #[test]
    fn beyond_the_range_the_exact_figures_stay_exact() {
        let latency = of(&[0, 200_000_000_000]);
        assert_eq!(latency.max(), Some(Nanos::new(200_000_000_000)));
        assert_eq!(latency.min(), Some(Nanos::ZERO));
        assert_eq!(latency.mean(), Some(Nanos::new(100_000_000_000)));
    }

    proptest! {
        #[test]
        fn quantiles_are_within_a_thousandth_of_the_sorted_list(
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
