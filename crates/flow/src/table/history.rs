//! What the flows of a table had since they began, if the meter is one of a group.
//!
//! It is brought up to date when a flow is reported, so packets cost nothing more.
//!
//! A flow whose timeout has passed is reported, and its slot is kept for a little longer. A packet that comes meanwhile is a
//! beginning only for meters whose clocks say so: it resumes the flow here, see [`FlowHistory`].
//!
//! Parts end at moments that all meters share: at multiples of a little less than the active timeout, moved for each flow by its
//! number. So what one
//! meter has reported no other one still holds back, but for packets around such a moment. For these every flow has a last record,
//! even one without packets: a meter that takes over sends it, and it says what the flow had in all.
//!
//! If a packet comes around a timeout, one meter may think that a flow has ended and another that it goes on. From then on they
//! may hear its end at different times, so the last record is given again after the longest timeout.

use super::slot::{FLIPPED, HotSlot};
use crate::history::{CountTotals, FlowHistory, FlowSince, GroupMark};
use crate::record::{EndReason, FlowHalf, FlowRecord};

/// How long a flow is kept after its timeout.
const LINGER_NS: u64 = 1_000_000_000;
/// A packet that comes this much before or after a timeout may be on the other side of it for another meter: more than clocks of
/// meters differ.
const APART_NS: u64 = 500_000_000;

/// Whether the last record of a flow was given, and whether it was for its own sake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum ToldEnd {
    #[default]
    No,
    Once,
    Again,
}

/// Directions are in the order of ends, not in that of the first packet.
#[derive(Clone, Copy, Debug, Default)]
struct SlotHistory {
    began_ns: u64,
    resumed_ns: u64,
    /// Reported since it began.
    reported: [CountTotals; 2],
    /// What of this was before it resumed.
    before: [CountTotals; 2],
    /// The last moment at which a part was cut while it was quiet, or 0, and what of `reported` was before.
    cut_ns: u64,
    before_cut: [CountTotals; 2],
    /// Its parts end at multiples of their length and this.
    phase: u64,
    /// What its last record says of its end.
    end: ToldEnd,
    /// Other meters may not agree on when it ends.
    is_doubtful: bool,
    is_whole: bool,
}

const _: () = assert!(size_of::<SlotHistory>() <= 192, "three lines of cache");

#[derive(Debug)]
pub(super) struct FlowHistories {
    mark: GroupMark,
    active: u64,
    idle: u64,
    /// The table may have missed or forgotten flows until then.
    unsure_ns: u64,
    /// The clock was set back: moments up to this one come twice.
    twice_until_ns: u64,
    slots: Vec<SlotHistory>,
}

impl FlowHistories {
    pub(super) fn new(mark: GroupMark, active: u64, idle: u64, slots: usize) -> Self {
        Self {
            mark,
            active: active.max(1),
            idle,
            unsure_ns: u64::MAX,
            twice_until_ns: 0,
            slots: vec![SlotHistory::default(); slots],
        }
    }

    /// The length of a part: a little less than the active timeout. Packets that come once in that time would otherwise come at the
    /// same moments as the ends of parts, and such a flow would never be quiet then.
    pub(super) const fn part(active: u64) -> u64 {
        active - active / 37
    }

    /// The shortest silence that another meter may take for one of the idle timeout.
    pub(super) const fn pause(idle: u64) -> u64 {
        idle.saturating_sub(APART_NS)
    }

    /// A flow is quiet around a moment if nothing came for this long before and after.
    pub(super) const QUIET_NS: u64 = 10_000_000;
    /// The memory it takes for a slot.
    pub(super) const SLOT_BYTES: usize = size_of::<SlotHistory>();

    /// The latest moment up to a time at which parts of the flow end.
    pub(super) fn part_start(&self, slot: usize, at_ns: u64) -> u64 {
        let phase = self.slots[slot].phase % self.active;
        at_ns.saturating_sub((at_ns % self.active + self.active - phase) % self.active)
    }

    /// Notes the number of the flow that a slot is for.
    pub(super) fn number(&mut self, slot: usize, flow_id: u64) {
        self.slots[slot].phase = flow_id;
    }

    /// When the last of all meters thinks that a flow has ended which ended here at `end_ns`.
    pub(super) fn ends_everywhere(&self, slot: usize, hot: &HotSlot, end_ns: u64) -> u64 {
        if self.slots[slot].is_doubtful { end_ns.max(hot.last().saturating_add(self.idle)) } else { end_ns }
    }

    /// Whether the last record of a flow that has ended is to be given, for the first time or again.
    pub(super) fn is_untold(&self, slot: usize, hot: &HotSlot, now_ns: u64) -> bool {
        let history = &self.slots[slot];
        let is_again_due = history.is_doubtful
            && history.end == ToldEnd::Once
            && now_ns >= hot.last().saturating_add(self.idle);
        (history.end == ToldEnd::No || is_again_due) && history.reported != [CountTotals::default(); 2]
    }

    /// A packet comes to a flow whose timeout is or was at `end_ns`.
    pub(super) fn hear(&mut self, slot: usize, end_ns: u64, at_ns: u64) {
        self.slots[slot].is_doubtful |= end_ns.abs_diff(at_ns) < APART_NS;
        self.slots[slot].end = self.slots[slot].end.min(ToldEnd::Once);
    }

    /// It is `now_ns` after it has been `before_ns`, which is later.
    pub(super) fn set_back(&mut self, before_ns: u64, now_ns: u64) {
        // Packets that overtook each other are closer together.
        if before_ns.saturating_sub(now_ns) >= Self::QUIET_NS {
            self.twice_until_ns = self.twice_until_ns.max(before_ns);
        }
    }

    /// A flow begins with a packet.
    pub(super) fn begin(&mut self, slot: usize, at_ns: u64) {
        let is_whole = at_ns >= Self::kept_until(self.unsure_ns.saturating_add(self.idle));
        let history = &mut self.slots[slot];
        *history = SlotHistory {
            began_ns: at_ns,
            resumed_ns: at_ns,
            phase: history.phase,
            is_whole,
            ..SlotHistory::default()
        };
    }

    /// A packet comes to a flow that has ended everywhere by `ended_ns`, or will have by then.
    pub(super) fn resume(&mut self, slot: usize, ended_ns: u64, at_ns: u64) {
        if at_ns >= Self::kept_until(ended_ns) {
            return self.begin(slot, at_ns);
        }
        let history = &mut self.slots[slot];
        history.resumed_ns = at_ns;
        history.before = history.reported;
        history.end = ToldEnd::No;
    }

    /// Until this time the table was not there, or forgot flows before their time.
    pub(super) fn forget_until(&mut self, now_ns: u64) {
        self.unsure_ns = if self.unsure_ns == u64::MAX { now_ns } else { self.unsure_ns.max(now_ns) };
    }

    /// Whether the flow was quiet when its part was cut that is reported because of what happened at `at_ns`.
    pub(super) fn quiet_cut(&self, slot: usize, hot: &HotSlot, at_ns: u64) -> u64 {
        let cut_ns = hot.start.saturating_add(self.active);
        // Of a moment that comes twice, another meter may mean the other time. A part that goes back does not end at a moment.
        let is_shared = cut_ns > self.twice_until_ns && self.part_start(slot, cut_ns) == cut_ns;
        let is_quiet = is_shared
            && cut_ns.saturating_sub(hot.last()) >= Self::QUIET_NS
            && at_ns.saturating_sub(cut_ns) >= Self::QUIET_NS;
        if is_quiet { cut_ns } else { 0 }
    }

    /// Until when a flow is kept that has ended everywhere by `ended_ns`.
    pub(super) const fn kept_until(ended_ns: u64) -> u64 {
        ended_ns.saturating_add(LINGER_NS)
    }

    /// Adds what is reported; returns what the record says of the flow's history.
    pub(super) fn report(
        &mut self,
        slot: usize,
        hot: &HotSlot,
        record: &FlowRecord,
        cut_ns: u64,
    ) -> FlowHistory {
        let flipped = hot.is(FLIPPED);
        let history = &mut self.slots[slot];
        history.end = match (record.end, record.packets()) {
            (EndReason::Active, _) => ToldEnd::No,
            // Without packets it is the last one, given for its own sake.
            (_, 0) => ToldEnd::Again,
            _ => ToldEnd::Once,
        };
        for (half, direction) in
            [(&record.forward, usize::from(flipped)), (&record.reverse, usize::from(!flipped))]
        {
            history.reported[direction] = history.reported[direction].plus(totals(half));
        }
        if cut_ns > 0 {
            (history.cut_ns, history.before_cut) = (cut_ns, history.reported);
        }
        let since = |at_ns, before: [CountTotals; 2]| {
            let counts = |direction: usize| history.reported[direction].less(before[direction]);
            FlowSince { at_ns, forward: counts(flipped.into()), reverse: counts((!flipped).into()) }
        };
        FlowHistory {
            mark: self.mark,
            flipped,
            is_whole: history.is_whole,
            began: since(history.began_ns, [CountTotals::default(); 2]),
            resumed: since(history.resumed_ns, history.before),
            cut: since(history.cut_ns, history.before_cut),
        }
    }
}

const fn totals(half: &FlowHalf) -> CountTotals {
    CountTotals { packets: half.packets, bytes: half.bytes, frame_bytes: half.frame_bytes }
}
