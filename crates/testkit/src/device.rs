//! The reference device: a user-space forwarder with faults from a plan, and a list of its actions.
//!
//! ```text
//!   port 0 --> receive ring --> Impairer (FaultPlan) --> transmit rings of the other ports
//! ```
//! [`packetrig_link`], which is pure, decides the fate of each frame; [`Device`] runs it on a thread per port over packet rings.
//! Frames leave on every other port.
//!
//! Invariant: every frame that left had arrived before, changed only by the faults in [`KeyFrameTruth`]. Frames
//! that the device itself lost are counted.

mod forward;

pub use forward::{Device, DeviceReport, Error};
pub use packetrig_link::{
    ExpectedCounts, FaultPlan, FaultRule, FrameClassifier, FrameFault, HeaderEdit, KeyFrameTruth, QueueLimit,
    RateQueue, RulePositions,
};
