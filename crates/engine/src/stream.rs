//! The stream level: interface between a run and the halves of a port.
//!
//! A back end whose fast path never shows frames to user space implements [`StreamTx`] or [`StreamRx`] itself. All
//! other halves are a [`crate::sender::TestSender`] or a [`crate::receiver::TestReceiver`]. A run sends and receives
//! test traffic only through the two traits.

use crate::capture::CaptureTap;
use crate::gate::SendGate;
use crate::port::RingProgress;
use crate::replay::ReplayTrack;
use crate::segment::StreamSegment;
use packetrig_plan::recording::{FrameOrigin, ReplayTiming};
use packetrig_plan::timeline::StreamTimeline;
use packetrig_stats::content::ContentCounts;
use packetrig_stats::counts::DelaySummary;
use packetrig_stats::counts::{StreamRxCounts, StreamTxCounts};
use packetrig_stats::port::{RxCounters, TxCounters};
use packetrig_stats::port_event::PortEvent;
use packetrig_stats::result::{
    CatchUpBurst, MisdeliveredFrames, OtherRunFrames, ReceiveResult, SendResult, SendingPeaks,
};
use packetrig_units::{MonoTime, Nanos, clamp_to_u64};
use packetrig_wire::{FrameTemplate, tag::TagKey};
use std::sync::Arc;

/// A stream in the data plane. Sender and receivers share it.
#[derive(Clone, Debug)]
pub struct StreamSpec {
    /// Index in the plan and number in the test tag.
    pub number: u16,
    /// Source of the stream's frames.
    pub source: FrameSource,
    pub timeline: StreamTimeline,
    /// Whether latency is measured.
    pub latency: bool,
    /// Whether another node sends the stream. Its tags then hold times of that node's clock.
    pub sent_elsewhere: bool,
    /// Whether tags of the stream have no send time, because another program sends frames from a file.
    pub untimed: bool,
}

/// Source of a stream's frames.
#[derive(Clone, Debug)]
pub enum FrameSource {
    /// Made from a template.
    Made(Arc<FrameTemplate>),
    /// Read from a capture file.
    Recorded(Arc<ReplayTrack>),
}

impl FrameSource {
    /// Creates the source that a plan names.
    pub fn from_origin(frames: &FrameOrigin) -> Self {
        match frames {
            FrameOrigin::Made(template) => Self::Made(Arc::clone(template)),
            FrameOrigin::Recorded(recording) => {
                Self::Recorded(Arc::new(ReplayTrack::new(Arc::clone(recording))))
            }
        }
    }

    /// Returns the template; `None` for frames from a capture file.
    pub fn template(&self) -> Option<&Arc<FrameTemplate>> {
        match self {
            Self::Made(template) => Some(template),
            Self::Recorded(_) => None,
        }
    }
}

impl StreamSpec {
    /// Returns for how many seconds of the rate series to reserve memory, if `streams` streams share the memory. A
    /// stream with an end gets its duration and a minute for late frames. An endless stream gets a day; with many
    /// streams, each of them gets less.
    pub fn series_seconds_to_reserve(&self, streams: usize) -> usize {
        // The memory is reserved up front, so that a hot loop never allocates.
        let share = (MAX_RESERVED_SERIES_SECONDS / streams.max(1)).min(DAY);
        let is_unpaced = matches!(&self.source, FrameSource::Recorded(track) if track.recording().timing == ReplayTiming::Fastest);
        let end = self.timeline.end_time().filter(|_| !is_unpaced);
        let seconds = end.map(|end| usize::try_from(end.as_u64() / 1_000_000_000));
        match seconds {
            Some(Ok(seconds)) => seconds.saturating_add(60).min(share),
            _ => share,
        }
    }
}

impl StreamSpec {
    /// Returns how many frames a sender should have sent in all: 0 if it never started, all if it was not stopped;
    /// otherwise those due by the stop, but not fewer than the `frames` that it did send.
    pub fn planned_frames(&self, start: Option<MonoTime>, stopped: Option<MonoTime>, frames: u64) -> u64 {
        let due = match (start, stopped) {
            (None, _) => return 0,
            (Some(start), Some(stopped)) => self.timeline.frames_due_before(stopped.since(start)),
            (Some(_), None) => return self.timeline.total_frames().unwrap_or(u64::MAX),
        };
        due.max(frames)
    }
}

/// Seconds in a day.
const DAY: usize = 86_400;
/// Seconds of rate series reserved for all streams together: 128 MiB, which become resident only as time passes.
const MAX_RESERVED_SERIES_SECONDS: usize = 8 << 20;

/// Job of a transmit half.
#[derive(Clone, Debug)]
pub struct TxJob {
    /// Key of the run's tags.
    pub key: TagKey,
    /// Streams to send, all from this port.
    pub streams: Vec<Arc<StreamSpec>>,
    /// Streams do not begin at the start of the run, but individually on request; see [`SteeredSender`].
    pub steered: bool,
    /// Lease of the streams. Checked before each piece of work; when it has expired, the half stops permanently.
    pub gate: SendGate,
}

/// Job of a receive half.
#[derive(Debug)]
pub struct RxJob {
    /// Index of the port in the plan.
    pub port: usize,
    /// Key of the run's tags.
    pub key: TagKey,
    pub streams: Vec<Arc<StreamSpec>>,
    /// Streams of the run that are expected only at other ports.
    pub elsewhere: Vec<Arc<StreamSpec>>,
    /// Earlier runs of this machine whose frames may still arrive.
    pub earlier_runs: Vec<EarlierRun>,
    /// Captures of this port: each gets all received frames.
    pub taps: Vec<CaptureTap>,
    /// Whether the port has emulated interfaces: messages between them and their neighbours are counted separately.
    pub has_devices: bool,
}

/// An earlier run of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EarlierRun {
    pub name: String,
    /// Key of the tags in the run's frames.
    pub key: TagKey,
}

/// Results of a receiver.
#[derive(Debug, Default)]
pub struct ReceivedFrames {
    /// Results of the expected streams, in the order of the job.
    pub streams: Vec<ReceiveResult>,
    /// Frames of streams that this port does not expect, by stream.
    pub misdelivered: Vec<MisdeliveredFrames>,
    /// Frames of other runs.
    pub other_runs: Vec<OtherRunFrames>,
    /// Content of untagged frames, if frames of a file were expected.
    pub untagged_contents: ContentCounts,
}

/// A sender's record of how exactly it kept its schedule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SendingRecord {
    /// Periods in which the sender was too far behind its schedule to catch up at once.
    pub stalls: Vec<PortEvent>,
    /// Largest numbers of frames that the sender sent within short times; `None` if it does not see single frames.
    pub peaks: Option<SendingPeaks>,
    /// Frames that left closer together than planned.
    pub ahead: Vec<CatchUpBurst>,
    /// Reason why the sender's counts are uncertain, in words.
    pub fault: Option<String>,
}

/// A command to running streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamControl {
    /// Start of every schedule: frame 0 of a stream is due at this time plus the delay of the stream.
    StartAt(MonoTime),
    /// Send nothing more; unsent frames stay unsent. Receivers continue.
    Stop,
}

/// Linear relation between a receiver's clock and the clock of another node, which sends the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockShift {
    /// A time of the receiver's clock.
    pub at: MonoTime,
    /// The receiver's clock minus the sender's clock at that time, nanoseconds.
    pub offset_ns: i64,
    /// Growth of the difference, in nanoseconds per second of the receiver's clock.
    pub rate_ppb: i64,
}

impl ClockShift {
    /// Returns the time of the sender's clock when the receiver's shows `here`. Clocks with different origins may
    /// differ by any amount; times before the sender's origin become its origin.
    pub fn sender_time(&self, here: MonoTime) -> MonoTime {
        // The product uses 128 bits: a day in nanoseconds times a rate in parts per billion may exceed 64 bits.
        let since = i128::from(here.as_nanos()) - i128::from(self.at.as_nanos());
        let offset = i128::from(self.offset_ns) + since * i128::from(self.rate_ppb) / 1_000_000_000;
        let there = i128::from(here.as_nanos()) - offset;
        MonoTime::from_nanos(clamp_to_u64(there.max(0)))
    }
}

/// When a worker has to call the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// Call again at once.
    Busy,
    /// The worker has nothing to do before this time.
    IdleUntil(MonoTime),
    /// Nothing is left to do: everything has been sent and handed over, or sending was stopped.
    Done,
}

/// Sends streams. One worker owns it and calls [`StreamTx::send_due`].
pub trait StreamTx: Send {
    /// Accepts the job; may allocate. Sends nothing yet.
    fn arm_sender(&mut self, job: TxJob) -> Result<(), crate::Error>;
    fn apply_control(&mut self, control: StreamControl);
    /// Sends frames that are due at `now`. One call does a bounded amount of work.
    fn send_due(&mut self, now: MonoTime) -> Result<NextStep, crate::Error>;
    /// Returns the counts per stream, in job order.
    fn stream_counts(&self) -> Vec<StreamTxCounts>;
    /// Reads the counters of the port.
    fn port_counters(&mut self) -> Result<TxCounters, crate::Error>;
    /// Returns the final results, in job order.
    fn finish_sending(&mut self) -> Vec<SendResult>;
    /// Returns how exactly the sender kept its schedule. To be called before [`Self::finish_sending`].
    fn sending_record(&self) -> SendingRecord {
        SendingRecord::default()
    }
    /// Returns the interface to steer single streams, if this half supports it.
    fn steered_sender(&mut self) -> Option<&mut dyn SteeredSender> {
        None
    }
}

/// Starts, pauses and changes streams individually while other streams continue.
pub trait SteeredSender {
    /// Stops sending these streams until their next segment. Returns the number of the next frame of each stream.
    fn hold_streams(&mut self, streams: &[u16]) -> Vec<(u16, u64)>;
    /// Continues each of these streams with its new segment, which begins with the number of the stream's next frame.
    fn begin_segments(&mut self, segments: &[(u16, StreamSegment)]);
    /// Adds streams, which wait for their first segment. May allocate.
    fn add_streams(&mut self, streams: Vec<Arc<StreamSpec>>) -> Result<(), crate::Error>;
}

/// The receiving side of [`SteeredSender`].
pub trait SteeredReceiver {
    /// Accepts frames of these segments from now on.
    fn announce_segments(&mut self, segments: &[(u16, StreamSegment)]);
    /// Adds `streams` to be counted at this port, and streams that are expected only at other ports. May allocate.
    fn add_streams(&mut self, streams: Vec<Arc<StreamSpec>>, elsewhere: Vec<Arc<StreamSpec>>);
}

/// Receives and counts streams. One worker owns it and calls [`StreamRx::receive_arrivals`].
pub trait StreamRx: Send {
    /// Accepts the job; may allocate. Receives from now on.
    fn arm_receiver(&mut self, job: RxJob) -> Result<(), crate::Error>;
    /// Applies a command. Receivers need the origin of the schedules.
    fn apply_control(&mut self, control: StreamControl);
    /// Sets how the clocks of these streams' senders relate to the receiver's clock, from now on. Until the first call,
    /// the latency of streams from other nodes is not measured.
    fn set_clock_shifts(&mut self, shifts: &[(u16, ClockShift)]) {
        let _ = shifts;
    }
    /// Works like [`StreamTx::steered_sender`]. Segments are announced here before their first frame can arrive.
    fn steered_receiver(&mut self) -> Option<&mut dyn SteeredReceiver> {
        None
    }
    /// Receives frames that have arrived. One call does a bounded amount of work.
    fn receive_arrivals(&mut self, now: MonoTime) -> Result<NextStep, crate::Error>;
    /// Waits until a frame arrives, but not longer than `within`.
    fn wait_for_frames(&mut self, within: Nanos) -> Result<(), crate::Error>;
    /// Works like [`crate::port::FrameRx::ring_progress`].
    fn ring_progress(&mut self) -> Result<RingProgress, crate::Error> {
        Ok(RingProgress::default())
    }
    /// Returns the counts per stream, in job order; cheap.
    fn stream_counts(&self) -> Vec<StreamRxCounts>;
    /// Returns the minimum, mean and maximum latency so far over all streams.
    fn current_latency(&self) -> DelaySummary;
    /// Reads the counters of the port, including those of this run's frames.
    fn port_counters(&mut self) -> Result<RxCounters, crate::Error>;
    /// Returns the uncertainty of converting arrival stamps to the node's clock.
    fn clock_bound(&self) -> Nanos;
    /// Returns the final results, in job order. `sent` has the number of frames sent of each stream, in the same order:
    /// frames that were sent and did not arrive are lost.
    fn finish_receiving(&mut self, sent: &[u64]) -> ReceivedFrames;
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000_000_000;

    #[test]
    fn clocks_that_began_days_apart_are_related() {
        let here = MonoTime::from_nanos(HOUR);
        let shift = ClockShift { at: here, offset_ns: -1_000_000_000_000_000, rate_ppb: 0 };
        assert_eq!(shift.sender_time(here), MonoTime::from_nanos(HOUR + 1_000_000_000_000_000));
        let back = ClockShift { offset_ns: i64::MAX, ..shift };
        assert_eq!(back.sender_time(here), MonoTime::from_nanos(0));
    }

    #[test]
    fn clock_shift_follows_drift_before_and_after() {
        let at = MonoTime::from_nanos(10 * HOUR);
        let shift = ClockShift { at, offset_ns: 500, rate_ppb: 30_000 };
        let after = at + Nanos::from_secs(10);
        assert_eq!(shift.sender_time(after).as_nanos(), after.as_nanos() - 500 - 300_000);
        let before = at - Nanos::from_secs(1);
        assert_eq!(shift.sender_time(before).as_nanos(), before.as_nanos() - 500 + 30_000);
    }
}
