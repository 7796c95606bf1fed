//! Memory that is reserved at the start, so that metering never allocates.

use super::hints::MemoryHints;

/// Reserves room for `count` values, on large pages if possible. The kernel provides a page when it is touched first.
pub(super) fn reserve_values<H: MemoryHints, T>(count: usize) -> Vec<T> {
    let mut memory = Vec::with_capacity(count);
    // Large pages are requested before the first touch, because that touch decides the size of pages.
    H::use_large_pages(memory.spare_capacity_mut());
    memory
}

/// Allocates `count` copies of a value. This touches the memory.
pub(super) fn allocate_values<H: MemoryHints, T: Clone>(count: usize, value: T) -> Vec<T> {
    let mut memory = reserve_values::<H, T>(count);
    memory.resize(count, value);
    memory
}
