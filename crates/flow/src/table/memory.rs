//! Memory that is taken at the start and touched there, so that nothing has to be found later.

use super::hints::Hints;

/// So many values, on large pages where that is possible.
pub(super) fn filled<H: Hints, T: Clone>(count: usize, value: T) -> Vec<T> {
    let mut memory = Vec::with_capacity(count);
    // Asked for before the first touch: that decides the size of pages.
    H::large_pages(memory.spare_capacity_mut());
    memory.resize(count, value);
    memory
}
