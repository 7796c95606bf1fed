//! Interface to the component that manages the files of a long recording: it records each complete file and decides
//! what happens when the disk is full.
//!
//! All methods are called on the thread that writes to the disk: the capturing thread never waits for them.

use crate::capture::numbers::TapNumbers;
use std::path::PathBuf;

pub trait RecordedFileKeeper: Send {
    /// Called after each complete file, to record its facts, for example in an index.
    fn on_file_complete(&mut self, part: RecordedFileFacts);
    /// Called when the disk is full; decides how the recording continues.
    fn on_disk_full(&mut self) -> FullDiskPolicy;
    /// Checks the stored files. Called about every 5 s while a recording runs, less often if the disk is busy.
    fn check_files(&mut self);
}

/// Reaction to a full disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FullDiskPolicy {
    /// The disk has space now: write the block again.
    TryAgain,
    /// Write nothing more into this file. Count frames as lost until the disk has space for the next file.
    GoOn,
    /// End the recording.
    End,
}

/// Facts about one complete file of a recording.
#[derive(Clone, Debug, Default)]
pub struct RecordedFileFacts {
    /// Number in the name of the file, from 1.
    pub number: u64,
    pub path: PathBuf,
    /// Frames written to the file.
    pub frames: u64,
    /// Bytes of the frames that were handed to the disk for this file, FCS included.
    pub frame_bytes: u64,
    /// Size of the file on the disk.
    pub size: u64,
    /// CRC-32 of the bytes of the file, as they were handed to the disk.
    pub crc32: u32,
    /// Times at which the file was begun and ended, nanoseconds since 1970.
    pub span_ns: (u64, u64),
    /// Arrival of the first and the last frame handed to the disk for this file, nanoseconds since 1970; `None` if no
    /// frame was handed over.
    pub arrivals_ns: Option<(u64, u64)>,
    /// Frames lost in the kernel's ring since the previous file, as far as known when this one ended.
    pub kernel_dropped: u64,
    /// Frames lost because the queue to the disk was full.
    pub queue_dropped: u64,
    /// Frames lost because they could not be written.
    pub disk_lost: u64,
    /// Trailer counters of a tap at the end of the file.
    pub numbers: TapNumbers,
}
