//! A meter as a member of a group: the thread that exchanges advertisements with the other meters, and the handle
//! through which the export threads read the meter's role.
//!
//! ```text
//!  other meters <~~ UDP, authenticated ~~> member thread <- keepalived's pipe, or a state file
//!                                             |   ^
//!                         role, replay mark,  v   |  watermark, coverage
//!                                       GroupRoleHandle  <-> export threads, display
//! ```
//! [`packetrig_flow::group`] decides on the role; this module has the clock, the socket and the files. Times are those
//! of `CLOCK_BOOTTIME`, which continues while a machine is suspended.
//!
//! Invariant: [`GroupRoleHandle::may_export`] is false as soon as the member thread has not advertised for the
//! detection time, whether that thread runs or not.

mod error;
mod key;
mod member;
mod options;
mod orders;
mod report;
mod role_handle;
mod status;
mod steady;
mod transit;
mod wire;

pub use error::GroupError;
pub use key::GroupKey;
pub use member::GroupMember;
pub use options::{GroupOptions, RoleDecisionSource};
pub use orders::{KeepalivedNotice, KeepalivedState};
pub use report::{AdvertisementReport, GroupReport, PeerReport, SwitchReport};
pub use role_handle::{GroupRoleHandle, RoleView};
pub use status::{DroppedAdvertisements, GroupStatus, PeerStatus, RoleSwitch};
pub(crate) use steady::boottime_now;
pub use steady::{boottime_of_group_time, group_time_ns};
pub use wire::{ADVERTISEMENT_BYTES, AdvertisementCodec, DropReason};

#[cfg(test)]
mod tests;
