//! Emulated interfaces: they answer ARP, neighbour discovery and pings for their addresses, resolve neighbours, and
//! send pings. They use sockets of their own.
//!
//! `machine` is the whole behaviour without any I/O: frames in, frames out, deadlines, time as an argument. `host` is
//! the worker that runs one machine per port. Nothing is configured on the kernel's interface.
//!
//! Emulated interfaces carry no test traffic and do not disturb it: frames with a long test tag are never answered.
//!
//! Invariant: a frame is answered only if it asks for an address of an emulated interface, on that interface's VLAN.

pub(crate) mod filter;
mod frames;
pub(crate) mod host;
mod machine;

pub use frames::is_link_protocol_frame;
pub use host::PortInterfaceHandle;
pub use machine::{DeviceMachine, PingState};

#[cfg(test)]
mod tests;
