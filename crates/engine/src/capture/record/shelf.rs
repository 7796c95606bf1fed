//! Keeps the files of a long recording: is told of each complete file, and decides what a full disk means.
//!
//! It is called on the disk's thread: the capturing thread never waits for it.

use crate::capture::numbers::TapNumbers;
use std::path::PathBuf;

pub trait FileShelf: Send {
    /// A file is complete.
    fn ended(&mut self, part: FilePart);
    /// The disk is full.
    fn full(&mut self) -> FullDiskPolicy;
    /// Called now and then.
    fn look(&mut self);
}

/// What a full disk means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FullDiskPolicy {
    /// There is room now: write again.
    TryAgain,
    /// Nothing more goes into this file; frames are counted until there is room for another.
    GoOn,
    End,
}

#[derive(Clone, Debug, Default)]
pub struct FilePart {
    pub number: u64,
    pub path: PathBuf,
    pub frames: u64,
    /// Bytes of the frames that were to be in it, FCS included.
    pub frame_bytes: u64,
    /// Its size on the disk.
    pub size: u64,
    /// CRC-32 of its bytes as they were handed to the disk.
    pub crc32: u32,
    /// When it was begun and ended, nanoseconds since 1970.
    pub span_ns: (u64, u64),
    /// When the first and the last frame arrived that were to be in it; `None` if there are none.
    pub arrivals_ns: Option<(u64, u64)>,
    /// Frames lost since the file before it: in the kernel's ring, as far as was known when it ended.
    pub kernel_dropped: u64,
    /// Because the queue to the disk was full.
    pub queue_dropped: u64,
    pub disk_lost: u64,
    /// What the trailers of a tap said until its end.
    pub numbers: TapNumbers,
}
