//! Errors of stored runs.

use crate::catalogue::{StoredRunShare, describe_lock_holder};
use crate::spool::segment::BrokenSegment;
use packetrig_fleet::fabric::SegmentId;
use packetrig_method::journal::JournalError;
use packetrig_report::{NodeName, RunId};
use rusqlite::ErrorCode;
use std::path::PathBuf;
use std::sync::Arc;

/// An error of stored runs and methods; [`Error::blame`] names the party at fault.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Neither `$XDG_DATA_HOME` nor `$HOME` is set, so there is no default directory for data.
    #[error("no directory for past runs: set XDG_DATA_HOME or HOME, or name one with --store")]
    NoPlace,
    /// An operation on a file or directory failed.
    #[error("cannot {what} {}: {source}", path.display())]
    File { what: &'static str, path: PathBuf, source: std::io::Error },
    #[error("cannot use the catalogue {}: {source}", path.display())]
    Catalogue { path: PathBuf, source: rusqlite::Error },
    /// Another process held the write lock for longer than this process waits.
    #[error(
        "cannot use the catalogue {}: {holder} has locked it for too long; wait until that process has ended, or end it",
        path.display()
    )]
    CatalogueBusy { path: PathBuf, holder: String },
    /// The disk has no space for the report, so the run is not started.
    #[error(
        "not enough disk space for the report: {} has {free} bytes free, and the report may need {wanted}; \
        free some space, or name another directory with --store",
        path.display()
    )]
    NoRoom { path: PathBuf, wanted: u64, free: u64 },
    /// The report or its row could not be written. Nothing of the run was removed.
    #[error(
        "the report could not be stored: {source}; all files of the run, including its captures, were \
        kept in {}",
        directory.display()
    )]
    NotStored { directory: PathBuf, source: Box<Self> },
    /// The run to be discarded is in use.
    #[error(
        "cannot discard run `{run}`: it is under way in process {process}; wait until that process has ended"
    )]
    UnderWay { run: RunId, process: u32 },
    /// The file was written by a newer packetrig.
    #[error("{} has version {found}, and this packetrig reads versions up to {known}; use a newer packetrig", path.display())]
    TooNew { path: PathBuf, found: u32, known: u32 },
    /// A report or another stored value that cannot be read.
    #[error("{} is damaged: {source}", path.display())]
    Damaged { path: PathBuf, source: serde_json::Error },
    /// No run or method of the requested kind has this name, or an id that begins with this text.
    #[error(
        "found no run or method with the name or id `{0}`; `packetrig report` lists results, `packetrig report \
        unfinished` lists runs and methods without one"
    )]
    Unknown(String),
    /// A prefix that matches several runs or methods.
    #[error("`{prefix}` matches {count} ids; give more of the id, for example `{example}`")]
    Ambiguous { prefix: String, count: usize, example: String },
    /// The id is already in use.
    #[error("a run or method `{0}` is already stored")]
    Taken(String),
    /// An id that is unsafe as a directory's name.
    #[error("`{0}` is not a valid id of a run or method; use letters, digits, `-` and `_`")]
    BadId(String),
    /// A node's name that is unsafe as a directory's name.
    #[error("`{0}` is not a valid node name: use {rule}", rule = NodeName::NAME_RULE)]
    BadNode(NodeName),
    /// Bytes that are not the segment with that id.
    #[error("segment {id}: {source}")]
    BadSegment { id: SegmentId, source: BrokenSegment },
    /// A late result beyond the limit. The node still has it.
    #[error(
        "segment {id} was not stored: {kept} bytes of late results are stored already, and the limit is {most} bytes; \
        `packetrig report late` lists late results"
    )]
    LateQuota {
        id: SegmentId,
        /// Bytes that are stored of this node or of all nodes, depending on which limit was reached.
        kept: u64,
        most: u64,
    },
    /// A segment beyond the quota of its node in a run under way. The node still has it.
    #[error(
        "segment {id} was not stored: its node would exceed its limit for this run (bytes stored so far: {}, segments: {})",
        share.bytes, share.segments
    )]
    RunQuota { id: SegmentId, share: StoredRunShare },
    /// The same error for each of several segments that were to be stored together.
    #[error("{0}")]
    OfBatch(Arc<Self>),
    /// A segment with the id of a stored segment, but with other bytes. The stored segment stays.
    #[error("segment {0} is already stored with different content")]
    Differs(SegmentId),
    /// The segment was added to the draft of another run.
    #[error("segment {0} belongs to another run")]
    Foreign(SegmentId),
    /// A run that is not under way.
    #[error("run `{0}` is not under way")]
    NotUnfinished(RunId),
    /// The method to be resumed or removed is in use.
    #[error("method `{id}` is under way in process {process}; wait until that process has ended")]
    MethodUnderWay { id: String, process: u32 },
    /// The method to be resumed has its result.
    #[error("method `{0}` is complete and cannot be resumed; `packetrig report show {0}` shows its result")]
    MethodComplete(String),
    /// A method that has not ended yet.
    #[error("method `{0}` has no result yet; `packetrig report unfinished` shows how to resume it")]
    NoResult(String),
    /// There is no method to resume.
    #[error("no method can be resumed; `packetrig report unfinished` lists those that were interrupted")]
    NoUnfinishedMethod,
    /// The result of a method or its row could not be written. Its journal has all trials.
    #[error(
        "the result of method `{id}` could not be stored: {source}; its trials were kept in {}, and it can be resumed",
        directory.display()
    )]
    MethodNotStored { id: String, directory: PathBuf, source: Box<Self> },
    /// A journal that cannot be read.
    #[error("{} is damaged: {source}", path.display())]
    DamagedJournal { path: PathBuf, source: JournalError },
    /// A name for a file of a result that is unsafe as part of a path, or that packetrig uses for another file.
    #[error("`{0}` is not a valid name for a file of a result")]
    BadFileName(String),
}

impl Error {
    /// Returns whether the segment can never be stored, even if the node sends it again.
    pub const fn is_unreadable(&self) -> bool {
        matches!(self, Self::BadSegment { .. } | Self::BadNode(_) | Self::BadId(_))
    }

    pub(crate) fn file(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { what, path, source }
    }

    pub(crate) fn catalogue(path: impl Into<PathBuf>) -> impl FnOnce(rusqlite::Error) -> Self {
        let path = path.into();
        move |source| match source.sqlite_error_code() {
            // packetrig has already waited long enough for the other process, so the user has to act.
            Some(ErrorCode::DatabaseBusy) => {
                Self::CatalogueBusy { holder: describe_lock_holder(&path), path }
            }
            _ => Self::Catalogue { path, source },
        }
    }

    pub(crate) fn damaged_file(path: impl Into<PathBuf>) -> impl FnOnce(serde_json::Error) -> Self {
        let path = path.into();
        move |source| Self::Damaged { path, source }
    }
}
