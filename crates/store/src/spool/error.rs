//! Errors of a spool.

use super::reserve::is_full_disk_kind;
use super::segment::{BrokenSegment, SegmentKind};
use packetrig_report::RunId;
use std::io;
use std::path::PathBuf;

/// An error of a spool; [`Error::blame`] names the party at fault.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation on a file or directory failed.
    #[error("cannot {what} {}: {source}", path.display())]
    File { what: &'static str, path: PathBuf, source: io::Error },
    /// The spool or its disk is too full for this kind of segment; there may be space for more important kinds. The
    /// segment was not stored.
    #[error(
        "the spool or its disk is too full for a segment of kind {kind}: the spool uses {used} B of {most} B"
    )]
    Refused { kind: SegmentKind, used: u64, most: u64 },
    /// The spool is full, even for results.
    #[error("the spool is full: {used} B of {most} B are in use")]
    Full { used: u64, most: u64 },
    /// The disk itself is full. For a result or an End, even the released reserve did not suffice.
    #[error("the disk that holds {} is full", .0.display())]
    DiskFull(PathBuf),
    /// The disk has no space for the counters of a run, so the run is not started.
    #[error(
        "the disk does not have enough space for the results of a run: cannot reserve space in {}",
        .0.display()
    )]
    NoRoom(PathBuf),
    /// A spool that another process has locked.
    #[error("spool {} is in use by another process", .0.display())]
    InUse(PathBuf),
    /// A run and attempt that has a journal already.
    #[error("run {run}, attempt {attempt} is already in the spool")]
    Taken { run: RunId, attempt: u32 },
    /// A run and attempt that has its End.
    #[error("run {run}, attempt {attempt} has ended, so nothing can be added to it")]
    Ended { run: RunId, attempt: u32 },
    /// A segment that was released, or never existed.
    #[error("run {run}, attempt {attempt} has no segment {number} in the spool")]
    Unknown { run: RunId, attempt: u32, number: u64 },
    /// The id of a run is unsafe as a directory's name.
    #[error("`{0}` is not a valid run id; use letters, digits, `-` and `_`")]
    BadId(String),
    /// A file that is not a valid segment.
    #[error("{}: {source}", path.display())]
    Broken { path: PathBuf, source: BrokenSegment },
    /// A value that cannot be written as JSON, a name too long for a segment, or a file of counts that is damaged.
    #[error("the spool cannot use this data: {0}")]
    Value(String),
}

impl Error {
    pub(super) fn file(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { what, path, source }
    }

    /// `Ok` if the error only means that the spool is full.
    pub(super) fn ignore_if_full(self) -> Result<(), Self> {
        if matches!(self, Self::Full { .. } | Self::DiskFull(_)) { Ok(()) } else { Err(self) }
    }

    /// Returns whether the disk itself is full.
    pub(super) fn is_full_disk(&self) -> bool {
        matches!(self, Self::File { source, .. } if is_full_disk_kind(source.kind()))
    }
}
