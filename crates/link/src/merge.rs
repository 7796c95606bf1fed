//! Merges several captures of one link into one series: finds which packets are the same, and how the clocks differ.
//!
//! ```text
//!  packets of each capture -> PacketContent -> PacketIdentity -> PacketSample --(two of them)--> ClockRelation
//!                                                    |                                               |
//!                                                    `-----> PacketMerger <---- time in one clock <--'
//! ```
//! A packet is identified by its content. Packets of several captures are one packet if they have the same
//! content and, after their times were converted to one clock, differ by no more than the tolerance. Equal
//! packets of one capture stay separate.
//!
//! Invariant: every packet offered is in exactly one merged packet, and a merged packet has at most one
//! packet of each capture.

mod clock_drift;
mod clock_relation;
mod clock_steps;
mod content;
mod merger;
mod sample;

pub use clock_drift::ClockDrift;
pub use clock_relation::{ClockRelation, ClockStep};
pub use content::{PacketContent, PacketIdentity};
pub use merger::{CaptureSet, CapturedPacket, MAX_CAPTURES, MergedPacket, PacketMerger};
pub use sample::PacketSample;
