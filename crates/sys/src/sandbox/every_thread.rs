//! Giving up rights in every thread of the process.
//!
//! Users and capabilities belong to threads. The kernel lets a thread change only its own, so each thread
//! receives a signal, and the handler makes the change (as libpsx and the C library do). The kernel's own
//! report on each thread then shows whether the change is done.

use super::capabilities::ProcessCapabilities;
use super::request::{NO_CHANGE, RightsRequest, WantedRights};
use super::status::{ThreadStatus, read_thread_statuses};
use super::user::ProcessUser;
use crate::sync::{AtomicU32, AtomicU64};
use crate::{Error, signal};
use std::time::Duration;

/// Request that the handler carries out.
static RIGHTS_REQUEST: RightsRequest = RightsRequest {
    kept: AtomicU64::new(0),
    user: AtomicU32::new(NO_CHANGE),
    group: AtomicU32::new(NO_CHANGE),
    handlers: AtomicU64::new(0),
};
/// `_LINUX_CAPABILITY_VERSION_3`.
const VERSION_3: u32 = 0x2008_0522;
/// Maximum number of rounds of signals. A thread that has not dropped its rights by then will not do it later either.
const MAX_SIGNAL_ROUNDS: u32 = 2000;
const SIGNAL_ROUND_PAUSE: Duration = Duration::from_millis(1);

/// Reduces the capabilities of every thread to `kept`. If a user is given, every thread becomes this user.
pub(super) fn drop_rights(kept: ProcessCapabilities, user: Option<ProcessUser>) -> Result<(), Error> {
    RIGHTS_REQUEST.publish_rights(WantedRights {
        kept: kept.bits(),
        user: user.as_ref().map_or(NO_CHANGE, |user| user.uid),
        group: user.as_ref().map_or(NO_CHANGE, |user| user.gid),
    });
    // The handler is installed after the request: the first signal finds it complete.
    RIGHTS_REQUEST.open_handlers();
    // SA_RESTART: system calls of other threads must not fail because of this signal.
    signal::set_handler(request_signal(), on_rights_request, libc::SA_RESTART)?;
    // The calling thread drops its rights at once, without a signal.
    on_rights_request(request_signal());
    let process = std::process::id();
    for _ in 0..MAX_SIGNAL_ROUNDS {
        // The list is read again in each round: a thread that was started in the meantime has the
        // rights of its creator.
        let threads = read_thread_statuses(process)
            .map_err(|error| Error::from_call("read", "/proc/self/task", error))?;
        // The kernel's report decides and not the handler, because the handler's calls may have been refused.
        let mut behind =
            threads.iter().filter(|thread| !has_dropped_rights(thread, kept, user.as_ref())).peekable();
        if behind.peek().is_none() {
            return end_handlers();
        }
        for thread in behind {
            signal_thread(process, thread.thread);
        }
        std::thread::sleep(SIGNAL_ROUND_PAUSE);
    }
    let threads = read_thread_statuses(process).unwrap_or_default();
    let keeps_groups =
        user.is_some_and(|user| threads.iter().any(|thread| !has_only_groups_of(thread, &user)));
    let call = if keeps_groups { "setgroups and setresgid" } else { "capset" };
    Err(Error::from_call(call, "a thread of this process", rustix::io::Errno::PERM))
}

/// Closes the request after every thread has dropped its rights, and waits for handlers that still run. When this
/// returns, no handler makes system calls any more.
fn end_handlers() -> Result<(), Error> {
    RIGHTS_REQUEST.close_handlers();
    for _ in 0..MAX_SIGNAL_ROUNDS {
        if RIGHTS_REQUEST.are_handlers_done() {
            return Ok(());
        }
        std::thread::sleep(SIGNAL_ROUND_PAUSE);
    }
    Err(Error::from_call("giving up rights", "a thread of this process", rustix::io::Errno::TIMEDOUT))
}

fn has_dropped_rights(thread: &ThreadStatus, kept: ProcessCapabilities, user: Option<&ProcessUser>) -> bool {
    let is_user = user.is_none_or(|user| thread.user == user.uid && has_only_groups_of(thread, user));
    is_user && thread.permitted & !kept.bits() == 0
}

/// Returns true if a thread has the groups of this user and no other.
fn has_only_groups_of(thread: &ThreadStatus, user: &ProcessUser) -> bool {
    thread.own_groups.iter().chain(&thread.groups).all(|group| *group == user.gid)
}

/// Signal of the request; it differs from the signals of the module [`signal`].
fn request_signal() -> i32 {
    libc::SIGRTMIN() + 9
}

fn signal_thread(process: u32, thread: u32) {
    // SAFETY: the call reads three numbers and no memory; the signal has a handler. For an ended thread it
    // returns an error, which can be ignored.
    unsafe { libc::syscall(libc::SYS_tgkill, process, thread, request_signal()) };
}

extern "C" fn on_rights_request(_signal: i32) {
    if RIGHTS_REQUEST.enter_handler() {
        drop_rights_of_calling_thread();
    }
    RIGHTS_REQUEST.leave_handler();
}

/// Drops the rights of the calling thread. Async-signal-safe: system calls and atomics only; the caller's error number is restored.
fn drop_rights_of_calling_thread() {
    // SAFETY: every thread has an error number for as long as it lives.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above; no other code reads or writes the value of this thread.
    let before = unsafe { *errno };
    let wanted = RIGHTS_REQUEST.read_rights();
    if wanted.user != NO_CHANGE {
        become_user(wanted.user, wanted.group);
    }
    reduce_capabilities(wanted.kept);
    // SAFETY: as above.
    unsafe { *errno = before };
}

/// System calls that take user numbers of 32 bits. On ARM, the calls with the plain names take 16 bits: user 70000
/// would become user 4464.
#[cfg(not(target_arch = "arm"))]
const SET_USER: libc::c_long = libc::SYS_setresuid;
#[cfg(not(target_arch = "arm"))]
const SET_GROUP: libc::c_long = libc::SYS_setresgid;
#[cfg(target_arch = "arm")]
const SET_USER: libc::c_long = libc::SYS_setresuid32;
#[cfg(target_arch = "arm")]
const SET_GROUP: libc::c_long = libc::SYS_setresgid32;

/// Becomes the user by raw system calls: the functions of the C library signal the other threads,
/// which is not async-signal-safe.
fn become_user(user: u32, group: u32) {
    // SAFETY: the length is zero, so the null pointer is not read.
    unsafe { libc::syscall(libc::SYS_setgroups, 0_usize, std::ptr::null::<u32>()) };
    // SAFETY: the call reads numbers and no memory.
    unsafe { libc::syscall(SET_GROUP, group, group, group) };
    // SAFETY: as above.
    unsafe { libc::syscall(SET_USER, user, user, user) };
}

/// `struct __user_cap_data_struct`.
#[repr(C)]
struct CapabilityWords {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

fn reduce_capabilities(kept: u64) {
    // The thread's capabilities are read first: the kernel refuses the whole request if it has a capability
    // that the thread lacks.
    let header = [VERSION_3, 0];
    let mut words = [const { CapabilityWords { effective: 0, permitted: 0, inheritable: 0 } }; 2];
    // SAFETY: the header has version 3, for which the kernel writes two structures; both pointers refer to live values.
    unsafe { libc::syscall(libc::SYS_capget, header.as_ptr(), words.as_mut_ptr()) };
    // A thread may always reduce its capabilities, so a thread that has dropped its rights already may do this again.
    for (word, half) in words.iter_mut().zip([kept, kept >> 32]) {
        #[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
        let half = half as u32;
        word.permitted &= half;
        word.effective = word.permitted;
        word.inheritable = 0;
    }
    // SAFETY: as above, and both are only read.
    unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), words.as_ptr()) };
}
