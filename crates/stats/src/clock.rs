//! The relation of a node's clock to the controller's: the value that converts times of one clock into
//! times of the other.
//!
//! Every conversion has a bound: the true time is at most that far off, as long as the clocks run apart no faster
//! than the fit allows for. This module measures nothing; [`crate::exchange`] makes fits from exchanges of messages.
//!
//! Invariant: a bound never shrinks with the distance from the time for which a fit was made.

use packetrig_units::{MonoTime, Nanos, clamp_to_u64};
use serde::{Deserialize, Serialize};

const BILLION: i128 = 1_000_000_000;

/// A node's clock against the controller's, near one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockFit {
    /// Time at which the offset was measured, on the controller's clock.
    pub at: MonoTime,
    /// Time of the node's clock minus time of the controller's clock at `at`.
    pub offset_ns: i64,
    /// Nanoseconds by which the offset grows in a second.
    pub rate_ppb: i64,
    /// Bound of the error of `offset_ns` at `at`.
    pub bound: Nanos,
    /// Growth of the bound, in nanoseconds per second of distance from `at`.
    pub drift_ppb: u64,
}

impl ClockFit {
    /// Returns the fit of one clock that two processes read.
    pub fn same_clock() -> Self {
        Self::default()
    }

    /// The node's clock less the controller's at a time of the controller's clock.
    pub fn offset_at(&self, at: MonoTime) -> i64 {
        let distance = i128::from(at.signed_since(self.at));
        // The product uses 128 bits, because a distance of years times a rate does not fit 64.
        saturate_to_i64(i128::from(self.offset_ns) + distance * i128::from(self.rate_ppb) / BILLION)
    }

    /// Returns the bound of the error of [`Self::offset_at`].
    pub fn bound_at(&self, at: MonoTime) -> Nanos {
        let distance = u128::from(at.signed_since(self.at).unsigned_abs());
        // The bound is rounded up: it may be too wide, but never too narrow.
        let grown = (distance * u128::from(self.drift_ppb)).div_ceil(1_000_000_000);
        self.bound + Nanos::new(clamp_to_u64(grown))
    }

    /// Converts a time of the controller's clock to the node's clock.
    pub fn to_local(&self, controller: MonoTime) -> MonoTime {
        shift_time(controller, i128::from(self.offset_at(controller)))
    }

    /// Converts a time of the node's clock to the controller's clock.
    pub fn to_controller(&self, local: MonoTime) -> MonoTime {
        let since =
            i128::from(local.as_nanos()) - i128::from(self.at.as_nanos()) - i128::from(self.offset_ns);
        // The node's clock does (1 + rate) seconds in one of the controller's.
        // `max` prevents a division by zero for an impossible rate from another machine.
        shift_time(self.at, since * BILLION / (BILLION + i128::from(self.rate_ppb)).max(1))
    }

    /// Returns the same relation with its offset and bound computed for another time.
    #[must_use]
    pub fn expressed_at(&self, at: MonoTime) -> Self {
        Self { at, offset_ns: self.offset_at(at), bound: self.bound_at(at), ..*self }
    }

    /// Computes from both fits how far the receiver's clock is ahead of the sender's clock. `at` is a time of
    /// the controller's clock.
    pub fn clock_lead_over(&self, sender: &Self, at: MonoTime) -> ClockLead {
        ClockLead {
            offset_ns: self.offset_at(at).saturating_sub(sender.offset_at(at)),
            rate_ppb: self.rate_ppb.saturating_sub(sender.rate_ppb),
        }
    }

    /// Returns whether both fits can be true.
    pub fn agrees_with_fit(&self, other: &Self) -> bool {
        // Both fits hold within their bounds, so at one time they may differ by both bounds together.
        let apart = self.offset_at(other.at).abs_diff(other.offset_ns);
        Nanos::new(apart) <= self.bound_at(other.at) + other.bound
    }
}

/// Lead of one node's clock over another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockLead {
    /// Difference of the two clocks: the first less the second.
    pub offset_ns: i64,
    /// Nanoseconds by which the difference grows in a second.
    pub rate_ppb: i64,
}

fn shift_time(at: MonoTime, by: i128) -> MonoTime {
    // A time before the start of the monotonic clock does not exist, so 0 is the earliest.
    let moved = (i128::from(at.as_nanos()) + by).max(0).unsigned_abs();
    MonoTime::from_nanos(clamp_to_u64(moved))
}

/// Source of a fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FitSource {
    /// Node and controller read the same clock.
    Same,
    /// Messages went to and fro between them.
    InBand,
    /// Both follow true time by NTP, and report their accuracy.
    Ntp,
    /// Both follow true time by PTP, and report their accuracy.
    Ptp,
}

impl FitSource {
    /// Returns the name that is shown.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::InBand => "in-band",
            Self::Ntp => "ntp",
            Self::Ptp => "ptp",
        }
    }
}

/// Relation of a node's clock to the controller's over a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockRecord {
    /// Source of the fits below.
    pub source: FitSource,
    /// The fit that the node used at its start.
    pub before: ClockFit,
    /// A fit made after the run.
    #[serde(default)]
    pub after: Option<ClockFit>,
    /// Source and fit that were not used, because the bound was wider.
    #[serde(default)]
    pub unused: Option<(FitSource, ClockFit)>,
}

impl ClockRecord {
    /// A node that reads the controller's own clock.
    pub fn same_clock() -> Self {
        Self { source: FitSource::Same, before: ClockFit::same_clock(), after: None, unused: None }
    }

    /// Returns whether the fit after the run is possible by the fit before it. If not, a clock ran less evenly than its fit
    /// allows, and no bound can be relied on.
    pub fn is_consistent(&self) -> bool {
        // The difference is taken both ways, because a bound grows by the drift of its own fit, and
        // the two drifts differ.
        self.after
            .is_none_or(|after| self.before.agrees_with_fit(&after) && after.agrees_with_fit(&self.before))
    }

    /// Returns the relation of the clocks at a time of the controller's clock: from the fit before, from the fit
    /// after, or from the line between both. The one with the smallest bound is returned. `None` if the fits
    /// contradict each other.
    pub fn best_fit_near(&self, at: MonoTime) -> Option<ClockFit> {
        if !self.is_consistent() {
            return None;
        }
        // Close to a fit, that fit is usually best. Far from both fits, the line between them is best,
        // because clocks must get from one to the other.
        let between = self.after.and_then(|after| bounded_fit_between(&self.before, &after, at));
        let known =
            [Some(self.before.expressed_at(at)), self.after.map(|after| after.expressed_at(at)), between];
        known.into_iter().flatten().min_by_key(|fit| fit.bound)
    }

    /// Returns the largest error of the node's estimate of the controller's time, between two times of the
    /// controller's clock, by all fits. `None` if the fits contradict each other.
    pub fn error_over(&self, from: MonoTime, to: MonoTime) -> Option<Nanos> {
        if !self.is_consistent() {
            return None;
        }
        // The bound grows on both sides of the time of a fit, so it is widest at an end.
        let foreseen = self.before.bound_at(from).max(self.before.bound_at(to));
        // Both bounds are true, so the smaller one is, too.
        Some(self.error_by_later_fit(from, to).map_or(foreseen, |seen| seen.min(foreseen)))
    }

    /// Returns the same error by the fit after the run, alone or with the line between both fits.
    fn error_by_later_fit(&self, from: MonoTime, to: MonoTime) -> Option<Nanos> {
        let after = self.after?;
        let by_after = self
            .error_against_fit(&after.expressed_at(from))
            .max(self.error_against_fit(&after.expressed_at(to)));
        // The distance of line and fit is largest at an end. The distance of the clocks from the line is
        // largest nearest to its middle.
        let middle = self.before.at + Nanos::new(after.at.since(self.before.at).as_u64() / 2);
        let at_from = interpolate_fits(&self.before, &after, from);
        // Outside the two fits there is no line, only their own bounds.
        let at_to = interpolate_fits(&self.before, &after, to);
        let by_line = at_from.zip(at_to).map(|(one, other)| {
            let strayed = clock_stray_bound(&self.before, &after, middle.clamp(from.min(to), to.max(from)));
            self.error_against_fit(&one).max(self.error_against_fit(&other)) + strayed
        });
        Some(by_line.map_or(by_after, |by_line| by_line.min(by_after)))
    }

    /// Returns the error of the offset that the node received, according to a fit of the same time.
    fn error_against_fit(&self, fit: &ClockFit) -> Nanos {
        Nanos::new(fit.offset_ns.abs_diff(self.before.offset_at(fit.at))) + fit.bound
    }

    /// Converts a time of the node's clock to the controller's clock, with the bound of the error.
    pub fn to_controller(&self, local: MonoTime) -> Option<(MonoTime, Nanos)> {
        // The first conversion only has to find the fit. A small error of it changes the bound hardly at all.
        let fit = self.best_fit_near(self.before.to_controller(local))?;
        let at = fit.to_controller(local);
        Some((at, fit.bound_at(at)))
    }
}

/// Returns the fit on the line from one fit to a later one, with the distance by which clocks may have strayed.
fn bounded_fit_between(before: &ClockFit, after: &ClockFit, at: MonoTime) -> Option<ClockFit> {
    let line = interpolate_fits(before, after, at)?;
    Some(ClockFit { bound: line.bound + clock_stray_bound(before, after, at), ..line })
}

/// Returns the distance by which clocks may have left the line between two fits.
fn clock_stray_bound(before: &ClockFit, after: &ClockFit, at: MonoTime) -> Nanos {
    let gone = u128::from(at.since(before.at).as_u64());
    let left = u128::from(after.at.since(at).as_u64());
    // Clocks that leave the line at `drift` must come back to it by its end, at no more than `drift` either. So they get no
    // further than `2 gone left / whole` of it. The fit with less drift is also valid at the time of the other fit.
    let drift_ppb = u128::from(before.drift_ppb.min(after.drift_ppb));
    let strayed = 2 * gone * left / (gone + left).max(1) * drift_ppb;
    Nanos::new(clamp_to_u64(strayed.div_ceil(1_000_000_000)))
}

/// Returns the line itself, with the bounds of its ends.
fn interpolate_fits(before: &ClockFit, after: &ClockFit, at: MonoTime) -> Option<ClockFit> {
    let whole = u128::from(after.at.since(before.at).as_u64());
    if at < before.at || at > after.at || whole == 0 {
        return None;
    }
    let gone = u128::from(at.since(before.at).as_u64());
    let left = u128::from(after.at.since(at).as_u64());
    // Each end counts the more, the nearer it is; so do the doubts about both ends.
    let mixed = u128::from(before.bound.as_u64()) * left + u128::from(after.bound.as_u64()) * gone;
    let step = i128::from(after.offset_ns) - i128::from(before.offset_ns);
    // The numbers come from another machine. With impossible ones there is no line.
    let offset = i128::from(before.offset_ns) + step.checked_mul(gone.cast_signed())? / whole.cast_signed();
    let rate = step.checked_mul(BILLION)? / whole.cast_signed();
    Some(ClockFit {
        at,
        offset_ns: saturate_to_i64(offset),
        rate_ppb: saturate_to_i64(rate),
        bound: Nanos::new(clamp_to_u64(mixed.div_ceil(whole))),
        drift_ppb: before.drift_ppb.min(after.drift_ppb),
    })
}

/// The value, or the nearest one of 64 bits with a sign.
fn saturate_to_i64(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: u64) -> MonoTime {
        MonoTime::from_nanos(seconds * 1_000_000_000)
    }

    fn fit(seconds: u64, offset_ns: i64, bound_ns: u64) -> ClockFit {
        ClockFit { at: at(seconds), offset_ns, rate_ppb: 0, bound: Nanos::new(bound_ns), drift_ppb: 10_000 }
    }

    #[test]
    fn clock_bound_grows_with_distance_both_ways() {
        let fit = ClockFit { rate_ppb: 30_000, ..fit(100, 5_000, 200) };
        assert_eq!((fit.offset_at(at(160)), fit.bound_at(at(160))), (1_805_000, Nanos::new(600_200)));
        assert_eq!((fit.offset_at(at(40)), fit.bound_at(at(40))), (-1_795_000, Nanos::new(600_200)));
        assert_eq!(ClockFit::same_clock().bound_at(at(1_000_000)), Nanos::ZERO);
    }

    #[test]
    fn drift_counts_only_to_nearer_clock_fit() {
        let (before, after) = (fit(0, 1_000, 100), fit(100, 3_000, 300));
        let record = ClockRecord { before, after: Some(after), ..ClockRecord::same_clock() };
        let near = record.best_fit_near(at(75)).unwrap();
        assert_eq!((near.offset_ns, near.bound), (3_000, Nanos::new(300 + 250_000)), "by the later one");
        assert_eq!(record.best_fit_near(at(0)).unwrap().bound, Nanos::new(100));
        assert_eq!(record.best_fit_near(at(100)).unwrap().bound, Nanos::new(300));
    }

    #[test]
    fn interpolated_fit_bound_uses_smaller_drift_between_fits() {
        let (before, after) = (fit(0, 1_000, 100), fit(100, 3_000, 300));
        let unsure = ClockFit { drift_ppb: 600_000, ..before };
        for before in [before, unsure] {
            let fit = bounded_fit_between(&before, &after, at(25)).unwrap();
            assert_eq!((fit.offset_ns, fit.bound, fit.drift_ppb), (1_500, Nanos::new(150 + 375_000), 10_000));
        }
        assert_eq!(bounded_fit_between(&before, &after, at(101)), None);
    }

    #[test]
    fn fits_that_contradict_each_other_bound_nothing() {
        let stepped = ClockRecord {
            after: Some(fit(10, 5_000_000, 300)),
            before: fit(0, 1_000, 100),
            ..ClockRecord::same_clock()
        };
        assert!(!stepped.is_consistent());
        assert_eq!((stepped.best_fit_near(at(5)), stepped.to_controller(at(5))), (None, None));
    }

    #[test]
    fn clock_error_accounts_for_later_fit() {
        let before = fit(0, 1_000, 100);
        let record = ClockRecord { before, after: Some(fit(100, 3_000, 300)), ..ClockRecord::same_clock() };
        // The second fit shows that the node was 2 us off.
        assert_eq!(record.error_over(at(90), at(100)), Some(Nanos::new(2_000 + 300 + 100_000)));
        // The line between both: straying from it counts most in the middle.
        assert_eq!(record.error_over(at(0), at(100)), Some(Nanos::new(2_000 + 300 + 500_000)));
        assert_eq!(record.error_over(at(0), at(10)), Some(Nanos::new(100_100)));
        assert_eq!(
            record.error_over(at(50), at(101)),
            Some(Nanos::new(2_000 + 300 + 500_000)),
            "beyond the second fit"
        );
        assert_eq!(ClockRecord::same_clock().error_over(at(0), at(10_000)), Some(Nanos::ZERO));
    }

    #[test]
    fn clock_lead_is_difference_of_offsets() {
        let (receiver, sender) =
            (ClockFit { rate_ppb: 700, ..fit(0, 5_000, 1) }, ClockFit { rate_ppb: 200, ..fit(0, 2_000, 1) });
        let lead = receiver.clock_lead_over(&sender, at(10));
        assert_eq!(lead, ClockLead { offset_ns: 8_000, rate_ppb: 500 });
    }

    proptest! {
        #[test]
        fn there_and_back_is_the_same_instant(
            made in 0u64..1 << 60, offset in -(1i64 << 55)..1 << 55, rate in -500_000i64..500_000, when in 0u64..1 << 45,
        ) {
            let fit = ClockFit { at: MonoTime::from_nanos(made + (1 << 56)), offset_ns: offset, rate_ppb: rate, ..ClockFit::same_clock() };
            let when = fit.at + Nanos::new(when);
            let back = fit.to_controller(fit.to_local(when));
            prop_assert!(back.signed_since(when).abs() <= 1, "{back:?} {when:?}");
        }
    }
}
