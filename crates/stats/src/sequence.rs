//! Loss, duplicates and reordering of one stream at one receiver, exact over a window of frames.

use serde::{Deserialize, Serialize};

/// Frames a sequence window looks back: a frame later than this is *stale*, not guessed at.
pub const WINDOW: u64 = 65_536;

/// What one arrival meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The next, or beyond a gap.
    New,
    /// Missing until now (RFC 4737 type-P-reordered). `extent` by RFC 4737 section 4.2.2.
    Late {
        /// Number of frames that arrived since the earliest later-numbered one.
        extent: u64,
    },
    /// Seen before.
    Duplicate,
    /// So far behind that the window cannot tell late from duplicate.
    Stale,
}

/// Counts of a stream at a receiver. Frames.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SequenceCounts {
    /// Distinct frames that arrived.
    pub unique: u64,
    /// Copies of frames already seen.
    pub duplicates: u64,
    /// Frames that arrived after a later-numbered one.
    pub reordered: u64,
    /// Largest RFC 4737 extent.
    pub max_extent: u64,
    /// Frames beyond the window.
    pub stale: u64,
    /// Frames that never arrived (final only after `finish`).
    pub lost: u64,
    /// Runs of consecutive lost frames.
    pub loss_bursts: u64,
    /// The longest of them.
    pub longest_burst: u64,
    /// Seconds of the stream's schedule in which at least one frame was lost.
    pub loss_seconds: u64,
    /// RFC 5236 reorder density: displacement -> frames, for displacements within its threshold.
    pub density: std::collections::BTreeMap<i32, u64>,
}
