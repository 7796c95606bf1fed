//! The reference device: a user-space forwarder with faults from a plan, and a list of what it did.
//!
//! ```text
//!   port 0 --> receive ring --> Impairer (FaultPlan) --> transmit rings of the other ports
//! ```
//! What happens to a frame is decided by [`packetrig_link`], which is pure; [`Device`] runs it on a thread per
//! port over packet rings. Frames leave on every other port.
//!
//! Invariant: what left is what came in, but for the faults in [`KeyTruth`]; frames the device lost by itself are counted.

mod forward;

pub use forward::{Device, DeviceReport, Error};
pub use packetrig_link::{
    ExpectedCounts, FaultPlan, FaultRule, FrameClassifier, FrameFault, HeaderEdit, KeyTruth, QueueLimit,
    RateQueue, RulePositions,
};
