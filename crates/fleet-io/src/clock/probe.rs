//! Encodes and decodes clock probes and their answers.
//!
//! ```text
//!  0        8      16        24        32                48
//! +--------+--------+---------+---------+-----------------+
//! | mark   | number | heard   | answered| seal (HMAC/2)   |
//! +--------+--------+---------+---------+-----------------+
//! ```
//! Big-endian; times are nanoseconds of the controller's monotonic clock. `mark` tells questions from answers; `seal`
//! is the first half of an HMAC-SHA256 over the fields before it. A question has the number of its node's key in the
//! field `heard`, and zero in the field `answered`.
//!
//! Each node has its own key, derived from the controller's key and the node's name. So a node cannot falsify the clock
//! comparison of another node.

use hmac::{Hmac, KeyInit, Mac};
use packetrig_fleet::message::ClockKey;
use packetrig_report::NodeName;
use packetrig_units::MonoTime;
use sha2::{Digest, Sha256};

/// Bytes of a probe, and of its answer.
pub(super) const CLOCK_PROBE_BYTES: usize = 48;
const PROBE_SEAL_BYTES: usize = 16;
const CLOCK_QUESTION_MAGIC: [u8; 8] = *b"prigask1";
const CLOCK_ANSWER_MAGIC: [u8; 8] = *b"prigans1";

/// A question of a node or the controller's answer to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClockProbe {
    Question { number: u64, key_number: u64 },
    Answer { number: u64, heard: MonoTime, answered: MonoTime },
}

impl ClockProbe {
    pub(super) fn to_sealed_bytes(self, key: &ClockKey) -> [u8; CLOCK_PROBE_BYTES] {
        let mark = match self {
            Self::Question { .. } => CLOCK_QUESTION_MAGIC,
            Self::Answer { .. } => CLOCK_ANSWER_MAGIC,
        };
        let words = match self {
            Self::Question { number, key_number } => [number, key_number, 0],
            Self::Answer { number, heard, answered } => [number, heard.as_nanos(), answered.as_nanos()],
        };
        let mut bytes = [0; CLOCK_PROBE_BYTES];
        bytes[..8].copy_from_slice(&mark);
        for (place, value) in bytes[8..32].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&value.to_be_bytes());
        }
        let seal = keyed_mac_of(key, &bytes[..32]).finalize().into_bytes();
        bytes[32..].copy_from_slice(&seal[..PROBE_SEAL_BYTES]);
        bytes
    }

    /// Decodes a probe; `None` for bytes that are not a probe, or whose seal was not made with `key`.
    pub(super) fn from_sealed_bytes(bytes: &[u8], key: &ClockKey) -> Option<Self> {
        let bytes: &[u8; CLOCK_PROBE_BYTES] = bytes.try_into().ok()?;
        // The HMAC is truncated to its first half, which RFC 2104 (section 5) allows. It is compared in constant time.
        keyed_mac_of(key, &bytes[..32]).verify_truncated_left(&bytes[32..]).ok()?;
        let number = word_at(bytes, 8)?;
        // The seal covers the mark, so a question that is sent back cannot pass for an answer.
        match bytes[..8].try_into().ok()? {
            CLOCK_QUESTION_MAGIC => Some(Self::Question { number, key_number: word_at(bytes, 16)? }),
            CLOCK_ANSWER_MAGIC => Some(Self::Answer {
                number,
                heard: MonoTime::from_nanos(word_at(bytes, 16)?),
                answered: MonoTime::from_nanos(word_at(bytes, 24)?),
            }),
            _ => None,
        }
    }
}

/// Reads the number of the key with which a question claims to be sealed. The seal is not checked here.
pub(super) fn parse_key_number(bytes: &[u8]) -> Option<u64> {
    let bytes: &[u8; CLOCK_PROBE_BYTES] = bytes.try_into().ok()?;
    let is_question = bytes[..8] == CLOCK_QUESTION_MAGIC;
    let number = word_at(bytes, 16)?;
    is_question.then_some(number)
}

fn word_at(bytes: &[u8; CLOCK_PROBE_BYTES], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().copied().map(u64::from_be_bytes)
}

/// Returns the number of a node's key: 8 bytes of the hash of the node's name.
pub(super) fn key_number(node: &NodeName) -> u64 {
    // The number is not secret: it only tells the responder which key it has to derive.
    Sha256::digest(node.0.as_bytes()).iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Derives the key with this number from the controller's key.
pub(super) fn derive_numbered_key(controller: &ClockKey, key_number: u64) -> ClockKey {
    let mut text = *b"packetrig clock 1 ........";
    // The text makes these keys different from all other keys that are derived from the controller's key.
    text[18..].copy_from_slice(&key_number.to_be_bytes());
    ClockKey(keyed_mac_of(controller, &text).finalize().into_bytes().into())
}

fn keyed_mac_of(key: &ClockKey, bytes: &[u8]) -> Hmac<Sha256> {
    // A key of 32 bytes fits into one block of 64 bytes, so it is used as it is.
    let mut block = [0; 64];
    block[..key.0.len()].copy_from_slice(&key.0);
    let mut mac = <Hmac<Sha256> as KeyInit>::new(&block.into());
    mac.update(bytes);
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: ClockKey = ClockKey([7; 32]);

    #[test]
    fn probes_are_read_as_they_were_written() {
        let answer = ClockProbe::Answer {
            number: 5,
            heard: MonoTime::from_nanos(77),
            answered: MonoTime::from_nanos(u64::MAX),
        };
        for probe in [ClockProbe::Question { number: 9, key_number: 3 }, answer] {
            assert_eq!(ClockProbe::from_sealed_bytes(&probe.to_sealed_bytes(&KEY), &KEY), Some(probe));
        }
    }

    #[test]
    fn clock_probe_with_wrong_seal_is_ignored() {
        let bytes = ClockProbe::Question { number: 1, key_number: 0 }.to_sealed_bytes(&KEY);
        assert_eq!(ClockProbe::from_sealed_bytes(&bytes, &ClockKey([8; 32])), None);
        assert_eq!(ClockProbe::from_sealed_bytes(&bytes[..47], &KEY), None);
        for at in 0..CLOCK_PROBE_BYTES {
            let mut bent = bytes;
            bent[at] ^= 1;
            assert_eq!(ClockProbe::from_sealed_bytes(&bent, &KEY), None, "byte {at}");
        }
    }
}
