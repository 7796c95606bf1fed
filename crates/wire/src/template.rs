//! The compiled frames of a stream: frame `n` is a copy of an image in which the varying fields are filled in.
//!
//! ```text
//!  |<------- headers ------->|<---------- payload fill ---------->|<-- tag -->|
//!   image + varying fields     prefix of one image, all sizes        per frame
//!   + lengths + checksums
//! ```
//! Because a shorter payload is always the beginning of a longer one, one table of prefix sums gives the
//! one's-complement sum over the fill of any size. Only the headers and the tag are summed for each frame.

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

/// Minimum length of an Ethernet frame without FCS. A device may pad a shorter frame to this length.
const PADDED_FRAME_BYTES: usize = 60;
/// Length of both addresses in an Ethernet header.
const MAC_ADDRESSES_BYTES: usize = 12;
/// The EtherType that announces an 802.1Q tag.
const VLAN_TAG_TYPE: [u8; 2] = [0x81, 0];

/// The description of a stream's frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameSpec {
    /// Headers in wire order; an empty list means one Ethernet header.
    pub headers: Vec<PacketHeader>,
    pub size: SizePattern,
    pub payload: PayloadPattern,
    /// True if the frames carry a test tag, where one fits. Otherwise the payload is exactly the pattern.
    pub tagged: bool,
    /// True if the frames go to a router, which replaces MAC addresses and decrements the time to live.
    pub routed: bool,
}

/// Reason why a spec cannot be compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The headers are longer than the smallest frame.
    #[error(
        "its headers take {headers} bytes, so its frames need at least {needed} bytes (FCS included); its \
            smallest frames have {smallest}"
    )]
    TooSmall {
        /// Length of the headers in bytes.
        headers: usize,
        /// Smallest sufficient frame size.
        needed: usize,
        /// Smallest frame size that the plan requests.
        smallest: u32,
    },
}

/// Identifies a frame of a stream. A plain number stands for both values: a stream that is started once sends
/// frame `n` of its patterns with the number `n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameIndex {
    /// The number in the tag: how many frames the stream has sent before this one.
    pub number: u64,
    /// The index in the patterns, which start again at every start of the stream.
    pub index: u64,
}

impl From<u64> for FrameIndex {
    fn from(n: u64) -> Self {
        Self { number: n, index: n }
    }
}

/// Result of the comparison of an arrived frame with the sent one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameComparison {
    /// The frame is byte for byte the sent one. Two differences are allowed: padding to the minimum length and,
    /// if the frames go to a router, the changes that routers make.
    Intact,
    /// The payload is intact, but the headers differ from the sent ones (rewritten, added or removed).
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

/// A 16-bit length field. Its value is the frame length without FCS, minus `minus`.
#[derive(Clone, Copy, Debug)]
struct LengthField {
    at: usize,
    minus: usize,
}

/// A checksum field. Inner checksums are stored before outer ones, because the outer ones cover them.
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
    /// The bytes from `start` to `trim` bytes before the end of the frame, and the pseudo-header if there is one.
    Rest {
        start: usize,
        trim: usize,
        pseudo: Option<PseudoHeader>,
    },
}

/// The addresses and the protocol of a pseudo-header.
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
    /// The headers with all constant fields, followed by the fill of the largest frame.
    image: Vec<u8>,
    header_len: usize,
    vary: Vec<ChangingField>,
    lengths: Vec<LengthField>,
    checks: Vec<ChecksumField>,
    /// Entry `i` is the folded sum of the first `i` bytes of the fill.
    prefix_sums: Vec<u16>,
    /// Mask of the header bits that are the same in every frame.
    constant: Vec<u8>,
    /// Offset of the time to live or hop limit, for frames that go to a router.
    hop_limit: Option<usize>,
}

impl FrameTemplate {
    /// Returns the spec from which the template was compiled.
    pub fn spec(&self) -> &FrameSpec {
        &self.spec
    }

    /// Returns the length of all headers in bytes.
    pub fn header_len(&self) -> usize {
        self.header_len
    }

    /// Returns whether every frame has an 802.1Q tag directly after its MAC addresses. Interfaces accept four
    /// bytes more in frames with such a tag.
    pub fn begins_with_vlan_tag(&self) -> bool {
        // If the EtherType varies, only some frames have a VLAN tag.
        let is_constant = self.constant.get(12..14).is_some_and(|mask| mask == [0xff; 2]);
        is_constant && self.image[..self.header_len].get(12..14).is_some_and(|found| found == VLAN_TAG_TYPE)
    }

    /// Returns the size of frame `n`, FCS included.
    pub fn frame_size(&self, n: u64) -> FrameSize {
        self.spec.size.size_at(n)
    }

    /// Returns the form of the test tag in a frame of this size; `None` if the frame is untagged or no form fits.
    pub fn tag_form(&self, size: FrameSize) -> Option<TagForm> {
        if !self.spec.tagged {
            return None;
        }
        TagForm::largest_fitting(size.kernel_len().saturating_sub(self.header_len))
    }

    /// Returns whether the smallest or the largest frames of this stream carry a tag of this form.
    pub fn smallest_or_largest_has_tag_form(&self, form: TagForm) -> bool {
        let sizes = [self.spec.size.min_size(), self.spec.size.max_size()];
        sizes.into_iter().any(|size| self.tag_form(size) == Some(form))
    }

    /// Writes the frame `nth` without FCS into `out` and returns its length. `out` must have at least
    /// `frame_size(index).kernel_len()` bytes. `stamp` is used if the frame carries a tag.
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

    /// Compares an arrived frame, in which the tag `found` was found and which has the number `nth`, with the
    /// sent frame. `scratch` must have at least `header_len()` bytes.
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
        // `min` is needed, because a false tag may have a form that is longer than the payload.
        let fill = len - self.header_len - found.tag.form.bytes().min(len - self.header_len);
        // The position is counted from the end: added or removed headers move the start of the payload
        // relative to the frame, but not relative to its end.
        let Some(start) = found.end.checked_sub(len - self.header_len) else {
            return FrameComparison::Corrupt;
        };
        // The payload is compared byte by byte with the image. The comparison of the check in the tag also
        // detects damage to the check itself.
        if self.tag_form(size) != Some(found.tag.form)
            || frame[start..start + fill] != self.image[self.header_len..self.header_len + fill]
            || found.check.is_some_and(|check| check != !self.prefix_sums[fill])
        {
            return FrameComparison::Corrupt;
        }
        // A device may pad a short frame to the minimum length. Any other bytes after the tag were added by a device.
        let padded = frame.len() > found.end && frame.len() != PADDED_FRAME_BYTES;
        // With other headers before the payload, the fields have other positions and cannot be compared.
        if start != self.header_len || padded {
            return FrameComparison::Altered;
        }
        let head = &mut scratch[..self.header_len];
        let stamp = TagStamp { key, stream: found.tag.stream, time: found.tag.time };
        let mut tail = [0; TagForm::MAX_TAG_BYTES];
        let tail = self.render_tag(number, size, stamp, &mut tail);
        // The fields are written first, then the changes of routers, and then the checksums, which cover
        // both.
        self.write_fields(index, len, head);
        self.copy_routed_fields(frame, head);
        self.write_checksums(len, tail, head);
        if frame[..start] == *head { FrameComparison::Intact } else { FrameComparison::Altered }
    }

    /// Copies the fields that routers change from the arrived frame into the headers `head`: the MAC addresses,
    /// and a hop limit that is lower than the sent one.
    fn copy_routed_fields(&self, frame: &[u8], head: &mut [u8]) {
        if let Some(at) = self.hop_limit {
            // Each router writes its own MAC address and that of the next hop.
            head[..MAC_ADDRESSES_BYTES].copy_from_slice(&frame[..MAC_ADDRESSES_BYTES]);
            // Routers only decrease the hop limit.
            head[at] = head[at].min(frame[at]);
        }
    }

    /// Returns whether the headers of a frame are equal to those of this stream in all bits that do not vary.
    /// This identifies the stream of a frame with a damaged tag, unless a device has rewritten the headers.
    pub fn matches_constant_headers(&self, frame: &[u8]) -> bool {
        // `zip` ends with the shorter sequence, so without this check a truncated frame could match with its
        // first bytes alone.
        frame.len() > self.header_len
            && frame
                .iter()
                .zip(&self.image)
                .zip(&self.constant)
                .all(|((got, sent), mask)| (got ^ sent) & mask == 0)
    }

    /// Writes the tag of frame number `n` into `out` and returns it; empty if the frame carries no tag.
    fn render_tag<'a>(
        &self,
        n: u64,
        size: FrameSize,
        stamp: TagStamp,
        out: &'a mut [u8; TagForm::MAX_TAG_BYTES],
    ) -> &'a [u8] {
        // The short form has 12 bits for the stream, so a larger number would look like the number of another stream.
        let form = self
            .tag_form(size)
            .filter(|form| *form == TagForm::Full || usize::from(stamp.stream) < MAX_SHORT_TAG_STREAMS);
        let Some(form) = form else { return &[] };
        let out = &mut out[..form.bytes()];
        let fill = size.kernel_len() - self.header_len - form.bytes();
        stamp.make_tag(n, form).write_tag(stamp.key, self.prefix_sums[fill], out);
        out
    }

    /// Writes the headers of a frame that has `len` bytes and the tag `tail`. `n` is the index of the
    /// frame in the patterns.
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
        // Inner checksums come first, because the outer ones cover them.
        for check in &self.checks {
            let value = self.compute_checksum(check, len, tail, out);
            out[check.at..check.at + 2].copy_from_slice(&value.to_be_bytes());
        }
    }

    /// Computes the value of a checksum field. The field must still be zero in `head`.
    fn compute_checksum(&self, check: &ChecksumField, len: usize, tail: &[u8], head: &[u8]) -> u16 {
        let good = !match check.covers {
            ChecksumCover::Header { start, end } => ones_complement_sum(&head[start..end]),
            ChecksumCover::Rest { start, trim, pseudo } => {
                let rest = self.sum_covered_bytes(start, len - trim, len, tail, head);
                pseudo.map_or(rest, |pseudo| pseudo.add_to_sum(rest, len - trim - start, head))
            }
        };
        match (check.bad, good) {
            // Half of the bits are inverted, or all bits if the result would be zero: for UDP, zero means that
            // there is no checksum.
            (true, 0x5555) => 0xaaaa,
            (true, good) => good ^ 0x5555,
            // RFC 768: a computed checksum of zero is sent as all ones, because zero means that there is none.
            (false, 0) if check.never_zero => 0xffff,
            (false, good) => good,
        }
    }

    /// Returns the sum of the bytes `start..end` of a frame of `len` bytes that begins with `head`
    /// and ends with `tail`.
    fn sum_covered_bytes(&self, start: usize, end: usize, len: usize, tail: &[u8], head: &[u8]) -> u16 {
        let fill = len - self.header_len - tail.len();
        // Only the headers and the tag are summed here: the table contains the sum of every beginning of the fill.
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
    /// Returns the sum `rest` plus the pseudo-header (RFC 768, RFC 8200 section 8.1) of a segment of `len` bytes.
    fn add_to_sum(self, rest: u16, len: usize, head: &[u8]) -> u16 {
        let mut total = ChecksumSum::default();
        total.add_bytes(&rest.to_be_bytes());
        total.add_bytes(&head[self.addresses..self.addresses + self.len]);
        // In IPv6 this length has 32 bits. The sum is the same as with 16 bits, as long as the upper half is
        // zero.
        total.add_bytes(&low_16(len).to_be_bytes());
        total.add_bytes(&[0, self.protocol]);
        total.folded_sum()
    }
}

/// Returns the low 16 bits: a length above 65535 wraps, because the field has only 16 bits.
fn low_16(value: usize) -> u16 {
    let [low, high, ..] = value.to_le_bytes();
    u16::from_le_bytes([low, high])
}
