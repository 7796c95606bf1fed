//! How a series of probes came about: what is written in front of its records, so that they can be judged, and sent again.

use crate::ReleaseMechanism;
use serde::{Deserialize, Serialize};

/// How far the real-time clock was ahead of the monotonic one, and how well that is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockOffset {
    pub offset_ns: i64,
    pub bound_ns: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeHeader {
    /// The form of this file.
    pub format: String,
    pub argv: Vec<String>,
    /// What chance was drawn from.
    pub seed: u64,
    /// Names the schedule: the same for the same instants, lengths and trains. Empty where trains were asked for one by one.
    pub schedule: String,
    /// Probes planned, or sent where nothing was planned.
    pub probes: u64,
    /// Where they were sent to.
    pub targets: Vec<String>,
    /// Who answers for them.
    pub about: Option<String>,
    pub interface: String,
    /// What let them go.
    pub mechanism: ReleaseMechanism,
    /// Why it and no other.
    pub why: String,
    /// What it could not do as it was asked to.
    pub remarks: Vec<String>,
    /// How long before its instant a probe was handed over, in nanoseconds.
    pub ahead_ns: u64,
    /// How much later than asked the kernel may wake a sender.
    pub slack_ns: u64,
    /// Real-time priority that was asked for.
    pub priority: Option<i32>,
    /// Processor the sender was kept on.
    pub cpu: Option<usize>,
    /// What counts as late or early.
    pub tolerance_ns: u64,
    /// Release of the kernel.
    pub kernel: String,
    /// Driver of the interface.
    pub driver: String,
    /// Its queueing disciplines, the root first.
    pub qdiscs: Vec<String>,
    /// Its offloads that are on.
    pub offloads: Vec<String>,
    /// The share of a second that real-time threads may have: microseconds out of a period.
    pub real_time_share_us: Option<(u64, u64)>,
    /// The clocks before the first probe.
    pub clock_before: ClockOffset,
    /// The clocks after the last.
    pub clock_after: ClockOffset,
}

/// [`ProbeHeader::format`] of files that are written now.
pub const FORMAT: &str = "packetrig probe records 1";
