//! The transmit half: each stream is a device of the generator, whose counters are read while the kernel sends.
//!
//! The generator begins to send up to 100 ms after its start, and counts the frames itself. Its counters are read every
//! [`COUNTER_READ_INTERVAL`]. Streams that have not sent everything by their time limit are stopped, but only all
//! together: once every stream is past its limit.
//!
//! Invariant: every count comes from the generator, never from the plan.

use super::options;
use crate::Error;
use crate::clock::RealClock;
use crate::packet::facts::InterfaceMeter;
use crate::port::WorkerClock;
use crate::send_doubts::SendDoubts;
use crate::sender::{LATE_FRAME_THRESHOLD, LATE_SENDING_GRACE};
use crate::stream::{NextStep, StreamControl, StreamSpec, StreamTx, TxJob};
use packetrig_plan::timeline::SendPattern;
use packetrig_stats::content::ContentCounts;
use packetrig_stats::counts::{SinceStart, StreamTxCounts};
use packetrig_stats::latency::Latency;
use packetrig_stats::port::TxCounters;
use packetrig_stats::result::SendResult;
use packetrig_stats::series::RateSeries;
use packetrig_sys::pktgen::{DeviceProgress, Pktgen, PktgenRun};
use packetrig_units::{FrameSize, MonoTime, Nanos};
use std::sync::Arc;

/// Interval at which the generator's counters are read.
const COUNTER_READ_INTERVAL: Nanos = Nanos::from_millis(20);
/// A device that has sent nothing this long after the start will send nothing. Usually, it begins within 100 ms.
const LATEST_BEGIN: Nanos = Nanos::from_secs(2);
/// Significant digits of the send-time histograms, as in the generic sender.
const HISTOGRAM_DIGITS: u8 = 2;

/// A stream that one device sends.
#[derive(Debug)]
struct PktgenStream {
    spec: Arc<StreamSpec>,
    device: String,
    size: FrameSize,
    counts: StreamTxCounts,
    errors: u64,
    series: RateSeries,
}

impl PktgenStream {
    fn count_progress(&mut self, progress: &DeviceProgress, start: MonoTime, now: MonoTime) {
        // The kernel reports totals; series and rates need the difference since the last read.
        let new = progress.sent.saturating_sub(self.counts.frames);
        let bytes = new * u64::from(self.size.bytes());
        self.counts.frames += new;
        self.counts.bytes += bytes;
        self.errors = progress.errors;
        if self.counts.frames > 0 {
            self.counts.first = Some(mono_time_from_micros(progress.started_us));
            // While a device runs, the kernel gives the present time as the time of its stop.
            self.counts.last = Some(mono_time_from_micros(progress.stopped_us));
        }
        if new > 0 {
            self.series.add_frames(start, now, new, bytes);
        }
        // The generator keeps its own pace from its first frame on, so all frames are as late as the first one.
        let is_late = self.start_lag(start).is_some_and(|lag| lag > LATE_FRAME_THRESHOLD);
        self.counts.late = if is_late { self.counts.frames } else { 0 };
    }

    /// Returns how long after the start the first frame left; `None` if none has left.
    fn start_lag(&self, start: MonoTime) -> Option<Nanos> {
        self.counts.first.map(|first| first.since(start))
    }

    /// Returns whether the stream has a time limit and it has passed, counted from the first frame. A device that fails
    /// to send has no first frame, so its limit counts from the latest time at which it can have begun.
    fn is_past_limit(&self, start: MonoTime, now: MonoTime) -> bool {
        let SendPattern::Within(length) = self.spec.timeline.shape else { return false };
        now >= self.counts.first.unwrap_or(start + LATEST_BEGIN) + length + LATE_SENDING_GRACE
    }
}

impl PktgenStream {
    fn into_result(self, start: MonoTime, planned: u64) -> SendResult {
        let mut send_error = Latency::with_digits(HISTOGRAM_DIGITS);
        // Only the first frame's lateness is known.
        self.start_lag(start).into_iter().for_each(|lag| send_error.record_time(lag));
        SendResult {
            stream: self.spec.number.into(),
            counts: self.counts,
            planned,
            send_error,
            stamp_bound: Latency::with_digits(HISTOGRAM_DIGITS),
            series: self.series,
            untagged_contents: ContentCounts::default(),
        }
    }
}

#[derive(Debug)]
enum GeneratorPhase {
    Waiting,
    Running(PktgenRun),
    /// Everything is sent, or sending was stopped.
    Over,
}

#[derive(Debug)]
pub struct PktgenTx {
    generator: Pktgen,
    interface: String,
    meter: InterfaceMeter,
    doubts: SendDoubts,
    clock: RealClock,
    lanes: Vec<PktgenStream>,
    phase: GeneratorPhase,
    start: Option<MonoTime>,
    /// Time at which the caller stopped the sender, if it had not ended before.
    stopped: Option<MonoTime>,
    look_at: MonoTime,
}

impl PktgenTx {
    pub(super) fn new(generator: Pktgen, interface: &str, meter: InterfaceMeter, doubts: SendDoubts) -> Self {
        Self {
            generator,
            interface: interface.to_owned(),
            meter,
            doubts,
            clock: RealClock::new(),
            lanes: Vec::new(),
            phase: GeneratorPhase::Waiting,
            start: None,
            stopped: None,
            look_at: MonoTime::default(),
        }
    }

    fn read_progress(&mut self, start: MonoTime, now: MonoTime) -> Result<(), Error> {
        for lane in &mut self.lanes {
            lane.count_progress(&self.generator.read_progress(&lane.device)?, start, now);
        }
        Ok(())
    }

    /// Reads the counters of the running generator if a reading is due. Stops the devices after a stop, or once every
    /// stream is past its time limit. When the generator has ended, reports the doubts and returns `None`.
    fn poll_generator(
        &mut self,
        running: PktgenRun,
        start: MonoTime,
        now: MonoTime,
    ) -> Result<Option<PktgenRun>, Error> {
        let is_over = running.has_ended();
        if now < self.look_at && !is_over {
            return Ok(Some(running));
        }
        self.look_at = now + COUNTER_READ_INTERVAL;
        if is_over {
            // The counts are read after the end, so they are final.
            running.wait_for_end()?;
            self.read_progress(start, now)?;
            self.report_doubts(start);
            return Ok(None);
        }
        self.read_progress(start, now)?;
        // The stop is repeated, because a generator that has not begun yet ignores it. It ends all devices, so with
        // time limits it waits until the last stream has passed its limit.
        if self.stopped.is_some() || self.lanes.iter().all(|lane| lane.is_past_limit(start, now)) {
            self.generator.stop_devices()?;
        }
        Ok(Some(running))
    }

    /// Adds the doubts that are known only after everything is sent.
    fn report_doubts(&self, start: MonoTime) {
        let lags = self.lanes.iter().filter_map(|lane| lane.start_lag(start));
        if let Some(lag) = lags.max().filter(|lag| *lag > LATE_FRAME_THRESHOLD) {
            self.doubts.add_doubt(format!("{}: pktgen started {lag} late", self.interface));
        }
        let errors: u64 = self.lanes.iter().map(|lane| lane.errors).sum();
        if errors > 0 {
            self.doubts.add_doubt(format!(
                "{}: frames that pktgen failed to send: {errors}; it sent other frames instead",
                self.interface
            ));
        }
    }

    /// Returns how many frames a stream should have sent by its end.
    fn planned_frames(&self, lane: &PktgenStream) -> u64 {
        let total = lane.spec.timeline.total_frames();
        match (self.start, self.stopped, total) {
            (None, _, _) => 0,
            (Some(_), None, Some(total)) => total,
            // The time counts from the generator's first frame, because a late start is reported separately.
            (Some(_), stopped, _) => {
                let end = stopped.or(lane.counts.last).unwrap_or_default();
                let elapsed = lane.counts.first.map_or(Nanos::ZERO, |first| end.since(first));
                lane.spec.timeline.frames_due_before(elapsed).max(lane.counts.frames)
            }
        }
    }
}

impl StreamTx for PktgenTx {
    fn arm_sender(&mut self, job: TxJob) -> Result<(), Error> {
        let streams = job.streams.len();
        let settings = options::convert_streams(&job.streams)?;
        for (place, (spec, settings)) in job.streams.into_iter().zip(settings).enumerate() {
            let device = format!("{}@{place}", self.interface);
            self.generator.add_device(place, &device)?;
            // The kernel checks each option when it is written, and some depend on earlier ones.
            settings.options.iter().try_for_each(|option| self.generator.set_option(&device, option))?;
            settings.doubts.into_iter().for_each(|doubt| self.doubts.add_doubt(doubt));
            let series = RateSeries::with_limit(spec.series_seconds_to_reserve(streams));
            let counts = StreamTxCounts::default();
            self.lanes.push(PktgenStream { spec, device, size: settings.size, counts, errors: 0, series });
        }
        Ok(())
    }

    fn apply_control(&mut self, control: StreamControl) {
        match control {
            StreamControl::StartAt(start) if self.start.is_none() && self.stopped.is_none() => {
                self.start = Some(start);
            }
            StreamControl::StartAt(_) => {}
            StreamControl::Stop => {
                if self.stopped.is_none() && !matches!(self.phase, GeneratorPhase::Over) {
                    self.stopped = Some(self.clock.now());
                }
            }
        }
    }

    fn send_due(&mut self, now: MonoTime) -> Result<NextStep, Error> {
        // The phase is moved out, so that an error below leaves the phase at `Over`.
        match std::mem::replace(&mut self.phase, GeneratorPhase::Over) {
            GeneratorPhase::Over => Ok(NextStep::Done),
            GeneratorPhase::Waiting if self.stopped.is_some() => Ok(NextStep::Done),
            GeneratorPhase::Waiting => match self.start {
                Some(start) if start <= now => {
                    self.phase = GeneratorPhase::Running(self.generator.start_devices()?);
                    Ok(NextStep::IdleUntil(now + COUNTER_READ_INTERVAL))
                }
                start => {
                    self.phase = GeneratorPhase::Waiting;
                    Ok(NextStep::IdleUntil(start.unwrap_or(now + COUNTER_READ_INTERVAL)))
                }
            },
            GeneratorPhase::Running(running) => {
                let Some(running) = self.poll_generator(running, self.start.unwrap_or(now), now)? else {
                    return Ok(NextStep::Done);
                };
                self.phase = GeneratorPhase::Running(running);
                Ok(NextStep::IdleUntil(self.look_at))
            }
        }
    }

    fn stream_counts(&self) -> Vec<StreamTxCounts> {
        let is_sending = matches!(self.phase, GeneratorPhase::Running(_));
        let counts = self.lanes.iter().map(|lane| lane.counts);
        counts
            .map(|counts| StreamTxCounts { is_sending, since_start: counts_since_start(&counts), ..counts })
            .collect()
    }

    fn port_counters(&mut self) -> Result<TxCounters, Error> {
        // The interface is read after the sender's counts: otherwise it would lack frames that
        // the sender counts already.
        let sent: u64 = self.lanes.iter().map(|lane| lane.counts.frames).sum();
        let interface = self.meter.read_counters();
        Ok(TxCounters {
            handed_over: sent,
            refused: 0,
            on_wire: interface.map(|counters| counters.tx_frames),
            // The interface cannot have dropped more of these frames than it did not transmit.
            dropped: interface
                .map(|counters| counters.tx_dropped.min(sent.saturating_sub(counters.tx_frames))),
        })
    }

    fn finish_sending(&mut self) -> Vec<SendResult> {
        let planned: Vec<u64> = self.lanes.iter().map(|lane| self.planned_frames(lane)).collect();
        let start = self.start.unwrap_or_default();
        self.lanes.drain(..).zip(planned).map(|(lane, planned)| lane.into_result(start, planned)).collect()
    }
}

/// Returns the counts since the start of a stream. A stream of this back end starts only once, so these are all counts.
fn counts_since_start(counts: &StreamTxCounts) -> SinceStart {
    SinceStart { frames: counts.frames, bytes: counts.bytes, first: counts.first, last: counts.last }
}

fn mono_time_from_micros(micros: u64) -> MonoTime {
    MonoTime::from_nanos(micros.saturating_mul(1000))
}

#[cfg(test)]
mod tests {
    use super::super::tests::spec;
    use super::*;

    /// A device that fails to send must not keep the others from being stopped.
    #[test]
    fn time_limit_passes_without_a_first_frame() {
        let limit = ("duration", r#"{"choice": "fixed_seconds", "fixed_seconds": {"seconds": 1}}"#);
        let spec = spec(&[limit]);
        let mut lane = PktgenStream {
            size: options::convert_stream(&spec).unwrap().size,
            spec: Arc::new(spec),
            device: String::new(),
            counts: StreamTxCounts::default(),
            errors: 0,
            series: RateSeries::with_limit(1),
        };
        let at_ms = |ms: u64| MonoTime::from_nanos(ms * 1_000_000);
        let limits = |lane: &PktgenStream| [2000, 4000].map(|ms| lane.is_past_limit(at_ms(0), at_ms(ms)));
        assert_eq!(limits(&lane), [false, true], "it may still begin");
        lane.counts.first = Some(at_ms(100));
        assert_eq!(limits(&lane), [true, true]);
    }
}
