//! Measures how many of many equal runs lose frames, at each of several rates.
//!
//! Each rate gets the same number of runs, all with the same number of frames. One run without loss proves little about
//! the next one, so the share of runs with loss has a confidence interval.

use crate::any_method::{OptionProblem, find_first_problem};
use crate::confidence::{ConfidenceInterval, wilson_interval};
use crate::{
    JudgedCriterion, Load, MethodJudgement, MethodVerdict, TestMethod, TrialLength, TrialPurpose,
    TrialRequest, TrialResult, TrialWaits,
};
use packetrig_units::FrameSize;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;

/// Options of the method `loss-share`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossShareOptions {
    /// Size of all frames; `None` for the sizes of the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frame_size_bytes: Option<FrameSize>,
    pub frames_per_run: u64,
    pub runs_per_rate: u32,
    pub rates_frames_per_second: Vec<Load>,
    #[serde(default)]
    pub waits: TrialWaits,
    /// Rate up to which no run may lose frames.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum_lossless_frames_per_second: Option<Load>,
}

impl LossShareOptions {
    pub(crate) fn find_problem(&self) -> Option<OptionProblem> {
        let rates = &self.rates_frames_per_second;
        find_first_problem(&[
            (rates.is_empty(), "rates_frames_per_second", "must name at least one rate"),
            (rates.contains(&Load::ZERO), "rates_frames_per_second", "must be above 0"),
            (has_repeated_loads(rates), "rates_frames_per_second", "must name each rate once"),
            (self.frames_per_run == 0, "frames_per_run", "must be at least 1"),
            (self.runs_per_rate == 0, "runs_per_rate", "must be at least 1"),
        ])
    }
}

/// Returns whether a rate is named twice. The result would then have two rows for it, each with its own runs.
fn has_repeated_loads(rates: &[Load]) -> bool {
    rates.iter().enumerate().any(|(at, rate)| rates[..at].contains(rate))
}

/// Result of the method `loss-share`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LossShareResult {
    pub frames_per_run: u64,
    pub runs_per_rate: u32,
    /// Results in the order of the options.
    pub rates: Vec<RateLossShare>,
    /// The highest rate for which no run at this rate or at a lower one lost frames.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub highest_lossless_frames_per_second: Option<Load>,
}

/// Results of all runs at one rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RateLossShare {
    pub frames_per_second: Load,
    /// Number of runs that say something about the device: the rig sustained them, or they lost no frame.
    pub runs: u32,
    pub runs_with_loss: u32,
    /// Number of runs that the rig could not sustain; they do not count in the other values.
    pub unknown_runs: u32,
    /// `runs_with_loss` divided by `runs`. `confidence_95` is its 95 % confidence interval (Wilson). Both
    /// are absent without runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_with_loss: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence_95: Option<ConfidenceInterval>,
    pub sent_frames: u64,
    pub lost_frames: u64,
    pub worst_run_loss_percent: f64,
}

/// The running method `loss-share`: its options and the runs so far.
#[derive(Clone, Debug)]
pub struct LossShareMethod {
    options: LossShareOptions,
    rates: Vec<RateLossShare>,
}

impl LossShareOptions {
    /// Options with a million frames per run and ten runs per rate.
    pub fn new(rates: Vec<Load>) -> Self {
        Self {
            frame_size_bytes: None,
            frames_per_run: 1_000_000,
            runs_per_rate: 10,
            rates_frames_per_second: rates,
            waits: TrialWaits::default(),
            minimum_lossless_frames_per_second: None,
        }
    }

    /// Returns rates from the lowest to the highest; the highest is always included. Without a positive step, or if
    /// `lowest` is above `highest`, the highest is the only rate. There are at most 100 002 rates.
    pub fn list_stepped_rates(lowest: Load, highest: Load, step: Load) -> Vec<Load> {
        let [low, high, step] = [lowest, highest, step].map(Load::frames_per_second);
        if step <= 0.0 || low > high {
            return vec![highest];
        }
        // The rates are not computed by repeated addition: rounding errors would add up. The number of rates
        // is limited, because a tiny step would fill the memory.
        let steps = crate::rounding::whole_part(((high - low) / step).floor()).min(100_000);
        let mut rates: Vec<Load> = (0..=steps).map(|n| Load::new(low + n as f64 * step)).collect();
        if rates.last().is_some_and(|last| last.frames_per_second() < high) {
            rates.push(highest);
        }
        rates
    }
}

impl LossShareResult {
    /// True if a run at the next rate above
    /// [`highest_lossless_frames_per_second`](Self::highest_lossless_frames_per_second) lost frames, or if no higher
    /// rate was tested. Otherwise the device may carry more without loss.
    pub fn is_highest_lossless_known(&self) -> bool {
        let highest = self.highest_lossless_frames_per_second.unwrap_or(Load::ZERO);
        let above = self.rates.iter().filter(|rate| rate.frames_per_second > highest);
        let next = above.min_by(|a, b| a.compare_rates(b));
        next.map_or(highest > Load::ZERO, |rate| rate.runs_with_loss > 0)
    }
}

impl LossShareMethod {
    pub fn new(options: LossShareOptions) -> Self {
        let rates = options.rates_frames_per_second.iter().map(|rate| RateLossShare::new(*rate)).collect();
        Self { options, rates }
    }

    /// Returns the result so far.
    pub fn current_result(&self) -> LossShareResult {
        LossShareResult {
            frames_per_run: self.options.frames_per_run,
            runs_per_rate: self.options.runs_per_rate,
            rates: self.rates.clone(),
            highest_lossless_frames_per_second: self.highest_lossless_rate(),
        }
    }

    fn highest_lossless_rate(&self) -> Option<Load> {
        // Options may list the rates in any order.
        let mut sorted: Vec<&RateLossShare> = self.rates.iter().collect();
        sorted.sort_by(|a, b| a.compare_rates(b));
        // A rate without loss above a lossy one proves nothing, so the first lossy rate ends the search.
        let lossless = sorted.into_iter().take_while(|rate| self.is_lossless(rate));
        lossless.last().map(|rate| rate.frames_per_second)
    }

    const fn is_lossless(&self, rate: &RateLossShare) -> bool {
        // Runs that the rig could not sustain are not in `runs`. A rate with too few runs is not proven to be lossless.
        rate.runs == self.options.runs_per_rate && rate.runs_with_loss == 0
    }

    /// Returns the index of the first rate that still needs runs.
    fn next_rate_index(&self) -> Option<usize> {
        // Runs that the rig could not sustain count as made: a rig that always fails must not keep
        // the method from ending.
        self.rates.iter().position(|rate| rate.runs + rate.unknown_runs < self.options.runs_per_rate)
    }

    /// Judges whether no run lost frames up to the required rate. Rates with missing or faulty runs
    /// are listed as unknown.
    pub fn judge_result(&self) -> MethodJudgement {
        let unknown = self.rates.iter().filter_map(|rate| self.describe_unknown(rate)).collect();
        let criterion =
            self.options.minimum_lossless_frames_per_second.map(|wanted| self.judge_lossless(wanted));
        MethodJudgement::new(criterion.into_iter().collect(), unknown)
    }

    fn describe_unknown(&self, rate: &RateLossShare) -> Option<String> {
        let missing = self.options.runs_per_rate.saturating_sub(rate.runs + rate.unknown_runs);
        let rate_of = rate.frames_per_second;
        match (rate.unknown_runs, missing) {
            (0, 0) => None,
            (0, missing) => Some(format!("{rate_of}: runs not made: {missing}")),
            (faulty, _) => Some(format!("{rate_of}: runs that the rig could not sustain: {faulty}")),
        }
    }

    fn judge_lossless(&self, wanted: Load) -> JudgedCriterion {
        let criterion = format!("no run with loss up to {wanted}");
        let mut below = self.rates.iter().filter(|rate| rate.frames_per_second <= wanted);
        // A single lossy run at or below the wanted rate refutes the criterion, even before all runs are made.
        if let Some(lossy) = below.find(|rate| rate.runs_with_loss > 0) {
            let reason = format!(
                "{}: {} of {} runs lost frames",
                lossy.frames_per_second, lossy.runs_with_loss, lossy.runs
            );
            return JudgedCriterion { criterion, verdict: MethodVerdict::Fail, reason };
        }
        // Rates below the wanted rate do not prove the criterion, even if all their runs were without loss.
        if !self.rates.iter().any(|rate| rate.frames_per_second >= wanted) {
            return JudgedCriterion::unknown(criterion, "no tested rate was as high as the required rate");
        }
        // A higher rate without loss also proves the required one.
        match self.highest_lossless_rate() {
            Some(highest) if highest >= wanted => {
                let reason = format!("no run up to {highest} lost a frame");
                JudgedCriterion { criterion, verdict: MethodVerdict::Pass, reason }
            }
            _ => JudgedCriterion::unknown(
                criterion,
                "too few valid runs up to the required rate; or that rate was not tested, and frames were lost at a higher rate",
            ),
        }
    }
}

impl TestMethod for LossShareMethod {
    fn next_trial_request(&self) -> Option<TrialRequest> {
        let rate = self.rates[self.next_rate_index()?].frames_per_second;
        let length = TrialLength::Frames(self.options.frames_per_run);
        Some(TrialRequest::with_constant_load(
            TrialPurpose::Repetition,
            self.options.frame_size_bytes,
            rate,
            length,
        ))
    }

    fn on_result(&mut self, result: &TrialResult) {
        if let Some(index) = self.next_rate_index() {
            self.rates[index].add_run(result);
        }
    }

    fn describe_progress(&self) -> String {
        match self.next_rate_index().map(|index| &self.rates[index]) {
            None => "loss share: all runs are made".to_owned(),
            Some(rate) => format!(
                "loss share: {}, {} of {} runs, {} with loss",
                rate.frames_per_second,
                rate.runs + rate.unknown_runs,
                self.options.runs_per_rate,
                rate.runs_with_loss
            ),
        }
    }
}

impl RateLossShare {
    const fn new(frames_per_second: Load) -> Self {
        Self {
            frames_per_second,
            runs: 0,
            runs_with_loss: 0,
            unknown_runs: 0,
            share_with_loss: None,
            confidence_95: None,
            sent_frames: 0,
            lost_frames: 0,
            worst_run_loss_percent: 0.0,
        }
    }

    fn compare_rates(&self, other: &Self) -> Ordering {
        self.frames_per_second.frames_per_second().total_cmp(&other.frames_per_second.frames_per_second())
    }

    fn add_run(&mut self, result: &TrialResult) {
        // A run without loss is valid, even if the rig reports a fault.
        if result.rig_fault.is_some() && !result.is_without_loss() {
            self.unknown_runs += 1;
            return;
        }
        self.runs += 1;
        self.runs_with_loss += u32::from(!result.is_without_loss());
        self.sent_frames += result.sent;
        // The upper bound is used, as in `is_without_loss`: a run in which a frame may be lost counts as a run with
        // loss.
        self.lost_frames += result.lost.most;
        self.worst_run_loss_percent = self.worst_run_loss_percent.max(result.loss_share() * 100.0);
        self.share_with_loss = Some(f64::from(self.runs_with_loss) / f64::from(self.runs));
        self.confidence_95 = wilson_interval(self.runs_with_loss, self.runs);
    }
}

#[cfg(test)]
mod tests;
