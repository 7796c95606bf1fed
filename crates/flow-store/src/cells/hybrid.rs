//! Decodes Parquet's hybrid of run-length encoding and bit packing, in which dictionary indexes and
//! definition levels are stored.

use parquet::errors::{ParquetError, Result as ParquetResult};

/// Decodes `count` numbers of `width` bits.
///
/// Format: <https://parquet.apache.org/docs/file-format/data-pages/encodings/#RLE>. A run begins with a
/// variable-length number. If its lowest bit is 0, the other bits are how often the next value repeats; if it
/// is 1, they are how many groups of eight bit-packed values follow.
pub(super) fn decode_hybrid(mut bytes: &[u8], width: u8, count: usize) -> ParquetResult<Vec<u32>> {
    if width > 32 {
        return Err(damaged_page_error());
    }
    // `count` is at most the number of rows of a page, which the caller has limited.
    let mut numbers = Vec::with_capacity(count);
    while numbers.len() < count {
        let left = count - numbers.len();
        let head = read_varint(&mut bytes).ok_or_else(damaged_page_error)?;
        let length = usize::try_from(head >> 1).map_err(|_| damaged_page_error())?;
        if head & 1 == 0 {
            let value =
                read_number(&mut bytes, usize::from(width.div_ceil(8))).ok_or_else(damaged_page_error)?;
            // A damaged page could consist of empty runs, which cost time and yield no values.
            if length == 0 {
                return Err(damaged_page_error());
            }
            numbers.extend(std::iter::repeat_n(value, length.min(left)));
        } else {
            let packed = length.checked_mul(usize::from(width)).ok_or_else(damaged_page_error)?;
            // The last group may be cut off after its last value.
            let taken = packed.min(bytes.len());
            let (group, rest) = bytes.split_at(taken);
            let values = length.saturating_mul(8).min(left);
            if values == 0 || values * usize::from(width) > taken * 8 {
                return Err(damaged_page_error());
            }
            unpack_bits(group, width, values, &mut numbers);
            bytes = rest;
        }
    }
    Ok(numbers)
}

fn unpack_bits(bytes: &[u8], width: u8, count: usize, numbers: &mut Vec<u32>) {
    let mask = (1_u64 << width) - 1;
    let width = usize::from(width);
    numbers.extend((0..count).map(|at| {
        let bit = at * width;
        let window = zero_padded_u64_at(bytes, bit / 8);
        // The number begins at most 7 bits after the start of the window and has at most 32 bits, so the window of 64
        // bits contains it. The mask removes the bits of the next numbers.
        u32::try_from(window >> (bit % 8) & mask).unwrap_or(u32::MAX)
    }));
}

/// The eight bytes from index `at` on as a little-endian number. Bytes after the end count as zero.
fn zero_padded_u64_at(bytes: &[u8], at: usize) -> u64 {
    if let Some(window) = bytes.get(at..at + 8).and_then(|window| window.first_chunk()) {
        return u64::from_le_bytes(*window);
    }
    let mut last = [0; 8];
    let rest = bytes.get(at..).unwrap_or_default();
    last[..rest.len()].copy_from_slice(rest);
    u64::from_le_bytes(last)
}

fn read_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn read_number(bytes: &mut &[u8], length: usize) -> Option<u32> {
    let (number, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(number.iter().rev().fold(0, |number, &byte| number << 8 | u32::from(byte)))
}

fn damaged_page_error() -> ParquetError {
    ParquetError::General("a page is damaged: its run-length encoded or bit-packed values are invalid".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Encodes runs: a value and how often, or packed values.
    fn encode(runs: &[(bool, Vec<u32>)], width: u8) -> (Vec<u8>, Vec<u32>) {
        let (mut bytes, mut numbers) = (Vec::new(), Vec::new());
        for (is_packed, values) in runs {
            if *is_packed {
                bytes.push(u8::try_from(values.len().div_ceil(8) << 1 | 1).unwrap());
                let mut bits = vec![0; values.len().div_ceil(8) * usize::from(width)];
                for (at, value) in values.iter().enumerate() {
                    for bit in (0..width).filter(|bit| value >> bit & 1 == 1) {
                        let place = at * usize::from(width) + usize::from(bit);
                        bits[place / 8] |= 1 << (place % 8);
                    }
                }
                bytes.extend(bits);
                let padded = values.len().next_multiple_of(8) - values.len();
                numbers.extend(values.iter().copied().chain(std::iter::repeat_n(0, padded)));
            } else {
                bytes.push(u8::try_from(values.len() << 1).unwrap());
                bytes.extend(&values[0].to_le_bytes()[..usize::from(width.div_ceil(8))]);
                numbers.extend(std::iter::repeat_n(values[0], values.len()));
            }
        }
        (bytes, numbers)
    }

    proptest! {
        #[test]
        fn hybrid_runs_decode_to_their_values(
            width in 1_u8..=32,
            runs in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u32>(), 1..60)), 1..8),
        ) {
            let fits = |value: u32| value & (u32::MAX >> (32 - u32::from(width)));
            let runs: Vec<_> = runs.into_iter().map(|(packed, values)| (packed, values.into_iter().map(fits).collect())).collect();
            let (bytes, numbers) = encode(&runs, width);
            prop_assert_eq!(decode_hybrid(&bytes, width, numbers.len()).unwrap(), numbers);
        }

        #[test]
        fn damaged_hybrid_runs_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..40), width: u8, count in 0_usize..200) {
            if let Ok(numbers) = decode_hybrid(&bytes, width, count) {
                prop_assert_eq!(numbers.len(), count);
            }
        }
    }

    #[test]
    fn hybrid_of_width_zero_is_all_zeros_and_cut_runs_are_refused() {
        assert_eq!(decode_hybrid(&[8 << 1], 0, 5).unwrap(), [0; 5]);
        assert!(decode_hybrid(&[3, 0xff], 8, 5).is_err());
        assert!(decode_hybrid(&[0, 1], 8, 5).is_err());
        assert!(decode_hybrid(&[], 1, 1).is_err());
    }
}
