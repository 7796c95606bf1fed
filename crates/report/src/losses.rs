//! Times of losses, losses in doubt, and frames at wrong ports.

use super::clocks::largest_clock_error;
use super::doubt::{OutageSpan, PortEventReport};
use super::figures::saturating_sum_of;
use super::lookup::{StreamReceiver, StreamSender};
use super::out_of_order::FaultyPortLosses;
use super::streams::{StreamFindings, StreamReport};
use packetrig_stats::caveat::{Caveat, CaveatKind};
use packetrig_stats::content::ContentCounts;
use packetrig_stats::latency::Latency;
use packetrig_stats::result::{MisdeliveredFrames, NodeResult, ReceiveResult};
use packetrig_units::Nanos;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Assumed difference of the clocks of two nodes if their comparison is unknown.
const ASSUMED_CLOCK_DIFFERENCE: Nanos = Nanos::from_millis(100);
/// Assumed longest delay of a stream's frames if the latency was not measured.
const ASSUMED_LONGEST_DELAY: Nanos = Nanos::from_millis(100);

/// Frames of a stream at ports where the plan does not expect them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MisdeliveryReport {
    /// Number of all such frames, copies included.
    pub frames: u64,
    /// Number of these frames with a group address (multicast or broadcast), which every switch may send
    /// to all its ports.
    pub to_groups: u64,
    /// Frames that came back to the port that sent them.
    pub reflected: u64,
    /// Lower bound of the number of distinct frames that arrived at a wrong port and not at the right one.
    pub instead: u64,
    /// Distinct frames that arrived at a wrong port, and also at the right one.
    pub flooded: u64,
    /// Names of the ports.
    pub ports: Vec<String>,
}

impl fmt::Display for MisdeliveryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { frames, instead, flooded, reflected, to_groups, .. } = self;
        let ports = self.ports.join(", ");
        write!(
            f,
            "frames at ports where none is expected ({ports}): {frames}; {instead} misdelivered, \
             {flooded} flooded, {reflected} reflected"
        )?;
        if *to_groups > 0 {
            write!(f, ", {to_groups} to group addresses")?;
        }
        let is_flood = *flooded > 0 && *instead == 0 && *reflected == 0;
        if is_flood {
            f.write_str(" (a switch floods frames to unknown addresses; see --max-misdelivered)")
        } else {
            Ok(())
        }
    }
}

/// Frames of a stream without a tag, compared by their content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentReport {
    /// Frames that left without a tag and have a comparable content.
    pub compared: u64,
    /// Number of compared frames whose content arrived.
    pub arrived: u64,
    /// Number of compared frames whose content did not arrive.
    pub lost: u64,
    /// Number of frames that were not compared, because there were too many different contents.
    pub not_compared: u64,
    /// Upper bound of the part of `lost` that the rig or a link without carrier may have caused.
    #[serde(default)]
    pub in_doubt: u64,
}

impl ContentReport {
    /// Compares sent contents with `arrived`, the arrivals at the port that expects the stream, and removes
    /// matching contents from `arrived`.
    pub(super) fn match_contents(sent: &ContentCounts, arrived: &mut ContentCounts) -> Self {
        let all = saturating_sum_of(sent.frames.values().copied());
        let matched = arrived.remove_matching_frames(sent);
        // If contents did not fit into the receiver's table, they may be the ones that seem to be missing.
        let compared = if arrived.uncounted == 0 { all } else { matched };
        let not_compared = sent.uncounted.saturating_add(all - compared);
        Self { compared, arrived: matched, lost: compared - matched, not_compared, in_doubt: 0 }
    }
}

impl StreamFindings<'_> {
    /// True if frames may have been in flight when the receiver stopped: a delay was longer than half of the time for
    /// which it listened after the sending, or frames arrived in the last tenth of this time.
    pub(super) fn may_have_missed_late_frames(self, index: usize, receiver: StreamReceiver<'_>) -> bool {
        let StreamReceiver { node, row: received } = receiver;
        let Some(StreamSender { node: sender, .. }) = self.sender_of(index) else { return false };
        let listened =
            node.ended.since(node.started).saturating_sub(sender.senders_done.since(sender.started));
        let delay = received.latency.as_ref().and_then(Latency::max).unwrap_or(Nanos::ZERO);
        let quiet = received.counts.last.map_or(listened, |last| node.ended.since(last));
        // The factor of two allows for a delay that grows at the end of the run. A tenth of the listening
        // time without arrivals shows that arrivals had ended.
        delay + delay > listened || quiet < Nanos::new(listened.as_u64() / 10)
    }

    /// Caveats for streams that may have had frames in flight when their receivers stopped.
    pub(super) fn list_drain_caveats(self) -> Vec<Caveat> {
        let mut caveats = Vec::new();
        for index in 0..self.plan.streams.len() {
            for receiver in self.receivers_of(index) {
                caveats.extend(self.find_drain_caveat(index, receiver));
            }
        }
        caveats
    }

    fn find_drain_caveat(self, index: usize, receiver: StreamReceiver<'_>) -> Option<Caveat> {
        let received = receiver.row;
        // Only losses at the end of a stream can be frames that arrived after the receiver stopped.
        let last = received.outages.outages.last().filter(|outage| outage.end.is_none())?;
        if !self.may_have_missed_late_frames(index, receiver) {
            return None;
        }
        let delay = received.latency.as_ref().and_then(Latency::max);
        let delay = delay.map_or_else(String::new, |delay| format!(": frames took up to {delay}"));
        Some(Caveat {
            doubt: CaveatKind::StoppedListening,
            subject: self.plan.streams[index].name.clone(),
            text: format!(
                "the last {} frames may have been in flight when the receivers stopped{delay}; use a longer `--drain`",
                last.frames
            ),
            matters: true,
        })
    }

    /// Returns the events at the sending and the receiving port of a stream that cast doubt on its losses. Their times
    /// are the times at which frames that they affect may arrive.
    pub(super) fn list_doubtful_events_at(
        self,
        index: usize,
        receiver: StreamReceiver<'_>,
    ) -> Vec<PortEventReport> {
        let mut events = self.doubtful_port_events(receiver.node, receiver.row.port);
        // Events that affect only sent frames are left out for a receiving port.
        events.retain(|event| !event.only_sending);
        events.extend(self.doubtful_sender_events(index, receiver));
        events
    }

    /// Returns the events at the sending port of stream `index` that cast doubt on its losses. Their times are the
    /// times at which frames that they affect may arrive at `receiver`.
    fn doubtful_sender_events(self, index: usize, receiver: StreamReceiver<'_>) -> Vec<PortEventReport> {
        let Some(StreamSender { node: sender, .. }) = self.sender_of(index) else { return Vec::new() };
        let apart = largest_clock_difference_or_assumed(sender, receiver.node);
        let events = self.doubtful_port_events(sender, self.plan.streams[index].tx).into_iter();
        // The window reaches from departures to arrivals: earlier by at most the error of the clocks, later
        // by at most that error plus the delay of the path.
        events.map(|event| event.extend_by(apart, apart + longest_delay_or_assumed(receiver.row))).collect()
    }

    fn doubtful_port_events(self, node: &NodeResult, port: usize) -> Vec<PortEventReport> {
        let results = node.ports.iter().filter(|result| result.port == port);
        let events = results.flat_map(|result| &result.events);
        let events =
            events.map(|event| PortEventReport::from_event(event, node.started, self.criteria.carrier_loss));
        events.filter(|event| event.makes_frames_doubtful(self.criteria.max_late)).collect()
    }

    /// Compares frames without a tag by their content, stream by stream.
    pub(super) fn compare_contents(self, streams: &mut [StreamReport]) {
        let all = self.results.iter().flat_map(|node| &node.ports);
        let mut arrived: BTreeMap<usize, ContentCounts> =
            all.map(|port| (port.port, port.untagged_contents.clone())).collect();
        for (index, stream) in streams.iter_mut().enumerate() {
            let Some(StreamSender { row: sent, .. }) =
                self.sender_of(index).filter(|sender| sender.row.counts.untagged > 0)
            else {
                continue;
            };
            // A receiver that shares a stream with other receivers cannot tell which frames are missing.
            if let [port] = self.plan.streams[index].rx.as_slice()
                && let Some(arrived) = arrived.get_mut(port)
            {
                let contents = ContentReport::match_contents(&sent.untagged_contents, arrived);
                // Untagged frames have no numbers, so the times of their losses are unknown.
                let is_doubtful = self.has_doubtful_events(index, &self.receivers_of(index));
                let in_doubt = if is_doubtful {
                    contents.lost
                } else {
                    contents.lost.min(self.count_frames_sent_ahead(index))
                };
                stream.contents = Some(ContentReport { in_doubt, ..contents });
            }
        }
    }

    /// Number of the first frame of stream `index` that need not have arrived before `time` (counted from the start
    /// of the run) within an outage. It allows for the largest lateness of the sender and the longest delay of the
    /// path; 0 if the frames have no due times, or if the sender did not report.
    pub(super) fn expected_number_before(
        self,
        index: usize,
        received: &ReceiveResult,
        outage: &OutageSpan,
        time: Nanos,
    ) -> u64 {
        let Some(timeline) = self.timelines.get(index) else { return 0 };
        let Some(sender) = self.sender_of(index).filter(|_| !self.is_recorded(index)) else { return 0 };
        // No frame left later than this after its due time, so a frame that was due early enough must have
        // been on its way.
        let late = sender.row.send_error.max().unwrap_or(Nanos::ZERO);
        let delay = longest_delay_or_assumed(received);
        // Without an arrival after the outage, the delay may have grown: the check allows a factor of two, as
        // for receivers that stopped.
        let grown = if outage.end.is_none() { delay } else { Nanos::ZERO };
        let by_delay = timeline.frames_due_before(time.saturating_sub(late + delay + grown));
        // Between the last arrival before the outage and `time`, no more frames can arrive than the plan sends in a
        // time of that length.
        let last = outage.first.checked_sub(1).map(|last| timeline.due_time(last));
        let by_last = last.map(|last| timeline.frames_due_before(last + time.saturating_sub(outage.begin)));
        by_last.map_or(by_delay, |by_last| by_last.min(by_delay))
    }

    /// Maximum losses of all streams while their ports had a fault, by port.
    pub(super) fn count_losses_of_faulty_ports(self) -> FaultyPortLosses {
        let mut losses = FaultyPortLosses::with_ports(self.plan.ports.len());
        for (index, stream) in self.plan.streams.iter().enumerate() {
            for receiver in self.receivers_of(index) {
                let of_both =
                    self.count_losses_during(index, receiver, &self.list_doubtful_events_at(index, receiver));
                let of_sender =
                    self.count_losses_during(index, receiver, &self.doubtful_sender_events(index, receiver));
                losses.add_losses(stream.tx, receiver.row.port, of_both, of_sender);
            }
        }
        losses
    }

    /// Maximum losses of stream `index` at a receiver that these events may have caused.
    fn count_losses_during(
        self,
        index: usize,
        receiver: StreamReceiver<'_>,
        events: &[PortEventReport],
    ) -> u64 {
        let row = receiver.row;
        let spans = row.outages.outages.iter().map(|outage| OutageSpan::from_outage(outage, receiver));
        saturating_sum_of(spans.map(|span| {
            span.frames_in_doubt(events, &|time| self.expected_number_before(index, row, &span, time))
        }))
    }

    /// True if an event of a port of this stream casts doubt on its losses.
    pub(super) fn has_doubtful_events(self, index: usize, rows: &[StreamReceiver<'_>]) -> bool {
        rows.iter().any(|receiver| !self.list_doubtful_events_at(index, *receiver).is_empty())
    }

    /// Counts the frames of stream `index` at ports that do not expect them; `None` if there are no such frames.
    pub(super) fn build_misdelivery_report(
        self,
        index: usize,
        rows: &[StreamReceiver<'_>],
    ) -> Option<MisdeliveryReport> {
        let mut report = MisdeliveryReport::default();
        for astray in self.lookup.misdelivered_frames(index) {
            report.frames = report.frames.saturating_add(astray.frames);
            report.to_groups = report.to_groups.saturating_add(astray.to_groups);
            report.ports.push(self.plan.ports[astray.port].name.clone());
            // Reflected frames count neither as misdelivered nor as flooded.
            if astray.port == self.plan.streams[index].tx {
                report.reflected = report.reflected.saturating_add(astray.frames);
                continue;
            }
            let instead = count_lost_at_every_port(astray, rows);
            report.instead = report.instead.saturating_add(instead);
            report.flooded = report.flooded.saturating_add(astray.numbers.numbers - instead);
        }
        (report.frames > 0).then_some(report)
    }
}

/// Number of misdelivered frames that arrived at none of their expected ports, as far as the numbers of the
/// lost frames are known.
fn count_lost_at_every_port(astray: &MisdeliveredFrames, rows: &[StreamReceiver<'_>]) -> u64 {
    // The frames lost at every port are at most as many as at the port that lost least.
    let lost = rows.iter().map(|receiver| count_lost_at(astray, receiver.row)).min();
    lost.unwrap_or(0).min(astray.numbers.numbers)
}

fn count_lost_at(astray: &MisdeliveredFrames, received: &ReceiveResult) -> u64 {
    // Joined outages are skipped: frames arrived between their gaps, and the numbers of these frames are
    // unknown.
    let exact = received.outages.outages.iter().filter(|outage| outage.gaps == 1);
    saturating_sum_of(exact.map(|outage| astray.numbers.count_numbers_within(outage.first, outage.last)))
}

/// Longest measured delay of the stream's frames, or 100 ms if the latency was not measured.
pub(super) fn longest_delay_or_assumed(received: &ReceiveResult) -> Nanos {
    received.latency.as_ref().and_then(Latency::max).unwrap_or(ASSUMED_LONGEST_DELAY)
}

/// Largest difference of the clocks of two nodes, or 100 ms if their comparison is unknown.
pub(super) fn largest_clock_difference_or_assumed(sender: &NodeResult, receiver: &NodeResult) -> Nanos {
    if sender.node == receiver.node {
        return Nanos::ZERO;
    }
    // Both clocks were compared with the controller's clock, so both errors add up.
    largest_clock_error(sender)
        .zip(largest_clock_error(receiver))
        .map_or(ASSUMED_CLOCK_DIFFERENCE, |(one, other)| one + other)
}
