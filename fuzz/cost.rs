//! The cost oracle: an input may cost memory and processor time in proportion to its bytes, and no more. A fault that panics
//! nowhere shows here.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

static LIVE: AtomicU64 = AtomicU64::new(0);
static PEAK: AtomicU64 = AtomicU64::new(0);
static ASKED: AtomicU64 = AtomicU64::new(0);

/// Counts bytes that are held now, at most, and were ever asked for, by all threads.
struct CountingAllocator;

fn taken(bytes: usize) {
    let live = LIVE.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
    PEAK.fetch_max(live, Ordering::Relaxed);
    ASKED.fetch_add(bytes as u64, Ordering::Relaxed);
}

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: the caller's layout, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: pointer and layout are those of a block that `alloc` got from the same allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// What an input may cost: so much whatever it is, and so much for each byte.
pub struct CostBound {
    pub bytes: u64,
    pub bytes_per_byte: u64,
    pub nanoseconds: u64,
    pub nanoseconds_per_byte: u64,
}

/// Far beyond what is measured, and far below what hurts; a sanitizer makes everything some ten times slower.
pub const LINEAR: CostBound =
    CostBound { bytes: 16 << 20, bytes_per_byte: 20_000, nanoseconds: 300_000_000, nanoseconds_per_byte: 100_000 };

/// Does the work and panics if it cost more than its input may.
pub fn bounded(input: usize, bound: &CostBound, work: impl FnOnce()) {
    let input = input as u64;
    let live = LIVE.load(Ordering::Relaxed);
    PEAK.store(live, Ordering::Relaxed);
    let asked = ASKED.load(Ordering::Relaxed);
    let time = processor_time();
    work();
    let time = processor_time() - time;
    let peak = PEAK.load(Ordering::Relaxed).saturating_sub(live);
    let asked = ASKED.load(Ordering::Relaxed) - asked;
    let most = bound.bytes + bound.bytes_per_byte * input;
    assert!(peak <= most, "{input} bytes held {peak} bytes of memory");
    assert!(asked <= 4 * most, "{input} bytes asked for {asked} bytes of memory");
    let most = bound.nanoseconds + bound.nanoseconds_per_byte * input;
    assert!(time <= most, "{input} bytes took {time} ns of processor time");
}

/// Of all threads of this process, in nanoseconds: calls are performed on other threads than the fuzzer's.
fn processor_time() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists on Linux and the place to write is ours.
    let done = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut now) };
    assert_eq!(done, 0);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
