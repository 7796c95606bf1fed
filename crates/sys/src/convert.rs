//! Conversions of numbers, each named for what becomes of a number that does not fit.

use rustix::io::Errno;

/// Index in a ring with this many places for a counter that only grows.
pub(crate) fn place_in_ring(counter: u64, places: u64) -> usize {
    #[expect(clippy::cast_possible_truncation, reason = "below `places`, which are all in memory")]
    let place = (counter % places) as usize;
    place
}

/// Clamps to `u32::MAX`, which the kernel refuses as the size of anything.
pub(crate) fn clamp_to_u32(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Clamps a larger number to `i64::MAX`.
pub(crate) fn clamp_to_i64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Converts a size that the kernel has stated; an error if it is larger than the address space.
pub(crate) fn checked_usize(number: u64) -> Result<usize, Errno> {
    usize::try_from(number).map_err(|_| Errno::OVERFLOW)
}
