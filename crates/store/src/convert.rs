//! Conversions of integers. `clamp_to_…` returns the greatest number of the type if a value does
//! not fit; `exact_usize` cannot fail.

const _: () = assert!(usize::BITS >= u64::BITS, "sizes of files and values are addressed with usize");

#[expect(clippy::cast_possible_truncation, reason = "`usize` has 64 bits, as asserted above")]
pub(crate) const fn exact_usize(value: u64) -> usize {
    value as usize
}

pub(crate) fn clamp_to_u8(value: u64) -> u8 {
    u8::try_from(value).unwrap_or(u8::MAX)
}

pub(crate) fn clamp_to_u16(value: u64) -> u16 {
    u16::try_from(value).unwrap_or(u16::MAX)
}

pub(crate) fn clamp_to_u32(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

pub(crate) fn clamp_to_u64(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

pub(crate) fn clamp_to_i16(value: usize) -> i16 {
    i16::try_from(value).unwrap_or(i16::MAX)
}

pub(crate) fn clamp_to_i32(value: u128) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

pub(crate) fn clamp_to_i64(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
