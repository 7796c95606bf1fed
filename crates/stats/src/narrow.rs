//! Conversions to narrower integers, named for the treatment of a value that does not fit.

/// The value, or the greatest of 64 bits if it is larger: times and sums that large are wrong anyway, but must not wrap.
pub(crate) fn clamp_to_u64(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

/// The value, or the nearest that 64 bits with a sign can say.
pub(crate) fn clamp_to_i64(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

/// An index: the value, or the greatest one, which no list has.
pub(crate) fn clamp_to_usize(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oversized_number_clamps_to_nearest_value() {
        assert_eq!((clamp_to_u64(7), clamp_to_u64(1 << 64)), (7, u64::MAX));
        assert_eq!(
            (clamp_to_i64(-7), clamp_to_i64(1 << 63), clamp_to_i64(-1 << 64)),
            (-7, i64::MAX, i64::MIN)
        );
        assert_eq!(clamp_to_usize(7), 7);
    }
}
