//! The table's hints to the memory, by way of the room that may give them.

use packetrig_flow::table::Hints;
use packetrig_sys::memory;

/// Gives them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory;

impl Hints for Memory {
    #[inline]
    fn prefetch<T>(line: &T) {
        memory::prefetch(line);
    }

    fn large_pages<T>(memory: &mut [T]) -> bool {
        memory::large_pages(memory)
    }
}
