//! The received share of the load that the plan requests from several senders.

use super::StreamReport;
use packetrig_plan::Plan;
use packetrig_plan::timeline::StreamTimeline;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The factor k: frames received per second divided by the requested frames per second, each stream at its mean rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadFactor {
    pub senders: usize,
    /// Copies per second that should have arrived, in thousandths.
    pub asked_milli: u64,
    /// Frames per second that arrived, in thousandths.
    pub received_milli: u64,
    /// `received_milli` divided by `asked_milli`, for display.
    pub k: f64,
}

impl LoadFactor {
    /// Computes the factor; `None` unless several ports sent streams with known rates on both sides.
    pub(super) fn from_streams(
        plan: &Plan,
        streams: &[StreamReport],
        timelines: &[StreamTimeline],
    ) -> Option<Self> {
        let mut measured: Vec<_> = plan.streams.iter().zip(streams).zip(timelines).collect();
        // A stream that is sent as fast as possible requests no rate.
        measured.retain(|((stream, report), _)| {
            report.measured && !stream.rx.is_empty() && !stream.frames.is_unpaced()
        });
        let senders = measured.iter().map(|((stream, _), _)| stream.tx).collect::<BTreeSet<_>>().len();
        // The factor describes several senders that share the device. For a single sender, the rate of the
        // stream says the same.
        if senders < 2 {
            return None;
        }
        let mut asked_milli = 0_u64;
        let mut received_milli = 0_u64;
        for ((stream, report), timeline) in measured {
            // If one rate is unknown, the factor is unknown: a sum without this rate would look like a loss.
            let scheduled = scheduled_rate_milli(report.sent.as_ref()?.planned, timeline)?;
            let asked = stream.expected_copies(scheduled);
            asked_milli = asked_milli.saturating_add(asked);
            let received = report.received.as_ref()?;
            // A single frame, or none, has no rate; it adds nothing to the load.
            let carried = received.rate.map_or(0, |rate| rate.frames_milli);
            received_milli = received_milli.saturating_add(carried);
        }
        let k = received_milli as f64 / asked_milli.max(1) as f64;
        Some(Self { senders, asked_milli, received_milli, k })
    }
}

/// Frames per second, in thousandths, of a schedule with this many frames, bursts and pauses included.
pub(super) fn scheduled_rate_milli(planned: u64, timeline: &StreamTimeline) -> Option<u64> {
    let last = planned.checked_sub(1).filter(|last| *last > 0)?;
    let span = u128::from(timeline.due_time(last).saturating_sub(timeline.due_time(0)).as_u64());
    // `last` intervals take `span` ns: 10^9 ns make a second, and 1000 makes thousandths.
    let milli = (u128::from(last) * 1_000_000_000_000).checked_div(span)?;
    u64::try_from(milli).ok()
}
