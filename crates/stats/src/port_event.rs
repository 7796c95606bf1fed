//! Events of a port's interface while a run used it.
//!
//! A watcher looks at the interface all the time. The true begin of an event lies between two looks. So an event lasts from the
//! last look that found the interface in order until the first that found it in order again.

use packetrig_units::{MonoTime, Nanos};
use serde::{Deserialize, Serialize};
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum PortEventKind {
    /// The interface was switched down on this machine.
    SwitchedDown,
    /// The interface was deleted, or moved to another namespace.
    Deleted,
    /// The MTU of the interface became too small for the frames of the run.
    MtuLowered {
        /// The MTU when the run began.
        from: u32,
        /// The smallest MTU seen.
        to: u32,
    },
    /// The interface got another MAC address, or another bridge or bond as its master.
    Reconfigured,
    /// The kernel reset the transmit queue because the driver did not move it.
    TransmitReset,
    /// The network card or its driver dropped frames before anyone could see them.
    DriverDropped { frames: u64 },
    /// The sender was stopped for some time, or caught up after it: frames left later than the plan tolerates.
    SenderStalled {
        /// Delay of the latest frame.
        most_late: Nanos,
    },
    /// The carrier went away while the interface was up. The cause is not known.
    CarrierLost,
    /// Another program sent for the port and made an error: the frames it sent are not known for certain.
    EngineFailed,
    /// Sending or receiving met an error of the kernel: that half of the port did nothing more.
    PortFailed,
    /// The link was switched down because the plan or its user ordered it.
    Declared,
    /// A tap on this machine lost frames in its own rings; absent if it did not report how many.
    TapDropped { frames: Option<u64> },
}

/// Cause of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventCause {
    /// This machine: a fault of the rig.
    Rig,
    /// The cause is not known: the device, the cable or the rig.
    Unknown,
    /// The plan: the event is part of the measurement.
    Plan,
    /// The device under test, which the user expects to do it: the event is part of the measurement.
    Device,
}

impl EventCause {
    /// Returns whether the event is part of the measurement: losses at its time are the device's.
    pub const fn is_measured(self) -> bool {
        matches!(self, Self::Plan | Self::Device)
    }
}

impl PortEventKind {
    pub const fn cause(self) -> EventCause {
        match self {
            Self::SwitchedDown
            | Self::Deleted
            | Self::MtuLowered { .. }
            | Self::Reconfigured
            | Self::TransmitReset
            | Self::DriverDropped { .. }
            | Self::SenderStalled { .. }
            | Self::EngineFailed
            | Self::PortFailed
            | Self::TapDropped { .. } => EventCause::Rig,
            Self::CarrierLost => EventCause::Unknown,
            Self::Declared => EventCause::Plan,
        }
    }

    /// Returns how many frames it can have cost at most, if that was counted.
    pub const fn most_frames(&self) -> Option<u64> {
        match self {
            Self::DriverDropped { frames } => Some(*frames),
            Self::TapDropped { frames } => *frames,
            _ => None,
        }
    }
}

impl fmt::Display for PortEventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SwitchedDown => f.pad("its interface was switched down on this machine"),
            Self::Deleted => f.pad("its interface was deleted"),
            Self::MtuLowered { from, to } => {
                write!(f, "the MTU of its interface was lowered from {from} to {to}")
            }
            Self::Reconfigured => f.pad("its interface was given another MAC address or bridge"),
            Self::TransmitReset => f.pad("the kernel reset its transmit queue"),
            Self::DriverDropped { frames } => write!(f, "its network card or driver dropped {frames} frames"),
            Self::SenderStalled { most_late } => {
                write!(f, "its sender stalled: frames left up to {most_late} late")
            }
            Self::EngineFailed => f.pad("the program that sent for it failed"),
            Self::PortFailed => f.pad("the kernel refused to let the rig use it"),
            Self::CarrierLost => f.pad("it lost the carrier; the cause is unknown"),
            Self::Declared => f.pad("its link was switched down as ordered"),
            Self::TapDropped { frames: Some(frames) } => {
                write!(f, "a tap on this machine lost {frames} frames in its own rings")
            }
            Self::TapDropped { frames: None } => f.pad("a tap on this machine did not report its losses"),
        }
    }
}

/// Something that happened to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortEvent {
    pub what: PortEventKind,
    /// The last time at which the port was known to be in order.
    pub from: MonoTime,
    /// The first time at which the port was in order again; absent if it was not by the end of the run.
    pub until: Option<MonoTime>,
    /// True if it concerns only frames that the port sends.
    #[serde(default)]
    pub only_sending: bool,
}
