//! The rings that programs fill: one per processor, mapped here and read in the order of time.
//!
//! The records of several processors are delivered in the order of their times. A processor reads the clock before it
//! writes the record. So if more than one processor has written records, those younger than [`MIN_FRAME_AGE_NS`] wait
//! for the next call.
//!
//! Invariant: bytes of a record are read only between the reader's and the writer's counter.

use super::RING_BYTES;
use crate::area::SharedArea;
use crate::convert::ring_index;
use crate::layout::rings::ring::{DROPPED, READ};
use crate::layout::rings::{self as layout, record};
use std::sync::atomic::Ordering;

/// Maximum length of a frame that is not truncated, in bytes.
pub const MAX_WHOLE_FRAME_BYTES: u32 = layout::LONGEST;
/// Minimum age of a frame before it is delivered, if several processors receive frames.
pub const MIN_FRAME_AGE_NS: u64 = 100_000;

pub(super) use crate::layout::rings::record::SIZE as HEAD;
pub(super) use crate::layout::rings::ring::{DATA, SIZE as VALUE, WRITTEN};
const RING_SIZE: u64 = RING_BYTES as u64;
const HEADER: u32 = layout::HEADER;

/// A frame in a ring.
#[derive(Clone, Copy, Debug)]
pub struct XdpFrame<'a> {
    /// The bytes of the frame, without FCS; for a header, the program's record of it.
    pub bytes: &'a [u8],
    /// Number of bytes that the frame had when it arrived.
    pub full_len: usize,
    /// Time of arrival, in ns of the monotonic clock.
    pub monotonic_ns: u64,
    /// True if `bytes` is the record that the program in [`meter`](super::meter) made of the frame's header,
    /// and not the frame.
    pub is_header: bool,
}

/// Number of frames of `len` bytes for which a ring has space.
#[expect(clippy::cast_possible_truncation, reason = "a ring has 16 MiB")]
pub(super) const fn frames_per_ring(len: usize) -> u32 {
    (RING_BYTES / (HEAD + len.next_multiple_of(8))) as u32
}

/// Position of the reader in a ring, and the writer's counter when it was last read.
#[derive(Clone, Copy, Debug, Default)]
struct RingCursor {
    read: u64,
    written: u64,
    /// Time of arrival of the next frame to read.
    next: u64,
}

/// All rings of an interface.
#[derive(Debug)]
pub(super) struct InterfaceRings {
    pub(super) area: SharedArea,
    cursors: Vec<RingCursor>,
}

impl InterfaceRings {
    pub(super) fn new(area: SharedArea, processors: usize) -> Self {
        Self { area, cursors: vec![RingCursor::default(); processors] }
    }

    /// Calls `sink` with the records that are ready, at most `most`. Returns their number.
    pub(super) fn receive_frames(
        &mut self,
        most: usize,
        now: u64,
        sink: &mut dyn FnMut(XdpFrame<'_>),
    ) -> usize {
        let used = self.refresh_written_counters();
        // The records of a single ring are in order, so they need not wait.
        let settled = if used > 1 { now.saturating_sub(MIN_FRAME_AGE_NS) } else { u64::MAX };
        let mut given = 0;
        while given < most {
            let Some(ring) = self.oldest_ring().filter(|ring| self.cursors[*ring].next <= settled) else {
                break;
            };
            given += self.drain_ring(ring, most - given, settled, sink);
        }
        // Only now may the programs overwrite the records that `sink` has seen.
        for (ring, cursor) in self.cursors.iter().enumerate() {
            self.area.atomic_u64(ring * VALUE + READ).store(cursor.read, Ordering::Release);
        }
        given
    }

    /// Reads the writers' counters; returns how many rings were ever used.
    fn refresh_written_counters(&mut self) -> usize {
        let mut used = 0;
        for ring in 0..self.cursors.len() {
            // Acquire: all records up to the counter are complete.
            let written = self.area.atomic_u64(ring * VALUE + WRITTEN).load(Ordering::Acquire);
            used += usize::from(written > 0);
            self.cursors[ring].written = written;
            self.update_next_record_time(ring);
        }
        used
    }

    fn update_next_record_time(&mut self, ring: usize) {
        let cursor = &mut self.cursors[ring];
        if cursor.read < cursor.written {
            let at = ring * VALUE + DATA + ring_offset(cursor.read);
            // Relaxed is enough: `refresh_written_counters` has read the writer's counter with Acquire.
            cursor.next = self.area.atomic_u64(at + record::TIME).load(Ordering::Relaxed);
        }
    }

    fn oldest_ring(&self) -> Option<usize> {
        let filled = self.cursors.iter().enumerate().filter(|(_, c)| c.read < c.written);
        filled.min_by_key(|(_, c)| c.next).map(|(ring, _)| ring)
    }

    /// Calls `sink` with frames of one ring, as long as no other ring has an older frame.
    fn drain_ring(
        &mut self,
        ring: usize,
        most: usize,
        settled: u64,
        sink: &mut dyn FnMut(XdpFrame<'_>),
    ) -> usize {
        // The loop reads up to the oldest record of the other rings, so that one choice of a
        // ring serves several frames.
        let others = self.cursors.iter().enumerate().filter(|(i, c)| *i != ring && c.read < c.written);
        let until = others.map(|(_, c)| c.next).min().unwrap_or(u64::MAX).min(settled);
        let mut given = 0;
        while given < most {
            let cursor = self.cursors[ring];
            if cursor.read >= cursor.written || cursor.next > until {
                break;
            }
            let at = ring * VALUE + DATA + ring_offset(cursor.read);
            let full_len = self.area.u32_at(at + record::FULL_LEN) as usize;
            // Never more than the longest record is read, even if a record states more: the spare bytes after a ring
            // are enough for that.
            let stated = self.area.u32_at(at + record::LEN);
            let len = (stated & !HEADER).min(MAX_WHOLE_FRAME_BYTES) as usize;
            let bytes = self.area.bytes(at + HEAD, len);
            let is_header = stated & HEADER != 0;
            sink(XdpFrame { bytes, full_len, monotonic_ns: cursor.next, is_header });
            self.cursors[ring].read += (HEAD + len.next_multiple_of(8)) as u64;
            self.update_next_record_time(ring);
            given += 1;
        }
        given
    }

    /// Number of frames that were dropped because their ring was full.
    pub(super) fn dropped_frames(&self) -> u64 {
        (0..self.cursors.len())
            .map(|ring| self.area.atomic_u64(ring * VALUE + DROPPED).load(Ordering::Relaxed))
            .sum()
    }
}

pub(super) fn ring_offset(counter: u64) -> usize {
    ring_index(counter, RING_SIZE)
}
