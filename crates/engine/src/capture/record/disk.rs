//! The thread at the disk's end of the queue: it writes blocks, opens the next file and removes the oldest.
//!
//! A failed write ends a recording: the file is cut to its last complete record, and the frames of this block and of
//! all later blocks count as lost. If the disk is full, a [`RecordedFileKeeper`] decides what happens: the write is
//! repeated (the keeper has removed a file), nothing is written until the next file begins, or the recording ends.

use super::compression::FileCompression;
use super::feed::{CAPTURE_BLOCK_BYTES, DiskBlock};
use super::file_keeper::{FullDiskPolicy, RecordedFileFacts, RecordedFileKeeper};
use crossbeam_channel::{Receiver, Sender};
use packetrig_sys::bulk::BulkFile;
use packetrig_wire::checksum::crc32;
use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordTarget {
    /// A file; an existing one is replaced.
    File(PathBuf),
    /// Standard output, for a program that reads the capture while it is written.
    StandardOutput,
}

#[derive(Debug)]
pub(super) enum DiskCommand {
    Open(RecordTarget),
    Block(DiskBlock),
    /// The current file is complete, as far as the capturing thread knows.
    Ended(Box<RecordedFileFacts>),
    /// The interval between two checks has passed: the keeper shall check its files.
    Look,
}

/// Counters of the disk's thread, shared with the capturing thread.
#[derive(Debug, Default)]
pub(super) struct DiskCounters {
    pub(super) written: AtomicU64,
    pub(super) lost: AtomicU64,
    pub(super) failed: AtomicBool,
}

/// State of the files when the thread ends.
#[derive(Debug, Default)]
pub(super) struct DiskOutcome {
    /// Existing files, oldest first.
    pub(super) files: VecDeque<PathBuf>,
    pub(super) removed: u64,
    /// Frames in removed files.
    pub(super) removed_frames: u64,
    /// Whether writes to the first file bypassed the page cache.
    pub(super) direct: bool,
    pub(super) failure: Option<(PathBuf, io::Error)>,
}

/// The two channels between the capturing thread and the disk's thread, as the disk's thread holds them.
pub(super) struct DiskQueue {
    pub(super) orders: Receiver<DiskCommand>,
    /// Returns written blocks to the capturing thread.
    pub(super) free: Sender<DiskBlock>,
}

#[derive(Clone, Copy)]
pub(super) struct DiskOptions {
    /// Maximum number of files; older ones are deleted. `None`: no file is deleted.
    pub(super) keep: Option<usize>,
    /// Compression level; `None` writes frames uncompressed.
    pub(super) zstd: Option<i32>,
}

/// Checksum of a file while it is written. The file may be cut to its last complete record, so the checksum up to there
/// is kept as well.
#[derive(Clone, Copy, Debug, Default)]
struct RunningChecksum {
    of_all: u32,
    of_whole: u32,
}

impl RunningChecksum {
    /// Adds written bytes. The last complete record in them ends after `whole` bytes; `None` if no record ends in them.
    fn add_bytes(&mut self, bytes: &[u8], whole: Option<usize>) {
        let Some((complete, begun)) = whole.and_then(|whole| bytes.split_at_checked(whole)) else {
            self.of_all = crc32(self.of_all, bytes);
            return;
        };
        // A CRC-32 can be continued, so every byte is read once for both sums.
        self.of_whole = crc32(self.of_all, complete);
        self.of_all = crc32(self.of_whole, begun);
    }
}

pub(super) struct DiskThread {
    queue: DiskQueue,
    keep: Option<usize>,
    tally: Arc<DiskCounters>,
    file: Option<(PathBuf, BulkFile)>,
    compression: Option<FileCompression>,
    /// File offset where the last complete record on the disk ends; with compression, the last block.
    whole: u64,
    /// Checksum of the current file; computed only if a keeper needs it.
    checksum: RunningChecksum,
    /// Frames in each of the existing files.
    frames: VecDeque<u64>,
    /// Lost frames of the current file.
    lost: u64,
    /// The current file, if it was never opened because writing had failed.
    unopened: Option<PathBuf>,
    keeper: Option<Box<dyn RecordedFileKeeper>>,
    done: DiskOutcome,
}

impl DiskThread {
    /// Opens the first file, so that a wrong name is reported before the capture starts.
    pub(super) fn open_first_file(
        first: RecordTarget,
        queue: DiskQueue,
        options: DiskOptions,
        tally: Arc<DiskCounters>,
        keeper: Option<Box<dyn RecordedFileKeeper>>,
    ) -> Result<Self, (PathBuf, io::Error)> {
        // Direct writes need blocks that are aligned in memory and file, so compressed output, which has any length,
        // goes through the page cache.
        let compression =
            options.zstd.map(|level| FileCompression::new(level, CAPTURE_BLOCK_BYTES)).transpose();
        let compression = compression.map_err(|error| (PathBuf::from("zstd"), error))?;
        let mut disk = Self {
            queue,
            keep: options.keep,
            tally,
            file: None,
            compression,
            whole: 0,
            checksum: RunningChecksum::default(),
            frames: VecDeque::new(),
            lost: 0,
            unopened: None,
            keeper,
            done: DiskOutcome::default(),
        };
        disk.open_next_file(first)?;
        disk.done.direct =
            disk.compression.is_none() && disk.file.as_ref().is_some_and(|(_, file)| file.is_direct());
        Ok(disk)
    }

    /// Executes commands until the capturing thread has dropped its sender.
    pub(super) fn execute_disk_commands(mut self) -> DiskOutcome {
        while let Ok(order) = self.queue.orders.recv() {
            match order {
                DiskCommand::Open(target) if self.done.failure.is_none() => {
                    if let Err(failure) = self.open_next_file(target) {
                        self.record_failure(failure);
                    }
                }
                // The capturing thread may have queued commands before it noticed the failure.
                DiskCommand::Open(target) => self.skip_file(target),
                DiskCommand::Block(block) => self.write_block(block),
                DiskCommand::Ended(part) => self.finish_file(*part),
                DiskCommand::Look => {
                    if let Some(keeper) = &mut self.keeper {
                        keeper.check_files();
                    }
                }
            }
        }
        self.done
    }

    fn open_next_file(&mut self, target: RecordTarget) -> Result<(), (PathBuf, io::Error)> {
        self.file = None;
        self.whole = 0;
        self.checksum = RunningChecksum::default();
        self.lost = 0;
        let path;
        let mut file;
        match target {
            RecordTarget::File(name) => {
                path = name;
                file = BulkFile::create_at(&path, true);
                // The loop ends: a keeper answers `TryAgain` only after it has removed a file.
                while file.as_ref().is_err_and(|error| self.try_to_free_disk_space(error)) {
                    file = BulkFile::create_at(&path, true);
                }
                self.done.files.push_back(path.clone());
                self.frames.push_back(0);
            }
            RecordTarget::StandardOutput => {
                path = PathBuf::from("standard output");
                file = BulkFile::standard_output();
            }
        }
        match file {
            Ok(file) => self.file = Some((path, file)),
            Err(error) if self.may_continue_without_file(&error) => {}
            Err(error) => return Err((path, error)),
        }
        // At least one file is kept, because the file that was just opened must survive.
        while self.keep.is_some_and(|keep| self.done.files.len() > keep.max(1)) {
            if let Some(oldest) = self.done.files.pop_front() {
                self.done.removed += 1;
                self.done.removed_frames += self.frames.pop_front().unwrap_or(0);
                // Another process may have removed it already, which is no problem.
                drop(std::fs::remove_file(&oldest));
            }
        }
        Ok(())
    }

    /// Skips a file after a failure. The capturing thread does not know yet that writing has failed; the frames of the
    /// skipped file count as lost.
    fn skip_file(&mut self, target: RecordTarget) {
        if let RecordTarget::File(path) = target {
            self.unopened = Some(path);
        }
        self.whole = 0;
        self.checksum = RunningChecksum::default();
        self.lost = 0;
    }

    /// Asks the file keeper to free disk space if this error means that the disk is full. Returns whether it did, so
    /// that the write can be repeated.
    fn try_to_free_disk_space(&mut self, error: &io::Error) -> bool {
        self.keeper
            .as_mut()
            .is_some_and(|shelf| is_disk_full(error) && shelf.on_disk_full() == FullDiskPolicy::TryAgain)
    }

    /// Returns whether the error means that the disk is full and the file keeper wants recording to
    /// continue without this file.
    fn may_continue_without_file(&mut self, error: &io::Error) -> bool {
        self.keeper
            .as_mut()
            .is_some_and(|shelf| is_disk_full(error) && shelf.on_disk_full() == FullDiskPolicy::GoOn)
    }

    /// Finishes the current file and reports it to the keeper.
    fn finish_file(&mut self, part: RecordedFileFacts) {
        let file = self.file.take();
        // Only this thread knows what reached the disk, so it completes the capturing thread's record of the file.
        let part = RecordedFileFacts {
            disk_lost: self.lost,
            size: self.whole,
            crc32: self.checksum.of_whole,
            ..part
        };
        let part = match self.unopened.take() {
            Some(path) => RecordedFileFacts { path, frames: 0, ..part },
            None => RecordedFileFacts {
                path: self.done.files.back().cloned().unwrap_or_default(),
                frames: self.frames.back().copied().unwrap_or(0),
                ..part
            },
        };
        if let Some(shelf) = &mut self.keeper {
            shelf.on_file_complete(part);
        }
        drop(file);
    }

    fn write_block(&mut self, block: DiskBlock) {
        // A retry writes the whole block again at the same offset, so a partial write needs no special case.
        let mut written = self.try_write_block(&block);
        while let Err(Some((_, error))) = &written
            && self
                .keeper
                .as_mut()
                .is_some_and(|shelf| is_disk_full(error) && shelf.on_disk_full() == FullDiskPolicy::TryAgain)
        {
            written = self.try_write_block(&block);
        }
        match written {
            Ok(()) => {
                if let Some(frames) = self.frames.back_mut() {
                    *frames += block.frames;
                }
                self.tally.written.fetch_add(block.frames, Ordering::Release);
            }
            Err(failure) => {
                self.lost += block.frames;
                self.tally.lost.fetch_add(block.frames, Ordering::Release);
                match failure {
                    Some((_, error)) if self.may_continue_without_file(&error) => {
                        self.close_file_at_last_record();
                    }
                    Some(failure) => self.record_failure(failure),
                    None => {}
                }
            }
        }
        // The capturing thread may have ended already and needs no block then.
        drop(self.queue.free.send(block));
    }

    fn try_write_block(&mut self, block: &DiskBlock) -> Result<(), Option<(PathBuf, io::Error)>> {
        match &mut self.file {
            Some((path, file)) => {
                let bytes = &block.memory.bytes()[..block.len];
                let is_checked = self.keeper.is_some();
                let checksum = &mut self.checksum;
                let done = match &mut self.compression {
                    None => file.write_at(bytes, block.offset).map(|()| {
                        // `whole` is 0 for a block in which no record ends: the end of the last complete
                        // record did not move.
                        let ends = block.whole.checked_sub(block.offset);
                        if is_checked {
                            checksum.add_bytes(bytes, ends.and_then(|ends| usize::try_from(ends).ok()));
                        }
                        self.whole.max(block.whole)
                    }),
                    Some(compression) => compression.compress_block(bytes).and_then(|compressed| {
                        // Compressed blocks have no fixed position: each follows the last block that was
                        // written in full.
                        file.write_at(compressed, self.whole)?;
                        if is_checked {
                            checksum.add_bytes(compressed, Some(compressed.len()));
                        }
                        Ok(self.whole + compressed.len() as u64)
                    }),
                };
                done.map(|whole| self.whole = whole).map_err(|error| Some((path.clone(), error)))
            }
            // No file is open after a failure. The caller counts the frames of this block as lost.
            None => Err(None),
        }
    }

    /// Closes the current file at its last complete record.
    fn close_file_at_last_record(&mut self) {
        if let Some((_, file)) = self.file.take() {
            // An error is ignored: the file may then end with half a record, which readers report.
            drop(file.truncate_to(self.whole));
        }
    }

    fn record_failure(&mut self, failure: (PathBuf, io::Error)) {
        self.close_file_at_last_record();
        // The first failure is the cause; later ones follow from it.
        self.done.failure.get_or_insert(failure);
        self.tally.failed.store(true, Ordering::Release);
    }
}

/// Returns whether the error means that the disk, or the owner's quota, is full.
fn is_disk_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
