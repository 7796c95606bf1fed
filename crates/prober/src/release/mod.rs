//! Frames released at their instants.
//!
//! A [`Release`] is one mechanism at one interface. It is given whole trains ahead of time and does with them what its kind can: hold
//! them in the kernel, or sleep itself. A [`Dispatcher`] stands in front of it and keeps the budget.
//!
//! Invariant: whatever was given comes back exactly once as a [`Gone`], sent or not, in order.

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

pub use capabilities::{Capability, capabilities};
pub use dispatcher::Dispatcher;
pub use open::open;

use crate::Error;
use packetrig_probe::{Departure, Flag, Mechanism, Planned, Record, Stamp};
use packetrig_units::{MonoTime, Nanos};

/// How a mechanism is to work. What does not concern a mechanism is ignored by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manner {
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

impl Manner {
    /// What a mechanism is like unless it is told otherwise: a sender that sleeps is as most programs are.
    pub const fn usual_for(mechanism: Mechanism) -> Self {
        match mechanism {
            Mechanism::Sleep => {
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
pub struct Due<'a> {
    /// The instant.
    pub at: MonoTime,
    /// The frame from its Ethernet header on, without FCS.
    pub frame: &'a [u8],
}

/// What became of a frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gone {
    /// When it was given to the kernel; `None`: it was not.
    pub handed_over: Option<Stamp>,
    /// When whoever held it back let it go.
    pub released: Option<Stamp>,
    /// When it left, as far as the system says.
    pub departures: Vec<Departure>,
    /// Doubts.
    pub flags: Vec<Flag>,
}

impl Gone {
    /// Of a frame that was not given to the kernel.
    pub fn unsent() -> Self {
        Self { flags: vec![Flag::Unsent], ..Self::default() }
    }

    /// When it left on this node's clock, as [`Record::left_here`].
    pub fn left_here(&self) -> Option<Stamp> {
        Departure::last_here(&self.departures).or(self.released).or(self.handed_over)
    }

    /// The record of a probe that became this; `at` is its instant.
    pub fn into_record(self, planned: Planned, at: MonoTime) -> Record {
        let Self { handed_over, released, departures, flags } = self;
        let mut record = Record { handed_over, released, departures, ..Record::planned(planned, at) };
        for flag in flags {
            record.flag(flag);
        }
        if planned.number == 0 && !record.flags.contains(&Flag::Unsent) {
            record.flag(Flag::First);
        }
        record
    }
}

/// One mechanism at one interface.
pub trait Release: Send {
    /// Which.
    fn mechanism(&self) -> Mechanism;

    /// Sends a train and tells what became of each frame; gives back control when the last one is gone. The caller is early enough:
    /// by [`Self::lead`] before the first instant. Instants that are past are sent at once and flagged.
    fn release(&mut self, train: &[Due<'_>], gone: &mut Vec<Gone>) -> Result<(), Error>;

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
