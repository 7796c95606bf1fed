//! How two clocks stand to each other, found by messages that go to and fro.
//!
//! One exchange says that the offset lies in an interval as wide as the round trip took; which path was the slower one
//! it cannot say. So the quickest exchange of each window is kept, and the offset, its rate and their bound are taken
//! from the kept ones. Whoever asks is the *node* here, and whoever answers the *controller*, as in [`ClockFit`].
//!
//! It sends nothing and reads no clock: its callers do.
//!
//! Invariant: the true offset lies within the bound, however uneven the paths are, as long as a clock keeps its rate
//! against the other's to [`WANDER_PPB`] (and runs off by no more than [`MOST_PPB`] at all).

use crate::clock::ClockFit;
use packetrig_units::{MonoTime, Nanos};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// How far the rate between two clocks may leave its mean: quartz changes with temperature, by less than this within
/// minutes.
pub const WANDER_PPB: u64 = 10_000;
/// The most by which two clocks may run apart: what NTP lets a kernel's clock be sped up or slowed down, and then some
/// for the quartz.
pub const MOST_PPB: u64 = 600_000;
/// Exchanges in a window; of each window the quickest is kept.
const WINDOW: usize = 16;
const WINDOWS: usize = 32;

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
    /// Time under way, both ways together; `None` if that is impossible.
    pub fn round_trip(&self) -> Option<Nanos> {
        if self.back < self.sent || self.answered < self.heard {
            return None;
        }
        let (asked, rested) = (self.back.since(self.sent), self.answered.since(self.heard));
        (asked >= rested).then(|| asked.saturating_sub(rested))
    }

    /// What it says of the offset, at the middle of the controller's part.
    fn mark(&self) -> Option<OffsetMark> {
        let round_trip = self.round_trip()?.as_u64();
        let ns = |at: MonoTime| i128::from(at.as_nanos());
        let least = ns(self.sent) - ns(self.heard);
        let most = ns(self.back) - ns(self.answered);
        let rested = self.answered.since(self.heard).as_u64();
        // While it was under way the clocks ran apart.
        let under_way = round_trip.saturating_add(rested);
        let drift = (u128::from(under_way) * u128::from(MOST_PPB)).div_ceil(1_000_000_000);
        let half = round_trip.div_ceil(2).saturating_add(u64::try_from(drift).ok()?);
        Some(OffsetMark {
            at: self.heard + Nanos::new(rested / 2),
            offset_ns: i64::try_from(i128::midpoint(least, most)).ok()?,
            half,
        })
    }
}

/// The offset at an instant of the controller's: within `half` of `offset_ns`.
#[derive(Clone, Copy, Debug)]
struct OffsetMark {
    at: MonoTime,
    offset_ns: i64,
    half: u64,
}

impl OffsetMark {
    /// The mean rate from here to `later`, and how far off it may be.
    fn rate_to(&self, later: &Self) -> Option<(i64, u64)> {
        let apart = i128::from(later.at.since(self.at).as_u64());
        let step = i128::from(later.offset_ns) - i128::from(self.offset_ns);
        let rate = (step * 1_000_000_000).checked_div(apart)?;
        let doubt = (i128::from(self.half) + i128::from(later.half)) * 1_000_000_000;
        let doubt = doubt.checked_div(apart)?.unsigned_abs().saturating_add(1);
        let doubt = u64::try_from(doubt).unwrap_or(u64::MAX);
        Some((i64::try_from(rate).ok()?, doubt)).filter(|(_, doubt)| *doubt < MOST_PPB)
    }

    /// Half the width of what it says at `now`, if nothing is known of the rate.
    fn doubt_at(&self, now: MonoTime) -> u128 {
        let age = u128::from(now.signed_since(self.at).unsigned_abs());
        u128::from(self.half) + age * u128::from(WANDER_PPB) / 1_000_000_000
    }
}

/// What all exchanges so far say together.
#[derive(Clone, Debug, Default)]
pub struct ClockComparison {
    kept: VecDeque<OffsetMark>,
    best: Option<OffsetMark>,
    in_window: usize,
    count: u64,
    least: Option<Nanos>,
}

impl ClockComparison {
    /// Takes in an exchange, in the order they came back. `false` if it is impossible, and was not.
    pub fn add(&mut self, exchange: &ClockExchange) -> bool {
        let (Some(mark), Some(round_trip)) = (exchange.mark(), exchange.round_trip()) else { return false };
        self.count += 1;
        self.least = Some(self.least.map_or(round_trip, |least| least.min(round_trip)));
        if self.best.is_none_or(|best| mark.half < best.half) {
            self.best = Some(mark);
        }
        self.in_window += 1;
        if self.in_window == WINDOW {
            self.kept.extend(self.best.take());
            self.in_window = 0;
            if self.kept.len() > WINDOWS {
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

    /// Offset and rate by what is known; `None` before the first exchange.
    pub fn fit(&self) -> Option<ClockFit> {
        let marks: Vec<OffsetMark> = self.kept.iter().chain(&self.best).copied().collect();
        let now = marks.iter().map(|mark| mark.at).max()?;
        let anchor = marks.iter().min_by_key(|mark| mark.doubt_at(now))?;
        let pairs = marks.iter().flat_map(|early| marks.iter().filter_map(|late| early.rate_to(late)));
        let (rate_ppb, doubt) = pairs.min_by_key(|(_, doubt)| *doubt).unwrap_or((0, MOST_PPB));
        let drift_ppb = if doubt == MOST_PPB { doubt } else { doubt + WANDER_PPB };
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
