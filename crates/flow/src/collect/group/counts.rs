//! What became of the records of a group, and of which meter they came.

use crate::membership::GroupMembership;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Meters of a group that have an account: senders choose their numbers.
pub(super) const METERS: usize = 64;
/// Changes of the active meter that are remembered.
pub(super) const SWITCHES: usize = 64;

/// What became of the records of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupCounts {
    /// Records that arrived.
    pub records: u64,
    /// Those that had nothing new.
    pub repeated: u64,
    /// Those that had something new and something that was there already.
    pub overlapping: u64,
    /// Packets that were there already.
    pub known_packets: u64,
    /// Packets of records that did not arrive, made up for by later ones.
    pub recovered_packets: u64,
    /// Packets of meters that came while their flows were going on; another meter reports them.
    pub unplaced_packets: u64,
    /// Directions of flows that were forgotten too early for lack of memory; what they had may be there twice.
    pub forgotten: u64,
    /// Packets that are new.
    pub packets: u64,
    /// By the numbers of the meters.
    pub meters: BTreeMap<u32, MeterPart>,
    /// When another meter became the one that exports for all, the latest ones, oldest first.
    #[serde(default)]
    pub switches: VecDeque<GroupSwitch>,
    #[serde(default)]
    pub switch_count: u64,
}

/// A meter became the one that exports for its group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupSwitch {
    /// When, as the meter says, nanoseconds since 1970.
    pub at_ns: u64,
    pub meter: u32,
    pub term: u64,
    /// It had not heard the active meter for so long.
    pub silent_ns: u64,
    /// It exported what had left its table from then on.
    pub replay_from_ns: u64,
    /// Records that it had kept and exported then.
    pub replayed: u64,
    /// Records of this meter since then that had nothing new: duplicates.
    pub repeated: u64,
}

/// What one meter of a group sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeterPart {
    pub records: u64,
    /// Packets of its records: what is less than [`GroupCounts::packets`] it has not seen, or not reported.
    pub packets: u64,
    /// Those that no other meter had reported before.
    pub new_packets: u64,
    /// When its last record arrived.
    pub heard_ns: u64,
    /// Packets of its copy of the link, if it says so: a standby sees packets that it does not report.
    #[serde(default)]
    pub copy_packets: Option<u64>,
}

impl GroupCounts {
    /// The account of a meter, if there is one or room for it.
    fn part(&mut self, meter: u32) -> Option<&mut MeterPart> {
        let has_room = self.meters.len() < METERS || self.meters.contains_key(&meter);
        has_room.then(|| self.meters.entry(meter).or_default())
    }

    /// Takes what a meter says of its place in the group.
    pub(super) fn note(&mut self, membership: &GroupMembership) {
        let GroupMembership { meter, term, .. } = *membership;
        if let Some(part) = self.part(meter) {
            part.copy_packets = Some(membership.packets);
        }
        // A term has one active meter, and it says so again every few seconds.
        let is_known = |switch: &GroupSwitch| (switch.meter, switch.term) == (meter, term);
        if let Some(switch) = self.switches.iter_mut().find(|switch| is_known(switch)) {
            switch.replayed = membership.replayed;
        } else if term > 0 {
            if self.switches.len() == SWITCHES {
                self.switches.pop_front();
            }
            self.switch_count += 1;
            self.switches.push_back(GroupSwitch {
                at_ns: membership.since_ns,
                meter,
                term,
                silent_ns: membership.silent_ns,
                replay_from_ns: membership.replay_from_ns,
                replayed: membership.replayed,
                repeated: 0,
            });
        }
    }

    /// Adds a record with so many packets of its own, of which so many could not be placed and so many were new.
    pub(super) fn account(&mut self, meter: u32, [own, unplaced, new]: [u64; 3], now_ns: u64) {
        let placed = own - unplaced;
        self.records += 1;
        self.packets += new;
        self.unplaced_packets += unplaced;
        self.known_packets += placed.saturating_sub(new);
        self.recovered_packets += new.saturating_sub(placed);
        self.repeated += u64::from(new == 0);
        self.overlapping += u64::from(new > 0 && new < own);
        let switch = self.switches.iter_mut().rev().find(|switch| switch.meter == meter);
        if let Some(switch) = switch.filter(|_| new == 0) {
            switch.repeated += 1;
        }
        let Some(part) = self.part(meter) else { return };
        part.records += 1;
        part.packets += own;
        part.new_packets += new;
        part.heard_ns = now_ns;
    }
}
