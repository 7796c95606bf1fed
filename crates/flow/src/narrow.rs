//! Conversions to narrower integers, named for the treatment of a value that does not fit.
//!
//! `clamp_to_…`: it is cut to the greatest value, on purpose. `fitting_…`: it fits, because of a bound elsewhere that the
//! caller names; a debug build stops where that is wrong.

/// The value, or the greatest of 16 bits if it is larger.
#[inline]
pub(crate) fn clamp_to_u16(value: u32) -> u16 {
    u16::try_from(value).unwrap_or(u16::MAX)
}

/// The value, or the greatest of 32 bits if it is larger.
#[inline]
pub(crate) fn clamp_to_u32(value: impl TryInto<u32>) -> u32 {
    value.try_into().unwrap_or(u32::MAX)
}

/// A length that is known to fit 8 bits.
#[inline]
pub(crate) fn fitting_u8(value: usize) -> u8 {
    debug_assert!(u8::try_from(value).is_ok(), "{value} does not fit 8 bits");
    value.to_le_bytes()[0]
}

/// A length or count that is known to fit 16 bits.
#[inline]
pub(crate) fn fitting_u16(value: usize) -> u16 {
    debug_assert!(u16::try_from(value).is_ok(), "{value} does not fit 16 bits");
    let [low, high, ..] = value.to_le_bytes();
    u16::from_le_bytes([low, high])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrowing_clamps_large_values_and_keeps_fitting() {
        assert_eq!((clamp_to_u16(65_535), clamp_to_u16(65_536)), (u16::MAX, u16::MAX));
        assert_eq!((clamp_to_u32(7_usize), clamp_to_u32(u64::MAX)), (7, u32::MAX));
        assert_eq!((fitting_u8(255), fitting_u16(65_535), fitting_u16(0x1234)), (255, 65_535, 0x1234));
    }
}
