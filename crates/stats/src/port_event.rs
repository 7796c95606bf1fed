//! Events of a port's interface during a run.
//!
//! The interface is checked repeatedly. An event truly begins between two checks. So the interval of an event lasts
//! from the last check that found the interface in order until the first check that found it in order again.

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
        /// The MTU at the start of the run.
        from: u32,
        /// The smallest MTU that was seen.
        to: u32,
    },
    /// The interface got another MAC address, or another bridge or bond as its master.
    Reconfigured,
    /// The kernel reset the transmit queue, because the driver did not transmit from it.
    TransmitReset,
    /// The network card or its driver dropped frames before the kernel could see them.
    DriverDropped { frames: u64 },
    /// The sender did not run for some time, or was catching up afterwards: frames left later than the plan tolerates.
    SenderStalled {
        /// Delay of the most delayed frame.
        most_late: Nanos,
    },
    /// The interface lost its carrier while it was up. The cause is not known.
    CarrierLost,
    /// The external program that sends for the port failed: it is not known for certain which frames it sent.
    EngineFailed,
    /// Sending or receiving failed with a kernel error, and that half of the port did nothing more.
    PortFailed,
    /// The link was switched down because the plan or the user ordered it.
    Declared,
    /// A tap on this machine lost frames in its own rings; `frames` is absent if the tap did not report how many.
    TapDropped { frames: Option<u64> },
}

/// The cause of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventCause {
    /// This machine: a fault of the rig.
    Rig,
    /// The cause is not known: the device, the cable or the rig.
    Unknown,
    /// The plan ordered the event: it is part of the measurement.
    Plan,
    /// The device under test, which the user expects to cause the event: it is part of the measurement.
    Device,
}

impl EventCause {
    /// Returns whether the event is part of the measurement: losses during the event are then losses of the device.
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

    /// Returns the maximum number of frames that were lost by the event; `None` if that was not counted.
    pub const fn max_lost_frames(&self) -> Option<u64> {
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
            Self::Reconfigured => {
                f.pad("its interface was given another MAC address or another master interface")
            }
            Self::TransmitReset => f.pad("the kernel reset its transmit queue"),
            Self::DriverDropped { frames } => write!(f, "its network card or driver dropped {frames} frames"),
            Self::SenderStalled { most_late } => {
                write!(f, "its sender stalled: frames left up to {most_late} late")
            }
            Self::EngineFailed => f.pad("the program that sent frames for it failed"),
            Self::PortFailed => f.pad("sending or receiving on it failed with a kernel error"),
            Self::CarrierLost => f.pad("it lost the carrier; the cause is unknown"),
            Self::Declared => f.pad("its link was switched down because the plan or the user ordered it"),
            Self::TapDropped { frames: Some(frames) } => {
                write!(f, "a tap on this machine lost {frames} frames in its own rings")
            }
            Self::TapDropped { frames: None } => f.pad("a tap on this machine did not report its losses"),
        }
    }
}

/// An event of a port, and the interval in which it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortEvent {
    pub what: PortEventKind,
    /// The last time before the event at which the port was known to be in order.
    pub from: MonoTime,
    /// The first time at which the port was in order again; absent if it was not until the end of the run.
    pub until: Option<MonoTime>,
    /// True if the event concerns only the frames that the port sends.
    #[serde(default)]
    pub only_sending: bool,
}
