//! The pure half of probing: when probes are to leave, what is known of each one, what their sender may not exceed, and what
//! series of them say about a path.
//!
//! ```text
//!  Schedule --(prober: released, stamped, answered)--> Record --> estimates, summaries
//!     ^                     ^
//!   Limits of a Permit      Budget, kept frame by frame where frames are released
//! ```
//! It opens no socket and reads no clock: times are given to it.
//!
//! Invariant: a time that is not known is absent, and one that is known has a clock and two ends.
#![forbid(unsafe_code)]

pub mod answer;
pub mod budget;
pub mod choice;
pub mod estimate;
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
pub mod session;
mod summary;

pub use budget::{BudgetExceeded, ProbeBudget};
pub use mechanism::ReleaseMechanism;
pub use permit::{PermitRefusal, PermittedTarget, ProbePermit, TargetLimits};
pub use record::{
    DepartureStage, DepartureStamp, ProbeFlag, ProbeRecord, ProbeStamp, StampClock, StampSource,
};
pub use schedule::{PlannedProbe, ProbeKind, ProbeSchedule};
pub use summary::{ErrorSpread, ReleaseSummary};
