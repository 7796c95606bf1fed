//! Opens flows: finds a slot and a place in the index and, when the table is full, chooses the flow to replace.
//!
//! Invariant: a flow that is ended to make room is first reported and counted as evicted, if it has unreported packets.

use super::look::{FlowKeyBuilder, KeyLookup};
use super::slot::{self, ColdSlot, HAS_RARE_STATE, HotSlot};
use super::wheel::TimerReason;
use super::{
    FlowEventReceiver, FlowTable, FullTableReaction, MemoryHints, SLOTS_PER_ALLOCATION, slot_number,
};
use crate::packet::PacketInfo;
use crate::record::EndReason;

/// Maximum number of flows that are examined to find the one that has been silent longest.
const MAX_FLOWS_EXAMINED: usize = 32;

/// Returns the hash of the flow in a slot. The index needs the hash when it moves that flow.
fn slot_hash(keys: &FlowKeyBuilder, hot: &[HotSlot], slot: u32) -> u64 {
    keys.hash_words(hot[slot as usize].key_words())
}

impl<H: MemoryHints> FlowTable<H> {
    /// Opens a flow with its first packet. If there is no room and none can be made, the packet counts as untracked.
    #[cold]
    #[inline(never)]
    pub(super) fn open_flow(
        &mut self,
        look: &KeyLookup,
        packet: &PacketInfo,
        outlet: &mut impl FlowEventReceiver,
    ) {
        let Some(slot) = self.make_table_room(look.hash, outlet) else {
            // An untracked packet is a gap in its flow's history, so flows that
            // begin soon may be older than they look.
            self.counts.untracked += u64::from(packet.packet_count());
            self.mark_unobserved_until(packet.at_ns);
            return;
        };
        self.hot[slot] = HotSlot::FREE_SLOT;
        if let Some(histories) = &mut self.histories {
            histories.begin_flow(slot, packet.at_ns);
        }
        self.begin_flow(slot, look, packet, outlet);
        self.count_packet(slot, look.flipped, packet);
        let hot = &mut self.hot[slot];
        hot.record_end_flags(0, packet, self.limits.biflow);
        let timer = self.limits.timer_setting(hot);
        self.wheel.set_timer(slot_number(slot), timer.tick, timer.wait);
    }

    /// Prefetches the memory for the flow that opens after `nth` other flows.
    #[inline]
    pub(super) fn prefetch_free_slot(&self, nth: usize) {
        // Slots are popped from the end, so the nth flow to open gets the nth slot from there.
        if let Some(&slot) = self.free.iter().rev().nth(nth) {
            H::prefetch(&self.hot[slot as usize]);
            H::prefetch(&self.cold[slot as usize]);
            self.wheel.prefetch_timer::<H>(slot);
        }
    }

    /// Finds a slot and adds it to the index under this hash; `None` if there is no room and none can be made.
    fn make_table_room(&mut self, hash: u64, outlet: &mut impl FlowEventReceiver) -> Option<usize> {
        // Slots are made late, so that a table touches only as much memory as it has ever had flows.
        if self.free.is_empty() && !self.allocate_slots() {
            self.evict_one_flow_if_allowed(outlet);
        }
        let slot = self.free.pop()?;
        if self.index.insert_slot(hash, slot, |slot| slot_hash(&self.keys, &self.hot, slot)) {
            return Some(slot as usize);
        }
        // A slot is free, but both buckets are full and none of their sixteen flows can move: one of these
        // sixteen flows must make room.
        let silent = self.index.neighbour_slots(hash).min_by_key(|&slot| self.hot[slot as usize].last_ns());
        let evicted = silent.filter(|_| self.limits.when_full == FullTableReaction::Evict);
        if let Some(other) = evicted {
            self.evict_flow(other as usize, outlet);
            if self.index.insert_slot(hash, slot, |slot| slot_hash(&self.keys, &self.hot, slot)) {
                return Some(slot as usize);
            }
        }
        // The slot stays free for a flow of other buckets.
        self.free.push(slot);
        None
    }

    /// Adds some slots within the memory that is reserved for them. Returns false if all slots exist already.
    fn allocate_slots(&mut self) -> bool {
        let before = self.hot.len();
        let after = self.capacity.min(before + SLOTS_PER_ALLOCATION);
        self.hot.resize(after, HotSlot::FREE_SLOT);
        self.cold.resize(after, ColdSlot::default());
        self.wheel.resize_slots(after);
        self.histories.iter_mut().for_each(|histories| histories.resize_slots(after));
        // `free` is a stack: in reverse order, the lowest slot is taken first and memory is touched
        // from its start on.
        self.free.extend((before..after).rev().map(slot_number));
        after > before
    }

    /// Ends the flow that has been silent longest according to the timers, unless the options refuse new flows instead.
    #[cold]
    fn evict_one_flow_if_allowed(&mut self, outlet: &mut impl FlowEventReceiver) {
        if self.limits.when_full == FullTableReaction::Refuse {
            return;
        }
        if let Some(slot) = self.find_most_silent_flow().or_else(|| self.find_most_silent_of_next_parts()) {
            self.evict_flow(slot as usize, outlet);
        }
    }

    /// Returns the flow that has been silent longest, among the flows with timers that wait for
    /// silence and expire first.
    fn find_most_silent_flow(&mut self) -> Option<u32> {
        let mut silent: Option<u32> = None;
        for _ in 0..MAX_FLOWS_EXAMINED {
            let Some(due) = self.wheel.earliest_timer(TimerReason::Silence) else { break };
            let slot = due.slot;
            self.prefetch_next_candidate(slot);
            silent = Some(silent.map_or(slot, |one| self.pick_longer_silent(one, slot)));
            let timer = self.limits.timer_setting(&self.hot[slot as usize]);
            // No packet came since the timer was set, so among such flows this one has been silent
            // longest, to one tick.
            if timer.wait == TimerReason::Silence && timer.tick <= due.tick {
                break;
            }
            // The flow had packets: its timer is set to its present end, out of the way of the next search.
            self.wheel.clear_timer(slot);
            self.wheel.set_timer(slot, timer.tick, timer.wait);
        }
        silent
    }

    /// Returns the most silent flow when no timer waits for silence: among the flows whose parts end next.
    fn find_most_silent_of_next_parts(&self) -> Option<u32> {
        let first = self.wheel.earliest_timer(TimerReason::Part)?.slot;
        let ring = std::iter::successors(Some(first), |&slot| Some(self.wheel.next_slot(slot)));
        ring.take(MAX_FLOWS_EXAMINED).reduce(|one, other| self.pick_longer_silent(one, other))
    }

    /// Returns the one of two slots whose flow has been silent longer.
    fn pick_longer_silent(&self, one: u32, other: u32) -> u32 {
        let is_other = self.hot[other as usize].last_ns() < self.hot[one as usize].last_ns();
        if is_other { other } else { one }
    }

    /// Prefetches the next candidate: usually the flow with the timer that was set next.
    fn prefetch_next_candidate(&self, slot: u32) {
        if let Some(hot) = self.hot.get(self.wheel.next_slot(slot) as usize) {
            H::prefetch(hot);
            H::prefetch(&self.cold[self.wheel.next_slot(slot) as usize]);
        }
    }

    fn evict_flow(&mut self, slot: usize, outlet: &mut impl FlowEventReceiver) {
        // A flow with an empty last part loses nothing, so it does not count as evicted.
        if self.report_flow_part(slot, EndReason::LackOfResources, outlet) {
            self.counts.evicted += 1;
        } else {
            self.report_flow_end_if_needed(slot, outlet);
        }
        self.mark_unobserved_until(self.now_ns.unwrap_or(0));
        self.remove_flow(slot);
    }

    /// Writes a new flow into a slot that is in the index.
    pub(super) fn begin_flow(
        &mut self,
        slot: usize,
        look: &KeyLookup,
        packet: &PacketInfo,
        outlet: &mut impl FlowEventReceiver,
    ) {
        let canonical = self.keys.canonical_key(packet);
        self.hot[slot] = HotSlot::from_first_packet(look, packet);
        self.cold[slot] = ColdSlot::from_first_packet(canonical.words, packet, self.losses);
        if let Some(outer) = slot::outer_addresses(packet) {
            self.hot[slot].set_state(HAS_RARE_STATE);
            self.rare[slot] = outer;
        }
        self.counts.flows += 1;
        let key = self.keys.flow_key(packet);
        let flow_id = self.ids.flow_id(&key);
        if let Some(histories) = &mut self.histories {
            histories.record_flow_id(slot, flow_id);
            self.hot[slot].start = histories.part_start(slot, packet.at_ns);
        }
        outlet.on_flow_opened(flow_id, &key, packet.at_ns);
    }

    /// Returns the start of the part that begins with a packet of this time.
    pub(super) fn part_start(&self, slot: usize, at_ns: u64) -> u64 {
        self.histories.as_ref().map_or(at_ns, |histories| histories.part_start(slot, at_ns))
    }
}
