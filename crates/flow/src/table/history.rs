//! What a meter of a group says of the flows of a table, see [`FlowHistory`].
//!
//! Parts of flows end at moments that all meters share: at multiples of the active timeout, moved for each flow by its number. In
//! each part, the packet of each direction with the smallest number is its landmark; the first packet after a silence of the flow is
//! one, too, and so is the last one before. So meters choose the same landmarks, but for packets around the moments at which parts end.
//!
//! A flow that has ended is kept for a little longer: a packet that comes meanwhile may have come before the end at another meter,
//! which then reports both together. So does this one, from what it followed before.
//!
//! Every flow has a last record, even one without packets: a packet around the end of a part may be in that part here and in the
//! next one at a meter that reported all of it.
//!
//! Invariant: between the packet from which a meter follows a flow and the end of its last record, it has lost nothing that it knows
//! of. After a loss it follows the flow from the next packet on, as if it had just been started.

mod direction;

use super::TableOptions;
use super::hints::MemoryHints;
use super::memory;
use super::slot::{FLIPPED, HotSlot};
use crate::history::{CountTotals, FlowHistory, GroupMark};
use crate::packet::PacketInfo;
use crate::record::{EndReason, FlowHalf, FlowRecord};
use direction::{LANDMARKS, SeenDirection};

/// How much of the idle timeout a silence may lack for another meter to have taken it for the flow's end.
const APART_NS: u64 = 500_000_000;

/// In one part, meters whose clocks differ may choose different landmarks.
const STRANGE_PARTS: u8 = 2;

/// Directions are in the order of ends, not in that of the first packet.
#[derive(Clone, Copy, Debug, Default)]
struct SlotHistory {
    directions: [SeenDirection; 2],
    since_ns: u64,
    /// Its parts end at multiples of their length and this.
    phase: u64,
    /// Losses that were known when the meter began to follow it.
    losses: u32,
    /// The next packet of this direction comes after a silence.
    awaits_first: [bool; 2],
    /// A record told that it has ended.
    is_end_told: bool,
    /// Parts that the meter is to see whole before other meters surely know a landmark of it.
    strange_parts: u8,
}

#[derive(Debug)]
pub(super) struct FlowHistories {
    mark: GroupMark,
    active: u64,
    idle: u64,
    /// See [`TableOptions`].
    begins_with_all: bool,
    /// The table may have missed or forgotten flows until then.
    unsure_ns: u64,
    losses: u32,
    has_open_loss: bool,
    /// Slots that are strange.
    strange: usize,
    slots: Vec<SlotHistory>,
}

impl FlowHistories {
    pub(super) fn new<H: MemoryHints>(mark: GroupMark, options: &TableOptions, slots: usize) -> Self {
        Self {
            mark,
            active: options.active.as_u64().max(1),
            idle: options.idle.as_u64(),
            begins_with_all: options.begins_with_all,
            unsure_ns: 0,
            losses: 0,
            has_open_loss: false,
            strange: 0,
            slots: memory::reserved::<H, _>(slots),
        }
    }

    /// Is ready for so many slots.
    pub(super) fn hold(&mut self, slots: usize) {
        self.slots.resize(slots, SlotHistory::default());
    }

    /// Where they are in memory: they never move.
    #[cfg(test)]
    pub(super) const fn place(&self) -> *const u8 {
        self.slots.as_ptr().cast()
    }

    /// Slots whose memory was touched.
    #[cfg(test)]
    pub(super) const fn held(&self) -> usize {
        self.slots.len()
    }

    /// The shortest silence that another meter may take for the end of a flow.
    pub(super) const fn pause(idle: u64) -> u64 {
        let least = idle / 2;
        let most = idle.saturating_sub(APART_NS);
        if most > least { most } else { least }
    }

    /// How long a flow is kept after its end.
    pub(super) const LINGER_NS: u64 = 1_000_000_000;

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

    /// A flow begins in a slot with a packet.
    pub(super) fn begin(&mut self, slot: usize, at_ns: u64) {
        let is_strange = self.unsure_ns > 0 && at_ns < self.unsure_ns.saturating_add(self.idle);
        self.strange += usize::from(is_strange);
        self.slots[slot] = SlotHistory {
            since_ns: at_ns,
            losses: self.losses,
            awaits_first: [!is_strange; 2],
            strange_parts: if is_strange { STRANGE_PARTS } else { 0 },
            ..SlotHistory::default()
        };
    }

    /// The flow was silent before its next packet, so that other meters may begin with it.
    pub(super) fn resume(&mut self, slot: usize) {
        self.slots[slot].awaits_first = [true; 2];
    }

    /// The slot is given up.
    pub(super) fn end(&mut self, slot: usize) {
        self.strange -= usize::from(std::mem::take(&mut self.slots[slot].strange_parts) > 0);
    }

    /// Until this time the table was not there, or forgot flows before their time.
    pub(super) fn forget_until(&mut self, now_ns: u64) {
        self.unsure_ns = self.unsure_ns.max(now_ns);
    }

    /// It is the time of the first packet, or the table is asked what is due before.
    pub(super) fn start(&mut self, now_ns: u64) {
        if !self.begins_with_all {
            self.forget_until(now_ns);
        }
    }

    /// Packets were lost before the table, up to the next one that comes.
    pub(super) const fn mark_loss(&mut self) {
        self.losses = self.losses.wrapping_add(1);
        self.has_open_loss = true;
    }

    /// A packet comes, or it is known that there is none, at a time.
    pub(super) fn look(&mut self, now_ns: u64) {
        if std::mem::take(&mut self.has_open_loss) {
            self.forget_until(now_ns);
        }
    }

    /// Flows of which other meters may know no landmark.
    pub(super) const fn strange(&self) -> usize {
        self.strange
    }

    /// Takes a packet that goes from the upper end to the lower or not. `part`: what the slot has counted of this direction and
    /// not reported yet, with the packet.
    #[inline]
    pub(super) fn see(
        &mut self,
        slot: usize,
        flipped: bool,
        packet: &PacketInfo,
        part: impl FnOnce() -> CountTotals,
    ) {
        let history = &mut self.slots[slot];
        let direction = &mut history.directions[usize::from(flipped)];
        let is_alike = direction.recent.contains(&packet.content);
        let is_in_part = direction.until_ns.wrapping_sub(packet.at_ns).wrapping_sub(1) < self.active;
        let is_usual = is_in_part
            && packet.content > direction.landmarks[0].content
            && !is_alike
            && !history.awaits_first[usize::from(flipped)];
        if !is_usual {
            self.see_landmark(slot, flipped, packet, part);
        }
        let direction = &mut self.slots[slot].directions[usize::from(flipped)];
        direction.recent.rotate_right(1);
        direction.recent[0] = packet.content;
        direction.last_ns = packet.at_ns;
    }

    #[cold]
    #[inline(never)]
    fn see_landmark(
        &mut self,
        slot: usize,
        flipped: bool,
        packet: &PacketInfo,
        part: impl FnOnce() -> CountTotals,
    ) {
        let part_start = self.part_start(slot, packet.at_ns);
        let history = &mut self.slots[slot];
        let is_first = std::mem::take(&mut history.awaits_first[usize::from(flipped)]);
        let direction = &mut history.directions[usize::from(flipped)];
        let is_in_part = direction.until_ns.wrapping_sub(packet.at_ns).wrapping_sub(1) < self.active;
        if is_in_part && !is_first && !direction.is_smaller(packet) {
            return direction.see_alike(packet, part);
        }
        let seen = direction.reported.plus(part());
        let landmark = direction.landmark(packet, seen, is_first);
        if !is_in_part || is_first {
            direction.landmarks.copy_within(..LANDMARKS - 1, 1);
            // Of what comes after the first packet, one is chosen as in any part.
            direction.until_ns = if is_first { 0 } else { part_start.saturating_add(self.active) };
        }
        direction.landmarks[0] = landmark;
    }

    /// Whether packets were lost since the meter follows the flow in a slot.
    #[inline]
    pub(super) fn has_lost(&self, slot: usize) -> bool {
        self.slots[slot].losses != self.losses
    }

    /// Follows the flow from its next packet on, after all before the loss was reported.
    pub(super) fn restart(&mut self, slot: usize, at_ns: u64) {
        let history = &mut self.slots[slot];
        self.strange += usize::from(history.strange_parts == 0);
        *history = SlotHistory {
            directions: history.directions.map(|direction| direction.emptied()),
            since_ns: at_ns,
            phase: history.phase,
            losses: self.losses,
            strange_parts: STRANGE_PARTS,
            ..Default::default()
        };
    }

    /// Adds what is reported; returns what the record says of the flow's history. `cut_ns`: the end of the part, if that is why.
    pub(super) fn report(
        &mut self,
        slot: usize,
        hot: &HotSlot,
        record: &FlowRecord,
        cut_ns: Option<u64>,
    ) -> FlowHistory {
        let flipped = hot.is(FLIPPED);
        let history = &mut self.slots[slot];
        for (half, direction) in
            [(&record.forward, usize::from(flipped)), (&record.reverse, usize::from(!flipped))]
        {
            history.directions[direction].reported =
                history.directions[direction].reported.plus(totals(half));
        }
        let is_known = cut_ns.is_some_and(|cut_ns| cut_ns.saturating_sub(self.active) >= history.since_ns);
        if history.strange_parts > 0 && is_known {
            history.strange_parts -= 1;
            self.strange -= usize::from(history.strange_parts == 0);
        }
        // Of a flow that was going on, what came before may be like what the meter saw.
        let since_ns = if history.strange_parts > 0 { history.since_ns } else { 0 };
        let mut directions = history.directions.map(|direction| direction.told(since_ns));
        history.is_end_told = matches!(record.end, EndReason::Idle | EndReason::EndOfFlow);
        if history.is_end_told {
            let last_ns = [hot.last[usize::from(flipped)], hot.last[usize::from(!flipped)]];
            for (at, direction) in directions.iter_mut().enumerate() {
                direction.add_last(history.directions[at].last(last_ns[at], self.idle));
            }
        }
        let [first, second] = directions;
        let (forward, reverse) = if flipped { (second, first) } else { (first, second) };
        let Self { mark, .. } = *self;
        FlowHistory {
            mark,
            flipped,
            is_strange: history.strange_parts > 0,
            since_ns: history.since_ns,
            forward,
            reverse,
        }
    }

    /// Whether something of the flow was reported since the meter follows it, but not its end.
    pub(super) fn is_end_untold(&self, slot: usize) -> bool {
        let SlotHistory { directions, is_end_told, .. } = &self.slots[slot];
        !is_end_told && directions.iter().any(|direction| direction.reported != CountTotals::default())
    }
}

const fn totals(half: &FlowHalf) -> CountTotals {
    CountTotals { packets: half.packets, bytes: half.bytes, frame_bytes: half.frame_bytes }
}
