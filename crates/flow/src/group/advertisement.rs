//! Messages between the members of a group.

use super::coverage::ExportedSpan;
use super::{ElectionOptions, GroupTerm};
use packetrig_units::Nanos;

/// Role that a member advertises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdvertisedRole {
    Standby,
    Active,
    /// The last advertisement of a standby that stops.
    LeavingStandby,
    /// The last advertisement of an active member that stops: its watermark is final, and a standby may
    /// succeed it at once.
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

/// The state of one member, as it tells the other members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advertisement {
    pub meter: u32,
    /// A random number that is drawn when the meter starts. Without it, the advertisements of a restarted meter
    /// would look like repetitions.
    pub boot: u64,
    /// Grows with every advertisement of this boot.
    pub sequence: u64,
    pub role: AdvertisedRole,
    /// The sender's term if the sender is active, otherwise the latest term that it knows.
    pub term: GroupTerm,
    pub priority: u8,
    /// True if the member takes over from members of lower priority.
    pub preempts: bool,
    /// True if the member's own records are complete from the watermark on and can be exported, so that it
    /// can take over without a gap.
    pub is_ready: bool,
    /// Packets that the member has seen since it started.
    pub seen_packets: u64,
    /// Every packet that arrived at least this long before the sending is counted.
    pub seen_all_ago: Nanos,
    /// No packet that arrived less than this long before the sending is counted.
    pub seen_none_ago: Nanos,
    /// See [`MeterCoverage::seen_since_ns`](super::MeterCoverage::seen_since_ns).
    pub seen_since_ns: u64,
    /// Records exported from this time up to the watermark are complete. [`NO_WHOLE_RECORD`](super::NO_WHOLE_RECORD)
    /// means that no record is known to be complete.
    pub whole_from_ns: u64,
    /// Time until the member's next advertisement.
    pub interval: Nanos,
    /// All records that left the table of the active member before this time (since 1970) have been exported. A standby
    /// repeats the watermark that it would replay from.
    pub watermark_ns: u64,
}

impl Advertisement {
    /// Returns whether the fields are consistent, so that a member can have sent them.
    pub fn is_valid(&self) -> bool {
        let is_own_term = self.role == AdvertisedRole::Standby
            || self.role == AdvertisedRole::LeavingStandby
            || self.term.meter == self.meter;
        // Without this bound, a member could advertise the greatest number, and no
        // later term would be left for a takeover.
        is_own_term
            && self.term.count <= GroupTerm::MAX_VALID_COUNT
            && ElectionOptions::is_valid_interval(self.interval)
    }

    pub(super) const fn exported_span(&self) -> ExportedSpan {
        ExportedSpan { whole_from_ns: self.whole_from_ns, watermark_ns: self.watermark_ns }
    }

    /// Returns whether the sender exports, or has exported until this last advertisement.
    pub(super) const fn is_exporting(&self) -> bool {
        matches!(self.role, AdvertisedRole::Active | AdvertisedRole::LeavingActive)
    }
}
