//! One stream at its sender: its frames, its counts, and its end.

use super::{LATE_FRAME_THRESHOLD, LATE_SENDING_GRACE};
use crate::Error;
use crate::replay::StreamFrames;
use crate::segment::StreamSegment;
use crate::stream::StreamSpec;
use packetrig_plan::timeline::SendPattern;
use packetrig_stats::counts::{SinceStart, StreamTxCounts};
use packetrig_stats::latency::Latency;
use packetrig_stats::series::RateSeries;
use packetrig_units::{FrameSize, MonoTime, Nanos};
use packetrig_wire::tag::{TagKey, TagStamp};
use std::sync::Arc;

/// Significant digits of the send-time histograms. Errors of send times need no higher resolution.
const HISTOGRAM_DIGITS: u8 = 2;

pub(super) struct SenderStreamState {
    pub(super) spec: Arc<StreamSpec>,
    pub(super) frames: StreamFrames,
    /// Number after the last frame; `u64::MAX` if endless.
    pub(super) end: u64,
    /// Time since the start at which sending ends: a time limit plus [`LATE_SENDING_GRACE`].
    cutoff: Option<Nanos>,
    pub(super) counts: StreamTxCounts,
    /// Frames and bytes sent before the last start.
    before_start: (u64, u64),
    /// Frames of ended segments that were due and not sent.
    pub(super) unsent: u64,
    /// Whether the unsent frames of the current segment are not counted yet.
    pub(super) is_open: bool,
    pub(super) send_error: Latency,
    pub(super) stamp_bound: Latency,
    pub(super) series: RateSeries,
}

impl SenderStreamState {
    pub(super) fn new(spec: Arc<StreamSpec>, streams: usize) -> Result<Self, Error> {
        let timeline = spec.timeline;
        let limited = matches!(timeline.shape, SendPattern::Within(_));
        Ok(Self {
            frames: StreamFrames::from_spec(&spec)?,
            end: timeline.total_frames().unwrap_or(u64::MAX),
            // Only a time limit cuts a stream off. A stream with a number of frames is sent in full, however late.
            cutoff: limited.then(|| timeline.end_time()).flatten().map(|end| end + LATE_SENDING_GRACE),
            counts: StreamTxCounts::default(),
            before_start: (0, 0),
            unsent: 0,
            is_open: false,
            send_error: Latency::with_digits(HISTOGRAM_DIGITS),
            stamp_bound: Latency::with_digits(HISTOGRAM_DIGITS),
            series: RateSeries::with_limit(spec.series_seconds_to_reserve(streams)),
            spec,
        })
    }

    /// Continues a held stream with this segment.
    pub(super) fn begin_segment(&mut self, segment: StreamSegment) {
        // Counts since the last start begin at zero. Counts of the whole run continue (decision 0009).
        if segment.starts_at_first_frame() {
            self.before_start = (self.counts.frames, self.counts.bytes);
            self.counts.since_start = SinceStart::default();
        }
        self.end = segment.end_number();
        self.cutoff = segment.time_limit().map(|end| end + LATE_SENDING_GRACE);
        self.frames = StreamFrames::Made(segment);
        self.is_open = true;
        self.counts.is_sending = true;
    }

    /// Returns when the next frame is due, or when to look for it again; frames without a schedule are due now.
    pub(super) fn next_due_time(&mut self, start: MonoTime, now: MonoTime) -> MonoTime {
        match &mut self.frames {
            StreamFrames::Played(playing) => {
                playing.next_due_time(&self.spec.timeline, self.counts.frames, start, now)
            }
            StreamFrames::Made(take) => start + take.due_time(self.counts.frames),
        }
    }

    /// Writes the next frame, due at `due`, into `slot`, and returns its length; `None` if the file reader
    /// has no frame ready.
    pub(super) fn build_frame(
        &mut self,
        key: TagKey,
        start: MonoTime,
        due: MonoTime,
        now: MonoTime,
        slot: &mut [u8],
    ) -> Option<usize> {
        // The stamp is the time of building, not the due time: latency must not include the sender's own delay.
        let stamp = TagStamp { key, stream: self.spec.number, time: now.as_nanos() };
        let len = match &mut self.frames {
            StreamFrames::Made(take) => {
                take.template().render_frame(take.frame_index(self.counts.frames), stamp, slot)
            }
            StreamFrames::Played(playing) => {
                playing.write_frame(&mut self.counts, stamp, due.since(start), slot)?
            }
        };
        let bytes = u64::from(FrameSize::from_kernel_len(len).bytes());
        // Frames without due times cannot be late.
        if self.frames.have_due_times() {
            let behind = now.since(due);
            self.send_error.record_time(behind);
            self.counts.late += u64::from(behind > LATE_FRAME_THRESHOLD);
        }
        self.counts.frames += 1;
        self.counts.bytes += bytes;
        self.counts.first.get_or_insert(now);
        self.counts.since_start.first.get_or_insert(now);
        self.counts.last = Some(now);
        self.series.add_frames(start, now, 1, bytes);
        Some(len)
    }

    /// Returns whether nothing more is to be sent at `now`.
    pub(super) fn is_over(&mut self, start: MonoTime, now: MonoTime) -> bool {
        self.counts.frames >= self.end
            || self.cutoff.is_some_and(|cutoff| now >= start + cutoff)
            || self.frames.has_recording_ended()
    }

    /// Counts the unsent frames: the frames due by the stop, or all if the stream was not stopped. No
    /// frame is sent afterwards.
    pub(super) fn count_unsent_frames(&mut self, start: Option<MonoTime>, stopped: Option<MonoTime>) {
        self.counts.is_sending = false;
        // Unsent frames of a segment are counted once: after a hold, the end of the run must not count them again.
        if !std::mem::take(&mut self.is_open) {
            return;
        }
        let elapsed = start.zip(stopped).map(|(start, stopped)| stopped.since(start));
        let sent = self.counts.frames;
        let due = match (&mut self.frames, elapsed) {
            (StreamFrames::Played(playing), Some(elapsed)) => {
                playing.frames_due_before(&self.spec.timeline, sent, elapsed)
            }
            (StreamFrames::Made(take), Some(elapsed)) => take.first_number_due_from(elapsed).min(self.end),
            // An endless stream that was not stopped has no unsent frames.
            (_, None) if self.end == u64::MAX => sent,
            (_, None) => self.end,
        };
        self.unsent += due.saturating_sub(sent);
    }

    pub(super) fn live_counts(&self) -> StreamTxCounts {
        let frames = self.counts.frames - self.before_start.0;
        let bytes = self.counts.bytes - self.before_start.1;
        // The last frame may belong to an earlier start.
        let last = self.counts.last.filter(|_| frames > 0);
        let since_start = SinceStart { frames, bytes, last, ..self.counts.since_start };
        StreamTxCounts { since_start, ..self.counts }
    }
}
