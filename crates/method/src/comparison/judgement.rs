//! Judges whether the second device is too much worse than the first.

use super::{
    ComparedMeasure, ComparisonMethod, DifferenceFinding, LoadComparison, MIN_COMPARISON_PAIRS,
    MeasureComparison,
};
use crate::confidence::{ConfidenceInterval, sample_count_to_exclude};
use crate::verdict::ValueRange;
use crate::{JudgedCriterion, MethodJudgement, MethodVerdict};
use serde::{Deserialize, Serialize};

/// Limit for how much worse one measure of the second device may be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MaximumWorsening {
    pub measure: ComparedMeasure,
    #[serde(flatten)]
    pub limit: WorseningLimit,
}

/// The limit of a worsening, either absolute or relative.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorseningLimit {
    /// A limit in the unit of the measure.
    Absolute(f64),
    /// A limit in percent of the first device's mean.
    PercentOfFirst(f64),
}

impl ComparisonMethod {
    /// Compares each limit with the whole confidence interval of the worsening, not only with its mean.
    pub fn judge_result(&self) -> MethodJudgement {
        let result = self.current_result();
        let limits = &self.options.maximum_worsening;
        let criteria =
            result.loads.iter().flat_map(|load| limits.iter().map(|limit| self.judge_load(load, limit)));
        let unknown = result.loads.iter().filter_map(|load| self.describe_unknown(load));
        MethodJudgement::new(criteria.collect(), unknown.collect())
    }

    fn judge_load(&self, load: &LoadComparison, limit: &MaximumWorsening) -> JudgedCriterion {
        let name = limit.measure.name();
        let unit = limit.measure.unit();
        let most = match limit.limit {
            WorseningLimit::Absolute(most) => format!("{most} {unit}"),
            WorseningLimit::PercentOfFirst(percent) => format!("{percent} %"),
        };
        let criterion = format!("{}: {name} worse by at most {most}", describe_load(load));
        let Some(compared) = load.measures.iter().find(|compared| compared.measure == limit.measure) else {
            return JudgedCriterion::unknown(criterion, "no usable pair of trials measured this value");
        };
        match compared.confidence_95 {
            // An interval exists for two pairs or more, but it decides only if there are enough pairs for a finding.
            Some(interval) if compared.finding != DifferenceFinding::TooFewPairs => {
                let most = match limit.limit {
                    WorseningLimit::Absolute(most) => most,
                    WorseningLimit::PercentOfFirst(percent) => compared.first.mean * percent / 100.0,
                };
                let judged = JudgedCriterion::judge_upper_limit(
                    criterion,
                    convert_to_worsening_range(compared, interval),
                    most,
                    unit,
                );
                let judged = explain_percent_limit(judged, compared, limit.limit);
                let judged = advise_if_undecided(judged, compared, most);
                let made = u32::try_from(load.pairs.len()).unwrap_or(u32::MAX);
                // A comparison that was interrupted does not pass.
                judged.downgrade_pass_if_trials_missing(made, self.options.pairs)
            }
            _ => JudgedCriterion::unknown(
                criterion,
                format!(
                    "usable pairs: {}; at least {MIN_COMPARISON_PAIRS} are needed (--pairs)",
                    compared.difference.count
                ),
            ),
        }
    }

    fn describe_unknown(&self, load: &LoadComparison) -> Option<String> {
        let missing = (self.options.pairs as usize).saturating_sub(load.pairs.len());
        let of = describe_load(load);
        if missing > 0 {
            return Some(format!("{of}: pairs of trials not made: {missing}"));
        }
        (load.unusable_pairs > 0)
            .then(|| format!("{of}: pairs that the rig could not sustain: {}", load.unusable_pairs))
    }
}

/// Adds the absolute limit to the reason, if the limit is a percentage of the first device's mean. If that mean is 0,
/// says that the limit is 0, too.
fn explain_percent_limit(
    judged: JudgedCriterion,
    compared: &MeasureComparison,
    limit: WorseningLimit,
) -> JudgedCriterion {
    let WorseningLimit::PercentOfFirst(percent) = limit else { return judged };
    let (first, unit) = (compared.first.mean, compared.measure.unit());
    if first == 0.0 {
        let name = compared.measure.name();
        let reason = format!("{}; the first device has a {name} of 0, so the limit is 0, too", judged.reason);
        return JudgedCriterion { reason, ..judged };
    }
    let most = first * percent / 100.0;
    let reason = format!(
        "{}; the limit, {percent} % of the first device's {first:.3} {unit}, is {most:.3} {unit}",
        judged.reason
    );
    JudgedCriterion { reason, ..judged }
}

/// Adds to the reason of an undecided criterion how many pairs would decide it, if further pairs vary as much as these.
fn advise_if_undecided(judged: JudgedCriterion, compared: &MeasureComparison, most: f64) -> JudgedCriterion {
    if judged.verdict != MethodVerdict::Unknown {
        return judged;
    }
    // This is the difference at which the second device is worse by exactly the limit.
    let limit = if compared.measure.is_better_if_greater() { -most } else { most };
    let advice = match sample_count_to_exclude(&compared.difference, limit) {
        Some(pairs) => format!("about {pairs} pairs like these would give a verdict (--pairs {pairs})"),
        None => {
            "no reasonable number of pairs like these would give a verdict: make the trials longer (--time), so \
            that each measures more frames, or change the limit"
                .to_owned()
        }
    };
    JudgedCriterion { reason: format!("{}; {advice}", judged.reason), ..judged }
}

fn describe_load(load: &LoadComparison) -> String {
    match load.load.frame_size_bytes {
        Some(size) => format!("{size} at {}", load.load.frames_per_second),
        None => load.load.frames_per_second.to_string(),
    }
}

/// Returns the range of the worsening; it is positive if the second device is worse.
const fn convert_to_worsening_range(
    compared: &MeasureComparison,
    interval: ConfidenceInterval,
) -> ValueRange {
    // The interval is of second minus first. For a rate, less is worse, so the interval is mirrored.
    if compared.measure.is_better_if_greater() {
        ValueRange { low: -interval.high, high: -interval.low }
    } else {
        ValueRange { low: interval.low, high: interval.high }
    }
}

impl ComparedMeasure {
    /// Name of the measure in tables and criteria.
    pub const fn name(self) -> &'static str {
        match self {
            Self::LossPercent => "loss",
            Self::ReceivedFramesPerSecond => "received rate",
            Self::MeanLatencyNs => "mean latency",
            Self::P99LatencyNs => "latency p99",
            Self::MaxLatencyNs => "greatest latency",
        }
    }

    pub const fn unit(self) -> &'static str {
        match self {
            Self::LossPercent => "%",
            Self::ReceivedFramesPerSecond => "frames/s",
            Self::MeanLatencyNs | Self::P99LatencyNs | Self::MaxLatencyNs => "ns",
        }
    }
}
