//! The part of probing without input and output: schedules, records, limits, and the evaluation of a series of probes.
//!
//! ```text
//!  ProbeSchedule --(prober: released, stamped, answered)--> ProbeRecord --> estimates, summaries
//!     ^                             ^
//!   limits of a ProbePermit         ProbeBudget, checked for each frame that is released
//! ```
//! The crate opens no socket and reads no clock: callers pass the time.
//!
//! Invariant: an unknown time is absent, and a known one names its clock and has a lower and an upper bound.
#![forbid(unsafe_code)]

pub mod answer;
pub mod budget;
pub mod choice;
pub mod estimate;
pub mod files;
#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
pub mod frame;
pub mod header;
mod mechanism;
pub mod method;
pub mod oneprobe;
pub mod permit;
pub mod record;
pub mod schedule;
pub mod script;
pub mod series;
pub mod service;
pub mod session;
mod summary;

pub use budget::{BudgetExceeded, ProbeBudget};
pub use mechanism::ReleaseMechanism;
pub use permit::{PermitRefusal, PermittedTarget, ProbePermit, TargetLimits};
pub use record::{
    DepartureStage, DepartureStamp, ProbeFlag, ProbeRecord, ProbeStamp, StampClock, StampSource,
};
pub use schedule::{PlannedProbe, ProbeKind, ProbeSchedule};
pub use service::PacketRefusal;
pub use summary::{ErrorSpread, ReleaseSummary};

/// Converts a count of probes or bytes that are in memory: such a count is far below `u32::MAX`, so nothing is clamped.
fn small_count(count: usize) -> u32 {
    packetrig_units::clamp_to_u32(count)
}
