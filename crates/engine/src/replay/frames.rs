//! The frames of one stream at its sender: rendered from a template, or read from a capture file.

use super::ReplayTrack;
use super::player::{NextFrame, ReplayPlayer};
use crate::Error;
use crate::segment::StreamSegment;
use crate::stream::{FrameSource, StreamSpec};
use packetrig_plan::recording::ReplayTiming;
use packetrig_plan::timeline::StreamTimeline;
use packetrig_stats::content::ContentCounts;
use packetrig_stats::counts::StreamTxCounts;
use packetrig_units::{MonoTime, Nanos};
use packetrig_wire::foreign;
use packetrig_wire::tag::TagStamp;
use std::sync::Arc;

/// When the reader is behind: time until the sender asks for the next frame again.
const READER_RETRY_INTERVAL: Nanos = Nanos::from_micros(20);

/// Source of a stream's frames at its sender.
#[derive(Debug)]
pub(crate) enum StreamFrames {
    /// Rendered one by one from a template.
    Made(StreamSegment),
    /// Read from a file.
    Played(Box<PlayedRecording>),
}

impl StreamFrames {
    /// Creates the source of a stream's frames. If they come from a file, opens it and starts to read.
    pub(crate) fn from_spec(spec: &StreamSpec) -> Result<Self, Error> {
        Ok(match &spec.source {
            FrameSource::Made(template) => {
                Self::Made(StreamSegment::for_whole_stream(Arc::clone(template), spec.timeline))
            }
            FrameSource::Recorded(track) => Self::Played(Box::new(PlayedRecording {
                player: ReplayPlayer::start_reader(track, spec.number)?,
                timing: track.recording().timing,
                tagged: track.recording().tagged,
                track: Arc::clone(track),
                next_second: 0,
                is_waiting: false,
                contents: ContentCounts::with_allocated_memory(),
            })),
        })
    }

    /// Returns whether the frames have due times; false if a file is replayed as fast as possible.
    pub(crate) fn have_due_times(&self) -> bool {
        !matches!(self, Self::Played(playing) if playing.timing == ReplayTiming::Fastest)
    }

    /// Returns whether a recording has no more frames; always false for a template, whose end the schedule sets.
    pub(crate) fn has_recording_ended(&mut self) -> bool {
        match self {
            Self::Made(_) => false,
            Self::Played(playing) => playing.player.peek_frame() == NextFrame::Ended,
        }
    }

    /// Returns the counted contents of the frames that left without a tag, and resets them.
    pub(crate) fn take_untagged_contents(&mut self) -> ContentCounts {
        match self {
            Self::Made(_) => ContentCounts::default(),
            Self::Played(playing) => std::mem::take(&mut playing.contents),
        }
    }

    /// Returns whether the last due time came from the schedule. False if the frame was not read yet, or if frames are
    /// sent as fast as possible.
    pub(crate) fn has_scheduled_due_time(&self) -> bool {
        self.have_due_times() && !self.is_next_frame_unread()
    }

    /// Returns whether the next frame was not read yet when its due time was requested, so that it
    /// must be requested again.
    pub(crate) fn is_next_frame_unread(&self) -> bool {
        matches!(self, Self::Played(playing) if playing.is_waiting)
    }
}

/// A recording that is being sent.
#[derive(Debug)]
pub(crate) struct PlayedRecording {
    player: ReplayPlayer,
    timing: ReplayTiming,
    tagged: bool,
    track: Arc<ReplayTrack>,
    /// First second of the run for which no first frame is recorded yet.
    next_second: usize,
    /// Whether the next frame was not read yet when it was requested.
    is_waiting: bool,
    /// Content of the frames that left without a tag.
    contents: ContentCounts,
}

impl PlayedRecording {
    /// Returns when frame `n`, the next one, is due; if it is not read yet, when to look again.
    pub(crate) fn next_due_time(
        &mut self,
        timeline: &StreamTimeline,
        n: u64,
        start: MonoTime,
        now: MonoTime,
    ) -> MonoTime {
        let next = self.player.peek_frame();
        self.is_waiting = next == NextFrame::NotYet;
        match (next, self.timing) {
            (NextFrame::NotYet, _) => now + READER_RETRY_INTERVAL,
            // An end is due at once, so that the sender notices it.
            (NextFrame::Ended, _) | (_, ReplayTiming::Fastest) => now,
            (NextFrame::Due(_), ReplayTiming::Even) => start + timeline.due_time(n),
            (NextFrame::Due(due), ReplayTiming::Recorded(_)) => start + due,
        }
    }

    /// Writes the next frame into `slot` and returns its length; `None` if no frame is ready. `due` is the frame's due
    /// time since the start of the run.
    pub(crate) fn write_frame(
        &mut self,
        counts: &mut StreamTxCounts,
        stamp: TagStamp,
        due: Nanos,
        slot: &mut [u8],
    ) -> Option<usize> {
        // Only tagged frames are numbered, so untagged frames make no gap for receivers.
        let number = counts.numbered_frames();
        let second = due.as_u64() / 1_000_000_000;
        // Receivers must know in which second a lost frame was due, and a recording has no formula for that. So the
        // sender records the first number of each second as it passes it.
        if second >= self.next_second as u64 {
            self.next_second = self.track.store_first_number_of_seconds(self.next_second, second, number);
        }
        let written = self.player.write_frame(number, stamp, slot)?;
        if self.tagged && !written.has_tag {
            counts.untagged += 1;
            self.contents.add_frame(foreign::content_hash(&slot[..written.len]));
        }
        Some(written.len)
    }

    /// Returns the number of frames due before `elapsed` since the start; `sent` of them have been sent. To be called
    /// after sending has ended, because the call may discard the rest of the recording.
    pub(crate) fn frames_due_before(&mut self, timeline: &StreamTimeline, sent: u64, elapsed: Nanos) -> u64 {
        match self.timing {
            ReplayTiming::Even => timeline.frames_due_before(elapsed),
            ReplayTiming::Fastest => sent,
            ReplayTiming::Recorded(_) => sent + self.player.discard_frames_due_before(elapsed),
        }
    }
}
