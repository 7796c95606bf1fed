//! Cumulative counts of one stream. They are cheap to copy, so that a worker can publish them ten times a
//! second without being delayed.

use crate::sequence::SequenceCounts;
use packetrig_units::{MonoTime, Nanos, clamp_to_u64};
use serde::{Deserialize, Serialize};

/// Counts of a stream since it was last started from its first frame. For a stream that is started only once,
/// these are all its counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SinceStart {
    pub frames: u64,
    /// Bytes of these frames, FCS included.
    pub bytes: u64,
    /// Time of the first of these frames.
    pub first: Option<MonoTime>,
    /// Time of the last of these frames.
    pub last: Option<MonoTime>,
}

/// A summary of the delays of frames, for live displays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DelaySummary {
    /// Number of frames with a measured delay.
    pub count: u64,
    /// Sum of all delays, in nanoseconds.
    pub sum: u128,
    pub min: Nanos,
    pub max: Nanos,
}

impl DelaySummary {
    pub fn record_delay(&mut self, delay: Nanos) {
        self.min = if self.count == 0 { delay } else { self.min.min(delay) };
        self.max = self.max.max(delay);
        self.sum += u128::from(delay.as_u64());
        self.count += 1;
    }

    /// Adds the delays of `other` to this summary.
    pub fn merge(&mut self, other: &Self) {
        // An empty summary has the minimum 0, which is not a measured delay.
        if other.count > 0 {
            self.min = if self.count == 0 { other.min } else { self.min.min(other.min) };
            self.max = self.max.max(other.max);
            self.sum = self.sum.saturating_add(other.sum);
            self.count = self.count.saturating_add(other.count);
        }
    }

    /// Returns the mean delay; `None` without any delay.
    pub fn mean(&self) -> Option<Nanos> {
        let mean = self.sum.checked_div(self.count.into())?;
        Some(Nanos::new(clamp_to_u64(mean)))
    }
}

/// Counts of a stream at its sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamTxCounts {
    /// Frames that were built and handed over to the kernel so far.
    pub frames: u64,
    /// Bytes of these frames, FCS included.
    pub bytes: u64,
    /// Frames that were sent later than planned, by more than the tolerance.
    pub late: u64,
    /// Frames of a stream with tags that were sent without a tag: the receiver cannot identify them.
    #[serde(default)]
    pub untagged: u64,
    pub first: Option<MonoTime>,
    pub last: Option<MonoTime>,
    /// Counts since the last start of the stream.
    #[serde(default)]
    pub since_start: SinceStart,
    /// True if the stream continues to send without another order.
    #[serde(default)]
    pub is_sending: bool,
    /// True if the stream is paused and has frames left to send.
    #[serde(default)]
    pub is_paused: bool,
    /// True if the stream ended early because the node's lease ended.
    #[serde(default)]
    pub lease_ended: bool,
}

impl StreamTxCounts {
    /// Returns the number of frames with a sequence number in their tag: the numbers start at 0 and
    /// end below this value.
    pub const fn numbered_frames(&self) -> u64 {
        self.frames.saturating_sub(self.untagged)
    }
}

/// Counts of a stream at one receiver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamRxCounts {
    /// Recognised frames, including copies.
    pub frames: u64,
    /// Bytes of these frames, FCS included.
    pub bytes: u64,
    pub sequence: SequenceCounts,
    /// Frames with changed headers and an intact payload.
    pub altered: u64,
    /// Frames with a damaged payload and an intact tag.
    pub corrupt: u64,
    /// Frames that were recognised only by their headers, because the tag was damaged.
    pub unnumbered: u64,
    /// Frames with an arrival time before their send time: the clocks disagree.
    pub negative: u64,
    /// The smallest negative delay, in nanoseconds; 0 if no delay was negative.
    #[serde(default)]
    pub least_delay_ns: i64,
    pub first: Option<MonoTime>,
    pub last: Option<MonoTime>,
    /// Counts since the last start of the stream.
    #[serde(default)]
    pub since_start: SinceStart,
    /// Frames that are missing between arrived frames, since the last start.
    #[serde(default)]
    pub missing: u64,
    /// Delays of the frames since the last start.
    #[serde(default)]
    pub delays: DelaySummary,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_put_together_are_those_of_all() {
        let (mut one, mut other, mut all) =
            (DelaySummary::default(), DelaySummary::default(), DelaySummary::default());
        assert_eq!(one.mean(), None);
        one.record_delay(Nanos::new(30));
        other.record_delay(Nanos::new(10));
        other.record_delay(Nanos::new(50));
        for ns in [30, 10, 50] {
            all.record_delay(Nanos::new(ns));
        }
        one.merge(&other);
        one.merge(&DelaySummary::default());
        assert_eq!(one, all);
        assert_eq!((one.min, one.mean(), one.max), (Nanos::new(10), Some(Nanos::new(30)), Nanos::new(50)));
    }
}
