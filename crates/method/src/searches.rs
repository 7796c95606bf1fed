//! MLRsearch and binary search as methods that a user calls: with waits, a criterion and a verdict.

use crate::bisection::{BisectionMethod, BisectionPlan, BisectionPlanError, BisectionResult};
use crate::mlrsearch::{GoalResult, MlrOptions, MlrOptionsError, MlrSearch};
use crate::{
    BoundCause, JudgedCriterion, Load, MethodJudgement, MethodToGo, MethodVerdict, TestMethod, TrialOrder,
    TrialResult, TrialWaits,
};
use serde::{Deserialize, Serialize};

/// Options of the method `mlrsearch`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MlrsearchOptions {
    pub search: MlrOptions,
    #[serde(default)]
    pub waits: TrialWaits,
    /// The conditional throughput that the first goal must reach.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum_frames_per_second: Option<Load>,
}

/// Result of the method `mlrsearch`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MlrsearchResult {
    /// In the order of the options.
    pub goals: Vec<GoalResult>,
}

/// The method `mlrsearch` at work.
#[derive(Clone, Debug)]
pub struct Mlrsearch {
    search: MlrSearch,
    minimum: Option<Load>,
}

/// Options of the method `bisect`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BisectOptions {
    pub search: BisectionPlan,
    #[serde(default)]
    pub waits: TrialWaits,
    /// The load that must pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum_frames_per_second: Option<Load>,
}

/// The method `bisect` at work.
#[derive(Clone, Debug)]
pub struct Bisect {
    search: BisectionMethod,
    minimum: Option<Load>,
}

impl MlrsearchOptions {
    pub(crate) fn start(&self) -> Result<Mlrsearch, MlrOptionsError> {
        let search = MlrSearch::new(self.search.clone())?;
        Ok(Mlrsearch { search, minimum: self.minimum_frames_per_second })
    }
}

impl BisectOptions {
    pub(crate) fn start(&self) -> Result<Bisect, BisectionPlanError> {
        let search = BisectionMethod::new(self.search)?;
        Ok(Bisect { search, minimum: self.minimum_frames_per_second })
    }
}

impl Mlrsearch {
    pub fn result(&self) -> MlrsearchResult {
        MlrsearchResult { goals: self.search.results() }
    }

    /// The verdict on what is known so far.
    pub fn judge(&self) -> MethodJudgement {
        let goals = self.search.results();
        let criterion = self.minimum.zip(goals.first()).map(|(wanted, goal)| {
            let found = SearchedBounds {
                what: format!("conditional throughput of {}", goal.goal),
                lower: goal.conditional_throughput,
                upper: goal.upper_bound,
                cause: goal.cause,
                is_over: goal.is_reached,
            };
            found.judge(wanted)
        });
        let unknown = goals.iter().filter_map(|goal| {
            let found = SearchedBounds {
                what: goal.goal.to_string(),
                lower: goal.lower_bound,
                upper: goal.upper_bound,
                cause: goal.cause,
                is_over: goal.is_reached,
            };
            found.describe_unknown()
        });
        MethodJudgement::new(criterion.into_iter().collect(), unknown.collect())
    }

    pub fn to_go(&self) -> MethodToGo {
        self.search.to_go()
    }
}

impl Bisect {
    pub fn result(&self) -> BisectionResult {
        self.search.result()
    }

    /// The verdict on what is known so far.
    pub fn judge(&self) -> MethodJudgement {
        let result = self.result();
        let found = SearchedBounds {
            what: "load".to_owned(),
            lower: result.lower_bound,
            upper: result.upper_bound,
            cause: result.cause,
            is_over: result.is_over,
        };
        let criterion = self.minimum.map(|wanted| found.judge(wanted));
        MethodJudgement::new(criterion.into_iter().collect(), found.describe_unknown().into_iter().collect())
    }

    pub fn to_go(&self) -> MethodToGo {
        self.search.to_go()
    }
}

/// What a search found of a load.
struct SearchedBounds {
    what: String,
    lower: Option<Load>,
    upper: Option<Load>,
    cause: BoundCause,
    is_over: bool,
}

impl SearchedBounds {
    fn judge(&self, wanted: Load) -> JudgedCriterion {
        let criterion = format!("{} of at least {wanted}", self.what);
        let (verdict, reason) = match (self.lower, self.upper) {
            (Some(lower), _) if lower >= wanted => (MethodVerdict::Pass, format!("it is {lower}")),
            (_, Some(upper)) if self.cause == BoundCause::Rig => {
                (MethodVerdict::Unknown, format!("the rig could not hold {upper}"))
            }
            (lower, Some(_)) if self.is_over => {
                (MethodVerdict::Fail, format!("it is {}", lower.unwrap_or(Load::new(0.0))))
            }
            (Some(lower), None) if self.is_over => {
                (MethodVerdict::Fail, format!("it is {lower}, the highest load that was tried"))
            }
            _ => (MethodVerdict::Unknown, "the search is not over".to_owned()),
        };
        JudgedCriterion { criterion, verdict, reason }
    }

    fn describe_unknown(&self) -> Option<String> {
        if !self.is_over {
            return Some(format!("{}: the search is not over", self.what));
        }
        let upper = self.upper.filter(|_| self.cause == BoundCause::Rig)?;
        Some(match self.lower {
            Some(lower) => format!("{}: at least {lower}; the rig could not hold {upper}", self.what),
            None => format!("{}: the rig could not hold {upper}", self.what),
        })
    }
}

impl TestMethod for Mlrsearch {
    fn next_order(&self) -> Option<TrialOrder> {
        self.search.next_order()
    }

    fn tell(&mut self, result: &TrialResult) {
        self.search.tell(result);
    }

    fn progress(&self) -> String {
        self.search.progress()
    }
}

impl TestMethod for Bisect {
    fn next_order(&self) -> Option<TrialOrder> {
        self.search.next_order()
    }

    fn tell(&mut self, result: &TrialResult) {
        self.search.tell(result);
    }

    fn progress(&self) -> String {
        self.search.progress()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bisection::SearchResolution;
    use crate::sim::SimulatedDevice;
    use packetrig_units::Nanos;

    fn bisect(minimum: f64) -> Bisect {
        let search = BisectionPlan {
            min: Load::new(0.0),
            max: Load::new(10_000.0),
            resolution: SearchResolution::FramesPerSecond(10.0),
            tries: 1,
            accepted_loss: 0.0,
            hopeless_loss: 1.0,
            trial: Nanos::from_secs(1),
            size: None,
        };
        let options =
            BisectOptions { search, waits: TrialWaits::QUICK, minimum_frames_per_second: Some(Load::new(minimum)) };
        options.start().unwrap()
    }

    fn judged(minimum: f64, rig_limit: f64) -> Option<MethodVerdict> {
        let mut method = bisect(minimum);
        let mut device = SimulatedDevice::new(6_000.0, 0);
        while let Some(order) = method.next_order() {
            let mut result = device.perform(&order);
            if order.load.frames_per_second() > rig_limit {
                result.rig_fault = Some("not sent".to_owned());
                result.sent = result.intended / 2;
            }
            method.tell(&result);
        }
        method.judge().verdict
    }

    #[test]
    fn a_rig_in_the_way_is_no_failure_of_the_device() {
        assert_eq!(judged(5_000.0, f64::INFINITY), Some(MethodVerdict::Pass));
        assert_eq!(judged(7_000.0, f64::INFINITY), Some(MethodVerdict::Fail));
        assert_eq!(judged(5_500.0, 3_000.0), Some(MethodVerdict::Unknown));
        assert_eq!(judged(2_000.0, 3_000.0), Some(MethodVerdict::Pass));
    }
}
