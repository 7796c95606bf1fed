//! The user's criteria for the results of RFC 2544.

use crate::Load;
use packetrig_units::{FrameSize, Nanos};
use serde::{Deserialize, Serialize};

/// Criteria of the user; all are optional.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rfc2544Criteria {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub minimum_throughput: Vec<MinimumThroughput>,
    /// Limit for the mean over the repetitions, for every size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maximum_latency_ns: Option<Nanos>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maximum_recovery_ns: Option<Nanos>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maximum_reset_ns: Option<Nanos>,
}

/// A throughput that must be reached.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MinimumThroughput {
    /// The size that the criterion is about; every size if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frame_size_bytes: Option<FrameSize>,
    #[serde(flatten)]
    pub floor: ThroughputFloor,
}

/// A throughput in frames per second or as a share of the line.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThroughputFloor {
    FramesPerSecond(Load),
    PercentOfLine(f64),
}

impl MinimumThroughput {
    /// Returns the load that must be carried with this size; `None` if the criterion is not about this size.
    pub fn required_load(&self, size: FrameSize, theoretical: Load) -> Option<Load> {
        let is_meant = self.frame_size_bytes.is_none_or(|meant| meant == size);
        is_meant.then_some(match self.floor {
            ThroughputFloor::FramesPerSecond(load) => load,
            ThroughputFloor::PercentOfLine(percent) => theoretical.scale_by(percent / 100.0),
        })
    }
}
