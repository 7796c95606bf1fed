//! The verdict on each criterion: the measured value, its bounds, and PASS, FAIL or INCONCLUSIVE.
//!
//! Every measured value has a lower and an upper bound ([`Bounded`]). For an upper limit, the result is FAIL
//! if even the lower bound exceeds the limit, and PASS if even the upper bound does not. For a lower limit,
//! the bounds change roles. Otherwise the rig cannot decide. A fault of the rig only widens the bounds, so it
//! never causes a FAIL. A fault of the device moves both bounds, so it never causes a PASS.

use packetrig_stats::bounded::Bounded;
use packetrig_units::{Nanos, Ratio, Share, clamp_to_u64};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Maximum number of subjects that a criterion line lists.
const MAX_NAMED: usize = 32;

/// Result of a criterion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum CriterionResult {
    /// The criterion is met, whatever the true value within the bounds.
    Pass,
    /// The bounds leave the result open.
    Unknown,
    /// The criterion is not met, whatever the true value within the bounds.
    Fail,
}

impl fmt::Display for CriterionResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Pass => "PASS",
            Self::Unknown => "INCONCLUSIVE",
            Self::Fail => "FAIL",
        })
    }
}

/// Compares a figure with an upper limit.
pub(super) fn judge_at_most<T: Copy + Ord>(figure: &Bounded<T>, limit: T) -> CriterionResult {
    if figure.least > limit {
        CriterionResult::Fail
    } else if figure.most <= limit {
        CriterionResult::Pass
    } else {
        CriterionResult::Unknown
    }
}

/// Compares a figure with a lower limit.
pub(super) fn judge_at_least<T: Copy + Ord>(figure: &Bounded<T>, limit: T) -> CriterionResult {
    if figure.most < limit {
        CriterionResult::Fail
    } else if figure.least >= limit {
        CriterionResult::Pass
    } else {
        CriterionResult::Unknown
    }
}

/// Part of `whole` that an upper limit allows.
pub(super) fn compute_allowed_count(limit: Share, whole: u64) -> u64 {
    // The number is rounded down: 0.1 % of 999 frames is none.
    let allowed =
        u128::from(whole) * u128::from(limit.billionths()) / u128::from(Share::WHOLE_LINK.billionths());
    clamp_to_u64(allowed)
}

/// Result of a criterion for one subject.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubjectJudgement {
    /// The judged stream, capture or probe line, such as `stream f1`.
    pub subject: String,
    /// Result of the criterion for this subject.
    pub result: CriterionResult,
    /// Measured value, in words with the numbers.
    pub measured: String,
    /// Judged figure: frames, nanoseconds, or thousandths of a frame per second. Absent if nothing was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub figure: Option<Bounded<u64>>,
}

/// Finding of a criterion on one stream: a figure with its bounds, or no figure if nothing was measured. There is no
/// finding on a stream that the criterion does not judge.
pub(super) struct StreamFinding {
    pub(super) result: CriterionResult,
    /// Measured value, in words with the numbers.
    pub(super) measured: String,
    pub(super) figure: Option<Bounded<u64>>,
}

impl StreamFinding {
    pub(super) fn at_most(limit: u64, figure: Bounded<u64>, measured: String) -> Self {
        Self { result: judge_at_most(&figure, limit), measured, figure: Some(figure) }
    }

    pub(super) fn at_least(limit: u64, figure: Bounded<u64>, measured: String) -> Self {
        Self { result: judge_at_least(&figure, limit), measured, figure: Some(figure) }
    }

    pub(super) const fn unknown(measured: String) -> Self {
        Self { result: CriterionResult::Unknown, measured, figure: None }
    }

    /// Turns FAIL into INCONCLUSIVE for a criterion about the rig: a fault of the rig must not make the device fail.
    pub(super) fn limit_to_inconclusive(self) -> Self {
        // The results are in order: PASS, INCONCLUSIVE, FAIL. The minimum keeps the first two.
        Self { result: self.result.min(CriterionResult::Unknown), ..self }
    }
}

/// Result of a criterion over all its subjects: the worst subject decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CriterionLine {
    /// Name of the criterion: `loss`, `latency p99`.
    pub criterion: String,
    /// Limit of the criterion, in words.
    pub limit: String,
    /// Result over all subjects.
    pub result: CriterionResult,
    /// Number of subjects for which the criterion was judged.
    pub judged: usize,
    /// Number of subjects that do not meet the criterion.
    pub failed: usize,
    /// Number of subjects with an unknown result.
    pub unknown: usize,
    /// The subjects that decide, the worst first; of a criterion that is met everywhere, the first subject. At most 32.
    pub subjects: Vec<SubjectJudgement>,
}

impl CriterionLine {
    /// Combines judgements into a line; `None` if there is nothing to judge.
    pub(super) fn from_judgements(
        criterion: &str,
        limit: String,
        judgements: Vec<SubjectJudgement>,
    ) -> Option<Self> {
        let result = judgements.iter().map(|judgement| judgement.result).max()?;
        let judged = judgements.len();
        let failed = count_results(&judgements, CriterionResult::Fail);
        let unknown = count_results(&judgements, CriterionResult::Unknown);
        let mut subjects = judgements;
        subjects.sort_by_key(|judgement| std::cmp::Reverse(judgement.result));
        // A line of a met criterion names its first subject, so that it shows a measurement.
        subjects.truncate((failed + unknown).clamp(1, MAX_NAMED));
        Some(Self { criterion: criterion.to_owned(), limit, result, judged, failed, unknown, subjects })
    }

    /// Reasons for this result: one for each listed subject, and one for all others.
    pub(super) fn reasons_for_result(&self, wanted: CriterionResult) -> Vec<String> {
        let named = self.subjects.iter().filter(|subject| subject.result == wanted);
        let mut reasons: Vec<String> =
            named.map(|subject| format!("{}: {}", subject.subject, subject.measured)).collect();
        // The counts are of all subjects; the list of subjects is bounded.
        let all = if wanted == CriterionResult::Fail { self.failed } else { self.unknown };
        if all > reasons.len() && !reasons.is_empty() {
            reasons.push(format!(
                "number of further subjects of criterion `{}`: {}",
                self.criterion,
                all - reasons.len()
            ));
        }
        reasons
    }
}

fn count_results(judgements: &[SubjectJudgement], wanted: CriterionResult) -> usize {
    judgements.iter().filter(|judgement| judgement.result == wanted).count()
}

/// A count of frames with its doubt, in words: `5 of 100 frames lost (5 %)`.
pub(super) fn describe_frame_count(frames: &Bounded<u64>, whole: u64, what: &str) -> String {
    let all = format!("{} of {whole} frames {what} ({})", frames.most, Ratio::new(frames.most, whole));
    match frames.most - frames.least {
        // An exact figure needs no words about the rig.
        0 => all,
        doubtful => format!("{all}, {doubtful} of them perhaps by the rig or a link without carrier"),
    }
}

/// A time with its doubt and the reasons for it, in words.
pub(super) fn describe_bounded_time(time: &Bounded<Nanos>) -> String {
    let Bounded { least, most, why, .. } = time;
    if least == most { most.to_string() } else { format!("between {least} and {most} ({why})") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_stats::bounded::BoundReason;
    use proptest::prelude::*;

    fn judgement(subject: &str, result: CriterionResult) -> SubjectJudgement {
        SubjectJudgement { subject: subject.into(), result, measured: "m".into(), figure: None }
    }

    #[test]
    fn the_worst_subject_decides_and_is_named_first() {
        use CriterionResult::{Fail, Pass, Unknown};
        let line = CriterionLine::from_judgements(
            "loss",
            "0 %".into(),
            vec![judgement("a", Pass), judgement("b", Unknown), judgement("c", Fail)],
        );
        let line = line.unwrap();
        assert_eq!((line.result, line.judged, line.failed, line.unknown), (Fail, 3, 1, 1));
        let names: Vec<_> = line.subjects.iter().map(|subject| subject.subject.as_str()).collect();
        assert_eq!(names, ["c", "b"]);
        assert_eq!(CriterionLine::from_judgements("loss", "0 %".into(), Vec::new()), None);
    }

    proptest! {
        #[test]
        fn judgement_never_fails_rig_nor_passes_device_fault(
            lost in 0u64..100, doubtful in 0u64..100, limit in 0u64..100, by_rig in 0u64..100, by_device in 0u64..100,
        ) {
            let judge = |lost: u64, doubtful: u64| {
                let figure = Bounded::exactly(lost).lower_lower_bound(lost.saturating_sub(doubtful), BoundReason::RigLosses);
                judge_at_most(&figure, limit)
            };
            let before = judge(lost, doubtful);
            let rig = judge(lost + by_rig, doubtful + by_rig);
            prop_assert!(rig != CriterionResult::Fail || before == CriterionResult::Fail);
            let device = judge(lost + by_device, doubtful);
            prop_assert!(device != CriterionResult::Pass || before == CriterionResult::Pass);
            prop_assert!(before != CriterionResult::Fail || device == CriterionResult::Fail);
        }
    }
}
