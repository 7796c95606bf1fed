//! History of the flows of a table at a meter of a group, see [`FlowHistory`].
//!
//! Parts of flows end at moments that all meters share: at multiples of the active timeout, shifted for each flow by
//! its number. In each part, the packet of each direction with the smallest content hash is the landmark of the part.
//! The last packet before a silence of the flow and the first packet after it are landmarks, too. So meters choose the
//! same landmarks, except for packets around the moments at which parts end.
//!
//! An ended flow is kept a little longer. A packet in that time may have come before the end at another meter, which
//! then counts it to the same flow. So this meter does the same, and continues the totals of the ended flow.
//!
//! Every flow has a last record, even an empty one: a packet around the end of a part may be in that part
//! here and in the next part at another meter.
//!
//! Invariant: between the packet from which a meter follows a flow and the end of its last record, no loss of the meter
//! is known. After a loss it follows the flow from the next packet on, as if it had just started.

mod direction;

use super::TableOptions;
use super::hints::MemoryHints;
use super::memory;
use super::slot::{FLIPPED_STATE, HotSlot};
use crate::history::{CountTotals, FlowHistory, RecordOriginMark};
use crate::packet::PacketInfo;
use crate::record::{EndReason, FlowHalf, FlowRecord};
use direction::{MAX_KEPT_LANDMARKS, ObservedDirection};

/// Tolerance of the idle timeout: another meter may have ended a flow after a silence that is shorter by this.
const IDLE_TIMEOUT_TOLERANCE_NS: u64 = 500_000_000;

/// Number of parts that a meter must see whole until other meters recognise a flow that was already running. One is not
/// enough: meters whose clocks differ may choose different landmarks in it.
const PARTS_UNTIL_RECOGNISED: u8 = 2;

/// History of the flow in a slot. Directions are in the order of the endpoints, not in that of the first packet.
#[derive(Clone, Copy, Debug, Default)]
struct SlotHistory {
    directions: [ObservedDirection; 2],
    since_ns: u64,
    /// Offset of the part boundaries, which are at multiples of the part length plus this.
    phase: u64,
    /// Number of losses that were known when the meter began to follow the flow.
    losses: u32,
    /// True if the next packet of this direction comes after a silence.
    awaits_first: [bool; 2],
    /// True if a record reported the end of the flow.
    is_end_told: bool,
    /// Number of parts that the meter must still see whole before other meters are sure to know a landmark of the flow.
    strange_parts: u8,
}

#[derive(Debug)]
pub(super) struct FlowHistories {
    mark: RecordOriginMark,
    active: u64,
    idle: u64,
    /// See [`TableOptions::begins_with_all`].
    begins_with_all: bool,
    /// Time until which the table may have missed or forgotten flows.
    unsure_ns: u64,
    losses: u32,
    has_open_loss: bool,
    /// Number of slots whose flows other meters may not recognise yet.
    strange: usize,
    slots: Vec<SlotHistory>,
}

impl FlowHistories {
    pub(super) fn new<H: MemoryHints>(mark: RecordOriginMark, options: &TableOptions, slots: usize) -> Self {
        Self {
            mark,
            // The value is never zero: `part_start` divides by it.
            active: options.active.as_u64().max(1),
            idle: options.idle.as_u64(),
            begins_with_all: options.begins_with_all,
            unsure_ns: 0,
            losses: 0,
            has_open_loss: false,
            strange: 0,
            slots: memory::reserve_values::<H, _>(slots),
        }
    }

    /// Adds histories of unused slots until there are this many.
    pub(super) fn resize_slots(&mut self, slots: usize) {
        self.slots.resize(slots, SlotHistory::default());
    }

    /// Returns the address of the slots: they never move.
    #[cfg(test)]
    pub(super) const fn slots_address(&self) -> *const u8 {
        self.slots.as_ptr().cast()
    }

    /// Slots with touched memory.
    #[cfg(test)]
    pub(super) const fn touched_slots(&self) -> usize {
        self.slots.len()
    }

    /// Returns the shortest silence that another meter may treat as the end of a flow.
    pub(super) const fn shortest_pause(idle: u64) -> u64 {
        // A user may set an idle timeout below the tolerance. Then half of the timeout is used.
        let least = idle / 2;
        let most = idle.saturating_sub(IDLE_TIMEOUT_TOLERANCE_NS);
        if most > least { most } else { least }
    }

    /// Time for which a flow is kept after its end.
    pub(super) const ENDED_FLOW_KEEP_TIME_NS: u64 = 1_000_000_000;

    /// Memory that the history of a slot takes, in bytes.
    pub(super) const SLOT_BYTES: usize = size_of::<SlotHistory>();

    /// Returns the latest boundary between parts of the flow up to a time.
    pub(super) fn part_start(&self, slot: usize, at_ns: u64) -> u64 {
        let phase = self.slots[slot].phase % self.active;
        at_ns.saturating_sub((at_ns % self.active + self.active - phase) % self.active)
    }

    /// Sets the number of the flow in a slot, which shifts the boundaries of its parts.
    pub(super) fn record_flow_id(&mut self, slot: usize, flow_id: u64) {
        self.slots[slot].phase = flow_id;
    }

    /// Begins the history of a flow in a slot with the time of its first packet.
    pub(super) fn begin_flow(&mut self, slot: usize, at_ns: u64) {
        // Until one idle timeout after a gap, a packet may belong to a flow that was already running. The first
        // packet of such a flow is unknown: this meter did not see the silence before it.
        let is_strange = self.unsure_ns > 0 && at_ns < self.unsure_ns.saturating_add(self.idle);
        self.strange += usize::from(is_strange);
        self.slots[slot] = SlotHistory {
            since_ns: at_ns,
            losses: self.losses,
            awaits_first: [!is_strange; 2],
            strange_parts: if is_strange { PARTS_UNTIL_RECOGNISED } else { 0 },
            ..SlotHistory::default()
        };
    }

    /// Records that the flow was silent before its next packet, so that this packet becomes a landmark.
    pub(super) fn record_silence(&mut self, slot: usize) {
        self.slots[slot].awaits_first = [true; 2];
    }

    /// Ends the history in a slot after its flow left the table: the flow no longer counts as strange.
    pub(super) fn end_flow(&mut self, slot: usize) {
        self.strange -= usize::from(std::mem::take(&mut self.slots[slot].strange_parts) > 0);
    }

    /// Records that the table did not exist until this time, or forgot flows early.
    pub(super) fn mark_unobserved_until(&mut self, now_ns: u64) {
        self.unsure_ns = self.unsure_ns.max(now_ns);
    }

    /// Sets the start: the time of the first packet, or of the first call without one.
    pub(super) fn start_at(&mut self, now_ns: u64) {
        if !self.begins_with_all {
            self.mark_unobserved_until(now_ns);
        }
    }

    /// Records a loss of packets before the table, up to the next packet.
    pub(super) const fn mark_packet_loss(&mut self) {
        self.losses = self.losses.wrapping_add(1);
        self.has_open_loss = true;
    }

    /// Closes an open loss at the time of a packet, or at a time until which no packet came.
    pub(super) fn close_open_loss(&mut self, now_ns: u64) {
        if std::mem::take(&mut self.has_open_loss) {
            self.mark_unobserved_until(now_ns);
        }
    }

    /// Returns the number of flows that other meters may not recognise yet by a landmark.
    pub(super) const fn strange_flows(&self) -> usize {
        self.strange
    }

    /// Records a packet of a direction; `flipped`: from the upper end to the lower. `part`: the totals of this
    /// direction in the slot that are not reported yet, with the packet.
    #[inline]
    pub(super) fn record_history_packet(
        &mut self,
        slot: usize,
        flipped: bool,
        packet: &PacketInfo,
        part: impl FnOnce() -> CountTotals,
    ) {
        let history = &mut self.slots[slot];
        let direction = &mut history.directions[usize::from(flipped)];
        let is_alike = direction.recent.contains(&packet.content);
        // One comparison tests both ends of the part: after its end, the difference wraps to a large number.
        let is_in_part = direction.until_ns.wrapping_sub(packet.at_ns).wrapping_sub(1) < self.active;
        let is_usual = is_in_part
            && packet.content > direction.landmarks[0].content
            && !is_alike
            && !history.awaits_first[usize::from(flipped)];
        if !is_usual {
            self.record_landmark(slot, flipped, packet, part);
        }
        let direction = &mut self.slots[slot].directions[usize::from(flipped)];
        direction.recent.rotate_right(1);
        direction.recent[0] = packet.content;
        direction.last_ns = packet.at_ns;
    }

    #[cold]
    #[inline(never)]
    fn record_landmark(
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
        if is_in_part && !is_first && !direction.has_smaller_content(packet) {
            return direction.record_similar_packet(packet, part);
        }
        let seen = direction.reported.plus(part());
        let landmark = direction.new_landmark(packet, seen, is_first);
        if !is_in_part || is_first {
            direction.landmarks.copy_within(..MAX_KEPT_LANDMARKS - 1, 1);
            // After the first packet, one landmark is chosen as in any part.
            direction.until_ns = if is_first { 0 } else { part_start.saturating_add(self.active) };
        }
        direction.landmarks[0] = landmark;
    }

    /// Records that the clock was set back, for flows that begin from now on.
    pub(super) const fn record_table_clock_set_back(&mut self, before_ns: u64, now_ns: u64) {
        let is_unsure = self.unsure_ns > 0 && before_ns < self.unsure_ns.saturating_add(self.idle);
        self.unsure_ns = if is_unsure { now_ns } else { 0 };
    }

    /// Records that the clock was set back, for one flow. It is not known how long the flow was silent meanwhile.
    pub(super) fn record_flow_clock_set_back(&mut self, slot: usize, now_ns: u64) {
        for direction in &mut self.slots[slot].directions {
            direction.last_ns = direction.last_ns.min(now_ns);
        }
    }

    /// Returns whether packets were lost since the meter began to follow the flow in a slot.
    #[inline]
    pub(super) fn has_lost_packets(&self, slot: usize) -> bool {
        self.slots[slot].losses != self.losses
    }

    /// Follows the flow from its next packet on, after everything before the loss was reported.
    pub(super) fn restart_flow(&mut self, slot: usize, at_ns: u64) {
        let history = &mut self.slots[slot];
        // A flow that is strange already counts in `self.strange`.
        self.strange += usize::from(history.strange_parts == 0);
        // The phase comes from the flow's number. It stays, because parts must
        // end when they end at other meters.
        *history = SlotHistory {
            directions: history.directions.map(|direction| direction.after_loss()),
            since_ns: at_ns,
            phase: history.phase,
            losses: self.losses,
            strange_parts: PARTS_UNTIL_RECOGNISED,
            ..Default::default()
        };
    }

    /// Adds the reported totals; returns the history for the record. `cut_ns`: the planned end of the part, if
    /// the flow continues after the record.
    pub(super) fn add_report(
        &mut self,
        slot: usize,
        hot: &HotSlot,
        record: &FlowRecord,
        cut_ns: Option<u64>,
    ) -> FlowHistory {
        let flipped = hot.has_flow_state(FLIPPED_STATE);
        let history = &mut self.slots[slot];
        for (half, direction) in
            [(&record.forward, usize::from(flipped)), (&record.reverse, usize::from(!flipped))]
        {
            history.directions[direction].reported =
                history.directions[direction].reported.plus(half_totals(half));
        }
        // A part counts as complete only if the meter followed it from its beginning.
        let is_known = cut_ns.is_some_and(|cut_ns| cut_ns.saturating_sub(self.active) >= history.since_ns);
        if history.strange_parts > 0 && is_known {
            history.strange_parts -= 1;
            self.strange -= usize::from(history.strange_parts == 0);
        }
        // If the flow was already running, earlier packets may be similar to packets that the meter saw.
        let since_ns = if history.strange_parts > 0 { history.since_ns } else { 0 };
        let mut directions = history.directions.map(|direction| direction.to_history(since_ns));
        history.is_end_told = matches!(record.end, EndReason::Idle | EndReason::EndOfFlow);
        if history.is_end_told {
            let last_ns = [hot.last[usize::from(flipped)], hot.last[usize::from(!flipped)]];
            for (at, direction) in directions.iter_mut().enumerate() {
                direction.add_landmark_before_silence(
                    history.directions[at].last_landmark(last_ns[at], self.idle),
                );
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
            stored: [None; 2],
        }
    }

    /// Returns whether records of the flow were reported since the meter began to follow it, but not the
    /// end of the flow.
    pub(super) fn is_end_unreported(&self, slot: usize) -> bool {
        let SlotHistory { directions, is_end_told, .. } = &self.slots[slot];
        !is_end_told && directions.iter().any(|direction| direction.reported != CountTotals::default())
    }
}

const fn half_totals(half: &FlowHalf) -> CountTotals {
    CountTotals { packets: half.packets, bytes: half.bytes, frame_bytes: half.frame_bytes }
}
