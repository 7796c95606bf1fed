//! Quantities as types: a size is not a rate, a duration is not a point in time, and no quantity is a plain number.
//!
//! This crate holds the units that every crate uses: [`Nanos`] and [`MonoTime`] for time, [`FrameSize`] for
//! lengths on the wire, [`BitRate`] and [`FrameRate`] for load, [`Ratio`] for loss, [`Network`] for addresses,
//! [`text`] for texts from other machines. It parses and prints them ("10Gbit/s", "64B", "1.5ms"). It reads no
//! clock and handles no packets.
//!
//! Invariant: counts and rates are integers or exact fractions. A float appears only when a value is printed.
#![forbid(unsafe_code)]

mod blame;
mod clamp;
pub mod exposition;
mod network;
pub mod number;
mod parse;
mod rate;
mod ratio;
mod retention;
mod size;
pub mod text;
mod time;

pub use blame::{Blame, message_with_causes};
pub use clamp::{
    clamp_to_i16, clamp_to_i32, clamp_to_i64, clamp_to_u8, clamp_to_u16, clamp_to_u32, clamp_to_u64,
    clamp_to_usize, remainder_as_usize,
};
pub use network::Network;
pub use parse::{Error, Rate};
pub use rate::{BitRate, FrameRate, Share};
pub use ratio::Ratio;
pub use retention::{ExceededLimit, RemovedFiles, RetentionLimits, StoredAmounts};
pub use size::FrameSize;
pub use time::{MonoTime, Nanos};
