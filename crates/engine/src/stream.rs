//! The stream level: what a run asks of a port.
//!
//! A back end whose fast path never shows frames to user space implements these two traits itself; the others inherit
//! [`crate::sender::TestSender`] and [`crate::receiver::TestReceiver`]. Workers and the rig know nothing below this level.

use crate::capture::CaptureTap;
use crate::gate::SendGate;
use crate::port::RingProgress;
use crate::replay::ReplayTrack;
use crate::take::Take;
use packetrig_plan::recording::{FrameOrigin, ReplayTiming};
use packetrig_plan::timeline::StreamTimeline;
use packetrig_stats::content::ContentCounts;
use packetrig_stats::counts::DelaySummary;
use packetrig_stats::counts::{StreamRxCounts, StreamTxCounts};
use packetrig_stats::port::{RxCounters, TxCounters};
use packetrig_stats::port_event::PortEvent;
use packetrig_stats::result::{
    MisdeliveredFrames, OtherRunFrames, ReceiveResult, SendResult, SendingPeaks, SentAhead,
};
use packetrig_units::{MonoTime, Nanos, clamp_to_u64};
use packetrig_wire::{FrameTemplate, tag::TagKey};
use std::sync::Arc;

/// A stream as the data plane knows it. Sender and receivers share it.
#[derive(Clone, Debug)]
pub struct StreamSpec {
    /// Its index in the plan and its number in the test tag.
    pub number: u16,
    /// Where its frames come from.
    pub source: FrameSource,
    pub timeline: StreamTimeline,
    /// Whether latency is wanted.
    pub latency: bool,
    /// Another node sends it: its tags tell the time of another clock.
    pub sent_elsewhere: bool,
    /// Its tags have no send time: another program sends frames that were made before.
    pub untimed: bool,
}

/// Where the frames of a stream come from.
#[derive(Clone, Debug)]
pub enum FrameSource {
    /// Made from a template.
    Made(Arc<FrameTemplate>),
    /// Read from a capture file.
    Recorded(Arc<ReplayTrack>),
}

impl FrameSource {
    /// The source a plan names.
    pub fn of(frames: &FrameOrigin) -> Self {
        match frames {
            FrameOrigin::Made(template) => Self::Made(Arc::clone(template)),
            FrameOrigin::Recorded(recording) => {
                Self::Recorded(Arc::new(ReplayTrack::new(Arc::clone(recording))))
            }
        }
    }

    /// The template, if there is one.
    pub fn template(&self) -> Option<&Arc<FrameTemplate>> {
        match self {
            Self::Made(template) => Some(template),
            Self::Recorded(_) => None,
        }
    }
}

impl StreamSpec {
    /// Seconds of series to reserve for this stream when `streams` share the memory: its length and a minute for being
    /// late; a day, or less if there are many, when it has no end.
    pub fn series_room(&self, streams: usize) -> usize {
        let share = (SERIES_ROOM / streams.max(1)).min(DAY);
        let is_unpaced = matches!(&self.source, FrameSource::Recorded(track) if track.recording().timing == ReplayTiming::Fastest);
        let end = self.timeline.end().filter(|_| !is_unpaced);
        let seconds = end.map(|end| usize::try_from(end.as_u64() / 1_000_000_000));
        match seconds {
            Some(Ok(seconds)) => seconds.saturating_add(60).min(share),
            _ => share,
        }
    }
}

impl StreamSpec {
    /// Frames that a sender should have sent by its end, when it sent `frames`: none before the start, those due by the
    /// time it was stopped, all if it was not stopped.
    pub fn planned(&self, start: Option<MonoTime>, stopped: Option<MonoTime>, frames: u64) -> u64 {
        let due = match (start, stopped) {
            (None, _) => return 0,
            (Some(start), Some(stopped)) => self.timeline.due_before(stopped.since(start)),
            (Some(_), None) => return self.timeline.total().unwrap_or(u64::MAX),
        };
        due.max(frames)
    }
}

/// Seconds in a day.
const DAY: usize = 86_400;
/// Seconds of series reserved in all: 128 MiB, touched only as time passes.
const SERIES_ROOM: usize = 8 << 20;

/// The job of a transmit half.
#[derive(Clone, Debug)]
pub struct TxJob {
    /// Key of the run's tags.
    pub key: TagKey,
    /// Streams to send, all from this port.
    pub streams: Vec<Arc<StreamSpec>>,
    /// Streams do not begin at T, but one by one on request; see [`SteeredSender`].
    pub steered: bool,
    /// Until when they may be sent. Looked at before each piece of work; found shut, the half stops for good.
    pub gate: SendGate,
}

/// The job of a receive half.
#[derive(Debug)]
pub struct RxJob {
    /// Index of the port in the plan.
    pub port: usize,
    /// Key of the run's tags.
    pub key: TagKey,
    pub streams: Vec<Arc<StreamSpec>>,
    /// Streams of the run that are expected at other ports, and not here.
    pub elsewhere: Vec<Arc<StreamSpec>>,
    /// Runs whose frames may still arrive.
    pub earlier_runs: Vec<EarlierRun>,
    /// Where frames are to be captured, too.
    pub taps: Vec<CaptureTap>,
    /// The port has emulated interfaces: what they and their neighbours say to each other is counted by itself.
    pub has_devices: bool,
}

/// A run of this machine before this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EarlierRun {
    pub name: String,
    /// Key of its tags.
    pub key: TagKey,
}

/// The final word of a receiver.
#[derive(Debug, Default)]
pub struct ReceivedFrames {
    /// Per stream that was expected, in job order.
    pub streams: Vec<ReceiveResult>,
    /// Per stream that was not expected and came nevertheless.
    pub misdelivered: Vec<MisdeliveredFrames>,
    /// Frames of other runs.
    pub other_runs: Vec<OtherRunFrames>,
    /// Content of the frames without a tag, if frames of a file were expected.
    pub untagged_contents: ContentCounts,
}

/// What a sender says of its port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SendingRecord {
    /// When it was behind its schedule by more than it may catch up at once.
    pub stalls: Vec<PortEvent>,
    /// The most frames that it sent within short times; absent if it does not see single frames.
    pub peaks: Option<SendingPeaks>,
    /// Frames that left closer together than planned.
    pub ahead: Vec<SentAhead>,
    /// Why its counts are not certain, in words.
    pub fault: Option<String>,
}

/// A change while streams run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamControl {
    /// The origin of every schedule: frame 0 is due then, plus its stream's delay.
    StartAt(MonoTime),
    /// Send nothing more; what is unsent stays unsent. Receivers go on.
    Stop,
}

/// How a receiver's clock relates to that of a stream's sender on another node: linear in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockShift {
    /// A time of the receiver's clock.
    pub at: MonoTime,
    /// What the receiver's clock shows then, minus what the sender's shows.
    pub offset_ns: i64,
    /// How fast that grows, in nanoseconds per second of the receiver's clock.
    pub rate_ppb: i64,
}

impl ClockShift {
    /// What the sender's clock shows when the receiver's shows `here`. Clocks that began at other instants may be any time
    /// apart; what would be before the sender's origin is its origin.
    pub fn sender_time(&self, here: MonoTime) -> MonoTime {
        // In 128 bits: a day in nanoseconds times a rate in parts per thousand million need not fit 64.
        let since = i128::from(here.as_nanos()) - i128::from(self.at.as_nanos());
        let offset = i128::from(self.offset_ns) + since * i128::from(self.rate_ppb) / 1_000_000_000;
        let there = i128::from(here.as_nanos()) - offset;
        MonoTime::from_nanos(clamp_to_u64(there.max(0)))
    }
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// Call again at once.
    Busy,
    /// Nothing to do before this instant.
    IdleUntil(MonoTime),
    /// Everything is sent and handed over.
    Done,
}

/// Sends streams. One worker owns it and calls [`StreamTx::step`].
pub trait StreamTx: Send {
    /// Takes the job; may allocate. Nothing is sent yet.
    fn arm(&mut self, job: TxJob) -> Result<(), crate::Error>;
    fn control(&mut self, control: StreamControl);
    /// Does what is due at `now`, a bounded amount of work.
    fn step(&mut self, now: MonoTime) -> Result<NextStep, crate::Error>;
    /// Counts per stream, in job order.
    fn counts(&self) -> Vec<StreamTxCounts>;
    /// Counters of the port.
    fn port_counters(&mut self) -> Result<TxCounters, crate::Error>;
    /// The final word, in job order.
    fn finish(&mut self) -> Vec<SendResult>;
    /// When it was behind, and how many frames it sent at once. To be asked before [`Self::finish`].
    fn record(&self) -> SendingRecord {
        SendingRecord::default()
    }
    /// How to steer single streams, if this half can.
    fn steering(&mut self) -> Option<&mut dyn SteeredSender> {
        None
    }
}

/// Streams that begin, pause and change one by one while others go on.
pub trait SteeredSender {
    /// Sends nothing more of these streams before their next take. Says of each which number comes next.
    fn hold(&mut self, streams: &[u16]) -> Vec<(u16, u64)>;
    /// Goes on with these takes, which continue the numbers of their streams.
    fn begin(&mut self, takes: &[(u16, Take)]);
    /// Takes streams on; they wait for their first take. May allocate.
    fn add(&mut self, streams: Vec<Arc<StreamSpec>>) -> Result<(), crate::Error>;
}

/// The receiving side of [`SteeredSender`].
pub trait SteeredReceiver {
    /// Frames of these takes may arrive from now on.
    fn announce(&mut self, takes: &[(u16, Take)]);
    /// Accounts these streams, too, and those that are expected elsewhere. May allocate.
    fn add(&mut self, streams: Vec<Arc<StreamSpec>>, elsewhere: Vec<Arc<StreamSpec>>);
}

/// Accounts streams. One worker owns it and calls [`StreamRx::step`].
pub trait StreamRx: Send {
    /// Takes the job; may allocate. Receives from now on.
    fn arm(&mut self, job: RxJob) -> Result<(), crate::Error>;
    /// Tells the origin of the schedules.
    fn control(&mut self, control: StreamControl);
    /// Tells how the clocks of the senders of these streams relate to this one, from now on. Frames of a stream that is sent
    /// elsewhere have no latency before.
    fn shift(&mut self, shifts: &[(u16, ClockShift)]) {
        let _ = shifts;
    }
    /// As [`StreamTx::steering`]. Takes are announced here before a frame of them can arrive.
    fn steering(&mut self) -> Option<&mut dyn SteeredReceiver> {
        None
    }
    /// Takes in what has arrived, a bounded amount of work.
    fn step(&mut self, now: MonoTime) -> Result<NextStep, crate::Error>;
    /// Waits until something arrives, at most this long.
    fn wait(&mut self, within: Nanos) -> Result<(), crate::Error>;
    /// As [`crate::port::FrameRx::progress`].
    fn progress(&mut self) -> Result<RingProgress, crate::Error> {
        Ok(RingProgress::default())
    }
    /// Counts per stream, in job order; cheap.
    fn counts(&self) -> Vec<StreamRxCounts>;
    /// (least, mean, most) latency so far over all streams.
    fn latency_so_far(&self) -> DelaySummary;
    /// Counters of the port, those of this run's frames included.
    fn port_counters(&mut self) -> Result<RxCounters, crate::Error>;
    /// Doubt of converting arrival stamps to the node's clock.
    fn clock_bound(&self) -> Nanos;
    /// The final word, in job order. `sent` is what each stream sent in all: what is missing of it is lost.
    fn finish(&mut self, sent: &[u64]) -> ReceivedFrames;
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
    fn a_shift_grows_with_the_time_since_its_instant_and_shrinks_before_it() {
        let at = MonoTime::from_nanos(10 * HOUR);
        let shift = ClockShift { at, offset_ns: 500, rate_ppb: 30_000 };
        let after = at + Nanos::from_secs(10);
        assert_eq!(shift.sender_time(after).as_nanos(), after.as_nanos() - 500 - 300_000);
        let before = at - Nanos::from_secs(1);
        assert_eq!(shift.sender_time(before).as_nanos(), before.as_nanos() - 500 + 30_000);
    }
}
