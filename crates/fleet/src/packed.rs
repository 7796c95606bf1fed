//! Encodes values as compressed JSON, for segments and long messages.
//!
//! The bytes may come from an unknown sender. Invariant: the time and memory for reading are proportional to the number
//! of compressed bytes. Each of them may give [`MAX_COMPRESSION_RATIO`] bytes of JSON; [`MIN_UNPACKED_LIMIT`] bytes are
//! always accepted, and more than [`MAX_UNPACKED_BYTES`] never. The JSON is parsed while it is decompressed, so the
//! whole text is never in memory.

use packetrig_units::clamp_to_u32;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, BufReader, BufWriter, Read};

/// Compression level of zstd. This fast level already saves most of the bytes, because most of the JSON
/// is repeated member names.
const COMPRESSION_LEVEL: i32 = 3;
/// Maximum number of bytes of JSON in a value. A node's result of ten thousand streams has tens of MB.
pub const MAX_UNPACKED_BYTES: u64 = 256 << 20;
/// Maximum number of bytes of JSON for each compressed byte. Results of real runs have 5 to 30.
pub const MAX_COMPRESSION_RATIO: u64 = 128;
/// Number of bytes of JSON that are accepted from an input of any length.
pub const MIN_UNPACKED_LIMIT: u64 = 1 << 20;
/// Binary logarithm of the maximum window of the zstd decoder: 2^22 bytes. Level 3 needs 2^21 bytes.
const MAX_WINDOW_LOG2: u32 = 22;
/// Size of the buffer for the JSON text, which is never in memory as a whole.
const TEXT_BUFFER_BYTES: usize = 64 << 10;
/// Magic number of a zstd frame that decoders skip (RFC 8878, 3.1.2).
const ZSTD_SKIPPABLE_MAGIC: [u8; 4] = 0x184d_2a50_u32.to_le_bytes();

/// Writes `value` as JSON and compresses it.
pub fn pack_value<T: Serialize>(value: &T) -> io::Result<Vec<u8>> {
    let mut encoder = zstd::Encoder::new(Vec::new(), COMPRESSION_LEVEL)?;
    let mut counter = ByteCounter { inner: &mut encoder, bytes: 0 };
    // serde_json writes every word separately. The buffer avoids a call of the encoder for each word.
    let mut words = BufWriter::with_capacity(TEXT_BUFFER_BYTES, &mut counter);
    serde_json::to_writer(&mut words, value)?;
    words.into_inner().map_err(io::IntoInnerError::into_error)?;
    let text = counter.bytes;
    let mut packed = encoder.finish()?;
    pad_to_ratio(&mut packed, text);
    Ok(packed)
}

/// Compresses a text that is JSON already.
pub fn pack_text(text: &[u8]) -> io::Result<Vec<u8>> {
    let mut packed = zstd::encode_all(text, COMPRESSION_LEVEL)?;
    pad_to_ratio(&mut packed, text.len() as u64);
    Ok(packed)
}

/// Pads the compressed bytes, because a reader accepts at most [`MAX_COMPRESSION_RATIO`] bytes of text for each byte.
fn pad_to_ratio(packed: &mut Vec<u8>, text: u64) {
    // A text with many repetitions may become shorter than that limit allows. A zstd frame that decoders
    // skip makes it longer.
    let length = packed.len() as u64;
    // Readers accept up to `MIN_UNPACKED_LIMIT` bytes of text for an input of any length.
    let Some(missing) =
        text.div_ceil(MAX_COMPRESSION_RATIO).checked_sub(length).filter(|_| text > MIN_UNPACKED_LIMIT)
    else {
        return;
    };
    // The largest frame is enough for 512 GiB of text, far more than a reader accepts.
    let content = clamp_to_u32(missing);
    // RFC 8878, 3.1.2: magic number, length of the content (little endian), content.
    packed.extend(ZSTD_SKIPPABLE_MAGIC);
    packed.extend(content.to_le_bytes());
    packed.resize(packed.len() + content as usize, 0);
}

/// Decompresses and parses a value of [`pack_value`] or [`pack_text`]. Fails if its JSON exceeds the limits.
pub fn unpack_value<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    // The limit grows with the input: a sender must send many bytes to make the reader use much memory and time.
    unpack_value_with_limit(
        bytes,
        (bytes.len() as u64)
            .saturating_mul(MAX_COMPRESSION_RATIO)
            .clamp(MIN_UNPACKED_LIMIT, MAX_UNPACKED_BYTES),
    )
}

/// Like [`unpack_value`], but fails if there are more than `most` bytes of JSON.
pub fn unpack_value_with_limit<T: DeserializeOwned>(bytes: &[u8], most: u64) -> io::Result<T> {
    let mut decoder = zstd::Decoder::with_buffer(bytes)?;
    // The default limit of zstd would let a few bytes allocate a window of 128 MiB.
    decoder.window_log_max(MAX_WINDOW_LOG2)?;
    // The text is limited while it is decompressed, because the parsed value already takes memory.
    let mut text = LimitedReader { inner: decoder, left: most, most };
    let value = serde_json::from_reader(BufReader::with_capacity(TEXT_BUFFER_BYTES, &mut text));
    Ok(value?)
}

/// Counts the bytes that are written.
struct ByteCounter<'a, W> {
    inner: &'a mut W,
    bytes: u64,
}

impl<W: io::Write> io::Write for ByteCounter<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Reads up to a limit. More bytes than the limit are an error, not the end of the input.
struct LimitedReader<R> {
    inner: R,
    left: u64,
    most: u64,
}

impl<R: Read> Read for LimitedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.left = self.left.checked_sub(read as u64).ok_or_else(|| {
            let why = format!("the decompressed value is longer than its limit of {} bytes", self.most);
            io::Error::new(io::ErrorKind::FileTooLarge, why)
        })?;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn packed_value_round_trips_unless_truncated() {
        let value: Vec<u64> = (0..10_000).collect();
        let bytes = pack_value(&value).unwrap();
        assert_eq!(unpack_value::<Vec<u64>>(&bytes).unwrap(), value);
        assert!(unpack_value::<Vec<u64>>(&bytes[..bytes.len() - 9]).is_err());
        let twice = [&bytes[..], &bytes[..]].concat();
        assert!(unpack_value::<Vec<u64>>(&twice).is_err(), "one value, and nothing behind it");
    }

    #[test]
    fn repetitive_value_round_trips_at_high_compression() {
        let value = vec!["the same".to_owned(); 400_000];
        let bytes = pack_value(&value).unwrap();
        assert!(
            bytes.len() as u64 > 4_000_000 / MAX_COMPRESSION_RATIO && bytes.len() < 200_000,
            "{}",
            bytes.len()
        );
        assert_eq!(unpack_value::<Vec<String>>(&bytes).unwrap(), value);
    }

    /// Bytes of zstd that unpack to so many spaces and a number.
    fn bomb(spaces: usize) -> Vec<u8> {
        zstd::encode_all(&[&vec![b' '; spaces][..], b"7"].concat()[..], COMPRESSION_LEVEL).unwrap()
    }

    #[test]
    fn decompression_bomb_is_refused() {
        assert_eq!(unpack_value::<u64>(&bomb(1000)).unwrap(), 7);
        let bytes = bomb(64 << 20);
        assert!(bytes.len() < 10_000, "{}", bytes.len());
        let error = unpack_value::<u64>(&bytes).unwrap_err();
        assert!(error.to_string().contains("longer than its limit"), "{error}");
        // The stated limit holds for bytes that are honest about their length, too.
        let long =
            [bytes, ZSTD_SKIPPABLE_MAGIC.to_vec(), (3_u32 << 20).to_le_bytes().to_vec(), vec![0; 3 << 20]]
                .concat();
        assert_eq!(unpack_value::<u64>(&long).unwrap(), 7);
        let frames = bomb(32 << 20).repeat(9);
        let long =
            [frames, ZSTD_SKIPPABLE_MAGIC.to_vec(), (3_u32 << 20).to_le_bytes().to_vec(), vec![0; 3 << 20]]
                .concat();
        let error = unpack_value::<Vec<u64>>(&long).unwrap_err();
        assert!(!error.to_string().is_empty());
    }

    #[test]
    fn decoder_with_large_window_is_refused() {
        let mut encoder = zstd::Encoder::new(Vec::new(), 3).unwrap();
        encoder.window_log(27).unwrap();
        encoder.write_all(b"7").unwrap();
        let error = unpack_value::<u64>(&encoder.finish().unwrap()).unwrap_err();
        assert!(error.to_string().to_lowercase().contains("memory"), "{error}");
    }
}
