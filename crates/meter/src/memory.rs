//! The table's hints to the memory, by way of the room that may give them.

use packetrig_flow::table::Hints;

/// Gives them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory;

impl Hints for Memory {
    #[inline]
    fn prefetch<T>(_line: &T) {
    }

    fn large_pages<T>(_memory: &mut [T]) -> bool {
        false
    }
}
