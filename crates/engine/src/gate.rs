//! The lease gate.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Until when senders may send.
#[derive(Clone, Debug)]
pub struct Gate(Arc<AtomicU64>);

impl Default for Gate {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(u64::MAX)))
    }
}

impl Gate {
    /// Until this instant of CLOCK_BOOTTIME.
    pub fn open_until(&self, deadline_ns: u64) {
        self.0.store(deadline_ns, Ordering::Release);
    }
}
