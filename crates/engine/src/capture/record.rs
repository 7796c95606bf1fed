//! Recording what arrives at a port, for as long as the user wants.
//!
//! ```text
//!  FrameRx -> record(): count, encode into a block -> queue -> disk's thread: direct writes, rotation
//!             no free block: dropped, "queue"         <- blocks go back
//! ```
//! The capturing thread never waits for the disk. The loop is generic over the frame level: any back end that shows
//! frames can be recorded. It knows no filters; the frame level gives it what passes.
//!
//! Invariant: frames given = written + beyond the budget + dropped by the queue + lost to the disk.

mod compression;
mod disk;
mod feed;
mod kept;
mod recorder;
mod shelf;
mod spec;

pub use super::encode::CaptureFileFormat;
pub use disk::RecordTarget;
pub use recorder::{DirectionRecorder, DroppedFrames, RecordingOutcome};
pub use shelf::{FilePart, FileShelf, FullDiskPolicy};
pub use spec::{FileRotation, RecordSpec};

use super::tap::RecordingRest;
use crate::Error;
use crate::port::{FrameRx, WorkerClock};
use packetrig_stats::port::RxCounters;
use packetrig_stats::series::RateSeries;
use packetrig_units::{FrameSize, MonoTime, Nanos, clamp_to_usize};

/// Frames taken before looking at the clock again.
const BATCH: usize = 512;
/// How long to wait for frames before looking whether to stop.
const PAUSE: Nanos = Nanos::from_millis(20);

/// Seconds that are told apart when frames are only counted.
const DAY: usize = 86_400;
const TELL_EVERY: Nanos = Nanos::from_millis(500);

/// When to end; whatever comes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordLimits {
    /// After so many frames.
    pub frames: Option<u64>,
    pub time: Option<Nanos>,
}

/// What the caller wants of a recording now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordWish {
    GoOn,
    Rotate,
    End,
}

/// What was counted so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordCounts {
    pub elapsed: Nanos,
    /// Frames that passed the filter and reached us.
    pub frames: u64,
    /// Their bytes, FCS included.
    pub bytes: u64,
    /// Frames of those that reached us that are several packets on the wire.
    pub merged: u64,
    /// Frames that passed the filter and found the kernel's ring full.
    pub kernel_dropped: u64,
    /// Frames that found our queue full.
    pub queue_dropped: u64,
    /// Frames lost because writing failed.
    pub disk_lost: u64,
}

/// What a recording came to.
#[derive(Debug, Default)]
pub struct RecordSummary {
    /// All that was counted.
    pub counts: RecordCounts,
    /// What the back end counted.
    pub port: RxCounters,
    /// What became of the files, if any were wanted.
    pub recorded: Option<RecordingOutcome>,
    /// Frames by the second of their arrival, if nothing was to be written.
    pub series: RateSeries,
}

/// Takes frames from `rx` until a limit is reached, `stop` says so, or writing fails. `tell` hears of the counts twice a
/// second, and, when nothing is written, of the frames by the second of their arrival.
pub fn record(
    rx: &mut impl FrameRx,
    clock: &dyn WorkerClock,
    recorder: Option<DirectionRecorder>,
    (limits, stop): (RecordLimits, &dyn Fn() -> bool),
    tell: &mut dyn FnMut(&RecordCounts, &RateSeries),
) -> Result<RecordSummary, Error> {
    record_as_wished(
        rx,
        clock,
        recorder,
        (limits, &|| if stop() { RecordWish::End } else { RecordWish::GoOn }),
        tell,
    )
}

/// As [`record`], and begins another file when `wish` says so.
pub fn record_as_wished(
    rx: &mut impl FrameRx,
    clock: &dyn WorkerClock,
    recorder: Option<DirectionRecorder>,
    (limits, wish): (RecordLimits, &dyn Fn() -> RecordWish),
    tell: &mut dyn FnMut(&RecordCounts, &RateSeries),
) -> Result<RecordSummary, Error> {
    let started = clock.now();
    let room = if recorder.is_none() { DAY } else { 0 };
    let mut session = RecordSession {
        recorder,
        limits,
        started,
        end: limits.time.map(|time| started + time),
        rest: RecordingRest::default(),
        is_over: false,
        next_tell: started + TELL_EVERY,
        counts: RecordCounts::default(),
        series: RateSeries::with_room(room),
    };
    while !session.is_over {
        session.turn(rx, clock.now(), wish(), tell)?;
    }
    session.finish(rx, clock.now())
}

struct RecordSession {
    recorder: Option<DirectionRecorder>,
    limits: RecordLimits,
    started: MonoTime,
    /// Frames that arrive later do not count.
    end: Option<MonoTime>,
    rest: RecordingRest,
    is_over: bool,
    next_tell: MonoTime,
    counts: RecordCounts,
    series: RateSeries,
}

impl RecordSession {
    fn turn(
        &mut self,
        rx: &mut impl FrameRx,
        now: MonoTime,
        wish: RecordWish,
        tell: &mut dyn FnMut(&RecordCounts, &RateSeries),
    ) -> Result<(), Error> {
        let has_failed = self.recorder.as_ref().is_some_and(DirectionRecorder::has_failed);
        if let Some(recorder) = self.recorder.as_mut().filter(|_| wish == RecordWish::Rotate) {
            recorder.rotate(now);
        }
        // The end is a time and not an order to stop at once: frames that arrived before it may still be in the ring,
        // and belong to the recording.
        if (wish == RecordWish::End || has_failed) && self.end.is_none_or(|end| now < end) {
            self.end = Some(now);
        }
        let most = self.most();
        let taken = rx.receive(most, &mut |frame| {
            if self.end.is_some_and(|end| frame.at > end) {
                self.is_over = true;
                return;
            }
            self.counts.frames += 1;
            self.counts.merged += u64::from(frame.merged.is_some());
            let bytes = u64::from(FrameSize::from_kernel_len(frame.full_len).bytes());
            self.counts.bytes += bytes;
            match &mut self.recorder {
                Some(recorder) => recorder.frame(&frame),
                None => self.series.add(self.started, frame.at, 1, bytes),
            }
        })?;
        if now >= self.next_tell {
            self.count(rx.counters()?, now);
            if let Some(recorder) = &mut self.recorder {
                recorder.mind_files(now);
            }
            tell(&self.counts, &self.series);
            self.next_tell = now + TELL_EVERY;
        }
        self.is_over |= (taken == 0 && self.is_drained(rx, now)?) || self.most() == 0;
        if taken == 0 && !self.is_over {
            if let Some(recorder) = &mut self.recorder {
                recorder.idle(now);
            }
            rx.wait(PAUSE)?;
        }
        Ok(())
    }

    /// Whether nothing is missing that arrived before the end. The kernel hands over a block that is not full only after its timeout,
    /// so an empty ring is no proof of it.
    fn is_drained(&mut self, rx: &mut impl FrameRx, now: MonoTime) -> Result<bool, Error> {
        Ok(RecordingRest::is_in_ring(self.end, now) && self.rest.is_read(rx.progress()?, self.end, now))
    }

    /// Frames that may still be taken, in one go.
    fn most(&self) -> usize {
        let left = self.limits.frames.map_or(u64::MAX, |most| most.saturating_sub(self.counts.frames));
        clamp_to_usize(left).min(BATCH)
    }

    fn count(&mut self, port: RxCounters, now: MonoTime) {
        self.counts.elapsed = self.end.map_or(now, |end| now.min(end)).since(self.started);
        self.counts.kernel_dropped = port.ring_dropped;
        if let Some(recorder) = &mut self.recorder {
            recorder.lost_before(port.ring_dropped);
            let dropped = recorder.dropped();
            self.counts.queue_dropped = dropped.queue;
            self.counts.disk_lost = dropped.disk;
        }
    }

    fn finish(mut self, rx: &mut impl FrameRx, now: MonoTime) -> Result<RecordSummary, Error> {
        let port = rx.counters()?;
        self.count(port, now);
        let recorded = self.recorder.take().map(|recorder| recorder.finish(now)).transpose()?;
        if let Some(recorded) = &recorded {
            self.counts.queue_dropped = recorded.queue_dropped;
            self.counts.disk_lost = recorded.disk_lost;
        }
        Ok(RecordSummary { counts: self.counts, port, recorded, series: self.series })
    }
}

#[cfg(test)]
mod tests;
