//! Compares two devices, or one device before and after a change.
//!
//! Both devices get the same trials, one directly after the other. The order within a pair is drawn from a
//! seed and balanced (A B B A or B A A B), so that a slow change of the rig cannot look like a difference.
//! The differences of the pairs have a 95 % confidence interval by Student's t, which assumes that they are nearly
//! normally distributed. Bootstrap intervals are too narrow for the ten or twenty pairs of a usual comparison.

use crate::any_method::{OptionProblem, find_first_problem};
use crate::{Load, TestMethod, TrialLength, TrialPurpose, TrialRequest, TrialResult, TrialWaits};
use packetrig_units::{FrameSize, Nanos};
use serde::{Deserialize, Serialize};

mod judgement;
mod result;
mod schedule;

pub use judgement::{MaximumWorsening, WorseningLimit};
pub use result::{
    ComparedMeasure, ComparedPair, ComparisonResult, DifferenceFinding, LoadComparison, MeasureComparison,
    TrialMeasures,
};

/// Minimum number of pairs for a finding. With fewer, a single outlier would decide.
pub const MIN_COMPARISON_PAIRS: u32 = 5;

/// Options of the method `compare`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComparisonOptions {
    /// Loads at which the trials of a pair are made.
    pub loads: Vec<ComparedLoad>,
    pub pairs: u32,
    /// Seed for the random order of the devices within the pairs.
    pub seed: u64,
    #[serde(default)]
    pub waits: TrialWaits,
    /// Limits for how much worse the second device may be.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub maximum_worsening: Vec<MaximumWorsening>,
}

impl ComparisonOptions {
    pub(crate) fn find_problem(&self) -> Option<OptionProblem> {
        let is_empty =
            |load: &ComparedLoad| load.frames_per_second == Load::ZERO || load.trial_ns == Nanos::ZERO;
        find_first_problem(&[
            (self.loads.is_empty(), "loads", "must have at least one load"),
            (self.loads.iter().any(is_empty), "loads", "must have rates and times above 0"),
            (self.pairs == 0, "pairs", "must be at least 1"),
            (
                !self.maximum_worsening.is_empty() && self.pairs < MIN_COMPARISON_PAIRS,
                "pairs",
                "must be at least 5 if there is a limit (--max-worse): fewer pairs cannot give a verdict",
            ),
        ])
    }
}

/// A load at which both devices are tested.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComparedLoad {
    /// Size of all frames; `None` for the sizes of the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frame_size_bytes: Option<FrameSize>,
    pub frames_per_second: Load,
    pub trial_ns: Nanos,
}

/// The running method `compare`: its options and the trials so far.
#[derive(Clone, Debug)]
pub struct ComparisonMethod {
    options: ComparisonOptions,
    /// For each pair: true if the second device is tested first.
    is_second_first: Vec<bool>,
    /// Measures of the trials, in the order in which they were made.
    trials: Vec<TrialMeasures>,
}

/// Pair, load and device of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ComparisonTrialPosition {
    pair: usize,
    load: usize,
    device: u8,
}

impl ComparisonMethod {
    pub fn new(options: ComparisonOptions) -> Self {
        // The order depends only on the seed, so a resumed test orders the same trials.
        let is_second_first = schedule::draw_trial_orders(options.pairs, options.seed);
        Self { options, is_second_first, trials: Vec::new() }
    }

    /// Returns pair, load and device of a trial. Trials are ordered by pair, then by load, then by the drawn order of
    /// the devices.
    fn locate_trial(&self, trial: usize) -> Option<ComparisonTrialPosition> {
        // `new` accepts an empty list of loads, so this must not divide by zero.
        let loads = self.options.loads.len().max(1);
        let pair = trial / 2 / loads;
        let load = trial / 2 % loads;
        // The second trial of a pair is made with the other device.
        let is_second = self.is_second_first.get(pair)? ^ (trial % 2 == 1);
        (load < self.options.loads.len()).then_some(ComparisonTrialPosition {
            pair,
            load,
            device: u8::from(is_second),
        })
    }

    /// Returns the result so far.
    pub fn current_result(&self) -> ComparisonResult {
        result::summarise_comparison(self)
    }
}

impl TestMethod for ComparisonMethod {
    fn next_trial_request(&self) -> Option<TrialRequest> {
        let place = self.locate_trial(self.trials.len())?;
        let load = self.options.loads[place.load];
        let length = TrialLength::Time(load.trial_ns);
        let purpose = TrialPurpose::Repetition;
        let order =
            TrialRequest::with_constant_load(purpose, load.frame_size_bytes, load.frames_per_second, length);
        Some(TrialRequest { device: place.device, ..order })
    }

    fn on_result(&mut self, result: &TrialResult) {
        if self.next_trial_request().is_some() {
            self.trials.push(TrialMeasures::from_result(result));
        }
    }

    fn describe_progress(&self) -> String {
        let pairs = self.trials.len() / 2 / self.options.loads.len().max(1);
        format!("comparison: {pairs} of {} pairs", self.options.pairs)
    }
}

#[cfg(test)]
mod tests;
