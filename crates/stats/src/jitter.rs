//! Delay variation by its named definitions: RFC 3550 (smoothed), RFC 5481 PDV (against the minimum) and IPDV
//! (between neighbours).

use crate::latency::Latency;
use packetrig_units::{Nanos, clamp_to_u64, clamp_to_usize};
use serde::{Deserialize, Serialize};

/// Fraction bits of the smoothed value: RFC 3550 divides by 16 at every frame, which must not round to nothing.
const FRACTION_BITS: u32 = 8;

/// Takes in one-way delays in order of arrival. A constant clock offset cancels out.
#[derive(Clone, Copy, Debug, Default)]
pub struct JitterMeter {
    last: Option<i64>,
    /// J of RFC 3550, with [`FRACTION_BITS`] bits behind the point. A step of a clock by years needs more than 64 bits.
    smoothed: u128,
    /// The largest J so far.
    largest: u128,
    sum: u128,
    count: u64,
    max: u64,
}

impl JitterMeter {
    /// Takes in the delay of the next frame to arrive.
    pub fn record_delay(&mut self, delay_ns: i64) {
        if let Some(last) = self.last.replace(delay_ns) {
            // `abs_diff`, because the distance of two signed times may need all 64 bits.
            let change = delay_ns.abs_diff(last);
            // J += (|D| - J) / 16, RFC 3550 section 6.4.1. The old J alone is damped, not the new change with it.
            self.smoothed = self.smoothed - self.smoothed / 16 + (u128::from(change) << FRACTION_BITS) / 16;
            self.largest = self.largest.max(self.smoothed);
            self.sum += u128::from(change);
            self.count += 1;
            self.max = self.max.max(change);
        }
    }

    /// Returns the value of RFC 3550 section 6.4.1 so far.
    pub fn smoothed_jitter(&self) -> Nanos {
        whole_nanos(self.smoothed)
    }

    /// Returns the figures; `latency` is the distribution of the same delays.
    pub fn summary(&self, latency: &Latency) -> JitterSummary {
        let mean = self.sum.checked_div(u128::from(self.count)).unwrap_or(0);
        // RFC 5481 section 4.2: PDV is the delay less the minimum. So a quantile of PDV is that of the delay, shifted.
        let above_min = latency.quantile(999_000).unwrap_or(Nanos::ZERO);
        JitterSummary {
            rfc3550: self.smoothed_jitter(),
            rfc3550_max: whole_nanos(self.largest),
            pdv_p999: above_min.saturating_sub(latency.min().unwrap_or(Nanos::ZERO)),
            ipdv_mean: Nanos::new(clamp_to_u64(mean)),
            ipdv_max: Nanos::new(self.max),
            samples: self.count,
        }
    }
}

fn whole_nanos(smoothed: u128) -> Nanos {
    Nanos::new(clamp_to_u64(smoothed >> FRACTION_BITS))
}

/// The figures of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JitterSummary {
    /// RFC 3550 section 6.4.1 interarrival jitter at the end of the stream.
    pub rfc3550: Nanos,
    /// The largest value that it had, so that a calm end does not hide an earlier peak.
    #[serde(default)]
    pub rfc3550_max: Nanos,
    /// RFC 5481 PDV, 99.9 % quantile: p99.9 of latency minus its minimum.
    pub pdv_p999: Nanos,
    /// RFC 5481 IPDV: mean of |difference between consecutive frames|.
    pub ipdv_mean: Nanos,
    /// RFC 5481 IPDV: largest |difference between consecutive frames|.
    pub ipdv_max: Nanos,
    pub samples: u64,
}

impl JitterSummary {
    /// Merges the figures of two receivers: the IPDV mean is weighted; of the other figures, the worse one is kept.
    pub fn merge(&mut self, other: &Self) {
        // Figures from another machine may be as large as their types allow.
        let samples = self.samples.saturating_add(other.samples);
        let sum = self.ipdv_sum().saturating_add(other.ipdv_sum());
        let mean = sum.checked_div(u128::from(samples)).unwrap_or(0);
        self.ipdv_mean = Nanos::new(clamp_to_u64(mean));
        self.samples = samples;
        self.rfc3550 = self.rfc3550.max(other.rfc3550);
        self.rfc3550_max = self.rfc3550_max.max(other.rfc3550_max);
        self.pdv_p999 = self.pdv_p999.max(other.pdv_p999);
        self.ipdv_max = self.ipdv_max.max(other.ipdv_max);
    }

    fn ipdv_sum(&self) -> u128 {
        u128::from(self.ipdv_mean.as_u64()) * u128::from(self.samples)
    }
}

/// Returns the largest error of the smoothed value at any time, if each delay is too long by at most its own bound, and by no
/// more than itself. The bound of each frame is not known, so the largest bounds are assigned to the greatest weights. `delays`
/// may be too short by `doubt`.
pub fn jitter_error(bounds: &Latency, delays: &Latency, doubt: Nanos) -> Nanos {
    // A value that is at most the n-th largest of each is at most the n-th largest of both.
    let errors = times_from_largest(bounds)
        .zip(times_from_largest(delays))
        .map(|(bound, delay)| bound.min(delay + doubt));
    // Each delay is in two neighbouring differences: the newer one has the weight 1/16, the older one 15/16 of
    // that.
    let (mut weight, mut sum) = (1.0 / 16.0, 0.0);
    for error in errors {
        let error = error.as_u64() as f64;
        if weight < MIN_FRAME_WEIGHT {
            // All that follow together weigh this much at most.
            sum += weight * 16.0 * error;
            break;
        }
        sum += weight * (1.0 + 15.0 / 16.0) * error;
        // Each error takes two places of the series, so the next one weighs two steps of 15/16 less.
        weight *= (15.0 / 16.0) * (15.0 / 16.0);
    }
    round_up_to_nanos(sum)
}

fn times_from_largest(times: &Latency) -> impl Iterator<Item = Nanos> {
    let buckets: Vec<(Nanos, u64)> = times.buckets().collect();
    let samples = buckets.into_iter().rev();
    samples.flat_map(|(time, count)| std::iter::repeat_n(time, clamp_to_usize(count)))
}

/// Frames of a smaller weight are taken together.
const MIN_FRAME_WEIGHT: f64 = 1e-6;

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a sum of times in nanoseconds")]
fn round_up_to_nanos(nanoseconds: f64) -> Nanos {
    Nanos::new(nanoseconds.ceil() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(delays: &[i64]) -> JitterSummary {
        let (mut jitter, mut latency) = (JitterMeter::default(), Latency::with_digits(3));
        for delay in delays {
            jitter.record_delay(*delay);
            latency.record_time(Nanos::new(delay.unsigned_abs()));
        }
        jitter.summary(&latency)
    }

    #[test]
    fn a_constant_delay_has_no_jitter() {
        assert_eq!(of(&[5_000; 10]), JitterSummary { samples: 9, ..JitterSummary::default() });
    }

    #[test]
    fn alternating_delays_settle_at_their_difference() {
        let delays: Vec<i64> = (0..1_000).map(|n| if n % 2 == 0 { 10_000 } else { 26_000 }).collect();
        let summary = of(&delays);
        assert_eq!((summary.ipdv_mean, summary.ipdv_max), (Nanos::new(16_000), Nanos::new(16_000)));
        assert_eq!(summary.pdv_p999, Nanos::new(16_000));
        let settled = summary.rfc3550.as_u64();
        assert!((15_990..=16_000).contains(&settled), "{settled}");
    }

    #[test]
    fn a_calm_end_leaves_the_largest_value() {
        let delays: Vec<i64> = (0..40).map(|n| if n == 20 { 160_000 } else { 0 }).collect();
        let summary = of(&delays);
        // The value goes up by 160 000 / 16, is damped once, and goes up again on the way back.
        assert_eq!(summary.rfc3550_max, Nanos::new(10_000 - 10_000 / 16 + 10_000));
        assert!(summary.rfc3550 < summary.rfc3550_max);
    }

    #[test]
    fn jitter_of_stepped_clock_is_not_cut() {
        // A receiver without a clock of its own begins in 1970.
        let years = 1_700_000_000_000_000_000;
        let (summary, sixteenth) = (of(&[0, years]), years.unsigned_abs() / 16);
        assert_eq!((summary.rfc3550, summary.rfc3550_max), (Nanos::new(sixteenth), Nanos::new(sixteenth)));
    }

    #[test]
    fn merge_of_greatest_foreign_figures_saturates() {
        let greatest = JitterSummary { ipdv_mean: Nanos::MAX, samples: u64::MAX, ..JitterSummary::default() };
        let mut merged = greatest;
        merged.merge(&greatest);
        assert_eq!((merged.samples, merged.ipdv_mean), (u64::MAX, Nanos::MAX));
    }

    proptest! {
        #[test]
        fn it_is_the_formula_in_real_numbers(delays in prop::collection::vec(0i64..50_000_000, 2..400)) {
            let (mut jitter, mut largest) = (0.0_f64, 0.0_f64);
            for pair in delays.windows(2) {
                jitter += (pair[1].abs_diff(pair[0]) as f64 - jitter) / 16.0;
                largest = largest.max(jitter);
            }
            let summary = of(&delays);
            prop_assert!((summary.rfc3550.as_u64() as f64 - jitter).abs() < 2.0, "{} for {jitter}", summary.rfc3550);
            prop_assert!((summary.rfc3550_max.as_u64() as f64 - largest).abs() < 2.0);
        }

        #[test]
        fn no_errors_within_their_bounds_move_it_further(
            frames in prop::collection::vec((0i64..1_000_000, 0u64..100_000, 0u64..=100), 2..200)
        ) {
            let (mut bounds, mut delays) = (Latency::with_digits(2), Latency::with_digits(3));
            let (mut stamped, mut true_jitter) = (JitterMeter::default(), JitterMeter::default());
            for (delay, bound, percent) in &frames {
                bounds.record_time(Nanos::new(*bound));
                delays.record_time(Nanos::new(delay.unsigned_abs()));
                stamped.record_delay(*delay);
                true_jitter.record_delay(*delay - (bound * percent / 100).cast_signed().min(*delay));
            }
            let error = jitter_error(&bounds, &delays, Nanos::ZERO).as_u64() + 2;
            let largest = |jitter: &JitterMeter| whole_nanos(jitter.largest).as_u64();
            prop_assert!(stamped.smoothed_jitter().as_u64().abs_diff(true_jitter.smoothed_jitter().as_u64()) <= error);
            prop_assert!(largest(&stamped).abs_diff(largest(&true_jitter)) <= error);
        }
    }
}
