//! Values as the bytes of segments: JSON, compressed.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Read as _};

/// Fast, and most of what can be gained: names of members repeat without end.
const LEVEL: i32 = 3;
/// Most bytes a value may have unpacked. A node's result of ten thousand streams has tens of MB.
const MOST: u64 = 1 << 30;

/// `value` as bytes.
pub fn pack<T: Serialize>(value: &T) -> io::Result<Vec<u8>> {
    let mut encoder = zstd::Encoder::new(Vec::new(), LEVEL)?;
    serde_json::to_writer(&mut encoder, value)?;
    encoder.finish()
}

/// What [`pack`] made bytes of.
pub fn unpack<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    unpack_within(bytes, MOST)
}

/// Bytes that say they are short and are not must not take all memory.
fn unpack_within<T: DeserializeOwned>(bytes: &[u8], most: u64) -> io::Result<T> {
    let mut text = Vec::new();
    zstd::Decoder::new(bytes)?.take(most + 1).read_to_end(&mut text)?;
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > most {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("a value of more than {most} B")));
    }
    Ok(serde_json::from_slice(&text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_comes_back_and_a_cut_one_does_not() {
        let value: Vec<u64> = (0..10_000).collect();
        let bytes = pack(&value).unwrap();
        assert_eq!(unpack::<Vec<u64>>(&bytes).unwrap(), value);
        assert!(unpack::<Vec<u64>>(&bytes[..bytes.len() - 9]).is_err());
    }

    #[test]
    fn a_value_that_unpacks_without_end_is_refused() {
        let bytes = pack(&"0".repeat(1 << 20)).unwrap();
        assert!(bytes.len() < 1000);
        let error = unpack_within::<String>(&bytes, 1 << 16).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }
}
