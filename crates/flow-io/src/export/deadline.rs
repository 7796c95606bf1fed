//! When the thread of a target gives up what is left at the end.
//!
//! After the last batch was offered, it continues as long as its target takes data, and for the linger time after that.

use packetrig_sys::clock;
use packetrig_units::Nanos;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The deadline of one target. Clones share the time of the last offer; each has its own time of progress.
#[derive(Clone, Debug)]
pub(super) struct SendDeadline {
    /// When the last batch was offered, in nanoseconds of the monotonic clock; `u64::MAX` until then.
    last_offered: Arc<AtomicU64>,
    linger_ns: u64,
    /// When the target last took data.
    taken_at: Cell<u64>,
}

impl SendDeadline {
    pub(super) fn never(linger: Nanos) -> Self {
        let last_offered = Arc::new(AtomicU64::new(u64::MAX));
        Self { last_offered, linger_ns: linger.as_u64(), taken_at: Cell::new(0) }
    }

    /// Starts the countdown: the last batch was offered.
    pub(super) fn begin(&self, now_ns: u64) {
        self.last_offered.store(now_ns, Ordering::Relaxed);
    }

    pub(super) fn note_taken(&self) {
        self.taken_at.set(clock::monotonic_ns());
    }

    /// The deadline, as of now. It moves while the target takes data.
    pub(super) fn ns(&self) -> u64 {
        let last_offered = self.last_offered.load(Ordering::Relaxed);
        // Saturates at `u64::MAX` while batches are still offered: then nothing is ever past the deadline.
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
