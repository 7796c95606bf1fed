//! Keys as text: base32 of the kind, the key, and the checksum of both (CRC-16/XMODEM, low byte first).

use crate::{Error, KeyPairType};

const BASE32_LETTERS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
/// Kind of a seed: the upper five bits of its first byte. The kind of the key pair follows in the next eight bits.
const SEED: u8 = 18;
const KEY_BYTES: usize = 32;

/// The parts from which the text of a key is made.
pub(crate) struct KeyText<'a> {
    pub(crate) prefix: u8,
    pub(crate) key: &'a [u8],
}

impl KeyText<'_> {
    pub(crate) fn to_text(&self) -> String {
        let mut bytes = vec![self.prefix];
        bytes.extend_from_slice(self.key);
        let check = crc16_xmodem(&bytes);
        bytes.extend_from_slice(&check.to_le_bytes());
        encode_base32(&bytes)
    }
}

/// Reads the kind of a public key; checks that the text has the length of a key.
pub(crate) fn parse_public_key_kind(text: &str) -> Result<u8, Error> {
    match decode_text(text)?[..] {
        [prefix, ref key @ ..] if key.len() == KEY_BYTES => Ok(prefix),
        _ => Err(Error::Text),
    }
}

pub(crate) fn read_seed(text: &str) -> Result<(KeyPairType, [u8; KEY_BYTES]), Error> {
    let bytes = decode_text(text)?;
    let [first, second, key @ ..] = &bytes[..] else { return Err(Error::Seed) };
    if first >> 3 != SEED {
        return Err(Error::Seed);
    }
    // The kind is a byte: its upper three bits are in the first byte, its lower five bits in the second.
    let kind = ((first & 7) << 5) | (second >> 3);
    let kinds = [KeyPairType::Operator, KeyPairType::Account, KeyPairType::User];
    let kind = kinds.into_iter().find(|known| *known as u8 == kind).ok_or(Error::Seed)?;
    Ok((kind, key.try_into().map_err(|_| Error::Seed)?))
}

/// Returns the bytes of a text without the checksum at their end. Fails if the checksum is wrong.
fn decode_text(text: &str) -> Result<Vec<u8>, Error> {
    let mut bytes = decode_base32(text.trim())?;
    let checked = bytes.len().checked_sub(2).ok_or(Error::Text)?;
    let check = bytes.split_off(checked);
    if check == crc16_xmodem(&bytes).to_le_bytes() { Ok(bytes) } else { Err(Error::Text) }
}

/// CRC-16/XMODEM.
fn crc16_xmodem(bytes: &[u8]) -> u16 {
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

/// Encodes bytes as base32 (RFC 4648), without padding.
fn encode_base32(bytes: &[u8]) -> String {
    let mut text = String::new();
    let mut bits = 0_u32;
    let mut waiting = 0;
    for byte in bytes {
        bits = (bits << 8) | u32::from(*byte);
        waiting += 8;
        while waiting >= 5 {
            waiting -= 5;
            text.push(char::from(BASE32_LETTERS[(bits >> waiting & 31) as usize]));
        }
    }
    if waiting > 0 {
        text.push(char::from(BASE32_LETTERS[(bits << (5 - waiting) & 31) as usize]));
    }
    text
}

fn decode_base32(text: &str) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let mut bits = 0_u32;
    let mut waiting = 0;
    for letter in text.bytes() {
        let value = BASE32_LETTERS.iter().position(|known| *known == letter).ok_or(Error::Text)?;
        bits = (bits << 5) | u32::try_from(value).map_err(|_| Error::Text)?;
        waiting += 5;
        if waiting >= 8 {
            waiting -= 8;
            bytes.push((bits >> waiting & 255).try_into().map_err(|_| Error::Text)?);
        }
    }
    // The unused bits at the end must be zero: otherwise several texts would mean the same bytes.
    if encode_base32(&bytes) == text { Ok(bytes) } else { Err(Error::Text) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KeyPair, is_public_key};

    #[test]
    fn checksum_and_text_are_those_of_the_standards() {
        assert_eq!(crc16_xmodem(b"123456789"), 0x31c3, "the check value of CRC-16/XMODEM");
        for (bytes, text) in [("", ""), ("f", "MY"), ("fo", "MZXQ"), ("foobar", "MZXW6YTBOI")] {
            assert_eq!(encode_base32(bytes.as_bytes()), text, "RFC 4648, section 10");
            assert_eq!(decode_base32(text), Ok(bytes.as_bytes().to_vec()));
        }
    }

    #[test]
    fn public_key_says_what_it_is_for() {
        let kinds = [(KeyPairType::Operator, 'O'), (KeyPairType::Account, 'A'), (KeyPairType::User, 'U')];
        for (kind, letter) in kinds {
            let key = KeyPair::new_from_raw(kind, [7; KEY_BYTES]).expect("32 bytes are a seed").public_key();
            assert!(key.starts_with(letter) && key.len() == 56, "{key}");
            assert!(kinds.iter().all(|(other, _)| is_public_key(&key, *other) == (*other == kind)));
            let mut changed = key.clone();
            changed.replace_range(9..10, if &key[9..10] == "A" { "B" } else { "A" });
            for bad in [&changed, &key[..55], &format!("{key}A"), "", "U", "\u{1f600}"] {
                assert!(!is_public_key(bad, kind), "{bad}");
            }
        }
    }

    #[test]
    fn seed_is_parsed_and_altered_seed_is_refused() {
        // The seed is from the documentation of async-nats.
        let seed = "SUANQDPB2RUOE4ETUA26CNX7FUKE5ZZKFCQIIW63OX225F2CO7UEXTM7ZY";
        let key = KeyPair::from_seed(seed).expect("it is one");
        assert!(is_public_key(&key.public_key(), KeyPairType::User));
        assert_eq!(key.sign(b"nonce").map(|signature| signature.len()), Ok(64));
        assert_eq!(KeyPair::from_seed(&seed.replace('Q', "R")).err(), Some(Error::Text));
        assert_eq!(KeyPair::from_seed(&key.public_key()).err(), Some(Error::Seed));
    }
}
