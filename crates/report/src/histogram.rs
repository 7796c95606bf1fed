//! The distribution of a stream's latency in a report. Its buckets are few enough for a page and fine
//! enough for a diagram.

use packetrig_stats::latency::Latency;
use packetrig_units::Nanos;
use serde::{Deserialize, Serialize};

/// Binary logarithm of the number of buckets per factor of two: with 8 buckets, each is at most an eighth of
/// its lower end wide.
const STEPS_PER_OCTAVE_LOG2: u32 = 3;

/// Frames whose latency is at least `from` and less than `below`. In files it is a list of its three numbers, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "[u64; 3]", into = "[u64; 3]")]
pub struct LatencyBucket {
    pub from: Nanos,
    pub below: Nanos,
    pub frames: u64,
}

impl From<[u64; 3]> for LatencyBucket {
    fn from([from, below, frames]: [u64; 3]) -> Self {
        Self { from: Nanos::new(from), below: Nanos::new(below), frames }
    }
}

impl From<LatencyBucket> for [u64; 3] {
    fn from(bucket: LatencyBucket) -> Self {
        [bucket.from.as_u64(), bucket.below.as_u64(), bucket.frames]
    }
}

/// The non-empty buckets, in ascending order. A time counts at the value to which the measured distribution rounds it.
pub(super) fn build_histogram(times: &Latency) -> Vec<LatencyBucket> {
    let mut buckets: Vec<LatencyBucket> = Vec::new();
    for (time, frames) in times.buckets() {
        let (from, below) = latency_bucket_bounds(time.as_u64());
        match buckets.last_mut() {
            // The measured buckets come in ascending order, so those of one coarse bucket follow each other.
            Some(last) if last.from == from => last.frames = last.frames.saturating_add(frames),
            _ => buckets.push(LatencyBucket { from, below, frames }),
        }
    }
    buckets
}

fn latency_bucket_bounds(ns: u64) -> (Nanos, Nanos) {
    let octave = ns.max(1).ilog2();
    // Each time below 16 ns has its own bucket: the shift is zero.
    let shift = octave.saturating_sub(STEPS_PER_OCTAVE_LOG2);
    let from = ns >> shift << shift;
    (Nanos::new(from), Nanos::new(from.saturating_add(1 << shift)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn histogram_merges_neighbours_but_not_small_times() {
        let mut times = Latency::with_digits(3);
        for ns in [3, 4, 1000, 1001, 1030] {
            times.record_time(Nanos::new(ns));
        }
        let found: Vec<[u64; 3]> = build_histogram(&times).into_iter().map(Into::into).collect();
        assert_eq!(found, [[3, 4, 1], [4, 5, 1], [960, 1024, 2], [1024, 1152, 1]]);
    }

    proptest! {
        #[test]
        fn histogram_keeps_frames_and_disjoint_buckets(ns in prop::collection::vec(0u64..100_000_000_000, 1..200)) {
            let mut times = Latency::with_digits(2);
            for ns in &ns {
                times.record_time(Nanos::new(*ns));
            }
            let buckets = build_histogram(&times);
            prop_assert_eq!(buckets.iter().map(|bucket| bucket.frames).sum::<u64>(), ns.len() as u64);
            prop_assert!(buckets.windows(2).all(|pair| pair[0].below <= pair[1].from));
        }
    }
}
