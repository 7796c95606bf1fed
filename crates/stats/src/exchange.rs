//! Finds the relation of two clocks from messages that go to and fro.
//!
//! One exchange shows that the offset lies in an interval as wide as the round trip took. It cannot show which of the two paths
//! was slower. So the quickest exchange of each window is kept, and the offset, its rate and their bound are computed from the
//! kept exchanges. Here the asking end is called *node* and the answering end *controller*, as in [`ClockFit`].
//!
//! This module sends nothing and reads no clock: its callers do.
//!
//! Invariant: the true offset lies within the bound, however uneven the paths are, as long as a clock keeps its rate
//! against the other's to [`MAX_CLOCK_WANDER_PPB`] (and runs off by no more than [`MAX_PPB`] at all).

use crate::clock::ClockFit;
use packetrig_units::{MonoTime, Nanos, clamp_to_u64};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Largest deviation of the rate between two clocks from its mean: quartz changes with temperature, by less
/// than this within minutes.
pub const MAX_CLOCK_WANDER_PPB: u64 = 10_000;
/// Maximum rate at which two clocks drift apart: NTP may speed a kernel's clock up or slow it down by 500
/// ppm, and the quartz adds some.
pub const MAX_PPB: u64 = 600_000;
/// Exchanges in a window; of each window the quickest is kept.
const EXCHANGES_PER_WINDOW: usize = 16;
const MAX_WINDOWS: usize = 32;

/// A question and its answer. The node asks; the controller answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockExchange {
    /// The question left, by the node's clock.
    pub sent: MonoTime,
    /// The question arrived, by the controller's clock.
    pub heard: MonoTime,
    /// The answer left, by the controller's clock.
    pub answered: MonoTime,
    /// The answer arrived, by the node's clock.
    pub back: MonoTime,
}

impl ClockExchange {
    /// Round-trip time without the controller's processing time; `None` if the timestamps contradict each other.
    pub fn round_trip(&self) -> Option<Nanos> {
        if self.back < self.sent || self.answered < self.heard {
            return None;
        }
        let asked = self.back.since(self.sent);
        let rested = self.answered.since(self.heard);
        // A controller that claims to have held the question for longer than it was away is wrong or lies.
        (asked >= rested).then(|| asked.saturating_sub(rested))
    }

    /// Returns the offset that it shows, at the middle of the controller's part.
    fn estimate_offset(&self) -> Option<OffsetEstimate> {
        let round_trip = self.round_trip()?.as_u64();
        // The question arrived after it left, and so did the answer: node less controller is at least `sent - heard` and at
        // most `back - answered`. That is true for any split of the round trip between the two paths.
        let least = i128::from(self.sent.as_nanos()) - i128::from(self.heard.as_nanos());
        let most = i128::from(self.back.as_nanos()) - i128::from(self.answered.as_nanos());
        let rested = self.answered.since(self.heard).as_u64();
        // The two limits belong to different times, between which the clocks may have drifted.
        let under_way = round_trip.saturating_add(rested);
        let drift = (u128::from(under_way) * u128::from(MAX_PPB)).div_ceil(1_000_000_000);
        // The bound is rounded up and includes the drift, so that the true offset surely lies within it.
        let half = round_trip.div_ceil(2).saturating_add(u64::try_from(drift).ok()?);
        Some(OffsetEstimate {
            at: self.heard + Nanos::new(rested / 2),
            offset_ns: i64::try_from(i128::midpoint(least, most)).ok()?,
            half,
        })
    }
}

/// The offset at a time of the controller's clock: within `half` of `offset_ns`.
#[derive(Clone, Copy, Debug)]
struct OffsetEstimate {
    at: MonoTime,
    offset_ns: i64,
    half: u64,
}

/// A rate between two clocks, and how far off it may be.
struct RateEstimate {
    rate_ppb: i64,
    doubt_ppb: u64,
}

impl OffsetEstimate {
    /// The mean rate from here to `later`; `None` if it is no better than [`MAX_PPB`].
    fn rate_to(&self, later: &Self) -> Option<RateEstimate> {
        let apart = i128::from(later.at.since(self.at).as_u64());
        let step = i128::from(later.offset_ns) - i128::from(self.offset_ns);
        // The result is `None` for two estimates of the same instant.
        let rate = (step * 1_000_000_000).checked_div(apart)?;
        let doubt = (i128::from(self.half) + i128::from(later.half)) * 1_000_000_000;
        let doubt = doubt.checked_div(apart)?.unsigned_abs().saturating_add(1);
        let doubt_ppb = clamp_to_u64(doubt);
        let rate_ppb = i64::try_from(rate).ok()?;
        (doubt_ppb < MAX_PPB).then_some(RateEstimate { rate_ppb, doubt_ppb })
    }

    /// Returns half the width of the offset interval at `now`, if the rate is not known.
    fn uncertainty_at(&self, now: MonoTime) -> u128 {
        let age = u128::from(now.signed_since(self.at).unsigned_abs());
        u128::from(self.half) + age * u128::from(MAX_CLOCK_WANDER_PPB) / 1_000_000_000
    }
}

/// Combined result of all exchanges so far.
#[derive(Clone, Debug, Default)]
pub struct ClockComparison {
    kept: VecDeque<OffsetEstimate>,
    best: Option<OffsetEstimate>,
    in_window: usize,
    count: u64,
    least: Option<Nanos>,
}

impl ClockComparison {
    /// Adds an exchange, in the order of the answers. Returns false if it is impossible and was ignored.
    pub fn add_exchange(&mut self, exchange: &ClockExchange) -> bool {
        let Some(estimate) = exchange.estimate_offset() else { return false };
        let Some(round_trip) = exchange.round_trip() else { return false };
        self.count += 1;
        self.least = Some(self.least.map_or(round_trip, |least| least.min(round_trip)));
        if self.best.is_none_or(|best| estimate.half < best.half) {
            self.best = Some(estimate);
        }
        // The quickest exchange waited least in queues, so it bounds the offset best. One per window is kept, so that estimates far
        // apart in time remain: only these give a good rate.
        self.in_window += 1;
        if self.in_window == EXCHANGES_PER_WINDOW {
            self.kept.extend(self.best.take());
            self.in_window = 0;
            // The oldest estimate is removed, because its bound has grown most.
            if self.kept.len() > MAX_WINDOWS {
                self.kept.pop_front();
            }
        }
        true
    }

    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The quickest round trip so far.
    pub const fn round_trip(&self) -> Option<Nanos> {
        self.least
    }

    /// Returns offset and rate by all exchanges; `None` before the first one.
    pub fn fit_clock(&self) -> Option<ClockFit> {
        let estimates: Vec<OffsetEstimate> = self.kept.iter().chain(&self.best).copied().collect();
        let now = estimates.iter().map(|estimate| estimate.at).max()?;
        // The anchor is the best estimate now: an old estimate may have been narrower, but its bound has grown
        // since then.
        let anchor = estimates.iter().min_by_key(|estimate| estimate.uncertainty_at(now))?;
        // All pairs are tried: distant estimates give a good rate, but a narrow estimate may be better
        // than a distant one.
        let pairs =
            estimates.iter().flat_map(|early| estimates.iter().filter_map(|late| early.rate_to(late)));
        let unknown = RateEstimate { rate_ppb: 0, doubt_ppb: MAX_PPB };
        let RateEstimate { rate_ppb, doubt_ppb } = pairs.min_by_key(|rate| rate.doubt_ppb).unwrap_or(unknown);
        // A measured rate is a mean over the time between two estimates; the clock may differ from it by
        // `MAX_CLOCK_WANDER_PPB`. Without a measured rate, only the maximum drift of two clocks is a limit.
        let drift_ppb = if doubt_ppb == MAX_PPB { doubt_ppb } else { doubt_ppb + MAX_CLOCK_WANDER_PPB };
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
