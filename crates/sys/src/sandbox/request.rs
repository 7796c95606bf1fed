//! Which rights every thread is to give up: told once, read in signal handlers.

use crate::sync::{AtomicU32, AtomicU64};
use std::sync::atomic::Ordering;

/// The kernel's word for "no change".
pub(super) const SAME: u32 = u32::MAX;

/// What a thread is to have.
#[derive(Clone, Copy, Debug)]
pub(super) struct WantedRights {
    /// Capabilities to keep.
    pub(super) kept: u64,
    /// The user and group to become, or [`SAME`].
    pub(super) user: u32,
    pub(super) group: u32,
}

/// See the module.
#[derive(Debug)]
pub(super) struct RightsRequest {
    pub(super) kept: AtomicU64,
    pub(super) user: AtomicU32,
    pub(super) group: AtomicU32,
}

impl RightsRequest {
    /// A thread may handle the signal of an earlier request while this one is written. It sees new capabilities only with the new
    /// user, and the new user only with its group: a thread that gave up `CAP_SETUID` first could never become the user.
    pub(super) fn tell(&self, wanted: WantedRights) {
        self.group.store(wanted.group, Ordering::Relaxed);
        self.user.store(wanted.user, Ordering::Release);
        self.kept.store(wanted.kept, Ordering::Release);
    }

    /// In the opposite order. Async-signal-safe.
    pub(super) fn read(&self) -> WantedRights {
        let kept = self.kept.load(Ordering::Acquire);
        let user = self.user.load(Ordering::Acquire);
        let group = self.group.load(Ordering::Relaxed);
        WantedRights { kept, user, group }
    }
}
