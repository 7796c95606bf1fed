//! Runs with files that are not in the list of runs: they are under way, were killed, or their report could not be
//! written.
//!
//! ```text
//! <store>/runs/<id>.partial/owner    contains the number of the run's process, which locks it while it lives
//! ```
//! Invariant: only [`RunCatalogue::discard_run`] and [`RunCatalogue::prune_results`] remove captures, at the
//! user's request; no other function here or in a draft does.

use crate::catalogue::RunCatalogue;
use crate::files::REPORT_FILE_NAME;
use crate::room::RESERVED_FILE_PREFIX;
use crate::segments::SEGMENTS_DIRECTORY;
use crate::{Error, disk};
use packetrig_report::RunId;
use packetrig_sys::{private_files, process};
use serde::Serialize;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// Extension of a run's directory until the run has its row.
pub(crate) const UNFINISHED_RUN_EXTENSION: &str = "partial";
pub(crate) const OWNER_FILE_NAME: &str = "owner";
const MAX_ATTEMPTS: u32 = 40;
const ATTEMPT_PAUSE: Duration = Duration::from_millis(5);
pub(crate) const CAPTURES_DIRECTORY: &str = "captures";

/// A run with files on disk that is not in the catalogue's list of runs: it is still running, was killed, or its report
/// could not be stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnlistedRun {
    pub run: RunId,
    pub directory: PathBuf,
    /// When the run was begun, or last resumed, in nanoseconds since 1970 (UTC).
    pub begun_wall_ns: u64,
    /// Number of the process that runs it (0 if it cannot be read); `None` if there is none.
    pub process: Option<u32>,
    pub captures: Vec<UnlistedCapture>,
    /// Bytes of the segments that nodes of a fleet sent; the files in `captures` are not among them.
    pub segment_bytes: u64,
    /// True if the report was written and only the row is missing.
    pub has_report: bool,
}

/// A capture file of an [`UnlistedRun`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnlistedCapture {
    pub file: PathBuf,
    pub bytes: u64,
}

impl UnlistedRun {
    /// Reads the files of a run in `directory`.
    pub(crate) fn read_directory(run: RunId, directory: &Path) -> io::Result<Self> {
        let owner = directory.join(OWNER_FILE_NAME);
        let begun = fs::metadata(&owner).or_else(|_| fs::metadata(directory))?;
        // The owner file is written when a process takes the directory. Unless the run was resumed, this is
        // the start of the run.
        let seconds = begun.mtime().max(0).unsigned_abs();
        Ok(Self {
            run,
            directory: directory.to_owned(),
            begun_wall_ns: seconds.saturating_mul(1_000_000_000),
            process: find_living_owner(&owner),
            captures: list_captures(&directory.join(CAPTURES_DIRECTORY))?,
            segment_bytes: total_bytes_below(&directory.join(SEGMENTS_DIRECTORY))?,
            has_report: directory.join(REPORT_FILE_NAME).exists(),
        })
    }
}

impl RunCatalogue {
    /// Lists the runs that have files and are not in the catalogue's list, in the order of their ids.
    pub fn list_unlisted_runs(&self) -> Result<Vec<UnlistedRun>, Error> {
        let runs = self.place().join("runs");
        let mut kept = Vec::new();
        for directory in list_subdirectories(&runs).map_err(Error::file("read", &runs))? {
            let is_partial =
                directory.extension().is_some_and(|extension| extension == UNFINISHED_RUN_EXTENSION);
            let id = directory.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            // A run in the catalogue is not listed here. A run that is being removed has lost its row, but not yet all
            // of its files; the next prune removes them.
            if !is_partial && (self.is_listed(&id)? || self.is_being_removed(&id)?) {
                continue;
            }
            match UnlistedRun::read_directory(RunId(id), &directory) {
                Ok(run) => kept.push(run),
                // The run was committed or discarded after the directory was read.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(Error::file("read", &directory)(error)),
            }
        }
        kept.sort_by(|a, b| a.directory.cmp(&b.directory));
        Ok(kept)
    }

    /// Finds the unlisted run with an id that begins with `prefix`. A full id is found even if other ids begin with it.
    pub fn find_unlisted_run(&self, prefix: &str) -> Result<UnlistedRun, Error> {
        let mut found = self.list_unlisted_runs()?;
        found.retain(|kept| kept.run.0.starts_with(prefix));
        if let Some(exact) = found.iter().position(|kept| kept.run.0 == prefix) {
            return Ok(found.swap_remove(exact));
        }
        let count = found.len();
        match found.into_iter().next() {
            Some(only) if count == 1 => Ok(only),
            Some(first) => Err(Error::Ambiguous { prefix: prefix.to_owned(), count, example: first.run.0 }),
            None => Err(Error::Unknown(prefix.to_owned())),
        }
    }

    /// Removes the files, captures included, of a run that is not in the catalogue, and returns what was removed. Fails
    /// while the process of the run is alive.
    pub fn discard_run(&self, prefix: &str) -> Result<UnlistedRun, Error> {
        let kept = self.find_unlisted_run(prefix)?;
        if let Some(process) = kept.process {
            // The lock decides: a process that was killed does not hold it any more, so its run can be discarded.
            return Err(Error::UnderWay { run: kept.run, process });
        }
        fs::remove_dir_all(&kept.directory).map_err(Error::file("remove", &kept.directory))?;
        self.delete_unfinished_run(&kept.run)?;
        Ok(kept)
    }
}

/// Ownership of the directory of a run or method, until this value is dropped. If another process owns the directory,
/// the value has no lock.
#[derive(Debug)]
pub(crate) struct DirectoryOwnership {
    /// The locked owner file; `None` if another process has the lock.
    file: Option<File>,
}

impl DirectoryOwnership {
    pub(crate) fn try_take_ownership(directory: &Path) -> io::Result<Self> {
        let path = directory.join(OWNER_FILE_NAME);
        let mut file = private_files::open_or_create(&path)?;
        if !lock_owner_file(&file)? {
            return Ok(Self { file: None });
        }
        // The number is written only under the lock. Before that, the file may contain the number of another
        // process.
        file.set_len(0)?;
        // This fails only on a full disk. Only the lock matters: the number is for people, who then see 0.
        drop(writeln!(file, "{}", process::current_process_id()));
        Ok(Self { file: Some(file) })
    }

    /// Returns whether this process has the lock.
    pub(crate) const fn has_lock(&self) -> bool {
        self.file.is_some()
    }

    /// Removes the owner file from `directory`, because its run or method is complete.
    pub(crate) fn remove_owner_file(directory: &Path) {
        // A file that stays behind is not locked, so it has no meaning.
        drop(fs::remove_file(directory.join(OWNER_FILE_NAME)));
    }
}

/// Tries to lock the owner file; returns `false` if another process has it. A process that lists runs also locks it for
/// a moment, so several attempts are made.
fn lock_owner_file(file: &File) -> io::Result<bool> {
    for _ in 0..MAX_ATTEMPTS {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) => thread::sleep(ATTEMPT_PAUSE),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Ok(false)
}

/// Returns the number of the process that has locked the file (0 if it cannot be read); `None` if no process has. The
/// lock decides and not the number in the file: numbers are reused, but a lock ends with its process.
pub(crate) fn find_living_owner(path: &Path) -> Option<u32> {
    let file = File::open(path).ok()?;
    // A shared lock conflicts with the owner's exclusive one, but not with other processes that list runs.
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => {
            let text = fs::read_to_string(path).unwrap_or_default();
            // 0 means a number that cannot be read: the lock alone shows that the process is alive.
            Some(text.trim().parse().unwrap_or(0))
        }
        _ => None,
    }
}

/// Lists the capture files that are not empty, sorted by name.
pub(crate) fn list_captures(directory: &Path) -> io::Result<Vec<UnlistedCapture>> {
    let mut captures = Vec::new();
    for entry in list_entries(directory)? {
        let facts = entry.metadata()?;
        if facts.is_file() && facts.len() > 0 {
            captures.push(UnlistedCapture { file: entry.path(), bytes: facts.len() });
        }
    }
    captures.sort_by(|a, b| a.file.cmp(&b.file));
    Ok(captures)
}

/// Removes the files that a draft has created and their directory, unless there are captures. Files
/// with other names stay.
pub(crate) fn remove_if_empty(directory: &Path) -> io::Result<()> {
    let captured = directory.join(CAPTURES_DIRECTORY);
    if !list_captures(&captured)?.is_empty() {
        return Ok(());
    }
    // Captures that never got a frame are empty files.
    for empty in list_entries(&captured)? {
        fs::remove_file(empty.path())?;
    }
    for entry in list_entries(directory)? {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name == OWNER_FILE_NAME
            || name.starts_with(RESERVED_FILE_PREFIX)
            || name.ends_with(disk::UNFINISHED_FILE_EXTENSION)
        {
            fs::remove_file(entry.path())?;
        }
    }
    if captured.exists() {
        fs::remove_dir(&captured)?;
    }
    // If the directory has any other content, this fails, and that content stays.
    fs::remove_dir(directory)
}

pub(crate) fn total_bytes_below(directory: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in list_entries(directory)? {
        let facts = entry.metadata()?;
        bytes += if facts.is_dir() { total_bytes_below(&entry.path())? } else { facts.len() };
    }
    Ok(bytes)
}

fn list_subdirectories(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut entries = list_entries(directory)?;
    entries.retain(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    Ok(entries.into_iter().map(|entry| entry.path()).collect())
}

/// The entries of a directory; none if it does not exist.
fn list_entries(directory: &Path) -> io::Result<Vec<fs::DirEntry>> {
    match fs::read_dir(directory) {
        Ok(entries) => entries.collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
