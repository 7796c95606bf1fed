//! Memory shared with the kernel.
//!
//! A [`SharedArea`] owns its mapping and unmaps it on drop. Every access is checked against the bounds of the mapping.

use crate::Error;
use rustix::mm::{MapFlags, ProtFlags};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// A stretch of shared memory, aligned to 16 bytes at least.
#[derive(Debug)]
pub(crate) struct SharedArea {
    base: NonNull<u8>,
    len: usize,
    /// Only in tests: layout of the heap memory that replaces the mapping.
    plain: Option<std::alloc::Layout>,
}

// SAFETY: the area is owned by one value, and its memory is not tied to a thread.
unsafe impl Send for SharedArea {}

impl SharedArea {
    /// Maps the memory that a descriptor shares: the ring of a packet socket, or the values of a BPF map. The kernel
    /// maps all pages now, because a hot loop must not wait for a page fault.
    pub(crate) fn map_shared(owner: BorrowedFd<'_>, len: usize, object: &str) -> Result<Self, Error> {
        Self::map_shared_at(owner, 0, len, object)
    }

    /// Like [`Self::map_shared`], for a descriptor with several areas: `offset` selects one of them.
    pub(crate) fn map_shared_at(
        owner: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        object: &str,
    ) -> Result<Self, Error> {
        // SAFETY: no address is requested, so no existing mapping is replaced.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                owner,
                offset,
            )
        }
        .map_err(|errno| Error::from_call("mmap", object, errno))?;
        Self::from_mapping(base, len, object)
    }

    /// Allocates zeroed memory that begins at a page boundary, so that the kernel can be given access to it later.
    pub(crate) fn allocate_pages(len: usize, object: &str) -> Result<Self, Error> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let kind = MapFlags::PRIVATE | MapFlags::POPULATE;
        // SAFETY: no address is requested, so no existing mapping is replaced.
        let base = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, access, kind) };
        let base = base.map_err(|errno| Error::from_call("mmap", object, errno))?;
        Self::from_mapping(base, len, object)
    }

    fn from_mapping(base: *mut std::ffi::c_void, len: usize, object: &str) -> Result<Self, Error> {
        let base = NonNull::new(base.cast::<u8>());
        let base = base.ok_or_else(|| Error::from_call("mmap", object, rustix::io::Errno::FAULT))?;
        Ok(Self { base, len, plain: None })
    }

    /// Address of the memory, for a request to the kernel.
    pub(crate) fn address(&self) -> u64 {
        self.base.as_ptr().addr() as u64
    }

    /// Zeroed heap memory instead of a mapping, for tests.
    #[cfg(test)]
    pub(crate) fn plain(len: usize) -> Self {
        let layout = std::alloc::Layout::from_size_align(len, 16).expect("tests ask for little");
        assert!(len > 0);
        // SAFETY: the layout is not empty, by the assertion.
        let memory = unsafe { std::alloc::alloc_zeroed(layout) };
        Self { base: NonNull::new(memory).expect("memory for a test"), len, plain: Some(layout) }
    }

    /// The 32-bit status word at `offset`, which the kernel may change at any time. Panics if it is outside the area.
    pub(crate) fn atomic_u32(&self, offset: usize) -> &AtomicU32 {
        assert!(
            offset.is_multiple_of(4) && offset + 4 <= self.len,
            "status word at {offset} of {}",
            self.len
        );
        // SAFETY: in bounds, by the assertion.
        let word = unsafe { self.base.add(offset) }.cast::<u32>();
        // SAFETY: the pointer is aligned, because base is aligned to 16 and offset to 4. It is valid as long
        // as `self`, and every party accesses status words atomically.
        unsafe { AtomicU32::from_ptr(word.as_ptr()) }
    }

    /// The 64-bit counter at `offset`, which the kernel or a BPF program may change at any time. Panics if it
    /// is outside the area.
    pub(crate) fn atomic_u64(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.len, "counter at {offset} of {}", self.len);
        // SAFETY: in bounds, by the assertion.
        let long = unsafe { self.base.add(offset) }.cast::<u64>();
        // SAFETY: the pointer is aligned, because base is aligned to 16 and offset to 8. It is valid as long
        // as `self`, and every party accesses counters atomically.
        unsafe { AtomicU64::from_ptr(long.as_ptr()) }
    }

    /// Returns the `len` bytes at `offset`. The caller must have seen in the status word that the kernel does
    /// not use them now.
    pub(crate) fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        let start = self.pointer_to_range(offset, len);
        // SAFETY: the range is in bounds (checked) and valid as long as `self`. The status word has shown the
        // caller that the kernel does not write here now.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }
    }

    /// Returns bytes of the area for writing, under the same condition as [`Self::bytes`].
    pub(crate) fn bytes_mut(&mut self, offset: usize, len: usize) -> &mut [u8] {
        let start = self.pointer_to_range(offset, len);
        // SAFETY: the range is in bounds (checked) and valid as long as `self`, which is borrowed exclusively. The
        // status word has shown the caller that the kernel neither reads nor writes here now.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len) }
    }

    /// The 32-bit number at `offset`.
    pub(crate) fn u32_at(&self, offset: usize) -> u32 {
        let bytes = self.bytes(offset, 4);
        u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    /// The 16-bit number at `offset`.
    pub(crate) fn u16_at(&self, offset: usize) -> u16 {
        let bytes = self.bytes(offset, 2);
        u16::from_ne_bytes([bytes[0], bytes[1]])
    }

    fn pointer_to_range(&self, offset: usize, len: usize) -> NonNull<u8> {
        assert!(
            offset.checked_add(len).is_some_and(|end| end <= self.len),
            "{len} at {offset} of {}",
            self.len
        );
        // SAFETY: in bounds, by the assertion.
        unsafe { self.base.add(offset) }
    }
}

impl Drop for SharedArea {
    fn drop(&mut self) {
        if let Some(layout) = self.plain {
            // SAFETY: allocated by `plain` with this layout; no reference outlives `self`.
            return unsafe { std::alloc::dealloc(self.base.as_ptr(), layout) };
        }
        // SAFETY: `from_mapping` got a mapping with this address and length; no reference outlives `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "a whole mapping of ours can be unmapped");
    }
}
