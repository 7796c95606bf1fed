//! The generic sender, for every back end that accepts single frames: sends streams on their schedules.
//!
//! ```text
//!  streams: next due instants in a heap -> those due now -> render into ring slots -> one flush per batch
//! ```
//! Frame `n` is due at `start + timeline.due_time(n)`, computed from the origin each time. A sender that is behind
//! counts late frames and catches up by the rule of `catch_up`; it never moves the schedule. A stream with a time limit
//! ends at that time (plus [`LATE_SENDING_GRACE`]), even if frames are unsent.
//!
//! Invariant: frames of a stream leave in order, without gaps in their numbers.

mod ahead;
mod catch_up;
mod lane;
mod peaks;
mod stalls;

use ahead::AheadFrameDetector;
pub(crate) use ahead::{AheadBurstLog, SPACING_TOLERANCE};
use catch_up::SenderLag;
pub(crate) use catch_up::{CATCH_UP_DIVISOR, HOLD_UP_WINDOW, MAX_HOLD_UP, ON_TIME_TOLERANCE};
pub(crate) use peaks::SendingPeakMeter;
pub(crate) use stalls::StallLog;

use crate::Error;
use crate::gate::SendGate;
use crate::port::{FrameTx, WorkerClock};
use crate::segment::StreamSegment;
use crate::stream::{NextStep, SendingRecord, SteeredSender, StreamControl, StreamSpec, StreamTx, TxJob};
use lane::SenderStreamState;
use packetrig_stats::counts::StreamTxCounts;
use packetrig_stats::port::TxCounters;
use packetrig_stats::result::SendResult;
use packetrig_units::{MonoTime, Nanos};
use packetrig_wire::tag::TagKey;
use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, HashSet};
use std::sync::Arc;

/// A frame sent more than this after it was due counts as late.
pub const LATE_FRAME_THRESHOLD: Nanos = Nanos::from_millis(1);
/// Frames that were due before the end of a timed stream, or before a stop, may still leave this long after it. Frames
/// that are left then stay unsent.
pub const LATE_SENDING_GRACE: Nanos = Nanos::from_millis(200);
/// Maximum number of frames per kernel call. More would make calls cheaper, but send times in tags less exact.
const MAX_FRAMES_PER_CALL: usize = 64;

pub struct TestSender<T, C> {
    port: T,
    clock: C,
    key: TagKey,
    lanes: Vec<SenderStreamState>,
    due: BinaryHeap<Reverse<(MonoTime, usize)>>,
    /// Whether the run is steered: users can change its streams, and each stream waits for its first segment.
    steered: bool,
    start: Option<MonoTime>,
    stopped: Option<MonoTime>,
    gate: SendGate,
    /// Built frames that the kernel has not confirmed yet: (lane, time of building).
    unconfirmed: Vec<(usize, MonoTime)>,
    catch_up: SenderLag,
    ahead: AheadFrameDetector,
    peaks: SendingPeakMeter,
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
    /// Creates a sender on `port`.
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
            gate: SendGate::without_lease(),
            unconfirmed: Vec::with_capacity(MAX_FRAMES_PER_CALL),
            catch_up: SenderLag::default(),
            ahead: AheadFrameDetector::default(),
            peaks: SendingPeakMeter::default(),
        }
    }

    /// Stops permanently if the lease has expired; checked when a frame is due.
    fn stop_if_lease_expired(&mut self, start: MonoTime, now: MonoTime) {
        // A waiting sender sends nothing, and its lease may be renewed before the next frame is due.
        if self.due.peek().is_none_or(|Reverse((due, _))| *due > now) {
            return;
        }
        // The stop gets the time at which the lease expired, so that frames due later do not count as unsent.
        let Some(since) = self.gate.shut_since(now, start) else { return };
        self.stopped.get_or_insert(since);
        for Reverse((_, lane)) in self.due.drain() {
            self.lanes[lane].counts.lease_ended = true;
        }
    }

    /// Drops frames that are due after a stop. Frames that were due before it may still leave for
    /// [`LATE_SENDING_GRACE`], as at the end of a timed stream: a sender that briefly got no processor can catch up.
    fn drop_frames_due_after_stop(&mut self, now: MonoTime) {
        let Some(stopped) = self.stopped else { return };
        let is_over = now > stopped + LATE_SENDING_GRACE;
        self.due.retain(|Reverse((due, _))| !is_over && *due < stopped);
    }

    /// Builds the frames that are due, up to a batch.
    fn build_batch(&mut self, start: MonoTime) {
        let Self { port, clock, key, lanes, due, unconfirmed, catch_up, ahead, peaks, .. } = self;
        let stopped = self.stopped;
        // Frames that the kernel has not taken yet stay in this list, so they limit the next batch.
        let room = MAX_FRAMES_PER_CALL - unconfirmed.len();
        let before = unconfirmed.len();
        port.fill_slots(room, &mut |slot| {
            loop {
                let mut top = due.peek_mut()?;
                let Reverse((instant, index)) = *top;
                // The clock is read for every frame, although this costs about 30 ns: the value becomes the
                // send time in the tag.
                let now = clock.now();
                let lane = &mut lanes[index];
                // This comes first even if frames are due: a time limit ends the stream, and the
                // remaining frames are unsent.
                if lane.is_over(start, now) {
                    lane.counts.is_sending = false;
                    PeekMut::pop(top);
                    continue;
                }
                let is_scheduled = lane.frames.has_scheduled_due_time();
                if is_scheduled {
                    catch_up.update_lag(instant, now);
                }
                // The top of the heap is the earliest lane: if it has to wait, all lanes have to wait.
                let allowed = if is_scheduled { catch_up.latest_allowed_due_time(now) } else { now };
                if instant > allowed || stopped.is_some_and(|stopped| instant >= stopped) {
                    return None;
                }
                // The file reader was behind, so the heap had only the time of the next check. The frame's
                // due time may be known now.
                if lane.frames.is_next_frame_unread() {
                    *top = Reverse((lane.next_due_time(start, now), index));
                    continue;
                }
                // If the file reader has no frame ready, the batch ends. The lane keeps its place in the heap.
                let len = lane.build_frame(*key, start, instant, now, slot)?;
                if is_scheduled {
                    ahead.add_frame(instant, now);
                }
                unconfirmed.push((index, now));
                *top = Reverse((lane.next_due_time(start, now), index));
                return Some(len);
            }
        });
        // A batch is built within microseconds, so all its frames count at the time of the last one.
        if let Some((_, stamped)) = unconfirmed.last() {
            peaks.add_frames(*stamped, (unconfirmed.len() - before) as u64);
        }
    }

    /// Hands the built frames to the kernel, and records the uncertainty of their stamps.
    fn flush_built_frames(&mut self) -> Result<(), Error> {
        if self.port.pending_frames() == 0 && self.unconfirmed.is_empty() {
            return Ok(());
        }
        // A frame is stamped when it is built and leaves when the kernel takes it. The time between is recorded as the
        // uncertainty of the stamp.
        self.port.flush_frames()?;
        // Only an empty ring shows that all of these frames have been taken.
        if self.port.pending_frames() == 0 {
            let taken = self.clock.now();
            for (lane, stamped) in self.unconfirmed.drain(..) {
                self.lanes[lane].stamp_bound.record_time(taken.since(stamped));
            }
        }
        Ok(())
    }
}

impl<T: FrameTx, C: WorkerClock> StreamTx for TestSender<T, C> {
    fn arm_sender(&mut self, job: TxJob) -> Result<(), Error> {
        let streams = job.streams.len();
        self.key = job.key;
        self.steered = job.steered;
        self.gate = job.gate;
        self.lanes = job
            .streams
            .into_iter()
            .map(|spec| SenderStreamState::new(spec, streams))
            .collect::<Result<_, _>>()?;
        self.due = BinaryHeap::with_capacity(self.lanes.len());
        Ok(())
    }

    fn apply_control(&mut self, control: StreamControl) {
        match control {
            // A second start would move the schedule, and a stopped sender stays stopped.
            StreamControl::StartAt(start) if self.start.is_none() && self.stopped.is_none() => {
                self.start = Some(start);
                let lanes = self.lanes.iter_mut().enumerate().filter(|_| !self.steered);
                self.due.extend(lanes.map(|(i, lane)| {
                    lane.is_open = true;
                    lane.counts.is_sending = true;
                    Reverse((lane.next_due_time(start, start), i))
                }));
            }
            StreamControl::StartAt(_) => {}
            StreamControl::Stop => {
                // A sender that has sent everything was not interrupted.
                if self.stopped.is_none() && !(self.start.is_some() && self.due.is_empty()) {
                    self.stopped = Some(self.clock.now());
                }
            }
        }
    }

    fn send_due(&mut self, now: MonoTime) -> Result<NextStep, Error> {
        let Some(start) = self.start else {
            let idle = NextStep::IdleUntil(now + Nanos::from_millis(5));
            return Ok(if self.stopped.is_some() { NextStep::Done } else { idle });
        };
        self.stop_if_lease_expired(start, now);
        self.build_batch(start);
        self.flush_built_frames()?;
        self.drop_frames_due_after_stop(now);
        // Frames that wait in the ring need another call, whatever the schedule says.
        if !self.unconfirmed.is_empty() || self.port.pending_frames() > 0 {
            return Ok(NextStep::Busy);
        }
        Ok(match self.due.peek() {
            None => NextStep::Done,
            Some(Reverse((due, lane))) => {
                let is_scheduled = self.lanes[*lane].frames.has_scheduled_due_time();
                let release = if is_scheduled { self.catch_up.release_time(*due, now) } else { *due };
                if release <= now {
                    NextStep::Busy
                } else {
                    NextStep::IdleUntil(self.catch_up.wait_deadline(release, now))
                }
            }
        })
    }

    fn stream_counts(&self) -> Vec<StreamTxCounts> {
        let counts = self.lanes.iter().map(SenderStreamState::live_counts);
        // `is_sending` of a lane becomes false only when the lane is over, held or finished. After a stop, all
        // lanes count as ended.
        let is_stopped = self.stopped.is_some();
        counts
            .map(|counts| StreamTxCounts { is_sending: counts.is_sending && !is_stopped, ..counts })
            .collect()
    }

    fn port_counters(&mut self) -> Result<TxCounters, Error> {
        self.port.read_tx_counters()
    }

    fn sending_record(&self) -> SendingRecord {
        SendingRecord {
            stalls: self.catch_up.stall_events(),
            peaks: self.peaks.sending_peaks(),
            ahead: self.ahead.bursts(),
            fault: None,
        }
    }

    fn finish_sending(&mut self) -> Vec<SendResult> {
        let start = self.start;
        let stopped = self.stopped;
        let results = self.lanes.drain(..).map(|mut lane| {
            lane.count_unsent_frames(start, stopped);
            SendResult {
                stream: lane.spec.number.into(),
                counts: lane.live_counts(),
                planned: lane.counts.frames + lane.unsent,
                send_error: lane.send_error,
                stamp_bound: lane.stamp_bound,
                series: lane.series,
                untagged_contents: lane.frames.take_untagged_contents(),
            }
        });
        results.collect()
    }

    fn steered_sender(&mut self) -> Option<&mut dyn SteeredSender> {
        Some(self)
    }
}

impl<T: FrameTx, C: WorkerClock> SteeredSender for TestSender<T, C> {
    fn hold_streams(&mut self, streams: &[u16]) -> Vec<(u16, u64)> {
        let start = self.start;
        let now = self.clock.now();
        let all_stopped = self.stopped;
        let streams: HashSet<u16> = streams.iter().copied().collect();
        let lanes = &self.lanes;
        // The lanes leave the heap first, so that no frame is sent while unsent frames are counted.
        self.due.retain(|Reverse((_, lane))| !streams.contains(&lanes[*lane].spec.number));
        let held = self.lanes.iter_mut().filter(|lane| streams.contains(&lane.spec.number)).map(|lane| {
            // A stream that ended by itself was not cut short. A lease cuts all streams short when it expires.
            let stopped = lane.counts.is_sending.then_some(all_stopped.unwrap_or(now));
            lane.count_unsent_frames(start, stopped);
            (lane.spec.number, lane.counts.frames)
        });
        held.collect()
    }

    fn begin_segments(&mut self, segments: &[(u16, StreamSegment)]) {
        // No segment begins after the stop.
        let Some(start) = self.start.filter(|_| self.stopped.is_none()) else { return };
        let now = self.clock.now();
        for (number, segment) in segments {
            // Lanes are sorted by number: the job lists streams by index, and later ones are appended.
            let found = self.lanes.binary_search_by_key(number, |lane| lane.spec.number);
            let Ok(index) = found else { continue };
            let lane = &mut self.lanes[index];
            // A stream that still sends, or has sent another number of frames than announced, would use numbers that
            // receivers do not expect.
            if !lane.counts.is_sending && segment.first_number() == lane.counts.frames {
                lane.begin_segment(segment.clone());
                self.due.push(Reverse((lane.next_due_time(start, now), index)));
            }
        }
    }

    fn add_streams(&mut self, streams: Vec<Arc<StreamSpec>>) -> Result<(), Error> {
        let all = self.lanes.len() + streams.len();
        for spec in streams {
            self.lanes.push(SenderStreamState::new(spec, all)?);
        }
        // The memory is reserved here, so that the heap does not grow while frames are sent.
        self.due.reserve(self.lanes.len() - self.due.len());
        Ok(())
    }
}
