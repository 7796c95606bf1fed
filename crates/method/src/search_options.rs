//! Options, results and verdicts of the methods that search for one load: `mlrsearch` and `bisect`.

use crate::bisection::{BisectionMethod, BisectionPlan};
use crate::mlrsearch::{GoalResult, MlrOptions, MlrSearch};
use crate::{BoundCause, JudgedCriterion, Load, MethodJudgement, MethodVerdict, TestMethod, TrialWaits};
use serde::{Deserialize, Serialize};

/// Options of the method `mlrsearch`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MlrsearchOptions {
    #[serde(flatten)]
    pub search: MlrOptions,
    #[serde(default)]
    pub waits: TrialWaits,
    /// Load that every goal must reach for PASS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub required_frames_per_second: Option<Load>,
}

/// Options of the method `bisect`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BisectOptions {
    #[serde(flatten)]
    pub search: BisectionPlan,
    #[serde(default)]
    pub waits: TrialWaits,
    /// Load that the device must carry for PASS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub required_frames_per_second: Option<Load>,
}

/// Result of the method `mlrsearch`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MlrsearchResult {
    /// One result for each goal, in the order of the options.
    pub goals: Vec<GoalResult>,
}

/// State of the search for one load.
struct SearchedLoad {
    /// Name in criteria, for example `NDR`.
    name: String,
    /// Load that the device certainly carries.
    carried: Option<Load>,
    failed: Option<Load>,
    cause: BoundCause,
    is_over: bool,
}

pub(crate) fn judge_mlrsearch(method: &MlrSearch, least: Option<Load>) -> MethodJudgement {
    let goals = method.current_results().into_iter().map(|goal| SearchedLoad {
        name: goal.goal.to_string(),
        // The goal may allow loss at the lower bound; this is the part that the device forwards.
        carried: goal.conditional_throughput,
        failed: goal.upper_bound,
        cause: goal.cause,
        is_over: goal.is_reached,
    });
    judge_loads(&goals.collect::<Vec<_>>(), least)
}

pub(crate) fn judge_bisection(method: &BisectionMethod, least: Option<Load>) -> MethodJudgement {
    let result = method.current_result();
    let load = SearchedLoad {
        name: "throughput".to_owned(),
        carried: result.lower_bound,
        failed: result.upper_bound,
        cause: result.cause,
        is_over: method.next_trial_request().is_none(),
    };
    judge_loads(&[load], least)
}

fn judge_loads(loads: &[SearchedLoad], least: Option<Load>) -> MethodJudgement {
    let criteria = loads.iter().filter_map(|load| least.map(|least| load.judge_against_minimum(least)));
    let unknown = loads.iter().filter_map(SearchedLoad::describe_unknown);
    MethodJudgement::new(criteria.collect(), unknown.collect())
}

impl SearchedLoad {
    fn judge_against_minimum(&self, least: Load) -> JudgedCriterion {
        let criterion = format!("{} of at least {least}", self.name);
        let carried = self.carried.unwrap_or(Load::ZERO);
        // A bound that the rig set does not refute the load: the device may carry more.
        let is_refuted =
            self.cause == BoundCause::Device && self.failed.is_some_and(|failed| failed <= least);
        let verdict = if carried >= least {
            MethodVerdict::Pass
        } else if is_refuted {
            MethodVerdict::Fail
        } else {
            MethodVerdict::Unknown
        };
        let reason = match self.failed {
            Some(failed) => format!("the device carries {carried}; {failed} did not pass"),
            None => format!("the device carries {carried}"),
        };
        let reason = if verdict == MethodVerdict::Unknown {
            self.describe_unknown().unwrap_or(reason)
        } else {
            reason
        };
        JudgedCriterion { criterion, verdict, reason }
    }

    fn describe_unknown(&self) -> Option<String> {
        let carried = self.carried.unwrap_or(Load::ZERO);
        match (self.cause, self.failed) {
            (BoundCause::Rig, Some(failed)) => Some(format!(
                "{}: the device carries {carried} or more: the rig could not sustain the trials at {failed}",
                self.name
            )),
            _ if !self.is_over => Some(format!("{}: the search is not complete", self.name)),
            _ => None,
        }
    }
}
