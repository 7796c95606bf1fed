//! When the packets of a file are due, if they are not read as fast as possible.

use packetrig_sys::clock;
use std::sync::{Arc, OnceLock};

/// At the recording's own times, so many times as fast. Workers of one file share the same beginning.
#[derive(Clone, Debug)]
pub struct ReplayPace {
    millionths: u64,
    /// Time of the first packet, and when it was due on the monotonic clock.
    origin: Arc<OnceLock<(u64, u64)>>,
}

impl ReplayPace {
    /// So many millionths of the recording's speed; a million is as recorded.
    pub fn new(millionths: u64) -> Self {
        Self { millionths: millionths.max(1), origin: Arc::default() }
    }

    /// When a packet is due, on the monotonic clock.
    pub(super) fn due_ns(&self, at_ns: u64) -> u64 {
        let (first, start) = *self.origin.get_or_init(|| (at_ns, clock::monotonic_ns()));
        let since = u128::from(at_ns.saturating_sub(first)) * 1_000_000 / u128::from(self.millionths);
        start.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
    }

    /// What the time is in the recording.
    pub(super) fn now_ns(&self) -> u64 {
        let Some((first, start)) = self.origin.get() else { return 0 };
        let spent = clock::monotonic_ns().saturating_sub(*start);
        let passed = u128::from(spent) * u128::from(self.millionths) / 1_000_000;
        first.saturating_add(u64::try_from(passed).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twice_as_fast_is_due_after_half_the_time() {
        let pace = ReplayPace::new(2_000_000);
        let start = pace.due_ns(5_000_000_000);
        assert_eq!(pace.due_ns(7_000_000_000) - start, 1_000_000_000);
        assert_eq!(pace.due_ns(1), start, "what is older than the first is due with it");
        assert!(pace.now_ns() >= 5_000_000_000);
    }
}
