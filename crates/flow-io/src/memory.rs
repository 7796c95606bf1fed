//! Memory hints for the flow table, given by `sys`: `flow` itself contains no unsafe code.

use packetrig_flow::table::MemoryHints;
use packetrig_sys::memory;

#[derive(Clone, Copy, Debug)]
pub(crate) struct MeterMemory;

impl MemoryHints for MeterMemory {
    #[inline]
    fn prefetch<T>(line: &T) {
        memory::prefetch(line);
    }

    fn use_large_pages<T>(memory: &mut [T]) -> bool {
        memory::request_large_pages(memory)
    }
}
