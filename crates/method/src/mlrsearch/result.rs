//! Results of a search, goal by goal.

use super::{MlrSearch, SearchGoal};
use crate::{BoundCause, Load};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The result of one goal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GoalResult {
    pub goal: SearchGoal,
    /// The largest load that is a lower bound and below the upper bound.
    #[serde(rename = "lower_bound_frames_per_second")]
    pub lower_bound: Option<Load>,
    /// Load that the device forwards at the lower bound, in the share of trial time that must be good for the goal.
    #[serde(rename = "conditional_throughput_frames_per_second")]
    pub conditional_throughput: Option<Load>,
    /// The smallest load that is an upper bound.
    #[serde(rename = "upper_bound_frames_per_second")]
    pub upper_bound: Option<Load>,
    /// Present if the search for the goal has ended without one of the bounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub irregular: Option<GoalIrregularity>,
    /// Reason why the lower bound is not higher. With `Rig`, the device may carry more than the lower bound.
    #[serde(rename = "limited_by")]
    pub cause: BoundCause,
    /// True if the search for this goal is over.
    pub is_reached: bool,
}

/// The bound that a result lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GoalIrregularity {
    /// Even the lowest load is too high for the goal.
    NoLowerBound,
    /// The device carries the highest load.
    NoUpperBound,
}

impl MlrSearch {
    /// Returns the results so far, in the order of the options.
    pub fn current_results(&self) -> Vec<GoalResult> {
        self.options().goals.iter().zip(0..).map(|(goal, index)| self.goal_result(*goal, index)).collect()
    }

    fn goal_result(&self, goal: SearchGoal, index: usize) -> GoalResult {
        let selector = &self.selectors()[index];
        let target = selector.final_target();
        let bounds = self.trials().find_relevant_bounds(target);
        let load = |index: i64| Load::new(self.scale().load_at(index));
        let is_rig =
            |index: i64| self.trials().trials_at(index).is_some_and(|trials| trials.is_upper_by_rig(target));
        let irregular = match (bounds.lower, bounds.upper) {
            (None, Some(_)) => Some(GoalIrregularity::NoLowerBound),
            (Some(_), None) => Some(GoalIrregularity::NoUpperBound),
            _ => None,
        };
        GoalResult {
            goal,
            lower_bound: bounds.lower.map(load),
            conditional_throughput: bounds.lower.map(|index| {
                Load::new(
                    self.scale().load_at(index)
                        * (1.0 - self.trials().compute_conditional_loss(index, target)),
                )
            }),
            upper_bound: bounds.upper.map(load),
            // Before the end, a missing bound may still be found.
            irregular: irregular.filter(|_| selector.is_done()),
            cause: match bounds.upper {
                None => BoundCause::Range,
                Some(index) if is_rig(index) => BoundCause::Rig,
                Some(_) => BoundCause::Device,
            },
            is_reached: selector.is_done(),
        }
    }
}

impl fmt::Display for GoalResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let goal = self.goal;
        match (self.lower_bound, self.upper_bound) {
            (None, None) => write!(f, "{goal}: nothing known yet"),
            (Some(lower), None) => write!(f, "{goal}: at least {lower}"),
            (None, Some(upper)) => write!(f, "{goal}: below {upper}"),
            (Some(lower), Some(upper)) => write!(f, "{goal}: {lower} to {upper}"),
        }
    }
}
