//! Conversions between widths of integers that clamp: a value that is too large becomes the largest one.

/// Clamps sizes of queues and buffers as typed. No address space could hold a size that is clamped.
pub fn clamp_to_usize(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

pub fn clamp_to_u32(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

pub fn clamp_to_u64(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}
