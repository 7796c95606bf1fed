//! How flows leave: what is due, when it is done, and what is reported.
//!
//! Invariant: what was counted leaves in a record before it is forgotten.

use super::index::NONE;
use super::slot::{self, HAS_RARE, HotSlot};
use super::{FlowOutlet, FlowTable, MemoryHints, number, wheel};
use crate::record::EndReason;

/// Flows whose timers ring that are looked at together.
const RUNG: usize = 16;

impl<H: MemoryHints> FlowTable<H> {
    /// Does what is due for a flow by a time; whether it goes on. If not, its slot still holds its key.
    pub(super) fn settle(&mut self, slot: usize, at_ns: u64, outlet: &mut impl FlowOutlet) -> bool {
        loop {
            let (deadline, reason) = self.limits.deadline(&self.hot[slot]);
            if deadline > at_ns {
                return true;
            }
            self.report(slot, reason, outlet);
            if reason != EndReason::Active {
                return false;
            }
        }
    }

    /// Looks at flows whose timers ring, at most about so many; whether those were all.
    pub(super) fn ring(&mut self, now_ns: u64, most: usize, outlet: &mut impl FlowOutlet) -> bool {
        let mut left = most;
        while left > 0 {
            let (rung, count) = self.rung(now_ns);
            for &slot in &rung[..count] {
                self.rings(slot as usize, now_ns, outlet);
            }
            if count < RUNG {
                return true;
            }
            left = left.saturating_sub(RUNG);
        }
        false
    }

    /// Some slots whose timers ring; all that will be touched of them is asked for.
    fn rung(&mut self, now_ns: u64) -> ([u32; RUNG], usize) {
        let (mut rung, mut count) = ([NONE; RUNG], 0);
        while count < RUNG
            && let Some(slot) = self.wheel.ring_by(wheel::tick(now_ns))
        {
            H::prefetch(&self.hot[slot as usize]);
            H::prefetch(&self.cold[slot as usize]);
            rung[count] = slot;
            count += 1;
        }
        for &slot in &rung[..count] {
            self.index.prefetch_first::<H>(self.lens.hash(self.hot[slot as usize].key_words()));
        }
        (rung, count)
    }

    fn rings(&mut self, slot: usize, now_ns: u64, outlet: &mut impl FlowOutlet) {
        if self.settle(slot, now_ns, outlet) {
            let (tick, wait) = self.limits.ring(&self.hot[slot]);
            self.wheel.set(number(slot), tick, wait);
        } else {
            self.release(slot);
        }
    }

    /// Reports what came since the last report; whether there was anything.
    pub(super) fn report(&mut self, slot: usize, end: EndReason, outlet: &mut impl FlowOutlet) -> bool {
        let hot = &mut self.hot[slot];
        if hot.is_empty() {
            return false;
        }
        let rare = if hot.is(HAS_RARE) { self.rare.get_mut(slot) } else { None };
        let mut record =
            slot::record(hot, &self.cold[slot], rare.as_deref(), self.lens.has_icmp(), end, self.losses);
        record.flow_id = self.ids.of(&record.key);
        record.sampling = self.limits.sampling;
        hot.begin_part(rare);
        self.cold[slot].begin_part(self.losses);
        self.counts.records += 1;
        self.counts.recorded += record.packets();
        self.counts.live -= record.packets();
        outlet.record(&record);
        true
    }

    /// Takes a flow out.
    pub(super) fn remove(&mut self, slot: usize) {
        self.wheel.clear(number(slot));
        self.release(slot);
    }

    /// Takes a flow out whose timer has rung.
    fn release(&mut self, slot: usize) {
        let hash = self.lens.hash(self.hot[slot].key_words());
        self.index.remove(hash, number(slot));
        self.hot[slot] = HotSlot::FREE;
        self.free.push(number(slot));
    }
}
