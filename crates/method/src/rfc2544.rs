//! The benchmarks of RFC 2544, with back-to-back frames according to RFC 9004.
//!
//! The tests run one after the other, each with all sizes. Tests at the throughput use the result of the
//! throughput search. If the rig kept the search from going higher, they use the highest load that was carried,
//! and their results are marked.

use crate::{Load, TestMethod, TrialLength, TrialPurpose, TrialRequest, TrialResult};
use packetrig_units::{FrameSize, Nanos};
use std::collections::VecDeque;

mod back_to_back;
mod criteria;
mod frame_loss;
mod judgement;
mod latency;
mod options;
mod recovery;
mod reset;
mod result;
mod throughput;

pub use criteria::{MinimumThroughput, Rfc2544Criteria, ThroughputFloor};
pub use options::{
    LatencyDefinition, Rfc2544Durations, Rfc2544Options, Rfc2544Repetitions, Rfc2544Test, SizeMaximum,
};
pub use result::{
    BackToBackBenchmark, BurstSearch, FrameLossCurve, FrameLossPoint, LatencyBenchmark, LatencySample,
    PartOutcome, RecoveryBenchmark, RecoveryTrial, ResetTime, Rfc2544Result, SizeBenchmark, ThroughputBasis,
    ThroughputBounds,
};

/// The running method `rfc2544`: its present part (a test with one frame size), and the parts after it.
#[derive(Clone, Debug)]
pub struct Rfc2544Method {
    options: Rfc2544Options,
    /// Parts after the present one.
    queue: VecDeque<PlannedPart>,
    part: Option<BenchmarkPart>,
    result: Rfc2544Result,
}

/// A test with one of the sizes.
#[derive(Clone, Copy, Debug)]
struct PlannedPart {
    test: Rfc2544Test,
    /// Index of the frame size in the options.
    size: usize,
}

/// The present part: a test with one size.
#[derive(Clone, Debug)]
struct BenchmarkPart {
    size: usize,
    work: SizeTestProgress,
}

#[derive(Clone, Debug)]
enum SizeTestProgress {
    Throughput(throughput::ThroughputSearch),
    Latency(latency::LatencyTrials),
    FrameLoss(frame_loss::FrameLossTrials),
    BackToBack(back_to_back::BurstSearches),
    Recovery(recovery::RecoveryTrials),
    Reset(reset::ResetTrial),
}

impl Rfc2544Method {
    pub fn new(options: Rfc2544Options) -> Self {
        let sizes =
            options.frame_sizes_bytes.iter().map(|size| SizeBenchmark::new(&options, *size)).collect();
        let result = Rfc2544Result { shortfalls: options.find_shortfalls(), sizes, reset: None };
        let mut method = Self { queue: plan_test_parts(&options), part: None, result, options };
        // Parts without trials are skipped at once, so that `next_trial_request` always returns a real trial.
        method.start_next_part();
        method
    }

    /// Returns the result so far.
    pub const fn current_result(&self) -> &Rfc2544Result {
        &self.result
    }

    /// Starts the next part that needs a trial. For a part that cannot be measured, only the reason is stored.
    fn start_next_part(&mut self) {
        self.part = None;
        while let Some(planned) = self.queue.pop_front() {
            let work = self.start_size_test(planned);
            if let Some(work) = work {
                // The outcome is stored before the first trial, so that a part without trials has a result,
                // too.
                work.store_outcome(&mut self.result, planned.size);
                if work.next_trial_request().is_some() {
                    self.part = Some(BenchmarkPart { size: planned.size, work });
                    return;
                }
            }
        }
    }

    /// Starts a part. `None` if the test has no trials with this size; the reason is then in the result.
    fn start_size_test(&mut self, planned: PlannedPart) -> Option<SizeTestProgress> {
        let row = &mut self.result.sizes[planned.size];
        let options = &self.options;
        match planned.test {
            Rfc2544Test::Throughput => {
                Some(SizeTestProgress::Throughput(throughput::ThroughputSearch::new(options, row)))
            }
            Rfc2544Test::FrameLoss => {
                Some(SizeTestProgress::FrameLoss(frame_loss::FrameLossTrials::new(options, row)))
            }
            Rfc2544Test::Latency => {
                let trials =
                    row.throughput_basis().map(|basis| latency::LatencyTrials::new(options, row, basis));
                store_skip_reason(trials, &mut row.latency).map(SizeTestProgress::Latency)
            }
            Rfc2544Test::BackToBack => {
                let searches = back_to_back::BurstSearches::start_searches(options, row);
                store_skip_reason(searches, &mut row.back_to_back).map(SizeTestProgress::BackToBack)
            }
            Rfc2544Test::Recovery => {
                let trials = recovery::RecoveryTrials::start_trials(options, row);
                store_skip_reason(trials, &mut row.recovery).map(SizeTestProgress::Recovery)
            }
            Rfc2544Test::Reset => {
                let trial = row.throughput_basis().map(|basis| reset::ResetTrial::new(options, row, basis));
                store_skip_reason(trial, &mut self.result.reset).map(SizeTestProgress::Reset)
            }
        }
    }
}

/// Reason why a part has no trials.
#[derive(Clone, Debug)]
enum SkippedSizeReason {
    NotApplicable(String),
    NotMeasured(String),
}

fn store_skip_reason<P, T>(
    part: Result<P, SkippedSizeReason>,
    outcome: &mut Option<PartOutcome<T>>,
) -> Option<P> {
    match part {
        Ok(part) => return Some(part),
        Err(SkippedSizeReason::NotApplicable(reason)) => {
            *outcome = Some(PartOutcome::NotApplicable { reason });
        }
        Err(SkippedSizeReason::NotMeasured(reason)) => *outcome = Some(PartOutcome::NotMeasured { reason }),
    }
    None
}

fn plan_test_parts(options: &Rfc2544Options) -> VecDeque<PlannedPart> {
    let sizes = options.frame_sizes_bytes.iter();
    let smallest = sizes.enumerate().min_by_key(|(_, size)| **size).map(|(index, _)| index);
    let mut parts = VecDeque::new();
    for test in Rfc2544Test::ALL {
        if options.includes_test(test) {
            let sizes = 0..options.frame_sizes_bytes.len();
            // RFC 2544, 26.6: the reset is measured with the smallest size only.
            let with_sizes = sizes.filter(|size| test != Rfc2544Test::Reset || Some(*size) == smallest);
            parts.extend(with_sizes.map(|size| PlannedPart { test, size }));
        }
    }
    parts
}

impl TestMethod for Rfc2544Method {
    fn next_trial_request(&self) -> Option<TrialRequest> {
        self.part.as_ref()?.work.next_trial_request()
    }

    fn on_result(&mut self, result: &TrialResult) {
        let Some(part) = &mut self.part else { return };
        part.work.on_result(result);
        // The result is stored after every trial, so that an interrupted benchmark still has the result so far.
        part.work.store_outcome(&mut self.result, part.size);
        if part.work.next_trial_request().is_none() {
            self.start_next_part();
        }
    }

    fn describe_progress(&self) -> String {
        match &self.part {
            None => "RFC 2544: all tests are made".to_owned(),
            Some(part) => {
                let size = self.result.sizes[part.size].frame_size_bytes;
                let all = plan_test_parts(&self.options).len();
                // The present part is no longer in the queue, so it counts.
                let done = all - self.queue.len();
                format!("{size} {} (part {done} of {all})", part.work.describe_progress())
            }
        }
    }
}

impl SizeTestProgress {
    fn next_trial_request(&self) -> Option<TrialRequest> {
        match self {
            Self::Throughput(work) => work.next_trial_request(),
            Self::Latency(work) => work.next_trial_request(),
            Self::FrameLoss(work) => work.next_trial_request(),
            Self::BackToBack(work) => work.next_trial_request(),
            Self::Recovery(work) => work.next_trial_request(),
            Self::Reset(work) => work.next_trial_request(),
        }
    }

    fn on_result(&mut self, result: &TrialResult) {
        match self {
            Self::Throughput(work) => work.on_result(result),
            Self::Latency(work) => work.on_result(result),
            Self::FrameLoss(work) => work.on_result(result),
            Self::BackToBack(work) => work.on_result(result),
            Self::Recovery(work) => work.on_result(result),
            Self::Reset(work) => work.on_result(result),
        }
    }

    /// Stores the result so far of this part.
    fn store_outcome(&self, result: &mut Rfc2544Result, size: usize) {
        let row = &mut result.sizes[size];
        match self {
            Self::Throughput(work) => row.throughput = Some(work.to_bounds()),
            Self::Latency(work) => row.latency = Some(PartOutcome::Measured(work.to_benchmark())),
            Self::FrameLoss(work) => row.frame_loss = Some(work.to_curve()),
            Self::BackToBack(work) => row.back_to_back = Some(PartOutcome::Measured(work.to_benchmark())),
            Self::Recovery(work) => row.recovery = Some(PartOutcome::Measured(work.to_benchmark())),
            Self::Reset(work) => result.reset = Some(work.current_outcome()),
        }
    }

    fn describe_progress(&self) -> String {
        match self {
            Self::Throughput(work) => work.describe_progress(),
            Self::Latency(work) => work.describe_progress(),
            Self::FrameLoss(work) => work.describe_progress(),
            Self::BackToBack(work) => work.describe_progress(),
            Self::Recovery(work) => work.describe_progress(),
            Self::Reset(_) => "reset: the trial is in progress".to_owned(),
        }
    }
}

impl SizeBenchmark {
    fn new(options: &Rfc2544Options, size: FrameSize) -> Self {
        Self {
            frame_size_bytes: size,
            theoretical_frames_per_second: options.theoretical_load(size),
            maximum_frames_per_second: options.maximum_load(size),
            throughput: None,
            latency: None,
            frame_loss: None,
            back_to_back: None,
            recovery: None,
        }
    }

    /// Returns the load for tests at the throughput. Fails if no load was carried without loss.
    fn throughput_basis(&self) -> Result<ThroughputBasis, SkippedSizeReason> {
        let throughput = self.throughput.as_ref();
        // A bound that the rig set is a load that can be sent, but it is not the throughput. Results at
        // this load are marked.
        match throughput.and_then(|bounds| Some((bounds.frames_per_second?, bounds.is_known()))) {
            Some((load, is_throughput)) => Ok(ThroughputBasis { frames_per_second: load, is_throughput }),
            None => Err(SkippedSizeReason::NotMeasured(
                "no load was carried without loss, so there is no throughput".to_owned(),
            )),
        }
    }
}

fn build_timed_order(purpose: TrialPurpose, size: FrameSize, load: Load, time: Nanos) -> TrialRequest {
    TrialRequest::with_constant_load(purpose, Some(size), load, TrialLength::Time(time))
}

/// Returns why the trial proves nothing about the device; `None` if it is valid.
fn find_invalidity_reason(result: &TrialResult) -> Option<String> {
    // A trial without loss is valid, even if the rig reports a fault.
    result.rig_fault.clone().filter(|_| !result.is_without_loss())
}

#[cfg(test)]
mod tests;
