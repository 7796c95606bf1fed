//! How a node's clock stands to the controller's: by messages that go to and fro ([`packetrig_stats::exchange`]), or by NTP or PTP
//! on both sides; [`choose`] takes what is known better.
//!
//! It reads no clock: the node's shell does. Clocks are not set.
//!
//! Invariant: the true offset lies within the bound of the fit that is chosen, if what the disciplined clocks say of themselves is true.

use packetrig_stats::clock::{ClockFit, ClockRecord, FitSource};
use packetrig_stats::exchange::MOST_PPB;
use packetrig_units::{MonoTime, Nanos};
use serde::{Deserialize, Serialize};

/// What a clock that follows true time says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DisciplinedClock {
    /// When it was asked, by the monotonic clock.
    pub at: MonoTime,
    /// True time less the monotonic clock.
    pub true_less_mono_ns: i64,
    /// How far off that may be: the error against true time and that of reading both clocks.
    pub bound: Nanos,
}

impl DisciplinedClock {
    /// The node's clock against the controller's. Both must follow true time; `None` if the figures are impossible.
    pub fn fit(node: &Self, controller: &Self) -> Option<ClockFit> {
        // (true - mono_controller) - (true - mono_node): true time cancels, and the node's clock less the
        // controller's remains.
        let offset_ns = controller.true_less_mono_ns.checked_sub(node.true_less_mono_ns)?;
        let asked = node.at.as_nanos().checked_add_signed(offset_ns.checked_neg()?)?;
        // The readings are not of one instant; from one to the other the clocks may run apart.
        let apart = u128::from(controller.at.as_nanos().abs_diff(asked));
        let drift = (apart * u128::from(MOST_PPB)).div_ceil(1_000_000_000);
        let bound = node.bound + controller.bound + Nanos::new(u64::try_from(drift).ok()?);
        Some(ClockFit { at: controller.at, offset_ns, rate_ppb: 0, bound, drift_ppb: MOST_PPB })
    }
}

/// The record of a run that begins at `at`, by the fit with the narrower bound there; the other one is kept beside it.
pub fn choose(
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
