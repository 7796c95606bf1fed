//! Reads numbers from bytes that may end anywhere.

/// The bytes that are still to be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct ByteReader<'a>(&'a [u8]);

impl<'a> ByteReader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) const fn unread_byte_count(&self) -> usize {
        self.0.len()
    }

    /// Returns the next bytes; if fewer are left, returns `None` and stays at its position.
    pub(super) fn read_bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        self.0.split_off(..length)
    }

    fn read_array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.read_bytes(N)?.try_into().ok()
    }

    pub(super) fn read_u8(&mut self) -> Option<u8> {
        self.read_array::<1>().map(|[byte]| byte)
    }

    pub(super) fn read_u16(&mut self) -> Option<u16> {
        self.read_array().map(u16::from_be_bytes)
    }

    pub(super) fn read_u32(&mut self) -> Option<u32> {
        self.read_array().map(u32::from_be_bytes)
    }

    /// Reads a value of variable length. Its length comes first: in one byte, or in two bytes after a byte of 255.
    pub(super) fn read_variable_length_value(&mut self) -> Option<&'a [u8]> {
        // RFC 7011 section 7. A copy is read first, so that the position stays the same if the value is truncated.
        let mut ahead = *self;
        let length = match ahead.read_u8()? {
            u8::MAX => usize::from(ahead.read_u16()?),
            short => usize::from(short),
        };
        let value = ahead.read_bytes(length)?;
        *self = ahead;
        Some(value)
    }
}

/// Reads a number in network byte order, of at most eight bytes; `None` if it is longer than that.
pub(super) fn read_number(bytes: &[u8]) -> Option<u64> {
    (bytes.len() <= 8).then(|| bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
}

/// Returns the lowest 8 bits of a number.
pub(super) const fn low_u8(value: u64) -> u8 {
    value.to_le_bytes()[0]
}

/// Returns the lowest 16 bits of a number.
pub(super) const fn low_u16(value: u64) -> u16 {
    let [a, b, ..] = value.to_le_bytes();
    u16::from_le_bytes([a, b])
}

/// Returns the lowest 32 bits of a number.
pub(super) const fn low_u32(value: u64) -> u32 {
    let [a, b, c, d, ..] = value.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_taken_where_not_enough_is_left() {
        let mut reader = ByteReader::new(&[1, 2, 3]);
        assert_eq!((reader.read_u32(), reader.unread_byte_count()), (None, 3));
        assert_eq!(
            (reader.read_u16(), reader.read_u16(), reader.read_u8(), reader.read_u8()),
            (Some(0x102), None, Some(3), None)
        );
    }

    #[test]
    fn variable_lengths_are_short_or_long() {
        let mut reader = ByteReader::new(&[2, 7, 8, 255, 0, 1, 9, 3, 1]);
        assert_eq!(reader.read_variable_length_value(), Some(&[7, 8][..]));
        assert_eq!(reader.read_variable_length_value(), Some(&[9][..]));
        assert_eq!((reader.read_variable_length_value(), reader.unread_byte_count()), (None, 2));
    }

    #[test]
    fn numbers_may_be_shorter_than_their_type() {
        assert_eq!(
            (read_number(&[]), read_number(&[1, 0]), read_number(&[0xff; 8])),
            (Some(0), Some(256), Some(u64::MAX))
        );
        assert_eq!(read_number(&[0; 9]), None);
    }
}
