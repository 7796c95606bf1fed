//! Results of a comparison.

use super::{ComparedLoad, ComparisonMethod, MIN_COMPARISON_PAIRS};
use crate::confidence::{ConfidenceInterval, mean_interval};
use crate::{SampleStatistics, TrialResult};
use packetrig_units::Nanos;
use serde::{Deserialize, Serialize};

/// Result of the method `compare`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ComparisonResult {
    pub pairs: u32,
    pub loads: Vec<LoadComparison>,
}

/// Results of both devices at one load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadComparison {
    pub load: ComparedLoad,
    pub pairs: Vec<ComparedPair>,
    /// Number of pairs with a trial that the rig could not sustain. These pairs do not count.
    pub unusable_pairs: u32,
    pub measures: Vec<MeasureComparison>,
}

/// The two trials of a pair, one with each device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComparedPair {
    /// Device that was tested first: 0 or 1.
    pub began_with: u8,
    pub devices: [TrialMeasures; 2],
}

/// The measures of a trial that a comparison uses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrialMeasures {
    pub loss_percent: f64,
    pub received_frames_per_second: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_latency_ns: Option<Nanos>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_latency_ns: Option<Nanos>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_latency_ns: Option<Nanos>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rig_fault: Option<String>,
}

/// A compared measure; its name contains the unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ComparedMeasure {
    LossPercent,
    ReceivedFramesPerSecond,
    MeanLatencyNs,
    P99LatencyNs,
    MaxLatencyNs,
}

/// One measure of both devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasureComparison {
    pub measure: ComparedMeasure,
    pub first: SampleStatistics,
    pub second: SampleStatistics,
    /// Second minus first, pair by pair.
    pub difference: SampleStatistics,
    /// Confidence interval of the mean difference, by Student's t.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence_95: Option<ConfidenceInterval>,
    pub finding: DifferenceFinding,
}

/// Finding about the difference of a measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DifferenceFinding {
    Differs,
    /// The interval contains 0. This does not show that the devices are equal.
    NoDifferenceShown,
    TooFewPairs,
}

impl ComparedMeasure {
    pub const ALL: [Self; 5] = [
        Self::LossPercent,
        Self::ReceivedFramesPerSecond,
        Self::MeanLatencyNs,
        Self::P99LatencyNs,
        Self::MaxLatencyNs,
    ];

    /// True if a greater value is better.
    pub const fn is_better_if_greater(self) -> bool {
        matches!(self, Self::ReceivedFramesPerSecond)
    }

    fn value_of_trial(self, trial: &TrialMeasures) -> Option<f64> {
        let time = match self {
            Self::LossPercent => return Some(trial.loss_percent),
            Self::ReceivedFramesPerSecond => return Some(trial.received_frames_per_second),
            Self::MeanLatencyNs => trial.mean_latency_ns,
            Self::P99LatencyNs => trial.p99_latency_ns,
            Self::MaxLatencyNs => trial.max_latency_ns,
        };
        Some(time?.as_u64() as f64)
    }
}

impl TrialMeasures {
    pub(super) fn from_result(result: &TrialResult) -> Self {
        let seconds = result.sending.as_secs_f64();
        Self {
            loss_percent: result.loss_share() * 100.0,
            received_frames_per_second: if seconds > 0.0 { result.received as f64 / seconds } else { 0.0 },
            mean_latency_ns: result.latency.map(|latency| latency.mean),
            p99_latency_ns: result.latency.map(|latency| latency.p99),
            max_latency_ns: result.latency.map(|latency| latency.max),
            // A trial without loss is valid, even if the rig reports a fault.
            rig_fault: result.rig_fault.clone().filter(|_| !result.is_without_loss()),
        }
    }
}

impl ComparedPair {
    fn is_pair_usable(&self) -> bool {
        self.devices.iter().all(|trial| trial.rig_fault.is_none())
    }
}

pub(super) fn summarise_comparison(comparison: &ComparisonMethod) -> ComparisonResult {
    let loads = comparison.options.loads.iter().enumerate();
    ComparisonResult {
        pairs: comparison.options.pairs,
        loads: loads.map(|(index, load)| compare_load(*load, pairs_of_load(comparison, index))).collect(),
    }
}

/// Returns the complete pairs of a load.
fn pairs_of_load(comparison: &ComparisonMethod, load: usize) -> Vec<ComparedPair> {
    let mut pairs = Vec::new();
    // A single trial at the end is ignored, because it is only half a pair.
    for (index, trials) in comparison.trials.chunks_exact(2).enumerate() {
        // Both trials of a chunk have the same pair and load. Only their devices differ.
        if let Some(place) = comparison.locate_trial(index * 2).filter(|place| place.load == load) {
            let [first, second] = [&trials[0], &trials[1]].map(Clone::clone);
            let devices = if place.device == 0 { [first, second] } else { [second, first] };
            pairs.push(ComparedPair { began_with: place.device, devices });
        }
    }
    pairs
}

fn compare_load(load: ComparedLoad, pairs: Vec<ComparedPair>) -> LoadComparison {
    let usable: Vec<&ComparedPair> = pairs.iter().filter(|pair| pair.is_pair_usable()).collect();
    // A measure without any usable pair gets no row. For example, not every trial measures a latency.
    let measures = ComparedMeasure::ALL.into_iter().filter_map(|measure| compare_measure(measure, &usable));
    LoadComparison {
        load,
        unusable_pairs: u32::try_from(pairs.len() - usable.len()).unwrap_or(u32::MAX),
        measures: measures.collect(),
        pairs,
    }
}

fn compare_measure(measure: ComparedMeasure, pairs: &[&ComparedPair]) -> Option<MeasureComparison> {
    // A difference needs both values. A pair in which one trial measured no latency does not count for it.
    let values: Vec<[f64; 2]> = pairs.iter().filter_map(|pair| pair_values(measure, pair)).collect();
    let of = |select: fn(&[f64; 2]) -> f64| {
        SampleStatistics::from_values(&values.iter().map(select).collect::<Vec<_>>())
    };
    let difference = of(|[first, second]| second - first)?;
    let interval = mean_interval(&difference);
    let finding = match interval {
        // The interval is shown from two pairs on, but a single odd pair among so few would decide the finding.
        Some(interval) if difference.count >= MIN_COMPARISON_PAIRS => judge_difference(interval),
        _ => DifferenceFinding::TooFewPairs,
    };
    let first = of(|[first, _]| *first)?;
    let second = of(|[_, second]| *second)?;
    Some(MeasureComparison { measure, first, second, difference, confidence_95: interval, finding })
}

/// Returns the measure's values of both devices; `None` if a trial did not measure it.
fn pair_values(measure: ComparedMeasure, pair: &ComparedPair) -> Option<[f64; 2]> {
    let [first, second] = &pair.devices;
    Some([measure.value_of_trial(first)?, measure.value_of_trial(second)?])
}

fn judge_difference(interval: ConfidenceInterval) -> DifferenceFinding {
    if interval.contains(0.0) { DifferenceFinding::NoDifferenceShown } else { DifferenceFinding::Differs }
}
