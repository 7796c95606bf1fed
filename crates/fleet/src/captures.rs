//! Captures that stay on nodes, and their transfer in ranges.
//!
//! The fetching process asks for one range after another, a few ahead; the node answers each. A range without an answer
//! is asked for again. The transfer needs no controller and no run.
//!
//! Invariant: neither end holds more than [`MAX_RANGES_AHEAD`] ranges of [`MAX_RANGE_BYTES`] bytes.

use crate::fabric::Error;
use crate::message::RunId;
use packetrig_units::Nanos;
use serde::{Deserialize, Serialize};

/// Maximum number of bytes of one range.
pub const MAX_RANGE_BYTES: u32 = 256 << 10;
/// Maximum number of ranges that are requested before the first of them has arrived.
pub const MAX_RANGES_AHEAD: usize = 4;

/// Name of a capture file on a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CaptureName {
    /// The run in which the file was written.
    pub run: RunId,
    /// Name of the file, without a directory.
    pub file: String,
}

/// Requested part of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CaptureRequest {
    /// A range of its bytes.
    Range {
        offset: u64,
        /// Number of bytes; the end of the file may come earlier.
        length: u32,
    },
    /// The SHA-256 of all bytes.
    Sha256,
}

/// A question to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureQuestion {
    /// Random number of the asking process, drawn once.
    pub asker: u64,
    /// Rises with each question of that process.
    pub number: u64,
    pub capture: CaptureName,
    #[serde(rename = "wish")]
    pub request: CaptureRequest,
}

/// Distinguishes a capture from a later one with the same name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureIdentity {
    pub size: u64,
    /// Time of the last write, nanoseconds since 1970 (UTC).
    pub modified_ns: u64,
}

/// Answer of a node, beside the bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureAnswer {
    pub asker: u64,
    pub number: u64,
    /// Identity of the capture that the bytes are from, or the reason for their absence.
    pub outcome: Result<CaptureIdentity, String>,
}

/// The node's side: receives questions and answers them.
pub trait CaptureQuestions: Send {
    /// Returns the next question that is genuine and new; `None` if none arrives within that time.
    fn next_question(&mut self, within: Nanos) -> Option<CaptureQuestion>;
    /// Sends an answer; returns when the bytes are written to the connection.
    fn send_answer(&mut self, answer: &CaptureAnswer, bytes: Vec<u8>) -> Result<(), Error>;
}

/// The side of the process that fetches from one node.
pub trait CaptureAnswers: Send {
    /// Sends a question and returns its number.
    fn send_question(&mut self, capture: &CaptureName, request: CaptureRequest) -> Result<u64, Error>;
    /// Returns the next genuine answer to a question of this process; `None` if none arrives within that time.
    fn next_answer(&mut self, within: Nanos) -> Option<(CaptureAnswer, Vec<u8>)>;
}
