//! Frames held back in the kernel until their instants by programs of our own: what the stack sends, at an interface's egress
//! ([`Gate`]), or frames of the kernel's making ([`LiveTrain`]).
//!
//! The programs are `bpf/{gate,train}.bpf.c`. Both write down in shared memory when each frame was let go. Nothing is held for longer than
//! [`MOST_HELD_NS`], since the processor does nothing else meanwhile.

mod gate;
mod train;

pub use gate::Gate;
pub use train::{FRAMES, LONGEST, LiveTrain};

use crate::area::Area;
use crate::bpf::Object;
use std::sync::atomic::Ordering;

static GATE: Object<'static> = Object::new(include_bytes!(concat!(env!("OUT_DIR"), "/gate.o")));
static TRAIN: Object<'static> = Object::new(include_bytes!(concat!(env!("OUT_DIR"), "/train.o")));

/// No frame is held longer.
pub const MOST_HELD_NS: u64 = 1_000_000;

/// Frames whose release is remembered; more must not be under way at once.
pub const SLOTS: u64 = 4096;

// struct slot in bpf/hold.h, behind a page of other numbers.
const SLOT: usize = 64;
const FIRST_SLOT: usize = 4096;
const TABLE: usize = FIRST_SLOT + SLOT * 4096;

/// What became of a frame, nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// When it was to go; 0 if it was too early to be held.
    pub at_ns: u64,
    /// When the program got it.
    pub entered_ns: u64,
    /// The reading of the clock that let it go.
    pub released_ns: u64,
    /// The reading after that.
    pub left_ns: u64,
    /// Some time between two readings was this long or longer, to the next lower power of two; 0 if it did not wait.
    pub gap_ns: u64,
}

fn held(area: &Area, number: u64) -> Held {
    let slot = FIRST_SLOT + SLOT * usize::try_from(number % SLOTS).unwrap_or(0);
    let read = |word: usize| area.long(slot + 8 * word).load(Ordering::Relaxed);
    let gaps = read(4);
    Held {
        at_ns: read(0),
        entered_ns: read(1),
        released_ns: read(2),
        left_ns: read(3),
        gap_ns: gaps.checked_ilog2().map_or(0, |power| 1 << power),
    }
}

#[cfg(test)]
mod tests;
