//! Classification of loads: lower bound, upper bound, or undecided.

use super::SearchGoal;
use super::scale::LoadInterval;
use super::targets::SearchTarget;
use std::collections::BTreeMap;

/// Class of a load for a goal, according to the trials at the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundClass {
    Lower,
    Upper,
    /// Further trials at the load are needed to decide.
    Undecided,
}

/// A trial at a load.
#[derive(Clone, Copy, Debug, PartialEq)]
struct LoadTrial {
    seconds: f64,
    loss_ratio: f64,
    is_rig_fault: bool,
}

/// All trials at one load.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadTrials(Vec<LoadTrial>);

impl LoadTrials {
    /// Adds a trial. `is_rig_fault` is true if the rig may have caused the loss.
    pub fn add_trial(&mut self, seconds: f64, loss_ratio: f64, is_rig_fault: bool) {
        self.0.push(LoadTrial { seconds, loss_ratio, is_rig_fault });
    }

    /// Returns whether these trials make the load a lower bound of the goal, an upper bound, or neither.
    pub fn classify_for_goal(&self, goal: &SearchGoal) -> BoundClass {
        self.classify_for_target(&SearchTarget::from_goal(goal, 0))
    }

    /// Share of the load that the device forwards at a lower bound: 1 minus the greatest loss ratio among the best
    /// trials, taken until they fill the trial time that must be good for the goal.
    pub fn conditional_share(&self, goal: &SearchGoal) -> f64 {
        1.0 - self.compute_conditional_loss(&SearchTarget::from_goal(goal, 0))
    }

    pub(super) fn classify_for_target(&self, target: &SearchTarget) -> BoundClass {
        classify_sums(
            &TrialSums::from_trials(&self.0, target, |trial| trial.loss_ratio > target.loss_ratio),
            target,
        )
    }

    /// True if the load is an upper bound only because of trials in which the rig may have caused the loss.
    pub(super) fn is_upper_by_rig(&self, target: &SearchTarget) -> bool {
        // Classifies the load without the suspected losses. If it is then no upper bound, only these
        // losses made it one.
        self.classify_for_target(target) == BoundClass::Upper
            && classify_sums(
                &TrialSums::from_trials(&self.0, target, |trial| {
                    trial.loss_ratio > target.loss_ratio && !trial.is_rig_fault
                }),
                target,
            ) != BoundClass::Upper
    }

    fn compute_conditional_loss(&self, target: &SearchTarget) -> f64 {
        let mut long: Vec<LoadTrial> =
            self.0.iter().copied().filter(|trial| trial.seconds >= target.trial).collect();
        // The best trials fill the guaranteed share of the trial time first: the conditional throughput of RFC 9971.
        long.sort_by(|one, other| one.loss_ratio.total_cmp(&other.loss_ratio));
        let sums = TrialSums::from_trials(&self.0, target, |trial| trial.loss_ratio > target.loss_ratio);
        // Trial time beyond the goal's sum counts, too: the good share must cover all of it.
        let mut remaining = target.sum.max(sums.good_long + sums.bad_long) * (1.0 - target.exceed_ratio);
        let mut ratio = None;
        for equal in long.chunk_by(|one, other| one.loss_ratio.to_bits() == other.loss_ratio.to_bits()) {
            if ratio.is_some() && remaining <= 0.0 {
                return ratio.unwrap_or(1.0);
            }
            ratio = equal.first().map(|trial| trial.loss_ratio);
            remaining -= equal.iter().fold(0.0, |sum, trial| sum + trial.seconds);
        }
        // Trial time that is still missing counts as lost.
        if remaining > 0.0 { 1.0 } else { ratio.unwrap_or(1.0) }
    }
}

/// Seconds of trials, added in the order in which they were made.
#[derive(Default)]
struct TrialSums {
    good_long: f64,
    bad_long: f64,
    good_short: f64,
    bad_short: f64,
}

impl TrialSums {
    fn from_trials(trials: &[LoadTrial], target: &SearchTarget, is_bad: impl Fn(&LoadTrial) -> bool) -> Self {
        let mut sums = Self::default();
        for trial in trials {
            // Short trials are counted separately: they guide the search, but only long ones can make a lower bound.
            let sum = match (trial.seconds >= target.trial, is_bad(trial)) {
                (true, false) => &mut sums.good_long,
                (true, true) => &mut sums.bad_long,
                (false, false) => &mut sums.good_short,
                (false, true) => &mut sums.bad_short,
            };
            *sum += trial.seconds;
        }
        sums
    }
}

/// Classifies sums of trial time. A load is decided when the remaining trial time could not change its
/// class, whether it is all good or all bad. Short bad trials count only beyond the share of bad time that
/// the short good trials excuse.
fn classify_sums(sums: &TrialSums, target: &SearchTarget) -> BoundClass {
    // `exceed_ratio` is below 1 (`SearchGoal::check_goal_ranges`), so this never divides by 0.
    let excused = sums.good_short * target.exceed_ratio / (1.0 - target.exceed_ratio);
    let bad = sums.bad_long + (sums.bad_short - excused).max(0.0);
    // As long as trial time is missing, `whole` includes it.
    let whole = (sums.good_long + bad).max(target.sum);
    let allowed = whole * target.exceed_ratio;
    // True if the load is a lower bound when all missing trial time is good.
    let can_be_lower = bad <= allowed;
    // True if the load is a lower bound even when all missing trial time is bad.
    let must_be_lower = whole - sums.good_long <= allowed;
    match (can_be_lower, must_be_lower) {
        (true, true) => BoundClass::Lower,
        (false, false) => BoundClass::Upper,
        // `(false, true)` cannot occur: all-bad is never better than all-good.
        _ => BoundClass::Undecided,
    }
}

/// All trials of a search, by the number of their load.
#[derive(Clone, Debug, Default)]
pub(super) struct TrialsByLoad(BTreeMap<i64, LoadTrials>);

impl TrialsByLoad {
    pub(super) fn add_trial(&mut self, load: i64, seconds: f64, loss_ratio: f64, is_rig_fault: bool) {
        self.0.entry(load).or_default().add_trial(seconds, loss_ratio, is_rig_fault);
    }

    pub(super) fn trials_at(&self, load: i64) -> Option<&LoadTrials> {
        self.0.get(&load)
    }

    /// Returns the smallest upper bound, and the largest lower bound below it. Good loads above an upper
    /// bound do not count.
    pub(super) fn find_relevant_bounds(&self, target: &SearchTarget) -> LoadInterval {
        let mut bounds = LoadInterval::default();
        // Loads come in ascending order. So the first upper bound is the smallest, and the last lower
        // bound before it is the largest that counts.
        for (load, trials) in &self.0 {
            match trials.classify_for_target(target) {
                BoundClass::Lower => bounds.lower = Some(*load),
                BoundClass::Undecided => {}
                BoundClass::Upper => {
                    bounds.upper = Some(*load);
                    break;
                }
            }
        }
        bounds
    }

    pub(super) fn compute_conditional_loss(&self, load: i64, target: &SearchTarget) -> f64 {
        self.trials_at(load).map_or(1.0, |trials| trials.compute_conditional_loss(target))
    }
}
