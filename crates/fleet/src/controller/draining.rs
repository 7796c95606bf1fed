//! Computes how long receivers continue after the last frame was sent.
//!
//! Receivers continue for the drain time, or for twice the longest measured delay if that is longer. While frames still
//! arrive, they continue until none has arrived for the drain time. The limit is ten times the drain time.

use super::{ControllerMachine, ControllerPhase};
use packetrig_stats::result::CountSample;
use packetrig_units::{MonoTime, Nanos};

/// Maximum length of the drain, as a multiple of the plan's drain time.
const MAX_DRAIN_FACTOR: u64 = 10;

impl ControllerMachine {
    /// Begins to drain, after the last sender is done.
    pub(super) fn begin_draining(&mut self, now: MonoTime) {
        let longest = Nanos::new(self.limits.drain.as_u64().saturating_mul(MAX_DRAIN_FACTOR));
        // The drain takes at least twice the longest delay, because frames in flight may be slower
        // than any measured frame.
        let wanted = self.limits.drain.max(self.longest_delay + self.longest_delay).min(longest);
        self.phase = ControllerPhase::Draining { since: now, until: now + wanted, limit: now + longest };
    }

    /// Prolongs the drain if this sample shows that frames are still arriving.
    pub(super) fn extend_drain(&mut self, sample: &CountSample, now: MonoTime) {
        let delay = sample.latency.map_or(Nanos::ZERO, |(_, _, longest)| longest);
        self.longest_delay = self.longest_delay.max(delay);
        // The delay is recorded in every phase, because `begin_draining` needs the longest delay of the whole run.
        let ControllerPhase::Draining { since, until, limit } = &mut self.phase else { return };
        let by_delay = *since + self.longest_delay + self.longest_delay;
        // Arrival times are on the node's clock. Only the time between the last arrival and its sample is used, which
        // are on the same clock.
        let last = sample.rx.iter().filter_map(|(_, _, counts)| counts.last).max();
        let by_arrival = last.map_or(*since, |last| now - sample.at.since(last) + self.limits.drain);
        // The limit applies even if frames never stop arriving, for example because of a loop behind the device.
        *until = (*until).max(by_delay).max(by_arrival).min(*limit);
    }
}
