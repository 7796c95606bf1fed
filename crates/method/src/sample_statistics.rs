//! Mean, extremes and standard deviation of repeated measurements.

use serde::{Deserialize, Serialize};

/// Statistics of repeated measurements. The unit is in the name of the field that holds them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampleStatistics {
    pub count: u32,
    pub mean: f64,
    pub min: f64,
    pub max: f64,
    /// Standard deviation of the sample (`n - 1`); 0 for one value.
    pub standard_deviation: f64,
}

impl SampleStatistics {
    /// Computes the statistics of these values; `None` without values.
    pub fn from_values(values: &[f64]) -> Option<Self> {
        let count = u32::try_from(values.len()).ok().filter(|count| *count > 0)?;
        let mean = values.iter().sum::<f64>() / f64::from(count);
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        Some(Self {
            count,
            mean,
            min: values.iter().copied().fold(f64::INFINITY, f64::min),
            max: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            // With one value this divides 0 by 1. Dividing by 0 would give not-a-number.
            standard_deviation: (squares / f64::from(count.saturating_sub(1).max(1))).sqrt(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standard_deviation_is_that_of_sample() {
        let of = SampleStatistics::from_values(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).unwrap();
        assert_eq!((of.count, of.min, of.max), (8, 2.0, 9.0));
        assert!(
            (of.mean - 5.0).abs() < 1e-12 && (of.standard_deviation - (32.0f64 / 7.0).sqrt()).abs() < 1e-12
        );
        assert_eq!(SampleStatistics::from_values(&[]), None);
    }
}
