//! The test tag: the last bytes of the payload of a test frame. The receiver recognises the frame by the tag,
//! even if the device under test has changed the headers.
//!
//! The tag is at the *end* of the payload, so that adding, removing or rewriting headers does not move it. A
//! receiver looks for it at the end of the frame, and then at the end of the IP packet (because a device may
//! have padded a short frame).
//!
//! Full form, 16 bytes, big-endian:
//! ```text
//!  0       2       4               8                       14      16
//! +-------+-------+---------------+-----------------------+-------+
//! | mark  |stream |   sequence    | send time, ns mod 2^48| check |
//! +-------+-------+---------------+-----------------------+-------+
//! ```
//! Short form, 6 bytes, where 16 do not fit (no send time, so no latency):
//! ```text
//!  0       2      3.5            6
//! +-------+----------+------------+
//! | mark  |stream(12)|sequence(20)|
//! +-------+----------+------------+
//! ```
//! *mark* is a keyed hash of all other fields except *check*: it distinguishes a tag from random
//! bytes and from tags of another run. *check* is the complement of the one's-complement sum of the
//! payload before the tag. *check* is for receivers without a template; receivers with a template
//! compare every byte (see [`crate::FrameTemplate::verify_frame`]).

use crate::pattern::keyed_mix;
use serde::{Deserialize, Serialize};

/// Number of streams that the short form of the tag can distinguish.
pub const MAX_SHORT_TAG_STREAMS: usize = 1 << 12;
const TIME_BITS: u32 = 48;
const TIME_MASK: u64 = (1 << TIME_BITS) - 1;
const MAX_VLAN_TAGS: usize = 4;

/// The key of the tags of one run. Senders and receivers get the key with the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TagKey(pub u64);

/// The forms of the tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TagForm {
    /// 16 bytes, with the send time.
    Full,
    /// 6 bytes, without the send time.
    Short,
}

impl TagForm {
    /// Length of the longest form in bytes.
    pub const MAX_TAG_BYTES: usize = 16;

    pub const fn bytes(self) -> usize {
        match self {
            Self::Full => Self::MAX_TAG_BYTES,
            Self::Short => 6,
        }
    }

    /// Returns the largest form that fits into `room` payload bytes; `None` for fewer than 6 bytes.
    pub const fn largest_fitting(room: usize) -> Option<Self> {
        match room {
            0..6 => None,
            6..16 => Some(Self::Short),
            _ => Some(Self::Full),
        }
    }

    /// Returns the number of bits of the sequence number in this form.
    pub const fn sequence_bits(self) -> u32 {
        match self {
            Self::Full => 32,
            Self::Short => 20,
        }
    }
}

/// The contents of a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameTag {
    /// Form in which the tag was written.
    pub form: TagForm,
    /// The stream's number in the plan, below [`MAX_SHORT_TAG_STREAMS`] in the short form.
    pub stream: u16,
    /// The low `form.sequence_bits()` bits of the frame's number.
    pub sequence: u32,
    /// Send time on the sender's monotonic clock in nanoseconds, low 48 bits; zero in the short form.
    pub time: u64,
}

impl FrameTag {
    /// Returns the full send time, if `near` is at most 39 hours before or after it; `None` in the short form.
    pub fn restore_send_time(&self, near: u64) -> Option<u64> {
        if self.form == TagForm::Short {
            return None;
        }
        // 48 bits of nanoseconds wrap after 78 hours. Of the possible send times, the result is the one
        // nearest to `near`. It may be later than `near`, because two clocks need not agree.
        let half = 1u64 << (TIME_BITS - 1);
        let ahead = self.time.wrapping_sub(near) & TIME_MASK;
        let sent =
            if ahead < half { near.wrapping_add(ahead) } else { near.wrapping_sub((TIME_MASK + 1) - ahead) };
        Some(sent)
    }

    fn compute_mark(&self, key: TagKey) -> u16 {
        let identity = u64::from(self.stream) << 32 | u64::from(self.sequence);
        let form = match self.form {
            TagForm::Full => 0,
            TagForm::Short => 1 << 63,
        };
        // The form is part of the key, so that the end of a full tag does not look like a short tag. The time
        // is rotated, so that its fast-changing bits do not coincide with those of the sequence number.
        let hash = keyed_mix(key.0 ^ form, identity ^ self.time.rotate_left(17));
        (hash >> 48) as u16
    }

    /// Writes the tag. `payload_sum` is the one's-complement sum of the payload before the tag.
    pub(crate) fn write_tag(&self, key: TagKey, payload_sum: u16, out: &mut [u8]) {
        let mark = self.compute_mark(key).to_be_bytes();
        match self.form {
            TagForm::Full => {
                out[0..2].copy_from_slice(&mark);
                out[2..4].copy_from_slice(&self.stream.to_be_bytes());
                out[4..8].copy_from_slice(&self.sequence.to_be_bytes());
                out[8..14].copy_from_slice(&self.time.to_be_bytes()[2..]);
                out[14..16].copy_from_slice(&(!payload_sum).to_be_bytes());
            }
            TagForm::Short => {
                let word = u32::from(self.stream) << 20 | self.sequence;
                out[0..2].copy_from_slice(&mark);
                out[2..6].copy_from_slice(&word.to_be_bytes());
            }
        }
    }
}

/// The values that a sender writes into the tag of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagStamp {
    pub key: TagKey,
    pub stream: u16,
    /// Send time in nanoseconds of the sender's monotonic clock.
    pub time: u64,
}

impl TagStamp {
    /// Returns the tag of frame `n` in this form.
    #[expect(clippy::cast_possible_truncation, reason = "a form has at most 32 bits for the sequence")]
    pub(crate) fn make_tag(&self, n: u64, form: TagForm) -> FrameTag {
        // The tag contains only the low bits of the number. The receiver restores the full number from the
        // numbers of earlier frames.
        let sequence = (n & ((1 << form.sequence_bits()) - 1)) as u32;
        FrameTag {
            form,
            stream: self.stream,
            sequence,
            time: if form == TagForm::Full { self.time & TIME_MASK } else { 0 },
        }
    }
}

/// A tag that was found in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundTag {
    pub tag: FrameTag,
    /// The check of the payload before the tag, which is the complement of its sum. Absent in the short form.
    pub check: Option<u16>,
    /// Offset in the frame of the first byte after the tag, where the payload ends.
    pub end: usize,
}

/// Returns the first of the [`tag_candidates`] of a frame without FCS.
pub fn find_tag(frame: &[u8], key: TagKey) -> Option<FoundTag> {
    tag_candidates(frame, key).next()
}

/// Returns all parts of a frame without FCS that look like a tag with this key, the likeliest first. About
/// once in 65 536 frames, a false tag appears by chance before a short tag. So a frame must not be counted
/// before [`crate::FrameTemplate::verify_frame`] has compared it.
pub fn tag_candidates(frame: &[u8], key: TagKey) -> impl Iterator<Item = FoundTag> {
    // The end of the frame comes first, because nearly every tag is there. The end of the IP packet is
    // determined only if there is no tag.
    let padded =
        std::iter::once_with(|| find_ip_packet_end(frame).filter(|end| *end < frame.len())).flatten();
    std::iter::once(frame.len()).chain(padded).flat_map(move |end| {
        // The short form is tried lazily, because the full form nearly always matches and this code runs
        // for every received frame.
        let short = std::iter::once_with(move || short_tag_ending_at(frame, end, key));
        std::iter::once_with(move || full_tag_ending_at(frame, end, key)).chain(short).flatten()
    })
}

fn full_tag_ending_at(frame: &[u8], end: usize, key: TagKey) -> Option<FoundTag> {
    // The mark covers all fields except the check, so a tag with another damaged field is not accepted as a
    // tag of this run.
    let found = read_unverified_full_tag(frame, end)?;
    let mark = &frame[end - TagForm::MAX_TAG_BYTES..][..2];
    (found.tag.compute_mark(key).to_be_bytes() == mark).then_some(found)
}

/// Reads the bytes before `end` as a full tag of any run, without a check of the mark.
pub(crate) fn read_unverified_full_tag(frame: &[u8], end: usize) -> Option<FoundTag> {
    let bytes: &[u8; 16] = frame.get(..end)?.last_chunk()?;
    let tag = FrameTag {
        form: TagForm::Full,
        stream: u16::from_be_bytes([bytes[2], bytes[3]]),
        sequence: u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
        time: u64::from_be_bytes([0, 0, bytes[8], bytes[9], bytes[10], bytes[11], bytes[12], bytes[13]]),
    };
    Some(FoundTag { tag, check: Some(u16::from_be_bytes([bytes[14], bytes[15]])), end })
}

fn short_tag_ending_at(frame: &[u8], end: usize, key: TagKey) -> Option<FoundTag> {
    let bytes: &[u8; 6] = frame[..end].last_chunk()?;
    let word = u32::from_be_bytes([bytes[2], bytes[3], bytes[4], bytes[5]]);
    let stream = u16::try_from(word >> 20).ok()?;
    let tag = FrameTag { form: TagForm::Short, stream, sequence: word & 0xf_ffff, time: 0 };
    (tag.compute_mark(key).to_be_bytes() == bytes[..2]).then_some(FoundTag { tag, check: None, end })
}

/// Returns the offset at which the IP packet of a frame ends, according to the packet's length field; `None`
/// for frames without IP.
fn find_ip_packet_end(frame: &[u8]) -> Option<usize> {
    let mut at = 12;
    for _ in 0..MAX_VLAN_TAGS {
        match word_at(frame, at)? {
            0x8100 | 0x88a8 | 0x9100 => at += 4,
            _ => break,
        }
    }
    let length = match word_at(frame, at)? {
        0x0800 => usize::from(word_at(frame, at + 4)?),
        0x86dd => 40 + usize::from(word_at(frame, at + 6)?),
        _ => return None,
    };
    Some(at + 2 + length)
}

/// Reads a big-endian 16-bit word; `None` if the frame is too short.
pub(crate) fn word_at(frame: &[u8], at: usize) -> Option<u16> {
    frame.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: TagKey = TagKey(42);

    fn written(tag: FrameTag) -> Vec<u8> {
        let mut bytes = vec![0x55; 40];
        let at = bytes.len() - tag.form.bytes();
        tag.write_tag(KEY, 7, &mut bytes[at..]);
        bytes
    }

    #[test]
    fn a_tag_of_another_run_is_not_ours() {
        let tag = FrameTag { form: TagForm::Full, stream: 3, sequence: 9, time: 5 };
        assert!(find_tag(&written(tag), KEY).is_some());
        assert!(find_tag(&written(tag), TagKey(43)).is_none());
    }

    #[test]
    fn chance_makes_a_tag_about_once_in_65536() {
        let hits = (0..200_000u64).filter(|n| {
            let bytes: Vec<u8> = (0..6).flat_map(|i| keyed_mix(*n, i).to_be_bytes()).collect();
            find_tag(&bytes, KEY).is_some()
        });
        // Two forms, so 2 in 65536: about 6 expected.
        assert!(hits.count() < 30);
    }

    proptest! {
        #[test]
        fn written_tag_is_found_again(stream: u16, sequence: u32, time in 0..=TIME_MASK, short: bool) {
            let form = if short { TagForm::Short } else { TagForm::Full };
            let tag = if short {
                FrameTag { form, stream: stream & 0xfff, sequence: sequence & 0xf_ffff, time: 0 }
            } else {
                FrameTag { form, stream, sequence, time }
            };
            let bytes = written(tag);
            // Chance may put a full one in front of a short one.
            let found = tag_candidates(&bytes, KEY).find(|found| found.tag.form == form).unwrap();
            prop_assert_eq!((found.tag, found.end), (tag, bytes.len()));
        }

        #[test]
        fn any_bytes_are_fine(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            find_tag(&bytes, KEY);
        }

        #[test]
        fn send_times_unwrap(sent: u64, latency in -1_000_000_000i64..100_000_000_000) {
            let sent = sent >> 1;
            let near = sent.saturating_add_signed(latency);
            let tag = FrameTag { form: TagForm::Full, stream: 0, sequence: 0, time: sent & TIME_MASK };
            prop_assert_eq!(tag.restore_send_time(near), Some(near.wrapping_add(sent.wrapping_sub(near))));
        }
    }
}
