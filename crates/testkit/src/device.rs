//! The reference device: a user-space forwarder that applies a plan of faults and records its actions.
//!
//! ```text
//!   port 0 --> receive ring --> Impairer (FaultPlan) --> transmit rings of the other ports
//! ```
//! [`packetrig_link`] decides what happens to each frame; [`Device`] runs it over packet rings, with one thread per
//! port. A frame leaves on every other port.
//!
//! Invariant: every frame that the device sent had arrived before, changed only by the faults in [`KeyFrameTruth`].
//! Frames that the device lost without a fault of the plan are counted.

mod forward;

pub use forward::{Device, DeviceReport, Error};
pub use packetrig_link::{
    ExpectedCounts, FaultPlan, FaultRule, FrameClassifier, FrameFault, HeaderEdit, KeyFrameTruth, QueueLimit,
    RateQueue, RulePositions,
};
