//! Emulated interfaces: they answer for their addresses, resolve neighbours and ping, through separate sockets.
//!
//! `machine` is the whole behaviour without any I/O: frames in, frames out, deadlines, time as an argument. `host` is
//! the worker that runs one machine per port. Nothing is configured on the kernel's interface.
//!
//! They carry no test traffic and do not disturb it: frames with a test tag of the long form are never answered.
//!
//! Invariant: a frame is answered only if it was sent to an address of the port, on the VLAN of that address.

pub(crate) mod filter;
mod frames;
pub(crate) mod host;
mod machine;

pub use frames::is_link_protocol_frame;
pub use host::PortSite;
pub use machine::{DeviceMachine, PingState};

#[cfg(test)]
mod tests;
