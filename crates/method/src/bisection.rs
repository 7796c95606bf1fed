//! Binary search with loss verification (ETSI GS NFV-TST 009, 12.3.3).
//!
//! [`Bisection`] searches for the highest value that passes: a load, or the number of frames of a burst. It tries the
//! maximum first. A value passes if one of its trials passes, or as many as [`BisectionOptions::passes`] requires.
//! After a failed trial, a value is tried again, because a single loss may be an accident. It is not tried again if the
//! device's loss is above [`BisectionOptions::hopeless_loss`].
//!
//! [`BisectionMethod`] uses [`Bisection`] to search for a load.

mod method;

pub use method::{BisectionMethod, BisectionPlan, BisectionPlanError, BisectionResult, SearchResolution};

use crate::{BoundCause, Load, TrialResult};
use std::fmt;

/// A kind of value that [`Bisection`] searches for.
pub trait SearchedValue: Copy + PartialOrd + fmt::Debug {
    /// Zero. No trial is made with this value.
    const NOTHING: Self;

    /// Returns the value in the middle of `low` and `high`; a whole number is rounded down.
    fn middle_between(low: Self, high: Self) -> Self;

    /// Returns `high - low`, or 0 if `low` is above `high`.
    fn distance_between(low: Self, high: Self) -> Self;

    /// Scales the value by this many thousandths.
    #[must_use]
    fn scale_permille(self, count: u32) -> Self;
}

impl SearchedValue for f64 {
    const NOTHING: Self = 0.0;

    fn middle_between(low: Self, high: Self) -> Self {
        Self::midpoint(low, high)
    }

    fn distance_between(low: Self, high: Self) -> Self {
        (high - low).max(0.0)
    }

    fn scale_permille(self, count: u32) -> Self {
        self * Self::from(count) / 1000.0
    }
}

impl SearchedValue for u64 {
    const NOTHING: Self = 0;

    fn middle_between(low: Self, high: Self) -> Self {
        low.midpoint(high)
    }

    fn distance_between(low: Self, high: Self) -> Self {
        high.saturating_sub(low)
    }

    fn scale_permille(self, count: u32) -> Self {
        self.saturating_mul(Self::from(count)) / 1000
    }
}

/// Options of a [`Bisection`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BisectionOptions<V> {
    /// The lowest value. It is tried only if everything above it failed, and never if it is 0.
    pub min: V,
    /// The highest value. It is tried first.
    pub max: V,
    /// The search ends when its bounds are no further apart than this.
    pub resolution: V,
    /// The search also ends when its bounds are no further apart than this many thousandths of the upper one.
    pub relative_resolution_permille: u32,
    /// Failed trials after which a value counts as failed: `max(r)` of TST 009. 1 (or 0) is a plain binary search.
    pub tries: u32,
    /// Trials of a value that must pass before the value has passed. With 1 try, a single failed trial is enough for
    /// the value to fail. 0 means 1.
    pub passes: u32,
    /// A trial passes if its loss ratio is not above this.
    pub accepted_loss: f64,
    /// A value with a loss ratio above this is not tried again, unless the loss may be due to the rig: `z` of TST 009.
    pub hopeless_loss: f64,
}

impl<V> BisectionOptions<V> {
    /// A plain binary search without loss: one trial per value.
    pub const fn without_retries(min: V, max: V, resolution: V) -> Self {
        Self {
            min,
            max,
            resolution,
            relative_resolution_permille: 0,
            tries: 1,
            passes: 1,
            accepted_loss: 0.0,
            hopeless_loss: 1.0,
        }
    }

    /// Returns the options with loss verification: a value that lost frames is tried again, up to
    /// `tries` trials in all.
    #[must_use]
    pub fn with_tries(self, tries: u32) -> Self {
        Self { tries, ..self }
    }
}

/// Bounds of the searched value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BisectionBounds<V> {
    /// The highest value that passed; `None` if none did.
    pub lower: Option<V>,
    /// The lowest value that failed; `None` if none did.
    pub upper: Option<V>,
    /// Reason why the lower bound is not higher: `Range` as long as nothing failed.
    pub cause: BoundCause,
}

/// A binary search for the highest value that passes.
#[derive(Clone, Debug)]
pub struct Bisection<V> {
    options: BisectionOptions<V>,
    bounds: BisectionBounds<V>,
    /// Number of passed trials of the value that is being tried.
    passed: u32,
    /// Number of failed trials of the value that is being tried.
    failed: u32,
    /// True if the loss of one of these trials may be the rig's fault.
    is_rig_suspected: bool,
    /// The search tries no value above this one, because the rig could not send more.
    ceiling: Option<V>,
}

/// A search still tries loads up to the load that the rig has sent times this factor, because an overloaded sender may
/// send less than it can.
const LOAD_HEADROOM_FACTOR: f64 = 1.1;

impl Bisection<f64> {
    /// Processes the result of a trial at a load. If the rig sent less than half of the frames, the search stays below
    /// the load that the rig sent, plus a margin, and its resolution becomes finer in proportion.
    pub fn on_load_result(&mut self, result: &TrialResult) {
        let ceiling = result.sent_load_if_beyond_rig();
        self.apply_trial(result.loss_share(), result.rig_fault.is_some(), ceiling.is_some());
        if let Some(ceiling) = ceiling {
            self.limit_to_sent_load(ceiling);
        }
    }

    /// Limits the search to loads up to the one that the rig has sent, plus a margin.
    pub(crate) fn limit_to_sent_load(&mut self, sent: Load) {
        let ceiling = sent.frames_per_second() * LOAD_HEADROOM_FACTOR;
        let known = self.ceiling.unwrap_or(self.options.max);
        if ceiling < known {
            // The resolution was chosen for the range up to `known`. Without a change, it would be too coarse
            // for the smaller range.
            self.options.resolution *= ceiling / known;
            self.ceiling = Some(ceiling);
        }
    }

    /// Returns the highest load that the search may try, infinite without a ceiling, and its resolution.
    pub(crate) fn load_search_range(&self) -> LoadSearchRange {
        LoadSearchRange { top: self.ceiling.unwrap_or(f64::INFINITY), resolution: self.options.resolution }
    }
}

/// Range and resolution of the loads that a search may try.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadSearchRange {
    pub top: f64,
    pub resolution: f64,
}

impl<V: SearchedValue> Bisection<V> {
    pub const fn new(options: BisectionOptions<V>) -> Self {
        let bounds = BisectionBounds { lower: None, upper: None, cause: BoundCause::Range };
        Self { options, bounds, passed: 0, failed: 0, is_rig_suspected: false, ceiling: None }
    }

    /// Returns the value to try next; `None` if the search is over.
    pub fn next_value(&self) -> Option<V> {
        let Some(upper) = self.bounds.upper else {
            // If the maximum passes, no higher value may be tried, so the search is over.
            return self.bounds.lower.is_none().then_some(self.options.max);
        };
        let low = self.bounds.lower.unwrap_or(self.options.min);
        // Trials between the ceiling and the failed value are useless, because the rig cannot send that much.
        let top = self.ceiling.filter(|ceiling| *ceiling < upper).unwrap_or(upper);
        let middle = V::middle_between(low, top);
        let relative = top.scale_permille(self.options.relative_resolution_permille);
        // The ceiling may be below a load that passed earlier. The distance is then 0, and the search ends.
        let distance = V::distance_between(low, top);
        // Two neighbouring whole numbers, or floats, have no value between them: without the last checks, a search with
        // a fine resolution would never end.
        if distance > self.options.resolution && distance > relative && low < middle && middle < top {
            return Some(middle);
        }
        self.must_try_minimum().then_some(self.options.min)
    }

    /// Processes the result of a trial of [`next_value`](Self::next_value).
    pub fn on_result(&mut self, result: &TrialResult) {
        self.on_loss(result.loss_share(), result.rig_fault.is_some());
    }

    /// Processes the loss ratio of a trial of [`next_value`](Self::next_value). `is_rig_fault` is true if the rig may
    /// have caused the loss.
    pub fn on_loss(&mut self, loss: f64, is_rig_fault: bool) {
        self.apply_trial(loss, is_rig_fault, false);
    }

    /// Applies a trial to the present value. A load that the rig cannot send is not tried again.
    fn apply_trial(&mut self, loss: f64, is_rig_fault: bool, is_beyond_rig: bool) {
        // The search is over, so the trial is ignored.
        let Some(value) = self.next_value() else { return };
        // A rig fault does not matter here: a faulty rig adds loss, and even so the loss is within the limit.
        if loss <= self.options.accepted_loss {
            self.passed += 1;
            if self.passed >= self.options.passes {
                self.bounds.lower = Some(value);
                self.reset_trial_counts();
            }
            return;
        }
        self.failed += 1;
        // One doubtful trial is enough: without the fault of the rig, the value might have passed in it.
        self.is_rig_suspected |= is_rig_fault;
        // A loss that the rig may have caused proves nothing about the value, however great it is.
        let is_hopeless = loss > self.options.hopeless_loss && !is_rig_fault;
        if is_hopeless || is_beyond_rig || self.failed >= self.options.tries {
            // The device caused a hopeless loss, even if the rig is suspected in an earlier trial of this value.
            let is_rig = self.is_rig_suspected && !is_hopeless;
            self.bounds.upper = Some(value);
            self.bounds.cause = if is_rig { BoundCause::Rig } else { BoundCause::Device };
            self.reset_trial_counts();
        }
    }

    /// Returns the bounds so far.
    pub const fn bounds(&self) -> BisectionBounds<V> {
        self.bounds
    }

    /// Returns the bounds if the search is over.
    pub fn final_bounds(&self) -> Option<BisectionBounds<V>> {
        self.next_value().is_none().then_some(self.bounds)
    }

    fn must_try_minimum(&self) -> bool {
        // A failed value at or below the minimum is the minimum itself: every middle lies above it.
        let is_failed = self.bounds.upper.is_some_and(|upper| upper <= self.options.min);
        self.bounds.lower.is_none() && self.options.min > V::NOTHING && !is_failed
    }

    const fn reset_trial_counts(&mut self) {
        self.passed = 0;
        self.failed = 0;
        self.is_rig_suspected = false;
    }
}

#[cfg(test)]
mod tests;
