//! The queue of runs: filled here, emptied by the program in `bpf/send.bpf.c` on another processor.
//!
//! Invariant: a run belongs to the program from the moment it is pushed, and its slot to us again when it is popped.

use super::RUNS;
use crate::area::SharedArea;
use std::sync::atomic::Ordering;

// struct control in bpf/send.bpf.c
const PUSHED: usize = 0;
const STOP: usize = 8;
const POPPED: usize = 64;
const LEFT: usize = 80;
const CALLS: usize = 88;
const BUILT: usize = 96;
const FAILED: usize = 120;
pub(super) const SLOTS: usize = 4096;
pub(super) const SLOT: usize = 64;

/// Frames to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameRun {
    /// When the first is due, in ns of the monotonic clock.
    pub due_ns: u64,
    /// From one to the next, in 2^-20 ns.
    pub step: u64,
    /// Number of the first.
    pub number: u64,
    /// At or after this instant they stay unsent.
    pub cutoff_ns: u64,
    /// How many.
    pub count: u32,
    /// Of which shape.
    pub shape: u32,
    /// How much later than planned the frames are due, because the sender was held up: they count as that late, in ns.
    pub behind_ns: u64,
}

/// How far the program is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunProgress {
    /// Runs begun.
    pub popped: u64,
    /// Frames of the current run to go.
    pub left: u64,
    /// Times it ran.
    pub calls: u64,
    /// Frames made.
    pub built: u64,
    /// Frames it could not make.
    pub failed: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct RunQueue {
    area: SharedArea,
    pushed: u64,
}

impl RunQueue {
    pub(super) fn new(area: SharedArea) -> Self {
        Self { area, pushed: 0 }
    }

    /// All that is shared with the program.
    pub(super) fn area(&self) -> &SharedArea {
        &self.area
    }

    /// Hands a run over; `false` if too many wait.
    pub(super) fn push(&mut self, run: &FrameRun) -> bool {
        if self.pushed - self.progress().popped >= RUNS {
            return false;
        }
        let slot = SLOTS + SLOT * usize::try_from(self.pushed % RUNS).unwrap_or(0);
        let words = [run.due_ns, run.step, run.number, run.cutoff_ns];
        let bytes = self.area.bytes_mut(slot, 48);
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        bytes[32..36].copy_from_slice(&run.count.to_ne_bytes());
        bytes[36..40].copy_from_slice(&run.shape.to_ne_bytes());
        bytes[40..48].copy_from_slice(&run.behind_ns.to_ne_bytes());
        self.pushed += 1;
        self.area.long(PUSHED).store(self.pushed, Ordering::Release);
        true
    }

    /// Nothing leaves any more, whatever was pushed; a frame in the making still does.
    pub(super) fn stop(&self) {
        self.area.long(STOP).store(1, Ordering::Release);
    }

    /// How far the program is.
    pub(super) fn progress(&self) -> RunProgress {
        let read = |at| self.area.long(at).load(Ordering::Acquire);
        // In this order, so that "nothing left" is not read from before "all popped".
        let popped = read(POPPED);
        RunProgress { popped, left: read(LEFT), calls: read(CALLS), built: read(BUILT), failed: read(FAILED) }
    }

    /// Whether everything that was pushed has been made. It may still wait for the end of its batch.
    pub(super) fn is_drained(&self) -> bool {
        let progress = self.progress();
        progress.popped == self.pushed && progress.left == 0
    }

    /// Runs pushed and not begun.
    pub(super) fn waiting(&self) -> u64 {
        self.pushed - self.progress().popped
    }
}
