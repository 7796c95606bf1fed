//! End of flows: handles due timers and reports records.
//!
//! Invariant: counts are reported in a record before they are cleared.

use super::history::FlowHistories;
use super::index::NONE;
use super::slot::{self, ENDED_STATE, HAS_RARE_STATE, HotSlot};
use super::wheel::TimerReason;
use super::{FlowEventReceiver, FlowTable, MemoryHints, slot_number, wheel};
use crate::record::EndReason;

/// Number of flows with expired timers that are handled together.
const EXPIRED_FLOWS_PER_BATCH: usize = 16;

/// The first `count` slots have an expired timer.
struct ExpiredSlots {
    slots: [u32; EXPIRED_FLOWS_PER_BATCH],
    count: usize,
}

impl<H: MemoryHints> FlowTable<H> {
    /// Reports everything that is due for a flow by a time. Returns whether the flow continues; if not, its
    /// slot still holds its key.
    pub(super) fn report_due_flow(
        &mut self,
        slot: usize,
        at_ns: u64,
        outlet: &mut impl FlowEventReceiver,
    ) -> bool {
        loop {
            let due = self.limits.flow_deadline(&self.hot[slot]);
            if due.at_ns > at_ns {
                return true;
            }
            // A report moves the deadline, so this loop ends: a part without packets ends only by silence.
            self.report_flow_part(slot, due.reason, outlet);
            if due.reason != EndReason::Active {
                return false;
            }
        }
    }

    /// Handles about `most` expired timers at most. Returns true if no expired timer is left.
    pub(super) fn run_timers(
        &mut self,
        now_ns: u64,
        most: usize,
        outlet: &mut impl FlowEventReceiver,
    ) -> bool {
        let mut left = most;
        while left > 0 {
            let expired = self.take_expired_slots(now_ns);
            for &slot in &expired.slots[..expired.count] {
                self.on_timer(slot as usize, now_ns, outlet);
            }
            // The batch is not full, so the wheel has no more expired timers.
            if expired.count < EXPIRED_FLOWS_PER_BATCH {
                return true;
            }
            left = left.saturating_sub(EXPIRED_FLOWS_PER_BATCH);
        }
        false
    }

    /// Removes some expired timers. Returns their slots, and prefetches the memory of these slots.
    fn take_expired_slots(&mut self, now_ns: u64) -> ExpiredSlots {
        let mut expired = ExpiredSlots { slots: [NONE; EXPIRED_FLOWS_PER_BATCH], count: 0 };
        while expired.count < EXPIRED_FLOWS_PER_BATCH
            && let Some(slot) = self.wheel.take_due_timer(wheel::tick_at(now_ns))
        {
            H::prefetch(&self.hot[slot as usize]);
            H::prefetch(&self.cold[slot as usize]);
            expired.slots[expired.count] = slot;
            expired.count += 1;
        }
        // This is a second pass: the hash needs the key, whose cache line was requested only just now.
        for &slot in &expired.slots[..expired.count] {
            self.index.prefetch_first::<H>(self.keys.hash_words(self.hot[slot as usize].key_words()));
        }
        expired
    }

    fn on_timer(&mut self, slot: usize, now_ns: u64, outlet: &mut impl FlowEventReceiver) {
        if self.report_due_flow(slot, now_ns, outlet) {
            let timer = self.limits.timer_setting(&self.hot[slot]);
            self.wheel.set_timer(slot_number(slot), timer.tick, timer.wait);
            return;
        }
        self.report_flow_end_if_needed(slot, outlet);
        // A meter of a group keeps an ended flow a little longer: a packet in that time may
        // have come before the end at another meter.
        let until_ns =
            self.limits.end_ns(&self.hot[slot]).saturating_add(FlowHistories::ENDED_FLOW_KEEP_TIME_NS);
        if self.histories.is_some() && now_ns < until_ns {
            self.wheel.set_timer(slot_number(slot), wheel::first_tick_after(until_ns), TimerReason::Silence);
        } else {
            self.release_slot(slot);
        }
    }

    /// Emits the last record of an ended flow with an empty last part, if the history of the flow is kept:
    /// see the module `history`.
    pub(super) fn report_flow_end_if_needed(&mut self, slot: usize, outlet: &mut impl FlowEventReceiver) {
        let hot = &self.hot[slot];
        let is_untold = self.histories.as_ref().is_some_and(|histories| histories.is_end_unreported(slot));
        if is_untold && hot.is_empty() {
            let end = if hot.has_flow_state(ENDED_STATE) { EndReason::EndOfFlow } else { EndReason::Idle };
            self.emit_record(slot, end, outlet);
        }
    }

    /// Reports the counts since the last report. Returns false if there were none.
    pub(super) fn report_flow_part(
        &mut self,
        slot: usize,
        end: EndReason,
        outlet: &mut impl FlowEventReceiver,
    ) -> bool {
        let is_due = !self.hot[slot].is_empty();
        if is_due {
            self.emit_record(slot, end, outlet);
        }
        is_due
    }

    /// Reports the counts since the last report before the part has ended, because the clock was set back.
    pub(super) fn report_shortened_part(&mut self, slot: usize, outlet: &mut impl FlowEventReceiver) {
        if !self.hot[slot].is_empty() {
            // The meter has not seen the whole part, so the planned end of the part is not reported.
            self.emit_part(slot, EndReason::Active, None, outlet);
        }
    }

    fn emit_record(&mut self, slot: usize, end: EndReason, outlet: &mut impl FlowEventReceiver) {
        let planned_end = self.hot[slot].start.saturating_add(self.limits.active);
        self.emit_part(slot, end, (end == EndReason::Active).then_some(planned_end), outlet);
    }

    /// Emits a record. `cut_ns`: the planned end of the part, if the part has lasted until then and the flow continues.
    fn emit_part(
        &mut self,
        slot: usize,
        end: EndReason,
        cut_ns: Option<u64>,
        outlet: &mut impl FlowEventReceiver,
    ) {
        let hot = &mut self.hot[slot];
        let rare = if hot.has_flow_state(HAS_RARE_STATE) { self.rare.get_mut(slot) } else { None };
        let mut record = slot::build_record(
            hot,
            &self.cold[slot],
            rare.as_deref(),
            self.keys.has_icmp(),
            end,
            self.losses,
        );
        record.flow_id = self.ids.flow_id(&record.key);
        record.sampling = self.limits.sampling;
        if let Some(histories) = &mut self.histories {
            record.history = Some(Box::new(histories.add_report(slot, hot, &record, cut_ns)));
            // The last record of a history may have no packets, but it needs a time all the same.
            if record.packets() == 0 {
                (record.forward.first_ns, record.forward.last_ns) = (hot.last_ns(), hot.last_ns());
            }
        }
        hot.begin_record_part(rare);
        self.cold[slot].begin_record_part(self.losses);
        self.counts.records += 1;
        self.counts.recorded += record.packets();
        self.counts.live -= record.packets();
        outlet.on_record(&record);
    }

    /// Removes a flow from the table.
    pub(super) fn remove_flow(&mut self, slot: usize) {
        self.wheel.clear_timer(slot_number(slot));
        self.release_slot(slot);
    }

    /// Removes a flow after its timer has expired.
    fn release_slot(&mut self, slot: usize) {
        // The hash comes from the key in the slot, so the slot is cleared last.
        let hash = self.keys.hash_words(self.hot[slot].key_words());
        self.index.remove_slot(hash, slot_number(slot));
        if let Some(histories) = &mut self.histories {
            histories.end_flow(slot);
        }
        self.hot[slot] = HotSlot::FREE_SLOT;
        self.free.push(slot_number(slot));
    }
}
