//! Estimates how much faster one clock runs than another, and how certain that is.
//!
//! The estimate is the median of the slopes between all pairs of windows. Its interval follows Sen (1968, "Estimates of
//! the regression coefficient based on Kendall's tau"), which assumes no particular distribution of the delays. Delays
//! of neighbouring windows may depend on each other, so the interval is widened to account for this.

use super::clock_relation::{StampPair, signed_difference};
use super::clock_steps::WindowPoint;

/// Maximum number of windows that are compared with each other, approximately.
const COMPARED_WINDOWS: usize = 128;
/// Minimum number of pairs in a window.
const MIN_PAIRS_PER_WINDOW: usize = 4;
/// Half the width of the interval in standard deviations. With this width, one interval in a thousand
/// misses the true drift.
const STANDARD_DEVIATIONS: f64 = 3.3;
/// Upper limit for the correlation of neighbouring windows, because the widening factor grows without bound towards 1.
const MAX_DEPENDENCE: f64 = 0.95;

/// Drift of the reference clock against another clock, in parts per million; positive if the reference clock is faster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClockDrift {
    pub ppm: f64,
    /// Lower and upper end of the interval that contains the true drift, except for one case in a thousand.
    pub least_ppm: f64,
    pub most_ppm: f64,
}

impl ClockDrift {
    /// Returns true if the interval of the drift does not contain zero.
    pub fn is_certainly_nonzero(&self) -> bool {
        self.least_ppm > 0.0 || self.most_ppm < 0.0
    }

    /// Estimates the drift from pairs without a clock step; `None` if there are too few of them, or too few
    /// different times.
    pub(super) fn from_pairs(pairs: &[StampPair]) -> Option<Self> {
        let window = MIN_PAIRS_PER_WINDOW.max(pairs.len().div_ceil(COMPARED_WINDOWS));
        // An incomplete window at the end would be less certain, so it is left out.
        let points: Vec<WindowPoint> = pairs.chunks_exact(window).map(WindowPoint::from_window).collect();
        let mut slopes = Vec::new();
        for (index, one) in points.iter().enumerate() {
            slopes.extend(points[index + 1..].iter().filter_map(|other| one.slope_to(other)));
        }
        slopes.sort_by(f64::total_cmp);
        // The median is not affected by single windows with unusual delays.
        let slope = *slopes.get(slopes.len() / 2)?;
        let windows = points.len() as f64;
        // Standard deviation of Kendall's S without ties (Sen 1968).
        let spread = (windows * (windows - 1.0) * (2.0 * windows + 5.0) / 18.0).sqrt();
        let ranks = STANDARD_DEVIATIONS * spread * widening_factor(&points, slope);
        // If an end of the interval would lie beyond the measured slopes, there is no result.
        let below = interval_end_index(slopes.len(), -ranks)?;
        let above = interval_end_index(slopes.len(), ranks)?;
        let [ppm, least_ppm, most_ppm] = [slope, slopes[below], slopes[above]].map(|slope| slope * 1e6);
        Some(Self { ppm, least_ppm, most_ppm })
    }
}

/// Index of an end of the interval among `slopes` sorted slopes; `None` if the end lies outside them.
fn interval_end_index(slopes: usize, ranks: f64) -> Option<usize> {
    let place = f64::midpoint(slopes as f64 - 1.0, ranks);
    let place = if ranks < 0.0 { place.floor() } else { place.ceil() };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "within the slopes, as compared"
    )]
    let index = (place >= 0.0 && place < slopes as f64).then_some(place as usize);
    index
}

/// Returns the factor by which the interval is widened, because the residual of a window depends on that of the
/// window before it (autocorrelation).
fn widening_factor(points: &[WindowPoint], slope: f64) -> f64 {
    let Some(first) = points.first() else { return 1.0 };
    let left: Vec<f64> = points
        .iter()
        .map(|point| {
            let since = signed_difference(point.at_ns, first.at_ns) as f64;
            (point.ahead_ns - first.ahead_ns) as f64 - since * slope
        })
        .collect();
    let mean = left.iter().sum::<f64>() / left.len() as f64;
    let square: f64 = left.iter().map(|left| (left - mean).powi(2)).sum();
    let product: f64 = left.windows(2).map(|two| (two[0] - mean) * (two[1] - mean)).sum();
    let with_next = if square > 0.0 { (product / square).clamp(0.0, MAX_DEPENDENCE) } else { 0.0 };
    // A series with this lag-one correlation has fewer independent values: the standard error grows by this factor.
    ((1.0 + with_next) / (1.0 - with_next)).sqrt()
}
