//! Error bounds of the figures of a distribution of delays.
//!
//! A frame leaves some time after its timestamp was taken, so its delay looks longer than it is, by at most
//! the bound of its timestamp. The distribution of these bounds is known, but which frame has which bound is
//! not. So the lower bound of a figure is the smallest value that any assignment of bounds to delays gives:
//! if `k` frames have a bound above `x`, the true sample at rank `r` is at least the measured sample at rank
//! `r - k`, minus `x`.

use super::Latency;
use crate::bounded::{BoundReason, Bounded};
use packetrig_units::Nanos;

/// The errors of the timestamps from which a distribution of delays was computed.
#[derive(Clone, Copy, Debug)]
pub struct StampErrors<'a> {
    /// Distribution of the maximum time between the timestamp and the departure of each frame; `None` if
    /// it is not known.
    pub leaving: Option<&'a Latency>,
    /// Error bound of each arrival timestamp, in both directions; `None` if it is not known.
    pub arriving: Option<Nanos>,
    /// Error bound of the clock comparison, in both directions.
    pub clocks: Nanos,
}

impl StampErrors<'_> {
    /// Returns a value with the bounds that follow from all errors. `least` is its lower bound according to
    /// the departure timestamps alone.
    fn widen_by_stamp_errors(&self, value: Nanos, least: Nanos) -> Bounded<Nanos> {
        // Without a bound of the timestamps, the true delay may be as small as 0.
        let Some(arriving) = self.arriving.filter(|_| self.leaving.is_some()) else {
            let nothing = Bounded::exactly(value).lower_lower_bound(Nanos::ZERO, BoundReason::SendStamps);
            return nothing.raise_upper_bound(value + self.clocks, BoundReason::Clocks);
        };
        let without = [(arriving, BoundReason::ArrivalStamps), (self.clocks, BoundReason::Clocks)];
        let stamped = Bounded::exactly(value).lower_lower_bound(least, BoundReason::SendStamps);
        without.into_iter().fold(stamped, |figure, (error, why)| {
            // The errors are added, because all of them may have their largest values for the same frame.
            figure
                .lower_lower_bound(figure.least.saturating_sub(error), why)
                .raise_upper_bound(figure.most + error, why)
        })
    }
}

/// A distribution of delays, prepared for the computation of bounds at ranks.
#[derive(Debug)]
pub struct BoundedLatency<'a> {
    times: &'a Latency,
    errors: StampErrors<'a>,
    /// For each bucket: (the smallest value that its samples can have, the number of samples up to the end of
    /// this bucket), in ascending order.
    classes: Vec<(Nanos, u64)>,
    /// Pairs (error bound, number of frames with a larger error bound).
    beyond: Vec<(Nanos, u64)>,
}

impl<'a> BoundedLatency<'a> {
    pub fn new(times: &'a Latency, errors: StampErrors<'a>) -> Self {
        // The width of a bucket is at most 10^-digits of its value, so its samples are at most this much
        // below its upper end.
        let width = 10_u64.pow(u32::from(times.digits()));
        let mut samples = 0;
        let classes = times.buckets().map(|(upper, count)| {
            samples += count;
            (Nanos::new(upper.as_u64() - upper.as_u64() / width), samples)
        });
        let classes = classes.collect();
        // The distribution contains the bounds of all sent frames, because those of the arrived frames
        // alone are not known.
        let all = errors.leaving.map_or(0, Latency::count);
        let mut below = 0;
        let bounds = errors.leaving.into_iter().flat_map(Latency::buckets);
        let beyond = bounds.map(|(upper, count)| {
            below += count;
            (upper, all.saturating_sub(below))
        });
        let beyond = beyond.collect();
        Self { times, errors, classes, beyond }
    }

    /// Returns the time at or below which `millionths` of the delays lie, with its bounds; `None` without delays.
    pub fn quantile(&self, millionths: u32) -> Option<Bounded<Nanos>> {
        let value = self.times.quantile(millionths)?;
        let rank = u128::from(self.times.count()) * u128::from(millionths);
        // The rank is rounded up, as in the histogram: a percentile is the value at rank ceil(p * n).
        let rank = u64::try_from(rank.div_ceil(1_000_000)).unwrap_or(u64::MAX);
        // `min` is used, because a lower bound above the value would only come from the width of the buckets.
        Some(self.errors.widen_by_stamp_errors(value, self.lower_bound_at_rank(rank.max(1)).min(value)))
    }

    pub fn max(&self) -> Option<Bounded<Nanos>> {
        let value = self.times.max()?;
        let of_all =
            self.errors.leaving.and_then(Latency::max).map_or(Nanos::ZERO, |most| value.saturating_sub(most));
        Some(self.errors.widen_by_stamp_errors(
            value,
            self.lower_bound_at_rank(self.times.count()).max(of_all).min(value),
        ))
    }

    pub fn min(&self) -> Option<Bounded<Nanos>> {
        let value = self.times.min()?;
        // The shortest delay may belong to the frame with the largest bound.
        let most = self.errors.leaving.and_then(Latency::max).unwrap_or(value);
        Some(self.errors.widen_by_stamp_errors(value, value.saturating_sub(most)))
    }

    pub fn mean(&self) -> Option<Bounded<Nanos>> {
        let value = self.times.mean()?;
        let sum = self.errors.leaving.map_or(0, |leaving| leaving.exact.sum);
        // The sum includes the bounds of frames that did not arrive, because it is not known which of the bounds
        // belong to such frames.
        let most = sum.div_ceil(u128::from(self.times.count().max(1)));
        let most = Nanos::new(u64::try_from(most).unwrap_or(u64::MAX));
        Some(self.errors.widen_by_stamp_errors(value, value.saturating_sub(most)))
    }

    /// Returns a lower bound of the true delay at `rank` (counted from 1). Frames may leave later than their send
    /// timestamps say, so the measured delay may be too long by this time.
    fn lower_bound_at_rank(&self, rank: u64) -> Nanos {
        let shortened = self.beyond.iter().filter_map(|(bound, frames)| {
            // Frames with a larger error bound may have any smaller true delay, so the rank is
            // reduced by their number.
            let rank = rank.checked_sub(*frames).filter(|rank| *rank > 0)?;
            Some(self.lowest_time_at_rank(rank).saturating_sub(*bound))
        });
        shortened.max().unwrap_or(Nanos::ZERO)
    }

    fn lowest_time_at_rank(&self, rank: u64) -> Nanos {
        let class = self.classes.partition_point(|(_, samples)| *samples < rank);
        let reached = self.classes.get(class).map_or(Nanos::ZERO, |(reached, _)| *reached);
        // No sample is below the exact minimum, however wide the first bucket is.
        reached.max(self.times.min().unwrap_or(Nanos::ZERO))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(times: impl IntoIterator<Item = u64>) -> Latency {
        let mut latency = Latency::with_digits(3);
        times.into_iter().for_each(|ns| latency.record_time(Nanos::new(ns)));
        latency
    }

    fn errors(leaving: &Latency) -> StampErrors<'_> {
        StampErrors { leaving: Some(leaving), arriving: Some(Nanos::ZERO), clocks: Nanos::ZERO }
    }

    /// A cable that takes 5 us. One frame in a thousand was stamped 20 ms before it left.
    #[test]
    fn late_departure_does_not_raise_least_latency() {
        let times = of((0..1000).map(|n| if n == 500 { 20_005_000 } else { 5_000 }));
        let leaving = of((0..1000).map(|n| if n == 500 { 20_000_000 } else { 100 }));
        let bounded = BoundedLatency::new(&times, errors(&leaving));
        let max = bounded.max().unwrap();
        assert_eq!(max.value, Nanos::new(20_005_000));
        assert!(max.least <= Nanos::new(5_000) && max.least >= Nanos::new(4_800), "{max:?}");
        let median = bounded.quantile(500_000).unwrap();
        assert!((4_800..=4_950).contains(&median.least.as_u64()), "{median:?}");
        assert!(bounded.mean().unwrap().least <= Nanos::new(5_000));
    }

    #[test]
    fn unknown_stamp_error_leaves_lower_bound_open() {
        let times = of([7_000; 10]);
        let errors = StampErrors { leaving: None, arriving: Some(Nanos::ZERO), clocks: Nanos::new(50) };
        let max = BoundedLatency::new(&times, errors).max().unwrap();
        assert_eq!((max.least, max.most), (Nanos::ZERO, Nanos::new(7_050)));
    }

    proptest! {
        #[test]
        fn the_truth_is_within_the_bounds(
            frames in prop::collection::vec((1u64..5_000_000, 0u64..3_000_000, 0u64..=100, any::<bool>()), 1..300),
            shift in -400i64..=400, millionths in 1u32..1_000_000,
        ) {
            // Each frame took `truth`, left up to `bound` after its stamp, and may have been lost.
            let left = |bound: u64, percent: u64| bound * percent / 100;
            let arrived: Vec<_> = frames.iter().filter(|(.., arrived)| *arrived).collect();
            prop_assume!(!arrived.is_empty());
            let stamped = of(arrived.iter().map(|(truth, bound, percent, _)| {
                (truth + left(*bound, *percent)).saturating_add_signed(shift)
            }));
            let leaving = of(frames.iter().map(|(_, bound, ..)| *bound));
            let bounded = BoundedLatency::new(
                &stamped,
                StampErrors { leaving: Some(&leaving), arriving: Some(Nanos::new(100)), clocks: Nanos::new(300) },
            );
            let mut truth: Vec<u64> = arrived.iter().map(|(truth, ..)| *truth).collect();
            truth.sort_unstable();
            let rank = (u64::from(millionths) * truth.len() as u64).div_ceil(1_000_000).max(1);
            let mean = truth.iter().sum::<u64>() / truth.len() as u64;
            let wanted = [
                (bounded.quantile(millionths), truth[usize::try_from(rank - 1).unwrap()]),
                (bounded.max(), truth[truth.len() - 1]),
                (bounded.min(), truth[0]),
                (bounded.mean(), mean),
            ];
            for (found, truth) in wanted {
                let found = found.unwrap();
                prop_assert!(found.least.as_u64() <= truth && truth <= found.most.as_u64() + 1, "{truth} not in {found:?}");
            }
        }
    }
}
