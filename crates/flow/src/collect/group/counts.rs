//! Counts of the records of a group, in total and by meter.

use super::RecordJoinOutcome;
use crate::membership::GroupMembership;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Maximum number of meters of a group that are counted. Senders choose the meter numbers, so there could be
/// any number of meters.
pub(super) const MAX_METERS_PER_GROUP: usize = 64;
/// Maximum number of changes of the active meter that are remembered.
pub(super) const MAX_REMEMBERED_SWITCHES: usize = 64;

/// Counts of the records of a group, and of the packets in them: which were new, and which were stored already.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupCounts {
    pub records: u64,
    /// Records that had no new packets.
    pub repeated: u64,
    /// Records that had some new packets and some that were stored already.
    pub overlapping: u64,
    /// Packets that were stored already.
    pub known_packets: u64,
    /// Packets of records that were lost on the way; later records contained these packets again.
    pub recovered_packets: u64,
    /// Packets of records that could not be placed, because their meter started during the flow;
    /// another meter reports them.
    pub unplaced_packets: u64,
    /// Directions of flows that were forgotten too early for lack of memory; their packets may be stored twice.
    pub forgotten: u64,
    /// Packets that were new, so that they were stored.
    pub packets: u64,
    /// Counts of each meter, by its number.
    pub meters: BTreeMap<u32, MeterCounts>,
    /// The latest changes of the active meter, oldest first.
    #[serde(default)]
    pub switches: VecDeque<GroupSwitch>,
    #[serde(default)]
    pub switch_count: u64,
}

/// A change of the active meter, which exports for its group: `meter` became active.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupSwitch {
    /// Time of the change, as the new active meter states it, nanoseconds since 1970.
    pub at_ns: u64,
    pub meter: u32,
    pub term: u64,
    /// Time for which the meter had received nothing from the active meter; 0 if it knew of no active meter.
    pub silent_ns: u64,
    /// The new active meter has exported the records that left its table from this time on, nanoseconds since 1970.
    pub replay_from_ns: u64,
    /// Records that the meter had kept while it was a standby, and exported when it became active.
    pub replayed: u64,
    /// Records of this meter since the change that had no new packets: duplicates.
    pub repeated: u64,
}

/// Counts of one meter of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeterCounts {
    pub records: u64,
    /// Packets of the meter's records. If this is less than [`GroupCounts::packets`], the meter has not seen
    /// the missing packets, or not reported them.
    pub packets: u64,
    /// Packets that were not stored yet when this meter reported them.
    pub new_packets: u64,
    /// Time at which the last record of the meter arrived.
    pub heard_ns: u64,
    /// Packets that the meter saw on its copy of the link, as it reported itself; `None` before such a report. A
    /// standby sees packets that it does not export.
    #[serde(default)]
    pub copy_packets: Option<u64>,
}

impl GroupCounts {
    /// Returns the counts of a meter, and creates them if necessary; `None` if the group has too many meters.
    fn meter_counts_mut(&mut self, meter: u32) -> Option<&mut MeterCounts> {
        let has_room = self.meters.len() < MAX_METERS_PER_GROUP || self.meters.contains_key(&meter);
        has_room.then(|| self.meters.entry(meter).or_default())
    }

    /// Records a meter's report on its role in the group.
    pub(super) fn note_membership(&mut self, membership: &GroupMembership) {
        let GroupMembership { meter, term, .. } = *membership;
        if let Some(part) = self.meter_counts_mut(meter) {
            part.copy_packets = Some(membership.packets);
        }
        // A term has one active meter, which repeats its report every few seconds.
        let known = self.switches.iter_mut().find(|switch| (switch.meter, switch.term) == (meter, term));
        if let Some(switch) = known {
            switch.replayed = membership.replayed;
        // Term 0 is a standby's report, which changes nothing about the active meter.
        } else if term > 0 {
            // `switch_count` counts all changes, including changes that are no longer in the list.
            if self.switches.len() == MAX_REMEMBERED_SWITCHES {
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

    /// Counts a record of a meter. `own` is the number of packets in the record as it arrived, `new` the number of
    /// packets that are stored because of it.
    pub(super) fn count_record(
        &mut self,
        meter: u32,
        joined: &RecordJoinOutcome,
        [own, new]: [u64; 2],
        now_ns: u64,
    ) {
        let placed = (own + joined.placed_later).saturating_sub(joined.unplaced);
        self.forgotten += joined.forgotten;
        self.unplaced_packets = (self.unplaced_packets + joined.unplaced).saturating_sub(joined.placed_later);
        self.records += 1;
        self.packets += new;
        self.known_packets += placed.saturating_sub(new);
        // If more packets are new than the record itself has, it makes up for lost records.
        self.recovered_packets += new.saturating_sub(placed);
        self.repeated += u64::from(new == 0);
        self.overlapping += u64::from(new > 0 && new < own);
        // A meter may have become active several times; its records belong to the latest of these changes.
        let switch = self.switches.iter_mut().rev().find(|switch| switch.meter == meter);
        if let Some(switch) = switch.filter(|_| new == 0) {
            switch.repeated += 1;
        }
        let Some(part) = self.meter_counts_mut(meter) else { return };
        part.records += 1;
        part.packets += own;
        part.new_packets += new;
        part.heard_ns = now_ns;
    }
}
