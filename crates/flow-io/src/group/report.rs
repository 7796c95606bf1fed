//! The state of a meter in its group, as reports show it.

use super::{GroupStatus, PeerStatus, RoleSwitch};
use packetrig_flow::group::RoleChange;
use packetrig_units::Nanos;
use serde::Serialize;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "states that do not depend on each other")]
pub struct GroupReport {
    pub name: String,
    pub meter: u32,
    pub is_active: bool,
    /// Term of this meter if it is active.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub term: Option<String>,
    pub is_ready: bool,
    pub is_blind: bool,
    pub can_export: bool,
    /// Packets of this meter's copy of the link.
    pub packets: u64,
    /// Everything that left the table before this time is exported; in nanoseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watermark_ns: Option<u64>,
    pub peers: Vec<PeerReport>,
    /// Number of changes of this meter's role since its start; `switches` contains only the latest ones.
    pub switch_count: u64,
    pub switches: Vec<SwitchReport>,
    pub advertisements: AdvertisementReport,
    /// Reason why no orders can be read from the program that decides the role.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order_error: Option<String>,
}

/// Another meter of the group, as of its last advertisement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PeerReport {
    pub meter: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    pub is_alive: bool,
    pub is_active: bool,
    pub is_ready: bool,
    pub priority: u8,
    /// Packets of the other meter's copy of the link.
    pub packets: u64,
    pub silent_ns: u64,
}

/// A change of this meter's role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SwitchReport {
    pub at_ns: u64,
    pub is_active: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub term: Option<String>,
    /// Start of the replay: records that left the table from this time on, less a margin, were
    /// exported after the change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replay_from_ns: Option<u64>,
    /// Time for which no active meter had been heard; absent if none had been heard since this meter's start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silent_ns: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AdvertisementReport {
    pub sent: u64,
    pub send_failures: u64,
    /// Datagrams of another group or protocol version, or without a valid advertisement.
    pub foreign: u64,
    pub wrong_key: u64,
    /// Advertisements that were delayed or replayed, or whose sender's clock differs too much from this meter's.
    pub stale: u64,
    pub repeated: u64,
    /// Advertisements of another process with this meter's number.
    pub same_meter: u64,
}

impl GroupReport {
    pub fn from_status(status: &GroupStatus) -> Self {
        let dropped = &status.dropped;
        Self {
            name: status.name.clone(),
            meter: status.meter,
            is_active: status.role.is_active(),
            term: status.role.term().map(|term| term.to_string()),
            is_ready: status.is_ready,
            is_blind: status.is_blind,
            can_export: status.can_export,
            packets: status.seen_packets,
            watermark_ns: status.watermark_ns,
            peers: status.peers.iter().map(PeerReport::from_peer).collect(),
            switch_count: status.switch_count,
            switches: status.switches.iter().map(SwitchReport::from_switch).collect(),
            advertisements: AdvertisementReport {
                sent: status.sent,
                send_failures: status.send_failures,
                foreign: dropped.malformed + dropped.other_version + dropped.other_group,
                wrong_key: dropped.wrong_key,
                stale: dropped.stale,
                repeated: dropped.repeated,
                same_meter: dropped.same_meter,
            },
            order_error: status.order_error.clone(),
        }
    }
}

impl PeerReport {
    fn from_peer(peer: &PeerStatus) -> Self {
        Self {
            meter: peer.meter,
            address: peer.address.map(|address| address.to_string()),
            is_alive: peer.is_alive,
            // The last known role of a lost peer is not its current role.
            is_active: peer.is_alive && peer.role.is_active(),
            is_ready: peer.is_ready,
            priority: peer.priority,
            packets: peer.seen_packets,
            silent_ns: peer.silent_for.as_u64(),
        }
    }
}

impl SwitchReport {
    fn from_switch(switch: &RoleSwitch) -> Self {
        let (term, replay_from_ns) = match switch.change {
            RoleChange::BecameActive { term, replay_from_ns } => {
                (Some(term.to_string()), Some(replay_from_ns))
            }
            RoleChange::BecameStandby { .. } => (None, None),
        };
        Self {
            at_ns: switch.at_wall_ns,
            is_active: term.is_some(),
            term,
            replay_from_ns,
            silent_ns: switch.silent_for.map(Nanos::as_u64),
        }
    }
}
