//! What sits in a link or listens to it: the tap, impairments on the tap's threads, and the log of what arrives.
//!
//! ```text
//!   A <---- tap (kernel or threads) ----> B        impair: what the threads do to frames on their way, from a spec and a seed
//!               | copies
//!               v
//!              log: numbered capture files, an index, a check against the tap's counters
//!               |
//!              merge: several captures of one link become one file
//! ```
//! The working half of [`packetrig_link`], which decides about frames and opens nothing. Rings, guards and the recorder of
//! capture files are the engine's.
#![forbid(unsafe_code)]

pub mod impair;
pub mod log;
pub mod merge;
pub mod tap;

mod blame;
mod error;

pub use error::Error;
