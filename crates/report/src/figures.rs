//! Figures that a report derives from counts and distributions: rates, percentiles, and their errors.

use packetrig_plan::criteria::LatencyFigure;
use packetrig_stats::bounded::Bounded;
use packetrig_stats::latency::{BoundedLatency, Latency, StampErrors};
use packetrig_stats::port::StampKind;
use packetrig_units::{BitRate, FrameSize, MonoTime, Nanos, clamp_to_u64};
use serde::{Deserialize, Serialize};

/// A mean rate between the first and the last frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeanRate {
    /// Frames per second, in thousandths.
    pub frames_milli: u64,
    /// Layer 2: frames with FCS.
    pub l2: BitRate,
    /// Layer 1: with preamble and minimum gap.
    pub l1: BitRate,
}

impl MeanRate {
    /// Computes the mean rate of `frames` frames that have `bytes` bytes together (FCS included). The first frame is at
    /// the time `first`, the last at `last`. `n` frames span `n - 1` intervals; a single frame has no rate.
    pub fn from_counts(
        frames: u64,
        bytes: u64,
        first: Option<MonoTime>,
        last: Option<MonoTime>,
    ) -> Option<Self> {
        let span = u128::from(last?.since(first?).as_u64());
        // One frame has no interval, and two frames with equal stamps have an interval below the clock resolution.
        if frames < 2 || span == 0 {
            return None;
        }
        // The products below need 128 bits.
        let frames = u128::from(frames);
        let bits = u128::from(bytes) * 8;
        let overhead = frames * u128::from(FrameSize::LAYER1_OVERHEAD_BYTES) * 8;
        Some(Self {
            frames_milli: clamp_to_u64((frames - 1) * 1_000_000_000_000 / span),
            l2: BitRate::new(bits_per_second(bits, frames, span)),
            l1: BitRate::new(bits_per_second(bits + overhead, frames, span)),
        })
    }

    /// Frames per second as a float.
    pub fn frames_per_second(self) -> f64 {
        self.frames_milli as f64 / 1000.0
    }
}

/// Rate in bits per second of `frames` frames; `span` is the time from the first to the last of them, in nanoseconds.
fn bits_per_second(bits: u128, frames: u128, span: u128) -> u64 {
    // `frames` frames occupy `frames` intervals on the link, but `span` covers only `frames - 1` of them.
    let exact = ((frames - 1) * 1_000_000_000).checked_mul(bits);
    // After more than 10^12 frames one interval more or less changes nothing.
    let rate = exact.map_or_else(|| bits * 1_000_000_000 / span, |exact| exact / (frames * span));
    clamp_to_u64(rate)
}

/// Saturating sum: counts of other machines may be near `u64::MAX`.
pub(super) fn saturating_sum_of(counts: impl IntoIterator<Item = u64>) -> u64 {
    counts.into_iter().fold(0, u64::saturating_add)
}

/// Summary of a distribution of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorDistribution {
    /// Median: half of the samples are at or below this value.
    pub p50: Nanos,
    /// 99th percentile: 99 % of the samples are at or below this value.
    pub p99: Nanos,
    pub max: Nanos,
}

impl ErrorDistribution {
    /// Summarises a distribution; `None` if it is empty.
    pub fn from_distribution(times: &Latency) -> Option<Self> {
        Some(Self { p50: times.quantile(500_000)?, p99: times.quantile(990_000)?, max: times.max()? })
    }
}

/// One-way latency of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyReport {
    /// Frames measured: first copies with a send time.
    pub count: u64,
    pub min: Nanos,
    pub mean: Nanos,
    pub max: Nanos,
    pub p50: Nanos,
    pub p90: Nanos,
    pub p99: Nanos,
    pub p999: Nanos,
    pub p9999: Nanos,
    /// Largest time by which a frame seems to have arrived before it was sent, according to the compared
    /// clocks; zero if none did. Such a frame counts with a latency of zero. If this time is larger than the
    /// stated clock error, that clock error is wrong.
    #[serde(default)]
    pub early: Nanos,
    /// Summary of the errors of these figures.
    pub error: LatencyError,
    /// Lower and upper bound of each figure; absent in reports of older versions.
    #[serde(default)]
    pub bounds: Option<LatencyBounds>,
}

/// Lower and upper bounds of each latency figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyBounds {
    pub min: Bounded<Nanos>,
    pub mean: Bounded<Nanos>,
    pub max: Bounded<Nanos>,
    pub p50: Bounded<Nanos>,
    pub p90: Bounded<Nanos>,
    pub p99: Bounded<Nanos>,
    pub p999: Bounded<Nanos>,
    pub p9999: Bounded<Nanos>,
}

impl LatencyBounds {
    fn from_distribution(times: &BoundedLatency<'_>) -> Option<Self> {
        Some(Self {
            min: times.min()?,
            mean: times.mean()?,
            max: times.max()?,
            p50: times.quantile(500_000)?,
            p90: times.quantile(900_000)?,
            p99: times.quantile(990_000)?,
            p999: times.quantile(999_000)?,
            p9999: times.quantile(999_900)?,
        })
    }

    pub const fn bounds_of_figure(&self, figure: LatencyFigure) -> Bounded<Nanos> {
        match figure {
            LatencyFigure::P50 => self.p50,
            LatencyFigure::P90 => self.p90,
            LatencyFigure::P99 => self.p99,
            LatencyFigure::P999 => self.p999,
            LatencyFigure::P9999 => self.p9999,
            LatencyFigure::Mean => self.mean,
            LatencyFigure::Max => self.max,
        }
    }
}

/// Sources and sizes of the error of a latency. The stamps make latency look longer than it is on the wire; two clocks
/// make it look longer or shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyError {
    /// Source of departure stamps; absent if the sending port did not report.
    pub tx_stamp: Option<StampKind>,
    /// Source of arrival stamps; the worst over the receiving ports.
    pub rx_stamp: Option<StampKind>,
    /// Time from the stamp in the tag until the kernel had taken the frame, for 99 % of the frames.
    pub tx_p99: Option<Nanos>,
    /// Longest time from the stamp in the tag until the kernel had taken the frame.
    pub tx_max: Option<Nanos>,
    /// Error of the conversion of arrival stamps to the monotonic clock.
    pub rx_conversion: Option<Nanos>,
    /// Error of the comparison of the clocks of two nodes; absent if sender and receivers read one clock.
    #[serde(default)]
    pub clock: Option<Nanos>,
}

impl LatencyError {
    /// Error bound for 99 % of the frames; absent when a part of it is unknown.
    pub fn p99(&self) -> Option<Nanos> {
        // Without a comparison of clocks, both ends read one clock, which adds no error.
        Some(self.tx_p99? + self.rx_conversion? + self.clock.unwrap_or(Nanos::ZERO))
    }
}

impl LatencyReport {
    /// Summarises a distribution; `None` if it is empty.
    pub fn from_distribution(
        times: &Latency,
        early: Nanos,
        error: LatencyError,
        stamps: StampErrors<'_>,
    ) -> Option<Self> {
        let bounds = LatencyBounds::from_distribution(&BoundedLatency::new(times, stamps))?;
        Some(Self {
            count: times.count(),
            min: bounds.min.value,
            mean: bounds.mean.value,
            max: bounds.max.value,
            p50: bounds.p50.value,
            p90: bounds.p90.value,
            p99: bounds.p99.value,
            p999: bounds.p999.value,
            p9999: bounds.p9999.value,
            early,
            error,
            bounds: Some(bounds),
        })
    }
}
