//! Conversions to narrower integers, named for the treatment of a value that does not fit.
//!
//! `fitting_…`: the value fits, because of a bound elsewhere that the caller names; a debug build panics
//! if it does not.

/// Converts a length that is known to fit 8 bits.
#[inline]
pub(crate) fn fitting_u8(value: usize) -> u8 {
    debug_assert!(u8::try_from(value).is_ok(), "{value} does not fit 8 bits");
    value.to_le_bytes()[0]
}

/// Converts a length or count that is known to fit 16 bits.
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
    fn fitting_numbers_are_kept() {
        assert_eq!((fitting_u8(255), fitting_u16(65_535), fitting_u16(0x1234)), (255, 65_535, 0x1234));
    }
}
