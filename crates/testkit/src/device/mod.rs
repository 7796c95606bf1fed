//! The reference device: a user-space forwarder with faults from a plan, and a list of what it did.
//!
//! ```text
//!   port 0 --> receive ring --> Impairer (FaultPlan) --> transmit rings of the other ports
//! ```
//! [`Impairer`] is pure: frames and time in, frames out. [`Device`] runs one on a thread per port over packet rings.
//! A frame is known by its *key*, which a [`Classifier`] reads from its bytes, and its *position*, the number of frames
//! with that key that arrived before it on that port. Frames leave on every other port.
//!
//! Invariant: what left is what came in, but for the faults in [`Truth`]; frames the device lost by itself are counted.

mod edit;
mod forward;
mod impair;
mod plan;
mod truth;

pub use edit::Edit;
pub use forward::{Device, DeviceReport, Error};
pub use impair::Impairer;
pub use plan::{Classifier, Fault, FaultPlan, Rule, Select};
pub use truth::{Accounts, Truth};
