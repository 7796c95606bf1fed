//! Conversions to another integer type; each name says what happens to a value out of range.
//!
//! `clamp_to_…` is for values that are not negative: a value that is too large becomes the largest value of the type.
//! If a value is always in range, use a conversion that cannot fail; if a value out of range is a fault, return an
//! error instead of clamping.

#[inline]
pub fn clamp_to_u8(value: impl TryInto<u8>) -> u8 {
    value.try_into().unwrap_or(u8::MAX)
}

#[inline]
pub fn clamp_to_u16(value: impl TryInto<u16>) -> u16 {
    value.try_into().unwrap_or(u16::MAX)
}

#[inline]
pub fn clamp_to_u32(value: impl TryInto<u32>) -> u32 {
    value.try_into().unwrap_or(u32::MAX)
}

#[inline]
pub fn clamp_to_u64(value: impl TryInto<u64>) -> u64 {
    value.try_into().unwrap_or(u64::MAX)
}

#[inline]
pub fn clamp_to_usize(value: impl TryInto<usize>) -> usize {
    value.try_into().unwrap_or(usize::MAX)
}

#[inline]
pub fn clamp_to_i16(value: impl TryInto<i16>) -> i16 {
    value.try_into().unwrap_or(i16::MAX)
}

#[inline]
pub fn clamp_to_i32(value: impl TryInto<i32>) -> i32 {
    value.try_into().unwrap_or(i32::MAX)
}

#[inline]
pub fn clamp_to_i64(value: impl TryInto<i64>) -> i64 {
    value.try_into().unwrap_or(i64::MAX)
}

/// Returns `value` modulo `divisor`, which must not be 0. The result is below the divisor, so it fits a `usize`.
#[inline]
pub fn remainder_as_usize(value: u64, divisor: usize) -> usize {
    clamp_to_usize(value % divisor as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_that_does_not_fit_becomes_largest() {
        assert_eq!((clamp_to_u8(255_u64), clamp_to_u8(256_u64)), (255, u8::MAX));
        assert_eq!((clamp_to_u16(65_535_u32), clamp_to_u16(65_536_u32)), (65_535, u16::MAX));
        assert_eq!((clamp_to_u32(7_usize), clamp_to_u32(u64::MAX)), (7, u32::MAX));
        assert_eq!((clamp_to_u64(7_u128), clamp_to_u64(1_u128 << 64)), (7, u64::MAX));
        assert_eq!((clamp_to_i64(7_u64), clamp_to_i64(1_u64 << 63)), (7, i64::MAX));
        assert_eq!((clamp_to_i16(40_000_usize), clamp_to_i32(1_u128 << 40)), (i16::MAX, i32::MAX));
    }
}
