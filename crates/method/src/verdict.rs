//! Verdict on a result: PASS, FAIL or INCONCLUSIVE against the criteria of the user, with reasons in words.
//!
//! A trial that the rig could not sustain is never a reason for FAIL.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Verdict on a criterion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MethodVerdict {
    Pass,
    /// The measurement does not decide: the rig disturbed it, the search was too coarse, or trials are missing.
    Unknown,
    Fail,
}

impl fmt::Display for MethodVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Pass => "PASS",
            Self::Unknown => "INCONCLUSIVE",
            Self::Fail => "FAIL",
        })
    }
}

/// A criterion and its verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JudgedCriterion {
    /// Text of the criterion: `64 B throughput of at least 1 000 000 frames/s`.
    pub criterion: String,
    pub verdict: MethodVerdict,
    /// The measured value, or the reason why there is none.
    pub reason: String,
}

/// The verdict of a method.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MethodJudgement {
    /// The worst verdict of the criteria. Without criteria it is `unknown` if a requested value is unknown.
    /// If there are no criteria and every value is known, it is absent, because there is nothing to judge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<MethodVerdict>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub criteria: Vec<JudgedCriterion>,
    /// Requested values that are not known, and the reasons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<String>,
}

impl MethodJudgement {
    /// Combines the verdicts of the criteria into one. The unknown values decide only if there are no criteria.
    pub fn new(criteria: Vec<JudgedCriterion>, unknown: Vec<String>) -> Self {
        let of_unknown = (!unknown.is_empty()).then_some(MethodVerdict::Unknown);
        // The variants of `MethodVerdict` are in order from best to worst, so the maximum is the worst.
        let verdict = criteria.iter().map(|judged| judged.verdict).max().or(of_unknown);
        Self { verdict, criteria, unknown }
    }
}

impl JudgedCriterion {
    /// Judges a value that lies between two bounds and must not be above `most`.
    pub(crate) fn judge_upper_limit(criterion: String, range: ValueRange, most: f64, unit: &str) -> Self {
        // The whole range must be on one side of the limit. Otherwise the true value may be on either side.
        let verdict = if range.high <= most {
            MethodVerdict::Pass
        } else if range.low > most {
            MethodVerdict::Fail
        } else {
            MethodVerdict::Unknown
        };
        let reason = match verdict {
            MethodVerdict::Unknown => {
                format!(
                    "the value is between {:.3} and {:.3} {unit}, and the limit is in this range, too",
                    range.low, range.high
                )
            }
            _ if range.low < range.high => {
                format!("the value is between {:.3} and {:.3} {unit}", range.low, range.high)
            }
            _ => format!("the value is {:.3} {unit}", range.high),
        };
        Self { criterion, verdict, reason }
    }

    /// Turns PASS into INCONCLUSIVE as long as only some of the trials were made.
    pub(crate) fn downgrade_pass_if_trials_missing(self, made: u32, wanted: u32) -> Self {
        // Only PASS needs the missing trials: a FAIL stays a FAIL whatever the result of those trials would be.
        if self.verdict != MethodVerdict::Pass || made >= wanted {
            return self;
        }
        Self::unknown(
            self.criterion,
            format!("{}, but there are only {made} of {wanted} measurements", self.reason),
        )
    }

    pub(crate) fn unknown(criterion: String, reason: impl Into<String>) -> Self {
        Self { criterion, verdict: MethodVerdict::Unknown, reason: reason.into() }
    }
}

/// Bounds of a value: it is not below `low` and not above `high`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ValueRange {
    pub low: f64,
    pub high: f64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::slice::from_ref;

    fn latency(low: f64, high: f64) -> JudgedCriterion {
        JudgedCriterion::judge_upper_limit("latency".to_owned(), ValueRange { low, high }, 10.0, "us")
    }

    #[test]
    fn limit_within_value_bounds_gives_unknown() {
        let verdicts = [(8.0, 10.0), (9.0, 11.0), (10.5, 11.0)].map(|(low, high)| latency(low, high).verdict);
        assert_eq!(verdicts, [MethodVerdict::Pass, MethodVerdict::Unknown, MethodVerdict::Fail]);
    }

    #[test]
    fn worst_criterion_decides_and_no_criteria_never_pass() {
        let verdict = |criteria: &[JudgedCriterion], unknown: &[&str]| {
            let unknown = unknown.iter().map(|text| (*text).to_owned()).collect();
            MethodJudgement::new(criteria.to_vec(), unknown).verdict
        };
        let (pass, fail) = (latency(1.0, 1.0), latency(11.0, 11.0));
        assert_eq!(verdict(&[], &[]), None);
        assert_eq!(verdict(&[], &["64 B"]), Some(MethodVerdict::Unknown));
        assert_eq!(verdict(from_ref(&pass), &["64 B"]), Some(MethodVerdict::Pass));
        assert_eq!(verdict(&[pass, latency(9.0, 11.0)], &[]), Some(MethodVerdict::Unknown));
        assert_eq!(verdict(&[latency(9.0, 11.0), fail], &["64 B"]), Some(MethodVerdict::Fail));
    }
}
