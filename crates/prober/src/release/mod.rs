//! Frames released at their instants.
//!
//! A [`FrameRelease`] is one mechanism at one interface. It is given whole trains ahead of time and does with them what its kind can: hold
//! them in the kernel, or sleep itself. A [`ReleaseDispatcher`] stands in front of it and keeps the budget.
//!
//! Invariant: whatever was given comes back exactly once as a [`DepartedFrame`], sent or not, in order.

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

pub use capabilities::{MechanismCapability, capabilities};
pub use dispatcher::ReleaseDispatcher;
pub use open::open;

use crate::Error;
use packetrig_probe::{DepartureStamp, PlannedProbe, ProbeFlag, ProbeRecord, ProbeStamp, ReleaseMechanism};
use packetrig_units::{MonoTime, Nanos};

/// How a mechanism is to work. What does not concern a mechanism is ignored by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReleaseOptions {
    /// How long before its first instant a train is handed over.
    pub ahead: Nanos,
    /// How much later than asked the kernel may wake the sender (timer slack), and `fq` may release.
    pub slack: Nanos,
    /// How long before an instant sleeping ends and spinning begins.
    pub spin_from: Nanos,
    /// Whether to send a few frames over the loopback interface after sleeping, so that the kernel's way of a frame is in the caches.
    pub warm: bool,
    /// Real-time priority (`SCHED_FIFO`) of the sender; `None`: ordinary.
    pub priority: Option<i32>,
    /// Processor for the sender; `None`: any.
    pub cpu: Option<usize>,
    /// Whether to ask for departure stamps, which costs time for each frame.
    pub stamps: bool,
    /// Released later than this after its instant, or earlier before it, a probe is flagged.
    pub tolerance: Nanos,
}

impl ReleaseOptions {
    /// What a mechanism is like unless it is told otherwise: a sender that sleeps is as most programs are.
    pub const fn usual_for(mechanism: ReleaseMechanism) -> Self {
        match mechanism {
            ReleaseMechanism::Sleep => {
                Self { slack: Nanos::from_micros(50), warm: false, priority: None, ..Self::usual() }
            }
            _ => Self::usual(),
        }
    }

    /// What suits a mechanism on most machines.
    pub const fn usual() -> Self {
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

/// A frame and when it is to go.
#[derive(Clone, Copy, Debug)]
pub struct DueFrame<'a> {
    pub at: MonoTime,
    /// The frame from its Ethernet header on, without FCS.
    pub frame: &'a [u8],
}

/// What became of a frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DepartedFrame {
    /// When it was given to the kernel; `None`: it was not.
    pub handed_over: Option<ProbeStamp>,
    /// When whoever held it back let it go.
    pub released: Option<ProbeStamp>,
    /// When it left, as far as the system says.
    pub departures: Vec<DepartureStamp>,
    pub flags: Vec<ProbeFlag>,
}

impl DepartedFrame {
    /// Of a frame that was not given to the kernel.
    pub fn unsent() -> Self {
        Self { flags: vec![ProbeFlag::Unsent], ..Self::default() }
    }

    /// When it left on this node's clock, as [`ProbeRecord::left_here`].
    pub fn left_here(&self) -> Option<ProbeStamp> {
        DepartureStamp::last_here(&self.departures).or(self.released).or(self.handed_over)
    }

    /// The record of a probe that became this; `at` is its instant.
    pub fn into_record(self, planned: PlannedProbe, at: MonoTime) -> ProbeRecord {
        let Self { handed_over, released, departures, flags } = self;
        let mut record =
            ProbeRecord { handed_over, released, departures, ..ProbeRecord::planned(planned, at) };
        for flag in flags {
            record.flag(flag);
        }
        if planned.number == 0 && !record.flags.contains(&ProbeFlag::Unsent) {
            record.flag(ProbeFlag::First);
        }
        record
    }
}

/// One mechanism at one interface.
pub trait FrameRelease: Send {
    fn mechanism(&self) -> ReleaseMechanism;

    /// Sends a train and tells what became of each frame; gives back control when the last one is gone. The caller is early enough:
    /// by [`Self::lead`] before the first instant. Instants that are past are sent at once and flagged.
    fn release(&mut self, train: &[DueFrame<'_>], gone: &mut Vec<DepartedFrame>) -> Result<(), Error>;

    /// How long before its first instant a train is to be given.
    fn lead(&self) -> Nanos {
        Nanos::ZERO
    }

    /// What it could not do as it was asked to, in words.
    fn remarks(&self) -> &[String] {
        &[]
    }
}

#[cfg(test)]
mod tests;
