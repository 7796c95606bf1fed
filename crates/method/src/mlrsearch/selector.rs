//! Selects the load that a goal tries next.

use super::bounds::TrialsByLoad;
use super::scale::{LoadInterval, choose_split_point};
use super::targets::SearchTarget;
use std::cmp::Ordering;

/// A load that a goal wants to try.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LoadNomination {
    pub(super) load: i64,
    pub(super) seconds: f64,
    /// The step that led to this load; it becomes the step of the whole search.
    pub(super) step: i64,
}

impl LoadNomination {
    /// True if this nomination is tried before `other`: the smaller load, then the longer trial, then the larger step.
    pub(super) fn has_precedence_over(&self, other: &Self, top: i64) -> bool {
        // Steps larger than the whole range have the same effect, so they compare as equal.
        let steps = other.step.min(top).cmp(&self.step.min(top));
        self.load.cmp(&other.load).then(other.seconds.total_cmp(&self.seconds)).then(steps) == Ordering::Less
    }
}

/// The kind of bound beyond which a step should lead. If the tried load is such a bound again, the
/// next steps are larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StepGrowthBound {
    Lower,
    Upper,
}

/// Progress of one goal through its targets.
#[derive(Clone, Debug)]
pub(super) struct LoadSelector {
    /// The targets of the goal, from coarse to fine.
    targets: Vec<SearchTarget>,
    stage: usize,
    /// The bounds of the previous target, or the loads of the first trials.
    start: LoadInterval,
    /// Distance of the next load from a bound, if the range is extended beyond that bound.
    step: i64,
    /// The step grows if the nominated load becomes a bound of this kind.
    grows_at: Option<StepGrowthBound>,
    is_done: bool,
}

/// Data that all selectors share.
#[derive(Clone, Copy, Debug)]
pub(super) struct SharedSearchData<'a> {
    pub(super) trials: &'a TrialsByLoad,
    pub(super) top: i64,
    /// The step of the previous trial, whichever goal nominated it.
    pub(super) step: i64,
}

impl LoadSelector {
    pub(super) fn new(targets: Vec<SearchTarget>) -> Self {
        Self { targets, stage: 0, start: LoadInterval::default(), step: 0, grows_at: None, is_done: false }
    }

    /// Sets the bounds that the first trials found.
    pub(super) fn set_start_bounds(&mut self, start: LoadInterval) {
        self.start = start;
        self.reset_search_step();
    }

    pub(super) const fn is_done(&self) -> bool {
        self.is_done
    }

    /// The target that the selector searches at present.
    pub(super) fn current_target(&self) -> &SearchTarget {
        &self.targets[self.stage]
    }

    /// The last target, which is the goal itself.
    pub(super) fn final_target(&self) -> &SearchTarget {
        &self.targets[self.targets.len() - 1]
    }

    /// Returns the load that this goal wants to try, and moves on to finer targets when needed; `None` if
    /// the goal is reached.
    pub(super) fn nominate_load(&mut self, view: SharedSearchData<'_>) -> Option<LoadNomination> {
        loop {
            let bounds = view.trials.find_relevant_bounds(self.current_target());
            // Only the current nomination may let the step grow.
            self.grows_at = None;
            if let Some((load, step)) = self.choose_load(bounds, view) {
                // A trial of another goal may have moved a bound of a goal that was reached.
                self.is_done = false;
                return Some(LoadNomination { load, seconds: self.current_target().trial, step });
            }
            if self.stage + 1 == self.targets.len() {
                self.is_done = true;
                return None;
            }
            self.stage += 1;
            // The finer target begins at the bounds of the coarser one, so it starts near the limit.
            self.start = bounds;
            self.reset_search_step();
        }
    }

    /// Records that the nominated load was tried. Returns the new step of the whole search if the step grows.
    pub(super) fn record_trial(&mut self, load: i64, trials: &TrialsByLoad) -> Option<i64> {
        let bounds = trials.find_relevant_bounds(self.current_target());
        let bound = match self.grows_at? {
            StepGrowthBound::Lower => bounds.lower,
            StepGrowthBound::Upper => bounds.upper,
        };
        // The step should have passed this kind of bound, but the trial is such a bound again: the
        // limit is further away.
        (bound == Some(load)).then(|| {
            self.step = self.step.saturating_mul(self.current_target().expansion);
            self.step
        })
    }

    fn reset_search_step(&mut self) {
        let distance = match self.start {
            // This is the distance between the bounds of the first trials or of the coarser target.
            LoadInterval { lower: Some(low), upper: Some(high) } => high - low,
            _ => 0,
        };
        // Without both bounds the distance is 0, and `set_step_width` begins with the width of the target.
        self.set_step_width(distance);
    }

    fn set_step_width(&mut self, last: i64) {
        let target = self.current_target();
        self.step = last.max(target.width).saturating_mul(target.expansion);
    }

    /// Applies the first rule that matches, and returns its load and step; `None` if the target is reached.
    fn choose_load(&mut self, bounds: LoadInterval, view: SharedSearchData<'_>) -> Option<(i64, i64)> {
        let width = self.current_target().width;
        if let Some(load) = self.choose_start_load(bounds) {
            self.set_step_width(width);
            return Some((load, width));
        }
        // Another goal may have found that the limit is far away. Its larger step saves trials here, too.
        let step = self.step.max(view.step);
        // The start loads were tried before, so one of the bounds is known here.
        match (bounds.lower, bounds.upper) {
            (None, Some(high)) => {
                // Saturation does no harm: `move_away_from_bounds` clamps the load to the scale.
                self.extend_range(bounds, high.saturating_sub(step), StepGrowthBound::Upper, view)
            }
            (Some(low), None) => {
                self.extend_range(bounds, low.saturating_add(step), StepGrowthBound::Lower, view)
            }
            (Some(low), Some(high)) if high - low > width => self.bisect_range(low, high, view),
            // The bounds are within the width: the target is reached.
            _ => None,
        }
    }

    /// Chooses a load from the start interval: its middle, if halving makes the interval narrow enough, or else
    /// one of its ends.
    fn choose_start_load(&self, bounds: LoadInterval) -> Option<i64> {
        let width = self.current_target().width;
        let half = match self.start {
            LoadInterval { lower: Some(low), upper: Some(high) }
                if width < high - low && high - low <= 2 * width =>
            {
                Some(choose_split_point(low, high, width))
            }
            _ => None,
        };
        // The middle comes first: if it is a bound, one of the two ends needs no trial for this target.
        let loads = [half, self.start.lower, self.start.upper];
        loads.into_iter().flatten().find(|load| !bounds.is_load_uninformative(*load, width))
    }

    /// Chooses a load one step beyond the only known bound.
    fn extend_range(
        &mut self,
        bounds: LoadInterval,
        wanted: i64,
        missed: StepGrowthBound,
        view: SharedSearchData<'_>,
    ) -> Option<(i64, i64)> {
        let width = self.current_target().width;
        // Without a load beyond the bound, the end of the range is reached, and so is the target.
        let load = bounds.move_away_from_bounds(wanted, width, view.top)?;
        if bounds.is_load_uninformative(load, width) {
            return None;
        }
        self.grows_at = Some(missed);
        Some((load, self.step.max(view.step)))
    }

    /// Chooses the middle of both bounds, unless a step from one of them ends between the middle and a start load.
    fn bisect_range(&mut self, low: i64, high: i64, view: SharedSearchData<'_>) -> Option<(i64, i64)> {
        let width = self.current_target().width;
        let bounds = LoadInterval { lower: Some(low), upper: Some(high) };
        let middle = choose_split_point(low, high, width);
        let step = self.step.max(view.step);
        let down = bounds.move_away_from_bounds(high.saturating_sub(step), width, view.top);
        if down.is_some_and(|load| load > middle && self.start.upper.is_some_and(|start| load < start)) {
            self.grows_at = Some(StepGrowthBound::Upper);
            return down.map(|load| (load, step));
        }
        let up = bounds.move_away_from_bounds(low.saturating_add(step), width, view.top);
        if up.is_some_and(|load| load < middle && self.start.lower.is_some_and(|start| load > start)) {
            self.grows_at = Some(StepGrowthBound::Lower);
            return up.map(|load| (load, step));
        }
        if bounds.is_load_uninformative(middle, width) {
            return None;
        }
        let half = (middle - low).min(high - middle);
        self.set_step_width(half);
        Some((middle, half))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selector_is_reopened_by_trial_of_another_goal() {
        let target = SearchTarget {
            loss_ratio: 0.0,
            exceed_ratio: 0.0,
            width: 10,
            trial: 1.0,
            sum: 1.0,
            expansion: 2,
        };
        let mut selector = LoadSelector::new(vec![target]);
        selector.set_start_bounds(LoadInterval { lower: Some(100), upper: Some(110) });
        let mut trials = TrialsByLoad::default();
        trials.add_trial(100, 1.0, 0.0, false);
        trials.add_trial(110, 1.0, 0.5, false);
        assert_eq!(selector.nominate_load(SharedSearchData { trials: &trials, top: 1000, step: 0 }), None);
        assert!(selector.is_done());
        trials.add_trial(100, 1.0, 0.5, false);
        assert!(selector.nominate_load(SharedSearchData { trials: &trials, top: 1000, step: 0 }).is_some());
        assert!(!selector.is_done());
    }
}
