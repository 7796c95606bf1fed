//! Several captures of one link become one series: which packets are the same one, and how their clocks differ.
//!
//! ```text
//!  packets of each capture -> PacketContent -> PacketIdentity -> PacketSample --(two of them)--> ClockRelation
//!                                                    |                                               |
//!                                                    `-----> PacketMerger <---- time in one clock <--'
//! ```
//! A packet is identified by its content. Packets with the same content in several captures, within the tolerance after the clocks have
//! been brought together, are one packet. Each packet of a capture counts for itself, so that equal packets of one capture stay apart.
//!
//! Invariant: every packet offered is in exactly one merged packet, and a merged packet has at most one packet of each capture.

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
