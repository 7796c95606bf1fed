//! Conversions of numbers; each name says what happens to a number that does not fit.

use rustix::io::Errno;

/// Index in a ring of `places` entries for a counter that only grows.
pub(crate) fn ring_index(counter: u64, places: u64) -> usize {
    #[expect(clippy::cast_possible_truncation, reason = "below `places`, which are all in memory")]
    let place = (counter % places) as usize;
    place
}

/// Converts a size that the kernel has stated; an error if it is larger than the address space.
pub(crate) fn checked_usize(number: u64) -> Result<usize, Errno> {
    usize::try_from(number).map_err(|_| Errno::OVERFLOW)
}
