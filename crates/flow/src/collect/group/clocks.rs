//! State of the meters of a group: which meters are alive, and the offsets of their clocks, measured with packets
//! that several meters saw.
//!
//! Whatever the clocks show, a packet is recognised if no packet near it has the same content. Such packets give the
//! offset of two clocks. With that offset, packets of equal content can be distinguished by their times.

use std::collections::BTreeMap;

/// Number of the latest packets whose median gives the offset of two clocks.
const OFFSET_SAMPLES: usize = 15;
/// Minimum number of packets from which the offset of two clocks counts as known.
const MIN_OFFSET_SAMPLES: usize = 5;
/// A meter is alive if one of its records arrived within this time.
const METER_ALIVE_TIME_NS: u64 = 15_000_000_000;
/// Maximum number of meters whose clocks are measured. Senders choose the meter numbers, so there could be
/// any number of meters.
const MAX_METERS_WITH_CLOCK: usize = super::counts::MAX_METERS_PER_GROUP;

/// The clocks of one group. The clock of one meter is the reference, and its time is called common time.
#[derive(Clone, Debug, Default)]
pub(super) struct MeterClocks {
    reference: Option<u32>,
    ahead: BTreeMap<u32, ClockSamples>,
    sight: BTreeMap<u32, MeterCoverageTime>,
}

/// Time from which a meter has seen all packets.
#[derive(Clone, Copy, Debug, Default)]
struct MeterCoverageTime {
    /// Latest time at which the meter began to follow a flow that was already running; 0 if there is none.
    strange_since: u64,
    /// Time since which the meter has followed all flows, once it has reported a flow with landmarks
    /// that other meters know.
    whole_since: Option<u64>,
    /// Time at which the meter's last record arrived, by the collector's clock.
    heard_at: u64,
}

#[derive(Clone, Debug, Default)]
struct ClockSamples {
    last: [i64; OFFSET_SAMPLES],
    count: usize,
    /// Median of the samples; `None` until there are enough of them. It is stored, because each record needs it dozens
    /// of times: sorting the samples each time took half of the time of a collector.
    median: Option<i64>,
}

impl MeterClocks {
    /// Converts a time of a meter to common time. If the meter's offset is not known, returns the time unchanged.
    pub(super) fn to_common_time(&self, meter: u32, at_ns: u64) -> u64 {
        at_ns.saturating_add_signed(self.offset_from_common_time(meter).unwrap_or(0).saturating_neg())
    }

    /// Returns whether the offset of a meter's clock from common time is known.
    pub(super) fn is_clock_offset_known(&self, meter: u32) -> bool {
        self.offset_from_common_time(meter).is_some()
    }

    fn offset_from_common_time(&self, meter: u32) -> Option<i64> {
        if self.reference == Some(meter) { Some(0) } else { self.ahead.get(&meter)?.median }
    }

    /// Records that a meter has followed a flow since `since_ns`. If `is_strange` is true, the flow
    /// was already running then.
    pub(super) fn record_followed_flow(&mut self, meter: u32, since_ns: u64, is_strange: bool, now_ns: u64) {
        if self.sight.len() == MAX_METERS_WITH_CLOCK && !self.sight.contains_key(&meter) {
            return;
        }
        let sight = self.sight.entry(meter).or_default();
        sight.heard_at = now_ns;
        // If a flow was running when the meter began to follow it, the meter has missed packets before that time.
        if is_strange && sight.whole_since.is_none_or(|whole_since| since_ns > whole_since) {
            sight.strange_since = sight.strange_since.max(since_ns);
            sight.whole_since = None;
        } else if !is_strange {
            sight.whole_since = Some(sight.whole_since.unwrap_or_else(|| since_ns.max(sight.strange_since)));
        }
    }

    /// Returns whether another meter reported recently and has followed all flows since `at_ns` or earlier. Such a
    /// meter will report the same packets.
    pub(super) fn has_other_live_meter(&self, meter: u32, at_ns: u64, now_ns: u64) -> bool {
        let at_ns = self.to_common_time(meter, at_ns);
        self.sight.iter().any(|(other, sight)| {
            let had_seen = sight
                .whole_since
                .is_some_and(|whole_since| self.to_common_time(*other, whole_since) <= at_ns);
            // The collector's own clock decides whether a meter is alive,
            // because the meters' clocks may be set.
            *other != meter && had_seen && sight.heard_at + METER_ALIVE_TIME_NS > now_ns
        })
    }

    /// Adds a sample for the offset of two clocks: a packet that both meters saw, with each meter's time of it.
    pub(super) fn add_clock_offset_sample(
        &mut self,
        (meter, at_ns): (u32, u64),
        (other, other_ns): (u32, u64),
    ) {
        if meter == other {
            return;
        }
        let reference = *self.reference.get_or_insert(other);
        // The offset of the reference is zero by definition, so the sample is one of the other meter.
        if meter == reference {
            return self.add_clock_offset_sample((other, other_ns), (meter, at_ns));
        }
        let has_room = self.ahead.len() < MAX_METERS_WITH_CLOCK || self.ahead.contains_key(&meter);
        // A sample against a meter whose offset is not known would not relate this clock to common time.
        let Some(other_ahead) = self.offset_from_common_time(other).filter(|_| has_room) else { return };
        let apart = at_ns.wrapping_sub(other_ns).cast_signed();
        self.ahead.entry(meter).or_default().add_sample(apart.saturating_add(other_ahead));
    }
}

impl ClockSamples {
    fn add_sample(&mut self, sample: i64) {
        // Only the latest samples count, so the median follows a clock that drifts or is set.
        self.last[self.count % OFFSET_SAMPLES] = sample;
        self.count += 1;
        // The median is used, so that a few late packets do not move the offset.
        let mut sorted = self.last;
        let sorted = &mut sorted[..self.count.min(OFFSET_SAMPLES)];
        sorted.sort_unstable();
        self.median = sorted.get(sorted.len() / 2).copied().filter(|_| self.count >= MIN_OFFSET_SAMPLES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_offset_is_median_after_enough_packets() {
        let mut clocks = MeterClocks::default();
        for n in 0..6_u64 {
            assert_eq!(clocks.is_clock_offset_known(2), n >= 5);
            clocks.add_clock_offset_sample((2, 1000 * n + 700), (1, 1000 * n));
        }
        // One packet was late.
        clocks.add_clock_offset_sample((1, 90_000), (2, 99_000));
        assert_eq!((clocks.to_common_time(2, 10_700), clocks.to_common_time(1, 10_700)), (10_000, 10_700));
        for n in 0..5 {
            clocks.add_clock_offset_sample((3, 50_000 + n), (2, 50_900 + n));
        }
        assert_eq!(clocks.to_common_time(3, 50_000), 50_200);
    }
}
