//! Captures as a service: files with numbers that continue, an index of them, and a rule for when room runs out.
//!
//! ```text
//!  DIR/log-00001.pcapng, log-00002.pcapng …   the files          DIR/index.jsonl   what is in each, what was removed
//!  Recorder --Part--> Keeper: index, retention, disk-full policy        check(): index, files and a tap against each other
//! ```
//! The writer is the recorder of every capture; this module only keeps its files. When a log was killed, the next one
//! repairs it: it cuts the last file to whole records, counts them and enters the file.
//!
//! Invariant: files and frames are numbered without a gap over all runs of the log; a number names one file for good.

mod check;
mod index;
mod keeper;
mod summary;
mod survey;

pub use check::{LogCheck, LogChecksums, LogDoubt, LogFinding, TapBooks, check};
pub use index::{FileEntry, IndexEntry, LogIndex, RemovalReason};
pub use keeper::{LogKeeper, LogRetention, WhenFull};
pub use summary::{LogFollower, LogSummary};
pub use survey::{LogFileSurvey, survey};

use std::io;
use std::path::{Path, PathBuf};

/// Name of the index.
pub const INDEX: &str = "index.jsonl";
/// What the files' names begin with.
pub const NAME: &str = "log";

/// Why a log cannot be kept there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another log is kept there.
    #[error("{} is in use by a running log; stop that log, or choose another directory", .0.display())]
    InUse(PathBuf),
    /// The disk refused.
    #[error("cannot {what} {}: {source}", path.display())]
    File { what: &'static str, path: PathBuf, source: io::Error },
    /// A file is none of a log, or none any more.
    #[error("{}: {why}", path.display())]
    Damaged { path: PathBuf, why: String },
    /// There is no index.
    #[error("{} is not the directory of a log: it has no {INDEX}", .0.display())]
    NoIndex(PathBuf),
    /// There is too little room to begin with.
    #[error("{} has only {free} bytes free, but one file of the log needs {wanted}; free some space, or lower \
        --rotate-size", path.display())]
    NoRoom { path: PathBuf, free: u64, wanted: u64 },
}

/// The error of a file that could not be read, written or made.
fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { what, path, source }
}

/// The log's files in a directory by number, in order.
pub fn files(directory: &Path) -> Result<Vec<(u64, PathBuf)>, Error> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed("read", directory))? {
        let path = entry.map_err(failed("read", directory))?.path();
        if let Some(number) = number(&path) {
            files.push((number, path));
        }
    }
    files.sort();
    Ok(files)
}

/// `log-00012.pcapng` and `log-00012.pcapng.zst` are number 12.
fn number(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?;
    let (number, extensions) = name.strip_prefix(NAME)?.strip_prefix('-')?.split_once('.')?;
    let is_ours = matches!(extensions, "pcapng" | "pcapng.zst") && number.len() >= 5;
    if is_ours { number.parse().ok() } else { None }
}

#[cfg(test)]
mod tests;
