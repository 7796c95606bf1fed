//! Losses caused by bursts of the rig itself: a delayed sender sends more frames in a time than planned, and a device
//! that can carry the planned load may drop the excess.

use super::doubt::{OutageSpan, PortEventReport};
use super::figures::saturating_sum_of;
use super::lookup::{StreamReceiver, StreamSender};
use super::losses::{largest_clock_difference_or_assumed, longest_delay_or_assumed};
use super::streams::StreamFindings;
use packetrig_stats::outage::StreamOutage;
use packetrig_units::{Nanos, clamp_to_u64};

/// Time after a burst in which its backlog in the device may still cause losses: in this time, a policer with
/// two percent of headroom refills a bucket of five milliseconds.
const BACKLOG_DRAIN_TIME: Nanos = Nanos::from_millis(250);

/// A fault of the rig, with the largest number of losses that it explains, and the time span (counted from the start of
/// the run) in which these frames arrive or are missing at the receiver.
#[derive(Clone, Copy, Debug)]
struct LimitedLossExplanation {
    from: Nanos,
    until: Option<Nanos>,
    /// Number of lost frames that the fault may still explain.
    left: u64,
}

/// Faults of the rig that affect a stream at one receiver. Each fault explains a limited number of lost
/// frames, and each lost frame is explained once.
#[derive(Clone, Debug, Default)]
pub(super) struct LimitedLossExplanations(Vec<LimitedLossExplanation>);

impl LimitedLossExplanations {
    /// Returns how many of these lost frames the faults explain at most, and subtracts this number from what
    /// the faults can still explain.
    pub(super) fn consume_explained_losses(&mut self, span: &OutageSpan, frames: u64) -> u64 {
        let before = frames;
        let mut frames = frames;
        for doubt in &mut self.0 {
            if span.overlaps_times(doubt.from, doubt.until) {
                let explained = frames.min(doubt.left);
                doubt.left -= explained;
                frames -= explained;
            }
        }
        before - frames
    }

    /// Takes the events that state how many lost frames they explain at most; the other events are dropped.
    pub(super) fn from_events(events: &[PortEventReport]) -> Self {
        let counted = events.iter().filter_map(|event| {
            let left = event.what.max_lost_frames()?;
            Some(LimitedLossExplanation { from: event.from, until: event.until, left })
        });
        Self(counted.collect())
    }
}

impl StreamFindings<'_> {
    /// Largest number of lost frames of an outage that may have been too close together for a device that can
    /// carry the planned load. Such a device carries as many frames in a time as are planned, so it does not
    /// drop frames that left with their planned distance.
    pub(super) fn count_frames_too_close(
        self,
        index: usize,
        receiver: StreamReceiver<'_>,
        outage: &StreamOutage,
    ) -> u64 {
        let timeline = self.timelines.get(index).filter(|_| !self.is_recorded(index));
        let (Some(length), Some(timeline)) = (outage.end.zip(outage.begin), timeline) else {
            // Without both arrivals, or without due times, the distance of the frames is unknown.
            return outage.frames;
        };
        let (end, begin) = length;
        let planned = timeline
            .due_time(outage.last.saturating_add(1))
            .saturating_sub(timeline.due_time(outage.first.saturating_sub(1)));
        let saved = u128::from(planned.saturating_sub(end.since(begin)).as_u64());
        // The span reaches from the last frame that arrived before the outage to the first one after it.
        let intervals = u128::from(outage.last.saturating_sub(outage.first)) + 2;
        let planned = u128::from(planned.as_u64().max(1));
        // The unit is a tenth of an interval. One unit is allowed as jitter of the path, and a part of a frame
        // counts as a whole frame.
        let tenths = saved.saturating_mul(intervals * 10) / planned;
        // A delayed sender may have sent the due frames at once, also between frames with the planned distance.
        let stalled = u128::from(self.longest_stall_during(index, receiver, outage).as_u64());
        let due = stalled.saturating_mul(intervals).div_ceil(planned);
        let too_many = clamp_to_u64(tenths.saturating_sub(1).div_ceil(10).max(due));
        // The first frame of each gap counts too: the frames around it do not show how close it was
        // to the frame before.
        too_many.saturating_add(outage.gaps).min(outage.frames)
    }

    /// The bursts of the port that sends stream `index`, with the times at which they affect `receiver`.
    pub(super) fn list_bursts_sent_ahead(
        self,
        index: usize,
        receiver: StreamReceiver<'_>,
    ) -> LimitedLossExplanations {
        let Some(StreamSender { node: sender, .. }) = self.sender_of(index) else {
            return LimitedLossExplanations::default();
        };
        let apart = largest_clock_difference_or_assumed(sender, receiver.node);
        // A frame of the burst arrives later by the delay, and the backlog in the device outlasts the burst.
        let after = apart + longest_delay_or_assumed(receiver.row) + BACKLOG_DRAIN_TIME;
        let bursts = self.port_result(self.plan.streams[index].tx).map(|port| port.sent_ahead.as_slice());
        let bursts = bursts.unwrap_or_default().iter().map(|burst| LimitedLossExplanation {
            from: burst.from.since(sender.started).saturating_sub(apart),
            until: Some(burst.until.since(sender.started) + after),
            left: burst.frames,
        });
        LimitedLossExplanations(bursts.collect())
    }

    /// Number of frames that the port of stream `index` sent closer together than planned.
    pub(super) fn count_frames_sent_ahead(self, index: usize) -> u64 {
        let port = self.port_result(self.plan.streams[index].tx);
        port.map_or(0, |port| saturating_sum_of(port.sent_ahead.iter().map(|burst| burst.frames)))
    }
}
