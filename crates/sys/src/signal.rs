//! Records the first signal that asks the process to end, counts hangups (SIGHUP) for services that use them for
//! another purpose, and interrupts threads that wait in the kernel.
//!
//! The handlers belong to the process. There is one record of the first signal (the latch), and it is never reset. A
//! handler only changes an atomic number. A second signal of the same kind has the default action, so that an impatient
//! user can end the program.

use crate::Error;
use std::os::unix::thread::JoinHandleExt;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::thread::JoinHandle;

static FIRST_SIGNAL: AtomicI32 = AtomicI32::new(0);
static HANGUP_SIGNALS: AtomicU32 = AtomicU32::new(0);

/// Signals that ask the process to end.
const LATCHED_SIGNALS: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// From now on, the first SIGINT, SIGTERM or SIGHUP is only recorded. A second signal of the same kind ends
/// the process as usual.
pub fn record_end_signals() -> Result<(), Error> {
    LATCHED_SIGNALS.into_iter().try_for_each(install_latch)
}

/// Number of the first of these signals that has arrived, if any.
pub fn first_recorded_end_signal() -> Option<i32> {
    match FIRST_SIGNAL.load(Ordering::Acquire) {
        0 => None,
        signal => Some(signal),
    }
}

/// Counts SIGHUP from now on; it then no longer asks the process to end. Must be called after [`record_end_signals`].
pub fn count_hangups() -> Result<(), Error> {
    set_handler(libc::SIGHUP, count_hangup, libc::SA_RESTART)
}

/// Number of SIGHUPs since [`count_hangups`].
pub fn hangup_count() -> u32 {
    HANGUP_SIGNALS.load(Ordering::Acquire)
}

/// The signal of [`interrupt_thread_syscall`]. Its handler does nothing, so it only interrupts a system call.
fn interrupt_signal() -> i32 {
    libc::SIGRTMIN() + 7
}

/// Makes [`interrupt_thread_syscall`] possible; to be called once before.
pub fn install_interrupt_handler() -> Result<(), Error> {
    set_handler(interrupt_signal(), ignore_signal, 0)
}

/// Interrupts the system call that a thread is in. Before the thread has entered it, a nudge has no effect: repeat
/// it until the thread has noticed.
pub fn interrupt_thread_syscall<T>(thread: &JoinHandle<T>) {
    // SAFETY: the handle is not joined yet, so the thread's identity is valid even if it has ended; the
    // signal has a handler.
    unsafe { libc::pthread_kill(thread.as_pthread_t() as _, interrupt_signal()) };
}

extern "C" fn ignore_signal(_signal: i32) {}

extern "C" fn count_hangup(_signal: i32) {
    // Async-signal-safe: one atomic operation.
    HANGUP_SIGNALS.fetch_add(1, Ordering::Release);
}

extern "C" fn latch_first_signal(signal: i32) {
    // Async-signal-safe: atomic operations, no allocation, no lock. Should two signals race, either may be the first.
    if FIRST_SIGNAL.load(Ordering::Acquire) == 0 {
        FIRST_SIGNAL.store(signal, Ordering::Release);
    }
}

fn install_latch(signal: i32) -> Result<(), Error> {
    // RESETHAND: the second signal of a kind has the default action.
    set_handler(signal, latch_first_signal, libc::SA_RESETHAND | libc::SA_RESTART)
}

/// Sets a handler, which must be async-signal-safe.
pub(crate) fn set_handler(signal: i32, handler: extern "C" fn(i32), flags: i32) -> Result<(), Error> {
    let object = format!("signal {signal}");
    // SAFETY: sigaction is plain data for which all zeros is a valid value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as usize;
    action.sa_flags = flags;
    // SAFETY: the set is a live field of our own structure.
    let emptied = unsafe { libc::sigemptyset(&raw mut action.sa_mask) };
    if emptied != 0 {
        return Err(Error::last_os_error("sigemptyset", object));
    }
    // SAFETY: the action is fully initialised, its handler is async-signal-safe and lives as long as the program.
    let done = unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    if done == 0 { Ok(()) } else { Err(Error::last_os_error("sigaction", object)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_end_signal_is_latched() {
        record_end_signals().unwrap();
        assert_eq!(first_recorded_end_signal(), None);
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::HUP).unwrap();
        // Delivered before kill returns, or to another thread soon after.
        let end = crate::clock::monotonic_ns() + 5_000_000_000;
        while first_recorded_end_signal().is_none() && crate::clock::monotonic_ns() < end {
            std::thread::yield_now();
        }
        assert_eq!(first_recorded_end_signal(), Some(libc::SIGHUP));
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM).unwrap();
        assert_eq!(first_recorded_end_signal(), Some(libc::SIGHUP), "the first one stays");
        count_hangups().unwrap();
        for wanted in 1..=2 {
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::HUP).unwrap();
            while hangup_count() < wanted && crate::clock::monotonic_ns() < end {
                std::thread::yield_now();
            }
            assert_eq!(hangup_count(), wanted, "as often as it comes");
        }
    }
}
