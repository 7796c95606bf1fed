//! A ring shared with the kernel: entries between two counters. The kernel writes one counter, and
//! this process the other.

use crate::area::SharedArea;
use std::sync::atomic::Ordering;

/// Offsets of the ring's parts in the shared memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingLayout {
    pub(super) producer: usize,
    pub(super) consumer: usize,
    pub(super) flags: usize,
    pub(super) entries: usize,
}

/// A ring. Which of the two counters this process writes depends on the kind of ring.
#[derive(Debug)]
pub(super) struct XskRing {
    area: SharedArea,
    layout: RingLayout,
    /// Bytes of an entry.
    entry: usize,
    /// Number of entries, a power of two.
    size: u32,
}

/// Flag with which the kernel asks for a wake-up call.
const NEED_WAKEUP: u32 = 1;

impl XskRing {
    pub(super) fn new(area: SharedArea, layout: RingLayout, entry: usize, size: u32) -> Self {
        // `entry_offset` uses the size as a bit mask.
        assert!(size.is_power_of_two(), "a ring of {size} entries");
        Self { area, layout, entry, size }
    }

    /// Counter of the entries that were put into the ring.
    pub(super) fn produced_count(&self) -> u32 {
        // Acquire: entries are read after the counter that shows them.
        self.area.atomic_u32(self.layout.producer).load(Ordering::Acquire)
    }

    /// Counter of the entries that were taken out of the ring.
    pub(super) fn consumed_count(&self) -> u32 {
        // Acquire: entries are written again after the counter that frees them.
        self.area.atomic_u32(self.layout.consumer).load(Ordering::Acquire)
    }

    /// Shows the kernel that this process has written the entries before number `count`.
    pub(super) fn publish_produced(&self, count: u32) {
        // Release: entries are written before the counter that shows them.
        self.area.atomic_u32(self.layout.producer).store(count, Ordering::Release);
    }

    /// Gives the entries before number `count` back to the kernel.
    pub(super) fn publish_consumed(&self, count: u32) {
        // Release: entries are read before the counter that frees them.
        self.area.atomic_u32(self.layout.consumer).store(count, Ordering::Release);
    }

    /// Returns true if the kernel sleeps until a system call wakes it.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.area.atomic_u32(self.layout.flags).load(Ordering::Relaxed) & NEED_WAKEUP != 0
    }

    /// Bytes of the entry with this number, which must belong to this process now.
    pub(super) fn entry(&self, number: u32) -> &[u8] {
        self.area.bytes(self.entry_offset(number), self.entry)
    }

    /// Mutable bytes of the entry.
    pub(super) fn entry_mut(&mut self, number: u32) -> &mut [u8] {
        let offset = self.entry_offset(number);
        self.area.bytes_mut(offset, self.entry)
    }

    /// The entry as a 64-bit number.
    pub(super) fn entry_address(&self, number: u32) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.entry(number)[..8]);
        u64::from_ne_bytes(bytes)
    }

    fn entry_offset(&self, number: u32) -> usize {
        self.layout.entries + self.entry * (number & (self.size - 1)) as usize
    }
}
