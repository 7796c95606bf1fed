//! What a benchmark by RFC 2544 found out.

use crate::{BoundCause, Load, SampleStatistics, TrialLatency};
use packetrig_units::{FrameSize, Nanos};
use serde::{Deserialize, Serialize};

/// Result of the method `rfc2544`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rfc2544Result {
    /// In which points the trials are shorter or fewer than the RFCs say. If there are any, these are not results of RFC 2544.
    pub shortfalls: Vec<String>,
    pub sizes: Vec<SizeBenchmark>,
    /// With the smallest size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset: Option<PartOutcome<ResetTime>>,
}

/// Of one frame size. A test that was not asked for, or has not begun, is absent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SizeBenchmark {
    pub frame_size_bytes: FrameSize,
    /// What the line carries.
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

/// What became of a part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "kebab-case")]
pub enum PartOutcome<T> {
    Measured(T),
    /// The device has no such value.
    NotApplicable {
        reason: String,
    },
    /// The device has one, but it could not be measured.
    NotMeasured {
        reason: String,
    },
}

impl<T> PartOutcome<T> {
    pub const fn measured(&self) -> Option<&T> {
        match self {
            Self::Measured(value) => Some(value),
            Self::NotApplicable { .. } | Self::NotMeasured { .. } => None,
        }
    }
}

/// The throughput (RFC 2544, 26.1): the highest load that was carried in a trial of full length without loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThroughputBounds {
    /// `None` if no load was carried, or none yet.
    pub frames_per_second: Option<Load>,
    /// The lowest load with loss; `None` if the maximum was carried.
    pub lost_at_frames_per_second: Option<Load>,
    /// If `rig`, the throughput of the device is at least `frames_per_second`, and unknown.
    pub limited_by: BoundCause,
    pub is_complete: bool,
    pub trials: u32,
}

impl ThroughputBounds {
    /// Whether the device set the bound, or carried all that was asked for.
    pub fn is_known(&self) -> bool {
        self.is_complete && self.limited_by != BoundCause::Rig
    }
}

/// The load that a test took for the throughput.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThroughputBasis {
    pub frames_per_second: Load,
    /// If not, it is the highest load that was carried: the rig could not hold the trials above it.
    pub is_throughput: bool,
}

/// Latency at the throughput (RFC 2544, 26.2). One sample is the latency over all frames of a trial, not that of one tagged
/// frame.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencyBenchmark {
    pub basis: ThroughputBasis,
    pub definition: super::LatencyDefinition,
    /// What the definition subtracts from each measured value.
    pub subtracted_ns: Nanos,
    /// Over the means of the samples, by the definition. Samples of trials that the rig could not hold do not count.
    pub mean_latency_ns: Option<SampleStatistics>,
    /// The least and the greatest latency of a frame, by the definition.
    pub min_latency_ns: Option<Nanos>,
    pub max_latency_ns: Option<Nanos>,
    /// By how much the mean may be wrong.
    pub bound_ns: Option<Nanos>,
    /// As measured, before the definition subtracts anything.
    pub samples: Vec<LatencySample>,
    pub repetitions: u32,
}

impl LatencyBenchmark {
    /// Trials that the mean is made of.
    pub fn counted(&self) -> usize {
        self.mean_latency_ns.map_or(0, |means| means.count as usize)
    }
}

/// A trial of the latency test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencySample {
    /// `None` if the trial measured none.
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
    /// Whether it ends with two successive trials without loss. If not, it is partial.
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
    /// `(sent - received) * 100 / sent`: the truth is between the two.
    pub least_loss_percent: f64,
    pub most_loss_percent: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rig_fault: Option<String>,
}

/// Back-to-back frames (RFC 9004): the longest burst at the maximum load that is forwarded without loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BackToBackBenchmark {
    pub basis: ThroughputBasis,
    pub burst_frames_per_second: Load,
    /// How close the bounds of each search came.
    pub step_frames: u64,
    pub longest_burst_frames: u64,
    /// One independent search each.
    pub searches: Vec<BurstSearch>,
    pub repetitions: u32,
    /// The mean is the benchmark. Absent if a search ended at a bound of the rig, or at the longest burst.
    pub burst_frames: Option<SampleStatistics>,
    /// Mean burst / theoretical frame rate.
    pub implied_buffer_time_ns: Option<f64>,
    /// Implied buffer time * (1 - throughput / theoretical frame rate).
    pub corrected_buffer_time_ns: Option<f64>,
    /// Why the values are absent or not valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invalid: Option<String>,
}

/// A search for the longest burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BurstSearch {
    /// 0 if even the shortest burst lost frames.
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
    /// Over the trials in which it is known.
    pub recovery_ns: Option<SampleStatistics>,
}

/// A trial of the recovery test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecoveryTrial {
    /// `None` if it is not known.
    pub recovery_ns: Option<Nanos>,
    /// If not, the recovery takes at least as long.
    pub is_recovered: bool,
    pub overload_lost_frames: u64,
    pub after_lost_frames: u64,
    /// Why the recovery time is not known, or what it means.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Reset (RFC 2544, 26.6): the longest outage during a constant load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResetTime {
    pub frame_size_bytes: FrameSize,
    pub basis: ThroughputBasis,
    /// The outage was not shorter.
    #[serde(default)]
    pub least_outage_ns: Nanos,
    /// It was not longer, if the device is back.
    pub outage_ns: Nanos,
    /// If not, the outage is at least as long: frames were lost until the end of the trial.
    pub is_back: bool,
    pub lost_frames: u64,
    /// When the device was reset, after the first frame.
    pub event_at_ns: Nanos,
}
