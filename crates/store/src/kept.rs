//! Runs that have files and no row: under way, killed, or ended without a report that could be written.
//!
//! ```text
//! <store>/runs/<id>.partial/owner    locked as long as the process lives whose run it is; its number is in it
//! ```
//! Invariant: nothing here or in a draft removes a capture, but [`RunCatalogue::discard`], which the user asks for.

use crate::catalogue::RunCatalogue;
use crate::files::REPORT;
use crate::room::ROOM;
use crate::segments::SEGMENTS;
use crate::{Error, disk};
use packetrig_fleet::RunId;
use packetrig_sys::{private_files, process};
use serde::Serialize;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// Ends the name of a run's directory until it has its row.
pub(crate) const PARTIAL: &str = "partial";
const OWNER: &str = "owner";
const ATTEMPTS: u32 = 40;
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(5);
pub(crate) const CAPTURES: &str = "captures";

/// A run with files and without a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeptRun {
    pub run: RunId,
    /// Where its files are.
    pub directory: PathBuf,
    /// When it was begun, nanoseconds since 1970 (UTC).
    pub begun_wall_ns: u64,
    /// The process whose run it is, if that still lives.
    pub process: Option<u32>,
    /// Capture files in it.
    pub captures: Vec<KeptCapture>,
    /// Bytes of what nodes of a fleet sent and has not been put together.
    pub segment_bytes: u64,
    /// Whether its report was written; the row is what is missing.
    pub has_report: bool,
}

/// A capture file of such a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeptCapture {
    pub file: PathBuf,
    pub bytes: u64,
}

impl KeptRun {
    /// What is in `directory`.
    pub(crate) fn read(run: RunId, directory: &Path) -> io::Result<Self> {
        let owner = directory.join(OWNER);
        let begun = fs::metadata(&owner).or_else(|_| fs::metadata(directory))?;
        let seconds = u64::try_from(begun.mtime()).unwrap_or(0);
        Ok(Self {
            run,
            directory: directory.to_owned(),
            begun_wall_ns: seconds.saturating_mul(1_000_000_000),
            process: living_owner(&owner),
            captures: captures(&directory.join(CAPTURES))?,
            segment_bytes: bytes_below(&directory.join(SEGMENTS))?,
            has_report: directory.join(REPORT).exists(),
        })
    }
}

impl RunCatalogue {
    /// Runs that have files and no row, in the order of their ids.
    pub fn kept(&self) -> Result<Vec<KeptRun>, Error> {
        let runs = self.place().join("runs");
        let mut kept = Vec::new();
        for directory in subdirectories(&runs).map_err(Error::file("read", &runs))? {
            let is_partial = directory.extension().is_some_and(|extension| extension == PARTIAL);
            let id = directory.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            if !is_partial && self.is_listed(&id)? {
                continue;
            }
            match KeptRun::read(RunId(id), &directory) {
                Ok(run) => kept.push(run),
                // It got its name, or was discarded, while we looked.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(Error::file("read", &directory)(error)),
            }
        }
        kept.sort_by(|a, b| a.directory.cmp(&b.directory));
        Ok(kept)
    }

    /// The one whose id begins with `prefix`.
    pub fn find_kept(&self, prefix: &str) -> Result<KeptRun, Error> {
        let mut found = self.kept()?;
        found.retain(|kept| kept.run.0.starts_with(prefix));
        if let Some(exact) = found.iter().position(|kept| kept.run.0 == prefix) {
            return Ok(found.swap_remove(exact));
        }
        let (count, example) = (found.len(), found.first().map(|kept| kept.run.0.clone()));
        match (count, found.pop(), example) {
            (1, Some(only), _) => Ok(only),
            (_, _, Some(example)) => Err(Error::Ambiguous { prefix: prefix.to_owned(), count, example }),
            _ => Err(Error::Unknown(prefix.to_owned())),
        }
    }

    /// Removes the files of a run that has no row, captures and all; refused while its process lives. Says what was removed.
    pub fn discard(&self, prefix: &str) -> Result<KeptRun, Error> {
        let kept = self.find_kept(prefix)?;
        if let Some(process) = kept.process {
            return Err(Error::UnderWay { run: kept.run, process });
        }
        fs::remove_dir_all(&kept.directory).map_err(Error::file("remove", &kept.directory))?;
        self.forget_unfinished(&kept.run)?;
        Ok(kept)
    }
}

/// A run's directory that is ours as long as this lives.
#[derive(Debug)]
pub(crate) struct DirectoryOwner {
    /// Open, and so locked; `None` where another process has it.
    _file: Option<File>,
}

impl DirectoryOwner {
    pub(crate) fn take(directory: &Path) -> io::Result<Self> {
        let path = directory.join(OWNER);
        let mut file = private_files::open_or_create(&path)?;
        if !lock(&file)? {
            return Ok(Self { _file: None });
        }
        file.set_len(0)?;
        // Without room for the number it is shown as 0.
        writeln!(file, "{}", process::own()).unwrap_or(());
        Ok(Self { _file: Some(file) })
    }

    /// It is over: no trace of it is left in `directory`.
    pub(crate) fn remove_trace(directory: &Path) {
        fs::remove_file(directory.join(OWNER)).unwrap_or(());
    }
}

/// Whoever lists runs holds the lock for an instant, too: that is waited for.
fn lock(file: &File) -> io::Result<bool> {
    for _ in 0..ATTEMPTS {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) => thread::sleep(BETWEEN_ATTEMPTS),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Ok(false)
}

/// The process that has locked the file. Numbers of processes come again; a lock does not outlive its process.
fn living_owner(path: &Path) -> Option<u32> {
    let file = File::open(path).ok()?;
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => {
            let text = fs::read_to_string(path).unwrap_or_default();
            Some(text.trim().parse().unwrap_or(0))
        }
        _ => None,
    }
}

/// Files with something in them, by name.
pub(crate) fn captures(directory: &Path) -> io::Result<Vec<KeptCapture>> {
    let mut captures = Vec::new();
    for entry in entries(directory)? {
        let facts = entry.metadata()?;
        if facts.is_file() && facts.len() > 0 {
            captures.push(KeptCapture { file: entry.path(), bytes: facts.len() });
        }
    }
    captures.sort_by(|a, b| a.file.cmp(&b.file));
    Ok(captures)
}

/// Removes what a draft made, unless something was captured. Nothing is removed that is not named here.
pub(crate) fn remove_if_empty(directory: &Path) -> io::Result<()> {
    let captured = directory.join(CAPTURES);
    if !captures(&captured)?.is_empty() {
        return Ok(());
    }
    for empty in entries(&captured)? {
        fs::remove_file(empty.path())?;
    }
    for entry in entries(directory)? {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name == OWNER || name.starts_with(ROOM) || name.ends_with(disk::UNFINISHED) {
            fs::remove_file(entry.path())?;
        }
    }
    if captured.exists() {
        fs::remove_dir(&captured)?;
    }
    fs::remove_dir(directory)
}

fn bytes_below(directory: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in entries(directory)? {
        let facts = entry.metadata()?;
        bytes += if facts.is_dir() { bytes_below(&entry.path())? } else { facts.len() };
    }
    Ok(bytes)
}

fn subdirectories(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let is_directory = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    Ok(entries(directory)?.into_iter().filter(is_directory).map(|entry| entry.path()).collect())
}

/// What is in a directory; nothing if there is none.
fn entries(directory: &Path) -> io::Result<Vec<fs::DirEntry>> {
    match fs::read_dir(directory) {
        Ok(entries) => entries.collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
