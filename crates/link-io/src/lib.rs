//! Parts that sit in a link or listen to it: the tap, impairments on the tap's threads, and the log of arriving frames.
//!
//! ```text
//!   A <---- tap (kernel or threads) ----> B        impair: what the threads do to frames on their way, from a spec and a seed
//!               | copies
//!               v
//!              log: numbered capture files, an index, a check against the tap's counters
//!               |
//!              merge: several captures of one link become one file
//! ```
//! This crate does the I/O; `packetrig_link` decides about frames and opens nothing. Rings, guards and the
//! recorder of capture files are in the engine.
#![forbid(unsafe_code)]

pub mod impair;
pub mod log;
pub mod merge;
pub mod tap;

mod blame;
mod error;

pub use error::Error;
