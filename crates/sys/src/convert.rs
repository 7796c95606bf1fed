//! Conversions of numbers; each name says what happens to a number that does not fit.

use rustix::io::Errno;

/// Index in a ring of `places` entries for a counter that only grows: the counter modulo `places`.
pub(crate) fn ring_index(counter: u64, places: u64) -> usize {
    #[expect(clippy::cast_possible_truncation, reason = "below `places`, which are all in memory")]
    let place = (counter % places) as usize;
    place
}

/// Converts a size that the kernel has reported; an error if it does not fit into the address space.
pub(crate) fn checked_usize(number: u64) -> Result<usize, Errno> {
    usize::try_from(number).map_err(|_| Errno::OVERFLOW)
}
