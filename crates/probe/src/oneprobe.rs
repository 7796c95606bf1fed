//! Measures loss and reordering of each direction, and round trips, against any plain web server; the server
//! needs no additional software.
//!
//! A probe is two data segments sent together, part of a valid stream of requests. A closed window keeps the server from sending. Each of
//! the two segments opens the window by one more segment, so the server answers each with one data segment. The acknowledgement numbers in
//! the answers show which of our segments had arrived by then:
//!
//! ```text
//!  arrived          answers                       what happened on the way there
//!  C1, C2           S1|d1  S2|d2                  nothing
//!  C2, C1           S1|d0  S2|d0  and an ACK d2   overtaken
//!  C2               S1|d0  S2|d0                  first lost
//!  C1               S1|d1                         second lost        (Si|d: data that acknowledges d)
//! ```
//! If the answers do not suffice, we ask the server for its state: we send a byte again that it received long
//! ago. It replies with the number that it expects and the number that it will send next, which distinguishes
//! lost answers from lost probes. A probe that is still unclear counts as ambiguous, with the reason. The
//! method is that of OneProbe (Luo, Chan, Chang: USENIX ATC 2009).
//!
//! The module neither sends nor waits: [`OneprobeMachine`] takes the time and the received segments, and
//! returns what to send.
//!
//! Invariant: each finished probe is counted once, either with a certain outcome or under one reason why it is
//! ambiguous; round trips of handshakes and of data are never mixed.

mod evidence;
mod machine;
mod report;
mod request;
#[cfg(test)]
mod tests;

pub use evidence::{AmbiguityReason, ArrivalOrder, ForwardOutcome, ProbeVerdict, ReverseOutcome};
pub use machine::{IncomingSegment, OneprobeMachine, OneprobeStep, PairDeparture};
pub use report::{DirectionCounts, OneprobeOutcome, OneprobeReport, TimeSpread};
pub use request::HttpRequest;

use serde::Serialize;

/// Parameters of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OneprobeOptions {
    pub count: u32,
    /// Time between two probes, in nanoseconds.
    pub every_ns: u64,
    /// Bytes of data in each of the two segments of a probe.
    pub payload: u16,
    /// Bytes of data in each segment of the server's answer (announced as its maximum segment size).
    pub answer: u16,
    /// Seed of the initial sequence numbers.
    pub seed: u64,
}

/// A TCP segment to send; the caller adds addresses, ports and checksums.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutgoingSegment {
    pub sequence: u32,
    pub acknowledgement: u32,
    pub flags: u8,
    pub window: u16,
    pub options: Vec<u8>,
    pub payload: Vec<u8>,
}

/// Reason why a series ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OneprobeFailure {
    #[error("the target refuses connections to this port")]
    Refused,
    #[error("the target does not answer connection requests")]
    Silent,
    /// Several connections in a row ended without a usable probe.
    #[error(
        "several connections in a row gave no usable probe: the server ends them too early, or the path loses too \
            much; request a larger document (--path) or shorter segments (--answer)"
    )]
    TooShort,
    #[error("the server accepts connections but sends nothing; it may not be a web server")]
    Mute,
}
