//! The release service, pure half: what packets of other programs may be sent, and which goes when.
//!
//! ```text
//!  packet of a client -> check (may it be sent at all?) -> ReleaseQueue (quotas) -> TargetShares (limits) -> ReleaseCalendar (clashes) -> outlet
//! ```
//! Clients are other programs of the machine and not trusted: no client can send what the permit forbids, use up more than its share
//! of a target's limits while others need theirs, or keep packets of others from leaving.
//!
//! Invariant: a packet that was queued comes out exactly once: released, refused or cancelled.

mod calendar;
mod check;
mod queue;
mod shares;

pub use calendar::{ReleaseCalendar, TrainRank};
pub use check::{FrameMacs, PacketEnds, PacketFlow, check_frame, check_packet};
pub use queue::{ClientId, ClientQuota, DueTrain, QueuedPacket, QueuedTrain, ReleaseQueue};
pub use shares::TargetShares;

use serde::Serialize;

/// Why a packet of a client is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PacketRefusal {
    /// It would leave later than its client allows.
    Late,
    /// The client's quota in the queue is used up.
    QueueFull,
    /// The target may not be probed.
    NotPermitted,
    /// A limit of the target is used up.
    OverLimit,
    /// Not an IPv4 or IPv6 packet of the kind that may be sent.
    Malformed,
    /// Source or next hop are not those of the interface.
    WrongSource,
    TooLong,
    /// Another packet had the outlet, and moving this one would make it later than its client allows.
    Clash,
    Cancelled,
    /// No route through this interface, or the next hop does not answer.
    NoRoute,
    /// Its release time is beyond the horizon.
    TooFarAhead,
    /// The kernel dropped it.
    Dropped,
    /// The service ended before it was due.
    Ended,
    /// The release mechanism failed.
    Failed,
    /// Another packet of its train was refused.
    TrainRefused,
}
