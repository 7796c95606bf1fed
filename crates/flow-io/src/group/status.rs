//! The state of a group, for displays.

use super::DropReason;
use packetrig_flow::group::{
    AdvertisedRole, AdvertisementOutcome, CopyComparison, GroupRole, GroupTerm, MeterCoverage, RoleChange,
};
use packetrig_flow::{GroupMembership, RecordOriginMark};
use packetrig_units::Nanos;
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Maximum number of role changes that are kept.
const MAX_SWITCHES: usize = 32;

/// The state of a member and of its group, as of the last change or the last interval.
#[derive(Clone, Debug)]
pub struct GroupStatus {
    pub name: String,
    pub meter: u32,
    pub priority: u8,
    pub role: GroupRole,
    /// True if this meter could take over without a gap, or has done so.
    pub is_ready: bool,
    /// True if nothing arrives at this meter while packets arrive at another one: its copy of the link is cut.
    pub is_blind: bool,
    /// What the packet counts of the other members show.
    pub copy_comparison: CopyComparison,
    /// True while this meter's records reach the collectors.
    pub can_export: bool,
    /// Packets of this meter's copy of the link.
    pub seen_packets: u64,
    pub coverage: MeterCoverage,
    /// See [`GroupRoleHandle::active_watermark`](super::GroupRoleHandle::active_watermark).
    pub watermark_ns: Option<u64>,
    /// Number of the active meter; `None` if no other meter is active.
    pub active_peer: Option<u32>,
    pub peers: Vec<PeerStatus>,
    /// The last changes of this meter's role, oldest first.
    pub switches: VecDeque<RoleSwitch>,
    /// Number of changes of this meter's role since its start.
    pub switch_count: u64,
    /// Number of kept records that were exported at the last takeover.
    pub replayed: u64,
    pub dropped: DroppedAdvertisements,
    pub sent: u64,
    /// Advertisements that the kernel did not send.
    pub send_failures: u64,
    /// Error of the last attempt to read an order of another program; `None` if the attempt succeeded.
    pub order_error: Option<String>,
}

/// Another member of the group, as of its last advertisement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    pub meter: u32,
    /// Sender address of the member's last advertisement.
    pub address: Option<SocketAddr>,
    pub role: AdvertisedRole,
    /// True if an advertisement of the member arrived within the detection time.
    pub is_alive: bool,
    pub is_ready: bool,
    pub seen_packets: u64,
    pub priority: u8,
    /// The term of the member if it is active, else the latest term that it has received.
    pub term: GroupTerm,
    pub watermark_ns: u64,
    /// Time since the member's last advertisement.
    pub silent_for: Nanos,
}

/// A change of this meter's role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoleSwitch {
    /// Time of the change, nanoseconds since 1970.
    pub at_wall_ns: u64,
    /// Time since the last advertisement of an active meter; `None` if this meter has received none since its start.
    pub silent_for: Option<Nanos>,
    pub change: RoleChange,
}

/// Advertisements that changed nothing, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DroppedAdvertisements {
    pub malformed: u64,
    pub other_version: u64,
    pub other_group: u64,
    pub wrong_key: u64,
    /// Advertisements that were delayed or replayed, or whose sender's clock differs too much from this meter's.
    pub stale: u64,
    /// Advertisements that are not later than one that was accepted.
    pub repeated: u64,
    /// Advertisements of another process with this meter's number: the group is not configured correctly.
    pub same_meter: u64,
    /// Advertisements of this member itself: usual with multicast, and not an error.
    pub own_echoes: u64,
    /// Advertisements of peers beyond the maximum number of peers.
    pub too_many_peers: u64,
}

impl DroppedAdvertisements {
    pub(super) const fn count_dropped(&mut self, reason: DropReason) {
        *match reason {
            DropReason::Malformed => &mut self.malformed,
            DropReason::OtherVersion => &mut self.other_version,
            DropReason::OtherGroup => &mut self.other_group,
            DropReason::WrongKey => &mut self.wrong_key,
            DropReason::Stale => &mut self.stale,
        } += 1;
    }

    pub(super) const fn count_outcome(&mut self, outcome: AdvertisementOutcome) {
        *match outcome {
            AdvertisementOutcome::Accepted => return,
            AdvertisementOutcome::OwnEcho => &mut self.own_echoes,
            AdvertisementOutcome::SameMeter => &mut self.same_meter,
            AdvertisementOutcome::Repeated => &mut self.repeated,
            AdvertisementOutcome::TooManyPeers => &mut self.too_many_peers,
            // The key was right, but the fields contradict each other: a fault of
            // the sender, like a broken datagram.
            AdvertisementOutcome::Invalid => &mut self.malformed,
        } += 1;
    }
}

impl GroupStatus {
    /// Returns what this meter announces to collectors; `packets` is the number of packets in its copy of the link.
    pub(crate) fn group_membership(&self, packets: u64) -> GroupMembership {
        let last = self.switches.back();
        let took_over = last.map(|switch| (switch.change, switch.silent_for));
        // A standby announces term 0 and no replay.
        let (term, replay_from_ns, silent_for) = match took_over {
            Some((RoleChange::BecameActive { term, replay_from_ns }, silent_for)) => {
                // 0 on the wire: no predecessor. A real silence is longer.
                (term.count, replay_from_ns, silent_for.unwrap_or_default())
            }
            _ => Default::default(),
        };
        GroupMembership {
            group: RecordOriginMark::group_number(&self.name),
            meter: self.meter,
            term,
            since_ns: last.map_or(self.coverage.seen_since_ns, |switch| switch.at_wall_ns),
            silent_ns: silent_for.as_u64(),
            replay_from_ns,
            replayed: if term > 0 { self.replayed } else { 0 },
            packets,
        }
    }

    /// Status of a member that has just started.
    pub(crate) fn new_standby(name: &str, meter: u32, coverage: MeterCoverage) -> Self {
        Self {
            name: name.to_owned(),
            meter,
            priority: 0,
            role: GroupRole::Standby,
            is_ready: false,
            is_blind: false,
            copy_comparison: CopyComparison::default(),
            can_export: true,
            seen_packets: 0,
            coverage,
            watermark_ns: None,
            active_peer: None,
            peers: Vec::new(),
            switches: VecDeque::new(),
            switch_count: 0,
            replayed: 0,
            dropped: DroppedAdvertisements::default(),
            sent: 0,
            send_failures: 0,
            order_error: None,
        }
    }

    pub(super) fn record_switch(&mut self, switch: RoleSwitch) {
        // `switch_count` still counts the switches that are removed here.
        if self.switches.len() == MAX_SWITCHES {
            self.switches.pop_front();
        }
        self.switches.push_back(switch);
        self.switch_count += 1;
    }
}
