//! Joins the records of several meters that see copies of one link: reduces each record to the packets that
//! are not stored yet.
//!
//! ```text
//!  packets of a direction   ---a--------b-------c-----      a, b, c: landmarks
//!  meter 1                  [=======|=======|====            "7 packets, 5 since a", "8, 6 since b"
//!  meter 2, started later        [=====|======|===           "6, 3 since b"
//!  stored                   [----------------------)
//! ```
//! A record is not compared with other records. It states how many packets its direction had since certain packets that
//! every meter recognises (landmarks). As soon as the position of one landmark is known, the record covers a known
//! interval of packet positions. Stored packets are intervals too; packets of a record outside of them are new. So
//! repeated records, records with other boundaries, several active meters and any order of arrival do no harm. If a
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

use crate::history::{FlowHistory, RecordOriginMark, StoredPackets};
use crate::membership::GroupMembership;
use crate::record::FlowRecord;
use clocks::MeterClocks;
use packetrig_units::Nanos;
use rows::{
    build_record_of_waiting_report, half_counts, record_times, record_with_history, set_half_counts,
    set_missing_times,
};
use side::{FlowDirectionState, SideReport};
use std::collections::{BTreeMap, HashMap};

/// Maximum number of groups that are counted. Senders choose the group numbers, so there could be any number of groups.
const MAX_GROUPS: usize = 64;

/// Limits for the number of flows in memory, and for how long they are remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupOptions {
    /// Maximum number of flow directions that are used before the two maps are rotated. Both maps together hold at
    /// most twice as many.
    pub flows: usize,
    /// Time after which the two maps are rotated, and for which an unused flow is remembered at least. It must be
    /// longer than the meters' active timeout.
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

    /// Returns the memory of two maps with this many buckets each, in bytes. The number of buckets is a power of two,
    /// and at most seven eighths of them are used. A map that grows still has its old buckets, half as many.
    const fn memory_of_buckets(buckets: usize) -> usize {
        buckets * BUCKET_BYTES / 2 * 5 + 2 * (buckets / 8 * 7) * FlowDirectionState::HEAP_BYTES
    }
}

impl Default for GroupOptions {
    fn default() -> Self {
        Self { flows: 1 << 20, memory: Nanos::from_secs(900) }
    }
}

/// One direction of one flow of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct GroupFlowDirection {
    group: u64,
    flow_id: u64,
    lane: u16,
    is_second: bool,
}

impl GroupFlowDirection {
    const fn from_history(history: &FlowHistory, flow_id: u64, is_reverse: bool) -> Self {
        let RecordOriginMark { group, lane, .. } = history.mark;
        // The order of the two ends (lower, upper) is the same at all meters. The source of a record is only the end that
        // its meter saw first.
        Self { group, flow_id, lane, is_second: history.flipped != is_reverse }
    }
}

/// Result of joining one record: changes of the counts of its group, and what is to be stored.
#[derive(Clone, Debug, Default)]
struct RecordJoinOutcome {
    /// Packets of the record that could not be placed.
    unplaced: u64,
    /// Packets of earlier records that could not be placed until now.
    placed_later: u64,
    /// Number of directions of the record whose earlier state may have been forgotten.
    forgotten: u64,
    /// Packets of each direction that are stored with the record or were stored before it.
    stored: [Option<StoredPackets>; 2],
    /// Records of earlier packets that had no position until now and are not stored yet.
    waited: Vec<FlowRecord>,
}

/// Memory of a bucket of a map, in bytes. A direction takes further memory outside of its bucket.
const BUCKET_BYTES: usize = size_of::<(GroupFlowDirection, FlowDirectionState)>() + 1;

/// Joins records of all groups; see the module documentation.
#[derive(Debug, Default)]
pub struct GroupRecordJoiner {
    options: GroupOptions,
    /// Directions that were used since the last rotation (see `forget_old_flows`). `older` has those that were last
    /// used between the two rotations before.
    recent: HashMap<GroupFlowDirection, FlowDirectionState>,
    older: HashMap<GroupFlowDirection, FlowDirectionState>,
    turned_ns: u64,
    /// No flow that began after this time has been forgotten.
    whole_from_ns: u64,
    /// The latest time in any record so far. `turn_newest_ns` is the latest time at the last rotation.
    newest_ns: u64,
    turn_newest_ns: u64,
    /// True if flows were forgotten because there were too many.
    is_crowded: bool,
    groups: BTreeMap<u64, GroupCounts>,
    clocks: BTreeMap<u64, MeterClocks>,
}

impl GroupRecordJoiner {
    /// Creates a value without flows. An earlier process of the collector may have received records of packets from
    /// before `since_ns`, nanoseconds since 1970.
    pub fn new(options: GroupOptions, since_ns: u64) -> Self {
        Self {
            options,
            whole_from_ns: since_ns,
            newest_ns: since_ns,
            turn_newest_ns: since_ns,
            ..Self::default()
        }
    }

    /// Counts a record that an earlier process of this collector has probably received and stored already.
    pub fn count_already_stored_record(&mut self, record: &FlowRecord, now_ns: u64) {
        if let Some(history) = &record.history
            && let Some(counts) = self.group_counts_mut(history.mark.group)
        {
            counts.count_record(
                history.mark.meter,
                &RecordJoinOutcome::default(),
                [record.packets(), 0],
                now_ns,
            );
        }
    }

    /// Adds a record that an earlier process of this collector has stored, so that none of its
    /// packets is returned again.
    pub fn restore_stored_record(&mut self, mut record: FlowRecord, now_ns: u64) {
        let Some(history) = record.history.take() else { return };
        self.forget_old_flows(now_ns);
        self.newest_ns = self.newest_ns.max(record.last_ns());
        let RecordOriginMark { group, meter, .. } = history.mark;
        let mut clocks = self.take_clocks(group);
        clocks.record_followed_flow(meter, history.since_ns, history.is_strange, now_ns);
        let both = SideReport::from_history(&history, record_times(&history, &record), now_ns);
        for (half, is_reverse) in [(&record.forward, false), (&record.reverse, true)] {
            // A direction without stored packets says nothing.
            let Some(stored) = &history.stored[usize::from(is_reverse)] else { continue };
            let (direction, own) = (*history.direction(is_reverse), half_counts(half));
            let place = GroupFlowDirection::from_history(&history, record.flow_id, is_reverse);
            let report = SideReport { direction, own, ..both };
            self.side_state_mut(place).restore_report(&report, stored, &mut clocks);
        }
        self.put_clocks_back(group, clocks);
    }

    /// Reduces a record to the packets that are not stored yet, and returns it if there are any. Also returns records
    /// of earlier packets whose position is known only now. A record without a history is returned unchanged. `now_ns`
    /// is the time of a clock that is never set.
    pub fn reduce_to_unstored_packets(
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
        let joined = self.join_record(&history, &mut record, now_ns);
        history.stored = joined.stored;
        let new = record.packets() + joined.waited.iter().map(FlowRecord::packets).sum::<u64>();
        if let Some(counts) = self.group_counts_mut(history.mark.group) {
            counts.count_record(history.mark.meter, &joined, [before, new], now_ns);
        }
        let own = (record.packets() > 0).then(|| record_with_history(record, &history));
        own.into_iter().chain(joined.waited)
    }

    /// Records a meter's report on its role in its group.
    pub fn note_membership(&mut self, membership: &GroupMembership) {
        if let Some(counts) = self.group_counts_mut(membership.group) {
            counts.note_membership(membership);
        }
    }

    /// Returns the counts of a group, and creates them if necessary; `None` if there are too many groups.
    fn group_counts_mut(&mut self, group: u64) -> Option<&mut GroupCounts> {
        let has_room = self.groups.len() < MAX_GROUPS || self.groups.contains_key(&group);
        has_room.then(|| self.groups.entry(group).or_default())
    }

    /// Returns the memory that all flows take, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let buckets = (self.recent.capacity() + self.older.capacity()) / 7 * 8;
        buckets * BUCKET_BYTES + (self.recent.len() + self.older.len()) * FlowDirectionState::HEAP_BYTES
    }

    /// Returns the counts of each group, by group number.
    pub fn groups(&self) -> impl Iterator<Item = (u64, &GroupCounts)> {
        self.groups.iter().map(|(group, counts)| (*group, counts))
    }

    /// Takes the clocks of a group out of the map, because `side_state_mut` borrows the whole value.
    fn take_clocks(&mut self, group: u64) -> MeterClocks {
        self.clocks.remove(&group).unwrap_or_default()
    }

    /// Puts the clocks of a group back. A group for which there is no room is joined without known clock offsets.
    fn put_clocks_back(&mut self, group: u64, clocks: MeterClocks) {
        if self.clocks.len() < MAX_GROUPS {
            self.clocks.insert(group, clocks);
        }
    }

    /// Reduces a record to the packets that are not stored yet.
    fn join_record(
        &mut self,
        history: &FlowHistory,
        record: &mut FlowRecord,
        now_ns: u64,
    ) -> RecordJoinOutcome {
        let RecordOriginMark { group, meter, .. } = history.mark;
        let mut joined = RecordJoinOutcome::default();
        let mut waited = Vec::new();
        // Only a rotation for lack of room forgets running flows, and only those that began before `whole_from_ns`.
        let may_be_forgotten = self.is_crowded && history.since_ns <= self.whole_from_ns;
        let mut clocks = self.take_clocks(group);
        let times = record_times(history, record);
        let mut both = SideReport::from_history(history, times, now_ns);
        both.known_from_ns = self.whole_from_ns;
        both.has_others = clocks.has_other_live_meter(meter, times[0], now_ns);
        clocks.record_followed_flow(meter, history.since_ns, history.is_strange, now_ns);
        for (half, is_reverse) in [(&mut record.forward, false), (&mut record.reverse, true)] {
            let (direction, own) = (*history.direction(is_reverse), half_counts(half));
            let report = SideReport { direction, own, ..both };
            let place = GroupFlowDirection::from_history(history, record.flow_id, is_reverse);
            let known = self.side_state_mut(place);
            joined.forgotten += u64::from(may_be_forgotten && known.is_empty());
            let outcome = known.add_report(&report, &mut clocks);
            joined.unplaced += outcome.unplaced;
            joined.placed_later += outcome.placed_later;
            joined.stored[usize::from(is_reverse)] = outcome.placed.stored;
            set_half_counts(half, outcome.placed.new);
            waited.extend(outcome.waited.into_iter().map(|(report, placed)| (is_reverse, report, placed)));
        }
        self.put_clocks_back(group, clocks);
        set_missing_times(record, times);
        let waited = waited.iter();
        joined.waited = waited
            .map(|(is_reverse, report, placed)| {
                build_record_of_waiting_report(record, history, *is_reverse, report, placed)
            })
            .collect();
        joined
    }

    fn side_state_mut(&mut self, place: GroupFlowDirection) -> &mut FlowDirectionState {
        let older = &mut self.older;
        // A direction that is used moves to the recent map, so it survives the next rotation.
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
