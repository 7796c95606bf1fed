//! Judges whether the device converged fast enough.

use super::{ConvergenceMethod, ConvergenceOutcome, ConvergenceTrial, iter_measured_trials};
use crate::verdict::ValueRange;
use crate::{JudgedCriterion, MethodJudgement};
use packetrig_units::Nanos;

impl ConvergenceMethod {
    /// Judges every stream of every measured trial. Trials that measured nothing are listed as unknown.
    pub fn judge_result(&self) -> MethodJudgement {
        let missing = (self.options.repetitions as usize).saturating_sub(self.trials.len());
        let unmade = (missing > 0).then(|| format!("trials not made: {missing}"));
        let unknown =
            self.trials.iter().zip(1..).filter_map(|(trial, number)| describe_unknown(trial, number));
        let criteria = self.options.maximum_convergence_ns.map(|most| self.judge_convergence(most));
        MethodJudgement::new(criteria.into_iter().collect(), unknown.chain(unmade).collect())
    }

    fn judge_convergence(&self, most: Nanos) -> JudgedCriterion {
        let criterion = format!("loss of connectivity of at most {most}");
        // The slowest stream of the slowest trial decides.
        let slowest = || iter_measured_trials(&self.trials).filter_map(ConvergenceTrial::slowest_stream_time);
        let least = slowest().map(|time| time.least).max();
        let greatest = slowest().map(|time| time.most).max();
        match (least, greatest) {
            (Some(low), Some(high)) => {
                let range = ValueRange { low: to_milliseconds(low), high: to_milliseconds(high) };
                let judged =
                    JudgedCriterion::judge_upper_limit(criterion, range, to_milliseconds(most), "ms");
                // The repetitions without a measurement may have been slower.
                let count = u32::try_from(iter_measured_trials(&self.trials).count()).unwrap_or(u32::MAX);
                judged.downgrade_pass_if_trials_missing(count, self.options.repetitions)
            }
            _ => JudgedCriterion::unknown(criterion, "no trial measured the loss of connectivity"),
        }
    }
}

fn describe_unknown(trial: &ConvergenceTrial, number: u32) -> Option<String> {
    let reason = trial.reason.as_deref().unwrap_or("the reason is unknown");
    (trial.outcome != ConvergenceOutcome::Measured).then(|| format!("trial {number}: {reason}"))
}

fn to_milliseconds(time: Nanos) -> f64 {
    time.as_u64() as f64 / 1e6
}
