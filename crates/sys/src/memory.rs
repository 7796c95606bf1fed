//! Hints about memory: prefetching for the processor, and large pages for the kernel.
//!
//! This module owns nothing. Invariant: hints change only speed and memory use. The module also has a measuring
//! allocator, for tests of how much memory foreign input may take.

use crate::error::ignore_failure;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicIsize, Ordering};

/// Gives freed memory back to the system. Otherwise the allocator usually keeps it until the process ends.
pub fn release_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes no pointer, and the allocator locks its own state. The result says whether memory was released.
    let _ = unsafe { libc::malloc_trim(0) };
}

thread_local! {
    static HELD_BYTES: Cell<ThreadHeldBytes> = const { Cell::new(ThreadHeldBytes { now: 0, peak: 0 }) };
}

/// Bytes that all threads together have allocated and not freed.
static PROCESS_HELD_BYTES: AtomicIsize = AtomicIsize::new(0);
static PROCESS_PEAK_BYTES: AtomicIsize = AtomicIsize::new(0);

/// Bytes that the calling thread has allocated and not freed. Bytes that it freed and another thread
/// had allocated are subtracted.
#[derive(Clone, Copy)]
struct ThreadHeldBytes {
    now: isize,
    peak: isize,
}

/// The system's allocator, which also counts the memory of each thread. A test program names it
/// as its global allocator.
#[derive(Clone, Copy, Debug)]
pub struct MeteredAllocator;

impl MeteredAllocator {
    /// The maximum number of bytes that `work` holds at one time on this thread, in addition to earlier allocations;
    /// `None` if the program uses another allocator.
    pub fn measure_peak(work: impl FnOnce()) -> Option<u64> {
        let is_in_use = {
            let before = HELD_BYTES.get().now;
            // An allocation that shows whether the program uses this allocator.
            let probe = Box::new([0_u8; 64]);
            let held = HELD_BYTES.get().now - before;
            drop(std::hint::black_box(probe));
            held >= 64
        };
        let before = HELD_BYTES.get().now;
        HELD_BYTES.set(ThreadHeldBytes { now: before, peak: before });
        work();
        // The peak began at `before` and only grows.
        is_in_use.then(|| (HELD_BYTES.get().peak - before).cast_unsigned() as u64)
    }

    /// The maximum number of bytes that the whole process holds at one time during `work`, in addition to earlier
    /// allocations. It is for work that is passed to other threads; allocations of unrelated threads count, too. `None`
    /// if the program uses another allocator.
    pub fn measure_process_peak(work: impl FnOnce()) -> Option<u64> {
        let before = PROCESS_HELD_BYTES.load(Ordering::Relaxed);
        PROCESS_PEAK_BYTES.store(before, Ordering::Relaxed);
        let is_in_use = Self::measure_peak(work).is_some();
        let peak = PROCESS_PEAK_BYTES.load(Ordering::Relaxed) - before;
        is_in_use.then(|| u64::try_from(peak).unwrap_or(0))
    }

    fn count_allocation(bytes: usize, sign: isize) {
        // No layout is larger than `isize::MAX`.
        let bytes = bytes.cast_signed();
        // While a thread ends, its counter is gone but allocations continue; no caller needs their count.
        ignore_failure(HELD_BYTES.try_with(|held| {
            let now = held.get().now + sign * bytes;
            held.set(ThreadHeldBytes { now, peak: held.get().peak.max(now) });
        }));
        let now = PROCESS_HELD_BYTES.fetch_add(sign * bytes, Ordering::Relaxed) + sign * bytes;
        PROCESS_PEAK_BYTES.fetch_max(now, Ordering::Relaxed);
    }
}

// SAFETY: every call is passed unchanged to the system's allocator, which keeps the contract; counting touches only a
// thread-local number that needs neither initialisation nor destruction, and allocates nothing.
unsafe impl GlobalAlloc for MeteredAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count_allocation(layout.size(), 1);
        // SAFETY: the caller's layout, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        Self::count_allocation(layout.size(), -1);
        // SAFETY: pointer and layout describe a block that `alloc` got from the same allocator.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // A block that cannot grow in place exists twice for a short time: the peak counts both.
        Self::count_allocation(size, 1);
        // SAFETY: as for `dealloc`; the new size is the caller's.
        let moved = unsafe { System.realloc(pointer, layout, size) };
        Self::count_allocation(layout.size(), -1);
        moved
    }
}

/// Tells the processor that `line` will be used soon.
#[inline]
pub fn prefetch<T>(line: &T) {
    let address = std::ptr::from_ref(line);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: an address is all that is needed, and this one can be read.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: an address is all that is needed, and this one can be read.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{0}]", in(reg) address, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}

/// The largest base page of any supported kernel. Its multiples are page boundaries on every kernel.
const MAX_PAGE_BYTES: usize = 1 << 16;

/// Asks for large pages for memory that has not been touched yet. Returns true if the kernel accepts.
pub fn request_large_pages<T>(memory: &mut [T]) -> bool {
    // Advice for a part of a page is refused, so only whole pages inside the memory are named.
    let start = memory.as_mut_ptr().addr().next_multiple_of(MAX_PAGE_BYTES);
    let end = (memory.as_ptr().addr() + size_of_val(memory)) / MAX_PAGE_BYTES * MAX_PAGE_BYTES;
    let Some(length) = end.checked_sub(start).filter(|&length| length > 0) else { return false };
    let inside = memory.as_mut_ptr().with_addr(start);
    // SAFETY: these are whole pages inside a slice that is borrowed for writing; the advice does
    // not change their content.
    unsafe { libc::madvise(inside.cast(), length, libc::MADV_HUGEPAGE) == 0 }
}

/// Makes all threads allocate from one heap. In a process with short-lived threads, the next thread then reuses freed memory, and
/// the process does not grow with the number of threads. Must be called before there is a second thread.
pub fn limit_to_one_malloc_arena() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets a number inside the allocator, which takes its own lock.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_allocator_nothing_is_measured() {
        assert_eq!(MeteredAllocator::measure_peak(|| drop(vec![0_u8; 1000])), None);
    }

    #[test]
    fn hints_change_nothing() {
        let mut memory = vec![7_u8; 5 << 20];
        prefetch(&memory[1]);
        request_large_pages(&mut memory);
        assert!(memory.iter().all(|&byte| byte == 7));
        assert!(!request_large_pages(&mut memory[1..2]), "no whole page");
        assert!(!request_large_pages::<u64>(&mut []));
    }
}
