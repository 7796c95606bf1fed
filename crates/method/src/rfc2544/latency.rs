//! Latency at the throughput (RFC 2544, 26.2).

use super::{
    LatencyBenchmark, LatencyDefinition, LatencySample, Rfc2544Options, SizeBenchmark, ThroughputBasis,
};
use super::{build_timed_order, find_invalidity_reason};
use crate::line_rate::transmission_time;
use crate::{SampleStatistics, TrialLatency, TrialPurpose, TrialRequest, TrialResult};
use packetrig_units::{FrameSize, Nanos};

#[derive(Clone, Debug)]
pub(super) struct LatencyTrials {
    size: FrameSize,
    basis: ThroughputBasis,
    time: Nanos,
    repetitions: u32,
    definition: LatencyDefinition,
    /// Time that the definition subtracts.
    subtracted: Nanos,
    samples: Vec<LatencySample>,
}

impl LatencyTrials {
    pub(super) fn new(options: &Rfc2544Options, row: &SizeBenchmark, basis: ThroughputBasis) -> Self {
        let size = row.frame_size_bytes;
        let subtracted = match options.latency_definition {
            LatencyDefinition::BitForwarding => Nanos::ZERO,
            LatencyDefinition::StoreAndForward => transmission_time(options.line_bits_per_second, size),
        };
        Self {
            size,
            basis,
            time: options.durations.latency_trial_ns,
            repetitions: options.repetitions.latency,
            definition: options.latency_definition,
            subtracted,
            samples: Vec::new(),
        }
    }

    pub(super) fn next_trial_request(&self) -> Option<TrialRequest> {
        let order =
            build_timed_order(TrialPurpose::Latency, self.size, self.basis.frames_per_second, self.time);
        (self.samples.len() < self.repetitions as usize).then_some(order)
    }

    pub(super) fn on_result(&mut self, result: &TrialResult) {
        self.samples.push(LatencySample {
            latency: result.latency,
            sent_frames: result.sent,
            lost_frames: result.lost.most,
            rig_fault: find_invalidity_reason(result),
        });
    }

    /// Returns the latencies of the valid trials.
    fn usable_latencies(&self) -> impl Iterator<Item = TrialLatency> {
        self.samples.iter().filter(|sample| sample.rig_fault.is_none()).filter_map(|sample| sample.latency)
    }

    fn subtract_definition_time(&self, measured: Nanos) -> Nanos {
        // A device that forwards a frame before it has all of it may have a latency below the frame's transmission
        // time. By the definition, its latency is then 0.
        measured.saturating_sub(self.subtracted)
    }

    pub(super) fn to_benchmark(&self) -> LatencyBenchmark {
        let means: Vec<f64> = self
            .usable_latencies()
            .map(|latency| self.subtract_definition_time(latency.mean).as_u64() as f64)
            .collect();
        LatencyBenchmark {
            basis: self.basis,
            definition: self.definition,
            subtracted_ns: self.subtracted,
            mean_latency_ns: SampleStatistics::from_values(&means),
            min_latency_ns: self
                .usable_latencies()
                .map(|latency| self.subtract_definition_time(latency.min))
                .min(),
            // Extremes are over all frames of all trials. The mean is over the means, as RFC 2544, 26.2 requires.
            max_latency_ns: self
                .usable_latencies()
                .map(|latency| self.subtract_definition_time(latency.max))
                .max(),
            // The largest error bound is valid for every trial, so it is also valid for the mean of all trials.
            bound_ns: self.usable_latencies().map(|latency| latency.bound).max(),
            samples: self.samples.clone(),
            repetitions: self.repetitions,
        }
    }

    pub(super) fn describe_progress(&self) -> String {
        format!("latency: {} of {} trials", self.samples.len(), self.repetitions)
    }
}
