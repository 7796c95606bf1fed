//! Targets: a goal and its coarser steps.

use super::SearchGoal;
use super::scale::LoadNumberScale;

/// One step on the way to a goal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SearchTarget {
    pub(super) loss_ratio: f64,
    pub(super) exceed_ratio: f64,
    /// Units of the load scale.
    pub(super) width: i64,
    /// Seconds of a trial that counts in full.
    pub(super) trial: f64,
    /// Total seconds of the trials that are needed to classify a load.
    pub(super) sum: f64,
    pub(super) expansion: i64,
}

impl SearchTarget {
    /// Returns the target that is the goal itself.
    pub(super) fn from_goal(goal: &SearchGoal, width: i64) -> Self {
        Self {
            loss_ratio: goal.loss_ratio,
            exceed_ratio: goal.exceed_ratio,
            width,
            trial: goal.final_trial.as_secs_f64(),
            sum: goal.duration_sum.as_secs_f64(),
            expansion: i64::from(goal.expansion),
        }
    }
}

/// Returns the targets of a goal, coarse to fine. Their sums grow from the initial trial to the goal's
/// sum by equal factors.
pub(super) fn build_targets(goal: &SearchGoal, scale: &LoadNumberScale) -> Vec<SearchTarget> {
    let last = SearchTarget::from_goal(goal, scale.units_of_width(goal.width));
    let initial = goal.initial_trial.as_secs_f64();
    let count = goal.preceding_targets;
    // Without preceding targets the factor is not used. The 1 only avoids a division by 0.
    let factor = (initial / last.sum).powf(1.0 / f64::from(count.max(1)));
    let mut chain = vec![last];
    let mut width = last.width;
    for step in 1..=count {
        // `powf` is used, as in the reference library: `powi` rounds differently. The last sum is the initial
        // time itself, not a product that rounding has changed.
        let sum = if step == count { initial } else { last.sum * factor.powf(f64::from(step)) };
        width = width.saturating_mul(2);
        // A trial must not be longer than the sum that decides on a load.
        chain.push(SearchTarget { width, trial: last.trial.min(sum), sum, ..last });
    }
    chain.reverse();
    chain
}
