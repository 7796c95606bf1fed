//! The queue of runs: filled here, emptied by the program in `bpf/send.bpf.c` on another processor.
//!
//! Invariant: a run belongs to the program from the moment when it is pushed. Its slot belongs to this process again
//! when the program has popped it.

use super::MAX_WAITING_RUNS;
use crate::area::SharedArea;
use crate::convert::ring_index;
use crate::layout::send::{control, run as slot};
use std::sync::atomic::Ordering;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameRun {
    /// Due time of the first frame, in ns of the monotonic clock.
    pub due_ns: u64,
    /// Time from one frame to the next, in 2^-20 ns.
    pub step: u64,
    /// Number of the first frame.
    pub number: u64,
    /// At or after this time, no more frames of the run are sent.
    pub cutoff_ns: u64,
    pub count: u32,
    pub shape: u32,
}

/// Progress of the program through the runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunProgress {
    pub popped: u64,
    /// Frames of the current run that are still to be made.
    pub left: u64,
    pub calls: u64,
    pub built: u64,
    /// Frames that the program could not make.
    pub failed: u64,
    /// Frames that were sent sooner after earlier frames than planned.
    pub ahead: u64,
    /// Lag behind the schedule at the time `lag_since_ns`, in ns; zero if the program is on time.
    pub lag_ns: u64,
    pub lag_since_ns: u64,
}

#[derive(Debug)]
pub(super) struct RunQueue {
    area: SharedArea,
    pushed: u64,
}

impl RunQueue {
    pub(super) fn new(area: SharedArea) -> Self {
        Self { area, pushed: 0 }
    }

    /// Memory that is shared with the program.
    pub(super) fn area(&self) -> &SharedArea {
        &self.area
    }

    /// Queues a run for the program; `false` if [`MAX_WAITING_RUNS`] runs wait already.
    pub(super) fn push_run(&mut self, run: &FrameRun) -> bool {
        if self.pushed - self.read_progress().popped >= MAX_WAITING_RUNS {
            return false;
        }
        let at = control::RUNS + slot::SIZE * ring_index(self.pushed, MAX_WAITING_RUNS);
        let bytes = self.area.bytes_mut(at, slot::SIZE);
        let longs = [
            (slot::DUE, run.due_ns),
            (slot::STEP, run.step),
            (slot::NUMBER, run.number),
            (slot::CUTOFF, run.cutoff_ns),
        ];
        for (field, value) in longs {
            bytes[field..field + 8].copy_from_slice(&value.to_ne_bytes());
        }
        for (field, value) in [(slot::COUNT, run.count), (slot::SHAPE, run.shape)] {
            bytes[field..field + 4].copy_from_slice(&value.to_ne_bytes());
        }
        self.pushed += 1;
        // Release: the program sees the whole run before it sees the counter.
        self.area.atomic_u64(control::PUSHED).store(self.pushed, Ordering::Release);
        true
    }

    /// Ends sending immediately, even if runs wait. A frame that is being made is still sent.
    pub(super) fn stop_sending(&self) {
        self.area.atomic_u64(control::STOP).store(1, Ordering::Release);
    }

    /// Reads the program's progress through the runs.
    pub(super) fn read_progress(&self) -> RunProgress {
        // `popped` is read first: otherwise the program could pop a run between the two readings, and `left` would
        // belong to the run before.
        let popped = self.read_long(control::POPPED);
        RunProgress {
            popped,
            left: self.read_long(control::LEFT),
            calls: self.read_long(control::CALLS),
            built: self.read_long(control::BUILT),
            failed: self.read_long(control::FAILED),
            ahead: self.read_long(control::AHEAD),
            lag_ns: self.read_long(control::LAG),
            lag_since_ns: self.read_long(control::SINCE),
        }
    }

    fn read_long(&self, at: usize) -> u64 {
        self.area.atomic_u64(at).load(Ordering::Acquire)
    }

    /// Returns true if all pushed frames have been made. They may still wait for the end of their batch.
    pub(super) fn is_drained(&self) -> bool {
        let progress = self.read_progress();
        progress.popped == self.pushed && progress.left == 0
    }

    /// Number of runs that were pushed and have not begun.
    pub(super) fn waiting_runs(&self) -> u64 {
        self.pushed - self.read_progress().popped
    }
}
