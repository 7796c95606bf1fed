//! Frames of streams that are expected at other ports: delivered to the wrong port, flooded, or sent back.

use crate::port::RxFrame;
use crate::stream::StreamSpec;
use packetrig_stats::ranges::NumberRanges;
use packetrig_stats::result::MisdeliveredFrames;
use packetrig_wire::tag::FoundTag;
use packetrig_wire::{FrameComparison, foreign};
use std::sync::Arc;

/// Counters of a stream that is expected at other ports.
pub(super) struct MisdeliveredStream {
    spec: Arc<StreamSpec>,
    frames: u64,
    to_groups: u64,
    numbers: NumberRanges,
}

impl MisdeliveredStream {
    pub(super) fn new(spec: Arc<StreamSpec>) -> Self {
        Self { spec, frames: 0, to_groups: 0, numbers: NumberRanges::default() }
    }

    pub(super) fn stream_number(&self) -> u16 {
        self.spec.number
    }

    /// Counts a frame with a tag of this stream. Returns `false` if the frame shows that the tag is
    /// valid only by chance.
    pub(super) fn count_if_tag_is_valid(&mut self, found: &FoundTag, frame: &RxFrame<'_>) -> bool {
        // A recorded frame has no template. Its payload check must be intact, because a mark may be valid by chance.
        let fits = match self.spec.source.template() {
            Some(template) => template.smallest_or_largest_has_tag_form(found.tag.form),
            None => foreign::compare_payload_with_tag(frame.bytes, found) == Some(FrameComparison::Intact),
        };
        if !fits {
            return false;
        }
        self.frames += 1;
        // The lowest bit of the first byte marks a group address: flooding such a frame is normal.
        self.to_groups += u64::from(frame.bytes.first().is_some_and(|byte| byte & 1 == 1));
        // The numbers in tags have 32 bits. At 50 000 frames/s they wrap after one day; the lookup of lost frames
        // does not take this into account.
        self.numbers.add_number(found.tag.sequence.into());
        true
    }

    pub(super) fn into_misdelivered(self, port: usize) -> Option<MisdeliveredFrames> {
        let Self { spec, frames, to_groups, numbers } = self;
        (frames > 0).then(|| MisdeliveredFrames {
            stream: spec.number.into(),
            port,
            frames,
            to_groups,
            numbers,
        })
    }
}
