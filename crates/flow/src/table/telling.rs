//! Reports open flows again, for a receiver that missed their start.

use super::slot;
use super::{FlowEventReceiver, FlowTable, MemoryHints};

impl<H: MemoryHints> FlowTable<H> {
    /// Reports flows in the table to an outlet as if they were opened at the start of their present part. Looks at
    /// `most` slots at most, from `from` on. Returns the slot to continue with; `None` if all slots were looked at.
    pub fn report_open_flows(
        &self,
        from: usize,
        most: usize,
        outlet: &mut impl FlowEventReceiver,
    ) -> Option<usize> {
        let until = from.saturating_add(most).min(self.hot.len());
        for slot in from..until {
            let hot = &self.hot[slot];
            if !hot.is_free() {
                let key = slot::flow_key(hot, &self.cold[slot], self.keys.has_icmp());
                outlet.on_flow_opened(self.ids.flow_id(&key), &key, hot.start);
            }
        }
        (until < self.hot.len()).then_some(until)
    }
}
