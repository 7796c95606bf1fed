//! Counters and checksums of a journal, which become its manifest.

use super::segment::{SegmentHash, SegmentKind, extend_chain, hash_in_hex, parse_segment_hash};
use serde::{Deserialize, Serialize};

/// Counts of the segments so far, and the chain of their checksums. `Lost` segments count, too, because
/// each has a number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SegmentTally {
    pub(crate) counts: SegmentCounts,
    pub(crate) chain: SegmentHash,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentCounts {
    /// All segments except the End.
    pub segments: u64,
    pub interval: u64,
    pub result: u64,
    pub capture: u64,
    /// Segments that the node's disk has lost.
    pub lost: u64,
}

impl SegmentCounts {
    /// Counts a segment by its kind; an End does not count.
    pub fn count_segment(&mut self, kind: SegmentKind) {
        let of_kind = match kind {
            SegmentKind::Interval => &mut self.interval,
            SegmentKind::Result => &mut self.result,
            SegmentKind::Capture => &mut self.capture,
            SegmentKind::Lost => &mut self.lost,
            SegmentKind::End => return,
        };
        // Each kind has a separate count, so that the controller sees which results are missing.
        *of_kind += 1;
        self.segments += 1;
    }
}

impl SegmentTally {
    pub(crate) fn add_segment(&mut self, kind: SegmentKind, hash: &SegmentHash) {
        self.counts.count_segment(kind);
        // The End contains the chain, so it cannot be part of it.
        if kind != SegmentKind::End {
            self.chain = extend_chain(&self.chain, hash);
        }
    }
}

/// The content of the End, the last segment of a node's part in a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartManifest {
    /// Segments before this one, by kind.
    pub counts: SegmentCounts,
    /// Chain of SHA-256 over the checksums of all segments before this one: each link is the hash of the link before it
    /// and the next checksum.
    pub sha256: String,
    /// True if the agent stopped before the run ended, or abandoned the run: results may be missing.
    pub cut_short: bool,
    pub reason: Option<String>,
    /// Captures that were refused because the spool or its disk was too full.
    pub refused_captures: u64,
    /// Intervals that were left out because the spool or its disk was too full.
    pub refused_intervals: u64,
}

/// Summary of the released segments, in a separate file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DeletedSegmentsSummary {
    /// Segments with lower numbers are released.
    pub(super) below: u64,
    pub(super) counts: SegmentCounts,
    pub(super) chain: String,
    /// True if the End is released, too, so that only this file is left.
    pub(super) over: bool,
}

impl DeletedSegmentsSummary {
    pub(super) fn new(below: u64, tally: &SegmentTally, over: bool) -> Self {
        Self { below, counts: tally.counts, chain: hash_in_hex(&tally.chain), over }
    }

    pub(super) fn to_tally(&self) -> SegmentTally {
        // An unreadable chain becomes zeros: the controller then sees that it differs from its own.
        SegmentTally { counts: self.counts, chain: parse_segment_hash(&self.chain).unwrap_or_default() }
    }
}
