//! Record of when each frame was released, written by the programs.
//!
//! Invariant: the record of a frame is read only after the program's counter has passed it.

use crate::area::SharedArea;
use crate::convert::ring_index;
use crate::layout::hold::{self as layout, slot};
use crate::layout::{gate::gate, train::train};
use std::sync::atomic::Ordering;

/// Number of frames whose records are kept. If more frames are in progress at once, records are overwritten
/// before they are read.
pub const MAX_HELD_FRAMES: u64 = layout::SLOTS as u64;

/// Size of the shared table. Both programs have their slots at the same place.
pub(super) const SHARED_TABLE_BYTES: usize = gate::SIZE;
const _: () = assert!(gate::SIZE == train::SIZE && gate::SLOTS == train::SLOTS);

/// Times of a frame's passage, in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatedFrame {
    /// Release time that the frame carried; 0 if it had none, or one too far ahead for the frame to be held.
    pub at_ns: u64,
    /// Time at which the program received the frame.
    pub entered_ns: u64,
    /// Clock reading at which the program released the frame.
    pub released_ns: u64,
    /// Clock reading after the release.
    pub left_ns: u64,
    /// Longest time between two clock readings while the frame waited, rounded down to a power of two; 0 if the
    /// frame did not wait.
    pub gap_ns: u64,
}

/// Number of frames that have passed, by the program's counter at this offset. Their records are complete.
pub(super) fn read_passed_count(area: &SharedArea, counter: usize) -> u64 {
    area.atomic_u64(counter).load(Ordering::Acquire)
}

/// Reads a number of a record. The caller has seen the counter pass the frame, which ordered all earlier writes.
fn read_long(area: &SharedArea, at: usize) -> u64 {
    area.atomic_u64(at).load(Ordering::Relaxed)
}

/// Reads the record of a frame that has passed.
pub(super) fn read_gated_frame(area: &SharedArea, number: u64) -> GatedFrame {
    let start = gate::SLOTS + slot::SIZE * ring_index(number, MAX_HELD_FRAMES);
    let gaps = read_long(area, start + slot::GAPS);
    GatedFrame {
        at_ns: read_long(area, start + slot::AT),
        entered_ns: read_long(area, start + slot::ENTERED),
        released_ns: read_long(area, start + slot::RELEASED),
        left_ns: read_long(area, start + slot::LEFT),
        // An OR of all gaps: its highest bit is that of the longest gap.
        gap_ns: gaps.checked_ilog2().map_or(0, |power| 1 << power),
    }
}
