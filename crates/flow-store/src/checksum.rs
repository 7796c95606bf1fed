//! CRC-32C (Castagnoli): the checksum of Kafka's record batches, and of row groups in files.

// Castagnoli's polynomial 0x1edc6f41 with its bits reversed: bytes are processed lowest bit first.
const CRC32C_POLYNOMIAL: u32 = 0x82f6_3b78;

const CRC32C_TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        #[expect(clippy::cast_possible_truncation, reason = "below 256")]
        let mut value = index as u32;
        let mut bit = 0;
        while bit < 8 {
            // One step of the division by the polynomial, whose highest power is the lowest bit here.
            value = if value & 1 == 1 { value >> 1 ^ CRC32C_POLYNOMIAL } else { value >> 1 };
            bit += 1;
        }
        table[index] = value;
        index += 1;
    }
    table
};

pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    continue_crc32c(0, bytes)
}

/// The checksum of earlier bytes followed by `bytes`. `before` is the checksum of the earlier bytes alone.
pub(super) fn continue_crc32c(before: u32, bytes: &[u8]) -> u32 {
    // The register begins inverted and is inverted at the end, so inverting `before` gives the register back.
    !bytes.iter().fold(!before, |crc, byte| {
        let [low, ..] = (crc ^ u32::from(*byte)).to_le_bytes();
        crc >> 8 ^ CRC32C_TABLE[usize::from(low)]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3720, appendix B.4.
    #[test]
    fn published_examples() {
        let rising: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(&rising), 0x46dd_794e);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(continue_crc32c(crc32c(b"1234"), b"56789"), 0xe306_9283);
    }
}
