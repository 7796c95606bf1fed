//! Labs of network namespaces, and the reference device: a forwarder whose faults are known frame for frame.
//!
//! [`lab::Lab`] builds ports and cables that exist nowhere but in this machine and vanish with it. [`device`] stands
//! between them as the device under test and keeps a list of everything it did, so that what the rig reports can be
//! compared with the truth. The demo uses both; so do the system tests and the evaluations.
//!
//! It has no notion of streams, sequence numbers or tags: the truth must not come from the code that it is to judge.
#![forbid(unsafe_code)]

mod blame;
pub mod device;
pub mod lab;

pub use lab::{Lab, PortConnection};
