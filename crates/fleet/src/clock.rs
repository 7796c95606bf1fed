//! Comparison of a node's clock with the controller's: by exchanged messages ([`packetrig_stats::exchange`]), or by NTP
//! or PTP on both machines. [`choose_better_fit`] returns the fit with the smaller error bound.
//!
//! This module reads no clock: its callers pass the readings in. Clocks are never set.
//!
//! Invariant: the true offset lies within the bound of the chosen fit, if the error bounds of the
//! disciplined clocks are true.

use packetrig_stats::clock::{ClockFit, ClockRecord, FitSource};
use packetrig_stats::exchange::MAX_CLOCK_DRIFT_PPB;
use packetrig_units::{MonoTime, Nanos};
use serde::{Deserialize, Serialize};

/// Reading of a machine's clock that NTP or PTP synchronises, with its error bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DisciplinedClock {
    /// Time of the reading, by the monotonic clock.
    pub at: MonoTime,
    /// True time minus the monotonic clock, in nanoseconds.
    pub true_less_mono_ns: i64,
    /// Error bound: the error of the clock against true time, plus the error of reading both clocks.
    pub bound: Nanos,
}

impl DisciplinedClock {
    /// Computes the offset between the node's clock and the controller's. `None` if a value overflows, which happens
    /// only with impossible readings.
    pub fn fit_clocks(node: &Self, controller: &Self) -> Option<ClockFit> {
        // (true - mono_controller) - (true - mono_node): true time cancels out, and the node's clock minus
        // the controller's clock remains.
        let offset_ns = controller.true_less_mono_ns.checked_sub(node.true_less_mono_ns)?;
        let asked = node.at.as_nanos().checked_add_signed(offset_ns.checked_neg()?)?;
        // The readings were taken at different times, and the clocks may drift in between.
        let apart = u128::from(controller.at.as_nanos().abs_diff(asked));
        let drift = (apart * u128::from(MAX_CLOCK_DRIFT_PPB)).div_ceil(1_000_000_000);
        let bound = node.bound + controller.bound + Nanos::new(u64::try_from(drift).ok()?);
        // One reading of each clock gives no drift rate. The bound assumes the largest possible drift instead.
        Some(ClockFit { at: controller.at, offset_ns, rate_ppb: 0, bound, drift_ppb: MAX_CLOCK_DRIFT_PPB })
    }
}

/// Returns the clock record of a run that begins at `at`. It uses the fit with the narrower bound at that time, and
/// keeps the other fit as unused. `None` without any fit.
pub fn choose_better_fit(
    in_band: Option<ClockFit>,
    disciplined: Option<(FitSource, ClockFit)>,
    at: MonoTime,
) -> Option<ClockRecord> {
    // The sort below is stable: of two fits with the same bound the in-band one wins.
    let in_band = in_band.map(|fit| (FitSource::InBand, fit));
    let mut known: Vec<(FitSource, ClockFit)> = in_band.into_iter().chain(disciplined).collect();
    known.sort_by_key(|(_, fit)| fit.bound_at(at));
    let mut known = known.into_iter();
    known.next().map(|(source, before)| ClockRecord { source, before, after: None, unused: known.next() })
}

#[cfg(test)]
mod tests;
