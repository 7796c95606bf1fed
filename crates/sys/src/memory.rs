//! Hints to the memory: what will be used soon, and what should lie on large pages.
//!
//! It owns nothing. Invariant: hints change the speed and nothing else.

/// Says that this will be used soon.
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

/// The largest page of any kernel's that is not a large one: borders on it are borders of pages.
const LARGE: usize = 1 << 16;

/// Asks for large pages for memory that has not been touched yet; whether the kernel took it up.
pub fn large_pages<T>(memory: &mut [T]) -> bool {
    let start = memory.as_mut_ptr().addr().next_multiple_of(LARGE);
    let end = (memory.as_ptr().addr() + size_of_val(memory)) / LARGE * LARGE;
    let Some(length) = end.checked_sub(start).filter(|&length| length > 0) else { return false };
    let inside = memory.as_mut_ptr().with_addr(start);
    // SAFETY: whole pages inside a slice that is borrowed for writing; the advice does not change what is in them.
    unsafe { libc::madvise(inside.cast(), length, libc::MADV_HUGEPAGE) == 0 }
}

/// Has all threads allocate from one heap, for a process whose threads come and go: what one gave back serves the next,
/// and the process does not grow with their number. To be called before there is a second thread.
pub fn one_heap() {
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
    fn hints_change_nothing() {
        let mut memory = vec![7_u8; 5 << 20];
        prefetch(&memory[1]);
        large_pages(&mut memory);
        assert!(memory.iter().all(|&byte| byte == 7));
        assert!(!large_pages(&mut memory[1..2]), "no whole page");
        assert!(!large_pages::<u64>(&mut []));
    }
}
