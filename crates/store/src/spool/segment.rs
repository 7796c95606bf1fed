//! The format of a segment: one piece of a node's results, as a file and as a message.
//!
//! A segment has a header, a name (for captures only) and a payload. The same bytes are in the spool, on the fabric and in the
//! controller's store, so one checksum protects them all the way. It is SHA-256, because the manifest and the catalogue need a hash
//! without collisions; with a segment per second its cost does not matter.
//!
//! Invariant: bytes that were truncated, altered, or belong to another run, attempt or number are never accepted as the segment.

use packetrig_fleet::fabric::MAX_SEGMENT_BYTES;
use packetrig_report::RunId;
use sha2::{Digest, Sha256};
use std::fmt;

/// First bytes of a segment.
const SEGMENT_MAGIC: [u8; 4] = *b"PRSG";
/// Version of the format.
const VERSION: u8 = 1;
/// Length of the header, which precedes name and payload; its last 32 bytes are the checksum.
pub const HEADER: usize = 64;
/// Number of header bytes before the checksum.
const CHECKSUMMED_BYTES: usize = 32;
/// Longest name of a capture.
pub const MAX_CAPTURE_NAME_BYTES: usize = 200;
/// Maximum number of bytes of payload, even with the longest name.
pub const MAX_PAYLOAD_BYTES: usize = MAX_SEGMENT_BYTES - HEADER - MAX_CAPTURE_NAME_BYTES;

/// Kind of the value that a segment is a piece of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SegmentKind {
    /// Counters so far: a `CountSample` as compressed JSON.
    Interval,
    /// A `NodeResult` as compressed JSON.
    Result,
    Capture,
    /// The manifest, which is the last segment.
    End,
    /// Stands for a segment that the node's disk has lost. Its number is never used again.
    Lost,
}

impl SegmentKind {
    /// Name of the kind in files, rows and messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Interval => "interval",
            Self::Result => "result",
            Self::Capture => "capture",
            Self::End => "end",
            Self::Lost => "lost",
        }
    }

    const fn code(self) -> u8 {
        match self {
            Self::Interval => 1,
            Self::Result => 2,
            Self::Capture => 3,
            Self::End => 4,
            Self::Lost => 5,
        }
    }

    fn from_code(code: u8) -> Option<Self> {
        [Self::Interval, Self::Result, Self::Capture, Self::End, Self::Lost]
            .into_iter()
            .find(|kind| kind.code() == code)
    }
}

impl fmt::Display for SegmentKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Identifies a segment of a node. The checksum covers all of its fields.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentKey {
    pub run: RunId,
    pub attempt: u32,
    /// From 0, without gaps.
    pub number: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultSegment {
    pub kind: SegmentKind,
    /// File name of a capture; empty for other kinds.
    pub name: String,
    /// Offset of the payload in the value of which it is a piece.
    pub offset: u64,
    /// True if the value ends with this segment.
    pub last: bool,
    pub payload: Vec<u8>,
}

/// Reason why bytes are not a valid segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BrokenSegment {
    /// The bytes are truncated, or are not a segment.
    #[error("the data is not a segment, or is truncated")]
    Form,
    /// The segment has another version.
    #[error(
        "the segment has version {0}, and this packetrig reads version {VERSION}; use the same packetrig on node and controller"
    )]
    Version(u8),
    /// The bytes were altered, or belong to another run, attempt or number.
    #[error("the segment was altered, or belongs to another run, attempt or number")]
    Checksum,
}

/// A SHA-256 hash.
pub type SegmentHash = [u8; 32];

impl ResultSegment {
    /// Encodes the segment. Fails with [`BrokenSegment::Form`] if the name or the payload is too long.
    pub fn to_bytes(&self, key: &SegmentKey) -> Result<Vec<u8>, BrokenSegment> {
        if self.name.len() > MAX_CAPTURE_NAME_BYTES || self.payload.len() > MAX_PAYLOAD_BYTES {
            return Err(BrokenSegment::Form);
        }
        let mut bytes = Vec::with_capacity(HEADER + self.name.len() + self.payload.len());
        bytes.extend(SEGMENT_MAGIC);
        bytes.extend([VERSION, self.kind.code(), u8::from(self.last)]);
        bytes.push(u8::try_from(self.name.len()).map_err(|_| BrokenSegment::Form)?);
        bytes.extend(key.number.to_le_bytes());
        bytes.extend(self.offset.to_le_bytes());
        bytes.extend(u32::try_from(self.payload.len()).map_err(|_| BrokenSegment::Form)?.to_le_bytes());
        bytes.extend(key.attempt.to_le_bytes());
        // Placeholder of the checksum, which is computed over everything else.
        bytes.extend([0; HEADER - CHECKSUMMED_BYTES]);
        bytes.extend(self.name.as_bytes());
        bytes.extend(&self.payload);
        let hash = segment_checksum(key, &bytes);
        bytes[CHECKSUMMED_BYTES..HEADER].copy_from_slice(&hash);
        Ok(bytes)
    }

    /// Decodes `bytes`, if they are the segment with that key.
    pub fn from_bytes(key: &SegmentKey, bytes: &[u8]) -> Result<Self, BrokenSegment> {
        let header = SegmentHeader::from_bytes(bytes)?;
        let sound = header.number == key.number && header.attempt == key.attempt;
        if !sound || segment_checksum(key, bytes) != header.hash {
            return Err(BrokenSegment::Checksum);
        }
        // `SegmentHeader::from_bytes` has checked that name and payload fill the bytes exactly.
        let (name, payload) = bytes[HEADER..].split_at(header.name);
        let name = String::from_utf8(name.to_vec()).map_err(|_| BrokenSegment::Form)?;
        Ok(Self {
            kind: header.kind,
            name,
            offset: header.offset,
            last: header.last,
            payload: payload.to_vec(),
        })
    }

    /// Returns the checksum in the bytes of a segment, without checking it.
    pub(crate) fn read_checksum(bytes: &[u8]) -> SegmentHash {
        // Callers have decoded these bytes already, so the header can be read.
        SegmentHeader::from_bytes(bytes).map(|header| header.hash).unwrap_or_default()
    }
}

struct SegmentHeader {
    kind: SegmentKind,
    last: bool,
    name: usize,
    number: u64,
    offset: u64,
    attempt: u32,
    hash: SegmentHash,
}

impl SegmentHeader {
    fn from_bytes(bytes: &[u8]) -> Result<Self, BrokenSegment> {
        let header = bytes.first_chunk::<HEADER>().ok_or(BrokenSegment::Form)?;
        if header[..4] != SEGMENT_MAGIC {
            return Err(BrokenSegment::Form);
        }
        // The version is checked first, because another version may have other fields.
        if header[4] != VERSION {
            return Err(BrokenSegment::Version(header[4]));
        }
        let name = usize::from(header[7]);
        let length = u32_at(header, 24) as usize;
        // Flags and lengths are checked before the hash is computed, so that it covers at most
        // `MAX_SEGMENT_BYTES`.
        if bytes.len() > MAX_SEGMENT_BYTES
            || bytes.len() - HEADER != name.saturating_add(length)
            || header[6] > 1
        {
            return Err(BrokenSegment::Form);
        }
        // The name becomes part of a file name.
        if name > MAX_CAPTURE_NAME_BYTES {
            return Err(BrokenSegment::Form);
        }
        Ok(Self {
            kind: SegmentKind::from_code(header[5]).ok_or(BrokenSegment::Form)?,
            last: header[6] == 1,
            name,
            number: u64_at(header, 8),
            offset: u64_at(header, 16),
            attempt: u32_at(header, 28),
            hash: std::array::from_fn(|byte| header[CHECKSUMMED_BYTES + byte]),
        })
    }
}

fn u32_at(header: &[u8; HEADER], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|byte| header[at + byte]))
}

fn u64_at(header: &[u8; HEADER], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|byte| header[at + byte]))
}

/// The checksum over all bytes except the checksum field, and over the run id, which is not in the bytes.
fn segment_checksum(key: &SegmentKey, bytes: &[u8]) -> SegmentHash {
    let mut hasher = Sha256::new();
    hasher.update(&bytes[..CHECKSUMMED_BYTES]);
    hasher.update(&bytes[HEADER..]);
    // The run is hashed although it is not in the bytes, so that a segment of another run is refused.
    hasher.update(key.run.0.as_bytes());
    hasher.finalize().into()
}

/// The next link of the chain over all segments so far, in order.
pub(crate) fn extend_chain(chain: &SegmentHash, segment: &SegmentHash) -> SegmentHash {
    Sha256::new().chain_update(chain).chain_update(segment).finalize().into()
}

pub(crate) fn hash_in_hex(hash: &SegmentHash) -> String {
    hash.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// Reads the output of [`hash_in_hex`].
pub(crate) fn parse_segment_hash(text: &str) -> Option<SegmentHash> {
    let mut hash = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (byte, at) in hash.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key() -> SegmentKey {
        SegmentKey { run: RunId("r".into()), attempt: 2, number: 7 }
    }

    fn segment(payload: Vec<u8>) -> ResultSegment {
        ResultSegment { kind: SegmentKind::Capture, name: "rx.pcapng".into(), offset: 9, last: true, payload }
    }

    #[test]
    fn it_belongs_to_one_run_attempt_and_number() {
        let bytes = segment(vec![1, 2, 3]).to_bytes(&key()).unwrap();
        let others = [
            SegmentKey { run: RunId("s".into()), ..key() },
            SegmentKey { attempt: 3, ..key() },
            SegmentKey { number: 8, ..key() },
        ];
        for other in others {
            assert_eq!(ResultSegment::from_bytes(&other, &bytes), Err(BrokenSegment::Checksum), "{other:?}");
        }
    }

    #[test]
    fn the_largest_fits_and_larger_is_refused() {
        let name = "n".repeat(MAX_CAPTURE_NAME_BYTES);
        let largest = ResultSegment { name, ..segment(vec![5; MAX_PAYLOAD_BYTES]) };
        assert_eq!(largest.to_bytes(&key()).unwrap().len(), MAX_SEGMENT_BYTES);
        assert_eq!(segment(vec![5; MAX_PAYLOAD_BYTES + 1]).to_bytes(&key()), Err(BrokenSegment::Form));
    }

    #[test]
    fn another_version_is_named() {
        let mut bytes = segment(vec![]).to_bytes(&key()).unwrap();
        bytes[4] = 9;
        assert_eq!(ResultSegment::from_bytes(&key(), &bytes), Err(BrokenSegment::Version(9)));
    }

    #[test]
    fn hashes_survive_hexadecimal() {
        let hash = extend_chain(&[1; 32], &[2; 32]);
        assert_eq!(parse_segment_hash(&hash_in_hex(&hash)), Some(hash));
        assert_eq!(parse_segment_hash("x"), None);
        assert_eq!(parse_segment_hash(&"é".repeat(32)), None);
    }

    proptest! {
        #[test]
        fn segment_round_trips_and_detects_any_change(
            payload in prop::collection::vec(any::<u8>(), 0..300), at in any::<prop::sample::Index>(), flip in 1..=255_u8,
        ) {
            let segment = segment(payload);
            let bytes = segment.to_bytes(&key()).unwrap();
            prop_assert_eq!(ResultSegment::from_bytes(&key(), &bytes).unwrap(), segment);
            let at = at.index(bytes.len());
            prop_assert!(ResultSegment::from_bytes(&key(), &bytes[..at]).is_err());
            let mut touched = bytes.clone();
            touched[at] ^= flip;
            prop_assert!(ResultSegment::from_bytes(&key(), &touched).is_err());
            touched.clone_from(&bytes);
            touched.push(flip);
            prop_assert!(ResultSegment::from_bytes(&key(), &touched).is_err());
        }
    }
}
