//! Sends probes: releases frames at their departure times, stamps them on their way out and receives the answers.
//!
//! ```text
//!  Schedule + frames -> Dispatcher (budget) -> Release (one of eight mechanisms) -> interface
//!                                                 |  DepartedFrame: hand-over, release, departure stamps
//!  answers (a ring with the kernel's stamps) -----+-> Record of every probe
//! ```
//! `packetrig_probe` evaluates series of probes. This crate has the sockets, rings, programs in the kernel and
//! clocks. It uses plain threads, not async code.
//!
//! Invariant: probes leave only through a [`release::ReleaseDispatcher`] or the sending thread of a
//! [`service`]. Both enforce the limits of the target.
#![forbid(unsafe_code)]

pub mod ask;
mod blame;
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
pub mod service;
pub mod trains;

pub use error::Error;

use packetrig_sys::clock;
use packetrig_units::{MonoTime, clamp_to_u32, clamp_to_usize};

fn now() -> MonoTime {
    MonoTime::from_nanos(clock::monotonic_ns())
}

/// Bytes of a frame without FCS, as budgets and records count them.
fn frame_length(frame: &[u8]) -> u32 {
    small_count(frame.len())
}

/// Converts a number of frames or bytes in memory to 32 bits. The number is far below `u32::MAX`, so
/// it is never clamped.
fn small_count(count: usize) -> u32 {
    clamp_to_u32(count)
}

/// Converts a number of frames to `usize`. All the frames are in memory, so their number is never clamped.
fn to_frame_count(count: u64) -> usize {
    clamp_to_usize(count)
}
