//! Request for rights that every thread is to give up: written once, read in signal handlers.

use crate::sync::{AtomicU32, AtomicU64};
use std::sync::atomic::Ordering;

/// The kernel's word for "no change".
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
    /// Number of handlers at work; with [`CLOSED_BIT`] new handlers have nothing to do.
    pub(super) handlers: AtomicU64,
}

const CLOSED_BIT: u64 = 1 << 63;

impl RightsRequest {
    /// Enters a handler. Returns true if it has anything to do. Its calls are over when it [leaves](Self::leave_handler). Async-signal-safe.
    pub(super) fn enter_handler(&self) -> bool {
        // Counting and checking are one operation: no thread can close between them and miss this handler.
        self.handlers.fetch_add(1, Ordering::Relaxed) & CLOSED_BIT == 0
    }

    /// Leaves a handler. Async-signal-safe.
    pub(super) fn leave_handler(&self) {
        self.handlers.fetch_add(u64::MAX, Ordering::Release);
    }

    /// Leaves no work for handlers that begin from now on. A slow thread has received several signals and
    /// handles the remaining ones later: its calls would then meet the filter, which kills.
    pub(super) fn close_handlers(&self) {
        self.handlers.fetch_add(CLOSED_BIT, Ordering::Relaxed);
    }

    /// Gives handlers something to do again, if it was closed.
    pub(super) fn open_handlers(&self) {
        if self.handlers.load(Ordering::Relaxed) & CLOSED_BIT != 0 {
            self.handlers.fetch_add(CLOSED_BIT, Ordering::Relaxed);
        }
    }

    /// Returns true if every handler that had something to do has made its calls. Handlers that begin after it is closed make none.
    pub(super) fn are_handlers_done(&self) -> bool {
        self.handlers.load(Ordering::Acquire) == CLOSED_BIT
    }

    /// Publishes a request. A thread may handle the signal of an earlier request while this one is written. It sees new
    /// capabilities only with the new user, and the new user only with its group: a thread that gave up `CAP_SETUID` first could
    /// never become the user.
    pub(super) fn publish_rights(&self, wanted: WantedRights) {
        self.group.store(wanted.group, Ordering::Relaxed);
        self.user.store(wanted.user, Ordering::Release);
        self.kept.store(wanted.kept, Ordering::Release);
    }

    /// Reads in the opposite order of [`Self::publish_rights`]. Async-signal-safe.
    pub(super) fn read_rights(&self) -> WantedRights {
        let kept = self.kept.load(Ordering::Acquire);
        let user = self.user.load(Ordering::Acquire);
        let group = self.group.load(Ordering::Relaxed);
        WantedRights { kept, user, group }
    }
}
