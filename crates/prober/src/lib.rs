//! Sends probes: releases frames at their departure times, stamps them on their way out and receives the answers.
//!
//! ```text
//!  Schedule + frames -> Dispatcher (budget) -> Release (one of eight mechanisms) -> interface
//!                                                 |  Gone: hand-over, release, departure stamps
//!  answers (a ring with the kernel's stamps) -----+-> Record of every probe
//! ```
//! `packetrig_probe` knows what a series of probes says about a path. This crate has the sockets, rings, programs in the kernel
//! and clocks. It uses plain threads, no async.
//!
//! Invariant: no frame leaves but through a [`release::ReleaseDispatcher`], which keeps the limits of the target.
#![forbid(unsafe_code)]

pub mod ask;
pub mod calibrate;
pub mod circumstances;
mod error;
#[cfg(test)]
mod lab;
pub mod listener;
pub mod oneprobe;
pub mod path;
pub mod reflect;
pub mod release;
pub mod send;
pub mod trains;

pub use error::Error;

use packetrig_sys::clock;
use packetrig_units::MonoTime;

fn now() -> MonoTime {
    MonoTime::from_nanos(clock::monotonic_ns())
}
