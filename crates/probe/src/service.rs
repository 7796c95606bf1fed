//! The part of the release service that does no input or output: it decides which packets of other programs
//! may be sent, and when each is sent.
//!
//! ```text
//!  packet of a client -> check (may it be sent at all?) -> ReleaseQueue (quotas) -> TargetShares (limits) -> ReleaseCalendar (clashes) -> release mechanism
//! ```
//! Clients are other programs of the machine and are not trusted. No client can send what the permit forbids,
//! use more than its share of a target's limits while other clients need theirs, block packets of other
//! clients, or make the service do unlimited work without sending ([`ClientAllowance`]).
//!
//! Invariant: a queued packet leaves the queue exactly once: released, refused or cancelled.

mod allowance;
mod calendar;
mod check;
mod queue;
mod shares;

pub use allowance::{ClientAllowance, WorkAllowance, work};
pub use calendar::{FreeDepartureTime, ReleaseCalendar, TrainPriority};
pub use check::{
    FrameMacs, MalformedPacket, PacketEndpoints, PacketFlow, RequestMark, check_frame, check_packet,
};
pub use queue::{ClientId, ClientQuota, DueTrain, QueuedPacket, QueuedTrain, ReleaseQueue};
pub use shares::{MAX_TARGETS_OF_CLIENT, ProbingClient, TargetShares};

use serde::Serialize;

/// Reason why the service does not send a packet of a client. Failures of the release mechanism, and packets that the
/// kernel drops, are reported in another way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PacketRefusal {
    /// The packet would leave later than its client allows.
    Late,
    /// The client's quota in the queue is used up.
    QueueFull,
    /// The target may not be probed.
    NotPermitted,
    /// A limit of the target does not allow the packet, or the client or its user has too many targets.
    OverLimit,
    /// The bytes are not an IPv4 or IPv6 packet, or the packet is of a kind that clients may not send.
    Malformed,
    /// Source or next hop do not belong to the interface, the source port belongs to another program, or answers could
    /// be taken for answers to another user.
    WrongSource,
    TooLong,
    /// Frames of other trains leave at that time, and waiting for them would make the packet later
    /// than its client allows.
    Clash,
    Cancelled,
    /// No route through this interface, the next hop does not answer, or no listener receives answers at the source.
    NoRoute,
    /// The release time is further ahead than the service accepts.
    TooFarAhead,
    /// The service ended before the packet was due.
    Ended,
    /// Another packet of the same train was refused.
    TrainRefused,
}
