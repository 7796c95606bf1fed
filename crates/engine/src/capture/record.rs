//! Records the frames that arrive at a port, for as long as the user wants.
//!
//! ```text
//!  FrameRx -> record_frames(): count, encode into a block -> queue -> disk's thread: direct writes, rotation
//!             no free block: the frame is dropped         <- written blocks go back
//! ```
//! The capturing thread never waits for the disk. The loop records from any [`FrameRx`]. It applies no filter: the
//! caller has set a filter on the [`FrameRx`], so that only matching frames arrive.
//!
//! Invariant: frames passed to the recorder = written + beyond the size limit + dropped because the queue was full +
//! lost because writing failed.

mod compression;
mod disk;
mod feed;
mod file_keeper;
mod kept;
mod recorder;
mod spec;

pub use super::encode::CaptureFileFormat;
pub use disk::RecordTarget;
pub use file_keeper::{FullDiskPolicy, RecordedFileFacts, RecordedFileKeeper};
pub use recorder::{CaptureRecorder, DroppedFrames, RecordingOutcome};
pub use spec::{FileRotation, RecordSpec};

use super::tap::RecordingDrain;
use crate::Error;
use crate::port::{FrameRx, WorkerClock};
use packetrig_stats::port::RxCounters;
use packetrig_stats::series::RateSeries;
use packetrig_units::{FrameSize, MonoTime, Nanos, clamp_to_usize};

/// Maximum number of frames received before the clock is read again.
const FRAMES_PER_CLOCK_READING: usize = 512;
/// Time to wait for frames before checking whether to stop.
const FRAME_WAIT_TIME: Nanos = Nanos::from_millis(20);

/// Seconds in the rate series when frames are only counted.
const RATE_SERIES_SECONDS: usize = 86_400;
const PROGRESS_INTERVAL: Nanos = Nanos::from_millis(500);

/// Limits of a recording; the first one that is reached ends it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordLimits {
    /// Ends after this number of frames.
    pub frames: Option<u64>,
    pub time: Option<Nanos>,
}

/// Request of the caller to a running recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordingRequest {
    GoOn,
    Rotate,
    End,
}

/// Counters of a running recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordCounts {
    pub elapsed: Nanos,
    /// Frames that passed the filter and reached this process.
    pub frames: u64,
    /// Bytes of these frames, FCS included.
    pub bytes: u64,
    /// Received frames that were merged from several packets on the wire.
    pub merged: u64,
    /// Frames that passed the filter and were dropped because the kernel's ring was full.
    pub kernel_dropped: u64,
    /// Frames dropped because the queue to the disk was full.
    pub queue_dropped: u64,
    /// Frames lost because writing failed.
    pub disk_lost: u64,
}

/// Result of a recording.
#[derive(Debug, Default)]
pub struct RecordSummary {
    /// Final counters of the recording.
    pub counts: RecordCounts,
    /// Counters of the back end.
    pub port: RxCounters,
    /// Files and their counters; `None` if frames were only counted.
    pub recorded: Option<RecordingOutcome>,
    /// Frames by the second of their arrival; empty unless frames were only counted.
    pub series: RateSeries,
}

/// Receives frames from `rx` until a limit is reached, `stop` returns true, or writing fails. Calls `tell` twice a
/// second with the counters and, without a recorder, with the frames by the second of their arrival.
pub fn record_frames(
    rx: &mut impl FrameRx,
    clock: &dyn WorkerClock,
    recorder: Option<CaptureRecorder>,
    (limits, stop): (RecordLimits, &dyn Fn() -> bool),
    tell: &mut dyn FnMut(&RecordCounts, &RateSeries),
) -> Result<RecordSummary, Error> {
    record_with_rotation(
        rx,
        clock,
        recorder,
        (limits, &|| if stop() { RecordingRequest::End } else { RecordingRequest::GoOn }),
        tell,
    )
}

/// Works like [`record_frames`], and also starts another file when `request` returns `Rotate`.
pub fn record_with_rotation(
    rx: &mut impl FrameRx,
    clock: &dyn WorkerClock,
    recorder: Option<CaptureRecorder>,
    (limits, request): (RecordLimits, &dyn Fn() -> RecordingRequest),
    tell: &mut dyn FnMut(&RecordCounts, &RateSeries),
) -> Result<RecordSummary, Error> {
    let started = clock.now();
    // The rate by second is reported only for captures without a file, so a recording reserves no memory for it.
    let room = if recorder.is_none() { RATE_SERIES_SECONDS } else { 0 };
    let mut session = RecordSession {
        recorder,
        limits,
        started,
        end: limits.time.map(|time| started + time),
        rest: RecordingDrain::default(),
        is_over: false,
        next_tell: started + PROGRESS_INTERVAL,
        counts: RecordCounts::default(),
        series: RateSeries::with_limit(room),
    };
    while !session.is_over {
        session.poll_once(rx, clock.now(), request(), tell)?;
    }
    session.finish_session(rx, clock.now())
}

struct RecordSession {
    recorder: Option<CaptureRecorder>,
    limits: RecordLimits,
    started: MonoTime,
    /// End of the recording. Frames that arrive later are not recorded.
    end: Option<MonoTime>,
    rest: RecordingDrain,
    is_over: bool,
    next_tell: MonoTime,
    counts: RecordCounts,
    series: RateSeries,
}

impl RecordSession {
    fn poll_once(
        &mut self,
        rx: &mut impl FrameRx,
        now: MonoTime,
        request: RecordingRequest,
        tell: &mut dyn FnMut(&RecordCounts, &RateSeries),
    ) -> Result<(), Error> {
        // A recorder that cannot write any more ends the recording like a request of the caller.
        let has_failed = self.recorder.as_ref().is_some_and(CaptureRecorder::has_failed);
        if let Some(recorder) = self.recorder.as_mut().filter(|_| request == RecordingRequest::Rotate) {
            recorder.rotate_file(now);
        }
        // The end is a time and not an order to stop at once: frames that arrived before it may still be in the ring,
        // and belong to the recording.
        if (request == RecordingRequest::End || has_failed) && self.end.is_none_or(|end| now < end) {
            self.end = Some(now);
        }
        let most = self.batch_limit();
        let taken = rx.receive_frames(most, &mut |frame| {
            if self.end.is_some_and(|end| frame.at > end) {
                self.is_over = true;
                return;
            }
            self.counts.frames += 1;
            self.counts.merged += u64::from(frame.merged.is_some());
            let bytes = u64::from(FrameSize::from_kernel_len(frame.full_len).bytes());
            self.counts.bytes += bytes;
            match &mut self.recorder {
                Some(recorder) => recorder.record_frame(&frame),
                None => self.series.add_frames(self.started, frame.at, 1, bytes),
            }
        })?;
        if now >= self.next_tell {
            self.update_counts(rx.read_rx_counters()?, now);
            if let Some(recorder) = &mut self.recorder {
                recorder.rotate_due_files(now);
            }
            tell(&self.counts, &self.series);
            self.next_tell = now + PROGRESS_INTERVAL;
        }
        // Two conditions end the capture: all frames before the end time were seen, or the number
        // of frames is reached.
        self.is_over |= (taken == 0 && self.is_drained(rx, now)?) || self.batch_limit() == 0;
        if taken == 0 && !self.is_over {
            if let Some(recorder) = &mut self.recorder {
                recorder.flush_when_idle(now);
            }
            rx.wait_for_frames(FRAME_WAIT_TIME)?;
        }
        Ok(())
    }

    /// Returns whether every frame that arrived before the end has been read; some seconds after the end, returns true
    /// in any case. An empty ring proves nothing: the kernel hands over a partly filled block only after a timeout.
    fn is_drained(&mut self, rx: &mut impl FrameRx, now: MonoTime) -> Result<bool, Error> {
        Ok(RecordingDrain::have_frames_reached_ring(self.end, now)
            && self.rest.is_read_or_timed_out(rx.ring_progress()?, self.end, now))
    }

    /// Returns how many frames may be received in one call.
    fn batch_limit(&self) -> usize {
        let left = self.limits.frames.map_or(u64::MAX, |most| most.saturating_sub(self.counts.frames));
        clamp_to_usize(left).min(FRAMES_PER_CLOCK_READING)
    }

    fn update_counts(&mut self, port: RxCounters, now: MonoTime) {
        // Frames after the end do not count, so neither does the time after it.
        self.counts.elapsed = self.end.map_or(now, |end| now.min(end)).since(self.started);
        self.counts.kernel_dropped = port.ring_dropped;
        if let Some(recorder) = &mut self.recorder {
            recorder.set_kernel_dropped(port.ring_dropped);
            let dropped = recorder.dropped_frames();
            self.counts.queue_dropped = dropped.queue;
            self.counts.disk_lost = dropped.disk;
        }
    }

    fn finish_session(mut self, rx: &mut impl FrameRx, now: MonoTime) -> Result<RecordSummary, Error> {
        // This comes before the last file ends: the statistics of the file include the frames that the kernel lost.
        let port = rx.read_rx_counters()?;
        self.update_counts(port, now);
        let recorded = self.recorder.take().map(|recorder| recorder.finish_recording(now)).transpose()?;
        // The disk's thread may lose frames until it has ended, so the counters are final only now.
        if let Some(recorded) = &recorded {
            self.counts.queue_dropped = recorded.queue_dropped;
            self.counts.disk_lost = recorded.disk_lost;
        }
        Ok(RecordSummary { counts: self.counts, port, recorded, series: self.series })
    }
}

#[cfg(test)]
mod tests;
