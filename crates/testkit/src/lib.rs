//! Labs of network namespaces, and the reference device: a forwarder with faults that are known frame by frame.
//!
//! [`lab::Lab`] builds ports and cables that exist only on this machine and are removed with the lab. [`device`]
//! is the device under test between them. It records all its actions, so that the rig's report can be compared
//! with the truth. The demo, the system tests and the evaluations use both.
//!
//! This crate knows no streams, sequence numbers or tags: the truth must not come from the code that is judged by it.
#![forbid(unsafe_code)]

mod blame;
pub mod device;
pub mod lab;

pub use lab::{Lab, PortConnection};
