//! Cumulative counts of one stream: cheap to copy ten times a second, so that live readers never disturb a worker.

use crate::sequence::SequenceCounts;
use packetrig_units::{MonoTime, Nanos, clamp_to_u64};
use serde::{Deserialize, Serialize};

/// Counts of a stream since its last start from the first frame. For a stream that is started once, these are all its counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SinceStart {
    pub frames: u64,
    /// Bytes of these frames, FCS included.
    pub bytes: u64,
    /// Time of the first of them.
    pub first: Option<MonoTime>,
    /// Time of the last of them.
    pub last: Option<MonoTime>,
}

/// Delays of frames in four numbers, for live readers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DelaySummary {
    /// Frames that were timed.
    pub count: u64,
    /// Nanoseconds of all of them.
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
        // The minimum of an empty summary is 0, which is no delay.
        if other.count > 0 {
            self.min = if self.count == 0 { other.min } else { self.min.min(other.min) };
            self.max = self.max.max(other.max);
            self.sum = self.sum.saturating_add(other.sum);
            self.count = self.count.saturating_add(other.count);
        }
    }

    /// Returns the mean; `None` if no frame was timed.
    pub fn mean(&self) -> Option<Nanos> {
        let mean = self.sum.checked_div(self.count.into())?;
        Some(Nanos::new(clamp_to_u64(mean)))
    }
}

/// Counts of a stream at its sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamTxCounts {
    /// Frames built and handed over so far.
    pub frames: u64,
    /// Bytes of these frames, FCS included.
    pub bytes: u64,
    /// Frames sent later than they were due, by more than the stated tolerance.
    pub late: u64,
    /// Frames of a stream with tags that left without one: they cannot be known again at the receiver.
    #[serde(default)]
    pub untagged: u64,
    pub first: Option<MonoTime>,
    pub last: Option<MonoTime>,
    /// Counts since the last start of the stream.
    #[serde(default)]
    pub since_start: SinceStart,
    /// True if more frames will be sent without another order.
    #[serde(default)]
    pub is_sending: bool,
    /// True if it was paused and has frames left.
    #[serde(default)]
    pub is_paused: bool,
    /// True if it was cut short because the node's lease ended.
    #[serde(default)]
    pub lease_ended: bool,
}

impl StreamTxCounts {
    /// Returns the number of frames that receivers can identify; numbers in tags go from 0 to this.
    pub const fn numbered_frames(&self) -> u64 {
        self.frames.saturating_sub(self.untagged)
    }
}

/// Counts of a stream at one receiver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamRxCounts {
    /// Frames recognised, copies included.
    pub frames: u64,
    /// Bytes of these frames, FCS included.
    pub bytes: u64,
    pub sequence: SequenceCounts,
    /// Frames with headers that differ from the sent ones, payload intact.
    pub altered: u64,
    /// Frames with a damaged payload, tag intact.
    pub corrupt: u64,
    /// Frames known by their headers only: the tag was damaged.
    pub unnumbered: u64,
    /// Frames stamped earlier than they were sent: the clocks disagree.
    pub negative: u64,
    /// The smallest of the negative delays, in nanoseconds; 0 if none was negative.
    #[serde(default)]
    pub least_delay_ns: i64,
    pub first: Option<MonoTime>,
    pub last: Option<MonoTime>,
    /// Counts since the last start of the stream.
    #[serde(default)]
    pub since_start: SinceStart,
    /// Missing frames between arrived frames, since the last start.
    #[serde(default)]
    pub missing: u64,
    /// Delays since the last start.
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
