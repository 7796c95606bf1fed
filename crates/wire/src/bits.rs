//! Bit fields in bytes, with the most significant bit first, as the standards draw them.

/// Writes the low `bits` bits of `value` at the bit offset `at`. Fields of whole bytes are copied bytewise.
pub(crate) fn write_bits(bytes: &mut [u8], at: u32, bits: u32, value: u128) {
    let first = (at / 8) as usize;
    if at.is_multiple_of(8) && bits.is_multiple_of(8) {
        let len = (bits / 8) as usize;
        bytes[first..first + len].copy_from_slice(&value.to_be_bytes()[16 - len..]);
        return;
    }
    // The loop writes bit by bit, because a field that shares its bytes with other fields must not change
    // their bits.
    for bit in 0..bits {
        let place = at + bit;
        let mask = 0x80u8 >> (place % 8);
        let byte = &mut bytes[(place / 8) as usize];
        if value >> (bits - 1 - bit) & 1 == 1 {
            *byte |= mask;
        } else {
            *byte &= !mask;
        }
    }
}

/// Reads `bits` bits at the bit offset `at`; `None` if they extend beyond the end.
pub(crate) fn read_bits(bytes: &[u8], at: u64, bits: u32) -> Option<u128> {
    let mut value = 0u128;
    for bit in 0..u64::from(bits) {
        let place = at + bit;
        let byte = *bytes.get(usize::try_from(place / 8).ok()?)?;
        value = value << 1 | u128::from(byte >> (7 - place % 8) & 1);
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn written_bits_read_back_without_changing_others(at in 0u32..60, bits in 1u32..100, value: u128, fill: u8) {
            let mut bytes = [fill; 24];
            write_bits(&mut bytes, at, bits, value);
            let wanted = value & crate::pattern::low_mask(bits);
            prop_assert_eq!(read_bits(&bytes, at.into(), bits), Some(wanted));
            write_bits(&mut bytes, at, bits, read_bits(&[fill; 24], at.into(), bits).unwrap());
            prop_assert_eq!(bytes, [fill; 24]);
        }
    }
}
