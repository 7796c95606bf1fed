//! The form of a segment: one piece of what a node has to say, as a file and as what travels.
//!
//! It holds a header, a name (of captures only) and a payload. The same bytes are in the spool, on the fabric and in the
//! controller's store, so one checksum follows them all the way. It is SHA-256: the manifest and the catalogue need a
//! hash that cannot be met by chance, and over a segment a second its cost does not show.
//!
//! Invariant: bytes that were cut, altered or belong to another run, attempt or number are never taken for a segment.

use packetrig_fleet::RunId;
use packetrig_fleet::fabric::SEGMENT_ROOM;
use sha2::{Digest, Sha256};
use std::fmt;
use std::num::TryFromIntError;

/// What a file of this kind begins with.
const MAGIC: [u8; 4] = *b"PRSG";
/// The form described here.
const VERSION: u8 = 1;
/// Bytes before name and payload; the last 32 are the checksum.
pub const HEADER: usize = 64;
/// Bytes before the checksum.
const SEALED: usize = 32;
/// Longest name of a capture.
pub const NAME_ROOM: usize = 200;
/// Most bytes of payload, whatever the name.
pub const PAYLOAD_ROOM: usize = SEGMENT_ROOM - HEADER - NAME_ROOM;

/// What a segment is a piece of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SegmentKind {
    /// Counts so far: a `Sample` as JSON, compressed.
    Interval,
    /// A `NodeResult` as JSON, compressed.
    Result,
    Capture,
    /// The manifest: nothing comes after it.
    End,
    /// In place of a segment the disk lost: its number is not used for anything else.
    Lost,
}

impl SegmentKind {
    /// As files, rows and messages call it.
    pub const fn word(self) -> &'static str {
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

    fn of(code: u8) -> Option<Self> {
        [Self::Interval, Self::Result, Self::Capture, Self::End, Self::Lost]
            .into_iter()
            .find(|kind| kind.code() == code)
    }
}

impl fmt::Display for SegmentKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// Whose segment it is. All of it is under the checksum.
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
    /// File name of a capture; else empty.
    pub name: String,
    /// Where in its value the payload belongs.
    pub offset: u64,
    /// The value ends with it.
    pub last: bool,
    pub payload: Vec<u8>,
}

/// Why bytes are no segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BrokenSegment {
    /// World: cut, or something else.
    #[error("it is no segment, or was cut")]
    Form,
    /// User: of another version.
    #[error(
        "it is of version {0}, this packetrig knows {VERSION}; use the same version on node and controller"
    )]
    Version(u8),
    /// World: altered, or of another run, attempt or number.
    #[error("its checksum does not fit")]
    Checksum,
}

/// A SHA-256.
pub type SegmentHash = [u8; 32];

impl ResultSegment {
    /// Its bytes. A name or payload beyond its room is [`BrokenSegment::Form`].
    pub fn encode(&self, key: &SegmentKey) -> Result<Vec<u8>, BrokenSegment> {
        if self.name.len() > NAME_ROOM || self.payload.len() > PAYLOAD_ROOM {
            return Err(BrokenSegment::Form);
        }
        let form = |_: TryFromIntError| BrokenSegment::Form;
        let mut bytes = Vec::with_capacity(HEADER + self.name.len() + self.payload.len());
        bytes.extend(MAGIC);
        bytes.extend([VERSION, self.kind.code(), u8::from(self.last)]);
        bytes.push(u8::try_from(self.name.len()).map_err(form)?);
        bytes.extend(key.number.to_le_bytes());
        bytes.extend(self.offset.to_le_bytes());
        bytes.extend(u32::try_from(self.payload.len()).map_err(form)?.to_le_bytes());
        bytes.extend(key.attempt.to_le_bytes());
        bytes.extend([0; HEADER - SEALED]);
        bytes.extend(self.name.as_bytes());
        bytes.extend(&self.payload);
        let hash = seal(key, &bytes);
        bytes[SEALED..HEADER].copy_from_slice(&hash);
        Ok(bytes)
    }

    /// What `bytes` say, if they are the segment of that key.
    pub fn decode(key: &SegmentKey, bytes: &[u8]) -> Result<Self, BrokenSegment> {
        let header = SegmentHeader::read(bytes)?;
        let sound = header.number == key.number && header.attempt == key.attempt;
        if !sound || seal(key, bytes) != header.hash {
            return Err(BrokenSegment::Checksum);
        }
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

    /// The checksum in `bytes` that are a segment.
    pub(crate) fn hash(bytes: &[u8]) -> SegmentHash {
        SegmentHeader::read(bytes).map(|header| header.hash).unwrap_or_default()
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
    fn read(bytes: &[u8]) -> Result<Self, BrokenSegment> {
        let array = |from: usize| bytes.get(from..).and_then(|rest| rest.first_chunk::<8>());
        let word = |from: usize| bytes.get(from..).and_then(|rest| rest.first_chunk::<4>());
        let hash = bytes.get(SEALED..).and_then(|rest| rest.first_chunk::<32>());
        let (Some(number), Some(offset), Some(length), Some(attempt), Some(hash)) =
            (array(8), array(16), word(24), word(28), hash)
        else {
            return Err(BrokenSegment::Form);
        };
        if bytes[..4] != MAGIC {
            return Err(BrokenSegment::Form);
        }
        if bytes[4] != VERSION {
            return Err(BrokenSegment::Version(bytes[4]));
        }
        let name = usize::from(bytes[7]);
        let length = usize::try_from(u32::from_le_bytes(*length)).map_err(|_| BrokenSegment::Form)?;
        if bytes.len() > SEGMENT_ROOM || bytes.len() - HEADER != name.saturating_add(length) || bytes[6] > 1 {
            return Err(BrokenSegment::Form);
        }
        // It becomes part of the name of a file.
        if name > NAME_ROOM {
            return Err(BrokenSegment::Form);
        }
        Ok(Self {
            kind: SegmentKind::of(bytes[5]).ok_or(BrokenSegment::Form)?,
            last: bytes[6] == 1,
            name,
            number: u64::from_le_bytes(*number),
            offset: u64::from_le_bytes(*offset),
            attempt: u32::from_le_bytes(*attempt),
            hash: *hash,
        })
    }
}

/// Over everything but the place of the checksum itself, and over the run, which the bytes do not name.
fn seal(key: &SegmentKey, bytes: &[u8]) -> SegmentHash {
    let mut hasher = Sha256::new();
    hasher.update(&bytes[..SEALED]);
    hasher.update(&bytes[HEADER..]);
    hasher.update(key.run.0.as_bytes());
    hasher.finalize().into()
}

/// The next link of the chain that stands for all segments so far, in order.
pub(crate) fn link(chain: &SegmentHash, segment: &SegmentHash) -> SegmentHash {
    Sha256::new().chain_update(chain).chain_update(segment).finalize().into()
}

pub(crate) fn hex(hash: &SegmentHash) -> String {
    hash.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// What [`hex`] wrote.
pub(crate) fn unhex(text: &str) -> Option<SegmentHash> {
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
        let bytes = segment(vec![1, 2, 3]).encode(&key()).unwrap();
        let others = [
            SegmentKey { run: RunId("s".into()), ..key() },
            SegmentKey { attempt: 3, ..key() },
            SegmentKey { number: 8, ..key() },
        ];
        for other in others {
            assert_eq!(ResultSegment::decode(&other, &bytes), Err(BrokenSegment::Checksum), "{other:?}");
        }
    }

    #[test]
    fn the_largest_fits_and_larger_is_refused() {
        let name = "n".repeat(NAME_ROOM);
        let largest = ResultSegment { name, ..segment(vec![5; PAYLOAD_ROOM]) };
        assert_eq!(largest.encode(&key()).unwrap().len(), SEGMENT_ROOM);
        assert_eq!(segment(vec![5; PAYLOAD_ROOM + 1]).encode(&key()), Err(BrokenSegment::Form));
    }

    #[test]
    fn another_version_is_named() {
        let mut bytes = segment(vec![]).encode(&key()).unwrap();
        bytes[4] = 9;
        assert_eq!(ResultSegment::decode(&key(), &bytes), Err(BrokenSegment::Version(9)));
    }

    #[test]
    fn hashes_survive_hexadecimal() {
        let hash = link(&[1; 32], &[2; 32]);
        assert_eq!(unhex(&hex(&hash)), Some(hash));
        assert_eq!(unhex("x"), None);
        assert_eq!(unhex(&"é".repeat(32)), None);
    }

    proptest! {
        #[test]
        fn it_is_read_as_it_was_and_never_when_touched(
            payload in prop::collection::vec(any::<u8>(), 0..300), at in any::<prop::sample::Index>(), flip in 1..=255_u8,
        ) {
            let segment = segment(payload);
            let bytes = segment.encode(&key()).unwrap();
            prop_assert_eq!(ResultSegment::decode(&key(), &bytes).unwrap(), segment);
            let at = at.index(bytes.len());
            prop_assert!(ResultSegment::decode(&key(), &bytes[..at]).is_err());
            let mut touched = bytes.clone();
            touched[at] ^= flip;
            prop_assert!(ResultSegment::decode(&key(), &touched).is_err());
            touched.clone_from(&bytes);
            touched.push(flip);
            prop_assert!(ResultSegment::decode(&key(), &touched).is_err());
        }
    }
}
