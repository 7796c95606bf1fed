//! Times at which frames of a stream were missing.
//!
//! An outage lasts from the arrival of the last frame before it to the arrival of the first frame after it. At the ends
//! of a stream one of these arrivals is missing: the plan determines the length there, not the receiver's timeout.

use super::doubt::{OutageSpan, PortEventReport};
use super::lookup::StreamReceiver;
use super::losses::{largest_clock_difference_or_assumed, longest_delay_or_assumed};
use super::sent_ahead::LimitedLossExplanations;
use super::streams::StreamFindings;
use packetrig_stats::bounded::{BoundReason, Bounded};
use packetrig_stats::outage::{OutageList, StreamOutage};
use packetrig_stats::port_event::PortEventKind;
use packetrig_units::{Nanos, clamp_to_u64};
use serde::{Deserialize, Serialize};

/// Maximum number of outages of a stream in a report: those with the most lost frames.
const MAX_LISTED: usize = 64;
/// A sender counts as stalled from this delay on.
const STALLED_SENDER_DELAY: Nanos = Nanos::from_millis(10);

/// An outage of a stream at one port. Times are counted from the start of the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutageRow {
    /// Name of the receiving port.
    pub port: String,
    /// Number of the first lost frame.
    pub first: u64,
    /// Number of the last lost frame.
    pub last: u64,
    /// Number of lost frames from `first` to `last`.
    pub frames: u64,
    /// Number of gaps that this row joins: the receiver joins gaps, because its list is bounded.
    pub gaps: u64,
    /// Arrival of the last frame before the outage; absent if no frame arrived before it.
    pub begin: Option<Nanos>,
    /// Arrival of the first frame after the outage; absent if no frame arrived after it.
    pub end: Option<Nanos>,
    /// Upper bound of the lost frames that the rig or a link without carrier may have caused.
    pub in_doubt: u64,
    /// Length of the outage; absent where outages are joined.
    #[serde(default)]
    pub length: Option<Bounded<Nanos>>,
}

/// The outages of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutageReport {
    /// Number of all outages: runs of consecutive lost frames.
    pub count: u64,
    /// Longest time between two arrivals with lost frames between them. At an end of the stream, the
    /// plan gives the time.
    pub longest: Option<Nanos>,
    /// Lower bound of the length of the longest outage; absent if it is 0.
    pub longest_certain: Option<Nanos>,
    /// Longest outage with its bounds: the figure that `max_outage` judges.
    #[serde(default)]
    pub longest_length: Option<Bounded<Nanos>>,
    /// The outages with the most lost frames, in the order of time; at most 64.
    pub listed: Vec<OutageRow>,
}

/// Losses of a stream at one port, or at all its ports.
#[derive(Debug, Default)]
pub(super) struct LossTimes {
    pub(super) outages: OutageReport,
    pub(super) in_doubt: u64,
}

impl LossTimes {
    /// Adds the losses at another port.
    pub(super) fn add_port_loss_times(&mut self, other: Self) {
        self.in_doubt = self.in_doubt.saturating_add(other.in_doubt);
        let Self { outages, .. } = self;
        outages.count = outages.count.saturating_add(other.outages.count);
        outages.update_longest(other.outages.longest_length);
        outages.listed.extend(other.outages.listed);
        // The list is truncated after each port, because a stream may have thousands of receivers.
        retain_outages_with_most_losses(&mut outages.listed);
    }
}

impl OutageReport {
    /// Replaces the longest outage if an outage of this length is longer.
    fn update_longest(&mut self, length: Option<Bounded<Nanos>>) {
        let Some(length) = length else { return };
        let longest = self.longest_length.map_or(length, |longest| longest.max(length));
        self.longest_length = Some(longest);
        self.longest = Some(longest.value);
        // A lower bound of 0 has no information, so it is left out.
        self.longest_certain = Some(longest.least).filter(|least| *least > Nanos::ZERO);
    }
}

fn retain_outages_with_most_losses(rows: &mut Vec<OutageRow>) {
    if rows.len() > MAX_LISTED {
        rows.sort_by_key(|row| std::cmp::Reverse(row.frames));
        rows.truncate(MAX_LISTED);
    }
    rows.sort_by_key(|row| (row.begin, row.first));
}

impl StreamFindings<'_> {
    /// Times at which frames of stream `index` were lost at the port of `receiver`.
    pub(super) fn compute_loss_times(self, index: usize, receiver: StreamReceiver<'_>) -> LossTimes {
        let StreamReceiver { node, row: received } = receiver;
        let events = self.list_doubtful_events_at(index, receiver);
        // An event that counts its lost frames explains at most that many losses.
        let (counted, events): (Vec<_>, Vec<_>) =
            events.into_iter().partition(|event| event.what.max_lost_frames().is_some());
        let mut counted = LimitedLossExplanations::from_events(&counted);
        let mut bursts = self.list_bursts_sent_ahead(index, receiver);
        let OutageList { outages, gaps, longest, .. } = &received.outages;
        let mut times = LossTimes::default();
        times.outages.count = *gaps;
        if *gaps > outages.len() as u64 {
            // If gaps were joined, the list knows the length of the longest joined outage but not its time,
            // and so not its cause.
            let joined =
                |longest| Bounded::exactly(longest).lower_lower_bound(Nanos::ZERO, BoundReason::Joined);
            times.outages.update_longest(longest.map(joined));
        }
        for outage in outages {
            let span = OutageSpan::from_outage(outage, receiver);
            // No frame arrived after the outage: its frames may have arrived after the receiver stopped.
            let in_doubt = if outage.end.is_none() && self.may_have_missed_late_frames(index, receiver) {
                outage.frames
            } else {
                let by_events = span.frames_in_doubt(&events, &|time| {
                    self.expected_number_before(index, received, &span, time)
                });
                // Each kind of doubt explains only frames that the kinds before it did not explain, so that
                // no frame counts twice.
                let by_number =
                    by_events + counted.consume_explained_losses(&span, outage.frames - by_events);
                let too_close =
                    (outage.frames - by_number).min(self.count_frames_too_close(index, receiver, outage));
                by_number + bursts.consume_explained_losses(&span, too_close)
            };
            times.in_doubt = times.in_doubt.saturating_add(in_doubt);
            let length = self.compute_outage_length(index, receiver, outage, in_doubt);
            times.outages.update_longest(length);
            times.outages.listed.push(OutageRow {
                port: self.plan.ports[received.port].name.clone(),
                first: outage.first,
                last: outage.last,
                frames: outage.frames,
                gaps: outage.gaps,
                begin: outage.begin.map(|at| at.since(node.started)),
                end: outage.end.map(|at| at.since(node.started)),
                in_doubt,
                length,
            });
        }
        retain_outages_with_most_losses(&mut times.outages.listed);
        times
    }

    /// Length of an outage with this many frames in doubt; `None` for joined outages, between which frames arrived.
    fn compute_outage_length(
        self,
        index: usize,
        receiver: StreamReceiver<'_>,
        outage: &StreamOutage,
        in_doubt: u64,
    ) -> Option<Bounded<Nanos>> {
        let late = self.largest_lateness_during(index, receiver, outage);
        let length = match outage.length() {
            // The time between two arrivals includes stalls of the sender.
            Some(length) => {
                Bounded::exactly(length).lower_lower_bound(length.saturating_sub(late), BoundReason::SentLate)
            }
            None if outage.gaps > 1 => return None,
            None => self.compute_length_at_stream_end(index, outage, late),
        };
        // Only a part of the lost frames is certain, so only the same part of the length is certain.
        let certain =
            u128::from(length.least.as_u64()) * u128::from(outage.frames - in_doubt.min(outage.frames));
        let certain = Nanos::new(clamp_to_u64(certain / u128::from(outage.frames.max(1))));
        Some(length.lower_lower_bound(certain, BoundReason::RigLosses))
    }

    /// Length of an outage at an end of the stream, where the arrival before or after it is missing. The plan
    /// gives the length: the time between the due times of the frames around the outage, or of the lost
    /// frames at its ends.
    fn compute_length_at_stream_end(
        self,
        index: usize,
        outage: &StreamOutage,
        late: Nanos,
    ) -> Bounded<Nanos> {
        let Some(timeline) = self.timelines.get(index).filter(|_| !self.is_recorded(index)) else {
            let sending =
                self.sender_of(index).map(|sender| sender.node.senders_done.since(sender.node.started));
            // A recording has no due times here. The outage may have lasted as long as the node sent.
            let all = Bounded::exactly(sending.unwrap_or(Nanos::ZERO));
            return all.lower_lower_bound(Nanos::ZERO, BoundReason::NoArrival);
        };
        let before = outage.begin.map_or(outage.first, |_| outage.first.saturating_sub(1));
        let after = outage.last.saturating_add(u64::from(outage.end.is_some()));
        let between = |from: u64, to: u64| timeline.due_time(to).saturating_sub(timeline.due_time(from));
        let length = between(before, after);
        // The lost frames alone prove an outage: from the due time of the first one to that of the last one.
        let length = Bounded::exactly(length)
            .lower_lower_bound(between(outage.first, outage.last), BoundReason::NoArrival);
        length
            .lower_lower_bound(length.least.saturating_sub(late), BoundReason::SentLate)
            .raise_upper_bound(length.most + late, BoundReason::SentLate)
    }

    /// Upper bound of the lateness of the frames of stream `index` that left during this outage.
    fn largest_lateness_during(
        self,
        index: usize,
        receiver: StreamReceiver<'_>,
        outage: &StreamOutage,
    ) -> Nanos {
        let Some(sender) = self.sender_of(index) else { return Nanos::MAX };
        // Delays below `STALLED_SENDER_DELAY` are not recorded for each frame, so the maximum of the run is used.
        let otherwise = sender.row.send_error.max().unwrap_or(Nanos::ZERO).min(STALLED_SENDER_DELAY);
        self.longest_stall_during(index, receiver, outage).max(otherwise)
    }

    /// Longest stall of the sender of stream `index` during this outage.
    pub(super) fn longest_stall_during(
        self,
        index: usize,
        receiver: StreamReceiver<'_>,
        outage: &StreamOutage,
    ) -> Nanos {
        let Some(sender) = self.sender_of(index) else { return Nanos::MAX };
        let span = OutageSpan::from_outage(outage, receiver);
        let tx = self.plan.streams[index].tx;
        // A stall affects the receiver later, by the delay of the path, and the clocks may differ.
        let after = largest_clock_difference_or_assumed(sender.node, receiver.node)
            + longest_delay_or_assumed(receiver.row);
        let events = sender.node.ports.iter().filter(|port| port.port == tx).flat_map(|port| &port.events);
        let stalls = events.filter_map(|event| match event.what {
            PortEventKind::SenderStalled { most_late } => {
                let event =
                    PortEventReport::from_event(event, sender.node.started, self.criteria.carrier_loss)
                        .extend_by(after, after);
                span.overlaps_times(event.from, event.until).then_some(most_late)
            }
            _ => None,
        });
        stalls.max().unwrap_or(Nanos::ZERO)
    }
}
