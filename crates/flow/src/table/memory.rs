//! Memory that is taken at the start, so that nothing has to be found later.

use super::hints::MemoryHints;

/// Room for so many values, on large pages where that is possible. The kernel gives a page when it is touched first.
pub(super) fn reserved<H: MemoryHints, T>(count: usize) -> Vec<T> {
    let mut memory = Vec::with_capacity(count);
    // Asked for before the first touch: that decides the size of pages.
    H::large_pages(memory.spare_capacity_mut());
    memory
}

/// So many values, touched here.
pub(super) fn filled<H: MemoryHints, T: Clone>(count: usize, value: T) -> Vec<T> {
    let mut memory = reserved::<H, T>(count);
    memory.resize(count, value);
    memory
}
