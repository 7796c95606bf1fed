//! The generic transmit side of the stream level: streams on their schedules, over any frame level.
//!
//! ```text
//!  streams: next due instants in a heap -> those due now -> render into ring slots -> one flush per batch
//! ```
//! Frame `n` is due at `start + timeline.due(n)`, computed from the origin each time. A sender that is behind
//! counts what is late and catches up by the rule of `catch_up`; it never moves the schedule. A stream with a time limit ends at
//! that time (plus [`GRACE`]), whatever is left unsent.
//!
//! Invariant: frames of a stream leave in order, without gaps in their numbers.

mod catch_up;
mod peaks;

pub(crate) use catch_up::CatchUp;
pub(crate) use peaks::ErrorPeaks;

use crate::Error;
use crate::gate::SendGate;
use crate::port::{FrameTx, WorkerClock};
use crate::replay::StreamFrames;
use crate::stream::{NextStep, SendingRecord, SteeredSender, StreamControl, StreamSpec, StreamTx, TxJob};
use crate::take::Take;
use packetrig_plan::timeline::SendPattern;
use packetrig_stats::counts::{SinceStart, StreamTxCounts};
use packetrig_stats::latency::Latency;
use packetrig_stats::port::TxCounters;
use packetrig_stats::result::SendResult;
use packetrig_stats::series::RateSeries;
use packetrig_units::{FrameSize, MonoTime, Nanos};
use packetrig_wire::tag::{TagKey, TagStamp};
use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, HashSet};
use std::sync::Arc;

/// A frame sent more than this after it was due counts as late.
pub const LATE_AFTER: Nanos = Nanos::from_millis(1);
/// Frames due before the end of a timed stream may leave this much after it: a worker woken late at the very end is not a
/// sender that missed its rate. They count as late; what is left then is unsent.
pub const GRACE: Nanos = Nanos::from_millis(20);
/// Frames per kernel call at most: enough to make the call cheap, few enough to keep stamps honest.
const BATCH: usize = 64;
/// Significant digits of the send-time histograms: the error of an error.
const DIGITS: u8 = 2;

struct StreamLane {
    spec: Arc<StreamSpec>,
    frames: StreamFrames,
    /// The number after the last frame's; `u64::MAX` if endless.
    end: u64,
    /// Nothing is sent at or after this time since the start: a time limit plus [`GRACE`].
    cutoff: Option<Nanos>,
    counts: StreamTxCounts,
    /// Frames and bytes before the last start.
    before_start: (u64, u64),
    /// Frames that were due and not sent, of what is over.
    unsent: u64,
    /// Whether what was due of the frames at hand is still to be settled.
    is_open: bool,
    send_error: Latency,
    stamp_bound: Latency,
    series: RateSeries,
}

impl StreamLane {
    fn new(spec: Arc<StreamSpec>, streams: usize) -> Result<Self, Error> {
        let timeline = spec.timeline;
        let limited = matches!(timeline.shape, SendPattern::Within(_));
        Ok(Self {
            frames: StreamFrames::open(&spec)?,
            end: timeline.total().unwrap_or(u64::MAX),
            cutoff: limited.then(|| timeline.end()).flatten().map(|end| end + GRACE),
            counts: StreamTxCounts::default(),
            before_start: (0, 0),
            unsent: 0,
            is_open: false,
            send_error: Latency::with_digits(DIGITS),
            stamp_bound: Latency::with_digits(DIGITS),
            series: RateSeries::with_room(spec.series_room(streams)),
            spec,
        })
    }

    /// Goes on with this take, after being held.
    fn begin(&mut self, take: Take) {
        if take.is_fresh() {
            self.before_start = (self.counts.frames, self.counts.bytes);
            self.counts.since_start = SinceStart::default();
        }
        self.end = take.end();
        self.cutoff = take.time_limit().map(|end| end + GRACE);
        self.frames = StreamFrames::Made(take);
        self.is_open = true;
        self.counts.is_sending = true;
    }

    /// When the next frame is due, or when to look again for it; what has no schedule is due now.
    fn due(&mut self, start: MonoTime, now: MonoTime) -> MonoTime {
        match &mut self.frames {
            StreamFrames::Played(playing) => playing.due(&self.spec.timeline, self.counts.frames, start, now),
            StreamFrames::Made(take) => start + take.due(self.counts.frames),
        }
    }

    /// Writes the next frame, due at `due`, into `slot`; `None` if there is none.
    fn build(
        &mut self,
        key: TagKey,
        start: MonoTime,
        due: MonoTime,
        now: MonoTime,
        slot: &mut [u8],
    ) -> Option<usize> {
        let stamp = TagStamp { key, stream: self.spec.number, time: now.as_nanos() };
        let len = match &mut self.frames {
            StreamFrames::Made(take) => take.template().render(take.nth(self.counts.frames), stamp, slot),
            StreamFrames::Played(playing) => playing.take(&mut self.counts, stamp, due.since(start), slot)?,
        };
        let bytes = u64::from(FrameSize::from_kernel_len(len).bytes());
        if self.frames.are_paced() {
            let behind = now.since(due);
            self.send_error.record(behind);
            self.counts.late += u64::from(behind > LATE_AFTER);
        }
        self.counts.frames += 1;
        self.counts.bytes += bytes;
        self.counts.first.get_or_insert(now);
        self.counts.since_start.first.get_or_insert(now);
        self.counts.last = Some(now);
        self.series.add(start, now, 1, bytes);
        Some(len)
    }

    /// Whether nothing more is to be sent at `now`.
    fn is_over(&mut self, start: MonoTime, now: MonoTime) -> bool {
        self.counts.frames >= self.end
            || self.cutoff.is_some_and(|cutoff| now >= start + cutoff)
            || self.frames.have_ended()
    }

    /// Counts what was due by the time it was stopped, or at all if it was not, and was not sent. Nothing is sent after it.
    fn settle(&mut self, start: Option<MonoTime>, stopped: Option<MonoTime>) {
        self.counts.is_sending = false;
        if !std::mem::take(&mut self.is_open) {
            return;
        }
        let elapsed = start.zip(stopped).map(|(start, stopped)| stopped.since(start));
        let sent = self.counts.frames;
        let due = match (&mut self.frames, elapsed) {
            (StreamFrames::Played(playing), Some(elapsed)) => {
                playing.due_before(&self.spec.timeline, sent, elapsed)
            }
            (StreamFrames::Made(take), Some(elapsed)) => take.due_before(elapsed).min(self.end),
            (_, None) if self.end == u64::MAX => sent,
            (_, None) => self.end,
        };
        self.unsent += due.saturating_sub(sent);
    }

    fn live_counts(&self) -> StreamTxCounts {
        let (frames, bytes) =
            (self.counts.frames - self.before_start.0, self.counts.bytes - self.before_start.1);
        let last = self.counts.last.filter(|_| frames > 0);
        let since_start = SinceStart { frames, bytes, last, ..self.counts.since_start };
        StreamTxCounts { since_start, ..self.counts }
    }
}

pub struct TestSender<T, C> {
    port: T,
    clock: C,
    key: TagKey,
    lanes: Vec<StreamLane>,
    due: BinaryHeap<Reverse<(MonoTime, usize)>>,
    /// Streams wait for their own takes.
    steered: bool,
    start: Option<MonoTime>,
    stopped: Option<MonoTime>,
    gate: SendGate,
    /// Frames built and not yet known to be taken: (lane, stamp).
    unconfirmed: Vec<(usize, MonoTime)>,
    catch_up: CatchUp,
    peaks: ErrorPeaks,
}

impl<T, C> std::fmt::Debug for TestSender<T, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TestSender")
            .field("streams", &self.lanes.len())
            .field("start", &self.start)
            .finish_non_exhaustive()
    }
}

impl<T: FrameTx, C: WorkerClock> TestSender<T, C> {
    /// A sender on `port`.
    pub fn new(port: T, clock: C) -> Self {
        Self {
            port,
            clock,
            key: TagKey(0),
            lanes: Vec::new(),
            due: BinaryHeap::new(),
            steered: false,
            start: None,
            stopped: None,
            gate: SendGate::open(),
            unconfirmed: Vec::with_capacity(BATCH),
            catch_up: CatchUp::default(),
            peaks: ErrorPeaks::default(),
        }
    }

    /// Stops for good if the lease has ended, which is looked at when something is due.
    fn stop_without_lease(&mut self, start: MonoTime, now: MonoTime) {
        // A sender that waits has nothing to stop, and its lease may be renewed before the next frame is due.
        if self.due.peek().is_none_or(|Reverse((due, _))| *due > now) {
            return;
        }
        let Some(since) = self.gate.shut_since(now, start) else { return };
        self.stopped.get_or_insert(since);
        for Reverse((_, lane)) in self.due.drain() {
            self.lanes[lane].counts.lease_ended = true;
        }
    }

    /// Builds what is due, up to a batch.
    fn build_batch(&mut self, start: MonoTime) {
        let Self { port, clock, key, lanes, due, unconfirmed, catch_up, peaks, .. } = self;
        let room = BATCH - unconfirmed.len();
        let before = unconfirmed.len();
        port.fill(room, &mut |slot| {
            loop {
                let mut top = due.peek_mut()?;
                let Reverse((instant, index)) = *top;
                // Read for every frame, although it costs about 30 ns: it becomes the send time in the tag.
                let now = clock.now();
                let lane = &mut lanes[index];
                if lane.is_over(start, now) {
                    lane.counts.is_sending = false;
                    PeekMut::pop(top);
                    continue;
                }
                // The top of the heap is the earliest: if it has to wait, nothing else is due either.
                let allowed = if lane.frames.are_scheduled() { catch_up.schedule_time(now) } else { now };
                if instant > allowed {
                    return None;
                }
                // The due time in the heap was only "look again": the reader of the file was behind. Now it may know
                // the real one.
                if lane.frames.were_missing() {
                    *top = Reverse((lane.due(start, now), index));
                    continue;
                }
                let len = lane.build(*key, start, instant, now, slot)?;
                unconfirmed.push((index, now));
                *top = Reverse((lane.due(start, now), index));
                return Some(len);
            }
        });
        // A batch is built within microseconds, so all its frames count at the time of the last one.
        if let Some((_, stamped)) = unconfirmed.last() {
            peaks.add(*stamped, (unconfirmed.len() - before) as u64);
        }
    }

    /// Gives what is built to the kernel, and notes how long that left the stamps in doubt.
    fn hand_over(&mut self) -> Result<(), Error> {
        if self.port.pending() == 0 && self.unconfirmed.is_empty() {
            return Ok(());
        }
        // Stamps are honest only up to this call: a frame is stamped when it is built and leaves when the kernel
        // takes it. The time between is recorded as the bound of the stamp.
        self.port.flush()?;
        if self.port.pending() == 0 {
            let taken = self.clock.now();
            for (lane, stamped) in self.unconfirmed.drain(..) {
                self.lanes[lane].stamp_bound.record(taken.since(stamped));
            }
        }
        Ok(())
    }
}

impl<T: FrameTx, C: WorkerClock> StreamTx for TestSender<T, C> {
    fn arm(&mut self, job: TxJob) -> Result<(), Error> {
        let streams = job.streams.len();
        (self.key, self.steered, self.gate) = (job.key, job.steered, job.gate);
        self.lanes =
            job.streams.into_iter().map(|spec| StreamLane::new(spec, streams)).collect::<Result<_, _>>()?;
        self.due = BinaryHeap::with_capacity(self.lanes.len());
        Ok(())
    }

    fn control(&mut self, control: StreamControl) {
        match control {
            StreamControl::StartAt(start) if self.start.is_none() && self.stopped.is_none() => {
                self.start = Some(start);
                let lanes = self.lanes.iter_mut().enumerate().filter(|_| !self.steered);
                self.due.extend(lanes.map(|(i, lane)| {
                    (lane.is_open, lane.counts.is_sending) = (true, true);
                    Reverse((lane.due(start, start), i))
                }));
            }
            StreamControl::StartAt(_) => {}
            StreamControl::Stop => {
                // A sender that has sent everything was not cut short.
                if self.stopped.is_none() && !(self.start.is_some() && self.due.is_empty()) {
                    self.stopped = Some(self.clock.now());
                }
                self.due.clear();
            }
        }
    }

    fn step(&mut self, now: MonoTime) -> Result<NextStep, Error> {
        let Some(start) = self.start else {
            let idle = NextStep::IdleUntil(now + Nanos::from_millis(5));
            return Ok(if self.stopped.is_some() { NextStep::Done } else { idle });
        };
        self.stop_without_lease(start, now);
        if let Some(Reverse((due, lane))) = self.due.peek()
            && self.lanes[*lane].frames.are_scheduled()
        {
            self.catch_up.look(*due, now);
        }
        self.build_batch(start);
        self.hand_over()?;
        if !self.unconfirmed.is_empty() || self.port.pending() > 0 {
            return Ok(NextStep::Busy);
        }
        Ok(match self.due.peek() {
            None => NextStep::Done,
            Some(Reverse((due, lane))) => {
                let is_scheduled = self.lanes[*lane].frames.are_scheduled();
                let release = if is_scheduled { self.catch_up.release_time(*due, now) } else { *due };
                if release <= now { NextStep::Busy } else { NextStep::IdleUntil(release) }
            }
        })
    }

    fn counts(&self) -> Vec<StreamTxCounts> {
        self.lanes.iter().map(StreamLane::live_counts).collect()
    }

    fn port_counters(&mut self) -> Result<TxCounters, Error> {
        self.port.counters()
    }

    fn record(&self) -> SendingRecord {
        SendingRecord { stalls: self.catch_up.stalls(), peaks: self.peaks.found() }
    }

    fn finish(&mut self) -> Vec<SendResult> {
        let (start, stopped) = (self.start, self.stopped);
        let results = self.lanes.drain(..).map(|mut lane| {
            lane.settle(start, stopped);
            SendResult {
                stream: lane.spec.number.into(),
                counts: lane.live_counts(),
                planned: lane.counts.frames + lane.unsent,
                send_error: lane.send_error,
                stamp_bound: lane.stamp_bound,
                series: lane.series,
                untagged_contents: lane.frames.take_contents(),
            }
        });
        results.collect()
    }

    fn steering(&mut self) -> Option<&mut dyn SteeredSender> {
        Some(self)
    }
}

impl<T: FrameTx, C: WorkerClock> SteeredSender for TestSender<T, C> {
    fn hold(&mut self, streams: &[u16]) -> Vec<(u16, u64)> {
        let (start, now) = (self.start, self.clock.now());
        let streams: HashSet<u16> = streams.iter().copied().collect();
        let is_meant = |lane: &StreamLane| streams.contains(&lane.spec.number);
        let lanes = &self.lanes;
        self.due.retain(|Reverse((_, lane))| !is_meant(&lanes[*lane]));
        let held = self.lanes.iter_mut().filter(|lane| is_meant(lane)).map(|lane| {
            // What ended by itself was not cut short.
            let stopped = lane.counts.is_sending.then_some(now);
            lane.settle(start, stopped);
            (lane.spec.number, lane.counts.frames)
        });
        held.collect()
    }

    fn begin(&mut self, takes: &[(u16, Take)]) {
        // After the stop nothing begins.
        let (Some(start), None) = (self.start, self.stopped) else { return };
        let now = self.clock.now();
        for (number, take) in takes {
            // Lanes are in order of their numbers: the job lists streams by index, and later ones are added behind.
            let found = self.lanes.binary_search_by_key(number, |lane| lane.spec.number);
            let Ok(index) = found else { continue };
            let lane = &mut self.lanes[index];
            if !lane.counts.is_sending && take.first() == lane.counts.frames {
                lane.begin(take.clone());
                self.due.push(Reverse((lane.due(start, now), index)));
            }
        }
    }

    fn add(&mut self, streams: Vec<Arc<StreamSpec>>) -> Result<(), Error> {
        let all = self.lanes.len() + streams.len();
        for spec in streams {
            self.lanes.push(StreamLane::new(spec, all)?);
        }
        self.due.reserve(self.lanes.len() - self.due.len());
        Ok(())
    }
}
