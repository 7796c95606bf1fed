//! Virtual time: it passes only when the simulation sets it forward.

use crate::port::WorkerClock;
use packetrig_units::MonoTime;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Virtual time, shared by all its clones.
#[derive(Clone, Debug)]
pub struct VirtualClock(Arc<AtomicU64>);

impl VirtualClock {
    /// A clock that shows `at`.
    pub fn new(at: MonoTime) -> Self {
        Self(Arc::new(AtomicU64::new(at.as_nanos())))
    }

    /// Sets it forward; it never goes back.
    pub fn advance_to(&self, at: MonoTime) {
        self.0.fetch_max(at.as_nanos(), Ordering::AcqRel);
    }
}

impl WorkerClock for VirtualClock {
    fn now(&self) -> MonoTime {
        MonoTime::from_nanos(self.0.load(Ordering::Acquire))
    }

    /// Returns at once: the driver of the simulation moves time.
    fn wait(&self, _until: MonoTime) {}
}
