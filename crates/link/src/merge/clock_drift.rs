//! Estimates how much faster one clock runs than another, and how certain that is.
//!
//! The estimate is the median of the slopes between all pairs of windows, and its interval follows Sen (1968, "Estimates of the
//! regression coefficient based on Kendall's tau"): it needs no distribution of the delays. Delays of neighbouring windows may depend on
//! each other; the interval is widened to account for this dependence.

use super::clock_relation::{StampPair, signed_difference};
use super::clock_steps::WindowPoint;

/// Windows that are compared with each other.
const COMPARED_WINDOWS: usize = 128;
/// Pairs of a window at least.
const MIN_PAIRS_PER_WINDOW: usize = 4;
/// Standard deviations to each side: one interval of a thousand leaves the truth out.
const STANDARD_DEVIATIONS: f64 = 3.3;
/// More dependence than this leaves nothing that could be averaged.
const MAX_DEPENDENCE: f64 = 0.95;

/// Parts in a million that the clock of the reference is faster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClockDrift {
    pub ppm: f64,
    /// Lower and upper end of the interval.
    pub least_ppm: f64,
    pub most_ppm: f64,
}

impl ClockDrift {
    /// Returns true if the drift differs from zero for certain.
    pub fn is_drift_certain(&self) -> bool {
        self.least_ppm > 0.0 || self.most_ppm < 0.0
    }

    /// Estimates the drift from pairs without a step; `None` if they are too few or too short to tell.
    pub(super) fn from_pairs(pairs: &[StampPair]) -> Option<Self> {
        let window = MIN_PAIRS_PER_WINDOW.max(pairs.len().div_ceil(COMPARED_WINDOWS));
        // An incomplete window at the end would be less certain, so it is left out.
        let points: Vec<WindowPoint> = pairs.chunks_exact(window).map(WindowPoint::from_window).collect();
        let mut slopes = Vec::new();
        for (index, one) in points.iter().enumerate() {
            slopes.extend(points[index + 1..].iter().filter_map(|other| one.slope_to(other)));
        }
        slopes.sort_by(f64::total_cmp);
        // The median, which single windows with unusual delays do not move.
        let slope = *slopes.get(slopes.len() / 2)?;
        let windows = points.len() as f64;
        // Standard deviation of Kendall's S without ties (Sen 1968).
        let spread = (windows * (windows - 1.0) * (2.0 * windows + 5.0) / 18.0).sqrt();
        let ranks = STANDARD_DEVIATIONS * spread * widening_factor(&points, slope);
        // The interval cannot reach beyond the measured slopes.
        let below = rank_index(slopes.len(), -ranks)?;
        let above = rank_index(slopes.len(), ranks)?;
        let [ppm, least_ppm, most_ppm] = [slope, slopes[below], slopes[above]].map(|slope| slope * 1e6);
        Some(Self { ppm, least_ppm, most_ppm })
    }
}

/// Index of an end of the interval among `slopes` sorted slopes; `None` if the end lies outside them.
fn rank_index(slopes: usize, ranks: f64) -> Option<usize> {
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

/// Factor by which the interval is widened, because the residual of a window depends on that of the window before (autocorrelation).
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
