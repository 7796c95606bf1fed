//! The transmit half with live frames: plans runs a little ahead and reads the program's counters.
//!
//! The program never has more than [`RUN_LEAD_TIME`] of work ahead, so it stops soon after this process stops giving it
//! runs. Under a lease it has at most [`MAX_AHEAD`] of work, and nothing that is due after the lease. The counters are
//! read every [`RUN_PLAN_INTERVAL`]; all frames since the last reading count at the time of the latest one.

use super::runs::FrameRunPlanner;
use super::tables::{self, CompiledTables};
use crate::Error;
use crate::gate::{MAX_AHEAD, SendGate};
use crate::packet::{InterfaceMeter, ReservedInterface};
use crate::sender::{
    AheadBurstLog, CATCH_UP_DIVISOR, HOLD_UP_WINDOW, LATE_FRAME_THRESHOLD, LATE_SENDING_GRACE, MAX_HOLD_UP,
    ON_TIME_TOLERANCE, SPACING_TOLERANCE, SendingPeakMeter, StallLog,
};
use crate::stream::{NextStep, SendingRecord, StreamControl, StreamSpec, StreamTx, TxJob};
use packetrig_plan::timeline::SendPattern;
use packetrig_stats::content::ContentCounts;
use packetrig_stats::counts::{SinceStart, StreamTxCounts};
use packetrig_stats::latency::Latency;
use packetrig_stats::port::TxCounters;
use packetrig_stats::result::SendResult;
use packetrig_stats::series::RateSeries;
use packetrig_sys::clock;
use packetrig_sys::netns::NetNs;
use packetrig_sys::xdp::buckets;
use packetrig_sys::xdp::tx::{
    FrameRun, LaneCounts, LiveOptions, LivePace, LiveTx, MAX_BATCH, MAX_WAITING_RUNS, RunProgress,
};
use packetrig_units::{MonoTime, Nanos, clamp_to_u32, clamp_to_usize};
use std::collections::VecDeque;
use std::sync::Arc;

/// The program gets runs at most this long before they are due.
const RUN_LEAD_TIME: Nanos = Nanos::from_millis(20);
/// Interval at which runs are planned and counters read.
const RUN_PLAN_INTERVAL: Nanos = Nanos::from_millis(1);
/// Duration of one batch at the planned rate: shorter ones make stamps more exact, longer ones cost
/// less time per frame.
const MAX_BATCH_TIME: Nanos = Nanos::from_micros(20);
const HISTOGRAM_DIGITS: u8 = 2;
/// The program catches up with its schedule according to the same rule as every other sender.
pub(super) const LIVE_FRAME_PACE: LivePace = LivePace {
    slack_ns: ON_TIME_TOLERANCE.as_u64(),
    part: CATCH_UP_DIVISOR,
    window_ns: HOLD_UP_WINDOW.as_u64(),
    hold_up_ns: MAX_HOLD_UP.as_u64(),
    tolerance_ns: SPACING_TOLERANCE.as_u64(),
};

/// The transmit half of a port on live frames.
#[derive(Debug)]
pub struct LiveSender {
    netns: NetNs,
    index: u32,
    location: String,
    meter: InterfaceMeter,
    streams: Vec<Arc<StreamSpec>>,
    compiled: CompiledTables,
    live: Option<LiveTx>,
    runs: Option<FrameRunPlanner>,
    start: Option<MonoTime>,
    stopped: Option<MonoTime>,
    gate: SendGate,
    /// Whether the sender has seen that the lease expired.
    lease_ended: bool,
    series: Vec<RateSeries>,
    counted: Vec<LaneCounts>,
    /// Number of program calls when the last frame was made: two batches later it has left.
    drained_at: Option<u64>,
    /// Whether the sending thread has ended, so that no more frames leave.
    ended: bool,
    /// Error that occurred at the start; the next step returns it.
    trouble: Option<Error>,
    stalls: StallLog,
    ahead: AheadBurstLog,
    /// Number of frames ahead that are in the log already.
    ahead_logged: u64,
    /// Due times of the runs that the program has not begun, the oldest first.
    waiting: VecDeque<MonoTime>,
    peaks: SendingPeakMeter,
    /// Time of the last reading of the counters.
    looked_at: MonoTime,
}

impl LiveSender {
    pub(crate) fn new(claim: &ReservedInterface, meter: InterfaceMeter) -> Result<Self, Error> {
        Ok(Self {
            netns: NetNs::duplicate(&claim.netns)?,
            index: claim.link.index,
            location: claim.location.clone(),
            meter,
            streams: Vec::new(),
            compiled: CompiledTables::default(),
            live: None,
            runs: None,
            start: None,
            stopped: None,
            gate: SendGate::without_lease(),
            lease_ended: false,
            series: Vec::new(),
            counted: Vec::new(),
            drained_at: None,
            ended: false,
            trouble: None,
            stalls: StallLog::default(),
            ahead: AheadBurstLog::default(),
            ahead_logged: 0,
            waiting: VecDeque::new(),
            peaks: SendingPeakMeter::default(),
            looked_at: MonoTime::default(),
        })
    }

    fn begin_sending(&mut self, start: MonoTime) -> Result<(), Error> {
        self.start = Some(start);
        self.runs = Some(FrameRunPlanner::new(&self.streams, start));
        // Runs are planned before the thread starts, so that it finds work at once.
        self.push_due_runs(MonoTime::from_nanos(clock::monotonic_ns()))?;
        let name = format!("live-{}", self.location);
        if let Some(live) = &mut self.live {
            live.start_thread(&self.netns, name)?;
        }
        Ok(())
    }

    /// Stops permanently if the lease has expired.
    fn stop_if_lease_expired(&mut self, start: MonoTime, now: MonoTime) {
        // Until shortly before the start there is nothing to stop, and the lease may still be renewed.
        if self.stopped.is_some() || now + MAX_AHEAD < start {
            return;
        }
        let Some(since) = self.gate.shut_since(now, start) else { return };
        // All frames have been sent already, so the expired lease stops nothing.
        if self.has_sent_everything() {
            return;
        }
        if let Some(live) = &self.live {
            live.stop_sending();
        }
        self.stopped = Some(since);
        self.lease_ended = true;
        self.runs = None;
    }

    /// Returns the end of the grant: the program in the kernel may get frames that are due before this time.
    fn compute_grant_end(&mut self, waiting: u64, start: MonoTime, now: MonoTime) -> MonoTime {
        // A lease that ends sooner limits the grant: no granted frame is due after the lease.
        let until = match self.gate.remaining_time() {
            None => now.max(start) + RUN_LEAD_TIME,
            Some(left) => now + left.min(MAX_AHEAD),
        };
        // The program takes runs in order, so those that it has begun are the oldest of `waiting`.
        let begun = self.waiting.len().saturating_sub(clamp_to_usize(waiting));
        self.waiting.drain(..begun);
        // A program that is behind its schedule first sends older frames. Its lag is subtracted, so that it never has
        // more work than one grant.
        let until =
            until - self.live.as_ref().map_or(Nanos::ZERO, |live| schedule_lag(live.read_progress(), now));
        self.waiting.front().map_or(until, |oldest| until.min(*oldest + RUN_LEAD_TIME))
    }

    /// Gives the program the runs that are due before the grant ends.
    fn push_due_runs(&mut self, now: MonoTime) -> Result<(), Error> {
        let Some(start) = self.start else { return Ok(()) };
        let Some(waiting) = self.live.as_ref().map(LiveTx::waiting_runs) else { return Ok(()) };
        let until = self.compute_grant_end(waiting, start, now);
        let Some(live) = &mut self.live else { return Ok(()) };
        let Some(runs) = &mut self.runs else { return Ok(()) };
        // No more runs are added than the ring of runs has free slots.
        for _ in waiting..MAX_WAITING_RUNS {
            let Some(run) = runs.next_run(until) else { break };
            let shape = self.compiled.shapes[run.lane].get(&run.size);
            let shape = *shape.ok_or(Error::Bug("a frame has a size its template does not name"))?;
            let cutoff =
                send_cutoff(&self.streams[run.lane]).map_or(u64::MAX, |cutoff| (start + cutoff).as_nanos());
            live.push_run(&FrameRun {
                due_ns: run.due.as_nanos(),
                step: run.step,
                number: run.number,
                cutoff_ns: cutoff,
                count: clamp_to_u32(run.count),
                shape,
            });
            self.waiting.push_back(run.due);
        }
        Ok(())
    }

    /// Reads the program's counters, and adds what was sent since the last call to series, peaks, bursts and stalls.
    fn count_sent_frames(&mut self, now: MonoTime) {
        let Some(live) = &self.live else { return };
        let Some(start) = self.start else { return };
        let mut sent = 0;
        for (lane, counted) in self.counted.iter_mut().enumerate() {
            let counts = live.read_lane_counts(clamp_to_u32(lane));
            let frames = counts.frames - counted.frames;
            let bytes = counts.bytes.saturating_sub(counted.bytes);
            if frames > 0 {
                // The program may be writing its counters: the time may still belong to the frame before.
                let at = MonoTime::from_nanos(counts.last_ns).min(now).max(start);
                self.series[lane].add_frames(start, at, frames, bytes);
                sent += frames;
            }
            *counted = counts;
        }
        let since = self.looked_at.max(start);
        self.peaks.add_frames_evenly(since, now, sent);
        let progress = live.read_progress();
        if progress.ahead > self.ahead_logged {
            self.ahead.add_burst(since, now, progress.ahead - self.ahead_logged);
            self.ahead_logged = progress.ahead;
        }
        self.stalls.record_lag(schedule_lag(progress, now), now);
        self.looked_at = now;
    }

    /// Returns whether everything that was planned has left.
    fn has_sent_everything(&mut self) -> bool {
        let Some(live) = &self.live else { return false };
        let Some(runs) = &self.runs else { return false };
        if !runs.is_over() || !live.is_drained() {
            return false;
        }
        let calls = live.read_progress().calls;
        let drained = *self.drained_at.get_or_insert(calls);
        // The kernel hands frames to the driver at the end of a batch of calls. After two more batches
        // none can be left.
        calls >= drained + 2 * u64::from(MAX_BATCH)
    }

    fn end_thread(&mut self) -> Result<(), Error> {
        if let Some(live) = &mut self.live {
            live.end_thread()?;
        }
        self.ended = true;
        // The thread has ended, so these counts are the last ones.
        self.count_sent_frames(MonoTime::from_nanos(clock::monotonic_ns()));
        Ok(())
    }

    /// Returns whether frames of this lane were not sent because the lease expired.
    fn is_cut_by_lease(&self, lane: usize) -> bool {
        let total = self.streams[lane].timeline.total_frames();
        self.lease_ended && total.is_none_or(|total| self.counted[lane].frames < total)
    }

    fn build_stream_result(&self, lane: usize) -> SendResult {
        let spec = &self.streams[lane];
        let counts = self.counted[lane];
        let mut send_error = Latency::with_digits(HISTOGRAM_DIGITS);
        let mut stamp_bound = Latency::with_digits(HISTOGRAM_DIGITS);
        if let Some(live) = &self.live {
            let errors = live.read_lane_error_histogram(clamp_to_u32(lane));
            fill_histogram(&mut send_error, &errors, counts.error_max_ns, 1.0);
            let (bounds, longest) = live.read_batch_delay_histogram();
            let frames: u64 = bounds.iter().sum();
            // A batch holds frames of all streams, so each stream gets a part of the histogram in
            // proportion to its frames.
            let share = if frames == 0 { 0.0 } else { counts.frames as f64 / frames as f64 };
            fill_histogram(&mut stamp_bound, &bounds, longest, share);
        }
        SendResult {
            stream: spec.number.into(),
            counts: StreamTxCounts {
                lease_ended: self.is_cut_by_lease(lane),
                ..stream_counts(counts, false)
            },
            planned: spec.planned_frames(self.start, self.stopped, counts.frames),
            send_error,
            stamp_bound,
            series: self.series[lane].clone(),
            untagged_contents: ContentCounts::default(),
        }
    }
}

/// Returns how far the program in the kernel is behind its schedule.
fn schedule_lag(progress: RunProgress, now: MonoTime) -> Nanos {
    let passed = now.since(MonoTime::from_nanos(progress.lag_since_ns)).as_u64();
    Nanos::new(progress.lag_ns.saturating_sub(passed / CATCH_UP_DIVISOR))
}

/// Returns the time since the start after which a stream sends nothing, not even late frames: its time limit plus
/// [`LATE_SENDING_GRACE`]. `None` without a limit.
fn send_cutoff(spec: &StreamSpec) -> Option<Nanos> {
    let limited = matches!(spec.timeline.shape, SendPattern::Within(_));
    limited.then(|| spec.timeline.end_time()).flatten().map(|end| end + LATE_SENDING_GRACE)
}

/// Converts a time that the program wrote. It may be missing: a frame can be counted before its time is written.
fn program_time(counts: LaneCounts, ns: u64) -> Option<MonoTime> {
    (counts.frames > 0 && ns > 0).then(|| MonoTime::from_nanos(ns))
}

fn stream_counts(counts: LaneCounts, is_sending: bool) -> StreamTxCounts {
    let first = program_time(counts, counts.first_ns);
    let last = program_time(counts, counts.last_ns);
    StreamTxCounts {
        since_start: SinceStart { frames: counts.frames, bytes: counts.bytes, first, last },
        is_sending,
        is_paused: false,
        lease_ended: false,
        untagged: 0,
        frames: counts.frames,
        bytes: counts.bytes,
        late: counts.late,
        first,
        last,
    }
}

fn fill_histogram(times: &mut Latency, frames: &[u64], longest: u64, share: f64) {
    // A value is the upper end of its bucket, because a bound must not be too small. A share is at least one frame, so
    // that rare long times stay.
    for (bucket, frames) in frames.iter().enumerate().filter(|(_, frames)| **frames > 0) {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a frame count fits a frame count"
        )]
        let frames = ((*frames as f64 * share).round() as u64).max(1);
        times.record_repeated_time(Nanos::new(buckets::largest_value(bucket).min(longest)), frames);
    }
}

/// Returns the number of frames per batch: a power of two, and no more than are planned within [`MAX_BATCH_TIME`].
fn choose_batch_size(streams: &[Arc<StreamSpec>]) -> u32 {
    let in_time: u64 = streams.iter().map(|spec| spec.timeline.rate.frames_within(MAX_BATCH_TIME)).sum();
    let most = clamp_to_u32(in_time).clamp(1, MAX_BATCH);
    // `LiveTx::open_on_interface` accepts powers of two only.
    1 << most.ilog2()
}

impl StreamTx for LiveSender {
    fn arm_sender(&mut self, job: TxJob) -> Result<(), Error> {
        self.compiled = tables::compile_tables(&job.streams)?;
        let late_after_ns = LATE_FRAME_THRESHOLD.as_u64();
        let batch = choose_batch_size(&job.streams);
        let options = LiveOptions { key: job.key.0, late_after_ns, batch, pace: LIVE_FRAME_PACE };
        self.live = Some(LiveTx::open_on_interface(self.index, &self.compiled.tables, options)?);
        let streams = job.streams.len();
        self.series = job
            .streams
            .iter()
            .map(|spec| RateSeries::with_limit(spec.series_seconds_to_reserve(streams)))
            .collect();
        self.gate = job.gate;
        self.counted = vec![LaneCounts::default(); streams];
        self.streams = job.streams;
        Ok(())
    }

    fn apply_control(&mut self, control: StreamControl) {
        match control {
            StreamControl::StartAt(start) if self.start.is_none() && self.stopped.is_none() => {
                // This function returns no result, so the next step returns the error.
                self.trouble = self.begin_sending(start).err();
            }
            StreamControl::StartAt(_) => {}
            StreamControl::Stop => {
                if let Some(live) = &self.live {
                    live.stop_sending();
                }
                // A stop after the last frame is no interruption.
                let over = self.ended || self.has_sent_everything();
                if self.stopped.is_none() && !over {
                    self.stopped = Some(MonoTime::from_nanos(clock::monotonic_ns()));
                }
                self.ended |= over;
                self.runs = None;
            }
        }
    }

    fn send_due(&mut self, now: MonoTime) -> Result<NextStep, Error> {
        if self.ended {
            return Ok(NextStep::Done);
        }
        let Some(start) = self.start else {
            let idle = NextStep::IdleUntil(now + Nanos::from_millis(5));
            return Ok(if self.stopped.is_some() { NextStep::Done } else { idle });
        };
        if let Some(trouble) = self.trouble.take() {
            return Err(trouble);
        }
        self.stop_if_lease_expired(start, now);
        self.push_due_runs(now)?;
        self.count_sent_frames(now);
        if self.stopped.is_some() || self.has_sent_everything() {
            self.end_thread()?;
            return Ok(NextStep::Done);
        }
        let live = self.live.as_mut().ok_or(Error::Bug("a sender started before it was armed"))?;
        // An error of the program's thread becomes an error of this worker.
        live.check_thread()?;
        // This cannot happen for tables that `tables` has compiled, so it is a bug.
        if live.read_progress().failed > 0 {
            return Err(Error::Bug("the BPF program for sending could not build a frame"));
        }
        Ok(NextStep::IdleUntil(now.max(start - RUN_LEAD_TIME) + RUN_PLAN_INTERVAL))
    }

    fn stream_counts(&self) -> Vec<StreamTxCounts> {
        let is_sending = self.start.is_some() && !self.ended;
        let lanes = self.counted.iter().enumerate();
        let counts = lanes.map(|(lane, counts)| StreamTxCounts {
            lease_ended: self.is_cut_by_lease(lane),
            ..stream_counts(*counts, is_sending)
        });
        counts.collect()
    }

    fn port_counters(&mut self) -> Result<TxCounters, Error> {
        // The program's count is read first: otherwise it could include frames that the interface's count lacks.
        let built = self.live.as_ref().map_or(0, |live| live.read_progress().built);
        let interface = self.meter.read_counters();
        Ok(TxCounters {
            handed_over: built,
            refused: 0,
            on_wire: interface.map(|counters| counters.tx_frames),
            dropped: interface.map(|counters| {
                crate::packet::frames_lost_on_transmit(built, counters.tx_frames, counters.tx_dropped)
            }),
        })
    }

    fn sending_record(&self) -> SendingRecord {
        SendingRecord {
            stalls: self.stalls.events(),
            peaks: self.peaks.sending_peaks(),
            ahead: self.ahead.bursts(),
            fault: None,
        }
    }

    fn finish_sending(&mut self) -> Vec<SendResult> {
        // The thread ended in the last step; if it could not, that step returned the error.
        drop(self.end_thread());
        (0..self.streams.len()).map(|lane| self.build_stream_result(lane)).collect()
    }
}
