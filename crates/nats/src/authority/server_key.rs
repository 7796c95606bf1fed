//! Keys as nats-server writes them ("nkeys"): Ed25519, with a public key that says what it is for.
//!
//! The text is base32 of a kind, the key, and CRC-16/XMODEM of both, lowest byte first.

use super::Error;
use ring::signature::{Ed25519KeyPair, KeyPair as _};

/// What a key is for; the value is the first byte of its text.
#[derive(Clone, Copy, Debug)]
pub(super) enum KeyKind {
    // Base32 takes five bits for a letter. The upper five of this byte are the first one: 14 is O, 0 is A, 20
    // is U.
    /// Signs accounts: text begins with `O`.
    Operator = 14 << 3,
    /// Signs users: `A`.
    Account = 0,
    /// `U`.
    User = 20 << 3,
}

/// A key pair and its public text.
pub(super) struct ServerKey {
    pair: Ed25519KeyPair,
    /// The public key as text.
    pub(super) id: String,
}

impl ServerKey {
    pub(super) fn of_seed(kind: KeyKind, seed: &[u8]) -> Result<Self, Error> {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed);
        let pair =
            pair.map_err(|_| Error::Certificate("a key for the server could not be derived".to_owned()))?;
        let id = written(kind, pair.public_key().as_ref());
        Ok(Self { pair, id })
    }

    pub(super) fn sign(&self, what: &[u8]) -> Vec<u8> {
        self.pair.sign(what).as_ref().to_vec()
    }
}

fn written(kind: KeyKind, key: &[u8]) -> String {
    let mut bytes = vec![kind as u8];
    bytes.extend_from_slice(key);
    let check = crc16(&bytes);
    bytes.extend_from_slice(&check.to_le_bytes());
    base32(&bytes)
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    let mut crc = 0_u16;
    for byte in bytes {
        crc ^= u16::from(*byte) << 8;
        // Polynomial 0x1021, initial value 0, most significant bit first.
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
        }
    }
    crc
}

/// RFC 4648, without padding.
fn base32(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let mut text = String::new();
    let mut bits = 0_u32;
    let mut waiting = 0;
    for byte in bytes {
        bits = (bits << 8) | u32::from(*byte);
        waiting += 8;
        while waiting >= 5 {
            waiting -= 5;
            text.push(char::from(LETTERS[(bits >> waiting & 31) as usize]));
        }
    }
    if waiting > 0 {
        text.push(char::from(LETTERS[(bits << (5 - waiting) & 31) as usize]));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_and_text_are_those_of_the_standards() {
        assert_eq!(crc16(b"123456789"), 0x31c3, "the check value of CRC-16/XMODEM");
        for (bytes, text) in [("", ""), ("f", "MY"), ("fo", "MZXQ"), ("foobar", "MZXW6YTBOI")] {
            assert_eq!(base32(bytes.as_bytes()), text, "RFC 4648, section 10");
        }
    }

    #[test]
    fn a_public_key_says_what_it_is_for() {
        for (kind, letter) in [(KeyKind::Operator, 'O'), (KeyKind::Account, 'A'), (KeyKind::User, 'U')] {
            let key = ServerKey::of_seed(kind, &[7; 32]).expect("32 bytes are a seed");
            assert!(key.id.starts_with(letter) && key.id.len() == 56, "{}", key.id);
        }
    }
}
