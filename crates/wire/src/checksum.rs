//! The Internet checksum (RFC 1071) and the frame check sequence (CRC-32 of IEEE 802.3).

/// A running one's-complement sum of big-endian 16-bit words over pieces of any length. A piece at an odd
/// offset is added with its bytes swapped.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChecksumSum {
    total: u64,
    odd: bool,
}

impl ChecksumSum {
    /// Adds the bytes that follow the bytes added so far.
    pub fn add_bytes(&mut self, bytes: &[u8]) {
        self.add_folded_sum(ones_complement_sum(bytes), bytes.len());
    }

    /// Adds a piece of `len` bytes whose folded sum is known.
    pub fn add_folded_sum(&mut self, folded: u16, len: usize) {
        // RFC 1071 section 2(B): the sum of byte-swapped words is the byte-swapped sum.
        self.total += u64::from(if self.odd { folded.swap_bytes() } else { folded });
        self.odd ^= len % 2 == 1;
    }

    /// Returns the folded sum so far; it is not inverted.
    pub fn folded_sum(self) -> u16 {
        fold_carries(self.total)
    }
}

/// Returns the one's-complement sum of `bytes` as big-endian 16-bit words, folded and not inverted. An odd
/// last byte is padded with zero.
pub fn ones_complement_sum(bytes: &[u8]) -> u16 {
    // Four words are added at a time. Because 2^16 = 1 modulo 2^16 - 1, the 32-bit halves may be added and
    // folded at the end.
    let mut chunks = bytes.chunks_exact(8);
    let mut total: u64 = 0;
    for chunk in &mut chunks {
        let word = u64::from_be_bytes([
            chunk[0], chunk[1], chunk[2], chunk[3], chunk[4], chunk[5], chunk[6], chunk[7],
        ]);
        total += (word >> 32) + (word & 0xffff_ffff);
    }
    let mut rest = chunks.remainder().chunks_exact(2);
    for pair in &mut rest {
        total += u64::from(u16::from_be_bytes([pair[0], pair[1]]));
    }
    if let [last] = rest.remainder() {
        total += u64::from(*last) << 8;
    }
    fold_carries(total)
}

fn fold_carries(mut total: u64) -> u16 {
    while total > 0xffff {
        total = (total >> 16) + (total & 0xffff);
    }
    // After the loop, the value has at most 16 bits.
    let [low, high, ..] = total.to_le_bytes();
    u16::from_le_bytes([low, high])
}

/// Table `n` is for a byte that is followed by `n` more bytes in its group.
static CRC_TABLES: [[u32; 256]; BYTES_PER_STEP] = crc_tables();
/// Number of bytes that are processed in one step.
const BYTES_PER_STEP: usize = 8;

const fn crc_tables() -> [[u32; 256]; BYTES_PER_STEP] {
    // The polynomial of IEEE 802.3 in reflected bit order.
    const POLYNOMIAL: u32 = 0xedb8_8320;
    let mut tables = [[0u32; 256]; BYTES_PER_STEP];
    let mut index = 0u32;
    while index < 256 {
        let mut value = index;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { (value >> 1) ^ POLYNOMIAL } else { value >> 1 };
            bit += 1;
        }
        tables[0][index as usize] = value;
        index += 1;
    }
    let mut index = 0;
    while index < 256 {
        let mut group = 1;
        while group < BYTES_PER_STEP {
            let value = tables[group - 1][index];
            tables[group][index] = (value >> 8) ^ tables[0][(value & 0xff) as usize];
            group += 1;
        }
        index += 1;
    }
    tables
}

/// Computes the FCS of a frame, as the four bytes that follow it on the wire.
pub fn compute_fcs(frame: &[u8]) -> [u8; 4] {
    crc32(0, frame).to_le_bytes()
}

/// Computes the CRC-32 of bytes, continued from that of the bytes before them (`before` is 0 at the start).
/// The result equals that of `crc32` in zlib.
pub fn crc32(before: u32, bytes: &[u8]) -> u32 {
    // This is the algorithm "slicing by eight": the CRC so far is added to the first half of a group, then
    // each byte is looked up in the table for the number of bytes after it. Byte by byte, every lookup would
    // have to wait for the one before.
    let tables = &CRC_TABLES;
    let (groups, rest) = bytes.as_chunks::<BYTES_PER_STEP>();
    let crc = groups.iter().fold(!before, |crc, group| {
        let mixed = (u64::from_le_bytes(*group) ^ u64::from(crc)).to_le_bytes();
        mixed.iter().zip(tables.iter().rev()).fold(0, |crc, (byte, table)| crc ^ table[usize::from(*byte)])
    });
    !rest.iter().fold(crc, |crc, byte| add_byte_to_crc(crc, *byte))
}

fn add_byte_to_crc(crc: u32, byte: u8) -> u32 {
    (crc >> 8) ^ CRC_TABLES[0][((crc ^ u32::from(byte)) & 0xff) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn naive(bytes: &[u8]) -> u16 {
        let mut total = 0u32;
        for pair in bytes.chunks(2) {
            total += u32::from(pair[0]) * 256 + u32::from(*pair.get(1).unwrap_or(&0));
            total = (total & 0xffff) + (total >> 16);
        }
        u16::try_from(total).unwrap()
    }

    #[test]
    fn fcs_of_the_well_known_string() {
        assert_eq!(compute_fcs(b"123456789"), 0xcbf4_3926u32.to_le_bytes());
    }

    proptest! {
        #[test]
        fn groups_give_the_same_fcs_as_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let plain = !bytes.iter().fold(u32::MAX, |crc, byte| add_byte_to_crc(crc, *byte));
            prop_assert_eq!(compute_fcs(&bytes), plain.to_le_bytes());
        }

        #[test]
        fn a_crc_continues_where_it_was(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 0usize..200) {
            let (first, rest) = bytes.split_at(cut.min(bytes.len()));
            prop_assert_eq!(crc32(crc32(0, first), rest), crc32(0, &bytes));
        }

        #[test]
        fn the_fast_sum_is_the_plain_one(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            // 0 and 0xffff are the same number in one's complement, but a sum of non-zero words is never 0.
            prop_assert_eq!(ones_complement_sum(&bytes), naive(&bytes));
        }

        #[test]
        fn pieces_add_up_to_the_whole(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 0usize..200) {
            let cut = cut.min(bytes.len());
            let mut pieces = ChecksumSum::default();
            pieces.add_bytes(&bytes[..cut]);
            pieces.add_bytes(&bytes[cut..]);
            prop_assert_eq!(pieces.folded_sum(), ones_complement_sum(&bytes));
        }
    }
}
