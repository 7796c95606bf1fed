//! Probes at work: frames released at their instants, stamped on their way out, and what comes back.
//!
//! ```text
//!  Schedule + frames -> Dispatcher (budget) -> Release (one of eight mechanisms) -> interface
//!                                                 |  Gone: hand-over, release, departure stamps
//!  answers (a ring with the kernel's stamps) -----+-> Record of every probe
//! ```
//! What a series of probes says about a path is `packetrig_probe`'s to know; here are sockets, rings, programs in the kernel
//! and clocks. Plain threads, no async.
//!
//! Invariant: no frame leaves but through a [`release::ReleaseDispatcher`], which keeps the limits of the target.
#![forbid(unsafe_code)]

pub mod ask;
pub mod calibrate;
pub mod circumstances;
pub mod ear;
mod error;
#[cfg(test)]
mod lab;
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
