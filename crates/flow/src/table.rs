//! The flow table: counts packets by flow, and reports the flows as records.
//!
//! ```text
//!  32 packets -> look (key, hash) -> index (bucket, tag) -> slot (64 bytes) -> +1
//!                prefetch bucket     prefetch slot
//! ```
//! The table belongs to one worker, has a fixed size and allocates nothing for a packet; slots are first touched when
//! flows need them. Time is an argument: packets have their times, and `now_ns` drives the timers, so flows also end
//! when nothing arrives. A packet of a known flow usually touches one bucket of the index and one `HotSlot`; a long key
//! (IPv6, tunnels) also needs the `ColdSlot`. Keys are always compared in full.
//!
//! Invariant: every packet given to [`meter_packets`](FlowTable::meter_packets) is in [`PacketCounts::metered`] or in
//! [`PacketCounts::untracked`]. Every metered packet is in a live flow or in exactly one record.

mod ending;
mod hints;
mod history;
mod index;
mod look;
mod memory;
mod opening;
mod options;
mod slot;
mod stepping;
mod telling;
mod wheel;

pub use hints::{FlowEventReceiver, MemoryHints};
pub use options::{FullTableReaction, TableOptions};

use crate::counts::PacketCounts;
use crate::hash::FlowIds;
use crate::key::FlowKey;
use crate::packet::{PacketInfo, flags};
use crate::record::EndReason;
use history::FlowHistories;
use index::{FlowIndex, NONE};
use look::{FlowKeyBuilder, KeyLookup};
use slot::{ColdSlot, ENDED_STATE, HotSlot, RarelyUsedCounts, TCP_CLOSING_FLAGS};
use std::marker::PhantomData;
use wheel::{TimerReason, TimerSetting, TimerWheel};

/// Number of packets that are prefetched and metered together.
const PACKETS_PER_BATCH: usize = 32;
/// Number of slots that are made together: a few pages, which are in the cache when the next flows open.
const SLOTS_PER_ALLOCATION: usize = 64;
/// Number of timers that are handled per batch, in addition to two for each packet.
const TIMERS_PER_BATCH: usize = 64;

#[derive(Debug)]
pub struct FlowTable<H> {
    keys: FlowKeyBuilder,
    limits: TableLimits,
    ids: FlowIds,
    index: FlowIndex,
    /// Largest number of slots. Slots are made when they are needed.
    capacity: usize,
    hot: Vec<HotSlot>,
    cold: Vec<ColdSlot>,
    rare: Vec<RarelyUsedCounts>,
    /// Histories of the flows; present only for a group of meters.
    histories: Option<FlowHistories>,
    wheel: TimerWheel,
    /// Slots without a flow.
    free: Vec<u32>,
    counts: PacketCounts,
    /// Number of losses of the meter so far. Parts of flows that began before the last loss are marked.
    losses: u32,
    /// Present time of the table, by which timers expire; `None` until the first packet or the first call with a time.
    now_ns: Option<u64>,
    hints: PhantomData<H>,
}

/// Timeouts of flows, and values that all records have in common.
#[derive(Clone, Copy, Debug)]
struct TableLimits {
    active: u64,
    idle: u64,
    /// A packet after a silence of this length takes the slow path: the idle timeout, or a little less.
    pause: u64,
    grace: u64,
    biflow: bool,
    sampling: u32,
    when_full: FullTableReaction,
}

impl TableLimits {
    fn flow_deadline(&self, hot: &HotSlot) -> FlowDeadline {
        let reason = if hot.has_flow_state(ENDED_STATE) { EndReason::EndOfFlow } else { EndReason::Idle };
        let end = self.end_ns(hot);
        let part = hot.start.saturating_add(self.active);
        // A part without packets gives no record, so it cannot end by the active timeout.
        if !hot.is_empty() && part < end {
            FlowDeadline { at_ns: part, reason: EndReason::Active }
        } else {
            FlowDeadline { at_ns: end, reason }
        }
    }

    /// Returns the time at which a flow ends if no more packets arrive.
    fn end_ns(&self, hot: &HotSlot) -> u64 {
        hot.last_ns().saturating_add(if hot.has_flow_state(ENDED_STATE) { self.grace } else { self.idle })
    }

    /// Returns whether a flow has been silent so long that another meter may have ended it.
    fn is_long_silence(&self, hot: &HotSlot, at_ns: u64) -> bool {
        let pause = if hot.has_flow_state(ENDED_STATE) { self.grace / 2 } else { self.pause };
        at_ns.saturating_sub(hot.last_ns()) >= pause
    }

    /// Returns whether a time is so long before a flow's last packet that the clock must have been set back since.
    #[inline]
    const fn is_set_back_for_flow(&self, hot: &HotSlot, at_ns: u64) -> bool {
        at_ns.saturating_add(self.idle) < hot.last_ns()
    }

    /// Returns whether a packet comes after a long silence of its flow, or is so early that the clock was set back.
    #[inline]
    const fn is_far_from_last_packet(&self, hot: &HotSlot, at_ns: u64) -> bool {
        let last_ns = hot.last_ns();
        let earliest_ns = last_ns.saturating_sub(self.idle);
        // One comparison tests both ends: a time before `earliest_ns` wraps to a number beyond any difference.
        at_ns.wrapping_sub(earliest_ns) >= last_ns.saturating_add(self.pause) - earliest_ns
    }

    /// Returns the reason for the last report of a flow when the table ends.
    fn last_end_reason(&self, hot: &HotSlot, now_ns: u64) -> EndReason {
        match self.flow_deadline(hot) {
            due if due.at_ns <= now_ns && due.reason != EndReason::Active => due.reason,
            _ if hot.has_flow_state(ENDED_STATE) => EndReason::EndOfFlow,
            _ => EndReason::Forced,
        }
    }

    /// Returns when the timer of a flow must expire, and which event it waits for.
    fn timer_setting(&self, hot: &HotSlot) -> TimerSetting {
        let due = self.flow_deadline(hot);
        let (at_ns, wait) = match due.reason {
            EndReason::Active => (due.at_ns, TimerReason::Part),
            _ => (due.at_ns, TimerReason::Silence),
        };
        TimerSetting { tick: wheel::first_tick_after(at_ns), wait }
    }
}

/// Time of the next action for a flow, and its reason.
#[derive(Clone, Copy, Debug)]
struct FlowDeadline {
    at_ns: u64,
    reason: EndReason,
}

impl<H: MemoryHints> FlowTable<H> {
    /// Creates an empty table. All its memory is reserved here.
    pub fn new(options: &TableOptions) -> Self {
        // `NONE` means no slot, so the number of every slot must be below it.
        let capacity = options.capacity.clamp(1, NONE - 1);
        let slots = capacity as usize;
        let limits = TableLimits {
            active: options.active.as_u64(),
            idle: options.idle.as_u64(),
            pause: match options.group {
                Some(_) => FlowHistories::shortest_pause(options.idle.as_u64()),
                None => options.idle.as_u64(),
            },
            grace: options.grace.as_u64(),
            biflow: options.biflow,
            sampling: options.sampling,
            when_full: options.when_full,
        };
        Self {
            keys: FlowKeyBuilder::new(options),
            limits,
            ids: FlowIds::new(options.flow_id_key),
            index: FlowIndex::new::<H>(capacity),
            capacity: slots,
            hot: memory::reserve_values::<H, _>(slots),
            cold: memory::reserve_values::<H, _>(slots),
            // Zeroed pages from the kernel take no memory until they are written, and most flows never write theirs.
            rare: vec![RarelyUsedCounts::default(); slots],
            histories: options.group.map(|mark| FlowHistories::new::<H>(mark, options, slots)),
            wheel: TimerWheel::new::<H>(slots, limits.idle),
            free: Vec::with_capacity(slots),
            counts: PacketCounts::default(),
            losses: 0,
            now_ns: None,
            hints: PhantomData,
        }
    }

    /// Meters packets in the order of their arrival, and handles part of the timers that are due by `now_ns`: enough to
    /// keep up with any stream of packets, and little enough not to delay the next ones. Timers run after each batch,
    /// up to the time of its last packet.
    pub fn meter_packets(
        &mut self,
        packets: &[PacketInfo],
        now_ns: u64,
        outlet: &mut impl FlowEventReceiver,
    ) {
        if self.now_ns.is_none()
            && let Some(first) = packets.first()
        {
            // The time starts at the first packet, because flows of the first batch may end within it.
            self.set_time(if now_ns == 0 { first.at_ns } else { first.at_ns.min(now_ns) }, outlet);
        }
        if self.is_table_clock_set_back(now_ns) {
            // The time is set before the packets are metered: their flows begin after the clock was set back.
            self.set_time(now_ns, outlet);
        }
        if let (Some(histories), Some(first)) = (&mut self.histories, packets.first()) {
            histories.close_open_loss(first.at_ns);
        }
        for batch in packets.chunks(PACKETS_PER_BATCH) {
            self.meter_batch(batch, outlet);
            let done_ns = batch.last().map_or(now_ns, |packet| packet.at_ns.min(now_ns));
            self.set_time(done_ns, outlet);
            self.run_timers(done_ns, 2 * batch.len() + TIMERS_PER_BATCH, outlet);
        }
    }

    /// Handles everything that is due by `now_ns`. Flows end up to one tick, 67 ms, after their deadline, even
    /// if no packets arrive.
    pub fn advance_to(&mut self, now_ns: u64, outlet: &mut impl FlowEventReceiver) {
        self.advance_with_limit(now_ns, usize::MAX, outlet);
    }

    /// Handles the timers that are due by `now_ns`, for about `most` flows at most: for a caller that has
    /// other work, too. Returns whether all due timers were handled.
    pub fn advance_with_limit(
        &mut self,
        now_ns: u64,
        most: usize,
        outlet: &mut impl FlowEventReceiver,
    ) -> bool {
        // The time is not known yet: a wheel that began at 0 would have to turn for billions of ticks.
        if now_ns == 0 && self.now_ns.is_none() {
            return true;
        }
        self.set_time(now_ns, outlet);
        self.run_timers(now_ns, most, outlet)
    }

    /// Reports and removes every flow. Flows that have ended by themselves are reported as ended.
    pub fn finish_flows(&mut self, outlet: &mut impl FlowEventReceiver) {
        let now_ns = self.now_ns.unwrap_or(0);
        for slot in 0..self.hot.len() {
            if !self.hot[slot].is_free() {
                self.report_flow_end_if_needed(slot, outlet);
                let reason = self.limits.last_end_reason(&self.hot[slot], now_ns);
                self.report_flow_part(slot, reason, outlet);
                self.remove_flow(slot);
            }
        }
    }

    /// Records that packets were lost before the table: every flow that is alive now will be marked.
    pub fn mark_packet_loss(&mut self) {
        // Readers compare for equality only, so the count may wrap.
        self.losses = self.losses.wrapping_add(1);
        if let Some(histories) = &mut self.histories {
            histories.mark_packet_loss();
        }
    }

    /// Returns the number of flows that other meters of the group may not recognise yet, because this meter started or
    /// lost packets while they were running. While there are any, this meter cannot replace the others.
    pub fn strange_flows(&self) -> usize {
        self.histories.as_ref().map_or(0, FlowHistories::strange_flows)
    }

    /// Returns the counts of packets; the caller counts `seen` and `ignored`.
    pub const fn counts(&self) -> &PacketCounts {
        &self.counts
    }

    /// Returns the number of flows in the table.
    pub fn flow_count(&self) -> usize {
        self.hot.len() - self.free.len()
    }

    /// Returns the memory of the full table in bytes, without the parts that most flows do not use.
    pub fn memory_bytes(&self) -> usize {
        let history = if self.histories.is_some() { FlowHistories::SLOT_BYTES } else { 0 };
        let slots = size_of::<HotSlot>() + size_of::<ColdSlot>() + size_of::<u32>() + history;
        self.index.memory_bytes() + self.wheel.memory_bytes(self.capacity) + self.capacity * slots
    }

    /// Returns the key for metering a packet: without the fields that shall not distinguish flows.
    pub fn flow_key(&self, packet: &PacketInfo) -> FlowKey {
        self.keys.flow_key(packet)
    }

    /// Returns the number of a packet's flow.
    pub fn flow_id(&self, packet: &PacketInfo) -> u64 {
        self.ids.flow_id(&self.keys.flow_key(packet))
    }

    /// Sets the present time of the table. A time that is a little earlier is ignored; a much earlier one means that
    /// the clock was set back.
    #[inline]
    fn set_time(&mut self, now_ns: u64, outlet: &mut impl FlowEventReceiver) {
        match self.now_ns {
            None => {
                self.wheel.start_wheel_at(wheel::tick_at(now_ns));
                self.histories.iter_mut().for_each(|histories| histories.start_at(now_ns));
            }
            Some(_) if self.is_table_clock_set_back(now_ns) => self.handle_clock_set_back(now_ns, outlet),
            // The packet is a little late: timers already run by the later time.
            Some(before_ns) if now_ns < before_ns => return,
            Some(_) => {}
        }
        self.now_ns = Some(now_ns);
    }

    /// See [`FlowHistories::mark_unobserved_until`].
    fn mark_unobserved_until(&mut self, now_ns: u64) {
        if let Some(histories) = &mut self.histories {
            histories.mark_unobserved_until(now_ns);
        }
    }

    fn meter_batch(&mut self, packets: &[PacketInfo], outlet: &mut impl FlowEventReceiver) {
        // The batch is processed in passes: each prefetches the memory that the next one needs, so that the cache
        // misses of many packets overlap. A packet alone would wait for its bucket, then for its slot.
        let mut looks = [KeyLookup::EMPTY_LOOKUP; PACKETS_PER_BATCH];
        let looks = &mut looks[..packets.len()];
        for (look, packet) in looks.iter_mut().zip(packets) {
            *look = self.keys.make_lookup(packet);
            self.index.prefetch_first::<H>(look.hash);
        }
        self.locate_flow_slots(looks);
        for (look, packet) in looks.iter().zip(packets) {
            self.meter_packet(look, packet, outlet);
        }
    }

    /// Finds the slots where flows seem to be, and prefetches them.
    fn locate_flow_slots(&self, looks: &mut [KeyLookup]) {
        let mut elsewhere = false;
        let mut unknown = 0;
        for look in &mut *looks {
            look.slot = self.index.first_slot_in_first_bucket(look.hash);
            if let Some(hot) = self.hot.get(look.slot as usize) {
                H::prefetch(hot);
            } else {
                elsewhere |= self.index.prefetch_second_if_used::<H>(look.hash);
                self.prefetch_free_slot(unknown);
                unknown += 1;
            }
        }
        if elsewhere {
            // Few flows are in their second bucket. Most packets that come here open a flow, so their
            // flow is found nowhere.
            for look in looks.iter_mut().filter(|look| look.slot == NONE) {
                look.slot = self.index.first_slot_in_second_bucket(look.hash);
                if let Some(hot) = self.hot.get(look.slot as usize) {
                    H::prefetch(hot);
                }
            }
        }
    }

    #[inline]
    fn meter_packet(&mut self, look: &KeyLookup, packet: &PacketInfo, outlet: &mut impl FlowEventReceiver) {
        // The slot was looked up before the earlier packets were metered; they may have ended that flow and
        // given the slot to another.
        let there = (look.slot as usize) < self.hot.len() && self.is_flow_in_slot(look.slot, look, packet);
        let slot = if there { Some(look.slot as usize) } else { self.find_slot(look, packet) };
        match slot {
            Some(slot) => self.add_packet(slot, look, packet, outlet),
            None => self.open_flow(look, packet, outlet),
        }
    }

    /// Returns whether a slot holds this flow.
    #[inline]
    fn is_flow_in_slot(&self, slot: u32, look: &KeyLookup, packet: &PacketInfo) -> bool {
        let slot = slot as usize;
        self.hot[slot].matches_words(look.words)
            && (!look.is_long() || self.cold[slot].words == self.keys.canonical_key(packet).words)
    }

    #[cold]
    #[inline(never)]
    fn find_slot(&self, look: &KeyLookup, packet: &PacketInfo) -> Option<usize> {
        self.index
            .find_slot(look.hash, |slot| self.is_flow_in_slot(slot, look, packet))
            .map(|slot| slot as usize)
    }

    /// Adds a packet to its flow.
    #[inline]
    fn add_packet(
        &mut self,
        slot: usize,
        look: &KeyLookup,
        packet: &PacketInfo,
        outlet: &mut impl FlowEventReceiver,
    ) {
        let hot = &self.hot[slot];
        let at_ns = packet.at_ns;
        // Events that may end the flow or its part are rare, and go through `add_packet_at_boundary`, out of line.
        let due = self.limits.is_far_from_last_packet(hot, at_ns)
            || at_ns.saturating_sub(hot.start) >= self.limits.active;
        let has_lost = self.histories.as_ref().is_some_and(|histories| histories.has_lost_packets(slot));
        if due
            || has_lost
            || hot.is_empty()
            || hot.has_flow_state(ENDED_STATE)
            || packet.tcp_flags & TCP_CLOSING_FLAGS != 0
        {
            self.add_packet_at_boundary(slot, look, packet, outlet);
        } else {
            self.count_packet(slot, look.flipped, packet);
        }
    }

    /// Adds a packet at which its flow may end, continue in another part, or start again.
    #[cold]
    #[inline(never)]
    fn add_packet_at_boundary(
        &mut self,
        slot: usize,
        look: &KeyLookup,
        packet: &PacketInfo,
        outlet: &mut impl FlowEventReceiver,
    ) {
        if self.limits.is_set_back_for_flow(&self.hot[slot], packet.at_ns) {
            self.record_flow_clock_set_back(slot, packet.at_ns, outlet);
        }
        let is_pause = self.limits.is_long_silence(&self.hot[slot], packet.at_ns);
        let mut goes_on = self.report_due_flow(slot, packet.at_ns, outlet);
        if !goes_on {
            self.report_flow_end_if_needed(slot, outlet);
        }
        if goes_on && self.hot[slot].has_flow_state(ENDED_STATE) && slot::opens_connection(packet) {
            // A SYN after the end of a connection opens a new one with the same ports.
            self.report_flow_part(slot, EndReason::EndOfFlow, outlet);
            goes_on = false;
        }
        self.continue_flow_history(slot, is_pause || !goes_on, packet.at_ns, outlet);
        if !goes_on {
            self.begin_flow(slot, look, packet, outlet);
        } else if self.hot[slot].is_empty() {
            self.hot[slot].start = self.part_start(slot, packet.at_ns);
        }
        self.count_packet(slot, look.flipped, packet);
        let hot = &mut self.hot[slot];
        hot.record_end_flags(hot.direction_index(look.flipped), packet, self.limits.biflow);
        // A FIN or RST brings the end forward. Any other packet moves it back, which is found when the timer expires.
        let timer = self.limits.timer_setting(hot);
        self.wheel.move_timer_earlier(slot_number(slot), timer.tick, timer.wait);
    }

    /// Updates the history before a packet of a known flow that comes after a silence, or after a loss.
    fn continue_flow_history(
        &mut self,
        slot: usize,
        is_after_silence: bool,
        at_ns: u64,
        outlet: &mut impl FlowEventReceiver,
    ) {
        if self.histories.as_ref().is_some_and(|histories| histories.has_lost_packets(slot)) {
            self.report_flow_part(slot, EndReason::Active, outlet);
            self.histories.as_mut().into_iter().for_each(|histories| histories.restart_flow(slot, at_ns));
        } else if let Some(histories) = self.histories.as_mut().filter(|_| is_after_silence) {
            histories.record_silence(slot);
        }
    }

    #[inline]
    fn count_packet(&mut self, slot: usize, flipped: bool, packet: &PacketInfo) {
        // Another meter may have received the packets of a merged one separately. Only the first packet is
        // identified by its content, and the totals up to it do not include the other packets.
        if packet.flags & flags::MERGED_FLAG != 0
            && self.histories.is_some()
            && let Some((first, others)) = packet.split_first()
        {
            self.count_history_packet(slot, flipped, &first, true);
            return self.count_history_packet(slot, flipped, &others, false);
        }
        self.count_history_packet(slot, flipped, packet, true);
    }

    /// Counts a packet. If `is_known` is true, its content identifies it.
    #[inline]
    fn count_history_packet(&mut self, slot: usize, flipped: bool, packet: &PacketInfo, is_known: bool) {
        let hot = &mut self.hot[slot];
        let direction = hot.direction_index(flipped);
        if hot.is_direction_empty(direction) {
            self.cold[slot].set_first_packet_time(direction, packet.at_ns);
        }
        // At one interface, times never decrease. Captures of several sources, and clocks that are
        // set, bring late packets.
        if packet.at_ns < hot.last_ns() {
            self.counts.backwards += 1;
            // Only a late packet may lie before the first one of its direction or of the flow.
            hot.start = hot.start.min(packet.at_ns);
            self.cold[slot].record_late_packet(direction, packet.at_ns);
        }
        if !hot.add_packet(direction, packet) {
            hot.widen_counts(direction, &mut self.rare[slot]);
            let fits = hot.add_packet(direction, packet);
            debug_assert!(fits, "the counters were just emptied, and one merged packet fits");
        }
        if let Some(histories) = self.histories.as_mut().filter(|_| is_known) {
            let rare = &self.rare[slot];
            histories.record_history_packet(slot, flipped, packet, || hot.unreported_totals(direction, rare));
        }
        hot.record_possible_merge(packet);
        let packets = u64::from(packet.packet_count());
        self.counts.metered += packets;
        self.counts.live += packets;
    }
}

/// Converts the index of a slot to its number of 32 bits.
#[expect(clippy::cast_possible_truncation, reason = "a table has less than 2^32 slots")]
const fn slot_number(slot: usize) -> u32 {
    slot as u32
}

#[cfg(test)]
mod tests;
