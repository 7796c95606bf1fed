//! A take: the frames of a stream from one start on, or from a resumption or a change on.
//!
//! A stream numbers its frames from 0 through the whole run, however often it is started: that is what tags carry and what
//! receivers count losses by. A take says which of the template's frames each of them is, and when it is due. Times are
//! counted from T, the start of the run. A stream that is not steered has one take.
//!
//! Invariant: the takes of a stream follow each other without a gap in the numbers.

use packetrig_plan::timeline::{SendPattern, StreamTimeline};
use packetrig_units::Nanos;
use packetrig_wire::{FrameIndex, FrameTemplate};
use std::sync::Arc;

#[derive(Clone, Debug)]
pub struct Take {
    first: u64,
    index: u64,
    at: Nanos,
    /// What is added to a time of the timeline to have it from T; wraps, because it may be less than nothing.
    shift: u64,
    template: Arc<FrameTemplate>,
    timeline: StreamTimeline,
}

impl Take {
    /// All of a stream that begins at T.
    pub fn whole(template: Arc<FrameTemplate>, timeline: StreamTimeline) -> Self {
        Self::new(FrameIndex { number: 0, index: 0 }, timeline.delay, template, timeline)
    }

    /// A take that begins with frame `first`, due `at` after T. The index of `first` is 0 after a start; after a pause or
    /// a change it continues where the stream stopped.
    pub fn new(first: FrameIndex, at: Nanos, template: Arc<FrameTemplate>, timeline: StreamTimeline) -> Self {
        // Due times come from the timeline's own origin and are shifted, so a frame keeps its place in its burst and
        // the rounding of the exact schedule after a pause.
        let shift = at.as_u64().wrapping_sub(timeline.due(first.index).as_u64());
        Self { first: first.number, index: first.index, at, shift, template, timeline }
    }

    /// What its frames are made from.
    pub fn template(&self) -> &Arc<FrameTemplate> {
        &self.template
    }

    /// Their rhythm and amount, in frames of the template.
    pub const fn timeline(&self) -> &StreamTimeline {
        &self.timeline
    }

    /// Whether it began with a start: counts since the start begin with it.
    pub const fn is_fresh(&self) -> bool {
        self.index == 0
    }

    /// Number of its first frame.
    pub const fn first(&self) -> u64 {
        self.first
    }

    /// Which frame of the template frame `number` is.
    pub const fn nth(&self, number: u64) -> FrameIndex {
        FrameIndex { number, index: number.wrapping_sub(self.first).wrapping_add(self.index) }
    }

    /// When frame `number` is due, from T.
    pub fn due(&self, number: u64) -> Nanos {
        Nanos::new(self.timeline.due(self.nth(number).index).as_u64().wrapping_add(self.shift))
    }

    /// The number after its last frame's; `u64::MAX` if it has no end.
    pub fn end(&self) -> u64 {
        let total = self.timeline.total().map(|total| total.saturating_sub(self.index));
        total.map_or(u64::MAX, |frames| self.first.saturating_add(frames))
    }

    /// The number of the first frame that is not yet due `elapsed` after T.
    pub fn due_before(&self, elapsed: Nanos) -> u64 {
        if elapsed <= self.at {
            return self.first;
        }
        // From the time since T to the timeline's own time.
        let since = elapsed.saturating_sub(self.at) + self.timeline.due(self.index);
        let index = self.timeline.due_before(since).max(self.index);
        self.first.saturating_add(index - self.index)
    }

    /// When it ends although frames are left, from T: only a take with a time limit does.
    pub fn time_limit(&self) -> Option<Nanos> {
        Some(self.at + self.time_left(self.index)?)
    }

    /// What is left of its time limit when frame `index` of the template is due.
    fn time_left(&self, index: u64) -> Option<Nanos> {
        let SendPattern::Within(length) = self.timeline.shape else { return None };
        Some(length.saturating_sub(since_first(&self.timeline, index)))
    }

    /// The rhythm of `wanted` from frame `index` on, for a stream that has followed this take's so far. What is left of a time
    /// limit stays what it is, at whatever rate, however often that has changed.
    pub fn rhythm_from(&self, index: u64, wanted: StreamTimeline) -> StreamTimeline {
        match (self.time_left(index), wanted.shape) {
            (Some(left), SendPattern::Within(_)) => {
                StreamTimeline { shape: SendPattern::Within(since_first(&wanted, index) + left), ..wanted }
            }
            _ => wanted,
        }
    }
}

/// From the first frame to frame `index`.
fn since_first(timeline: &StreamTimeline, index: u64) -> Nanos {
    timeline.due(index).saturating_sub(timeline.delay)
}

/// The takes of a stream that its receiver knows: the last one, and those before it, whose frames may still be under way.
#[derive(Clone, Debug)]
pub(crate) struct Takes(Vec<Take>);

/// Takes that are kept: frames of older ones are long gone.
const KEPT: usize = 8;

impl Takes {
    /// None for what is not made from a template.
    pub(crate) fn new(whole: Option<Take>) -> Self {
        Self(whole.into_iter().collect())
    }

    /// Adds the next take. One that never had a frame gives way to it.
    pub(crate) fn push(&mut self, take: Take) {
        self.0.retain(|earlier| earlier.first < take.first);
        if self.0.len() == KEPT {
            self.0.remove(0);
        }
        self.0.push(take);
    }

    /// The take that frame `number` belongs to; the oldest known one for older numbers.
    pub(crate) fn of(&self, number: u64) -> Option<&Take> {
        self.0.iter().rfind(|take| take.first <= number).or_else(|| self.0.first())
    }

    pub(crate) fn last(&self) -> Option<&Take> {
        self.0.last()
    }
}

#[cfg(test)]
mod tests;
