//! Finds a rate on which more pairs agree than chance explains, and the range of that rate.
//!
//! Late timers and other traffic spread the rates of pairs smoothly, and a smooth distribution has a densest
//! point, too. So pairs agree only if one group is much denser: more than a third of all pairs lie within a
//! tenth of the range that contains the middle four fifths of them, or within 5 % of the rate.
//!
//! Invariant: the range is computed from the spread of the pairs that agree. It contains the true rate if
//! disturbances are as likely to raise as to lower a rate.

use super::gaps::{median, quantile};
use super::modes::densest_window;

/// The rate on which pairs agree, with its range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PairRateAgreement {
    pub(super) rate: f64,
    pub(super) low: f64,
    pub(super) high: f64,
    /// Share of all pairs that are in the range.
    pub(super) share: f64,
}

/// Minimum size of the group that agrees: as a share of all pairs, and as a number of pairs.
const MIN_GROUP_SHARE: f64 = 0.35;
const MIN_GROUP_PAIRS: f64 = 10.0;
/// Maximum width of the group, relative to the range from the 10th to the 90th percentile of the pairs.
const MAX_GROUP_WIDTH_SHARE: f64 = 0.1;
/// Minimum width of the group, relative to the rate: pairs that differ by less than this are one group.
const MIN_GROUP_WIDTH_SHARE: f64 = 0.05;
/// Minimum widening of the range on each side, relative to the rate. It covers the rounding and the timers of a shaper.
const MIN_RATE_UNCERTAINTY: f64 = 0.005;

/// The width of the range from the 10th to the 90th percentile.
pub(super) fn percentile_10_to_90_width(rates: &[f64]) -> f64 {
    quantile(rates, 0.9) - quantile(rates, 0.1)
}

impl PairRateAgreement {
    /// Finds the rate on which pairs agree. `rates` has the rates of the pairs that may count, `range` is the spread of
    /// the rates of all pairs, and `pairs` the number of all pairs, even of those without a rate. If no group is large
    /// enough, the error is the share of the largest one.
    pub(super) fn find_in_rates(rates: &[f64], range: f64, pairs: usize) -> Result<Self, f64> {
        let mut sorted = rates.to_vec();
        sorted.sort_by(f64::total_cmp);
        // The width is a tenth of the spread, but at least `MIN_GROUP_WIDTH_SHARE` of the rate. If the whole spread is
        // smaller than that, the width is the whole spread, so that equal rates are one group.
        let width = (MAX_GROUP_WIDTH_SHARE * range).max(range.min(MIN_GROUP_WIDTH_SHARE * median(&sorted)));
        let group = densest_window(&sorted, width);
        let all = pairs.max(1) as f64;
        let found = group.len() as f64;
        // The share is that of all pairs, not only of `rates`, because pairs that were left out disagree, too.
        if sorted.is_empty() || found < MIN_GROUP_PAIRS.max(MIN_GROUP_SHARE * all) {
            return Err(if sorted.is_empty() { 0.0 } else { found / all });
        }
        let core = densest_half(&sorted[group]);
        let (low, high) = (core[0], core[core.len() - 1]);
        // The densest half may lie anywhere within the noise. It is widened by its own width on each side, so
        // that the range contains the middle of the noise.
        let beside = (high - low).max(MIN_RATE_UNCERTAINTY * low);
        let (low, high) = (low - beside, high + beside);
        let inside: Vec<_> = sorted.iter().copied().filter(|rate| (low..=high).contains(rate)).collect();
        Ok(Self { rate: median(&inside), low, high, share: inside.len() as f64 / all })
    }

    pub(super) fn contains_rate(&self, rate: f64) -> bool {
        (self.low..=self.high).contains(&rate)
    }
}

/// The half of a sorted group whose values lie closest together.
fn densest_half(sorted: &[f64]) -> &[f64] {
    let half = sorted.len().div_ceil(2);
    sorted
        .windows(half)
        .min_by(|one, other| (one[half - 1] - one[0]).total_cmp(&(other[half - 1] - other[0])))
        .unwrap_or(sorted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agreed(rates: &[f64]) -> Result<PairRateAgreement, f64> {
        PairRateAgreement::find_in_rates(rates, percentile_10_to_90_width(rates), rates.len())
    }

    #[test]
    fn agreement_needs_clear_mode_not_smooth_spread() {
        let wide = (0..40).map(|n| 6e6 + 2e5 * f64::from(n));
        let clear: Vec<_> = (0..30).map(|n| 1e7 + 1e3 * f64::from(n)).chain(wide.clone()).collect();
        let found = agreed(&clear).unwrap();
        assert!(found.low <= 1e7 && found.high >= 1.003e7 && found.high < 1.02e7, "{found:?}");
        // The sum of three even distributions: a hump.
        let uniform =
            |n: u32, of: u32| f64::from(n.wrapping_mul(2_654_435_761).wrapping_mul(of) >> 16) / 65_536.0;
        let hump: Vec<_> =
            (1..60).map(|n| 4e6 + 2e6 * (uniform(n, 1) + uniform(n, 7) + uniform(n, 13))).collect();
        let share = agreed(&hump).unwrap_err();
        assert!(share > 0.0 && share < MIN_GROUP_SHARE, "{share}");
        assert_eq!(agreed(&[]), Err(0.0));
    }

    #[test]
    fn pairs_that_came_together_do_not_agree() {
        let rates = [1e7; 30];
        assert!(PairRateAgreement::find_in_rates(&rates, 0.0, 30).is_ok());
        assert_eq!(PairRateAgreement::find_in_rates(&rates, 0.0, 100), Err(0.3));
    }
}
