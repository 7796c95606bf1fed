//! Counts of the lost and the extra frames of a stream.

use packetrig_plan::Stream;
use packetrig_stats::sequence::SequenceCounts;
use packetrig_units::{Ratio, clamp_to_u64};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FrameLoss {
    /// Number of copies that all receivers together should have counted.
    pub expected: u64,
    /// Expected copies that were not counted.
    pub lost: u64,
    /// Copies beyond the expected ones.
    pub extra: u64,
    /// `lost` in percent of `expected`, for display.
    pub percent: f64,
    /// Number of runs of consecutive lost frames; absent where receivers share a stream, because one receiver cannot
    /// see the frames of another.
    pub bursts: Option<u64>,
    /// Length of the longest run of lost frames.
    pub longest_burst: Option<u64>,
    /// Seconds of the schedule with at least one lost frame.
    pub seconds: Option<u64>,
    /// Upper bound of the part of `lost` that the rig or a link without carrier may have caused.
    #[serde(default)]
    pub in_doubt: u64,
    /// Upper bound of the part of `extra` that the sender may have sent without counting it.
    #[serde(default)]
    pub extra_in_doubt: u64,
    /// True if each receiver should get several copies of a frame. Then `expected` and `lost` count copies, and `extra`
    /// counts the copies beyond the expected ones.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub counts_copies: bool,
}

impl FrameLoss {
    /// The part of the expected frames that was lost.
    pub const fn ratio(&self) -> Ratio {
        Ratio::new(self.lost, self.expected)
    }

    /// Loss of a stream that sent this many frames, at all its receivers.
    pub(super) fn from_stream(stream: &Stream, sent: u64, sequence: &SequenceCounts) -> Self {
        let expected = count_expected_copies(stream, sent);
        let loss = Self::new(expected, sequence, is_every_frame_expected_everywhere(stream));
        // At most one copy is expected at each receiver.
        if stream.metrics.rx_per_tx_thousandths <= stream.rx.len() as u64 * 1000 {
            return loss;
        }
        // If there are more copies than receivers, each receiver should get several copies of a frame. A
        // frame that never arrived lacks all of its copies, however many extra copies other frames have.
        let arrived = sequence.unique.saturating_add(sequence.duplicates);
        let never_came = sent.saturating_mul(stream.rx.len() as u64).saturating_sub(sequence.unique);
        // With a fractional ratio some frames have fewer copies, so only the smaller number is certain.
        let copies = stream.metrics.rx_per_tx_thousandths / (stream.rx.len().max(1) as u64 * 1000);
        let lost = expected.saturating_sub(arrived).max(never_came.saturating_mul(copies).min(expected));
        let extra = arrived.saturating_add(lost).saturating_sub(expected);
        Self { lost, extra, percent: Ratio::new(lost, expected).percent(), counts_copies: true, ..loss }
    }

    pub(super) fn new(expected: u64, sequence: &SequenceCounts, whole_here: bool) -> Self {
        let lost = expected.saturating_sub(sequence.unique);
        Self {
            counts_copies: false,
            expected,
            lost,
            extra: sequence.unique.saturating_sub(expected),
            percent: Ratio::new(lost, expected).percent(),
            // If a receiver gets only a share of the frames, it sees a gap wherever a frame went to another
            // receiver.
            bursts: whole_here.then_some(sequence.loss_bursts),
            longest_burst: whole_here.then_some(sequence.longest_burst),
            seconds: whole_here.then_some(sequence.loss_seconds),
            in_doubt: 0,
            extra_in_doubt: 0,
        }
    }
}

/// True if each receiver should get every frame exactly once: the plan's ratio of received to sent frames
/// equals the number of receivers.
pub(super) fn is_every_frame_expected_everywhere(stream: &Stream) -> bool {
    stream.metrics.rx_per_tx_thousandths == stream.rx.len() as u64 * 1000
}

/// Copies that the receivers together should count, rounded down.
fn count_expected_copies(stream: &Stream, sent: u64) -> u64 {
    // The product needs 128 bits: a count of another machine may be near 2^64.
    clamp_to_u64(u128::from(sent) * u128::from(stream.metrics.rx_per_tx_thousandths) / 1000)
}
