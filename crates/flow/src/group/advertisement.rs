//! What members tell each other.

use super::{ElectionOptions, GroupTerm};
use packetrig_units::Nanos;

/// What a member says about its role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdvertisedRole {
    Standby,
    Active,
    /// The last advertisement of a standby that stops.
    LeavingStandby,
    /// The last advertisement of an active member that stops: its watermark is final, and a standby may succeed it at once.
    LeavingActive,
}

impl AdvertisedRole {
    pub const fn is_active(self) -> bool {
        matches!(self, Self::Active)
    }

    pub const fn is_leaving(self) -> bool {
        matches!(self, Self::LeavingStandby | Self::LeavingActive)
    }
}

/// The state of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advertisement {
    pub meter: u32,
    /// A random number of this start of the meter. Without it, a restarted meter would be taken for a repetition.
    pub boot: u64,
    /// Grows with every advertisement of this boot.
    pub sequence: u64,
    pub role: AdvertisedRole,
    /// The sender's term if it is active, else the latest that it has heard of.
    pub term: GroupTerm,
    pub priority: u8,
    /// Whether it takes over from members of lower priority.
    pub preempts: bool,
    /// Whether it has seen all running flows from their beginning.
    pub is_ready: bool,
    /// Time until its next advertisement.
    pub interval: Nanos,
    /// All records that left the table of the active member before this time (since 1970) have been exported. A standby repeats
    /// the watermark that it would replay from.
    pub watermark_ns: u64,
}

impl Advertisement {
    /// Whether a member can have sent this.
    pub fn is_valid(&self) -> bool {
        let is_own_term = self.role == AdvertisedRole::Standby
            || self.role == AdvertisedRole::LeavingStandby
            || self.term.meter == self.meter;
        is_own_term
            && self.term.count <= GroupTerm::LAST_COUNT
            && ElectionOptions::is_valid_interval(self.interval)
    }

    /// Whether its watermark says what has been exported. That of a member that is not ready says it only about the part of each
    /// flow that the member has seen.
    pub(super) const fn claims_watermark(&self) -> bool {
        self.is_ready && matches!(self.role, AdvertisedRole::Active | AdvertisedRole::LeavingActive)
    }
}
