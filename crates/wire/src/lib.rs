//! Frames and headers: the bytes of a stream's frames, and how the receiver recognises them.
//!
//! A [`FrameSpec`] (headers, patterns, sizes, payload) compiles into a [`FrameTemplate`], which renders frame
//! number `n` at any `n`, in any order, without state: sender and receiver hold the same template, so the receiver
//! can decide for every frame whether it arrived as it was sent. The [`tag`] in the payload carries stream,
//! sequence and send time.
//!
//! It does no I/O, reads no clock and allocates nothing while rendering or verifying.
//!
//! Invariant: `render_frame(n)` depends on the spec and `n` (and the stamp) alone.
#![forbid(unsafe_code)]

mod bits;
pub mod bpf;
pub mod checksum;
pub mod filter;
pub mod foreign;
pub mod header;
pub mod pattern;
pub mod payload;
pub mod pcap;
pub mod size;
pub mod tag;
mod template;
pub mod trailer;

pub use template::parts;
pub use template::{Error, FrameComparison, FrameIndex, FrameSpec, FrameTemplate};
