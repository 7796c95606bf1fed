//! The disk's end of the queue: a thread that writes blocks, opens the next file and removes the oldest.
//!
//! A failed write ends a recording: the file is cut to its last complete record, and the frames of all blocks from
//! there on count as lost to the disk.

use super::feed::{BLOCK, Block};
use super::squeeze::Squeeze;
use crossbeam_channel::{Receiver, Sender};
use packetrig_sys::bulk::BulkFile;
use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Where frames go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A file, made anew.
    File(PathBuf),
    /// Standard output, for a program that reads while we write.
    StandardOutput,
}

#[derive(Debug)]
pub(super) enum Order {
    Open(Target),
    Block(Block),
}

/// What the disk's thread has done so far.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) written: AtomicU64,
    pub(super) lost: AtomicU64,
    pub(super) failed: AtomicBool,
}

/// What became of the files.
#[derive(Debug, Default)]
pub(super) struct Done {
    /// Those that are there now, oldest first.
    pub(super) files: VecDeque<PathBuf>,
    pub(super) removed: u64,
    /// Frames that were in them.
    pub(super) removed_frames: u64,
    pub(super) direct: bool,
    pub(super) failure: Option<(PathBuf, io::Error)>,
}

pub(super) struct Disk {
    orders: Receiver<Order>,
    free: Sender<Block>,
    keep: Option<usize>,
    tally: Arc<Tally>,
    file: Option<(PathBuf, BulkFile)>,
    squeeze: Option<Squeeze>,
    /// Where the last complete record on the disk ends; compressed, the last block.
    whole: u64,
    /// Frames in each of the files that are there now.
    frames: VecDeque<u64>,
    done: Done,
}

impl Disk {
    /// Opens the first file, so that a wrong name is said before anything is captured.
    pub(super) fn open(
        first: Target,
        (orders, free): (Receiver<Order>, Sender<Block>),
        (keep, zstd): (Option<usize>, Option<i32>),
        tally: Arc<Tally>,
    ) -> Result<Self, (PathBuf, io::Error)> {
        let squeeze = zstd.map(|level| Squeeze::new(level, BLOCK)).transpose();
        let squeeze = squeeze.map_err(|error| (PathBuf::from("zstd"), error))?;
        let (frames, done) = (VecDeque::new(), Done::default());
        let mut disk = Self { orders, free, keep, tally, file: None, squeeze, whole: 0, frames, done };
        disk.next(first)?;
        disk.done.direct =
            disk.squeeze.is_none() && disk.file.as_ref().is_some_and(|(_, file)| file.is_direct());
        Ok(disk)
    }

    /// Follows orders until there can be no more.
    pub(super) fn run(mut self) -> Done {
        while let Ok(order) = self.orders.recv() {
            match order {
                Order::Open(target) if self.done.failure.is_none() => {
                    if let Err(failure) = self.next(target) {
                        self.fail(failure);
                    }
                }
                Order::Open(_) => {}
                Order::Block(block) => self.write(block),
            }
        }
        self.done
    }

    fn next(&mut self, target: Target) -> Result<(), (PathBuf, io::Error)> {
        self.file = None;
        self.whole = 0;
        let (path, file) = match target {
            Target::File(path) => {
                let file = BulkFile::create(&path, true);
                self.done.files.push_back(path.clone());
                self.frames.push_back(0);
                (path, file)
            }
            Target::StandardOutput => (PathBuf::from("standard output"), BulkFile::standard_output()),
        };
        self.file = Some((path.clone(), file.map_err(|error| (path, error))?));
        while self.keep.is_some_and(|keep| self.done.files.len() > keep.max(1)) {
            if let Some(oldest) = self.done.files.pop_front() {
                self.done.removed += 1;
                self.done.removed_frames += self.frames.pop_front().unwrap_or(0);
                // Somebody else may have taken it away; that is what was to be done.
                std::fs::remove_file(&oldest).unwrap_or(());
            }
        }
        Ok(())
    }

    fn write(&mut self, block: Block) {
        let written = match &mut self.file {
            Some((path, file)) => {
                let bytes = &block.memory.bytes()[..block.len];
                let done = match &mut self.squeeze {
                    None => file.write_at(bytes, block.offset).map(|()| self.whole.max(block.whole)),
                    Some(squeeze) => squeeze.squeeze(bytes).and_then(|squeezed| {
                        file.write_at(squeezed, self.whole)?;
                        Ok(self.whole + squeezed.len() as u64)
                    }),
                };
                done.map(|whole| self.whole = whole).map_err(|error| Some((path.clone(), error)))
            }
            None => Err(None),
        };
        match written {
            Ok(()) => {
                if let Some(frames) = self.frames.back_mut() {
                    *frames += block.frames;
                }
                self.tally.written.fetch_add(block.frames, Ordering::Release);
            }
            Err(failure) => {
                self.tally.lost.fetch_add(block.frames, Ordering::Release);
                if let Some(failure) = failure {
                    self.fail(failure);
                }
            }
        }
        // The capturing thread may have gone already.
        self.free.send(block).unwrap_or(());
    }

    fn fail(&mut self, failure: (PathBuf, io::Error)) {
        if let Some((_, file)) = self.file.take() {
            // Best effort: a record cut in half at the end is what readers then complain of.
            file.cut(self.whole).unwrap_or(());
        }
        self.done.failure.get_or_insert(failure);
        self.tally.failed.store(true, Ordering::Release);
    }
}
