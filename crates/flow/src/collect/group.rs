//! Joins the records of meters that see copies of one link: of each record what is not there yet.
//!
//! ```text
//!  meter 1:  |------ part ------|------ part ------|   7, then 12 packets since the flow began
//!  meter 2:        |------ part ------|---- part       9, then 14
//!  in order of arrival:  7, 9 (2 new), 12 (3 new), 9 again (nothing new), 14 (2 new)
//! ```
//! A record is not compared with other records. It names two beginnings of its flow and what the flow had since each; one beginning
//! that is known says where in the flow's whole count the record ends. So repeated records, parts that were cut at other moments and
//! records of several active meters do no harm, and a record that was lost on the way is made up for by the next one of its flow.
//!
//! Invariant: of a flow whose beginning the meters saw, what is given out is the greatest count that any record had.

use crate::history::{CountTotals, FlowHistory, FlowSince, GroupMark};
use crate::record::{FlowHalf, FlowRecord};
use packetrig_units::Nanos;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

/// Beginnings of one flow that are remembered, the latest. There is a silence between two of them, so they span more time than a
/// meter that takes over sends again.
const BEGINNINGS: usize = 8;
/// How far apart the times of one packet may be at two meters: less than two beginnings of a flow.
const APART_NS: u64 = 500_000_000;
/// Switches that are remembered of a group.
const SWITCHES: usize = 1024;

/// Bounds of what is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupOptions {
    /// Directions of flows that are remembered for a time; twice as many at most.
    pub flows: usize,
    /// That time: longer than the meters' active timeout.
    pub memory: Nanos,
}

impl Default for GroupOptions {
    fn default() -> Self {
        Self { flows: 1 << 20, memory: Nanos::from_secs(900) }
    }
}

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
    /// By the numbers of the meters.
    pub meters: BTreeMap<u32, MeterPart>,
    /// When another meter began to send, the latest of many.
    pub switches: Vec<MeterSwitch>,
    /// All of them.
    pub switched: u64,
}

/// What one meter of a group sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeterPart {
    pub records: u64,
    /// Packets of its records that were new.
    pub new_packets: u64,
    /// When its last record arrived.
    pub heard_ns: u64,
}

/// Another meter began to send something new.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeterSwitch {
    pub from: u32,
    pub to: u32,
    /// Times of arrival: the last record of the former meter with something new, and the first such record of the other.
    pub last_ns: u64,
    pub first_ns: u64,
}

/// One direction of one flow of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FlowSide {
    group: u64,
    flow_id: u64,
    lane: u16,
    is_second: bool,
}

/// A packet with which a direction began or resumed.
#[derive(Clone, Copy, Debug, Default)]
struct KnownBeginning {
    at_ns: u64,
    /// The direction's whole count before it. Only differences matter, so it may be below zero.
    before: CountTotals,
}

/// What is known of a direction.
#[derive(Clone, Copy, Debug, Default)]
struct KnownSide {
    /// Its whole count, from the first record on.
    counted: CountTotals,
    /// Unused places are at time 0.
    beginnings: [KnownBeginning; BEGINNINGS],
}

/// What a record says of a direction.
#[derive(Clone, Copy, Debug)]
struct ReportedSide {
    /// Since when it had how much.
    since: [(u64, CountTotals); 2],
    /// What counts if neither beginning is known: all since the first one, or what the record has for itself.
    unknown: CountTotals,
}

#[derive(Debug, Default)]
struct GroupState {
    counts: GroupCounts,
    /// The meter whose record had something new last, and when.
    sender: Option<(u32, u64)>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct GroupedFlows {
    options: GroupOptions,
    /// What was needed since the last turn, and what was needed in the time before.
    recent: HashMap<FlowSide, KnownSide>,
    older: HashMap<FlowSide, KnownSide>,
    turned_ns: u64,
    /// Of a flow that began later nothing has been forgotten.
    whole_from_ns: u64,
    /// The latest time in a record: by now, and at the last turn.
    newest_ns: u64,
    turn_newest_ns: u64,
    groups: BTreeMap<u64, GroupState>,
}

impl GroupedFlows {
    /// `since_ns`: records of what was before may have been taken by somebody else, nanoseconds since 1970.
    pub fn new(options: GroupOptions, since_ns: u64) -> Self {
        Self {
            options,
            whole_from_ns: since_ns,
            newest_ns: since_ns,
            turn_newest_ns: since_ns,
            ..Self::default()
        }
    }

    /// Takes a record that arrived at a time of a clock that is never set; returns what of it is new.
    pub fn take(&mut self, mut record: FlowRecord, now_ns: u64) -> Option<FlowRecord> {
        let Some(history) = record.history.take() else { return Some(record) };
        self.turn(now_ns);
        self.newest_ns = self.newest_ns.max(record.last_ns());
        let (flow_id, before) = (record.flow_id, record.packets());
        self.join_half(&history, flow_id, &mut record.forward, false);
        self.join_half(&history, flow_id, &mut record.reverse, true);
        mend_times(&mut record);
        let is_new = record.packets() > 0 || record.bytes() > 0;
        self.groups.entry(history.mark.group).or_default().account(
            &history.mark,
            before,
            record.packets(),
            now_ns,
        );
        is_new.then_some(record)
    }

    /// What became of each group's records, by the groups' numbers.
    pub fn groups(&self) -> impl Iterator<Item = (u64, &GroupCounts)> {
        self.groups.iter().map(|(group, state)| (*group, &state.counts))
    }

    /// Leaves of a half what is new.
    fn join_half(&mut self, history: &FlowHistory, flow_id: u64, half: &mut FlowHalf, is_reverse: bool) {
        let GroupMark { group, lane, .. } = history.mark;
        let since = [history.began, history.resumed].map(|since| reported(&since, is_reverse));
        let [(began_ns, whole), _] = since;
        let own = CountTotals { packets: half.packets, bytes: half.bytes, frame_bytes: half.frame_bytes };
        let unknown = if began_ns > self.whole_from_ns { whole } else { own };
        let place = FlowSide { group, flow_id, lane, is_second: history.flipped != is_reverse };
        let new = self.known_side(place).take(&ReportedSide { since, unknown });
        (half.packets, half.bytes, half.frame_bytes) = (new.packets, new.bytes, new.frame_bytes);
    }

    fn known_side(&mut self, place: FlowSide) -> &mut KnownSide {
        let older = &mut self.older;
        self.recent.entry(place).or_insert_with(|| older.remove(&place).unwrap_or_default())
    }

    /// Forgets flows that nobody asked for in the last time, or that are too many.
    fn turn(&mut self, now_ns: u64) {
        let is_old = now_ns.saturating_sub(self.turned_ns) >= self.options.memory.as_u64();
        if is_old || self.recent.len() >= self.options.flows.max(1) {
            self.older = std::mem::take(&mut self.recent);
            self.turned_ns = now_ns;
            // What is forgotten now was not needed since the last turn.
            self.whole_from_ns = std::mem::replace(&mut self.turn_newest_ns, self.newest_ns);
        }
    }
}

const fn reported(since: &FlowSince, is_reverse: bool) -> (u64, CountTotals) {
    (since.at_ns, if is_reverse { since.reverse } else { since.forward })
}

/// A direction that got packets of a record that was lost has no times of its own; what has no packets has none.
const fn mend_times(record: &mut FlowRecord) {
    let FlowRecord { forward, reverse, .. } = record;
    lend_times(forward, reverse);
    lend_times(reverse, forward);
}

const fn lend_times(half: &mut FlowHalf, other: &FlowHalf) {
    if half.packets > 0 && half.last_ns == 0 {
        half.first_ns = other.first_ns;
        half.last_ns = other.last_ns;
    }
}

impl KnownSide {
    /// What of a record is new; notes its beginnings.
    fn take(&mut self, reported: &ReportedSide) -> CountTotals {
        let known =
            reported.since.iter().find_map(|(at_ns, counts)| Some(self.before(*at_ns)?.plus(*counts)));
        let ends_at = match known {
            Some(ends_at) => ends_at,
            None if self.is_displaced(reported) => return CountTotals::default(),
            None => self.counted.plus(reported.unknown),
        };
        for (at_ns, counts) in reported.since {
            self.note(KnownBeginning { at_ns, before: ends_at.less(counts) });
        }
        let new = ends_at.beyond(self.counted);
        if new.packets > 0 {
            self.counted = ends_at;
        }
        new
    }

    fn before(&self, at_ns: u64) -> Option<CountTotals> {
        Some(self.beginnings.iter().find(|known| known.is_near(at_ns))?.before)
    }

    /// Whether it is of so long ago that later beginnings took the places of its own.
    fn is_displaced(&self, reported: &ReportedSide) -> bool {
        let oldest_ns = self.beginnings.iter().map(|known| known.at_ns).min().unwrap_or(0);
        reported.since.iter().all(|(at_ns, _)| *at_ns < oldest_ns)
    }

    fn note(&mut self, beginning: KnownBeginning) {
        if self.before(beginning.at_ns).is_none()
            && let Some(oldest) = self.beginnings.iter_mut().min_by_key(|known| known.at_ns)
            && beginning.at_ns > oldest.at_ns
        {
            *oldest = beginning;
        }
    }
}

impl KnownBeginning {
    const fn is_near(&self, at_ns: u64) -> bool {
        self.at_ns != 0 && self.at_ns.abs_diff(at_ns) < APART_NS
    }
}

impl GroupState {
    fn account(&mut self, mark: &GroupMark, before: u64, new: u64, now_ns: u64) {
        let counts = &mut self.counts;
        counts.records += 1;
        counts.known_packets += before.saturating_sub(new);
        counts.recovered_packets += new.saturating_sub(before);
        counts.repeated += u64::from(new == 0);
        counts.overlapping += u64::from(new > 0 && new < before);
        let meter = counts.meters.entry(mark.meter).or_default();
        meter.records += 1;
        meter.new_packets += new;
        meter.heard_ns = now_ns;
        if new > 0 {
            self.note_sender(mark.meter, now_ns);
        }
    }

    fn note_sender(&mut self, meter: u32, now_ns: u64) {
        if let Some((from, last_ns)) = self.sender.replace((meter, now_ns))
            && from != meter
        {
            let switches = &mut self.counts.switches;
            if switches.len() == SWITCHES {
                switches.remove(0);
            }
            switches.push(MeterSwitch { from, to: meter, last_ns, first_ns: now_ns });
            self.counts.switched += 1;
        }
    }
}

#[cfg(test)]
mod tests;
