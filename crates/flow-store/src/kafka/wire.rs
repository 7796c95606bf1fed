//! Values of Kafka's protocol as bytes and back, as far as a producer needs them. Big-endian; texts and bytes follow their length.

use packetrig_units::{clamp_to_i16, clamp_to_i32};

/// A request or a part of one.
#[derive(Debug, Default)]
pub(super) struct KafkaWriter(pub(super) Vec<u8>);

impl KafkaWriter {
    pub(super) fn put_i8(&mut self, value: i8) -> &mut Self {
        self.put_raw_bytes(&value.to_be_bytes())
    }

    pub(super) fn put_i16(&mut self, value: i16) -> &mut Self {
        self.put_raw_bytes(&value.to_be_bytes())
    }

    pub(super) fn put_i32(&mut self, value: i32) -> &mut Self {
        self.put_raw_bytes(&value.to_be_bytes())
    }

    pub(super) fn put_i64(&mut self, value: i64) -> &mut Self {
        self.put_raw_bytes(&value.to_be_bytes())
    }

    pub(super) fn put_text(&mut self, text: &str) -> &mut Self {
        self.put_i16(clamp_to_i16(text.len()));
        // Truncated to the length that was just written.
        self.put_raw_bytes(&text.as_bytes()[..text.len().min(usize::from(i16::MAX.unsigned_abs()))])
    }

    pub(super) fn put_bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.put_i32(kafka_length(bytes.len())).put_raw_bytes(bytes)
    }

    /// Appends a number as a zigzag varint, in as few bytes as possible.
    pub(super) fn put_varint(&mut self, value: i64) -> &mut Self {
        // Zigzag: 0, -1, 1, -2 become 0, 1, 2, 3, so that small negative numbers are short, too.
        let mut left = (value << 1 ^ value >> 63).cast_unsigned();
        loop {
            let [low, ..] = left.to_le_bytes();
            left >>= 7;
            if left == 0 {
                return self.put_raw_bytes(&[low & 0x7f]);
            }
            self.put_raw_bytes(&[low | 0x80]);
        }
    }

    pub(super) fn put_raw_bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }
}

pub(super) fn kafka_length(length: usize) -> i32 {
    clamp_to_i32(length as u128)
}

/// Reads an answer. A value beyond the end of the answer is `None`.
#[derive(Debug)]
pub(super) struct KafkaReader<'a>(pub(super) &'a [u8]);

impl<'a> KafkaReader<'a> {
    fn read_bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn read_array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.read_bytes(N)?.try_into().ok()
    }

    pub(super) fn read_bool(&mut self) -> Option<bool> {
        Some(self.read_array::<1>()?[0] != 0)
    }

    pub(super) fn read_i16(&mut self) -> Option<i16> {
        self.read_array().map(i16::from_be_bytes)
    }

    pub(super) fn read_i32(&mut self) -> Option<i32> {
        self.read_array().map(i32::from_be_bytes)
    }

    pub(super) fn read_i64(&mut self) -> Option<i64> {
        self.read_array().map(i64::from_be_bytes)
    }

    /// A text; empty if it is null, which has length -1.
    pub(super) fn read_text(&mut self) -> Option<String> {
        let length = self.read_i16()?.max(0).unsigned_abs();
        // A host name with invalid bytes fails later, when packetrig connects: no broker has such an address.
        self.read_bytes(length.into()).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    }

    /// A list: the number of its items, then the items.
    pub(super) fn read_list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        // -1 is a null list. Each item has at least a byte, so a greater count is wrong and must not allocate.
        let count = self.read_i32()?.max(0).unsigned_abs() as usize;
        if count > self.0.len() {
            return None;
        }
        (0..count).map(|_| item(self)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_take_as_few_bytes_as_they_need() {
        let bytes = |value| KafkaWriter::default().put_varint(value).0.clone();
        assert_eq!(bytes(0), [0]);
        assert_eq!(bytes(-1), [1]);
        assert_eq!(bytes(63), [126]);
        assert_eq!(bytes(64), [0x80, 1]);
        assert_eq!(bytes(-65), [0x81, 1]);
        assert_eq!(bytes(300), [0xd8, 4]);
    }

    #[test]
    fn truncated_or_oversized_kafka_answer_is_rejected() {
        assert_eq!(KafkaReader(&[0, 0, 0]).read_i32(), None);
        assert_eq!(KafkaReader(&[0, 9, b'a']).read_text(), None);
        assert_eq!(KafkaReader(&[0x7f, 0xff, 0xff, 0xff, 1]).read_list(KafkaReader::read_i16), None);
        assert_eq!(KafkaReader(&[0xff, 0xff]).read_text(), Some(String::new()));
    }
}
