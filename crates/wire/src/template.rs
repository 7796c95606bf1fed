//! The compiled frames of a stream: frame `n` is a copy of an image plus the varying fields.
//!
//! ```text
//!  |<------- headers ------->|<---------- payload fill ---------->|<-- tag -->|
//!   image + varying fields     prefix of one image, all sizes        per frame
//!   + lengths + checksums
//! ```
//! Because a shorter payload is the beginning of a longer one, one table of prefix sums gives the checksum over the
//! fill of any size; only the headers and the tag are summed per frame.

mod compile;
pub mod parts;
#[cfg(test)]
mod tests;

use crate::bits;
use crate::checksum::{ChecksumSum, ones_complement_sum};
use crate::header::PacketHeader;
use crate::pattern::FieldPattern;
use crate::payload::PayloadPattern;
use crate::size::SizePattern;
use crate::tag::{FoundTag, MAX_SHORT_TAG_STREAMS, TagForm, TagStamp};
use packetrig_units::FrameSize;
use serde::{Deserialize, Serialize};

/// Shortest frame without FCS: a device may pad up to this.
const PADDED_FRAME_BYTES: usize = 60;
/// Length of both addresses of an Ethernet header.
const MAC_ADDRESSES_BYTES: usize = 12;
/// The type that announces an 802.1Q tag.
const VLAN_TAG_TYPE: [u8; 2] = [0x81, 0];

/// Description of a stream's frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameSpec {
    /// Headers in wire order; an empty list means one Ethernet header.
    pub headers: Vec<PacketHeader>,
    pub size: SizePattern,
    pub payload: PayloadPattern,
    /// True if frames carry a test tag where one fits. Without it the payload stays byte-exact.
    pub tagged: bool,
    /// True if the frames go to a router, which replaces MAC addresses and decrements the time to live.
    pub routed: bool,
}

/// Reasons why a spec cannot be compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The headers are longer than the smallest frame.
    #[error(
        "its headers take {headers} bytes, so frames need at least {needed} (FCS included); the smallest is {smallest}"
    )]
    TooSmall {
        /// Bytes of the headers.
        headers: usize,
        /// Smallest size that would do.
        needed: usize,
        /// Smallest frame size that the plan requests.
        smallest: u32,
    },
}

/// Identifies a frame of a stream. A plain number is both: a stream that is started once sends frame `n` of its
/// patterns as number `n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameIndex {
    /// Its number in the tag: how many frames the stream sent before it.
    pub number: u64,
    /// Its index in the patterns, which start again with every start of the stream.
    pub index: u64,
}

impl From<u64> for FrameIndex {
    fn from(n: u64) -> Self {
        Self { number: n, index: n }
    }
}

/// Result of comparing an arrived frame with the one sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameComparison {
    /// Byte for byte as sent.
    Intact,
    /// Payload intact, headers not as sent (rewritten, pushed, popped).
    Altered,
    Corrupt,
}

/// A field that changes from frame to frame.
#[derive(Clone, Debug)]
struct ChangingField {
    at: u32,
    bits: u32,
    pattern: FieldPattern,
}

/// A 16-bit length: frame length without FCS minus this.
#[derive(Clone, Copy, Debug)]
struct LengthField {
    at: usize,
    minus: usize,
}

/// A checksum to fill in; kept inner before outer, because the outer covers the inner.
#[derive(Clone, Copy, Debug)]
struct ChecksumField {
    at: usize,
    covers: ChecksumCover,
    bad: bool,
    never_zero: bool,
}

#[derive(Clone, Copy, Debug)]
enum ChecksumCover {
    Header {
        start: usize,
        end: usize,
    },
    /// From here to the end of the frame less `trim` bytes, plus a pseudo-header.
    Rest {
        start: usize,
        trim: usize,
        pseudo: Option<PseudoHeader>,
    },
}

/// Position of a pseudo-header's addresses in the frame.
#[derive(Clone, Copy, Debug)]
struct PseudoHeader {
    addresses: usize,
    len: usize,
    protocol: u8,
}

/// A compiled [`FrameSpec`].
#[derive(Clone, Debug)]
pub struct FrameTemplate {
    spec: FrameSpec,
    /// Headers with everything that does not vary, then the fill of the largest frame.
    image: Vec<u8>,
    header_len: usize,
    vary: Vec<ChangingField>,
    lengths: Vec<LengthField>,
    checks: Vec<ChecksumField>,
    /// Folded sum of the first `i` bytes of the fill.
    prefix_sums: Vec<u16>,
    /// Header bits that are the same in every frame.
    constant: Vec<u8>,
    /// Byte with the time to live or hop limit of frames that go to a router.
    hop_limit: Option<usize>,
}

impl FrameTemplate {
    /// Returns the spec that it was compiled from.
    pub fn spec(&self) -> &FrameSpec {
        &self.spec
    }

    /// Bytes of all headers.
    pub fn header_len(&self) -> usize {
        self.header_len
    }

    /// Reports whether every frame has an 802.1Q tag behind its addresses. Interfaces take four bytes more of such a frame.
    pub fn begins_with_tag(&self) -> bool {
        // A type that varies announces a tag in some frames only.
        let is_constant = self.constant.get(12..14).is_some_and(|mask| mask == [0xff; 2]);
        is_constant && self.image[..self.header_len].get(12..14).is_some_and(|found| found == VLAN_TAG_TYPE)
    }

    /// Returns the size of frame `n`, FCS included.
    pub fn frame_size(&self, n: u64) -> FrameSize {
        self.spec.size.size_at(n)
    }

    /// Returns the form of tag that a frame of this size carries; `None` if it is untagged, or if no form fits.
    pub fn tag_form(&self, size: FrameSize) -> Option<TagForm> {
        if !self.spec.tagged {
            return None;
        }
        TagForm::largest_fitting(size.kernel_len().saturating_sub(self.header_len))
    }

    /// Reports whether frames of this stream may carry a tag of this form.
    pub fn has_tag_form(&self, form: TagForm) -> bool {
        let sizes = [self.spec.size.min_size(), self.spec.size.max_size()];
        sizes.into_iter().any(|size| self.tag_form(size) == Some(form))
    }

    /// Writes the `nth` frame without FCS into `out` (at least `size(index).kernel_len()` bytes) and returns its length.
    /// `stamp` is used when the frame carries a tag.
    pub fn render_frame(&self, nth: impl Into<FrameIndex>, stamp: TagStamp, out: &mut [u8]) -> usize {
        let FrameIndex { number, index } = nth.into();
        let size = self.frame_size(index);
        let len = size.kernel_len();
        let mut tail = [0; TagForm::MAX_TAG_BYTES];
        let tail = self.render_tag(number, size, stamp, &mut tail);
        let (head, rest) = out[..len].split_at_mut(self.header_len);
        self.write_headers(index, len, tail, head);
        let fill = rest.len() - tail.len();
        rest[..fill].copy_from_slice(&self.image[self.header_len..self.header_len + fill]);
        rest[fill..].copy_from_slice(tail);
        len
    }

    /// Compares an arrived frame, which has the tag `found` and the number `nth`, with the frame that was
    /// sent. `scratch` must hold `header_len()` bytes.
    pub fn verify_frame(
        &self,
        nth: impl Into<FrameIndex>,
        key: crate::tag::TagKey,
        found: &FoundTag,
        frame: &[u8],
        scratch: &mut [u8],
    ) -> FrameComparison {
        let FrameIndex { number, index } = nth.into();
        let size = self.frame_size(index);
        let len = size.kernel_len();
        // `min`: a false tag may claim a form that is longer than the payload.
        let fill = len - self.header_len - found.tag.form.bytes().min(len - self.header_len);
        // The position counts from the end: pushed or popped headers move the start of the payload, not its end.
        let Some(start) = found.end.checked_sub(len - self.header_len) else {
            return FrameComparison::Corrupt;
        };
        // The payload is compared byte by byte with the image. The check in the tag says the same, and also catches damage to
        // the check itself.
        if self.tag_form(size) != Some(found.tag.form)
            || frame[start..start + fill] != self.image[self.header_len..self.header_len + fill]
            || found.check.is_some_and(|check| check != !self.prefix_sums[fill])
        {
            return FrameComparison::Corrupt;
        }
        // A device may pad a short frame to the minimum length. Other bytes behind the tag were added on the way.
        let padded = frame.len() > found.end && frame.len() != PADDED_FRAME_BYTES;
        // With other headers before the payload, the fields are elsewhere and cannot be compared.
        if start != self.header_len || padded {
            return FrameComparison::Altered;
        }
        let head = &mut scratch[..self.header_len];
        let stamp = TagStamp { key, stream: found.tag.stream, time: found.tag.time };
        let mut tail = [0; TagForm::MAX_TAG_BYTES];
        let tail = self.render_tag(number, size, stamp, &mut tail);
        // The order: fields, then the changes by routers, then checksums, because checksums cover both.
        self.write_fields(index, len, head);
        self.copy_routed_fields(frame, head);
        self.write_checksums(len, tail, head);
        if frame[..start] == *head { FrameComparison::Intact } else { FrameComparison::Altered }
    }

    /// Replaces the fields that routers change in the headers `head` by the arrived values.
    fn copy_routed_fields(&self, frame: &[u8], head: &mut [u8]) {
        if let Some(at) = self.hop_limit {
            // Each router writes its own address and that of the next hop.
            head[..MAC_ADDRESSES_BYTES].copy_from_slice(&frame[..MAC_ADDRESSES_BYTES]);
            // Routers only lower it.
            head[at] = head[at].min(frame[at]);
        }
    }

    /// Reports whether a frame has this stream's headers wherever they do not vary. It finds the stream of a frame with a
    /// damaged tag, unless a device has rewritten the headers.
    pub fn has_headers_of(&self, frame: &[u8]) -> bool {
        // `zip` ends with the shorter one, so a frame that is cut would match by its first bytes alone.
        frame.len() > self.header_len
            && frame
                .iter()
                .zip(&self.image)
                .zip(&self.constant)
                .all(|((got, sent), mask)| (got ^ sent) & mask == 0)
    }

    /// Writes the tag of frame number `n` into `out` and returns it; empty if the frame carries none.
    fn render_tag<'a>(
        &self,
        n: u64,
        size: FrameSize,
        stamp: TagStamp,
        out: &'a mut [u8; TagForm::MAX_TAG_BYTES],
    ) -> &'a [u8] {
        // The short form has 12 bits for the stream: a larger number would look like another stream.
        let form = self
            .tag_form(size)
            .filter(|form| *form == TagForm::Full || usize::from(stamp.stream) < MAX_SHORT_TAG_STREAMS);
        let Some(form) = form else { return &[] };
        let out = &mut out[..form.bytes()];
        let fill = size.kernel_len() - self.header_len - form.bytes();
        stamp.make_tag(n, form).write_tag(stamp.key, self.prefix_sums[fill], out);
        out
    }

    /// Writes the headers of frame `n` of the patterns, which is `len` bytes long and ends in `tail`.
    fn write_headers(&self, n: u64, len: usize, tail: &[u8], out: &mut [u8]) {
        self.write_fields(n, len, out);
        self.write_checksums(len, tail, out);
    }

    fn write_fields(&self, n: u64, len: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.image[..self.header_len]);
        for vary in &self.vary {
            bits::write_bits(out, vary.at, vary.bits, vary.pattern.value_at(n, vary.bits));
        }
        for length in &self.lengths {
            out[length.at..length.at + 2].copy_from_slice(&low_16(len - length.minus).to_be_bytes());
        }
    }

    fn write_checksums(&self, len: usize, tail: &[u8], out: &mut [u8]) {
        // Inner checksums first, because the outer ones cover them.
        for check in &self.checks {
            let value = self.compute_checksum(check, len, tail, out);
            out[check.at..check.at + 2].copy_from_slice(&value.to_be_bytes());
        }
    }

    /// Computes the value of a checksum field, which is zero in `head` so far.
    fn compute_checksum(&self, check: &ChecksumField, len: usize, tail: &[u8], head: &[u8]) -> u16 {
        let good = !match check.covers {
            ChecksumCover::Header { start, end } => ones_complement_sum(&head[start..end]),
            ChecksumCover::Rest { start, trim, pseudo } => {
                let rest = self.checksum_sum_from(start, len - trim, len, tail, head);
                pseudo.map_or(rest, |pseudo| pseudo.add_to(rest, len - trim - start, head))
            }
        };
        match (check.bad, good) {
            // Half of the bits are flipped. The result is neither the right one nor zero, which for UDP means "none".
            (true, 0x5555) => 0xaaaa,
            (true, good) => good ^ 0x5555,
            // RFC 768: a computed checksum of zero is sent as all ones, because zero means that there is none.
            (false, 0) if check.never_zero => 0xffff,
            (false, good) => good,
        }
    }

    /// Sum of the bytes `start..end` of a frame of `len` bytes that begins with `head` and ends in `tail`.
    fn checksum_sum_from(&self, start: usize, end: usize, len: usize, tail: &[u8], head: &[u8]) -> u16 {
        let fill = len - self.header_len - tail.len();
        // Three pieces, of which only headers and tag are summed now: the sum of any beginning of the fill is in the table.
        let covered = end - self.header_len;
        let of_fill = covered.min(fill);
        let mut total = ChecksumSum::default();
        total.add_bytes(&head[start..]);
        total.add_folded_sum(self.prefix_sums[of_fill], of_fill);
        total.add_bytes(&tail[..covered - of_fill]);
        total.folded_sum()
    }
}

impl PseudoHeader {
    /// Adds the pseudo-header (RFC 768, RFC 8200 section 8.1) of a segment of `len` bytes.
    fn add_to(self, rest: u16, len: usize, head: &[u8]) -> u16 {
        let mut total = ChecksumSum::default();
        total.add_bytes(&rest.to_be_bytes());
        total.add_bytes(&head[self.addresses..self.addresses + self.len]);
        // IPv6 has a length of 32 bits here. A sum of words is the same for both as long as the upper half is zero.
        total.add_bytes(&low_16(len).to_be_bytes());
        total.add_bytes(&[0, self.protocol]);
        total.folded_sum()
    }
}

/// The low 16 bits: a length field of a longer frame wraps, as the field itself would.
fn low_16(value: usize) -> u16 {
    let [low, high, ..] = value.to_le_bytes();
    u16::from_le_bytes([low, high])
}
