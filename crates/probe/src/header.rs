//! The header of a probe file: the conditions under which its records were made, so that they can
//! be judged and repeated.

use crate::ReleaseMechanism;
use serde::{Deserialize, Serialize};

/// Offset of the real-time clock against the monotonic one, with its error bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockOffset {
    pub offset_ns: i64,
    pub bound_ns: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeHeader {
    pub format: String,
    pub argv: Vec<String>,
    /// Seed of all random values.
    pub seed: u64,
    /// Fingerprint of the schedule: the same for the same times, lengths and trains. Empty if an estimator requested
    /// the trains one by one.
    pub schedule: String,
    /// Number of planned probes; without a schedule, the number of sent probes.
    pub probes: u64,
    pub targets: Vec<String>,
    /// URI of the contact for the probes (RFC 9511).
    pub about: Option<String>,
    pub interface: String,
    pub mechanism: ReleaseMechanism,
    /// Reason for the choice of this mechanism.
    pub why: String,
    /// Requests that the mechanism could not fulfil.
    pub remarks: Vec<String>,
    /// How long before its departure time a probe is handed to the kernel, in nanoseconds.
    pub ahead_ns: u64,
    /// Timer slack of the sender, in nanoseconds: the kernel may wake it this much late.
    pub slack_ns: u64,
    /// Requested real-time priority of the sending thread.
    pub priority: Option<i32>,
    /// Processor that the sender was pinned to.
    pub cpu: Option<usize>,
    /// A probe is flagged if it leaves more than this before or after its departure time.
    pub tolerance_ns: u64,
    /// The kernel's release number.
    pub kernel: String,
    /// Driver of the interface.
    pub driver: String,
    /// Queueing disciplines of the interface, the root first.
    pub qdiscs: Vec<String>,
    /// Offloads of the interface that are on.
    pub offloads: Vec<String>,
    /// Time that real-time threads may run in each period, and the period, in microseconds; `None` if there is no
    /// limit or the kernel does not say.
    pub real_time_share_us: Option<(u64, u64)>,
    /// Offset of the clocks before the first probe.
    pub clock_before: ClockOffset,
    /// Offset of the clocks after the last probe.
    pub clock_after: ClockOffset,
}

/// [`ProbeHeader::format`] of files that are written now.
pub const PROBE_RECORD_FORMAT: &str = "packetrig probe records 1";
