//! The relation between a node's clock and the controller's clock: the values that convert times of one clock
//! into times of the other.
//!
//! Every conversion has an error bound. The true time differs from the result by at most this bound, as long as the
//! rates of the two clocks differ by no more than the fit assumes. This module measures nothing; [`crate::exchange`]
//! computes fits from exchanges of messages.
//!
//! Invariant: an error bound never gets smaller with increasing distance from the time for which a fit was made.

use packetrig_units::{MonoTime, Nanos, clamp_to_u64};
use serde::{Deserialize, Serialize};

const BILLION: i128 = 1_000_000_000;

/// The relation of a node's clock to the controller's clock near one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockFit {
    /// Time at which the offset was measured, on the controller's clock.
    pub at: MonoTime,
    /// Time of the node's clock minus time of the controller's clock at `at`.
    pub offset_ns: i64,
    /// Growth of the offset, in nanoseconds per second.
    pub rate_ppb: i64,
    /// Error bound of `offset_ns` at the time `at`.
    pub bound: Nanos,
    /// Growth of the error bound, in nanoseconds per second of distance from `at`.
    pub drift_ppb: u64,
}

impl ClockFit {
    /// Returns the fit for two processes that read the same clock.
    pub fn same_clock() -> Self {
        Self::default()
    }

    /// Returns the node's clock minus the controller's clock, at a time of the controller's clock.
    pub fn offset_at(&self, at: MonoTime) -> i64 {
        let distance = i128::from(at.signed_since(self.at));
        // The product uses 128 bits, because for a distance of years it exceeds 64 bits.
        saturate_to_i64(i128::from(self.offset_ns) + distance * i128::from(self.rate_ppb) / BILLION)
    }

    /// Returns the error bound of [`Self::offset_at`].
    pub fn bound_at(&self, at: MonoTime) -> Nanos {
        let distance = u128::from(at.signed_since(self.at).unsigned_abs());
        // The bound is rounded up: it may be too wide, but must never be too narrow.
        let grown = (distance * u128::from(self.drift_ppb)).div_ceil(1_000_000_000);
        self.bound + Nanos::new(clamp_to_u64(grown))
    }

    /// Converts a time of the controller's clock to the node's clock.
    pub fn to_node_time(&self, controller: MonoTime) -> MonoTime {
        shift_time_by(controller, i128::from(self.offset_at(controller)))
    }

    /// Converts a time of the node's clock to the controller's clock.
    pub fn to_controller(&self, local: MonoTime) -> MonoTime {
        let since =
            i128::from(local.as_nanos()) - i128::from(self.at.as_nanos()) - i128::from(self.offset_ns);
        // While the controller's clock advances by one second, the node's clock advances by (1 + rate)
        // seconds. `max` prevents a division by zero, because another machine may send an impossible rate.
        shift_time_by(self.at, since * BILLION / (BILLION + i128::from(self.rate_ppb)).max(1))
    }

    /// Returns the same relation with its offset and bound computed for another time.
    #[must_use]
    pub fn extrapolate_to(&self, at: MonoTime) -> Self {
        Self { at, offset_ns: self.offset_at(at), bound: self.bound_at(at), ..*self }
    }

    /// Returns how far the clock of this fit (the receiver's) is ahead of the clock of `sender`, at the time `at`
    /// of the controller's clock.
    pub fn clock_lead_over(&self, sender: &Self, at: MonoTime) -> ClockLead {
        ClockLead {
            offset_ns: self.offset_at(at).saturating_sub(sender.offset_at(at)),
            rate_ppb: self.rate_ppb.saturating_sub(sender.rate_ppb),
        }
    }

    /// Returns whether both fits can be true for the same pair of clocks.
    pub fn agrees_with_fit(&self, other: &Self) -> bool {
        // Each offset is within the bound of its fit, so at the same time the two offsets differ by at most
        // the sum of both bounds.
        let apart = self.offset_at(other.at).abs_diff(other.offset_ns);
        Nanos::new(apart) <= self.bound_at(other.at) + other.bound
    }
}

/// The lead of one node's clock over that of another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockLead {
    /// The first clock minus the second clock.
    pub offset_ns: i64,
    /// Growth of this difference, in nanoseconds per second.
    pub rate_ppb: i64,
}

fn shift_time_by(at: MonoTime, by: i128) -> MonoTime {
    // The monotonic clock has no times below 0, so 0 is the earliest result.
    let moved = (i128::from(at.as_nanos()) + by).max(0).unsigned_abs();
    MonoTime::from_nanos(clamp_to_u64(moved))
}

/// The way in which a fit was obtained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FitSource {
    /// Node and controller read the same clock.
    Same,
    /// The fit was computed from messages between node and controller.
    InBand,
    /// Both clocks follow UTC by NTP, and both machines report the accuracy.
    Ntp,
    /// Both clocks follow UTC by PTP, and both machines report the accuracy.
    Ptp,
}

impl FitSource {
    /// Returns the name that users see.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::InBand => "in-band",
            Self::Ntp => "ntp",
            Self::Ptp => "ptp",
        }
    }
}

/// The relation between a node's clock and the controller's clock during a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockRecord {
    /// The source of the fits `before` and `after`.
    pub source: FitSource,
    /// The fit that the node used at the start of the run.
    pub before: ClockFit,
    /// A fit that was made after the run.
    #[serde(default)]
    pub after: Option<ClockFit>,
    /// Another source and its fit, which was not used because its bound was wider.
    #[serde(default)]
    pub unused: Option<(FitSource, ClockFit)>,
}

impl ClockRecord {
    /// Returns the record of a node that reads the same clock as the controller.
    pub fn same_clock() -> Self {
        Self { source: FitSource::Same, before: ClockFit::same_clock(), after: None, unused: None }
    }

    /// Returns whether the fits before and after the run agree within their bounds. If they do not, a clock
    /// ran less evenly than its fit assumes, and no bound can be relied on.
    pub fn is_consistent(&self) -> bool {
        // The fits are compared in both directions, because each bound grows with the drift of its own fit,
        // and the two drifts can differ.
        self.after
            .is_none_or(|after| self.before.agrees_with_fit(&after) && after.agrees_with_fit(&self.before))
    }

    /// Returns the relation of the clocks at a time of the controller's clock. Of the fit before the run, the
    /// fit after the run and the line between both, it is the one with the smallest bound. `None` if the two
    /// fits contradict each other.
    pub fn best_fit_near(&self, at: MonoTime) -> Option<ClockFit> {
        if !self.is_consistent() {
            return None;
        }
        // Close to the time of a fit, that fit is usually the best. Far from both fits, the line between them
        // is the best, because the clocks must have moved from one fit to the other.
        let between = self.after.and_then(|after| bounded_fit_between(&self.before, &after, at));
        let known =
            [Some(self.before.extrapolate_to(at)), self.after.map(|after| after.extrapolate_to(at)), between];
        known.into_iter().flatten().min_by_key(|fit| fit.bound)
    }

    /// Returns an upper bound of the error with which the node estimated the controller's time between `from` and `to`,
    /// according to all fits. Both times are of the controller's clock. `None` if the fits contradict each other.
    pub fn largest_error_between(&self, from: MonoTime, to: MonoTime) -> Option<Nanos> {
        if !self.is_consistent() {
            return None;
        }
        // The bound grows with the distance from the time of the fit, so it is largest at one end of the interval.
        let foreseen = self.before.bound_at(from).max(self.before.bound_at(to));
        // Both values are true upper bounds, so the smaller one is, too.
        Some(self.largest_error_by_later_fit(from, to).map_or(foreseen, |seen| seen.min(foreseen)))
    }

    /// Returns an upper bound of the same error as [`Self::largest_error_between`], but only according to the fit after
    /// the run and the line between both fits. `None` without a fit after the run.
    fn largest_error_by_later_fit(&self, from: MonoTime, to: MonoTime) -> Option<Nanos> {
        let after = self.after?;
        let by_after = self
            .error_against_fit(&after.extrapolate_to(from))
            .max(self.error_against_fit(&after.extrapolate_to(to)));
        // The distance between the line and the fit that the node used is largest at one end. The possible
        // distance of the clocks from the line is largest at the point that is closest to its middle.
        let middle = self.before.at + Nanos::new(after.at.since(self.before.at).as_u64() / 2);
        let at_from = interpolate_fits(&self.before, &after, from);
        // Outside the interval between the two fits there is no line, so only the bounds of the fits apply.
        let at_to = interpolate_fits(&self.before, &after, to);
        let by_line = at_from.zip(at_to).map(|(one, other)| {
            let farthest = middle.clamp(from.min(to), to.max(from));
            let strayed = max_distance_from_line(&self.before, &after, farthest);
            self.error_against_fit(&one).max(self.error_against_fit(&other)) + strayed
        });
        Some(by_line.map_or(by_after, |by_line| by_line.min(by_after)))
    }

    /// Returns the largest possible error of the offset that the node used, according to a fit for one time.
    fn error_against_fit(&self, fit: &ClockFit) -> Nanos {
        Nanos::new(fit.offset_ns.abs_diff(self.before.offset_at(fit.at))) + fit.bound
    }

    /// Converts a time of the node's clock to the controller's clock, and returns it with its error bound.
    /// `None` if the fits contradict each other.
    pub fn to_controller(&self, local: MonoTime) -> Option<(MonoTime, Nanos)> {
        // The first conversion only serves to find the best fit. A small error of it hardly changes the bound.
        let fit = self.best_fit_near(self.before.to_controller(local))?;
        let at = fit.to_controller(local);
        Some((at, fit.bound_at(at)))
    }
}

/// Returns the point at `at` on the line between two fits. Its bound includes the possible distance of the
/// clocks from the line. `None` outside the interval between the fits.
fn bounded_fit_between(before: &ClockFit, after: &ClockFit, at: MonoTime) -> Option<ClockFit> {
    let line = interpolate_fits(before, after, at)?;
    Some(ClockFit { bound: line.bound + max_distance_from_line(before, after, at), ..line })
}

/// Returns the largest possible distance of the clocks from the line between two fits, at the time `at`.
fn max_distance_from_line(before: &ClockFit, after: &ClockFit, at: MonoTime) -> Nanos {
    let gone = u128::from(at.since(before.at).as_u64());
    let left = u128::from(after.at.since(at).as_u64());
    // The offset leaves the line at a rate of at most `drift`, and must return to it by its end, also at a
    // rate of at most `drift`. So its distance is at most `2 gone left / whole` times `drift`. The smaller
    // drift of the two fits is used, because each fit is valid up to the time of the other.
    let drift_ppb = u128::from(before.drift_ppb.min(after.drift_ppb));
    let strayed = 2 * gone * left / (gone + left).max(1) * drift_ppb;
    Nanos::new(clamp_to_u64(strayed.div_ceil(1_000_000_000)))
}

/// Returns the point at `at` on the line between two fits. Its bound contains only the bounds of the two
/// fits. `None` outside the interval between the fits, or for impossible numbers.
fn interpolate_fits(before: &ClockFit, after: &ClockFit, at: MonoTime) -> Option<ClockFit> {
    let whole = u128::from(after.at.since(before.at).as_u64());
    if at < before.at || at > after.at || whole == 0 {
        return None;
    }
    let gone = u128::from(at.since(before.at).as_u64());
    let left = u128::from(after.at.since(at).as_u64());
    // A fit has more weight the nearer `at` is to its time. The error bounds of the fits get the same weights.
    let mixed = u128::from(before.bound.as_u64()) * left + u128::from(after.bound.as_u64()) * gone;
    let step = i128::from(after.offset_ns) - i128::from(before.offset_ns);
    // The numbers come from another machine. If they are impossible, an overflow makes the result `None`.
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

/// Converts a number to 64 bits. A number outside the range becomes the smallest or the largest 64-bit number.
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
        assert_eq!(record.largest_error_between(at(90), at(100)), Some(Nanos::new(2_000 + 300 + 100_000)));
        // The line between both: straying from it counts most in the middle.
        assert_eq!(record.largest_error_between(at(0), at(100)), Some(Nanos::new(2_000 + 300 + 500_000)));
        assert_eq!(record.largest_error_between(at(0), at(10)), Some(Nanos::new(100_100)));
        assert_eq!(
            record.largest_error_between(at(50), at(101)),
            Some(Nanos::new(2_000 + 300 + 500_000)),
            "beyond the second fit"
        );
        assert_eq!(ClockRecord::same_clock().largest_error_between(at(0), at(10_000)), Some(Nanos::ZERO));
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
            let back = fit.to_controller(fit.to_node_time(when));
            prop_assert!(back.signed_since(when).abs() <= 1, "{back:?} {when:?}");
        }
    }
}
