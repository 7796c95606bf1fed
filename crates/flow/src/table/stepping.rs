//! Handles a clock that is set back: the table ends the parts of its flows, and the flows continue at the new time.

use super::{FlowEventReceiver, FlowTable, MemoryHints, slot_number, wheel};

impl<H: MemoryHints> FlowTable<H> {
    /// Returns whether a time is so long before that of the table that the clock must have been set back.
    pub(super) fn is_table_clock_set_back(&self, now_ns: u64) -> bool {
        self.now_ns.is_some_and(|before_ns| now_ns > 0 && now_ns.saturating_add(self.limits.idle) < before_ns)
    }

    /// Handles a clock that was set back by more than the idle timeout, or was wrong before. The wheel never looks at
    /// passed ticks again, so timers that were set for the old time would not expire until that time came again.
    #[cold]
    pub(super) fn handle_clock_set_back(&mut self, now_ns: u64, outlet: &mut impl FlowEventReceiver) {
        if let (Some(histories), Some(before_ns)) = (&mut self.histories, self.now_ns) {
            histories.record_table_clock_set_back(before_ns, now_ns);
        }
        let held: Vec<usize> = (0..self.hot.len()).filter(|&slot| !self.hot[slot].is_free()).collect();
        // Old timers must be removed before the wheel turns back: their ticks lie far ahead of the new time.
        for &slot in &held {
            self.wheel.clear_timer(slot_number(slot));
        }
        self.wheel.start_wheel_at(wheel::tick_at(now_ns));
        for slot in held {
            // A flow without recent packets may be older than the step: its times are still right.
            if self.limits.is_set_back_for_flow(&self.hot[slot], now_ns) {
                self.record_flow_clock_set_back(slot, now_ns, outlet);
            }
            let timer = self.limits.timer_setting(&self.hot[slot]);
            self.wheel.set_timer(slot_number(slot), timer.tick, timer.wait);
        }
    }

    /// Reports the counts of a flow from before the clock was set back to this time. The flow continues from there.
    pub(super) fn record_flow_clock_set_back(
        &mut self,
        slot: usize,
        now_ns: u64,
        outlet: &mut impl FlowEventReceiver,
    ) {
        self.report_shortened_part(slot, outlet);
        self.hot[slot].move_times_back(now_ns);
        self.histories.iter_mut().for_each(|histories| histories.record_flow_clock_set_back(slot, now_ns));
    }
}
