//! Segments of a stream: each holds the frames from a start, resumption or change of the stream to the next one.
//!
//! A stream numbers its frames from 0 through the whole run, however often it is started. Tags carry these numbers, and
//! receivers detect losses from them. A segment maps each number to a frame of the template and to its due time. Times
//! are counted from T, the start of the run. A stream that is not started and paused individually has one segment.
//!
//! Invariant: the segments of a stream follow each other without a gap in the numbers.

use packetrig_plan::timeline::{SendPattern, StreamTimeline};
use packetrig_units::Nanos;
use packetrig_wire::{FrameIndex, FrameTemplate};
use std::sync::Arc;

#[derive(Clone, Debug)]
pub struct StreamSegment {
    first: u64,
    index: u64,
    at: Nanos,
    /// Added to a time of the timeline to get a time from T; wraps, because it may be negative.
    shift: u64,
    template: Arc<FrameTemplate>,
    timeline: StreamTimeline,
}

impl StreamSegment {
    /// Creates the only segment of a stream whose schedule begins at T; its first frame is due after the delay.
    pub fn for_whole_stream(template: Arc<FrameTemplate>, timeline: StreamTimeline) -> Self {
        Self::new(FrameIndex { number: 0, index: 0 }, timeline.delay, template, timeline)
    }

    /// Creates a segment that begins with frame `first`, due `at` after T. The index of `first` is 0 after a start;
    /// after a pause or a change it continues where the stream stopped.
    pub fn new(first: FrameIndex, at: Nanos, template: Arc<FrameTemplate>, timeline: StreamTimeline) -> Self {
        // Due times are computed from the timeline's own origin and shifted, so that after a pause a frame keeps its
        // place in its burst and the exact rounding. The shift may be negative: it wraps here and back in `due_time`.
        let shift = at.as_u64().wrapping_sub(timeline.due_time(first.index).as_u64());
        Self { first: first.number, index: first.index, at, shift, template, timeline }
    }

    /// Returns the template of the segment's frames.
    pub fn template(&self) -> &Arc<FrameTemplate> {
        &self.template
    }

    /// Returns the schedule of the segment's frames, by their index in the template.
    pub const fn timeline(&self) -> &StreamTimeline {
        &self.timeline
    }

    /// Returns whether the segment begins with the first frame of the template: it follows a start, not a resumption or
    /// a change. Counts since the start begin with such a segment.
    pub const fn starts_at_first_frame(&self) -> bool {
        self.index == 0
    }

    /// Returns the number of the segment's first frame.
    pub const fn first_number(&self) -> u64 {
        self.first
    }

    /// Returns frame `number` together with its index in the template.
    pub const fn frame_index(&self, number: u64) -> FrameIndex {
        FrameIndex { number, index: number.wrapping_sub(self.first).wrapping_add(self.index) }
    }

    /// Returns when frame `number` is due, from T.
    pub fn due_time(&self, number: u64) -> Nanos {
        Nanos::new(self.timeline.due_time(self.frame_index(number).index).as_u64().wrapping_add(self.shift))
    }

    /// Returns the number after the segment's last frame; `u64::MAX` for an endless stream.
    pub fn end_number(&self) -> u64 {
        let total = self.timeline.total_frames().map(|total| total.saturating_sub(self.index));
        total.map_or(u64::MAX, |frames| self.first.saturating_add(frames))
    }

    /// Returns the number of the first frame that is not due yet `elapsed` after T.
    pub fn first_number_due_from(&self, elapsed: Nanos) -> u64 {
        if elapsed <= self.at {
            return self.first;
        }
        // Converts the time since T to a time on the timeline, which has its own origin.
        let since = elapsed.saturating_sub(self.at) + self.timeline.due_time(self.index);
        let index = self.timeline.frames_due_before(since).max(self.index);
        self.first.saturating_add(index - self.index)
    }

    /// Returns the time from T at which the segment ends even if frames are left; `None` without a time limit.
    pub fn time_limit(&self) -> Option<Nanos> {
        Some(self.at + self.time_left(self.index)?)
    }

    /// Returns how much of the time limit is left when frame `index` of the template is due; `None` without a limit.
    fn time_left(&self, index: u64) -> Option<Nanos> {
        let SendPattern::Within(length) = self.timeline.shape else { return None };
        Some(length.saturating_sub(since_first(&self.timeline, index)))
    }

    /// Returns the schedule `wanted` for frames from `index` on, for a stream that has followed this segment so far. If
    /// both have a time limit, the stream keeps only the time that is left, however often its rate changes.
    pub fn timeline_continued_at(&self, index: u64, wanted: StreamTimeline) -> StreamTimeline {
        match (self.time_left(index), wanted.shape) {
            (Some(left), SendPattern::Within(_)) => {
                StreamTimeline { shape: SendPattern::Within(since_first(&wanted, index) + left), ..wanted }
            }
            _ => wanted,
        }
    }
}

/// Returns the time from the first frame to frame `index`.
fn since_first(timeline: &StreamTimeline, index: u64) -> Nanos {
    timeline.due_time(index).saturating_sub(timeline.delay)
}

/// The segments that a receiver stores for one stream: the last one, and earlier ones with frames still in flight.
#[derive(Clone, Debug)]
pub(crate) struct StreamSegments(Vec<StreamSegment>);

/// Maximum number of stored segments. Frames of older segments have arrived long ago.
const MAX_STORED_SEGMENTS: usize = 8;

impl StreamSegments {
    /// Starts with the segment of the whole stream; `None` for frames that are not made from a template.
    pub(crate) fn new(whole: Option<StreamSegment>) -> Self {
        Self(whole.into_iter().collect())
    }

    /// Adds the next segment. It replaces a segment with the same first number, because that one has no frames.
    pub(crate) fn push(&mut self, segment: StreamSegment) {
        self.0.retain(|earlier| earlier.first < segment.first);
        if self.0.len() == MAX_STORED_SEGMENTS {
            self.0.remove(0);
        }
        self.0.push(segment);
    }

    /// Returns the segment of frame `number`; for a frame of a removed segment, the oldest one that is stored.
    pub(crate) fn find_segment(&self, number: u64) -> Option<&StreamSegment> {
        self.0.iter().rfind(|take| take.first <= number).or_else(|| self.0.first())
    }

    pub(crate) fn last(&self) -> Option<&StreamSegment> {
        self.0.last()
    }
}

#[cfg(test)]
mod tests;
