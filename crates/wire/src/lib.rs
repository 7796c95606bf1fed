//! Frames and headers: the bytes of a stream's frames, and how a receiver recognises them.
//!
//! A [`FrameSpec`] (headers, patterns, sizes, payload) is compiled into a [`FrameTemplate`], which renders
//! frame number `n` for any `n`, in any order, without state. Sender and receiver have the same template, so
//! the receiver can decide for every frame whether it arrived as it was sent. The [`tag`] in the payload
//! contains stream, sequence number and send time.
//!
//! This crate does no I/O and reads no clock. Rendering and verifying frames allocate no memory.
//!
//! Invariant: the result of `render_frame(n)` depends only on the spec, `n` and the stamp.
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
