//! What a table is given: hints to the memory, and a place for its records.

use crate::key::FlowKey;
use crate::record::FlowRecord;

/// Hints to the memory. They change the speed and nothing else; `()` gives none.
pub trait MemoryHints {
    /// This will be used soon.
    fn prefetch<T>(line: &T);

    /// This is large, used all over, and not touched yet; whether anything came of it.
    fn large_pages<T>(memory: &mut [T]) -> bool;
}

impl MemoryHints for () {
    fn prefetch<T>(_: &T) {}

    fn large_pages<T>(_: &mut [T]) -> bool {
        false
    }
}

/// Where flows go when they leave the table.
pub trait FlowOutlet {
    /// A flow, or a part of one, is reported.
    fn record(&mut self, record: &FlowRecord);

    /// A flow was opened by a packet of that key and time.
    fn opened(&mut self, _flow_id: u64, _key: &FlowKey, _at_ns: u64) {}
}

impl FlowOutlet for Vec<FlowRecord> {
    fn record(&mut self, record: &FlowRecord) {
        self.push(record.clone());
    }
}
