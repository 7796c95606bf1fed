//! Conversions of numbers, each named for what becomes of a number that does not fit.

use rustix::io::Errno;

/// The place that a counter has come to in a ring with this many places.
pub(crate) fn place_in_ring(counter: u64, places: u64) -> usize {
    #[expect(clippy::cast_possible_truncation, reason = "below `places`, which are all in memory")]
    let place = (counter % places) as usize;
    place
}

/// `u32::MAX` for a larger number. As the size of anything, the kernel refuses it.
pub(crate) fn clamp_to_u32(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// `i64::MAX` for a larger number.
pub(crate) fn clamp_to_i64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A size that the kernel has stated; an error where it is larger than the address space.
pub(crate) fn checked_usize(number: u64) -> Result<usize, Errno> {
    usize::try_from(number).map_err(|_| Errno::OVERFLOW)
}
