//! Releases frames at their departure times.
//!
//! A [`FrameReleaser`] is one mechanism at one interface. It accepts whole trains ahead of time. In some
//! mechanisms the kernel holds the frames until they are due; in others a thread waits and sends each frame
//! itself. A [`ReleaseDispatcher`] checks the budget before the mechanism gets a frame.
//!
//! Invariant: for each frame that is handed over there is exactly one [`DepartedFrame`], sent or not,
//! in the same order.

mod account;
mod capabilities;
mod direct;
mod dispatcher;
mod gate;
mod live;
mod open;
mod pace;
mod place;
mod queued;
mod ring;
mod train;
mod warm;
mod worker;

pub use capabilities::{MechanismCapability, find_capabilities};
pub use dispatcher::ReleaseDispatcher;
pub use open::{open_pipeline, open_release};

use crate::Error;
use packetrig_probe::{DepartureStamp, PlannedProbe, ProbeFlag, ProbeRecord, ProbeStamp, ReleaseMechanism};
use packetrig_units::{MonoTime, Nanos};

/// Options of a mechanism. Each mechanism ignores the options that do not concern it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReleaseOptions {
    /// Time from the hand-over of a frame to its departure time.
    pub ahead: Nanos,
    /// Timer slack of the sending thread: the kernel may wake the thread this much late.
    pub slack: Nanos,
    /// Time before a departure at which the sender switches from sleeping to spinning.
    pub spin_from: Nanos,
    /// Sends a few frames over the loopback interface after sleeping, so that the kernel's send path is in the CPU caches.
    pub warm: bool,
    /// Real-time priority (`SCHED_FIFO`) of the sender; `None` for ordinary scheduling.
    pub priority: Option<i32>,
    /// Processor for the sender; `None`: any.
    pub cpu: Option<usize>,
    /// Requests departure stamps, which cost time for each frame.
    pub stamps: bool,
    /// A probe that is released further than this from its departure time is flagged late or early.
    pub tolerance: Nanos,
}

impl ReleaseOptions {
    /// The defaults of a mechanism. `sleep` behaves like most programs: default timer slack, no real-time priority.
    pub const fn default_for(mechanism: ReleaseMechanism) -> Self {
        match mechanism {
            ReleaseMechanism::Sleep => {
                Self { slack: Nanos::from_micros(50), warm: false, priority: None, ..Self::common() }
            }
            _ => Self::common(),
        }
    }

    /// The defaults that all mechanisms except `sleep` have in common.
    pub const fn common() -> Self {
        Self {
            ahead: Nanos::from_micros(500),
            slack: Nanos::new(1),
            spin_from: Nanos::from_micros(120),
            warm: true,
            priority: Some(50),
            cpu: None,
            stamps: true,
            tolerance: Nanos::from_micros(50),
        }
    }
}

/// A frame and its departure time.
#[derive(Clone, Copy, Debug)]
pub struct DueFrame<'a> {
    pub at: MonoTime,
    /// The frame from its Ethernet header on, without FCS.
    pub frame: &'a [u8],
}

/// Times at which a frame left, and flags that mark problems, such as a late departure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DepartedFrame {
    /// Time of the hand-over to the kernel; `None`: the frame was not handed over.
    pub handed_over: Option<ProbeStamp>,
    /// Time of the release by the mechanism; `None` if it is unknown, as always with `fq`, `etf` and `launch`.
    pub released: Option<ProbeStamp>,
    /// Departure stamps, one for each stage (queue, driver, wire) that was stamped.
    pub departures: Vec<DepartureStamp>,
    pub flags: Vec<ProbeFlag>,
}

impl DepartedFrame {
    /// A frame that was not given to the kernel.
    pub fn new_unsent() -> Self {
        Self { flags: vec![ProbeFlag::Unsent], ..Self::default() }
    }

    /// Whether the frame was never given to the kernel.
    pub fn is_unsent(&self) -> bool {
        self.flags == [ProbeFlag::Unsent]
    }

    /// Best known departure on this node's clock, as [`ProbeRecord::local_departure`].
    pub fn local_departure(&self) -> Option<ProbeStamp> {
        DepartureStamp::last_local_departure(&self.departures).or(self.released).or(self.handed_over)
    }

    /// Builds the record of the probe; `at` is its planned departure time.
    pub fn into_record(self, planned: PlannedProbe, at: MonoTime) -> ProbeRecord {
        let Self { handed_over, released, departures, flags } = self;
        let mut record =
            ProbeRecord { handed_over, released, departures, ..ProbeRecord::from_planned(planned, at) };
        for flag in flags {
            record.add_flag(flag);
        }
        // The first probe often has to wake up the path, so statistics can leave it out.
        if planned.number == 0 && !record.flags.contains(&ProbeFlag::Unsent) {
            record.add_flag(ProbeFlag::First);
        }
        record
    }
}

/// A release mechanism at one interface.
pub trait FrameReleaser: Send {
    fn mechanism(&self) -> ReleaseMechanism;

    /// Sends a train and adds the outcome of each frame to `gone`; returns when the last frame has left.
    /// It must be called at least [`Self::lead_time`] before the first departure time. Overdue frames are
    /// sent immediately and flagged.
    fn release_train(&mut self, train: &[DueFrame<'_>], gone: &mut Vec<DepartedFrame>) -> Result<(), Error>;

    /// Minimum time between the hand-over of a train and the departure of its first probe.
    fn lead_time(&self) -> Nanos {
        Nanos::ZERO
    }

    /// Returns the requested options that could not be applied, as sentences.
    fn remarks(&self) -> &[String] {
        &[]
    }
}

/// A mechanism that accepts the next train while it still sends the current one, so that there is no
/// pause between the two.
///
/// Invariant: trains are finished in the order in which they were begun.
pub trait ReleasePipeline: Send {
    fn mechanism(&self) -> ReleaseMechanism;

    /// Hands a train over and returns at once; the train begins when the one before has left. At most
    /// [`MAX_UNFINISHED_TRAINS`] trains may be unfinished.
    fn begin_train(&mut self, train: &[DueFrame<'_>]) -> Result<(), Error>;

    /// Waits until the oldest unfinished train has left, and adds the outcome of each frame to `gone`.
    fn finish_train(&mut self, gone: &mut Vec<DepartedFrame>) -> Result<(), Error>;

    /// A train must be begun this long before its first departure.
    fn lead_time(&self) -> Nanos;

    /// Bytes of the longest frame that the mechanism can send, without FCS.
    fn longest_frame(&self) -> usize;

    /// Returns the requested options that could not be applied, as sentences.
    fn remarks(&self) -> &[String];
}

/// Number of trains that a [`ReleasePipeline`] accepts before the first one has to be finished: the one that
/// is leaving, and the next one.
pub const MAX_UNFINISHED_TRAINS: usize = 2;

#[cfg(test)]
mod tests;
