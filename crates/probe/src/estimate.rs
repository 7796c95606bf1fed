//! Estimates from trains of probes: the rate of a path's narrowest link (capacity), and how much of it is free (available rate).
//!
//! The caller asks a [`RateEstimator`] for the next train, reports its outcome, and finally asks for the
//! answer. An estimator neither sends nor waits, so it also works with a simulated path. Estimating the
//! capacity from differences of minimum round-trip times is left out, because patents cover it.
//!
//! Invariants: distances at the far end are compared with the *measured* distances at departure, never with
//! planned ones. A method that does not converge returns a typed [`NoEstimateReason`], not a number. Rates
//! are those of frames (from the Ethernet header on, without FCS), as queueing disciplines count them;
//! [`RateEstimate::packets_per_frame`] converts them to rates of packets.

mod agreement;
mod chirp;
#[cfg(test)]
mod coverage;
mod gaps;
mod modes;
mod pair;
mod pathload;
mod settle;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
mod spruce;
mod train;

pub use chirp::ChirpEstimator;
pub use modes::{SampleCluster, find_sample_modes};
pub use pair::{PairEstimator, PairSelection};
pub use pathload::{FleetShape, PathloadEstimator};
pub use settle::{SettledTrains, TrainShape};
pub use spruce::SpruceEstimator;
pub use train::TrainEstimator;

use crate::{DepartureStamp, PlannedProbe, ProbeKind, ProbeRecord};
use packetrig_units::Nanos;
use serde::Serialize;

/// Bytes of the Ethernet header.
const ETHERNET: u32 = 14;

/// A train that a method requests: departure times count from the train's own start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrainRequest {
    pub probes: Vec<PlannedProbe>,
    /// Minimum time without probes before the train.
    pub pause: Nanos,
}

/// Measured times of one probe of a train. The clocks of the two ends may have an offset, but each must run steadily.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainProbeTimes {
    pub kind: ProbeKind,
    /// Bytes of its frame, without FCS.
    pub length: u32,
    /// Departure time in nanoseconds; `None` if it is unknown.
    pub left: Option<u64>,
    /// Arrival time of the probe or of its answer; `None` if it did not arrive.
    pub came: Option<u64>,
    /// Sum of the error bounds of both times, in nanoseconds. The error of a far clock is left out: it cancels
    /// in distances between probes.
    pub doubt: u64,
    /// True if the probe did not leave, or if its sender lost the processor and no stamp of the kernel shows
    /// when the probe left.
    pub disturbed: bool,
}

impl TrainProbeTimes {
    /// Uses the arrival at the far end: measures only the way there. `far_ahead`, the approximate offset of the far
    /// clock, is subtracted from arrival times, so that the delays are small enough for floats to distinguish them.
    pub fn from_one_way(record: &ProbeRecord, far_ahead: u64) -> Self {
        let passed = Self::from_record(record, record.far_arrival);
        Self { came: passed.came.map(|came| came.saturating_sub(far_ahead)), ..passed }
    }

    /// Uses the arrival of the answer here: measures the way there and back.
    pub fn from_round_trip(record: &ProbeRecord) -> Self {
        Self::from_record(record, record.answered)
    }

    fn from_record(record: &ProbeRecord, came: Option<crate::ProbeStamp>) -> Self {
        use crate::ProbeFlag::{Dropped, Stolen, Unsent};
        // The driver's stamp is taken after all queues of the sender. A card's stamp is later, but it
        // comes from another clock.
        let stamped = DepartureStamp::last_local_departure(&record.departures);
        let left = record.local_departure();
        // If the sending thread lost its processor, the kernel's stamp shows when the frame really left. The mechanism
        // may have read the clock before the interruption.
        let disturbed = record.flags.iter().any(|flag| match flag {
            Dropped | Unsent => true,
            Stolen => stamped.is_none(),
            _ => false,
        });
        // An error of the far clock is the same for all probes of a train, so it cancels in distances.
        let near = came.filter(|came| came.clock != crate::StampClock::Far);
        let doubt = left.map_or(0, crate::ProbeStamp::bound) + near.map_or(0, crate::ProbeStamp::bound);
        Self {
            kind: record.kind,
            length: record.length,
            left: left.map(crate::ProbeStamp::middle),
            // The middle of a stamp is off by its bound at most, and the bounds are in `doubt`.
            came: came.map(crate::ProbeStamp::middle),
            doubt,
            disturbed,
        }
    }
}

/// A method that estimates the capacity or the available rate of a path.
pub trait RateEstimator: Send {
    fn name(&self) -> &'static str;

    /// Returns the next train to send; `None` if the method needs no more trains.
    fn next_train(&mut self) -> Option<TrainRequest>;

    /// Adds the outcome of the train that was requested last: all of its probes, in order.
    fn add_train(&mut self, train: &[TrainProbeTimes]);

    /// Returns the estimate from all trains so far, or the reason why there is none.
    fn estimate_rate(&self) -> Result<RateEstimate, NoEstimateReason>;
}

/// A rate with its range.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RateEstimate {
    pub method: &'static str,
    /// The most likely rate: bits of frames per second.
    pub bits_per_s: f64,
    /// Lower bound of the rate, as far as the method can tell.
    pub low: f64,
    /// Upper bound of the rate, as far as the method can tell.
    pub high: f64,
    /// Bytes of IP packet per byte of frame, for the frames that the method sent.
    pub packets_per_frame: f64,
    pub quality: EstimateQuality,
}

impl RateEstimate {
    /// The rate in bits of IP packets per second, without Ethernet headers.
    pub fn packet_bits_per_s(&self) -> f64 {
        self.bits_per_s * self.packets_per_frame
    }
}

/// Figures that show how reliable an estimate is.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct EstimateQuality {
    /// Trains that were sent.
    pub trains: usize,
    /// Number of trains from which the estimate was computed.
    pub used: usize,
    /// Methods for the capacity: share of the used trains that agree with the answer. Methods for the available
    /// rate: share of the sent trains that were used.
    pub share: f64,
    /// Spread of the used trains (10th to 90th percentile), relative to the answer. pathload: width of the range,
    /// relative to the answer. spruce: spread relative to the capacity.
    pub spread: f64,
    /// Uncertainty of the stamps, relative to the measured times; zero if the method does not compute it.
    pub stamps: f64,
    /// Probes before each pair or train, to empty token buckets.
    pub primers: u32,
    pub discarded: DiscardedTrains,
    /// Other rates on which many pairs agree.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub modes: Vec<SampleCluster>,
}

/// Number of trains that were not used, for each reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DiscardedTrains {
    /// Trains with a lost probe.
    pub lost: usize,
    /// Trains with a probe whose departure time is unknown.
    pub unstamped: usize,
    /// Trains whose sender was disturbed.
    pub disturbed: usize,
    /// Trains whose probes overtook each other.
    pub reordered: usize,
    /// Trains whose probes did not leave close enough together, or not at the requested rate.
    pub unlike: usize,
    /// Trains whose probes arrived so close together that the clocks cannot tell them apart, because of a
    /// token bucket or a batching receiver.
    pub together: usize,
}

/// Reason why the method has no estimate.
#[derive(Clone, Debug, PartialEq, thiserror::Error, Serialize)]
#[serde(rename_all = "snake_case", tag = "reason")]
pub enum NoEstimateReason {
    #[error(
        "only {have} of {trains} trains can be used, {wanted} are needed ({}){}",
        .discarded.to_text(), .discarded.batch_advice()
    )]
    TooFew { have: usize, wanted: usize, trains: usize, discarded: DiscardedTrains },
    /// The path does not spread the probes: it is faster than the sender, or a token bucket holds much of a train.
    #[error(
        "the path did not spread {train} probes that left {gap_ns} ns apart: {}",
        describe_unspread_path(*.at_least, *.bucket_bytes)
    )]
    NotSpread {
        train: u32,
        gap_ns: u64,
        /// Minimum rate of the path, unless a token bucket holds more than `bucket_bytes`. Absent if the arrivals
        /// show no such minimum.
        at_least: Option<f64>,
        bucket_bytes: u64,
    },
    /// A token bucket hides the queue from this method.
    #[error(
        "a token bucket lets about {frames} probes pass at once, so this method cannot see the queue behind it; \
            use --method pathload or spruce, which empty the bucket first"
    )]
    Bucket { frames: u32 },
    /// The rates of the pairs are spread too widely, or too many pairs show no rate.
    #[error(
        "too few pairs agree on one rate: the largest group has {:.0} % of {pairs} pairs; try --method train, which needs no pairs",
        .share * 100.0
    )]
    NoMode { pairs: usize, share: f64 },
    /// The method would need more trains, or other traffic is too heavy.
    #[error("the estimate did not converge after {trains} trains: {what}")]
    NotConverged { trains: usize, what: String },
    #[error("stopped: {:.0} % of the probes were lost; use shorter trains (--longest)", .share * 100.0)]
    Loss { share: f64 },
}

/// Describes the possible reasons why a path does not spread probes.
fn describe_unspread_path(at_least: Option<f64>, bucket_bytes: u64) -> String {
    let bucket = format!("a token bucket holds more than {bucket_bytes} bytes");
    at_least.map_or_else(
        || format!("the probes arrived in batches, so the path may be faster than they show, or {bucket}"),
        |rate| format!("the path carries at least {:.3} Mbit/s, or {bucket}", rate / 1e6),
    )
}

impl DiscardedTrains {
    /// Names the likely cause if most of the discarded trains had probes that arrived together; otherwise empty.
    const fn batch_advice(&self) -> &'static str {
        let others = self.lost + self.unstamped + self.disturbed + self.reordered + self.unlike;
        if self.together <= others {
            return "";
        }
        "; something on the path releases frames in batches, for example a software shaper (`tap --impair \
        rate=`) or a receiver with interrupt coalescing; `capacity --method train` measures across batches"
    }

    pub fn to_text(self) -> String {
        let all = [
            ("lost", self.lost),
            ("without departure stamp", self.unstamped),
            ("sender disturbed", self.disturbed),
            ("reordered", self.reordered),
            ("not sent as requested", self.unlike),
            ("arrived together", self.together),
        ];
        let words: Vec<_> =
            all.iter().filter(|(_, n)| *n > 0).map(|(word, n)| format!("{n} {word}")).collect();
        if words.is_empty() { "none discarded".into() } else { words.join(", ") }
    }
}

/// Bytes of IP packet per byte of frame, for frames of this length.
fn packets_per_frame(length: u32) -> f64 {
    f64::from(length.saturating_sub(ETHERNET)) / f64::from(length.max(1))
}

/// Converts nanoseconds. A negative value becomes zero, and a value that is too large becomes the longest time.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "cut off at both ends")]
fn clamp_to_nanos(ns: f64) -> Nanos {
    Nanos::new(ns.max(0.0) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_named_as_cause_of_too_few_pairs() {
        let reason = |together, lost| {
            let discarded = DiscardedTrains { lost, together, ..DiscardedTrains::default() };
            NoEstimateReason::TooFew { have: 6, wanted: 10, trains: 105, discarded }.to_string()
        };
        assert!(reason(94, 5).contains("capacity --method train"), "{}", reason(94, 5));
        assert!(!reason(5, 94).contains("batches"), "{}", reason(5, 94));
    }
}
