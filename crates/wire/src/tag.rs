//! The test tag: the last bytes of a test frame, by which the receiver knows it again whatever the device
//! under test did to its headers.
//!
//! It sits at the *end* of the payload: headers pushed, popped or rewritten in front do not move it. A receiver
//! looks at the end of the frame, then at the end of the IP packet (a device may have padded a short frame).
//!
//! Full form, 16 bytes, big-endian:
//! ```text
//!  0       2       4               8                       14      16
//! +-------+-------+---------------+-----------------------+-------+
//! | mark  |stream |   sequence    |  send time, ns mod 2^48| check |
//! +-------+-------+---------------+-----------------------+-------+
//! ```
//! Short form, 6 bytes, where 16 do not fit (no send time, so no latency):
//! ```text
//!  0       2               4.5..    6
//! +-------+------------+-----------------+
//! | mark  |stream (12) | sequence (20)   |
//! +-------+------------+-----------------+
//! ```
//! *mark* is a keyed hash of the other tag fields: it tells a tag from chance and from an earlier run's frames.
//! *check* is the complement of the one's-complement sum of the payload before the tag: it catches corruption of
//! the payload. In the short form the payload's sum goes into the mark.

use serde::{Deserialize, Serialize};

/// Key of one run; both ends get it with the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TagKey(pub u64);

/// Which form a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum TagForm {
    /// 16 bytes, with send time.
    Full,
    /// 6 bytes, without.
    Short,
}

impl TagForm {
    /// Bytes it takes.
    pub const fn len(self) -> usize {
        match self {
            Self::Full => 16,
            Self::Short => 6,
        }
    }
    /// The largest form that fits into `room` payload bytes.
    pub const fn fitting(room: usize) -> Option<Self> {
        match room {
            0..6 => None,
            6..16 => Some(Self::Short),
            _ => Some(Self::Full),
        }
    }
    /// Bits of the sequence number it carries.
    pub const fn sequence_bits(self) -> u32 {
        match self {
            Self::Full => 32,
            Self::Short => 20,
        }
    }
}

/// What a tag says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// Which form it was.
    pub form: TagForm,
    /// The stream's number in the plan, below 4096 in the short form.
    pub stream: u16,
    /// The low `form.sequence_bits()` bits of the frame's number.
    pub sequence: u32,
    /// Send time on the sender's monotonic clock, low 48 bits; zero in the short form.
    pub time: u64,
}

/// What a sender puts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Run key.
    pub key: TagKey,
    /// Stream number.
    pub stream: u16,
    /// Send time in ns of the sender's monotonic clock.
    pub time: u64,
}

/// A tag found in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// What it says.
    pub tag: Tag,
    /// Offset in the frame just behind the tag: the end of the payload.
    pub end: usize,
}

/// Looks for a tag of `key` in a frame without FCS. Does not check the payload: see [`crate::Template::verify`].
pub fn find(frame: &[u8], key: TagKey) -> Option<Found> {
    let _ = (frame, key);
    todo!()
}
