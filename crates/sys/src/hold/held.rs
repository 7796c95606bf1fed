//! Records in shared memory of when each frame was received and released. The BPF programs write them.
//!
//! Invariant: the record of a frame is read only after the program has counted the frame.

use crate::area::SharedArea;
use crate::convert::ring_index;
use crate::layout::hold::{self as layout, slot};
use crate::layout::{gate::gate, train::train};
use std::sync::atomic::Ordering;

/// Number of records. If the reader is further behind than this many frames, records are overwritten
/// before they are read.
pub const MAX_HELD_FRAMES: u64 = layout::SLOTS as u64;

/// Size of the table that a program shares with user space. In the tables of both programs, the records are
/// at the same offset.
pub(super) const SHARED_TABLE_BYTES: usize = gate::SIZE;
const _: () = assert!(gate::SIZE == train::SIZE && gate::SLOTS == train::SLOTS);

/// Record of one frame, in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameReleaseRecord {
    /// Release time that the frame carried; 0 if it had none, or one too far ahead for the frame to be held.
    pub at_ns: u64,
    /// Time at which the program received the frame.
    pub entered_ns: u64,
    /// Clock reading at which the program released the frame.
    pub released_ns: u64,
    /// Next clock reading of the program, just before it let the frame go on.
    pub left_ns: u64,
    /// Longest time between two clock readings while the frame waited, rounded down to a power of two; 0 if the
    /// frame did not wait.
    pub gap_ns: u64,
}

/// Reads the program's counter of frames, which is at offset `counter`. The records of all counted frames are complete.
pub(super) fn load_release_counter(area: &SharedArea, counter: usize) -> u64 {
    area.atomic_u64(counter).load(Ordering::Acquire)
}

/// Reads a 64-bit field of a record. The caller has read the counter with Acquire, so the program's writes to
/// the record are visible.
fn read_long(area: &SharedArea, at: usize) -> u64 {
    area.atomic_u64(at).load(Ordering::Relaxed)
}

/// Reads the record of a frame that has passed.
pub(super) fn load_release_record(area: &SharedArea, number: u64) -> FrameReleaseRecord {
    let start = gate::SLOTS + slot::SIZE * ring_index(number, MAX_HELD_FRAMES);
    let gaps = read_long(area, start + slot::GAPS);
    FrameReleaseRecord {
        at_ns: read_long(area, start + slot::AT),
        entered_ns: read_long(area, start + slot::ENTERED),
        released_ns: read_long(area, start + slot::RELEASED),
        left_ns: read_long(area, start + slot::LEFT),
        // An OR of all gaps: its highest bit is that of the longest gap.
        gap_ns: gaps.checked_ilog2().map_or(0, |power| 1 << power),
    }
}
