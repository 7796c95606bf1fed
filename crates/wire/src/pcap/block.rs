//! Writes blocks of pcapng files with words, options and padding, in little-endian byte order. The caller
//! decides which blocks a file has.

/// Returns the lower 32 bits of a time or a count.
pub fn low_32_bits(value: u64) -> u32 {
    (value & 0xffff_ffff) as u32
}

/// Appends 32-bit words.
pub fn write_words(out: &mut Vec<u8>, words: &[u32]) {
    for word in words {
        out.extend_from_slice(&word.to_le_bytes());
    }
}

/// Appends bytes, and zeros up to the next word boundary. The bytes must begin at a word boundary.
pub fn write_padded_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(bytes);
    out.resize(out.len() + bytes.len().next_multiple_of(4) - bytes.len(), 0);
}

/// Appends an option. A value that is too long for its length field is truncated.
pub fn write_block_option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let length = u16::try_from(value.len()).unwrap_or(u16::MAX);
    write_words(out, &[u32::from(code) | u32::from(length) << 16]);
    write_padded_bytes(out, &value[..usize::from(length)]);
}

/// Appends a block, with its length before and after the body.
pub fn write_block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    write_words(out, &[kind, 0]);
    body(out);
    // The length at the end lets readers read a file backwards. No caller writes a block of more than 4 GiB.
    let total = u32::try_from(out.len() - start + 4).unwrap_or(u32::MAX).to_le_bytes();
    out[start + 4..start + 8].copy_from_slice(&total);
    out.extend_from_slice(&total);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pcapng_block_repeats_length_and_pads_options() {
        let mut out = vec![7; 3];
        write_block(&mut out, 5, |body| write_block_option(body, 1, b"12345"));
        let expected =
            [5, 0, 0, 0, 24, 0, 0, 0, 1, 0, 5, 0, b'1', b'2', b'3', b'4', b'5', 0, 0, 0, 24, 0, 0, 0];
        assert_eq!(out[3..], expected);
        let mut out = Vec::new();
        write_block_option(&mut out, 1, &vec![0; 70_000]);
        assert_eq!((out.len(), &out[..4]), (4 + 65_536, &[1, 0, 0xff, 0xff][..]));
    }
}
