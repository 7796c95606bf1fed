//! Finds frames that left ahead: nearer to the frames before them than planned.
//!
//! A sender that was held up and catches up sends more frames in some interval than the plan has in any interval of
//! that length. A device that carries the plan may drop the surplus and is not to blame. The surplus is what a policer
//! with the plan's rate and a bucket of [`SPACING_TOLERANCE`] would drop (GCRA, ITU-T I.371). A device with a larger
//! bucket drops fewer frames. `bpf/send.bpf.c` counts live frames in the same way.

use packetrig_stats::result::CatchUpBurst;
use packetrig_units::{MonoTime, Nanos};

/// A frame may be this much nearer to earlier frames than planned: no sender and no device is more exact.
pub(crate) const SPACING_TOLERANCE: Nanos = Nanos::from_micros(500);
/// Frames that were sent early and are further apart than this belong to different bursts.
const BURST_SEPARATION: Nanos = Nanos::from_millis(10);
/// Maximum number of bursts that are stored separately. If there are more, neighbouring bursts are joined.
const MAX_STORED_BURSTS: usize = 512;

/// Bursts of frames that left ahead of the planned spacing, in the order of time.
#[derive(Clone, Debug)]
pub(crate) struct AheadBurstLog {
    bursts: Vec<CatchUpBurst>,
}

impl Default for AheadBurstLog {
    fn default() -> Self {
        // The memory is reserved here, because a sender allocates nothing while it sends.
        Self { bursts: Vec::with_capacity(MAX_STORED_BURSTS) }
    }
}

impl AheadBurstLog {
    /// Adds frames that left ahead of the planned spacing between two instants.
    pub(crate) fn add_burst(&mut self, from: MonoTime, until: MonoTime, frames: u64) {
        if let Some(last) = self.bursts.last_mut()
            && from <= last.until + BURST_SEPARATION
        {
            last.until = last.until.max(until);
            last.frames += frames;
            return;
        }
        // Joining keeps the log within its reserved memory.
        if self.bursts.len() == MAX_STORED_BURSTS {
            self.join_neighbours();
        }
        self.bursts.push(CatchUpBurst { from, until, frames });
    }

    fn join_neighbours(&mut self) {
        let pairs = self.bursts.chunks(2).map(|pair| CatchUpBurst {
            from: pair[0].from,
            until: pair[pair.len() - 1].until,
            frames: pair.iter().map(|burst| burst.frames).sum(),
        });
        let joined: Vec<CatchUpBurst> = pairs.collect();
        self.bursts.clear();
        self.bursts.extend(joined);
    }

    pub(crate) fn bursts(&self) -> Vec<CatchUpBurst> {
        self.bursts.clone()
    }
}

/// Detects frames that leave ahead of the planned spacing.
#[derive(Clone, Debug, Default)]
pub(crate) struct AheadFrameDetector {
    /// Minimum lateness of a frame that keeps its distance from earlier frames.
    bar: Nanos,
    /// Due time of the last frame, if it left ahead of the planned spacing.
    ahead: Option<MonoTime>,
    log: AheadBurstLog,
}

impl AheadFrameDetector {
    /// Checks a frame that was due at `due` and leaves now.
    pub(crate) fn add_frame(&mut self, due: MonoTime, now: MonoTime) {
        if let Some(before) = self.ahead.take() {
            // The policer would have dropped the last frame, so that frame uses up no capacity.
            self.bar = self.bar.saturating_sub(due.since(before));
        }
        let late = now.since(due);
        // GCRA: a frame conforms if it is at most the tolerance early.
        if late + SPACING_TOLERANCE >= self.bar {
            self.bar = self.bar.max(late);
        } else {
            self.ahead = Some(due);
            self.log.add_burst(now, now, 1);
        }
    }

    pub(crate) fn bursts(&self) -> Vec<CatchUpBurst> {
        self.log.bursts()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(us: u64) -> MonoTime {
        MonoTime::default() + Nanos::from_micros(us)
    }

    fn ahead(departures: &[(u64, u64)]) -> u64 {
        let mut meter = AheadFrameDetector::default();
        for (due, left) in departures {
            meter.add_frame(at(*due), at(*left));
        }
        meter.bursts().iter().map(|burst| burst.frames).sum()
    }

    /// Counts the drops of a policer that adds a token each `period` and holds `depth` of them.
    fn dropped(departures: &[(u64, u64)], period: f64, depth: f64) -> u64 {
        let (mut tokens, mut before, mut dropped) = (depth, 0.0, 0);
        for (_, left) in departures {
            let left = *left as f64;
            tokens = f64::min(depth, tokens + (left - before) / period);
            before = left;
            if tokens >= 1.0 { tokens -= 1.0 } else { dropped += 1 }
        }
        dropped
    }

    #[test]
    fn caught_up_frames_count_as_ahead() {
        // A frame each 200 us; 50 ms are lost and made up for at 5/4 of the rate.
        let left = |n: u64| if n < 100 { n * 200 } else { (n * 200).max(70_000 + (n - 100) * 160) };
        let departures: Vec<_> = (0..3_000).map(|n| (n * 200, left(n))).collect();
        let found = ahead(&departures);
        assert!((244..=250).contains(&found), "{found} of the 250 that were held up");
        let late: Vec<_> = (0..3_000).map(|n| (n * 200, n * 200 + 70)).collect();
        assert_eq!(ahead(&late), 0, "as late as ever is not ahead");
    }

    proptest! {
        #[test]
        fn no_device_that_carries_the_plan_drops_more(
            gap in 20u64..1000, late in prop::collection::vec(0u64..20_000, 50..400), room in 0u64..200,
        ) {
            let mut before = 0;
            let departures: Vec<_> = late.iter().enumerate().map(|(n, late)| {
                let due = gap * n as u64;
                before = before.max(due + if late % 3 == 0 { *late } else { 0 });
                (due, before)
            }).collect();
            let depth = 1.0 + SPACING_TOLERANCE.as_u64() as f64 / 1000.0 / gap as f64 + 0.001;
            let period = gap as f64 / (1.0 + room as f64 / 1000.0);
            prop_assert!(dropped(&departures, period, depth) <= ahead(&departures));
        }
    }
}
