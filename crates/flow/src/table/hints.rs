//! Interface to the caller of a table: memory hints, and the receiver of records.

use crate::key::FlowKey;
use crate::record::FlowRecord;

/// Hints about the use of memory. They change the speed and nothing else; `()` gives none.
pub trait MemoryHints {
    /// Asks the processor to load a cache line that will be used soon.
    fn prefetch<T>(line: &T);

    /// Asks for large pages for memory that is used in random order and not touched yet. Returns whether
    /// it had an effect.
    fn use_large_pages<T>(memory: &mut [T]) -> bool;
}

impl MemoryHints for () {
    fn prefetch<T>(_: &T) {}

    fn use_large_pages<T>(_: &mut [T]) -> bool {
        false
    }
}

/// Receiver of the records and of the new flows that a table reports.
pub trait FlowEventReceiver {
    /// Called when a flow, or a part of one, is reported.
    fn on_record(&mut self, record: &FlowRecord);

    /// Called when a packet of this key and time has opened a flow.
    fn on_flow_opened(&mut self, _flow_id: u64, _key: &FlowKey, _at_ns: u64) {}
}

impl FlowEventReceiver for Vec<FlowRecord> {
    fn on_record(&mut self, record: &FlowRecord) {
        self.push(record.clone());
    }
}
