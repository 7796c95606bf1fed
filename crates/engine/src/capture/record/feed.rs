//! The capturing thread's end of the queue: a byte stream, cut into blocks of aligned memory.
//!
//! Blocks circulate: free -> filled here -> written by the disk's thread -> free. Nothing here waits: when no block is
//! free, [`DiskBlockQueue::reserve_bytes`] returns false and the caller drops the record.
//!
//! Invariant: a full block ends at a file offset that is a multiple of [`CAPTURE_BLOCK_BYTES`], so that the next block
//! can be written without the page cache.

use super::disk::{DiskCommand, RecordTarget};
use super::file_keeper::RecordedFileFacts;
use crossbeam_channel::{Receiver, Sender};
use packetrig_sys::bulk::AlignedMemory;
use packetrig_units::remainder_as_usize;
use std::collections::VecDeque;

/// Size of a block, bytes.
pub(super) const CAPTURE_BLOCK_BYTES: usize = 1 << 20;

/// A block of memory on its way to the disk.
#[derive(Debug)]
pub(super) struct DiskBlock {
    pub(super) memory: AlignedMemory,
    pub(super) len: usize,
    /// Number of bytes of the block that may be used.
    limit: usize,
    /// Offset of the block in the file.
    pub(super) offset: u64,
    /// File offset where the last complete record in the block ends; zero if none does.
    pub(super) whole: u64,
    /// Frames that end in the block.
    pub(super) frames: u64,
}

impl DiskBlock {
    pub(super) fn new() -> Self {
        Self {
            memory: AlignedMemory::new(CAPTURE_BLOCK_BYTES),
            len: 0,
            limit: CAPTURE_BLOCK_BYTES,
            offset: 0,
            whole: 0,
            frames: 0,
        }
    }
}

#[derive(Debug)]
pub(super) struct DiskBlockQueue {
    free: Receiver<DiskBlock>,
    orders: Sender<DiskCommand>,
    current: Option<DiskBlock>,
    held: VecDeque<DiskBlock>,
    /// File offset of the next byte.
    position: u64,
}

impl DiskBlockQueue {
    pub(super) fn new(free: Receiver<DiskBlock>, orders: Sender<DiskCommand>) -> Self {
        Self { free, orders, current: None, held: VecDeque::with_capacity(4), position: 0 }
    }

    /// Returns the number of bytes in the file so far.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Returns whether frames wait in the block that is being filled.
    pub(super) fn has_waiting_frames(&self) -> bool {
        self.current.as_ref().is_some_and(|block| block.frames > 0)
    }

    /// Reserves free blocks until `blocks` blocks are reserved. Returns false if too few blocks are free.
    pub(super) fn reserve_blocks(&mut self, blocks: usize) -> bool {
        while self.held.len() < blocks {
            let Ok(block) = self.free.try_recv() else { return false };
            self.held.push_back(block);
        }
        true
    }

    /// Reserves room for `bytes` bytes, fewer than a block has. Returns false if not enough blocks are free.
    pub(super) fn reserve_bytes(&mut self, bytes: usize) -> bool {
        let room = self.current.as_ref().map_or(0, |block| block.limit - block.len);
        let Some(rest) = bytes.checked_sub(room).filter(|rest| *rest > 0) else { return true };
        // After a flush in the middle of a block, the next block is shorter: it ends at a multiple of the block size.
        let next = CAPTURE_BLOCK_BYTES - remainder_as_usize(self.position + room as u64, CAPTURE_BLOCK_BYTES);
        self.reserve_blocks(if rest <= next { 1 } else { 2 })
    }

    /// Appends bytes. The caller has reserved room for them with [`Self::reserve_bytes`].
    pub(super) fn put_bytes(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let Some(block) = self.current.as_mut() else {
                if !self.begin_block() {
                    return; // This cannot happen: the caller has reserved room.
                }
                continue;
            };
            let take = bytes.len().min(block.limit - block.len);
            block.memory.bytes_mut()[block.len..block.len + take].copy_from_slice(&bytes[..take]);
            block.len += take;
            self.position += take as u64;
            bytes = &bytes[take..];
            // A block that is exactly full stays until more bytes come: `mark_record_end` still has to note in it
            // that a record ends here.
            if block.len == block.limit && !bytes.is_empty() {
                self.flush_block();
            }
        }
    }

    /// Marks the end of a record with `frames` frames: readers can read the file up to here.
    pub(super) fn mark_record_end(&mut self, frames: u64) {
        let position = self.position;
        if let Some(block) = self.current.as_mut() {
            block.whole = position;
            block.frames += frames;
        }
    }

    /// Hands the current block to the disk, full or not.
    pub(super) fn flush_block(&mut self) {
        if let Some(block) = self.current.take() {
            self.send_command(DiskCommand::Block(block));
        }
    }

    /// Writes the rest of the current file and opens the next one.
    pub(super) fn start_next_file(&mut self, target: RecordTarget) {
        self.flush_block();
        self.send_command(DiskCommand::Open(target));
        self.position = 0;
    }

    /// Hands the rest of the current file to the disk and reports that the file is complete.
    pub(super) fn end_file(&mut self, part: RecordedFileFacts) {
        self.flush_block();
        self.send_command(DiskCommand::Ended(Box::new(part)));
    }

    /// Asks the disk's thread to check its files, unless it is busy.
    pub(super) fn request_file_check(&self) {
        // A full queue means that the thread is busy; the next call asks again.
        drop(self.orders.try_send(DiskCommand::Look));
    }

    fn begin_block(&mut self) -> bool {
        if !self.reserve_blocks(1) {
            return false;
        }
        // Reserved blocks are used first. A rotation reserves blocks, so that the end of one file and the
        // header of the next always find room, even if the disk is slow.
        let Some(mut block) = self.held.pop_front() else { return false };
        // The limit is the next multiple of the block size, so the block after this one is aligned again.
        block.limit = CAPTURE_BLOCK_BYTES - remainder_as_usize(self.position, CAPTURE_BLOCK_BYTES);
        block.offset = self.position;
        block.len = 0;
        block.frames = 0;
        block.whole = 0;
        self.current = Some(block);
        true
    }

    fn send_command(&self, order: DiskCommand) {
        // Sending cannot fail: the disk's thread ends only after this sender is dropped.
        drop(self.orders.send(order));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::unbounded;

    #[test]
    fn disk_feed_keeps_bytes_and_aligns_full_blocks() {
        let (free_in, free) = unbounded();
        let (orders, written) = unbounded();
        for _ in 0..3 {
            free_in.send(DiskBlock::new()).unwrap();
        }
        let mut feed = DiskBlockQueue::new(free, orders);
        let sizes = [10, CAPTURE_BLOCK_BYTES / 2, CAPTURE_BLOCK_BYTES - 100, 5000];
        for (n, size) in sizes.into_iter().enumerate() {
            assert!(feed.reserve_bytes(size), "{n}");
            feed.put_bytes(&vec![u8::try_from(n).unwrap(); size]);
            feed.mark_record_end(1);
            if n == 0 {
                feed.flush_block();
            }
        }
        feed.flush_block();
        let mut all = Vec::new();
        for order in written.try_iter() {
            let DiskCommand::Block(block) = order else { panic!("{order:?}") };
            assert_eq!(block.offset, all.len() as u64);
            assert!(
                block.offset == 0
                    || block.offset == 10
                    || block.offset.is_multiple_of(CAPTURE_BLOCK_BYTES as u64)
            );
            all.extend_from_slice(&block.memory.bytes()[..block.len]);
        }
        let wanted: Vec<u8> =
            sizes.into_iter().zip(0..).flat_map(|(size, n)| std::iter::repeat_n(n, size)).collect();
        assert!(all == wanted);
        assert!(!feed.reserve_blocks(1) && !feed.reserve_bytes(1), "the blocks are with the disk");
    }

    #[test]
    fn record_across_short_block_needs_two_free_blocks() {
        let (free_in, free) = unbounded();
        let (orders, _written) = unbounded();
        let mut feed = DiskBlockQueue::new(free, orders);
        free_in.send(DiskBlock::new()).unwrap();
        assert!(feed.reserve_bytes(CAPTURE_BLOCK_BYTES - 10));
        feed.put_bytes(&vec![1; CAPTURE_BLOCK_BYTES - 10]);
        feed.flush_block();
        free_in.send(DiskBlock::new()).unwrap();
        assert!(feed.reserve_bytes(10) && !feed.reserve_bytes(11), "the next block has 10 bytes");
        free_in.send(DiskBlock::new()).unwrap();
        assert!(feed.reserve_bytes(5000));
        feed.put_bytes(&[2; 5000]);
        assert_eq!(feed.position(), CAPTURE_BLOCK_BYTES as u64 - 10 + 5000);
    }
}
