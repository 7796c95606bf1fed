//! Results of a benchmark according to RFC 2544.

use crate::{BoundCause, Load, SampleStatistics, TrialLatency};
use packetrig_units::{FrameSize, Nanos};
use serde::{Deserialize, Serialize};

/// Result of the method `rfc2544`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rfc2544Result {
    /// Points in which the options ask for less than the RFCs require. If there are any, the results do not conform to
    /// RFC 2544.
    pub shortfalls: Vec<String>,
    pub sizes: Vec<SizeBenchmark>,
    /// Result of the reset, with the smallest size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset: Option<PartOutcome<ResetTime>>,
}

/// Results of one frame size. A test that was not requested, or has not begun, is absent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SizeBenchmark {
    pub frame_size_bytes: FrameSize,
    /// Load that fills the line.
    pub theoretical_frames_per_second: Load,
    /// The highest load that is tried.
    pub maximum_frames_per_second: Load,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throughput: Option<ThroughputBounds>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<PartOutcome<LatencyBenchmark>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frame_loss: Option<FrameLossCurve>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub back_to_back: Option<PartOutcome<BackToBackBenchmark>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<PartOutcome<RecoveryBenchmark>>,
}

/// Outcome of a test with one frame size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "kebab-case")]
pub enum PartOutcome<T> {
    Measured(T),
    /// The test does not apply to this device.
    NotApplicable {
        reason: String,
    },
    /// The test applies, but its value could not be measured.
    NotMeasured {
        reason: String,
    },
}

impl<T> PartOutcome<T> {
    pub const fn measured_value(&self) -> Option<&T> {
        match self {
            Self::Measured(value) => Some(value),
            Self::NotApplicable { .. } | Self::NotMeasured { .. } => None,
        }
    }
}

/// The throughput (RFC 2544, 26.1): the highest load that was carried in a trial of full length without loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThroughputBounds {
    /// The highest load that was carried; `None` if no load was carried so far.
    pub frames_per_second: Option<Load>,
    /// The lowest load that failed, because of the device or the rig; `None` if no load failed.
    pub lost_at_frames_per_second: Option<Load>,
    /// Cause of the bound. With `rig`, the throughput of the device is unknown; it is at least `frames_per_second`.
    pub limited_by: BoundCause,
    pub is_complete: bool,
    pub trials: u32,
}

impl ThroughputBounds {
    /// True if the search is over, and the device set the bound or carried the highest requested load.
    pub fn is_known(&self) -> bool {
        self.is_complete && self.limited_by != BoundCause::Rig
    }
}

/// The load that a test used as the throughput.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThroughputBasis {
    pub frames_per_second: Load,
    /// True if the load is the throughput. Else it is the highest load that was carried: the rig could not
    /// sustain the trials above it.
    pub is_throughput: bool,
}

/// Latency at the throughput (RFC 2544, 26.2). One sample is the latency over all frames of a trial, not that
/// of one tagged frame.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencyBenchmark {
    pub basis: ThroughputBasis,
    pub definition: super::LatencyDefinition,
    /// Time that the definition subtracts from each measured value.
    pub subtracted_ns: Nanos,
    /// Statistics over the means of the samples, as `definition` defines the latency. Samples of trials that the rig
    /// could not sustain do not count.
    pub mean_latency_ns: Option<SampleStatistics>,
    /// The least and the greatest latency of a frame, as `definition` defines the latency.
    pub min_latency_ns: Option<Nanos>,
    pub max_latency_ns: Option<Nanos>,
    /// Greatest possible error of the mean.
    pub bound_ns: Option<Nanos>,
    /// Samples as measured, before the definition subtracts anything.
    pub samples: Vec<LatencySample>,
    pub repetitions: u32,
}

impl LatencyBenchmark {
    /// Number of trials that the mean includes.
    pub fn counted_trials(&self) -> usize {
        self.mean_latency_ns.map_or(0, |means| means.count as usize)
    }
}

/// A trial of the latency test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencySample {
    /// `None` if the trial measured no latency.
    pub latency: Option<TrialLatency>,
    pub sent_frames: u64,
    pub lost_frames: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rig_fault: Option<String>,
}

/// The frame-loss curve (RFC 2544, 26.3), from the highest load down.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FrameLossCurve {
    pub points: Vec<FrameLossPoint>,
    /// True if it ends with two successive trials without loss. If not, it is partial.
    pub is_complete: bool,
}

/// A trial of the frame-loss curve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FrameLossPoint {
    pub percent_of_maximum: f64,
    pub frames_per_second: Load,
    pub sent_frames: u64,
    pub received_frames: u64,
    pub unsent_frames: u64,
    /// Lower bound of the loss, `(sent - received) * 100 / sent`.
    pub least_loss_percent: f64,
    /// Upper bound of the loss.
    pub most_loss_percent: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rig_fault: Option<String>,
}

/// Back-to-back frames (RFC 9004): the longest burst at the maximum load that is forwarded without loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BackToBackBenchmark {
    pub basis: ThroughputBasis,
    pub burst_frames_per_second: Load,
    /// Distance of the bounds at the end of each search.
    pub step_frames: u64,
    pub longest_burst_frames: u64,
    /// Results of independent searches.
    pub searches: Vec<BurstSearch>,
    pub repetitions: u32,
    /// Statistics of the bursts; the mean is the benchmark. Absent if a search ended at a bound of the rig, or if the
    /// result is at or near the longest burst.
    pub burst_frames: Option<SampleStatistics>,
    /// Mean burst / theoretical frame rate.
    pub implied_buffer_time_ns: Option<f64>,
    /// Implied buffer time * (1 - throughput / theoretical frame rate).
    pub corrected_buffer_time_ns: Option<f64>,
    /// Reason why the statistics and the buffer times are absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invalid: Option<String>,
}

/// A search for the longest burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BurstSearch {
    /// The longest burst that passed; 0 if even the shortest burst lost frames.
    pub burst_frames: u64,
    pub lost_at_frames: Option<u64>,
    pub limited_by: BoundCause,
}

/// System recovery (RFC 2544, 26.5): from the end of an overload to the last lost frame.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecoveryBenchmark {
    pub basis: ThroughputBasis,
    pub overload_frames_per_second: Load,
    pub after_frames_per_second: Load,
    pub trials: Vec<RecoveryTrial>,
    pub repetitions: u32,
    /// Statistics over the trials in which the recovery is known.
    pub recovery_ns: Option<SampleStatistics>,
}

impl RecoveryBenchmark {
    /// True if the loss ended in every trial with a known time. Else the mean is only a lower bound.
    pub fn has_recovered_in_all_trials(&self) -> bool {
        let mut known = self.trials.iter().filter(|trial| trial.recovery_ns.is_some());
        known.all(|trial| trial.is_recovered)
    }
}

/// A trial of the recovery test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecoveryTrial {
    /// `None` if the recovery time is not known.
    pub recovery_ns: Option<Nanos>,
    /// True if the loss ended. Otherwise the recovery takes at least `recovery_ns`.
    pub is_recovered: bool,
    pub overload_lost_frames: u64,
    pub after_lost_frames: u64,
    /// Reason why the recovery time is not known, or a remark about its meaning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Reset (RFC 2544, 26.6): the longest outage during a constant load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResetTime {
    pub frame_size_bytes: FrameSize,
    pub basis: ThroughputBasis,
    /// Lower bound of the outage.
    #[serde(default)]
    pub least_outage_ns: Nanos,
    /// Upper bound of the outage, if the device is back.
    pub outage_ns: Nanos,
    /// True if the device forwarded again. Otherwise the outage takes at least `outage_ns`: frames were lost until the
    /// end of the trial.
    pub is_back: bool,
    pub lost_frames: u64,
    /// Time of the reset, after the first frame.
    pub event_at_ns: Nanos,
}
