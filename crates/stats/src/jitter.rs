//! Delay variation as RFCs define it: jitter of RFC 3550 (smoothed), PDV of RFC 5481 (against the minimum delay) and
//! IPDV of RFC 5481 (between consecutive frames).

use crate::latency::Latency;
use packetrig_units::{Nanos, clamp_to_u64, clamp_to_usize};
use serde::{Deserialize, Serialize};

/// Number of fraction bits of the smoothed value: RFC 3550 divides by 16 at every frame, and small values
/// must not be rounded to 0.
const FRACTION_BITS: u32 = 8;

/// Computes the jitter of one-way delays, which are added in the order of arrival. A constant offset between
/// the clocks cancels out.
#[derive(Clone, Copy, Debug, Default)]
pub struct JitterMeter {
    last: Option<i64>,
    /// J of RFC 3550, with [`FRACTION_BITS`] bits after the binary point. If a clock is set by years, the
    /// value exceeds 64 bits.
    smoothed: u128,
    /// The largest J so far.
    largest: u128,
    sum: u128,
    count: u64,
    max: u64,
}

impl JitterMeter {
    /// Adds the delay of the frame that arrived next.
    pub fn record_delay(&mut self, delay_ns: i64) {
        if let Some(last) = self.last.replace(delay_ns) {
            // `abs_diff` is used, because the distance between two signed times may need all 64 bits.
            let change = delay_ns.abs_diff(last);
            // RFC 3550 section 6.4.1: J += (|D| - J) / 16. The old J and the new change are divided
            // separately, which avoids negative numbers.
            self.smoothed = self.smoothed - self.smoothed / 16 + (u128::from(change) << FRACTION_BITS) / 16;
            self.largest = self.largest.max(self.smoothed);
            self.sum += u128::from(change);
            self.count += 1;
            self.max = self.max.max(change);
        }
    }

    /// Returns the smoothed jitter of RFC 3550 section 6.4.1 so far.
    pub fn smoothed_jitter(&self) -> Nanos {
        drop_fraction_bits(self.smoothed)
    }

    /// Returns all jitter figures; `latency` is the distribution of the same delays.
    pub fn summary(&self, latency: &Latency) -> JitterSummary {
        let mean = self.sum.checked_div(u128::from(self.count)).unwrap_or(0);
        // RFC 5481 section 4.2: PDV is the delay minus the minimum delay. So a quantile of PDV is the
        // quantile of the delay minus the minimum.
        let above_min = latency.quantile(999_000).unwrap_or(Nanos::ZERO);
        JitterSummary {
            rfc3550: self.smoothed_jitter(),
            rfc3550_max: drop_fraction_bits(self.largest),
            pdv_p999: above_min.saturating_sub(latency.min().unwrap_or(Nanos::ZERO)),
            ipdv_mean: Nanos::new(clamp_to_u64(mean)),
            ipdv_max: Nanos::new(self.max),
            samples: self.count,
        }
    }
}

fn drop_fraction_bits(smoothed: u128) -> Nanos {
    Nanos::new(clamp_to_u64(smoothed >> FRACTION_BITS))
}

/// The jitter figures of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JitterSummary {
    /// RFC 3550 section 6.4.1 interarrival jitter at the end of the stream.
    pub rfc3550: Nanos,
    /// The largest value of `rfc3550` during the stream: a calm end must not hide an earlier peak.
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
    /// Merges the figures of another receiver into these: the IPDV mean is weighted by the samples; of each
    /// other figure, the larger value is kept.
    pub fn merge(&mut self, other: &Self) {
        // Figures from another machine may be as large as their types allow, so the sums saturate.
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

/// Returns the largest possible error of the smoothed jitter at any time, if each delay is too long by at
/// most its own bound, and by at most its own value. Which frame has which bound is not known, so the largest
/// errors get the largest weights. `delays` may be too short by `doubt`.
pub fn largest_jitter_error(bounds: &Latency, delays: &Latency, doubt: Nanos) -> Nanos {
    // The error of a frame is at most its bound and at most its delay. So the n-th largest error is at most
    // the n-th largest bound and at most the n-th largest delay.
    let errors = times_from_largest(bounds)
        .zip(times_from_largest(delays))
        .map(|(bound, delay)| bound.min(delay + doubt));
    // Each delay is part of two consecutive differences: the newer one has the weight 1/16, the older
    // one 15/16 of that.
    let (mut weight, mut sum) = (1.0 / 16.0, 0.0);
    for error in errors {
        let error = error.as_u64() as f64;
        if weight < MIN_FRAME_WEIGHT {
            // All remaining weights together are at most this sum.
            sum += weight * 16.0 * error;
            break;
        }
        sum += weight * (1.0 + 15.0 / 16.0) * error;
        // Each error uses two terms of the series, so the next weight is smaller by two factors of 15/16.
        weight *= (15.0 / 16.0) * (15.0 / 16.0);
    }
    round_up_to_nanos(sum)
}

fn times_from_largest(times: &Latency) -> impl Iterator<Item = Nanos> {
    let buckets: Vec<(Nanos, u64)> = times.buckets().collect();
    let samples = buckets.into_iter().rev();
    samples.flat_map(|(time, count)| std::iter::repeat_n(time, clamp_to_usize(count)))
}

/// The errors of frames with a smaller weight than this are not added one by one.
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
            let error = largest_jitter_error(&bounds, &delays, Nanos::ZERO).as_u64() + 2;
            let largest = |jitter: &JitterMeter| drop_fraction_bits(jitter.largest).as_u64();
            prop_assert!(stamped.smoothed_jitter().as_u64().abs_diff(true_jitter.smoothed_jitter().as_u64()) <= error);
            prop_assert!(largest(&stamped).abs_diff(largest(&true_jitter)) <= error);
        }
    }
}
