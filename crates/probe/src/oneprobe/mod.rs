//! Loss and reordering in each direction, and round trips, against any web server that answers over TCP; the far end runs nothing of ours.
//!
//! A probe is two data segments sent together, out of a valid stream of requests. The server is kept from sending by a closed window, and
//! each of the two segments opens the window by one segment more. So the server answers each with one data segment, and the
//! acknowledgement numbers in them tell which of ours had arrived by then:
//!
//! ```text
//!  arrived          answers                       what happened on the way there
//!  C1, C2           S1|d1  S2|d2                  nothing
//!  C2, C1           S1|d0  S2|d0  and an ACK d2   overtaken
//!  C2               S1|d0  S2|d0                  first lost
//!  C1               S1|d1                         second lost        (Si|d: data that acknowledges d)
//! ```
//! What is not told by the answers is asked for: to a byte that it has long had, a server answers with the number it expects and the number
//! it will send next, so lost answers and lost probes are told apart. Whatever remains open is counted as ambiguous, with the reason.
//! The idea of such probes is that of OneProbe (Luo, Chan, Chang: USENIX ATC 2009).
//!
//! It neither sends nor waits: [`OneprobeMachine`] is told the time and what was heard, and says what to send.
//!
//! Invariant: every probe that was sent is in exactly one account; round trips of handshakes and of data are never mixed.

mod evidence;
mod machine;
mod report;
mod request;
#[cfg(test)]
mod tests;

pub use evidence::{ArrivalOrder, ForwardOutcome, ProbeVerdict, ReverseOutcome, UselessReason};
pub use machine::{IncomingSegment, OneprobeMachine, OneprobeStep};
pub use report::{DirectionCounts, OneprobeOutcome, OneprobeReport, TimeSpread};
pub use request::HttpRequest;

use serde::Serialize;

/// What a series of probes looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OneprobeOptions {
    pub count: u32,
    /// One every so many nanoseconds.
    pub every_ns: u64,
    /// Bytes of data in each segment that is sent.
    pub payload: u16,
    /// Bytes of data in each segment the server answers with (announced as the largest it may send).
    pub answer: u16,
    /// Where sequence numbers begin.
    pub seed: u64,
}

/// A segment to send.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutgoingSegment {
    pub sequence: u32,
    pub acknowledgement: u32,
    pub flags: u8,
    pub window: u16,
    pub options: Vec<u8>,
    pub payload: Vec<u8>,
}

/// Why a series ended before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OneprobeFailure {
    #[error("the target refuses connections to this port")]
    Refused,
    /// No answer at all.
    #[error("the target does not answer connection requests")]
    Silent,
    /// No connection lasted for a probe.
    #[error(
        "the server ends connections before anything can be measured; request a larger document (--path) or \
            shorter segments (--answer)"
    )]
    TooShort,
    /// It connects, and then says nothing.
    #[error("the server accepts connections but sends nothing; it may not be a web server")]
    Mute,
}
