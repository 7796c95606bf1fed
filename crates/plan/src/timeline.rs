//! The schedule of a stream: when each frame is due, computed from the start of the run, so that it cannot drift.
//!
//! Invariant: `due_time` is monotonic in the frame number, and `frames_due_before` is its inverse.

use packetrig_units::{FrameRate, Nanos, clamp_to_u64};
use serde::{Deserialize, Serialize};

/// How many frames a stream sends, and in which bursts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SendPattern {
    Endless,
    /// Stops after this many frames.
    Frames(u64),
    /// All frames that are due within this time after the first frame.
    Within(Nanos),
    /// Bursts of `frames` frames at the stream's rate. `pause` is the time from the end of a burst's last frame slot
    /// to the next burst.
    Bursts {
        /// Number of bursts; 0 = until stopped.
        bursts: u64,
        /// Frames per burst; at least 1, because times are divided by it.
        frames: u64,
        pause: Nanos,
    },
}

/// The schedule of one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamTimeline {
    pub rate: FrameRate,
    /// Time from the start of the run to frame 0.
    pub delay: Nanos,
    pub shape: SendPattern,
}

impl StreamTimeline {
    /// Due time of frame `n`, from the start of the run.
    pub fn due_time(&self, n: u64) -> Nanos {
        match self.shape {
            SendPattern::Bursts { frames, pause, .. } => {
                let burst = n / frames;
                let within = n % frames;
                let pauses = u128::from(pause.as_u64()) * u128::from(burst);
                let pauses = Nanos::new(clamp_to_u64(pauses));
                // Computed from the number of all earlier frames, not burst by burst, so that rounding errors
                // do not add up.
                self.delay + self.rate.due_time(burst.saturating_mul(frames).saturating_add(within)) + pauses
            }
            _ => self.delay + self.rate.due_time(n),
        }
    }

    /// Number of all frames; `None` if the stream sends until stopped.
    pub fn total_frames(&self) -> Option<u64> {
        match self.shape {
            SendPattern::Endless | SendPattern::Bursts { bursts: 0, .. } => None,
            SendPattern::Frames(frames) => Some(frames),
            SendPattern::Within(time) => Some(self.rate.frames_within(time)),
            SendPattern::Bursts { bursts, frames, .. } => Some(bursts.saturating_mul(frames)),
        }
    }

    /// Number of frames that are due before `elapsed` since the start of the run (never more than `total_frames`).
    pub fn frames_due_before(&self, elapsed: Nanos) -> u64 {
        // "Before" excludes the time itself: a frame that is due exactly at `elapsed` does not count yet.
        if elapsed <= self.delay {
            return 0;
        }
        let since = elapsed.saturating_sub(self.delay);
        let due = match self.shape {
            SendPattern::Bursts { frames, pause, .. } => {
                let burst = self.last_burst_before(elapsed, frames, pause);
                // After subtracting the earlier pauses, the frames are evenly spaced. In the pause after the
                // burst, the clamp keeps the count at the last frame of the burst.
                let pauses = Nanos::new(burst.saturating_mul(pause.as_u64()));
                let begun = burst.saturating_mul(frames);
                self.rate
                    .frames_within(since.saturating_sub(pauses))
                    .clamp(begun, begun.saturating_add(frames))
            }
            _ => self.rate.frames_within(since),
        };
        // The stream may have sent all its frames before this time.
        due.min(self.total_frames().unwrap_or(u64::MAX))
    }

    /// Number of the last burst whose first frame is due before `elapsed`. `elapsed` must be after `delay`.
    fn last_burst_before(&self, elapsed: Nanos, frames: u64, pause: Nanos) -> u64 {
        let since = u128::from(elapsed.saturating_sub(self.delay).as_u64());
        // A first estimate by division. The length of one burst is rounded to a nanosecond, so the divisor is the
        // length of many bursts together (about 2^40 ns). The loops below then correct the estimate by a burst or two.
        let many = clamp_to_u64((1 << 40) / self.duration_of_bursts(1, frames, pause).max(1)).max(1);
        let length = self.duration_of_bursts(many, frames, pause).max(1);
        let mut burst = clamp_to_u64(since * u128::from(many) / length);
        // The estimate is corrected downwards first: it may be beyond the time, and the second loop only goes up.
        while burst > 0 && self.due_time(burst.saturating_mul(frames)) >= elapsed {
            burst -= 1;
        }
        while self.due_time(burst.saturating_add(1).saturating_mul(frames)) < elapsed {
            burst += 1;
        }
        burst
    }

    /// The time of this many bursts with the pauses after them, in nanoseconds.
    fn duration_of_bursts(&self, bursts: u64, frames: u64, pause: Nanos) -> u128 {
        let pauses = u128::from(bursts) * u128::from(pause.as_u64());
        u128::from(self.rate.due_time(bursts.saturating_mul(frames)).as_u64()) + pauses
    }

    /// End of the last frame's slot, or of the time limit, from the start of the run; `None` if the stream sends until
    /// stopped.
    pub fn end_time(&self) -> Option<Nanos> {
        match self.shape {
            // A stream with a time limit ends at the limit, although its last frame is due earlier.
            SendPattern::Within(time) => Some(self.delay + time),
            SendPattern::Bursts { frames, .. } => {
                let last = self.total_frames()?.saturating_sub(1);
                // The slot of the last frame, not of the first: slots differ by a nanosecond where the rate does not
                // divide evenly.
                let slot =
                    self.rate.due_time(last % frames + 1).saturating_sub(self.rate.due_time(last % frames));
                Some(self.due_time(last) + slot)
            }
            _ => self.total_frames().map(|total| self.due_time(total)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn timeline(pps: u64, shape: SendPattern) -> StreamTimeline {
        StreamTimeline { rate: FrameRate::per_second(pps).unwrap(), delay: Nanos::from_millis(1), shape }
    }

    #[test]
    fn bursts_keep_their_pause_however_many_there_were() {
        let bursts =
            timeline(1_000_000, SendPattern::Bursts { bursts: 3, frames: 10, pause: Nanos::from_micros(90) });
        assert_eq!(
            (bursts.total_frames(), bursts.end_time()),
            (Some(30), Some(Nanos::from_micros(1000 + 30 + 180)))
        );
        assert_eq!(bursts.due_time(10), Nanos::from_micros(1100));
        assert_eq!(bursts.due_time(29), Nanos::from_micros(1000 + 29 + 180));
    }

    #[test]
    fn fixed_time_holds_the_frames_due_in_it() {
        let ten = timeline(3, SendPattern::Within(Nanos::from_secs(10)));
        assert_eq!((ten.total_frames(), ten.end_time()), (Some(30), Some(Nanos::from_millis(10_001))));
        assert_eq!(timeline(3, SendPattern::Endless).total_frames(), None);
    }

    fn any_shape() -> impl Strategy<Value = SendPattern> {
        prop_oneof![
            Just(SendPattern::Endless),
            (1u64..1000).prop_map(SendPattern::Frames),
            (1u64..10_000_000_000).prop_map(|ns| SendPattern::Within(Nanos::new(ns))),
            (0u64..9, 1u64..50, 0u64..1_000_000).prop_map(|(bursts, frames, pause)| SendPattern::Bursts {
                bursts,
                frames,
                pause: Nanos::new(pause)
            }),
        ]
    }

    proptest! {
        #[test]
        fn due_is_monotonic_and_due_before_counts_it(shape in any_shape(), pps in 1u64..2_000_000, n in 0u64..5_000) {
            let timeline = timeline(pps, shape);
            let n = n.min(timeline.total_frames().unwrap_or(u64::MAX).saturating_sub(1));
            prop_assert!(timeline.due_time(n) <= timeline.due_time(n + 1));
            prop_assert_eq!(timeline.frames_due_before(timeline.due_time(n)), n);
            prop_assert_eq!(timeline.frames_due_before(timeline.due_time(n) + Nanos::new(1)), n + 1);
        }

        #[test]
        fn bursts_are_counted_exactly_after_hours_too(
            rate in (1u64..1_000_000, 1u64..100), frames in 1u64..9, pause in 0u64..2_000, n in 0u64..10_000_000_000
        ) {
            let rate = FrameRate::new(rate.0, rate.1).unwrap();
            let shape = SendPattern::Bursts { bursts: 0, frames, pause: Nanos::new(pause) };
            let timeline = StreamTimeline { rate, delay: Nanos::ZERO, shape };
            // Times end after 584 years: frames that are due later share the last nanosecond.
            prop_assume!(timeline.due_time(n) < Nanos::new(u64::MAX));
            prop_assert_eq!(timeline.frames_due_before(timeline.due_time(n)), n);
        }
    }
}
