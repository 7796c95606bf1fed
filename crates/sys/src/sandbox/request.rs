//! Request for rights that every thread is to give up: written once, read in signal handlers.

use crate::sync::{AtomicU32, AtomicU64};
use std::sync::atomic::Ordering;

/// The number of a user or group that means "no change" to the kernel.
pub(super) const NO_CHANGE: u32 = u32::MAX;

/// Rights that a thread is to have.
#[derive(Clone, Copy, Debug)]
pub(super) struct WantedRights {
    pub(super) kept: u64,
    /// The user and group to become, or [`NO_CHANGE`].
    pub(super) user: u32,
    pub(super) group: u32,
}

#[derive(Debug)]
pub(super) struct RightsRequest {
    pub(super) kept: AtomicU64,
    pub(super) user: AtomicU32,
    pub(super) group: AtomicU32,
    /// Number of signal handlers that run now. If [`CLOSED_BIT`] is set, handlers that begin do nothing.
    pub(super) handlers: AtomicU64,
}

const CLOSED_BIT: u64 = 1 << 63;

impl RightsRequest {
    /// Counts a handler that begins. Returns true if the handler is to drop rights; it makes its system calls
    /// before it [leaves](Self::leave_handler). Async-signal-safe.
    pub(super) fn enter_handler(&self) -> bool {
        // Counting and checking are one operation: no thread can close the request between them and miss this handler.
        self.handlers.fetch_add(1, Ordering::Relaxed) & CLOSED_BIT == 0
    }

    /// Counts a handler as ended. Async-signal-safe.
    pub(super) fn leave_handler(&self) {
        self.handlers.fetch_add(u64::MAX, Ordering::Release);
    }

    /// Makes handlers that begin from now on do nothing. A slow thread may handle some of its signals later, when the
    /// seccomp filter is in force: the handler's system calls would then end the process.
    pub(super) fn close_handlers(&self) {
        self.handlers.fetch_add(CLOSED_BIT, Ordering::Relaxed);
    }

    /// Lets handlers drop rights again, if the request was closed.
    pub(super) fn open_handlers(&self) {
        if self.handlers.load(Ordering::Relaxed) & CLOSED_BIT != 0 {
            self.handlers.fetch_add(CLOSED_BIT, Ordering::Relaxed);
        }
    }

    /// Returns true if the request is closed and no handler runs: all system calls of the handlers are over.
    pub(super) fn are_handlers_done(&self) -> bool {
        self.handlers.load(Ordering::Acquire) == CLOSED_BIT
    }

    /// Publishes a request. A thread may handle the signal of an earlier request while this one is written. The thread
    /// sees the new capabilities only with the new user, and the new user only with its group: a thread that gave up
    /// `CAP_SETUID` first could never become the user.
    pub(super) fn publish_rights(&self, wanted: WantedRights) {
        self.group.store(wanted.group, Ordering::Relaxed);
        self.user.store(wanted.user, Ordering::Release);
        self.kept.store(wanted.kept, Ordering::Release);
    }

    /// Reads the request, in the opposite order of [`Self::publish_rights`]. Async-signal-safe.
    pub(super) fn read_rights(&self) -> WantedRights {
        let kept = self.kept.load(Ordering::Acquire);
        let user = self.user.load(Ordering::Acquire);
        let group = self.group.load(Ordering::Relaxed);
        WantedRights { kept, user, group }
    }
}
