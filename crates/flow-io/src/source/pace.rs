//! Pace of a replay at the recorded times: computes when each packet is due.

use packetrig_sys::clock;
use packetrig_units::clamp_to_u64;
use std::sync::{Arc, OnceLock};

/// The speed of a replay. Clones share the start of the replay.
#[derive(Clone, Debug)]
pub struct ReplayPace {
    millionths: u64,
    origin: Arc<OnceLock<ReplayOrigin>>,
}

#[derive(Clone, Copy, Debug)]
struct ReplayOrigin {
    /// Recorded time of the first packet.
    first_ns: u64,
    /// Time at which the packet was due, on the monotonic clock.
    start_ns: u64,
}

impl ReplayPace {
    /// Makes a pace of this many millionths of the recorded speed. 1,000,000 is the recorded speed; 0 counts as 1.
    pub fn new(millionths: u64) -> Self {
        Self { millionths: millionths.max(1), origin: Arc::default() }
    }

    /// Returns the time at which a packet is due, on the monotonic clock.
    pub(super) fn due_ns(&self, at_ns: u64) -> u64 {
        // The first packet of any worker defines the origin for all workers, so that they replay on one time axis.
        let origin =
            self.origin.get_or_init(|| ReplayOrigin { first_ns: at_ns, start_ns: clock::monotonic_ns() });
        let since =
            u128::from(at_ns.saturating_sub(origin.first_ns)) * 1_000_000 / u128::from(self.millionths);
        origin.start_ns.saturating_add(clamp_to_u64(since))
    }

    /// Returns the current time of the recording; 0 before the first packet.
    pub(super) fn replay_time_ns(&self) -> u64 {
        let Some(origin) = self.origin.get() else { return 0 };
        let spent = clock::monotonic_ns().saturating_sub(origin.start_ns);
        let passed = u128::from(spent) * u128::from(self.millionths) / 1_000_000;
        origin.first_ns.saturating_add(clamp_to_u64(passed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn double_speed_replay_is_due_in_half_time() {
        let pace = ReplayPace::new(2_000_000);
        let start = pace.due_ns(5_000_000_000);
        assert_eq!(pace.due_ns(7_000_000_000) - start, 1_000_000_000);
        assert_eq!(pace.due_ns(1), start, "what is older than the first is due with it");
        assert!(pace.replay_time_ns() >= 5_000_000_000);
    }
}
