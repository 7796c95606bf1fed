//! Determines the relation of two clocks from messages in both directions.
//!
//! One exchange shows that the offset lies in an interval with the width of the round-trip time. It cannot
//! show which of the two directions was slower. So of each window of exchanges, the one with the shortest
//! round trip is kept; the offset, its rate and their bound are computed from the kept exchanges. In this
//! module, the end that asks is called *node* and the end that answers *controller*, as in [`ClockFit`].
//!
//! This module neither sends messages nor reads clocks; its callers do.
//!
//! Invariant: the true offset lies within the bound, even if the two directions have very different delays,
//! as long as the rate between the clocks deviates from its mean by at most [`MAX_CLOCK_WANDER_PPB`] (and
//! is never above [`MAX_CLOCK_DRIFT_PPB`]).

use crate::clock::ClockFit;
use packetrig_units::{MonoTime, Nanos, clamp_to_u64};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Maximum deviation of the rate between two clocks from its mean. The frequency of quartz changes with the
/// temperature, but by less than this within minutes.
pub const MAX_CLOCK_WANDER_PPB: u64 = 10_000;
/// Maximum rate at which two clocks drift apart: NTP may change the rate of the kernel's clock by up to 500
/// ppm, and the error of the quartz is added to that.
pub const MAX_CLOCK_DRIFT_PPB: u64 = 600_000;
/// Number of exchanges in a window. Of each window, the exchange with the shortest round trip is kept.
const EXCHANGES_PER_WINDOW: usize = 16;
const MAX_WINDOWS: usize = 32;

/// The four times of a question from the node and its answer from the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockExchange {
    /// Time at which the question left, on the node's clock.
    pub sent: MonoTime,
    /// Time at which the question arrived, on the controller's clock.
    pub heard: MonoTime,
    /// Time at which the answer left, on the controller's clock.
    pub answered: MonoTime,
    /// Time at which the answer arrived, on the node's clock.
    pub back: MonoTime,
}

impl ClockExchange {
    /// Returns the round-trip time without the controller's processing time; `None` if the
    /// timestamps contradict each other.
    pub fn round_trip(&self) -> Option<Nanos> {
        if self.back < self.sent || self.answered < self.heard {
            return None;
        }
        let asked = self.back.since(self.sent);
        let rested = self.answered.since(self.heard);
        // The controller cannot have held the question for longer than the whole exchange took: such
        // timestamps are wrong or forged.
        (asked >= rested).then(|| asked.saturating_sub(rested))
    }

    /// Returns the offset that this exchange shows, for the middle of the controller's processing time.
    fn estimate_offset(&self) -> Option<OffsetEstimate> {
        let round_trip = self.round_trip()?.as_u64();
        // Each message arrived after it had left, so node minus controller is at least `sent - heard` and at most
        // `back - answered`. This is true for any split of the round-trip time between the two directions.
        let least = i128::from(self.sent.as_nanos()) - i128::from(self.heard.as_nanos());
        let most = i128::from(self.back.as_nanos()) - i128::from(self.answered.as_nanos());
        let rested = self.answered.since(self.heard).as_u64();
        // The two limits apply to different times, between which the clocks may have drifted apart.
        let under_way = round_trip.saturating_add(rested);
        let drift = (u128::from(under_way) * u128::from(MAX_CLOCK_DRIFT_PPB)).div_ceil(1_000_000_000);
        // The bound is rounded up and includes the drift, so that the true offset is certainly within it.
        let half = round_trip.div_ceil(2).saturating_add(u64::try_from(drift).ok()?);
        Some(OffsetEstimate {
            at: self.heard + Nanos::new(rested / 2),
            offset_ns: i64::try_from(i128::midpoint(least, most)).ok()?,
            half,
        })
    }
}

/// The offset at a time of the controller's clock. The true offset differs from `offset_ns` by at most `half`.
#[derive(Clone, Copy, Debug)]
struct OffsetEstimate {
    at: MonoTime,
    offset_ns: i64,
    half: u64,
}

/// A rate between two clocks, and the bound of its error.
struct RateEstimate {
    rate_ppb: i64,
    doubt_ppb: u64,
}

impl OffsetEstimate {
    /// Returns the mean rate between this estimate and `later`; `None` if its error bound is
    /// not smaller than [`MAX_CLOCK_DRIFT_PPB`].
    fn mean_rate_until(&self, later: &Self) -> Option<RateEstimate> {
        let apart = i128::from(later.at.since(self.at).as_u64());
        let step = i128::from(later.offset_ns) - i128::from(self.offset_ns);
        // `checked_div` gives `None` for two estimates of the same time.
        let rate = (step * 1_000_000_000).checked_div(apart)?;
        let doubt = (i128::from(self.half) + i128::from(later.half)) * 1_000_000_000;
        let doubt = doubt.checked_div(apart)?.unsigned_abs().saturating_add(1);
        let doubt_ppb = clamp_to_u64(doubt);
        let rate_ppb = i64::try_from(rate).ok()?;
        (doubt_ppb < MAX_CLOCK_DRIFT_PPB).then_some(RateEstimate { rate_ppb, doubt_ppb })
    }

    /// Returns the error bound of the offset at `now`, if the mean rate is known. Between this estimate and `now`, the
    /// actual rate may deviate from the mean rate by [`MAX_CLOCK_WANDER_PPB`].
    fn error_bound_at(&self, now: MonoTime) -> u128 {
        let age = u128::from(now.signed_since(self.at).unsigned_abs());
        u128::from(self.half) + age * u128::from(MAX_CLOCK_WANDER_PPB) / 1_000_000_000
    }
}

/// The combined result of all exchanges so far.
#[derive(Clone, Debug, Default)]
pub struct ClockComparison {
    kept: VecDeque<OffsetEstimate>,
    best: Option<OffsetEstimate>,
    in_window: usize,
    count: u64,
    least: Option<Nanos>,
}

impl ClockComparison {
    /// Adds an exchange; exchanges are added in the order of their answers. Returns false if the exchange is
    /// impossible and was ignored.
    pub fn add_exchange(&mut self, exchange: &ClockExchange) -> bool {
        let Some(estimate) = exchange.estimate_offset() else { return false };
        let Some(round_trip) = exchange.round_trip() else { return false };
        self.count += 1;
        self.least = Some(self.least.map_or(round_trip, |least| least.min(round_trip)));
        if self.best.is_none_or(|best| estimate.half < best.half) {
            self.best = Some(estimate);
        }
        // The exchange with the shortest round trip waited the least in queues, so it gives the narrowest
        // bound of the offset. One exchange of each window is kept, so that there are estimates far apart in
        // time: only these give an exact rate.
        self.in_window += 1;
        if self.in_window == EXCHANGES_PER_WINDOW {
            self.kept.extend(self.best.take());
            self.in_window = 0;
            // The oldest estimate is removed, because the bound of an estimate grows with its age.
            if self.kept.len() > MAX_WINDOWS {
                self.kept.pop_front();
            }
        }
        true
    }

    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Returns the shortest round-trip time so far.
    pub const fn round_trip(&self) -> Option<Nanos> {
        self.least
    }

    /// Returns the offset and the rate that follow from the kept exchanges; `None` before the first exchange.
    pub fn fit_clock(&self) -> Option<ClockFit> {
        let estimates: Vec<OffsetEstimate> = self.kept.iter().chain(&self.best).copied().collect();
        let now = estimates.iter().map(|estimate| estimate.at).max()?;
        // The fit starts from the estimate that is best now: an older estimate may have been narrower, but
        // its bound has grown since then.
        let anchor = estimates.iter().min_by_key(|estimate| estimate.error_bound_at(now))?;
        // All pairs of estimates are tried: a long time between two estimates makes the rate more exact, but
        // so do narrow bounds.
        let pairs = estimates
            .iter()
            .flat_map(|early| estimates.iter().filter_map(|late| early.mean_rate_until(late)));
        let unknown = RateEstimate { rate_ppb: 0, doubt_ppb: MAX_CLOCK_DRIFT_PPB };
        let RateEstimate { rate_ppb, doubt_ppb } = pairs.min_by_key(|rate| rate.doubt_ppb).unwrap_or(unknown);
        // A measured rate is the mean between two estimates; the current rate may deviate from it by
        // `MAX_CLOCK_WANDER_PPB`. Without a measured rate, only the maximum drift of two clocks is known.
        let drift_ppb =
            if doubt_ppb == MAX_CLOCK_DRIFT_PPB { doubt_ppb } else { doubt_ppb + MAX_CLOCK_WANDER_PPB };
        let fit = ClockFit {
            at: anchor.at,
            offset_ns: anchor.offset_ns,
            rate_ppb,
            bound: Nanos::new(anchor.half),
            drift_ppb,
        };
        Some(fit)
    }
}

#[cfg(test)]
mod tests;
