//! Groups of meters that see copies of the same traffic: the election of the member that exports, and the
//! takeover after a failure.
//!
//! ```text
//!  Advertisement of a peer -> on_advertisement --.
//!  order of another program -> set_ordered_role -+-> GroupElection -> tick -> Advertisement to send
//!  export: set_watermark, set_coverage ----------'                         -> RoleChange: replay from here
//! ```
//! Every member meters all the time. One is active and exports; the others are standbys and keep the records
//! that they would have exported. The active member advertises its watermark: all records that left its table
//! before that time have been exported. A standby that receives no advertisement of an active member takes
//! over in a new term and exports its own records from the last watermark on.
//!
//! Two members may be active at once when they cannot reach each other. That is harmless, because the collector counts
//! a record only once if it comes twice. So every rule here prefers two active members to none, and an early watermark
//! to a late one.
//!
//! Two members see a flow end at slightly different times, so each watermark needs a margin. The caller, which keeps
//! the records, subtracts the margin; in this module, watermarks are as they were advertised.
//!
//! A watermark covers only the traffic that its member has seen. A meter that was started later than another one has
//! shortened records of the flows that ran then. So a standby forgets kept records only if those of the active member
//! are as complete, and otherwise takes over.
//!
//! A member is not fit to export if its export is stuck, or if its copy of the link is cut while another member's copy
//! is not. Such a member gives the role to a ready member, and does not take the role while there is one.
//!
//! The module opens no socket and reads no clock. Times are of one clock of this machine that does not stop while the
//! machine sleeps; watermarks are nanoseconds since 1970.
//!
//! Invariants: a term has one active member at most, since it contains the member's number. A member never advertises a
//! watermark beyond its own exports or its predecessor's watermark.

mod advertisement;
mod copies;
mod coverage;
mod election;
mod options;
mod peers;
mod rank;

pub use advertisement::{AdvertisedRole, Advertisement};
pub use copies::{CopyComparison, PacketCount};
pub use coverage::{MeterCoverage, NO_WHOLE_RECORD};
pub use election::{ElectionActions, GroupElection};
pub use options::{ElectionOptions, ElectionOptionsError, RoleSource};
pub use peers::{AdvertisementOutcome, GroupPeer, MAX_PEERS};

use std::fmt;

/// A period of leadership: it begins when a member takes over and ends when it becomes a standby.
/// Later terms are greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupTerm {
    /// Greater by at least one than every term that the member knew of.
    pub count: u64,
    /// The member that is active in this term.
    pub meter: u32,
}

impl GroupTerm {
    /// Highest valid count. A takeover each millisecond would need 285 000 years to reach it.
    pub const MAX_VALID_COUNT: u64 = 1 << 53;
}

impl fmt::Display for GroupTerm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.count, self.meter)
    }
}

/// Role of a member: whether it exports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupRole {
    Active { term: GroupTerm },
    Standby,
}

impl GroupRole {
    /// Returns the term in which the member is active; `None` for a standby.
    pub const fn term(self) -> Option<GroupTerm> {
        match self {
            Self::Active { term } => Some(term),
            Self::Standby => None,
        }
    }

    pub const fn is_active(self) -> bool {
        matches!(self, Self::Active { .. })
    }
}

/// Role that another program orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderedRole {
    Active,
    Standby,
}

/// A change of this member's role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleChange {
    /// Export the kept records from `replay_from_ns` minus the margin on, and then the new ones.
    BecameActive {
        term: GroupTerm,
        /// The last watermark of the former active member; zero if none was ever received.
        replay_from_ns: u64,
    },
    /// Export nothing more; keep records.
    BecameStandby {
        /// The member that is active now, if it is known.
        active: Option<u32>,
    },
}

#[cfg(test)]
mod tests;
