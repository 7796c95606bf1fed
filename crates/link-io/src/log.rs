//! Logs: captures that run permanently, with numbered files, an index of the files, limits on the stored files, and a
//! policy for a full disk.
//!
//! ```text
//!  DIR/log-00001.pcapng, log-00002.pcapng …   the files
//!  DIR/index.jsonl                            the contents of each file, and the removed files
//!
//!  CaptureRecorder --RecordedFileFacts--> LogKeeper   updates the index, removes old files, reacts to a full disk
//!  check_log                                          compares the index with the files, and both with a tap
//! ```
//! The recorder that all captures use writes the files; this module adds them to the index and removes old files. If a
//! log was killed, the next log in the directory repairs the last file: it cuts the file to whole records, counts its
//! frames and adds the file to the index.
//!
//! Invariant: files and frames are numbered without a gap over all runs of the log, and a number always
//! names the same file.

mod check;
mod index;
mod keeper;
mod summary;
mod survey;

pub use check::{LogCheck, LogChecksums, LogDoubt, LogFinding, LoggedFiles, TapCounters, check_log};
pub use index::{LogFileEntry, LogIndex, LogIndexEntry, LoggedDirection, RemovalReason};
pub use keeper::{FrameLogSource, FullDiskReaction, LogKeeper, LogRetention};
pub use summary::{LogFollower, LogSummary};
pub use survey::{LogFileSurvey, survey_file};

use std::io;
use std::path::{Path, PathBuf};

/// File name of the index.
pub const INDEX_FILE_NAME: &str = "index.jsonl";
/// Prefix of the capture files' names.
pub const CAPTURE_FILE_PREFIX: &str = "log";

/// Errors of a log.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another log uses the directory.
    #[error("{} is in use by a running log; stop that log, or choose another directory", .0.display())]
    InUse(PathBuf),
    /// The operating system refused a file operation.
    #[error("cannot {what} {}: {source}", path.display())]
    File { what: &'static str, path: PathBuf, source: io::Error },
    /// A file does not belong to a log, or is damaged.
    #[error("{}: {why}", path.display())]
    Damaged { path: PathBuf, why: String },
    /// The directory has no index.
    #[error("{} is not the directory of a log: it has no {INDEX_FILE_NAME}", .0.display())]
    NoIndex(PathBuf),
    /// The disk has too little free space to start.
    #[error("{} has only {free} bytes free, but one file of the log needs {wanted}; free some space, or lower \
        --rotate-size", path.display())]
    NoRoom { path: PathBuf, free: u64, wanted: u64 },
}

/// Makes the error of a failed file operation; `what` is the verb for the message.
fn file_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { what, path, source }
}

/// Lists the log's files in a directory, sorted by number.
pub fn list_files(directory: &Path) -> Result<Vec<(u64, PathBuf)>, Error> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(file_error("read", directory))? {
        let path = entry.map_err(file_error("read", directory))?.path();
        if let Some(number) = parse_file_number(&path) {
            files.push((number, path));
        }
    }
    // `read_dir` returns the entries in any order.
    files.sort();
    Ok(files)
}

/// Returns the number in a file name: 12 for `log-00012.pcapng` and `log-00012.pcapng.zst`.
fn parse_file_number(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?;
    let (number, extensions) = name.strip_prefix(CAPTURE_FILE_PREFIX)?.strip_prefix('-')?.split_once('.')?;
    // The recorder pads numbers to five digits, so a file with fewer digits is not from a log.
    let is_ours = matches!(extensions, "pcapng" | "pcapng.zst") && number.len() >= 5;
    if is_ours { number.parse().ok() } else { None }
}

#[cfg(test)]
mod tests;
