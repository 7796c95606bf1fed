//! 95 % confidence intervals: of a mean (Student), of a share (Wilson).

use serde::{Deserialize, Serialize};

/// An interval that contains the true value in 95 of 100 such experiments.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConfidenceInterval {
    pub low: f64,
    pub high: f64,
}

impl ConfidenceInterval {
    pub fn contains(self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }
}

/// The quantile 0.975 of the normal distribution.
const NORMAL_QUANTILE: f64 = 1.959_963_984_540_054;

/// The quantiles 0.975 of Student's t with 1 to 30 degrees of freedom.
const STUDENT_QUANTILES: [f64; 30] = [
    12.706_205, 4.302_653, 3.182_446, 2.776_445, 2.570_582, 2.446_912, 2.364_624, 2.306_004, 2.262_157,
    2.228_139, 2.200_985, 2.178_813, 2.160_369, 2.144_787, 2.131_450, 2.119_905, 2.109_816, 2.100_922,
    2.093_024, 2.085_963, 2.079_614, 2.073_873, 2.068_658, 2.063_899, 2.059_539, 2.055_529, 2.051_831,
    2.048_407, 2.045_230, 2.042_272,
];

/// The quantile 0.975 of Student's t: a table, and beyond it the expansion in powers of `1 / degrees`.
fn student_quantile(degrees: u32) -> f64 {
    // The table begins with one degree of freedom.
    if let Some(quantile) = STUDENT_QUANTILES.get(degrees.saturating_sub(1) as usize) {
        return *quantile;
    }
    let n = f64::from(degrees);
    let z = NORMAL_QUANTILE;
    // The first terms of the expansion in Abramowitz and Stegun, 26.7.5. The expansion is accurate only for many
    // degrees of freedom, so the table has the quantiles of up to 30.
    let first = (z.powi(3) + z) / 4.0;
    let second = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0;
    let third = (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0;
    z + first / n + second / n.powi(2) + third / n.powi(3)
}

/// Confidence interval of a mean, for values that are nearly normally distributed. `None` for fewer than two values.
pub fn mean_interval(sample: &crate::SampleStatistics) -> Option<ConfidenceInterval> {
    // A single value has no standard deviation, so it has no interval.
    let degrees = sample.count.checked_sub(1).filter(|degrees| *degrees > 0)?;
    let half = student_quantile(degrees) * sample.standard_deviation / f64::from(sample.count).sqrt();
    Some(ConfidenceInterval { low: sample.mean - half, high: sample.mean + half })
}

/// Largest number of values that a message recommends. If more are needed, a different measurement
/// is the better advice.
const MAX_ADVISED_SAMPLES: u32 = 10_000;

/// Number of values with the mean and the standard deviation of `sample` that are needed to exclude `value` from the
/// confidence interval. `None` if more than 10 000 are needed, or if the interval does not contain `value` now.
pub fn sample_count_to_exclude(sample: &crate::SampleStatistics, value: f64) -> Option<u32> {
    mean_interval(sample).filter(|interval| interval.contains(value))?;
    let excludes = |count: u32| {
        let more = crate::SampleStatistics { count, ..*sample };
        mean_interval(&more).is_some_and(|interval| !interval.contains(value))
    };
    // The interval shrinks monotonically with the number of values, so binary search finds the smallest number.
    let (mut contains, mut excluded) = (sample.count, MAX_ADVISED_SAMPLES);
    if !excludes(excluded) {
        return None;
    }
    while excluded - contains > 1 {
        let middle = contains.midpoint(excluded);
        if excludes(middle) {
            excluded = middle;
        } else {
            contains = middle;
        }
    }
    Some(excluded)
}

/// Confidence interval of the probability of an event that was seen in `part` of `whole` trials (Wilson
/// 1927). `None` without trials.
pub fn wilson_interval(part: u32, whole: u32) -> Option<ConfidenceInterval> {
    if whole == 0 {
        return None;
    }
    let n = f64::from(whole);
    let square = NORMAL_QUANTILE.powi(2);
    let share = f64::from(part) / n;
    // Wilson's centre is nearer to one half than the share itself. So the interval does not shrink to
    // a point when no trial, or every trial, had the event.
    let middle = (share + square / (2.0 * n)) / (1.0 + square / n);
    let root = (share * (1.0 - share) / n + square / (4.0 * n * n)).sqrt();
    let half = NORMAL_QUANTILE * root / (1.0 + square / n);
    // Rounding must not change the interval's ends 0 and 1, which are exact.
    let low = if part == 0 { 0.0 } else { middle - half };
    let high = if part >= whole { 1.0 } else { middle + half };
    Some(ConfidenceInterval { low, high })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SampleStatistics;

    #[test]
    fn advised_count_is_the_least_that_excludes_value() {
        let sample = SampleStatistics::from_values(&[1.0, 5.0, 2.0, 6.0, 1.5, 4.5]).unwrap();
        let needed = sample_count_to_exclude(&sample, 2.5).unwrap();
        let contains = |count| mean_interval(&SampleStatistics { count, ..sample }).unwrap().contains(2.5);
        assert!(contains(needed - 1) && !contains(needed), "{needed}");
        assert_eq!(sample_count_to_exclude(&sample, 100.0), None, "it is excluded already");
        assert_eq!(
            sample_count_to_exclude(&sample, sample.mean),
            None,
            "no number of values excludes the mean"
        );
    }

    /// The probability that |t| is below `limit`, by Simpson's rule on the density without its constant.
    fn probability_within(limit: f64, degrees: f64) -> f64 {
        let density = |t: f64| (1.0 + t * t / degrees).powf(-f64::midpoint(degrees, 1.0));
        let integral = |end: f64, steps: u32| {
            let width = end / f64::from(steps);
            let weight = |n| if n == 0 || n == steps { 1.0 } else { 2.0 + 2.0 * f64::from(n % 2) };
            (0..=steps).map(|n| weight(n) * density(f64::from(n) * width)).sum::<f64>() * width / 3.0
        };
        // With t = sqrt(degrees) * tan(a) the tail is finite: the whole is the integral of cos(a)^(degrees - 1).
        let tail = {
            let steps = 200_000;
            let width = std::f64::consts::FRAC_PI_2 / f64::from(steps);
            let middle = |n: u32| ((f64::from(n) + 0.5) * width).cos().powf(degrees - 1.0);
            (0..steps).map(middle).sum::<f64>() * width * degrees.sqrt()
        };
        integral(limit, 200_000) / tail
    }

    #[test]
    fn the_quantiles_of_student_hold_95_percent() {
        for degrees in [1, 2, 5, 9, 19, 30, 31, 60, 500] {
            let within = probability_within(student_quantile(degrees), f64::from(degrees));
            assert!((within - 0.95).abs() < 2e-6, "{degrees}: {within}");
        }
    }

    #[test]
    fn the_interval_of_a_mean_needs_two_values() {
        let of = |values: &[f64]| mean_interval(&SampleStatistics::from_values(values).unwrap());
        assert_eq!(of(&[1.0]), None);
        let interval = of(&[1.0, 3.0]).unwrap();
        assert!((interval.high - (2.0 + 12.706_205)).abs() < 1e-6 && interval.contains(2.0));
    }

    #[test]
    fn wilson_interval_matches_published_tables() {
        let none = wilson_interval(0, 10).unwrap();
        assert!(none.low.abs() < 1e-12 && (none.high - 0.277_53).abs() < 1e-5, "{none:?}");
        let some = wilson_interval(2, 10).unwrap();
        assert!((some.low - 0.056_68).abs() < 1e-5 && (some.high - 0.509_84).abs() < 1e-5, "{some:?}");
        assert_eq!(wilson_interval(10, 10).unwrap().high.to_bits(), 1f64.to_bits());
        assert_eq!(wilson_interval(0, 0), None);
    }
}
