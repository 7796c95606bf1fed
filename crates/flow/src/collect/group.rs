//! Joins the records of meters that see copies of one link: keeps the part of each record that is not stored yet.
//!
//! ```text
//!  packets of a direction   ---a--------b-------c-----      a, b, c: landmarks
//!  meter 1                  [=======|=======|====            "7 packets, 5 since a", "8, 6 since b"
//!  meter 2, started later        [=====|======|===           "6, 3 since b"
//!  stored                   [----------------------)
//! ```
//! A record is not compared with other records. It states how much its direction had since packets that every
//! meter recognises. As soon as one of these packets has a known position, the record is an interval of
//! positions. Stored data are intervals too; the part of a record outside of them is new. So repeated
//! records, parts with other boundaries, several active meters and any order of arrival do no harm. If a
//! record is lost on the way, the next record of its meter makes up for it.
//!
//! Invariant: counts are compared only if they begin at the same packet. A record without a known position is
//! not stored but counted as unplaced, unless all of it lies before or after the known intervals.

mod clocks;
mod counts;
mod line;
mod rows;
mod side;
mod times;

pub use counts::{GroupCounts, GroupSwitch, MeterCounts};

use crate::history::{FlowHistory, RecordClaim, RecordOriginMark};
use crate::membership::GroupMembership;
use crate::record::FlowRecord;
use clocks::MeterClocks;
use packetrig_units::Nanos;
use rows::{
    correct_times, half_counts, record_of_waiting, record_times, record_with_history, set_half_counts,
};
use side::{FlowSideState, SideReport};
use std::collections::{BTreeMap, HashMap};

/// Maximum number of groups that are counted: senders choose the group numbers, so they could be any number.
const MAX_GROUPS: usize = 64;

/// Bounds of the memory for flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupOptions {
    /// Number of directions of flows that are remembered between two rotations; at most twice as many are held.
    pub flows: usize,
    /// Time for which flows are remembered: longer than the meters' active timeout.
    pub memory: Nanos,
}

impl GroupOptions {
    /// Builds options for as many flows as fit into this much memory, but for at least 14 and at most 14.7 million.
    pub fn within_memory(memory: usize) -> Self {
        let mut buckets: usize = 16;
        while buckets < 1 << 24 && Self::memory_of_buckets(2 * buckets) <= memory {
            buckets *= 2;
        }
        Self { flows: buckets / 8 * 7, ..Self::default() }
    }

    /// Memory of two maps with this many buckets each. The number of buckets is a power of two, and at most seven
    /// eighths of them are used. A map that grows still has its old buckets, half as many.
    const fn memory_of_buckets(buckets: usize) -> usize {
        buckets * BUCKET_BYTES / 2 * 5 + 2 * (buckets / 8 * 7) * FlowSideState::HEAP_BYTES
    }
}

impl Default for GroupOptions {
    fn default() -> Self {
        Self { flows: 1 << 20, memory: Nanos::from_secs(900) }
    }
}

/// One direction of one flow of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FlowSide {
    group: u64,
    flow_id: u64,
    lane: u16,
    is_second: bool,
}

/// Changes that a record makes to the counts of its group.
#[derive(Clone, Debug, Default)]
struct JoinedRecord {
    /// Packets of the record that could not be placed.
    unplaced: u64,
    /// Packets of earlier records that could not be placed until now.
    placed_later: u64,
    /// Number of its directions that may have been forgotten.
    forgotten: u64,
    /// Packets of each direction that are stored with it or were stored before it.
    stored: [Option<RecordClaim>; 2],
    /// Records of earlier packets that had no position until now and are not stored yet.
    waited: Vec<FlowRecord>,
}

/// Memory of a bucket of a map. A direction takes further memory outside of its bucket.
const BUCKET_BYTES: usize = size_of::<(FlowSide, FlowSideState)>() + 1;

/// Joins records of all groups; see the module documentation.
#[derive(Debug, Default)]
pub struct GroupedFlows {
    options: GroupOptions,
    /// Directions that were used since the last rotation (see `forget_old_flows`), and directions that were used
    /// between the two rotations before.
    recent: HashMap<FlowSide, FlowSideState>,
    older: HashMap<FlowSide, FlowSideState>,
    turned_ns: u64,
    /// No flow that began after this time has been forgotten.
    whole_from_ns: u64,
    /// The latest time in a record: until now, and until the last rotation.
    newest_ns: u64,
    turn_newest_ns: u64,
    /// True if flows were forgotten because there were too many.
    is_crowded: bool,
    groups: BTreeMap<u64, GroupCounts>,
    clocks: BTreeMap<u64, MeterClocks>,
}

impl GroupedFlows {
    /// Creates an empty joiner. Another process may have taken records from before `since_ns`, nanoseconds since 1970.
    pub fn new(options: GroupOptions, since_ns: u64) -> Self {
        Self {
            options,
            whole_from_ns: since_ns,
            newest_ns: since_ns,
            turn_newest_ns: since_ns,
            ..Self::default()
        }
    }

    /// Counts a record that another process of this collector has probably taken already.
    pub fn count_known_record(&mut self, record: &FlowRecord, now_ns: u64) {
        if let Some(history) = &record.history
            && let Some(counts) = self.group_counts_mut(history.mark.group)
        {
            counts.count_record(history.mark.meter, &JoinedRecord::default(), [record.packets(), 0], now_ns);
        }
    }

    /// Records that another process of this collector has already handed out this record, so that it is not handed out again.
    pub fn restore_stored_record(&mut self, mut record: FlowRecord, now_ns: u64) {
        if let Some(history) = record.history.take() {
            self.forget_old_flows(now_ns);
            self.newest_ns = self.newest_ns.max(record.last_ns());
            self.join_record(&history, &mut record, now_ns, true);
        }
    }

    /// Takes a record. Returns it with only the packets that are not stored yet, and records of earlier packets to
    /// which it gave a position. A record without a history is returned unchanged. `now_ns` is of a clock that is
    /// never set.
    pub fn keep_unstored_packets(
        &mut self,
        mut record: FlowRecord,
        now_ns: u64,
    ) -> impl Iterator<Item = FlowRecord> + use<> {
        // A record without a history is of no group, so no other meter reports its packets.
        let Some(mut history) = record.history.take() else {
            return Some(record).into_iter().chain(Vec::new());
        };
        self.forget_old_flows(now_ns);
        let before = record.packets();
        self.newest_ns = self.newest_ns.max(record.last_ns());
        let joined = self.join_record(&history, &mut record, now_ns, false);
        history.stored = joined.stored;
        let new = record.packets() + joined.waited.iter().map(FlowRecord::packets).sum::<u64>();
        if let Some(counts) = self.group_counts_mut(history.mark.group) {
            counts.count_record(history.mark.meter, &joined, [before, new], now_ns);
        }
        let own = (record.packets() > 0).then(|| record_with_history(record, &history));
        own.into_iter().chain(joined.waited)
    }

    /// Takes a meter's report on its role in its group.
    pub fn note_membership(&mut self, membership: &GroupMembership) {
        if let Some(counts) = self.group_counts_mut(membership.group) {
            counts.note_membership(membership);
        }
    }

    /// Returns the counts of a group, which are created if there is room; `None` if there is none.
    fn group_counts_mut(&mut self, group: u64) -> Option<&mut GroupCounts> {
        let has_room = self.groups.len() < MAX_GROUPS || self.groups.contains_key(&group);
        has_room.then(|| self.groups.entry(group).or_default())
    }

    /// Memory that the flows take, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let buckets = (self.recent.capacity() + self.older.capacity()) / 7 * 8;
        buckets * BUCKET_BYTES + (self.recent.len() + self.older.len()) * FlowSideState::HEAP_BYTES
    }

    /// Returns the counts of each group, by group number.
    pub fn groups(&self) -> impl Iterator<Item = (u64, &GroupCounts)> {
        self.groups.iter().map(|(group, counts)| (*group, counts))
    }

    /// Reduces a record to the packets that are not stored yet. `was_stored`: an earlier process handed the record
    /// out, and its history states with which packets.
    fn join_record(
        &mut self,
        history: &FlowHistory,
        record: &mut FlowRecord,
        now_ns: u64,
        was_stored: bool,
    ) -> JoinedRecord {
        let RecordOriginMark { group, lane, meter } = history.mark;
        let mut joined = JoinedRecord::default();
        let mut waited = Vec::new();
        // Only a rotation for lack of room forgets running flows, and only those that began before it.
        let may_be_forgotten = self.is_crowded && history.since_ns <= self.whole_from_ns;
        let has_room = self.clocks.len() < MAX_GROUPS || self.clocks.contains_key(&group);
        // A group without an entry is joined without known clock offsets. The entry is out of the map while
        // the sides are borrowed.
        let mut clocks =
            if has_room { self.clocks.remove(&group).unwrap_or_default() } else { MeterClocks::default() };
        let times = record_times(history, record);
        let mut both = SideReport::from_history(history, times, now_ns);
        both.known_from_ns = self.whole_from_ns;
        both.has_others = !was_stored && clocks.has_other_live_meter(meter, times[0], now_ns);
        clocks.record_followed_flow(meter, history.since_ns, history.is_strange, now_ns);
        for (half, is_reverse) in [(&mut record.forward, false), (&mut record.reverse, true)] {
            let stored = history.stored[usize::from(is_reverse)].filter(|_| was_stored);
            // Nothing of this direction was stored, so the record says nothing about it.
            if was_stored && stored.is_none() {
                continue;
            }
            let (direction, own) = (*history.direction(is_reverse), half_counts(half));
            let report = SideReport { direction, own, stored, ..both };
            // The order of the two ends (lower, upper) is the same at all meters.
            // The source of a record is only the end that its meter saw first.
            let place =
                FlowSide { group, flow_id: record.flow_id, lane, is_second: history.flipped != is_reverse };
            let known = self.side_state_mut(place);
            joined.forgotten += u64::from(may_be_forgotten && known.is_empty());
            let outcome = known.add_report(&report, &mut clocks);
            joined.unplaced += outcome.unplaced;
            joined.placed_later += outcome.placed_later;
            joined.stored[usize::from(is_reverse)] = outcome.placed.stored;
            set_half_counts(half, outcome.placed.new);
            waited.extend(outcome.waited.into_iter().map(|(report, placed)| (is_reverse, report, placed)));
        }
        if has_room {
            self.clocks.insert(group, clocks);
        }
        correct_times(record, times);
        let waited = waited.iter();
        joined.waited = waited
            .map(|(is_reverse, report, placed)| {
                record_of_waiting(record, history, *is_reverse, report, placed)
            })
            .collect();
        joined
    }

    fn side_state_mut(&mut self, place: FlowSide) -> &mut FlowSideState {
        let older = &mut self.older;
        // A side that is used moves to the recent map, so it survives the next rotation.
        self.recent.entry(place).or_insert_with(|| older.remove(&place).unwrap_or_default())
    }

    /// Rotates the two maps if the recent one is old or full: flows that were not used since the
    /// last rotation are forgotten.
    fn forget_old_flows(&mut self, now_ns: u64) {
        let is_old = now_ns.saturating_sub(self.turned_ns) >= self.options.memory.as_u64();
        let is_full = self.recent.len() >= self.options.flows.max(1);
        if is_old || is_full {
            // A rotation by age forgets only flows that were silent for longer than the active timeout; a rotation for
            // lack of room may forget running ones.
            self.is_crowded |= !is_old && !self.older.is_empty();
            self.older = std::mem::take(&mut self.recent);
            self.turned_ns = now_ns;
            // The forgotten flows were not used since the rotation before this one, so none of them began after
            // the newest record of that time.
            self.whole_from_ns = std::mem::replace(&mut self.turn_newest_ns, self.newest_ns);
        }
    }
}

#[cfg(test)]
mod tests;
