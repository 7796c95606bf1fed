//! Removes the oldest finished files of a directory of records when the user's limits for size, age or free space are
//! exceeded.
//!
//! Only finished files that packetrig wrote are removed; growing files and files of other programs only
//! count. The age of a file is that of its latest record.
//!
//! Invariant: each removed file is counted ([`RemovedFiles`]).

use super::Error;
use super::encode::WritableTable;
use super::finished::FinishedFiles;
use packetrig_sys::{clock, disk};
use packetrig_units::{ExceededLimit, MonoTime, Nanos, RemovedFiles, RetentionLimits, StoredAmounts};
use serde::Serialize;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Maximum time between two scans of all files: other programs may write into the directory, too.
const FILE_RESCAN_INTERVAL: Nanos = Nanos::from_secs(10);

/// A file that has to be removed because of the limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileToRemove {
    pub file: PathBuf,
    pub bytes: u64,
    pub records: u64,
    /// Time of the file's latest record, nanoseconds since 1970.
    pub latest_ns: u64,
    /// The limit that is exceeded: `size`, `age` or `free`.
    pub why: &'static str,
}

#[derive(Debug)]
pub(super) struct DirectoryRetention {
    directory: PathBuf,
    limits: RetentionLimits,
    found: FinishedFiles,
    scanned: Option<MonoTime>,
    /// Bytes that were written since the last scan, or are about to be written.
    written: u64,
    pub(super) removed: RemovedFiles,
}

impl DirectoryRetention {
    pub(super) fn new(directory: &Path, limits: RetentionLimits) -> Self {
        Self {
            directory: directory.to_owned(),
            limits,
            found: FinishedFiles::default(),
            scanned: None,
            written: 0,
            removed: RemovedFiles::default(),
        }
    }

    /// Makes room for `bytes` that are about to be written, and removes files that are too old.
    pub(super) fn make_disk_room(&mut self, bytes: u64, now: MonoTime) -> Result<(), Error> {
        // Without limits the directory need not be read, which is slow with many files.
        if !self.limits.has_any_limit() {
            return Ok(());
        }
        self.written = self.written.saturating_add(bytes);
        // Other programs write and remove files, too, so the list is read again now and then.
        let is_old = self.scanned.is_none_or(|scanned| now.since(scanned) >= FILE_RESCAN_INTERVAL);
        if is_old || self.exceeded_limit(self.free_bytes()).is_some() {
            self.found.rescan(&self.directory)?;
            self.scanned = Some(now);
            // Everything that was written before is found on the disk now.
            self.written = bytes;
        }
        self.remove_oldest_files()
    }

    /// Free bytes of the disk; `None` if there is no limit for them, or if they cannot be read.
    fn free_bytes(&self) -> Option<u64> {
        self.limits.free.and_then(|_| disk::free_bytes(&self.directory).ok())
    }

    /// Returns a limit that is exceeded, so that the oldest file has to be removed; `None` if there is no such limit or
    /// no file. `free` is the free bytes of the disk, plus the bytes that this pass has removed.
    fn exceeded_limit(&self, free: Option<u64>) -> Option<ExceededLimit> {
        let stored = StoredAmounts {
            bytes: self.found.total_bytes().saturating_add(self.written),
            oldest_ns: Some(self.found.files.front()?.latest_ns),
            now_ns: clock::wall_clock_ns(),
        };
        self.limits.find_exceeded_limit(&stored, || free)
    }

    fn remove_oldest_files(&mut self) -> Result<(), Error> {
        self.remove_files_beyond_limits(self.free_bytes())
    }

    /// Removes the oldest files until no limit is exceeded. The free bytes are not read again after each
    /// removal, because the space of a file that a query still reads becomes free later. Instead, `free` grows
    /// by the size of each removed file.
    fn remove_files_beyond_limits(&mut self, mut free: Option<u64>) -> Result<(), Error> {
        while let Some(why) = self.exceeded_limit(free)
            && let Some(oldest) = self.found.files.pop_front()
        {
            match fs::remove_file(&oldest.path) {
                Ok(()) => {
                    free = free.map(|free| free.saturating_add(oldest.bytes));
                    self.removed.count_file(oldest.bytes, oldest.flow_records(), why);
                    remove_empty_partition(&oldest.path);
                }
                // Another process has removed the file.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                // The file stays, and newer files must not be removed in its place.
                Err(error) => {
                    let failed = Error::file("remove", &oldest.path)(error);
                    self.found.files.push_front(oldest);
                    return Err(failed);
                }
            }
        }
        Ok(())
    }
}

/// Removes the directories of an hour and of its day if they are empty. A directory with files is never
/// removed. A writer that has just created an empty one gets an error and tries again later.
fn remove_empty_partition(file: &Path) {
    // Only directories with packetrig's names are removed: a user may keep files in other directories.
    let hour = file.parent();
    let is_partition = |path: &&Path, begins: &str| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(begins))
    };
    if let Some(hour) = hour.filter(|path| is_partition(path, "hour="))
        && fs::remove_dir(hour).is_ok()
        && let Some(day) = hour.parent().filter(|path| is_partition(path, "date="))
    {
        // The directory of the day usually still has other hours, and is then not removed.
        drop(fs::remove_dir(day));
    }
}

/// The files of a directory that have to be removed now because of the limits, oldest first.
pub fn list_files_to_remove(directory: &Path, limits: RetentionLimits) -> Result<Vec<FileToRemove>, Error> {
    // A dry run uses the same decisions as a removal, so that it shows what will happen.
    let mut keeper = scan_retention_directory(directory, limits)?;
    let mut to_remove = Vec::new();
    let mut free = keeper.free_bytes();
    while let Some(why) = keeper.exceeded_limit(free)
        && let Some(oldest) = keeper.found.files.pop_front()
    {
        free = free.map(|free| free.saturating_add(oldest.bytes));
        to_remove.push(FileToRemove {
            bytes: oldest.bytes,
            records: oldest.flow_records(),
            latest_ns: oldest.latest_ns,
            why: why.name(),
            file: oldest.path,
        });
    }
    Ok(to_remove)
}

/// Removes the oldest files of a directory until it is within the limits.
pub fn remove_old_files(directory: &Path, limits: RetentionLimits) -> Result<RemovedFiles, Error> {
    let mut keeper = scan_retention_directory(directory, limits)?;
    keeper.remove_oldest_files()?;
    Ok(keeper.removed)
}

fn scan_retention_directory(directory: &Path, limits: RetentionLimits) -> Result<DirectoryRetention, Error> {
    // A missing directory, or one without records, means that the user gave a wrong name.
    fs::read_dir(directory).map_err(Error::file("read", directory))?;
    if WritableTable::ALL.iter().all(|table| !directory.join(table.name()).is_dir()) {
        return Err(Error::Nothing { path: directory.to_owned() });
    }
    let mut keeper = DirectoryRetention::new(directory, limits);
    keeper.found.rescan(directory)?;
    Ok(keeper)
}

#[cfg(test)]
mod tests;
