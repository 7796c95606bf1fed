//! Captures that stay on nodes, and how they are fetched in ranges.
//!
//! The fetching process asks for one range after another, a few ahead; the node answers each. An answer that does not come is asked
//! for again. It needs no controller and no run, and speaks to none of them.
//!
//! Invariant: neither end holds more than [`AHEAD`] ranges of [`RANGE`] bytes.

use crate::fabric::Error;
use crate::message::RunId;
use packetrig_units::Nanos;
use serde::{Deserialize, Serialize};

/// Most bytes of one range.
pub const RANGE: u32 = 256 << 10;
/// Ranges that are asked for before the first of them has come.
pub const AHEAD: usize = 4;

/// A capture file of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CaptureName {
    /// The run that it is of.
    pub run: RunId,
    /// Its name, without a directory.
    pub file: String,
}

/// What is wanted of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CaptureWish {
    /// Some of its bytes.
    Range {
        offset: u64,
        /// So many, fewer at the end of the file.
        length: u32,
    },
    /// The SHA-256 of all of them.
    Sha256,
}

/// A question to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureQuestion {
    /// Drawn by each process that asks.
    pub asker: u64,
    /// Rises with each question of that process.
    pub number: u64,
    pub capture: CaptureName,
    pub wish: CaptureWish,
}

/// Tells a capture from another one that has taken its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureIdentity {
    pub size: u64,
    /// When it was written last, nanoseconds since 1970 (UTC).
    pub modified_ns: u64,
}

/// What a node answers, beside the bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureAnswer {
    pub asker: u64,
    pub number: u64,
    /// Which capture the bytes are of, or why there are none.
    pub outcome: Result<CaptureIdentity, String>,
}

/// The node's side: receives questions and answers them.
pub trait CaptureQuestions: Send {
    /// The next question that is genuine and new; `None` if there is none within that time.
    fn next(&mut self, within: Nanos) -> Option<CaptureQuestion>;
    /// Answers one. Returns when the bytes have left.
    fn answer(&mut self, answer: &CaptureAnswer, bytes: Vec<u8>) -> Result<(), Error>;
}

/// The side of the process that fetches from one node.
pub trait CaptureAnswers: Send {
    /// Asks; gives the number of the question.
    fn ask(&mut self, capture: &CaptureName, wish: CaptureWish) -> Result<u64, Error>;
    /// The next genuine answer to a question of this process; `None` if there is none within that time.
    fn next(&mut self, within: Nanos) -> Option<(CaptureAnswer, Vec<u8>)>;
}
