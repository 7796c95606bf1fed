//! What a journal has taken, in numbers: they become its manifest.

use super::segment::{Hash, Kind, hex, link, unhex};
use serde::{Deserialize, Serialize};

/// Segments so far and the chain over them. `Lost` ones count, too: each has its number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) counts: Counts,
    pub(super) chain: Hash,
}

/// Segments by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// All but the End.
    pub segments: u64,
    /// Of kind interval.
    pub interval: u64,
    /// Of kind result.
    pub result: u64,
    /// Of kind capture.
    pub capture: u64,
    /// Those the node's disk lost.
    pub lost: u64,
}

impl Counts {
    /// Takes one of `kind` in.
    pub fn add(&mut self, kind: Kind) {
        let of_kind = match kind {
            Kind::Interval => &mut self.interval,
            Kind::Result => &mut self.result,
            Kind::Capture => &mut self.capture,
            Kind::Lost => &mut self.lost,
            Kind::End => return,
        };
        *of_kind += 1;
        self.segments += 1;
    }
}

impl Tally {
    pub(super) fn add(&mut self, kind: Kind, hash: &Hash) {
        self.counts.add(kind);
        if kind != Kind::End {
            self.chain = link(&self.chain, hash);
        }
    }
}

/// The last segment of a node's part in a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Segments before this one, by kind.
    pub counts: Counts,
    /// SHA-256 over the checksums of all segments before this one, in order: each link is the hash of the one before and
    /// the checksum of the next.
    pub sha256: String,
    /// The agent died or gave up: there may have been more to say.
    pub cut_short: bool,
    /// Why.
    pub reason: Option<String>,
    /// Captures that were refused, because the spool was too full.
    pub refused_captures: u64,
    /// Intervals that were left out, because the spool was too full.
    pub refused_intervals: u64,
}

/// Kept in a file of its own when segments are released: what was known of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Released {
    /// Segments below this are released.
    pub(super) below: u64,
    pub(super) counts: Counts,
    pub(super) chain: String,
    /// The End is released, too: nothing is left but the fact that it was there.
    pub(super) over: bool,
}

impl Released {
    pub(super) fn new(below: u64, tally: &Tally, over: bool) -> Self {
        Self { below, counts: tally.counts, chain: hex(&tally.chain), over }
    }
    pub(super) fn tally(&self) -> Tally {
        Tally { counts: self.counts, chain: unhex(&self.chain).unwrap_or_default() }
    }
}
