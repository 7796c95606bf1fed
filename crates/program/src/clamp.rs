//! Conversions between widths of integers that clamp: what is too large becomes the largest value.

/// Sizes of queues and buffers as typed. Where this clamps, no address space could hold what was asked for anyway.
pub fn clamp_to_usize(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

pub fn clamp_to_u32(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

pub fn clamp_to_u64(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}
