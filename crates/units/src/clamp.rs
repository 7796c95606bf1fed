//! Conversions to a smaller unsigned integer that clamp: a value that does not fit becomes the largest one.
//!
//! For unsigned values only. If a value always fits, use a conversion that cannot fail; if a value that does not fit is
//! a fault, return an error.

pub fn clamp_to_u16(value: impl TryInto<u16>) -> u16 {
    value.try_into().unwrap_or(u16::MAX)
}

pub fn clamp_to_u32(value: impl TryInto<u32>) -> u32 {
    value.try_into().unwrap_or(u32::MAX)
}

pub fn clamp_to_u64(value: impl TryInto<u64>) -> u64 {
    value.try_into().unwrap_or(u64::MAX)
}

pub fn clamp_to_usize(value: impl TryInto<usize>) -> usize {
    value.try_into().unwrap_or(usize::MAX)
}

/// `value` modulo `divisor`, which is above zero: always fits, because the divisor does.
pub fn remainder_as_usize(value: u64, divisor: usize) -> usize {
    clamp_to_usize(value % divisor as u64)
}
