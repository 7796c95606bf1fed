//! What can go wrong with stored runs.

use crate::catalogue::RunShare;
use crate::spool::segment::BrokenSegment;
use packetrig_fleet::fabric::SegmentId;
use packetrig_fleet::{NodeName, RunId};
use std::path::PathBuf;
use std::sync::Arc;

/// By whose fault: see each variant.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// User: neither `$XDG_DATA_HOME` nor `$HOME` says where data belongs.
    #[error("no place for past runs: set XDG_DATA_HOME or HOME, or name a directory with --store")]
    NoPlace,
    /// World: a file or directory.
    #[error("cannot {what} {}: {source}", path.display())]
    File { what: &'static str, path: PathBuf, source: std::io::Error },
    #[error("catalogue {}: {source}", path.display())]
    Catalogue { path: PathBuf, source: rusqlite::Error },
    /// World: a run is not begun whose report would have no room.
    #[error(
        "no room for the report of a run: {} has {free} bytes free, and it may take {wanted}; make room, or name another directory with --store",
        path.display()
    )]
    NoRoom {
        /// Where it would be.
        path: PathBuf,
        /// What it may take.
        wanted: u64,
        free: u64,
    },
    /// World: the report, or its row. Nothing of the run was removed.
    #[error(
        "the report could not be stored: {source}; what there is of the run, captures and all, was kept in {}",
        directory.display()
    )]
    NotStored { directory: PathBuf, source: Box<Self> },
    /// User: what is to be discarded is in use.
    #[error("run `{run}` is under way: process {process} is at it")]
    UnderWay { run: RunId, process: u32 },
    /// User: written by a newer packetrig.
    #[error("{} is of version {found}, this packetrig knows up to {known}; use a newer packetrig", path.display())]
    TooNew { path: PathBuf, found: u32, known: u32 },
    /// World: a report that cannot be read back.
    #[error("{} is no report: {source}", path.display())]
    Damaged { path: PathBuf, source: serde_json::Error },
    /// User: no such run.
    #[error("no run whose id begins with `{0}`; `packetrig report` lists what there is")]
    Unknown(String),
    /// User: the prefix fits several runs.
    #[error("`{prefix}` fits {count} runs; write more of the id, for instance `{example}`")]
    Ambiguous {
        prefix: String,
        /// How many it fits.
        count: usize,
        example: String,
    },
    /// User: the id is in use.
    #[error("a run `{0}` is already stored")]
    Taken(String),
    /// User: an id becomes a directory's name.
    #[error("`{0}` cannot be a run id; use letters, digits, `-` and `_`")]
    BadId(String),
    /// Peer: a node's name becomes a directory's name.
    #[error("`{0}` cannot be the name of a node; use letters, digits, `-`, `_` and `.`")]
    BadNode(NodeName),
    /// Peer or world: what came is no segment of that name.
    #[error("segment {id}: {source}")]
    BadSegment {
        /// Which it should be.
        id: SegmentId,
        /// Why it is not.
        source: BrokenSegment,
    },
    /// Peer: results that no run here waits for, and more of them than are kept. The node has them still.
    #[error("segment {id} was not stored: {kept} B of late results are kept, and {most} B are the limit")]
    LateQuota {
        id: SegmentId,
        /// What is kept: of this node or, where that is not what is at its limit, of all.
        kept: u64,
        most: u64,
    },
    /// Peer: more of the run under way than one node may store. The node has it still.
    #[error(
        "segment {id} was not stored: its node has {} B in {} segments of this run here, and that is its limit",
        share.bytes, share.segments
    )]
    RunQuota {
        id: SegmentId,
        /// What is kept of its node, and how often one was refused.
        share: RunShare,
    },
    /// As told, of several segments that were to be stored together.
    #[error("{0}")]
    OfBatch(Arc<Self>),
    /// Peer: stored before, and not the same. What was stored first is kept.
    #[error("segment {0} is stored with other bytes")]
    Differs(SegmentId),
    /// Bug: brought to another run's draft.
    #[error("segment {0} belongs to another run")]
    Foreign(SegmentId),
    /// User: no such run is under way.
    #[error("run `{0}` is not under way")]
    NotUnfinished(RunId),
}

impl Error {
    /// Whether a segment can never be stored, however often it comes.
    pub const fn is_unreadable(&self) -> bool {
        matches!(self, Self::BadSegment { .. } | Self::BadNode(_) | Self::BadId(_))
    }

    pub(crate) fn file(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { what, path, source }
    }
}
