//! Options of a member in the election.

use packetrig_units::Nanos;

/// Source of a member's role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RoleSource {
    /// The members elect the active one among themselves.
    #[default]
    Election,
    /// Another program orders the role. Terms, watermarks and advertisements work as in an election.
    Ordered,
}

/// Options of a member. All members of a group should have the same interval and multiplier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElectionOptions {
    /// Number of this meter, unique in its group.
    pub meter: u32,
    /// Members of higher priority take over sooner.
    pub priority: u8,
    /// Time between two advertisements.
    pub interval: Nanos,
    /// A member counts as failed after this many of its intervals without an advertisement.
    pub multiplier: u8,
    /// Take over from an active member of lower priority.
    pub preempt: bool,
    /// A member that is not ready takes over only if it has received nothing from a ready member for this long.
    pub unready_wait: Nanos,
    pub role_source: RoleSource,
}

/// Why a member cannot take part in the election with its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ElectionOptionsError {
    #[error(
        "the advertisement interval {0} is not valid; use {min} to {max}",
        min = ElectionOptions::SHORTEST_INTERVAL,
        max = ElectionOptions::LONGEST_INTERVAL
    )]
    Interval(Nanos),
    #[error(
        "the advertisement multiplier {0} is not valid; use 2 to 255, so that one lost advertisement does not count as a failure"
    )]
    Multiplier(u8),
}

impl ElectionOptions {
    pub const SHORTEST_INTERVAL: Nanos = Nanos::from_millis(10);
    pub const LONGEST_INTERVAL: Nanos = Nanos::from_secs(10);

    /// Returns the defaults: one advertisement every 10 ms. A member counts as failed after 30 ms without one, and a
    /// ready standby takes over at most one interval later.
    pub const fn new(meter: u32) -> Self {
        Self {
            meter,
            priority: 100,
            interval: Nanos::from_millis(10),
            multiplier: 3,
            preempt: false,
            unready_wait: Nanos::from_secs(3),
            role_source: RoleSource::Election,
        }
    }

    pub fn check_election_options(&self) -> Result<(), ElectionOptionsError> {
        if !Self::is_valid_interval(self.interval) {
            return Err(ElectionOptionsError::Interval(self.interval));
        }
        // With a multiplier of one, a single lost advertisement would look like a failed member.
        if self.multiplier < 2 {
            return Err(ElectionOptionsError::Multiplier(self.multiplier));
        }
        Ok(())
    }

    pub(super) fn is_valid_interval(interval: Nanos) -> bool {
        (Self::SHORTEST_INTERVAL..=Self::LONGEST_INTERVAL).contains(&interval)
    }

    /// Returns how long a member that advertises every `interval` counts as running without an advertisement.
    pub(super) const fn hold_time(&self, interval: Nanos) -> Nanos {
        Nanos::new(interval.as_u64().saturating_mul(self.multiplier as u64))
    }

    /// Returns the time after which the other members treat this member as failed if it is silent. The skew of a
    /// takeover comes in addition.
    pub const fn detection_time(&self) -> Nanos {
        self.hold_time(self.interval)
    }
}
