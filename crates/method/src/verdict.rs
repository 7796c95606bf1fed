//! What a result is worth: PASS, FAIL or INCONCLUSIVE against the criteria of the user, with reasons in words.
//!
//! A trial that the rig could not hold is never a reason for FAIL.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Whether a criterion holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MethodVerdict {
    Pass,
    /// What was measured does not tell: the rig was in the way, or the search was too coarse.
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

/// A criterion and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JudgedCriterion {
    /// `64 B throughput of at least 1 000 000 frames/s`.
    pub criterion: String,
    pub verdict: MethodVerdict,
    /// The value beside the criterion, or why there is none.
    pub reason: String,
}

/// The verdict of a method.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MethodJudgement {
    /// The worst of the criteria. Without criteria it is `unknown` if something that was asked for is not known, and absent
    /// if everything is known: then there is nothing to judge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<MethodVerdict>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub criteria: Vec<JudgedCriterion>,
    /// What was asked for and is not known, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<String>,
}

impl MethodJudgement {
    /// The verdict over criteria. A criterion that holds does not need what is unknown.
    pub fn new(criteria: Vec<JudgedCriterion>, unknown: Vec<String>) -> Self {
        let of_unknown = (!unknown.is_empty()).then_some(MethodVerdict::Unknown);
        let verdict = criteria.iter().map(|judged| judged.verdict).max().or(of_unknown);
        Self { verdict, criteria, unknown }
    }
}

impl JudgedCriterion {
    /// Judges a value that lies between two bounds and must not be above `most`.
    pub(crate) fn at_most(criterion: String, range: ValueRange, most: f64, unit: &str) -> Self {
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
                    "it is between {:.3} and {:.3} {unit}: the limit lies between them",
                    range.low, range.high
                )
            }
            _ if range.low < range.high => {
                format!("it is between {:.3} and {:.3} {unit}", range.low, range.high)
            }
            _ => format!("it is {:.3} {unit}", range.high),
        };
        Self { criterion, verdict, reason }
    }

    /// What was judged by some of the trials does not hold before all of them were made.
    pub(crate) fn only_if_all(self, made: u32, wanted: u32) -> Self {
        if self.verdict != MethodVerdict::Pass || made >= wanted {
            return self;
        }
        Self::unknown(
            self.criterion,
            format!("{}, but only {made} of {wanted} trials measured it", self.reason),
        )
    }

    pub(crate) fn unknown(criterion: String, reason: impl Into<String>) -> Self {
        Self { criterion, verdict: MethodVerdict::Unknown, reason: reason.into() }
    }
}

/// A value is not below `low` and not above `high`.
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
        JudgedCriterion::at_most("latency".to_owned(), ValueRange { low, high }, 10.0, "us")
    }

    #[test]
    fn a_limit_inside_the_bounds_of_a_value_is_unknown() {
        let verdicts = [(8.0, 10.0), (9.0, 11.0), (10.5, 11.0)].map(|(low, high)| latency(low, high).verdict);
        assert_eq!(verdicts, [MethodVerdict::Pass, MethodVerdict::Unknown, MethodVerdict::Fail]);
    }

    #[test]
    fn the_worst_criterion_decides_and_nothing_to_judge_is_no_pass() {
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
