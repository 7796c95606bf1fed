//! The bytes that fill a frame after the headers (the fill). The test tag replaces the last of these bytes.

use serde::{Deserialize, Serialize};

/// OTG's kinds of payload. The fill of a shorter frame is always the beginning of the fill of a longer frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PayloadPattern {
    /// The bytes of `pattern`, once or repeatedly. Zeros follow a pattern that is not repeated.
    Fixed {
        pattern: Vec<u8>,
        /// True to fill the whole payload with the pattern.
        repeat: bool,
    },
    /// 0, 1, 2, … as bytes.
    IncrementByte,
    /// 255, 254, … as bytes.
    DecrementByte,
    /// 0, 1, 2, … as big-endian 16-bit words.
    IncrementWord,
    /// 65535, 65534, … as big-endian 16-bit words.
    DecrementWord,
}

impl Default for PayloadPattern {
    fn default() -> Self {
        Self::Fixed { pattern: vec![0], repeat: true }
    }
}

impl PayloadPattern {
    /// Returns the first `len` bytes of the fill.
    pub fn fill_bytes(&self, len: usize) -> Vec<u8> {
        match self {
            Self::Fixed { pattern, .. } if pattern.is_empty() => vec![0; len],
            Self::Fixed { pattern, repeat: true } => pattern.iter().copied().cycle().take(len).collect(),
            Self::Fixed { pattern, .. } => {
                pattern.iter().copied().chain(std::iter::repeat(0)).take(len).collect()
            }
            Self::IncrementByte => (0..len).map(low_byte).collect(),
            // The complement of an increasing byte decreases from 255.
            Self::DecrementByte => (0..len).map(|i| !low_byte(i)).collect(),
            Self::IncrementWord => fill_payload_from_words(len, low_word),
            Self::DecrementWord => fill_payload_from_words(len, |i| !low_word(i)),
        }
    }
}

/// Returns `len` bytes of big-endian words; the last word is cut if `len` is odd.
fn fill_payload_from_words(len: usize, word: impl Fn(usize) -> u16) -> Vec<u8> {
    (0..len.div_ceil(2)).flat_map(|i| word(i).to_be_bytes()).take(len).collect()
}

const fn low_byte(i: usize) -> u8 {
    i.to_le_bytes()[0]
}

const fn low_word(i: usize) -> u16 {
    let [low, high, ..] = i.to_le_bytes();
    u16::from_le_bytes([low, high])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_fills_as_otg_says() {
        assert_eq!(
            PayloadPattern::Fixed { pattern: vec![1, 2], repeat: true }.fill_bytes(5),
            [1, 2, 1, 2, 1]
        );
        assert_eq!(PayloadPattern::Fixed { pattern: vec![1, 2], repeat: false }.fill_bytes(4), [1, 2, 0, 0]);
        assert_eq!(PayloadPattern::IncrementByte.fill_bytes(258)[254..], [254, 255, 0, 1]);
        assert_eq!(PayloadPattern::DecrementByte.fill_bytes(2), [255, 254]);
        assert_eq!(PayloadPattern::IncrementWord.fill_bytes(5), [0, 0, 0, 1, 0]);
        assert_eq!(PayloadPattern::DecrementWord.fill_bytes(4), [255, 255, 255, 254]);
    }
}
