//! Splits the frames of one size of a template into parts: the constant bytes, the varying fields, and the
//! constant part of each checksum. This is for senders that build frames without the code of this crate, for
//! example in a BPF program.
//!
//! Invariant: filling in the parts gives the bytes of [`FrameTemplate::render_frame`].

use super::{ChecksumCover, ChecksumField, FrameTemplate};
use crate::bits;
use crate::pattern::FieldPattern;
use crate::tag::{TagForm, TagKey, TagStamp};
use packetrig_units::FrameSize;

/// A field that varies from frame to frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VaryingField {
    /// Offset in the frame, in bits.
    pub at: u32,
    pub bits: u32,
    pub pattern: FieldPattern,
    /// Indices of the checksums that cover this field.
    pub checks: Vec<usize>,
}

/// A checksum to which the varying fields have not been added yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartialChecksum {
    /// Offset in the frame.
    pub at: usize,
    /// Offset of the first covered byte. The bytes of a field at an odd distance from it are swapped in the sum.
    pub start: usize,
    /// One's-complement sum of the covered constant bytes, not inverted.
    pub base: u16,
    /// Number of bytes of the tag that the checksum covers.
    pub tag: usize,
    /// Indices of the later checksums that cover the field of this checksum.
    pub into: Vec<usize>,
    /// True if the checksum must be wrong.
    pub bad: bool,
    /// True if zero is written as all ones.
    pub never_zero: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateParts {
    /// The frame, in which all varying bits, the checksums and the varying bytes of the tag are zero.
    pub image: Vec<u8>,
    pub header_len: usize,
    /// The form of the tag at the end of the frame; `None` for frames without a tag.
    pub tag: Option<TagForm>,
    pub fields: Vec<VaryingField>,
    /// Checksums in the order in which the sender must compute them.
    pub checks: Vec<PartialChecksum>,
}

impl FrameTemplate {
    /// Splits the frames of one size into parts. `size` must be one of the template's sizes; `stream` is the
    /// stream number in the tags.
    pub fn split_into_parts(&self, size: FrameSize, stream: u16) -> TemplateParts {
        let len = size.kernel_len();
        let stamp = TagStamp { key: TagKey(0), stream, time: 0 };
        let mut tail = [0; TagForm::MAX_TAG_BYTES];
        let tag_len = self.render_tag(0, size, stamp, &mut tail).len();
        // The form is determined by the number of written bytes: a stream with a large number has no short
        // tag, even if one fits.
        let tag = [TagForm::Full, TagForm::Short].into_iter().find(|form| form.bytes() == tag_len);
        // Varying bytes count as zero in all sums below. Adding their values later gives the complete sum.
        clear_varying_tag_parts(tag, &mut tail);
        let mut image = self.image[..self.header_len].to_vec();
        for vary in &self.vary {
            bits::write_bits(&mut image, vary.at, vary.bits, 0);
        }
        for length in &self.lengths {
            let value = super::low_16(len - length.minus).to_be_bytes();
            image[length.at..length.at + 2].copy_from_slice(&value);
        }
        let checks = self.checks.iter().enumerate();
        let checks =
            checks.map(|(i, check)| self.prepare_checksum(i, check, len, &tail[..tag_len], &image)).collect();
        let fields = self.vary.iter().map(|vary| VaryingField {
            at: vary.at,
            bits: vary.bits,
            pattern: vary.pattern.clone(),
            // Checksums cover whole fields, so it is sufficient to look at the first byte.
            checks: self.covering_checksums(vary.at as usize / 8),
        });
        let fields = fields.collect();
        image.extend_from_slice(&self.image[self.header_len..len - tag_len]);
        image.extend_from_slice(&tail[..tag_len]);
        TemplateParts { image, header_len: self.header_len, tag, fields, checks }
    }

    fn prepare_checksum(
        &self,
        index: usize,
        check: &ChecksumField,
        len: usize,
        tail: &[u8],
        head: &[u8],
    ) -> PartialChecksum {
        // An outer checksum also covers the field of an inner one, which is computed before it.
        let into = self.covering_checksums(check.at).into_iter().filter(|outer| *outer > index).collect();
        let mut open = PartialChecksum {
            at: check.at,
            start: 0,
            base: 0,
            tag: 0,
            into,
            bad: check.bad,
            never_zero: check.never_zero,
        };
        match check.covers {
            ChecksumCover::Header { start, end } => {
                open.start = start;
                open.base = crate::checksum::ones_complement_sum(&head[start..end]);
            }
            ChecksumCover::Rest { start, trim, pseudo } => {
                let rest = self.sum_covered_bytes(start, len - trim, len, tail, head);
                open.start = start;
                open.base = pseudo.map_or(rest, |pseudo| pseudo.add_to_sum(rest, len - trim - start, head));
                open.tag = tail.len().saturating_sub(trim);
            }
        }
        open
    }

    /// Returns the indices of the checksums that cover this byte of the headers.
    fn covering_checksums(&self, at: usize) -> Vec<usize> {
        self.checks
            .iter()
            .enumerate()
            .filter(|(_, check)| check.covers.covers_header_byte(at))
            .map(|(i, _)| i)
            .collect()
    }
}

impl ChecksumCover {
    /// Returns whether a byte of the headers is part of the sum.
    fn covers_header_byte(&self, at: usize) -> bool {
        match *self {
            Self::Header { start, end } => (start..end).contains(&at),
            Self::Rest { start, pseudo, .. } => {
                at >= start || pseudo.is_some_and(|p| (p.addresses..p.addresses + p.len).contains(&at))
            }
        }
    }
}

/// Clears the varying bytes of a tag. In the full form, the stream and the check are kept; in the short
/// form, nothing is kept.
fn clear_varying_tag_parts(tag: Option<TagForm>, tail: &mut [u8; TagForm::MAX_TAG_BYTES]) {
    match tag {
        Some(TagForm::Full) => {
            tail[0..2].fill(0);
            tail[4..14].fill(0);
        }
        _ => tail.fill(0),
    }
}
