//! Shared memory as [`crates/sys/src/area.rs`] shows it, in which every access of bytes that nothing orders is a failure.

use crate::sync::{AtomicU32, AtomicU64};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes that belong to one side at a time. An access must lie within one region.
#[derive(Debug)]
struct Region {
    start: usize,
    /// Has loom compare each access with those of the other side.
    watched: loom::cell::UnsafeCell<()>,
    bytes: std::cell::UnsafeCell<Box<[u8]>>,
}

#[derive(Debug)]
struct Memory {
    words: BTreeMap<usize, AtomicU32>,
    longs: BTreeMap<usize, AtomicU64>,
    regions: Vec<Region>,
}

// SAFETY: loom runs one thread of a model at a time, and all on one thread of the process.
unsafe impl Sync for Memory {}
// SAFETY: as above.
unsafe impl Send for Memory {}

/// Shared memory of a model. Clones made by [`Self::share`] are the same memory.
#[derive(Debug)]
pub(crate) struct SharedArea(Arc<Memory>);

impl SharedArea {
    /// Zeros: words and counters at these offsets, regions at these with so many bytes.
    pub(crate) fn new(words: &[usize], longs: &[usize], regions: &[(usize, usize)]) -> Self {
        let region = |&(start, len): &(usize, usize)| Region {
            start,
            watched: loom::cell::UnsafeCell::new(()),
            bytes: std::cell::UnsafeCell::new(vec![0; len].into_boxed_slice()),
        };
        Self(Arc::new(Memory {
            words: words.iter().map(|at| (*at, AtomicU32::new(0))).collect(),
            longs: longs.iter().map(|at| (*at, AtomicU64::new(0))).collect(),
            regions: regions.iter().map(region).collect(),
        }))
    }

    /// The same memory, for the other side.
    pub(crate) fn share(&self) -> Self {
        Self(Arc::clone(&self.0))
    }

    pub(crate) fn atomic_u32(&self, offset: usize) -> &AtomicU32 {
        &self.0.words[&offset]
    }

    pub(crate) fn atomic_u64(&self, offset: usize) -> &AtomicU64 {
        &self.0.longs[&offset]
    }

    pub(crate) fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        let (region, at) = self.region(offset, len);
        region.watched.with(|_| ());
        let bytes = region.bytes.get();
        // SAFETY: no other access runs at this moment; one that nothing orders with this has made loom panic.
        let bytes = unsafe { &*bytes };
        &bytes[at..at + len]
    }

    pub(crate) fn bytes_mut(&mut self, offset: usize, len: usize) -> &mut [u8] {
        let (region, at) = self.region(offset, len);
        region.watched.with_mut(|_| ());
        let bytes = region.bytes.get();
        // SAFETY: as in `bytes`.
        let bytes = unsafe { &mut *bytes };
        &mut bytes[at..at + len]
    }

    pub(crate) fn u32_at(&self, offset: usize) -> u32 {
        self.bytes(offset, 4).try_into().map_or(0, u32::from_ne_bytes)
    }

    pub(crate) fn u16_at(&self, offset: usize) -> u16 {
        self.bytes(offset, 2).try_into().map_or(0, u16::from_ne_bytes)
    }

    fn region(&self, offset: usize, len: usize) -> (&Region, usize) {
        let found = self.0.regions.iter().find_map(|region| {
            let at = offset.checked_sub(region.start)?;
            // SAFETY: as in `bytes`; the length never changes.
            let bytes = unsafe { &*region.bytes.get() };
            (at + len <= bytes.len()).then_some((region, at))
        });
        found.unwrap_or_else(|| panic!("{len} bytes at {offset} are in no region"))
    }
}
