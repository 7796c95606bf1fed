//! Captures that stay on nodes, and their transfer in ranges.
//!
//! The fetching process requests one range after another, up to [`MAX_RANGES_AHEAD`] at a time; the node answers each
//! request. A range without an answer is requested again. The transfer needs no controller and no run.
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

/// What a question requests: a range of a capture's bytes, or the hash of all bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CaptureRequest {
    /// A range of the capture's bytes.
    Range {
        offset: u64,
        /// Number of bytes; the answer has fewer if the file ends earlier.
        length: u32,
    },
    /// The SHA-256 of all bytes.
    Sha256,
}

/// A question to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureQuestion {
    /// Random number that the asking process draws once and that identifies the process.
    pub asker: u64,
    /// Number of the question; it rises with each question of the asking process.
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

/// Answer of a node to a [`CaptureQuestion`]. The requested bytes are sent along with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureAnswer {
    pub asker: u64,
    pub number: u64,
    /// Identity of the capture that the bytes are from, or the reason why there are no bytes.
    pub outcome: Result<CaptureIdentity, String>,
}

/// The node's side: receives questions and answers them.
pub trait CaptureQuestions: Send {
    /// Returns the next question that is genuine and new; `None` if none arrives within the time `within`.
    fn next_question(&mut self, within: Nanos) -> Option<CaptureQuestion>;
    /// Sends an answer; returns when the bytes are written to the connection.
    fn send_answer(&mut self, answer: &CaptureAnswer, bytes: Vec<u8>) -> Result<(), Error>;
}

/// The fetching process's side, for one node: sends questions and receives the answers.
pub trait CaptureAnswers: Send {
    /// Sends a question and returns its number.
    fn send_question(&mut self, capture: &CaptureName, request: CaptureRequest) -> Result<u64, Error>;
    /// Returns the next genuine answer to a question of this process, with its bytes; `None` if none arrives
    /// within the time `within`.
    fn next_answer(&mut self, within: Nanos) -> Option<(CaptureAnswer, Vec<u8>)>;
}
