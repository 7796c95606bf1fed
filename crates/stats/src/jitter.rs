//! Delay variation by its named definitions: RFC 3550 (smoothed), RFC 5481 PDV (against the minimum) and IPDV
//! (between neighbours).

use crate::latency::Latency;
use crate::narrow::clamp_to_u64;
use packetrig_units::Nanos;
use serde::{Deserialize, Serialize};

/// Fraction bits of the smoothed value: RFC 3550 divides by 16 at every frame, which must not round to nothing.
const FRACTION: u32 = 8;

/// Takes in one-way delays in order of arrival. A constant clock offset cancels out.
#[derive(Clone, Copy, Debug, Default)]
pub struct JitterMeter {
    last: Option<i64>,
    smoothed: u64,
    sum: u128,
    count: u64,
    max: u64,
}

impl JitterMeter {
    /// Takes in the delay of the next frame to arrive.
    pub fn record(&mut self, delay_ns: i64) {
        if let Some(last) = self.last.replace(delay_ns) {
            let change = delay_ns.abs_diff(last);
            // J += (|D| - J) / 16, RFC 3550 section 6.4.1. Added before it is subtracted, because the number has no sign.
            self.smoothed += (change << FRACTION) / 16;
            self.smoothed -= self.smoothed / 16;
            self.sum += u128::from(change);
            self.count += 1;
            self.max = self.max.max(change);
        }
    }

    /// The value of RFC 3550 section 6.4.1 so far.
    pub const fn smoothed(&self) -> Nanos {
        Nanos::new(self.smoothed >> FRACTION)
    }

    /// The figures; `latency` is the distribution of the same delays.
    pub fn summary(&self, latency: &Latency) -> JitterSummary {
        let mean = self.sum.checked_div(u128::from(self.count)).unwrap_or(0);
        // RFC 5481 section 4.2: PDV is the delay less the minimum. So a quantile of PDV is that of the delay, shifted.
        let above_min = latency.quantile(999_000).unwrap_or(Nanos::ZERO);
        JitterSummary {
            rfc3550: self.smoothed(),
            pdv_p999: above_min.saturating_sub(latency.min().unwrap_or(Nanos::ZERO)),
            ipdv_mean: Nanos::new(clamp_to_u64(mean)),
            ipdv_max: Nanos::new(self.max),
            samples: self.count,
        }
    }
}

/// The figures of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JitterSummary {
    /// RFC 3550 section 6.4.1 interarrival jitter at the end.
    pub rfc3550: Nanos,
    /// RFC 5481 PDV, 99.9 % quantile: p99.9 of latency minus its minimum.
    pub pdv_p999: Nanos,
    /// RFC 5481 IPDV: mean of |difference between consecutive frames|.
    pub ipdv_mean: Nanos,
    /// RFC 5481 IPDV: largest |difference between consecutive frames|.
    pub ipdv_max: Nanos,
    pub samples: u64,
}

impl JitterSummary {
    /// Puts the figures of two receivers together: the IPDV mean is weighted, of the others the worse is kept.
    pub fn merge(&mut self, other: &Self) {
        let samples = self.samples + other.samples;
        let mean = (self.ipdv_sum() + other.ipdv_sum()).checked_div(u128::from(samples)).unwrap_or(0);
        self.ipdv_mean = Nanos::new(clamp_to_u64(mean));
        self.samples = samples;
        self.rfc3550 = self.rfc3550.max(other.rfc3550);
        self.pdv_p999 = self.pdv_p999.max(other.pdv_p999);
        self.ipdv_max = self.ipdv_max.max(other.ipdv_max);
    }

    fn ipdv_sum(&self) -> u128 {
        u128::from(self.ipdv_mean.as_u64()) * u128::from(self.samples)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(delays: &[i64]) -> JitterSummary {
        let (mut jitter, mut latency) = (JitterMeter::default(), Latency::with_digits(3));
        for delay in delays {
            jitter.record(*delay);
            latency.record(Nanos::new(delay.unsigned_abs()));
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
        assert!((14_900..=16_000).contains(&settled), "{settled}");
    }
}
