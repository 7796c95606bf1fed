//! The benchmarks of RFC 2544, with back-to-back frames by RFC 9004.

mod criteria;
mod options;
mod result;

pub use criteria::{MinimumThroughput, Rfc2544Criteria, ThroughputFloor};
pub use options::{LatencyDefinition, Rfc2544Durations, Rfc2544Options, Rfc2544Repetitions, Rfc2544Test};
pub use result::{
    BackToBackBenchmark, BurstSearch, FrameLossCurve, FrameLossPoint, LatencyBenchmark, LatencySample,
    PartOutcome, RecoveryBenchmark, RecoveryTrial, ResetTime, Rfc2544Result, SizeBenchmark, ThroughputBasis,
    ThroughputBounds,
};
