//! Labs of network namespaces, and the reference device: a forwarder with faults that are known frame by frame.
//!
//! [`lab::Lab`] builds ports and virtual cables that exist only on this machine and are removed with the lab.
//! [`device`] is the device under test between the ports. It records everything that it does to frames, so that the
//! rig's report can be compared with the truth. The demo, the system tests and the evaluations use both.
//!
//! This crate reads no streams, sequence numbers or tags: the truth must not come from the code that it is to check.
#![forbid(unsafe_code)]

mod blame;
pub mod device;
pub mod lab;

pub use lab::{Lab, PortConnection};
