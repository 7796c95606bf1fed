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

mod counts;

pub use counts::{GroupCounts, GroupSwitch, MeterPart};

use crate::history::{CountTotals, FlowHistory, FlowSince, GroupMark};
use crate::membership::GroupMembership;
use crate::record::{FlowHalf, FlowRecord};
use packetrig_units::Nanos;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Beginnings of each of the two kinds that are remembered of one flow, the latest. There is a silence between two of them, so they
/// span more time than a meter that takes over sends again.
const BEGINNINGS: usize = 3;
/// How far apart the times of one packet may be at two meters: less than two beginnings of a flow.
const APART_NS: u64 = 500_000_000;
/// Groups that have an account: senders choose their numbers.
const GROUPS: usize = 64;

/// Bounds of what is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupOptions {
    /// Directions of flows that are remembered for a time; twice as many at most.
    pub flows: usize,
    /// That time: longer than the meters' active timeout.
    pub memory: Nanos,
}

impl GroupOptions {
    /// As many flows as fit into so much memory.
    pub fn within(memory: usize) -> Self {
        // A map has a power of two of buckets and fills seven eighths of them. There are two maps, and while one of them grows it
        // takes half as much again.
        let mut buckets: usize = 16;
        while buckets < 1 << 24 && 2 * buckets * SIDE_BYTES / 2 * 5 <= memory {
            buckets *= 2;
        }
        Self { flows: buckets / 8 * 7, ..Self::default() }
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

/// A packet with which a direction began or resumed, or a moment between two packets.
#[derive(Clone, Copy, Debug, Default)]
struct KnownBeginning {
    at_ns: u64,
    /// The direction's whole count before it. Only differences matter, so it may be below zero.
    before: CountTotals,
}

/// What is known of a direction.
#[derive(Clone, Debug, Default)]
struct KnownSide {
    /// Its whole count, from the first record on, as far as records could be placed in it.
    firm: CountTotals,
    /// What was given out beyond that, of meters that came while the flow was going on.
    loose: CountTotals,
    /// Where in the whole count that begins which was given out: below zero, if a meter turned out to have seen more.
    floor: CountTotals,
    /// The first and the last packet of all that.
    first_ns: u64,
    last_ns: u64,
    /// With which it began, and with which it resumed; unused places are at time 0.
    beginnings: [[KnownBeginning; BEGINNINGS]; 2],
    /// Moments at which the flow was cut and quiet; unused places are at time 0.
    cuts: [KnownBeginning; BEGINNINGS],
    /// What a meter said since such a moment that does not know how much there was before.
    unplaced: Option<Box<ReportedSide>>,
}

/// What a record says of a direction.
#[derive(Clone, Copy, Debug)]
struct ReportedSide {
    /// Since when it had how much.
    since: [(u64, CountTotals); 2],
    /// What the record has for itself.
    own: CountTotals,
    /// Whether all since the first beginning is of this flow and nothing of it was forgotten.
    is_whole: bool,
    /// Whether all of it was reported to this collector.
    is_ours: bool,
    first_ns: u64,
    last_ns: u64,
    /// See [`FlowHistory::cut`].
    cut: (u64, CountTotals),
}

/// What a record brought.
#[derive(Clone, Copy, Debug)]
enum SideNews {
    New(CountTotals),
    /// Its meter came while the flow was going on.
    Unplaced,
}

/// What of a record's packets could not be placed, and how many of its directions may have been forgotten.
#[derive(Clone, Copy, Debug, Default)]
struct JoinedRecord {
    unplaced: u64,
    forgotten: u64,
}

/// What a direction takes in the map.
const SIDE_BYTES: usize = size_of::<(FlowSide, KnownSide)>() + 1;

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
    /// Whether flows were forgotten because they were too many.
    is_crowded: bool,
    groups: BTreeMap<u64, GroupCounts>,
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

    /// Counts a record that another process of this collector has taken already, as far as anybody can know.
    pub fn pass_over(&mut self, record: &FlowRecord, now_ns: u64) {
        if let Some(history) = &record.history
            && let Some(counts) = self.account(history.mark.group)
        {
            counts.account(history.mark.meter, [record.packets(), 0, 0], now_ns);
        }
    }

    /// Notes a record that was given out before, by another process of this collector: it is not given out again.
    pub fn recall(&mut self, mut record: FlowRecord, now_ns: u64) {
        if let Some(history) = record.history.take() {
            self.turn(now_ns);
            self.newest_ns = self.newest_ns.max(record.last_ns());
            self.join(&history, &mut record);
        }
    }

    /// Takes a record that arrived at a time of a clock that is never set; returns what of it is new.
    pub fn take(&mut self, mut record: FlowRecord, now_ns: u64) -> Option<FlowRecord> {
        let Some(history) = record.history.take() else { return Some(record) };
        self.turn(now_ns);
        let before = record.packets();
        self.newest_ns = self.newest_ns.max(record.last_ns());
        let joined = self.join(&history, &mut record);
        mend_times(&mut record);
        if let Some(counts) = self.account(history.mark.group) {
            counts.forgotten += joined.forgotten;
            counts.account(history.mark.meter, [before, joined.unplaced, record.packets()], now_ns);
        }
        if record.packets() == 0 {
            return None;
        }
        // Stored with what is new: a collector that is started again knows from it what it has.
        let mut fields = record.foreign.take().map(Arc::unwrap_or_clone).unwrap_or_default();
        history.add_to(&mut fields.others);
        record.foreign = Some(Arc::new(fields));
        Some(record)
    }

    /// Takes what a meter says of its place in its group.
    pub fn note(&mut self, membership: &GroupMembership) {
        if let Some(counts) = self.account(membership.group) {
            counts.note(membership);
        }
    }

    /// The account of a group, if there is one or room for it.
    fn account(&mut self, group: u64) -> Option<&mut GroupCounts> {
        let has_room = self.groups.len() < GROUPS || self.groups.contains_key(&group);
        has_room.then(|| self.groups.entry(group).or_default())
    }

    /// Memory that the flows take, in bytes.
    pub fn memory(&self) -> usize {
        (self.recent.capacity() + self.older.capacity()) / 7 * 8 * SIDE_BYTES
    }

    /// What became of each group's records, by the groups' numbers.
    pub fn groups(&self) -> impl Iterator<Item = (u64, &GroupCounts)> {
        self.groups.iter().map(|(group, counts)| (*group, counts))
    }

    /// Leaves of a record what is new.
    fn join(&mut self, history: &FlowHistory, record: &mut FlowRecord) -> JoinedRecord {
        let GroupMark { group, lane, .. } = history.mark;
        let (first_ns, last_ns, flow_id) = (record.first_ns(), record.last_ns(), record.flow_id);
        let is_ours = history.began.at_ns > self.whole_from_ns;
        let mut joined = JoinedRecord::default();
        let may_be_forgotten = self.is_crowded && !is_ours;
        for (half, is_reverse) in [(&mut record.forward, false), (&mut record.reverse, true)] {
            let side = ReportedSide {
                since: [history.began, history.resumed].map(|since| reported(&since, is_reverse)),
                own: CountTotals { packets: half.packets, bytes: half.bytes, frame_bytes: half.frame_bytes },
                is_whole: history.is_whole && is_ours,
                is_ours,
                first_ns,
                last_ns,
                cut: reported(&history.cut, is_reverse),
            };
            let place = FlowSide { group, flow_id, lane, is_second: history.flipped != is_reverse };
            let known = self.known_side(place);
            joined.forgotten += u64::from(may_be_forgotten && known.last_ns == 0);
            let new = match known.take(&side) {
                SideNews::New(new) => new,
                SideNews::Unplaced => {
                    joined.unplaced += half.packets;
                    CountTotals::default()
                }
            };
            (half.packets, half.bytes, half.frame_bytes) = (new.packets, new.bytes, new.frame_bytes);
        }
        joined
    }

    fn known_side(&mut self, place: FlowSide) -> &mut KnownSide {
        let older = &mut self.older;
        self.recent.entry(place).or_insert_with(|| older.remove(&place).unwrap_or_default())
    }

    /// Forgets flows that nobody asked for in the last time, or that are too many.
    fn turn(&mut self, now_ns: u64) {
        let is_old = now_ns.saturating_sub(self.turned_ns) >= self.options.memory.as_u64();
        let is_full = self.recent.len() >= self.options.flows.max(1);
        if is_old || is_full {
            self.is_crowded |= !is_old && !self.older.is_empty();
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
    fn take(&mut self, reported: &ReportedSide) -> SideNews {
        if self.is_displaced(reported) {
            return SideNews::New(CountTotals::default());
        }
        self.settle(reported);
        let Some(ends_at) = self.end_of(reported) else { return self.take_loose(reported) };
        if self.last_ns == 0 {
            // What it had before its own packets was given out by somebody else.
            self.floor = ends_at.less(reported.since[0].1).least(CountTotals::default());
        }
        let more = self.place(reported, ends_at);
        let counted = self.firm.plus(self.loose);
        if ends_at.beyond(self.firm).packets > 0 {
            self.loose = counted.beyond(ends_at);
            self.firm = ends_at;
            self.note_times(reported);
        }
        let new = ends_at.beyond(counted).plus(more);
        SideNews::New(new.plus(self.take_placed()))
    }

    /// Takes what a meter said before anybody could place it, if that can be done by now. Returns what of it is new.
    fn take_placed(&mut self) -> CountTotals {
        let Self { cuts, unplaced, .. } = self;
        let placed = unplaced.take_if(|unplaced| before_cut(cuts, unplaced.cut.0).is_some());
        match placed.map(|placed| self.take(&placed)) {
            Some(SideNews::New(new)) => new,
            Some(SideNews::Unplaced) | None => CountTotals::default(),
        }
    }

    /// Notes what a record says whose end in the whole count is known. Returns how much the count has before all that was given out.
    fn place(&mut self, reported: &ReportedSide, ends_at: CountTotals) -> CountTotals {
        for (known, (at_ns, counts)) in self.beginnings.iter_mut().zip(&reported.since) {
            let beginning = KnownBeginning { at_ns: *at_ns, before: ends_at.less(*counts) };
            note(known, beginning);
        }
        // At this moment the whole count was so much: that places a meter that says what it had since then.
        let (cut_ns, since_cut) = reported.cut;
        note_cut(&mut self.cuts, KnownBeginning { at_ns: cut_ns, before: ends_at.less(since_cut) });
        self.lower_floor(reported, ends_at)
    }

    /// A meter may have seen more of a flow than the one that was the first to report it.
    fn lower_floor(&mut self, reported: &ReportedSide, ends_at: CountTotals) -> CountTotals {
        let begins_at = ends_at.less(reported.since[0].1);
        let more = self.floor.beyond(begins_at);
        if !reported.is_ours || more.packets == 0 {
            return CountTotals::default();
        }
        self.floor = begins_at;
        self.first_ns = self.first_ns.min(reported.first_ns);
        more
    }

    /// What is new of a record that cannot be placed: all or nothing.
    fn take_loose(&mut self, reported: &ReportedSide) -> SideNews {
        if reported.cut.0 > 0 {
            self.unplaced = Some(Box::new(*reported));
        }
        if reported.first_ns <= self.last_ns {
            return SideNews::Unplaced;
        }
        self.loose = self.loose.plus(reported.own);
        self.note_times(reported);
        SideNews::New(reported.own)
    }

    /// Brings what could not be placed into line with a record of a meter that saw the whole flow.
    fn settle(&mut self, reported: &ReportedSide) {
        let [(began_ns, _), _] = reported.since;
        if !reported.is_whole || self.known_end(reported).is_some() {
            return;
        }
        let counted = self.firm.plus(self.loose);
        if began_ns > self.last_ns {
            // It comes after all that.
            (self.firm, self.loose) = (counted, CountTotals::default());
        } else if began_ns < self.first_ns {
            // It contains all that, so whoever was placed in it was not placed rightly.
            *self =
                Self { loose: counted, first_ns: self.first_ns, last_ns: self.last_ns, ..Self::default() };
        }
    }

    fn note_times(&mut self, reported: &ReportedSide) {
        self.first_ns =
            if self.last_ns == 0 { reported.first_ns } else { self.first_ns.min(reported.first_ns) };
        self.last_ns = self.last_ns.max(reported.last_ns);
    }

    /// Where in the whole count a record ends, if that can be told.
    fn end_of(&self, reported: &ReportedSide) -> Option<CountTotals> {
        let whole = || reported.is_whole.then(|| self.firm.plus(reported.since[0].1));
        // Nobody else has told anything of the flow.
        let first = || (self.last_ns == 0).then_some(reported.own);
        self.known_end(reported).or_else(whole).or_else(first)
    }

    fn known_end(&self, reported: &ReportedSide) -> Option<CountTotals> {
        let known =
            reported.since.iter().find_map(|(at_ns, counts)| Some(self.before(*at_ns)?.plus(*counts)));
        known.or_else(|| Some(before_cut(&self.cuts, reported.cut.0)?.plus(reported.cut.1)))
    }

    fn before(&self, at_ns: u64) -> Option<CountTotals> {
        Some(self.beginnings.as_flattened().iter().find(|known| known.is_near(at_ns))?.before)
    }

    /// Whether it is of so long ago that later beginnings took the places of its own.
    fn is_displaced(&self, reported: &ReportedSide) -> bool {
        let [(began_ns, _), _] = reported.since;
        let oldest_ns = self.beginnings[0].iter().map(|known| known.at_ns).min().unwrap_or(0);
        began_ns < oldest_ns && reported.since.iter().all(|(at_ns, _)| self.before(*at_ns).is_none())
    }
}

/// The count before a moment at which the flow was cut and quiet, if it is a known one.
fn before_cut(cuts: &[KnownBeginning], cut_ns: u64) -> Option<CountTotals> {
    Some(cuts.iter().find(|cut| cut_ns > 0 && cut.at_ns == cut_ns)?.before)
}

/// Notes a beginning in the place of the oldest, unless it is known or older.
fn note(all: &mut [KnownBeginning], beginning: KnownBeginning) {
    let is_known = all.iter().any(|known| known.is_near(beginning.at_ns));
    let oldest = all.iter_mut().min_by_key(|known| known.at_ns);
    if let Some(oldest) = oldest.filter(|oldest| !is_known && oldest.at_ns < beginning.at_ns) {
        *oldest = beginning;
    }
}

/// Notes a moment at which the flow was cut and quiet in the place of the oldest. The oldest is the one with the least before it: a
/// clock that is set back names earlier moments later.
fn note_cut(cuts: &mut [KnownBeginning], cut: KnownBeginning) {
    if cut.at_ns == 0 || before_cut(cuts, cut.at_ns).is_some() {
        return;
    }
    let rank =
        |known: &KnownBeginning| (known.at_ns > 0, known.before.less(cut.before).packets.cast_signed());
    let oldest = cuts.iter_mut().min_by_key(|known| rank(known));
    if let Some(oldest) = oldest.filter(|oldest| rank(oldest) <= (true, 0)) {
        *oldest = cut;
    }
}

impl KnownBeginning {
    const fn is_near(&self, at_ns: u64) -> bool {
        self.at_ns != 0 && self.at_ns.abs_diff(at_ns) < APART_NS
    }
}

#[cfg(test)]
mod tests;
