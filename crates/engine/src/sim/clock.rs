//! Virtual time: it passes only when the simulation advances it.

use crate::port::WorkerClock;
use packetrig_units::MonoTime;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A clock with virtual time; all clones share it.
#[derive(Clone, Debug)]
pub struct VirtualClock(Arc<AtomicU64>);

impl VirtualClock {
    /// Creates a clock that shows `at`.
    pub fn new(at: MonoTime) -> Self {
        Self(Arc::new(AtomicU64::new(at.as_nanos())))
    }

    /// Advances the virtual clock. An earlier time changes nothing, because the clock never goes back.
    pub fn advance_to(&self, at: MonoTime) {
        self.0.fetch_max(at.as_nanos(), Ordering::AcqRel);
    }
}

impl WorkerClock for VirtualClock {
    fn now(&self) -> MonoTime {
        MonoTime::from_nanos(self.0.load(Ordering::Acquire))
    }

    /// Returns at once: the simulation advances the time.
    fn wait_until(&self, _until: MonoTime) {}
}
