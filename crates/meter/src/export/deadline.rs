//! When the thread of a target gives up what is left.
//!
//! The last batch being offered, it goes on as long as its target takes something, and for a while after that.

use packetrig_sys::clock;
use packetrig_units::Nanos;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// See the module. Clones have one beginning, and each its own target.
#[derive(Clone, Debug)]
pub(super) struct SendDeadline {
    /// When the last batch was offered, nanoseconds of the monotonic clock; far away until then.
    last_offered: Arc<AtomicU64>,
    linger_ns: u64,
    /// When the target last took something.
    taken_at: Cell<u64>,
}

impl SendDeadline {
    pub(super) fn never(linger: Nanos) -> Self {
        let last_offered = Arc::new(AtomicU64::new(u64::MAX));
        Self { last_offered, linger_ns: linger.as_u64(), taken_at: Cell::new(0) }
    }

    /// The last batch was offered.
    pub(super) fn begin(&self, now_ns: u64) {
        self.last_offered.store(now_ns, Ordering::Relaxed);
    }

    /// The target has taken something.
    pub(super) fn note_taken(&self) {
        self.taken_at.set(clock::monotonic_ns());
    }

    /// When it is, as things are.
    pub(super) fn ns(&self) -> u64 {
        let last_offered = self.last_offered.load(Ordering::Relaxed);
        last_offered.max(self.taken_at.get()).saturating_add(self.linger_ns)
    }

    pub(super) fn is_past(&self) -> bool {
        clock::monotonic_ns() >= self.ns()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_moves_with_what_the_own_target_takes() {
        let linger = Nanos::from_secs(5);
        let [taking, deaf] = {
            let first = SendDeadline::never(linger);
            [first.clone(), first]
        };
        assert_eq!(taking.ns(), u64::MAX);
        taking.begin(1000);
        assert_eq!(deaf.ns(), 1000 + linger.as_u64());
        taking.note_taken();
        assert!(taking.ns() > deaf.ns() && !taking.is_past());
        assert!(deaf.is_past());
    }
}
