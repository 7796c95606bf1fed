//! Capture files as a source of frames.
//!
//! ```text
//!  file -> reader thread: decode, pick, rewrite, find the tag's place -> full batches -> Player (the sender's thread)
//!                                                                        empty ones <-
//! ```
//! A file is never held in memory as a whole: the number of batches limits the memory, and how far the reader is ahead
//! of the sender. [`survey_file`] reads the file once beforehand, so that a plan knows its size and rates.
//!
//! Frames leave in the order of the file. A frame that is due before its predecessor is sent directly after it.
//!
//! Invariant, for each pass: packets read = frames replayed + packets counted by the reason why they were skipped.

mod batch;
mod frames;
mod input;
mod player;
mod reader;
mod survey;
#[cfg(test)]
mod tests;
mod track;

pub(crate) use frames::StreamFrames;
pub use survey::{ReplaySurvey, survey_file};
pub use track::ReplayTrack;

use crate::Error;
use crate::recorded::FileEnding;
use std::fmt::Display;
use std::path::Path;

/// Packets of a file that cannot be replayed, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SkippedPackets {
    /// Cut by a snap length during capture.
    pub cut: u64,
    pub other_link: u64,
    /// Too short for an Ethernet header.
    pub short: u64,
}

impl SkippedPackets {
    pub fn total(&self) -> u64 {
        self.cut + self.other_link + self.short
    }

    /// Describes the reasons in words; empty if no packet was skipped.
    pub fn describe_reasons(&self) -> Vec<String> {
        let reasons = [
            (self.cut, "the capture truncated them (snap length)"),
            (self.other_link, "they are not Ethernet frames"),
            (self.short, "they are too short for an Ethernet header"),
        ];
        let remarks = reasons.iter().filter(|(packets, _)| *packets > 0);
        remarks
            .map(|(packets, why)| format!("packets that are not replayed because {why}: {packets}"))
            .collect()
    }
}

impl FileEnding {
    /// Describes what a damaged or incomplete end of the file means for a replay; `None` if the file is complete.
    pub fn describe_for_replay(&self) -> Option<String> {
        match self {
            Self::Whole => None,
            Self::Cut => {
                Some("the file ends inside its last packet; all packets before it are replayed".to_owned())
            }
            Self::Damaged(why) => {
                Some(format!("the file is damaged ({why}); only the packets before the damage are replayed"))
            }
        }
    }
}

fn recording_error(path: &Path, why: impl Display) -> Error {
    Error::Recording { path: path.to_owned(), why: why.to_string() }
}
