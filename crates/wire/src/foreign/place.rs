//! Finds the place for a test tag in a frame: the last bytes of its transport payload.

use super::{PacketLayers, correct_checksum, word_at};
use crate::checksum::ones_complement_sum;
use crate::tag::{FoundTag, TagForm, TagStamp};
use crate::template::FrameComparison;

/// The position of a test tag in one frame, and what is needed to write the tag there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadTagPosition {
    /// Offset of the tag.
    at: usize,
    form: TagForm,
    /// One's-complement sum of the payload before the tag.
    payload_sum: u16,
    check: Option<TransportChecksum>,
}

/// The transport checksum that covers the tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TransportChecksum {
    at: usize,
    /// True if the tag is at an odd distance from the start of the summed bytes.
    odd: bool,
    never_zero: bool,
}

impl PayloadTagPosition {
    /// Finds the place for a tag in a frame without FCS. The result is `None` if the frame has no TCP, UDP or
    /// ICMP echo payload of at least 6 bytes, if its UDP length is wrong, or if it is a fragment, whose
    /// checksum may be in another frame.
    pub fn from_frame(frame: &[u8]) -> Option<Self> {
        let layers = PacketLayers::from_frame(frame)?;
        let transport = layers.transport.as_ref()?;
        let payload = transport.payload.clone();
        if layers.ip?.is_fragment || !transport.has_user_payload(frame) {
            return None;
        }
        // UDP has its own length field. If it differs from the length in the IP header, the receiver would
        // look for the tag at another place.
        if transport.protocol == 17
            && word_at(frame, transport.at + 4).map(usize::from) != Some(payload.len() + 8)
        {
            return None;
        }
        let form = TagForm::largest_fitting(payload.len())?;
        let at = payload.end - form.bytes();
        let check = transport.checksum_at.map(|check_at| TransportChecksum {
            at: check_at,
            odd: (at - transport.at) % 2 == 1,
            never_zero: transport.zero_means_no_checksum(),
        });
        Some(Self { at, form, payload_sum: ones_complement_sum(&frame[payload.start..at]), check })
    }

    pub fn form(&self) -> TagForm {
        self.form
    }

    /// Returns the offset of the first byte after the tag, where the payload ends.
    pub(super) fn end_offset(&self) -> usize {
        self.at + self.form.bytes()
    }

    /// Writes the tag with number `n` into `frame` and corrects the transport checksum. `n` counts the tagged
    /// frames of the stream. `frame` must be a copy of the frame in which the place was found.
    pub fn write_tag(&self, n: u64, stamp: TagStamp, frame: &mut [u8]) {
        let bytes = self.form.bytes();
        let mut old = [0; TagForm::MAX_TAG_BYTES];
        let mut new = [0; TagForm::MAX_TAG_BYTES];
        let old = &mut old[..bytes];
        let new = &mut new[..bytes];
        let place = &mut frame[self.at..self.at + bytes];
        old.copy_from_slice(place);
        stamp.make_tag(n, self.form).write_tag(stamp.key, self.payload_sum, new);
        place.copy_from_slice(new);
        if let Some(check) = self.check {
            correct_checksum(frame, check.at, old, new, check.odd, check.never_zero);
        }
    }
}

/// Checks the payload of an arrived frame of a replayed recording against its tag. Returns `None` for a frame
/// that only looks like a frame of this run.
pub fn compare_payload_with_tag(frame: &[u8], found: &FoundTag) -> Option<FrameComparison> {
    let is_full = found.tag.form == TagForm::Full;
    let Some(place) = PayloadTagPosition::from_frame(frame) else {
        // Behind unknown headers, such as those of a tunnel, the payload cannot be found. A full tag of one of
        // the run's streams is very unlikely to be there by chance, but a short tag may be.
        let is_ip = PacketLayers::from_frame(frame).is_some_and(|layers| layers.ip.is_some());
        return (is_full && !is_ip).then_some(FrameComparison::Altered);
    };
    if place.form != found.tag.form || place.at + place.form.bytes() != found.end {
        return None;
    }
    let is_intact = found.check.is_none_or(|check| check == !place.payload_sum);
    Some(if is_intact { FrameComparison::Intact } else { FrameComparison::Corrupt })
}
