//! Keeps the files of a log: adds each to the index, removes files beyond the limits, and applies the policy
//! for a full disk.

use super::index::{LogFileEntry, LogIndex, LogIndexEntry, LoggedDirection, RemovalReason};
use super::{Error, INDEX_FILE_NAME, file_error, list_files, survey, survey_file};
use packetrig_engine::capture::numbers::TapNumbers;
use packetrig_engine::capture::record::{FullDiskPolicy, RecordedFileFacts, RecordedFileKeeper};
use packetrig_sys::{clock, disk, private_files};
use packetrig_units::{ExceededLimit, RetentionLimits, StoredAmounts};
use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};

/// File that a log locks while it runs in the directory.
const LOCK_FILE_NAME: &str = ".lock";
const LOCK_ATTEMPTS: u32 = 4;
const LOCK_RETRY_PAUSE_NS: u64 = 20_000_000;

/// Policy for a full disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FullDiskReaction {
    /// Remove the oldest files.
    #[default]
    DropOldest,
    /// Write no file and count the frames as lost, until the disk has space for another file.
    Stop,
    /// End the log; refuse to begin without space for a file.
    Refuse,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogRetention {
    /// Limits on all files; the file that is being written counts with its maximum size.
    pub limits: RetentionLimits,
    /// Largest size of one file, bytes.
    pub file: u64,
    /// Policy for a full disk.
    pub when_full: FullDiskReaction,
}

/// The interface and direction of the frames that a log records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameLogSource<'a> {
    pub interface: &'a str,
    pub direction: LoggedDirection,
}

#[derive(Debug)]
pub struct LogKeeper {
    directory: PathBuf,
    direction: LoggedDirection,
    index: LogIndex,
    retention: LogRetention,
    /// Complete files in the directory, oldest first.
    files: VecDeque<LogFileEntry>,
    last_file: u64,
    next_frame: u64,
    numbers: TapNumbers,
    added_files: u64,
    _lock: File,
}

impl LogKeeper {
    /// Takes over a directory, or creates it: locks it, repairs and adds the files that a killed log left, removes
    /// files that the index lists as removed, and writes the index again.
    pub fn open_directory(
        directory: &Path,
        source: FrameLogSource<'_>,
        retention: LogRetention,
    ) -> Result<Self, Error> {
        private_files::create_directories(directory).map_err(file_error("create", directory))?;
        // The lock is taken first, because a running log would change the files that are read and changed
        // below.
        let lock = lock_directory(directory)?;
        // If the free space is unknown, the log begins anyway; on a full disk, its first write fails.
        let free = disk::free_bytes(directory).unwrap_or(u64::MAX);
        if retention.when_full == FullDiskReaction::Refuse && free < retention.file {
            return Err(Error::NoRoom { path: directory.to_owned(), free, wanted: retention.file });
        }
        let mut state = IndexedFiles::read_index(directory)?;
        let added_files = state.add_unlisted_files(directory)?;
        let began = LogIndexEntry::Began {
            at_ns: clock::wall_clock_ns(),
            interface: source.interface.to_owned(),
            file: state.last_file + 1,
            frame: state.next_frame,
            numbers: state.numbers,
            direction: source.direction,
        };
        // All removed files are combined into one sum, so that the index does not grow with the age of the
        // log.
        let before = (state.gone.files > 0).then_some(LogIndexEntry::Before {
            last_file: state.gone.last_file,
            files: state.gone.files,
            frames: state.gone.frames,
        });
        let there = state.files.iter().cloned().map(LogIndexEntry::File);
        let entries: Vec<LogIndexEntry> = before.into_iter().chain(there).chain([began]).collect();
        Ok(Self {
            directory: directory.to_owned(),
            direction: source.direction,
            index: LogIndex::create_with_entries(directory, &entries)?,
            retention,
            files: state.files.into(),
            last_file: state.last_file,
            next_frame: state.next_frame,
            numbers: state.numbers,
            added_files,
            _lock: lock,
        })
    }

    /// Number of the last file ever written; zero before the first.
    pub fn last_file(&self) -> u64 {
        self.last_file
    }

    /// Number of the next frame: so many frames were written to files since the log's first run.
    pub fn next_frame(&self) -> u64 {
        self.next_frame
    }

    /// State of the tap's trailer numbers after the last file.
    pub fn tap_numbers(&self) -> TapNumbers {
        self.numbers
    }

    /// Number of files of a killed log that were added to the index at the start.
    pub fn added_files(&self) -> u64 {
        self.added_files
    }

    /// Removes the oldest files while they exceed a limit.
    fn prune_files(&mut self) {
        // The limits are checked again after every removal, and an empty list ends the loop.
        while let Some(exceeded) = self.exceeded_limit()
            && self.remove_oldest_file(exceeded.into())
        {}
    }

    fn exceeded_limit(&self) -> Option<ExceededLimit> {
        let stored = StoredAmounts {
            // The file being written counts with its full size: otherwise the total would pass the limit
            // while the file grows.
            bytes: self.total_size().saturating_add(self.retention.file),
            // The end time of the file decides, because its last frame must be old enough, too.
            oldest_ns: self.files.front().map(|file| file.span_ns.1),
            now_ns: clock::wall_clock_ns(),
        };
        self.retention.limits.find_exceeded_limit(&stored, || disk::free_bytes(&self.directory).ok())
    }

    fn total_size(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }

    fn remove_oldest_file(&mut self, why: RemovalReason) -> bool {
        let Some(oldest) = self.files.pop_front() else { return false };
        // Another process may have removed the file already; the result is the same.
        drop(fs::remove_file(self.directory.join(&oldest.name)));
        self.index.add_entry(&LogIndexEntry::Removed {
            at_ns: clock::wall_clock_ns(),
            file: oldest.file,
            frames: oldest.frames,
            why,
        });
        true
    }
}

impl RecordedFileKeeper for LogKeeper {
    fn on_file_complete(&mut self, part: RecordedFileFacts) {
        let name = part.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let entry = LogFileEntry {
            file: part.number,
            name,
            first_frame: self.next_frame,
            frames: part.frames,
            frame_bytes: part.frame_bytes,
            size: part.size,
            crc32: Some(part.crc32),
            span_ns: part.span_ns,
            arrivals_ns: part.arrivals_ns,
            dropped_kernel: part.kernel_dropped,
            dropped_queue: part.queue_dropped,
            dropped_disk: part.disk_lost,
            numbers: part.numbers,
            direction: self.direction,
            mended: false,
        };
        self.next_frame += part.frames;
        self.last_file = part.number;
        // The file is added to the index before the pruning, which may remove this very file.
        self.index.add_entry(&LogIndexEntry::File(entry.clone()));
        self.files.push_back(entry);
        self.prune_files();
        self.index.write_pending_lines();
    }

    fn on_disk_full(&mut self) -> FullDiskPolicy {
        let when_full = self.retention.when_full;
        if when_full == FullDiskReaction::DropOldest && self.remove_oldest_file(RemovalReason::Full) {
            return FullDiskPolicy::TryAgain;
        }
        match when_full {
            // `DropOldest` comes here only if no file is left to remove: another program fills the disk.
            FullDiskReaction::DropOldest | FullDiskReaction::Stop => FullDiskPolicy::GoOn,
            FullDiskReaction::Refuse => FullDiskPolicy::End,
        }
    }

    fn check_files(&mut self) {
        self.prune_files();
        self.index.write_pending_lines();
    }
}

impl Drop for LogKeeper {
    fn drop(&mut self) {
        // The recorder has reported all its files as complete before it drops the keeper.
        self.index.add_entry(&LogIndexEntry::Ended { at_ns: clock::wall_clock_ns() });
    }
}

/// True if a log runs in this directory; `false` if this is unknown.
pub(super) fn is_log_running(directory: &Path) -> bool {
    // This takes a shared lock for a moment. A log that begins at this moment tries again (`lock_directory`).
    File::open(directory.join(LOCK_FILE_NAME))
        .is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

fn lock_directory(directory: &Path) -> Result<File, Error> {
    let path = directory.join(LOCK_FILE_NAME);
    let file = private_files::open_or_create(&path).map_err(file_error("create", &path))?;
    let mut attempts = 0;
    loop {
        attempts += 1;
        match file.try_lock() {
            Ok(()) => return Ok(file),
            // Another process may only be checking for a running log (`is_log_running`).
            Err(TryLockError::WouldBlock) if attempts < LOCK_ATTEMPTS => {
                clock::sleep_until_ns(clock::monotonic_ns() + LOCK_RETRY_PAUSE_NS);
            }
            Err(TryLockError::WouldBlock) => return Err(Error::InUse(directory.to_owned())),
            Err(TryLockError::Error(error)) => return Err(file_error("lock", &path)(error)),
        }
    }
}

#[derive(Default)]
struct RemovedFileTotals {
    last_file: u64,
    files: u64,
    frames: u64,
}

/// State of the files according to the index.
#[derive(Default)]
struct IndexedFiles {
    files: Vec<LogFileEntry>,
    gone: RemovedFileTotals,
    last_file: u64,
    next_frame: u64,
    numbers: TapNumbers,
    /// Direction of the log's last run.
    direction: LoggedDirection,
}

impl IndexedFiles {
    fn read_index(directory: &Path) -> Result<Self, Error> {
        let mut state = Self::default();
        for entry in LogIndex::read_index_entries(directory)? {
            match entry {
                LogIndexEntry::Before { last_file, files, frames } => {
                    state.gone = RemovedFileTotals { last_file, files, frames };
                    state.last_file = state.last_file.max(last_file);
                    state.next_frame = state.next_frame.max(frames);
                }
                LogIndexEntry::File(file) => state.add_file(file),
                LogIndexEntry::Removed { file, frames, .. } => state.remove_file(file, frames),
                LogIndexEntry::Began { file, frame, numbers, direction, .. } => {
                    state.numbers = numbers;
                    state.direction = direction;
                    // `file` is the first file of that run, so the last file before that run has the number below it.
                    state.last_file = state.last_file.max(file.saturating_sub(1));
                    state.next_frame = state.next_frame.max(frame);
                }
                LogIndexEntry::Ended { .. } => {}
            }
        }
        Ok(state)
    }

    fn add_file(&mut self, file: LogFileEntry) {
        self.last_file = self.last_file.max(file.file);
        self.next_frame = file.first_frame + file.frames;
        self.numbers = file.numbers;
        self.files.push(file);
    }

    fn remove_file(&mut self, number: u64, frames: u64) {
        self.files.retain(|file| file.file != number);
        self.gone.last_file = self.gone.last_file.max(number);
        self.gone.files += 1;
        self.gone.frames += frames;
    }

    /// Adds the files that are missing in the index because their log was killed, and returns their number. Deletes
    /// files that the index lists as removed.
    fn add_unlisted_files(&mut self, directory: &Path) -> Result<u64, Error> {
        let known: Vec<u64> = self.files.iter().map(|file| file.file).collect();
        let unknown = list_files(directory)?.into_iter().filter(|(number, _)| !known.contains(number));
        let mut added = 0;
        for (number, path) in unknown {
            // The index lists the file as removed, but it is still on the disk, so it is deleted: a removal
            // is entered even if it failed. Files up to the last removed number are never added again, so
            // that no frame counts twice.
            if number <= self.gone.last_file {
                fs::remove_file(&path).map_err(file_error("remove", &path))?;
                continue;
            }
            // The order is ascending: each survey continues from the trailer numbers of the previous file.
            let entry = self.rebuild_file_entry(number, &path)?;
            self.add_file(entry);
            added += 1;
        }
        Ok(added)
    }

    fn rebuild_file_entry(&self, number: u64, path: &Path) -> Result<LogFileEntry, Error> {
        let found = survey_file(path, self.numbers)?;
        let is_compressed = path.extension().is_some_and(|extension| extension == "zst");
        // A partial record at the end would stop every reader there, so it is cut off. A compressed file is
        // left as it is: each block is a separate zstd frame, and readers get all data up to the last whole
        // frame.
        let is_to_be_cut = found.is_cut && !is_compressed;
        if is_to_be_cut {
            let file = OpenOptions::new().write(true).open(path).map_err(file_error("repair", path))?;
            file.set_len(found.whole).map_err(file_error("repair", path))?;
        }
        let size = fs::metadata(path).map_err(file_error("read", path))?.len();
        // The cut has changed the file's bytes, so the checksum of the survey is no longer right.
        let crc32 = if is_to_be_cut { survey::compute_file_crc32(path)? } else { found.crc32 };
        Ok(LogFileEntry {
            file: number,
            name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            first_frame: self.next_frame,
            frames: found.frames,
            frame_bytes: found.frame_bytes,
            size,
            crc32: Some(crc32),
            // The process that knew the times of the file has ended; the times of its frames are the best
            // known values.
            span_ns: found.arrivals_ns.unwrap_or_default(),
            arrivals_ns: found.arrivals_ns,
            numbers: found.numbers,
            direction: self.direction,
            mended: true,
            ..LogFileEntry::default()
        })
    }
}

/// Returns the path of a directory's index.
pub(super) fn index_path(directory: &Path) -> PathBuf {
    directory.join(INDEX_FILE_NAME)
}
