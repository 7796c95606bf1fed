//! Tests whether the probes of a stream waited longer and longer.
//!
//! Two tests use the medians of groups of delays: how many medians are higher than the one before (PCT), and which
//! share of all up and down movements remains as a rise at the end (PDT). Each test may miss what the other finds.
//!
//! A rise within the noise is level, whatever the tests say.
//!
//! Invariant: if the tests contradict each other, or if both are undecided, the trend is unclear.

use crate::estimate::gaps::median;

/// Trend of the delays of a stream, or of most streams of a fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DelayTrend {
    /// The delays grow, so the rate of the stream is above the available rate.
    Rising,
    Level,
    /// The delays neither clearly grow nor clearly stay level.
    Unclear,
}

/// Thresholds of the two tests, and the relative margin around a threshold in which its test is undecided.
// pathload's thresholds 0.55 and 0.4: above 1.1 times means increasing, below 0.9 times means not.
const PCT_THRESHOLD: f64 = 0.55;
const PDT_THRESHOLD: f64 = 0.4;
const THRESHOLD_MARGIN: f64 = 0.1;

/// Returns the trend of the delays of a stream. Delays may differ by up to `noise` at random.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the root of a count")]
pub(super) fn classify_delay_trend(delays: &[f64], noise: f64) -> DelayTrend {
    // About sqrt(n) groups of sqrt(n) delays, as in pathload: the median of a group hides single outliers.
    let size = ((delays.len() as f64).sqrt() as usize).max(1);
    let medians: Vec<_> = delays.chunks(delays.len().div_ceil(size).max(1)).map(median).collect();
    // Without a delay there is no group, and no trend.
    let Some((first, last)) = medians.first().zip(medians.last()) else { return DelayTrend::Unclear };
    let pairs = medians.len() - 1;
    let up = medians.windows(2).filter(|two| two[1] > two[0]).count() as f64 / pairs.max(1) as f64;
    let moves: f64 = medians.windows(2).map(|two| (two[1] - two[0]).abs()).sum();
    // Within the noise, any order of the medians is chance.
    if last - first <= noise {
        return DelayTrend::Level;
    }
    // `last - first` is above the noise, so at least one step is not zero and the sum is positive.
    let net = (last - first) / moves;
    combine_trends(compare_to_threshold(up, PCT_THRESHOLD), compare_to_threshold(net, PDT_THRESHOLD))
}

fn compare_to_threshold(value: f64, threshold: f64) -> DelayTrend {
    if value > threshold * (1.0 + THRESHOLD_MARGIN) {
        DelayTrend::Rising
    } else if value < threshold * (1.0 - THRESHOLD_MARGIN) {
        DelayTrend::Level
    } else {
        DelayTrend::Unclear
    }
}

fn combine_trends(one: DelayTrend, other: DelayTrend) -> DelayTrend {
    match (one, other) {
        // If one test is undecided, the other one decides (see the module).
        (DelayTrend::Unclear, trend) | (trend, DelayTrend::Unclear) => trend,
        (one, other) if one == other => one,
        _ => DelayTrend::Unclear,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rising_level_and_neither() {
        let ramp: Vec<_> = (0..100).map(|n| f64::from(n) * 1_000.0 + f64::from(n % 7) * 900.0).collect();
        assert_eq!(classify_delay_trend(&ramp, 50.0), DelayTrend::Rising);
        let level: Vec<_> = (0..100).map(|n| f64::from(n * 37 % 11) * 900.0).collect();
        assert_eq!(classify_delay_trend(&level, 50.0), DelayTrend::Level);
        assert_eq!(classify_delay_trend(&[7.0; 50], 0.0), DelayTrend::Level);
        // A single step is a rise to the one test and none to the other.
        let step: Vec<_> = (0..100).map(|n| if n < 50 { 0.0 } else { 50_000.0 }).collect();
        assert_eq!(classify_delay_trend(&step, 50.0), DelayTrend::Unclear);
    }
}
