//! Rows of the streams in a report: frames sent, arrived and missing.

use super::AcceptanceCriteria;
use super::clocks::StreamClocks;
use super::figures::{ErrorDistribution, LatencyError, LatencyReport, MeanRate};
use super::frame_loss::{FrameLoss, is_every_frame_expected_everywhere};
use super::histogram::{LatencyBucket, build_histogram};
use super::load::scheduled_rate_milli;
use super::lookup::{ResultLookup, StreamReceiver, StreamSender};
use super::losses::{ContentReport, MisdeliveryReport};
use super::outages::{LossTimes, OutageReport};
use packetrig_plan::Plan;
use packetrig_plan::timeline::StreamTimeline;
use packetrig_stats::bounded::{BoundReason, Bounded};
use packetrig_stats::counts::StreamRxCounts;
use packetrig_stats::jitter::{JitterSummary, largest_jitter_error};
use packetrig_stats::latency::{Latency, StampErrors};
use packetrig_stats::result::{NodeResult, PortResult, SendResult};
use packetrig_stats::sequence::SequenceCounts;
use packetrig_stats::series::{QualitySeries, RateSeries};
use packetrig_units::{MonoTime, Nanos};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SentFrames {
    /// Frames due by the time the sender ended.
    pub planned: u64,
    pub frames: u64,
    /// Planned frames that were not sent.
    pub unsent: u64,
    /// Frames that left after their due time by more than 1 ms.
    pub late: u64,
    /// Part of `frames` without a tag though the stream has tags: receivers cannot recognise them, so they are
    /// neither expected nor lost.
    #[serde(default)]
    pub untagged: u64,
    /// Bytes, FCS included.
    pub bytes: u64,
    /// First departure, counted from the start of the run.
    pub first: Option<Nanos>,
    /// Last departure, counted from the start of the run.
    pub last: Option<Nanos>,
    pub rate: Option<MeanRate>,
    /// Deviation of the mean frame rate from the schedule, in millionths: +100 is 0.01 % too fast.
    pub rate_error_ppm: Option<i64>,
    /// Distribution, over all frames, of the distance between departure and due time.
    pub send_error: Option<ErrorDistribution>,
    /// Distribution of the time between the send time in the tag and the end of the kernel call.
    pub stamp_bound: Option<ErrorDistribution>,
    /// Frames and bytes sent in each second since the start of the run.
    pub series: RateSeries,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArrivedFrames {
    /// All recognised frames, copies included.
    pub frames: u64,
    /// Bytes of the recognised frames, FCS included.
    pub bytes: u64,
    /// Loss, duplicates and reordering as receivers saw them.
    pub sequence: SequenceCounts,
    /// Frames with changed headers and intact payload.
    pub altered: u64,
    pub corrupt: u64,
    /// Frames with a damaged tag, recognised by their headers.
    pub unnumbered: u64,
    /// First arrival, counted from the start of the run.
    pub first: Option<Nanos>,
    /// Last arrival, counted from the start of the run.
    pub last: Option<Nanos>,
    pub rate: Option<MeanRate>,
    /// Frames and bytes received in each second since the start of the run.
    pub series: RateSeries,
    /// Losses and delays in each second since the start of the run.
    #[serde(default)]
    pub quality: QualitySeries,
}

/// A stream at one of its receiving ports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PortShare {
    /// Name of the port.
    pub port: String,
    pub received: ArrivedFrames,
    /// Missing frames at this port; absent if the receivers share the stream or the sender did not report.
    pub loss: Option<FrameLoss>,
    pub latency: Option<LatencyReport>,
    pub jitter: Option<JitterSummary>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StreamReport {
    pub name: String,
    /// Name of the sending port.
    pub tx_port: String,
    /// Names of the receiving ports.
    pub rx_ports: Vec<String>,
    /// True if the stream's frames carry the test tag: receivers cannot count frames without the tag.
    pub measured: bool,
    /// Sent frames; absent if the sending node did not report.
    pub sent: Option<SentFrames>,
    /// Arrived frames of all receivers; absent if one of them did not report, or if there is none.
    pub received: Option<ArrivedFrames>,
    /// Missing frames, over all receivers; absent if either side did not report.
    pub loss: Option<FrameLoss>,
    /// Latency over all receivers.
    pub latency: Option<LatencyReport>,
    /// Jitter between neighbouring frames at the same port; of several receivers the worst.
    pub jitter: Option<JitterSummary>,
    /// The largest RFC 3550 jitter at any time, with its bounds: the figure that `max_jitter` judges.
    #[serde(default)]
    pub largest_jitter: Option<Bounded<Nanos>>,
    /// The arrivals at each receiving port, in plan order.
    pub per_port: Vec<PortShare>,
    /// Requested frames per second, in thousandths; absent without a schedule.
    #[serde(default)]
    pub asked_milli: Option<u64>,
    /// Distinct frames delivered per second of the requested time, in thousandths: the figure that `min_rate`
    /// judges. Absent without a schedule.
    #[serde(default)]
    pub delivered_milli: Option<Bounded<u64>>,
    /// Times of losses; absent if nothing is expected, and where receivers share the stream.
    #[serde(default)]
    pub outages: Option<OutageReport>,
    /// Frames at ports that do not expect them; absent if there are no such frames.
    #[serde(default)]
    pub misdelivery: Option<MisdeliveryReport>,
    /// Frames without a tag, compared by their content; absent if all have a tag.
    #[serde(default)]
    pub contents: Option<ContentReport>,
    /// The distribution of the latency over all receivers; empty without latency.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latency_histogram: Vec<LatencyBucket>,
}

/// The plan and the results of all nodes, from which the rows of streams are built.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamFindings<'a> {
    pub(super) plan: &'a Plan,
    pub(super) results: &'a [NodeResult],
    pub(super) lookup: &'a ResultLookup<'a>,
    pub(super) criteria: &'a AcceptanceCriteria,
    /// The schedules of the streams; empty if they had none.
    pub(super) timelines: &'a [StreamTimeline],
}

impl<'a> StreamFindings<'a> {
    pub(super) fn sender_of(self, stream: usize) -> Option<StreamSender<'a>> {
        self.lookup.sender_of(stream)
    }

    pub(super) fn receivers_of(self, stream: usize) -> Vec<StreamReceiver<'a>> {
        let wanted = &self.plan.streams[stream].rx;
        wanted.iter().filter_map(|port| self.lookup.receiver_at(stream, *port)).collect()
    }

    /// True if the frames of stream `index` come from a recording: then they have no due times in the plan.
    pub(super) fn is_recorded(self, index: usize) -> bool {
        self.plan.streams[index].frames.recording().is_some()
    }

    pub(super) fn port_result(self, port: usize) -> Option<&'a PortResult> {
        self.lookup.port_result(port)
    }

    fn port_name(self, port: usize) -> String {
        self.plan.ports[port].name.clone()
    }

    /// Builds the row of stream `index`. Without `timeline` (users steered the run, or the plan does not fit the link
    /// speeds that the nodes found), figures that compare with the schedule are absent.
    pub(super) fn stream_report(self, index: usize, timeline: Option<&StreamTimeline>) -> StreamReport {
        let stream = &self.plan.streams[index];
        let rows = self.receivers_of(index);
        let sender = self.sender_of(index);
        // A stream that is sent as fast as possible has no schedule to be compared with.
        let timeline = timeline.filter(|_| !stream.frames.is_unpaced());
        let sent = sender.map(|sender| summarise_sent_frames(sender, timeline));
        // Without the report of every receiver, the frames at the other receivers would look like losses.
        let complete = stream.metrics.enable && !rows.is_empty() && rows.len() == stream.rx.len();
        let received = complete.then(|| summarise_arrivals(&rows));
        // Frames without a tag have no number, so receivers cannot expect them.
        let frames = sender.map(|sender| sender.row.counts.numbered_frames());
        // Receivers that share the frames see gaps that are no losses.
        let times = (complete && is_every_frame_expected_everywhere(stream))
            .then(|| self.combine_loss_times(index, &rows));
        let loss = frames.zip(received.as_ref()).map(|(frames, received)| {
            let loss = FrameLoss::from_stream(stream, frames, &received.sequence);
            let in_doubt = match &times {
                Some(times) => times.in_doubt,
                // If the times of the losses are unknown, all losses may have happened during the event.
                None if self.has_doubtful_events(index, &rows) => loss.lost,
                None => self.count_frames_sent_ahead(index),
            };
            FrameLoss { in_doubt: in_doubt.min(loss.lost), ..loss }
        });
        let latency = self.stream_latency(index, &rows);
        StreamReport {
            name: stream.name.clone(),
            tx_port: self.port_name(stream.tx),
            rx_ports: stream.rx.iter().map(|port| self.port_name(*port)).collect(),
            measured: stream.metrics.enable,
            sent,
            received,
            loss,
            latency: latency.as_ref().map(|(report, _)| *report),
            latency_histogram: latency.map(|(_, times)| build_histogram(&times)).unwrap_or_default(),
            jitter: combine_jitter(&rows),
            largest_jitter: self.largest_jitter(index, &rows),
            per_port: rows.iter().map(|row| self.port_share(index, *row, frames)).collect(),
            asked_milli: sender.and_then(|sender| scheduled_rate_milli(sender.row.planned, timeline?)),
            outages: times.map(|times| times.outages),
            misdelivery: self.build_misdelivery_report(index, &rows),
            // `build_stream_rows` computes these two, once the losses of all streams are known.
            contents: None,
            delivered_milli: None,
        }
    }

    /// The largest smoothed jitter (RFC 3550), with bounds that allow for the errors of the time stamps.
    fn largest_jitter(self, stream: usize, rows: &[StreamReceiver<'_>]) -> Option<Bounded<Nanos>> {
        let value = combine_jitter(rows)?.rfc3550_max;
        let clocks = match self.compare_clocks(stream, rows) {
            StreamClocks::Apart(error) => error,
            _ => Nanos::ZERO,
        };
        let stamps = self.collect_stamp_errors(stream, rows, clocks);
        let Some((leaving, arriving)) = stamps.leaving.zip(stamps.arriving) else {
            // If the error of the stamps is unknown, the stamps may have caused all of the jitter.
            return Some(Bounded::exactly(value).lower_lower_bound(Nanos::ZERO, BoundReason::SendStamps));
        };
        // Jitter is a difference of two delays, so the error of an arrival stamp counts twice. The clock
        // offset is the same for neighbouring frames.
        let errors = [
            (worst_jitter_error(rows, leaving, arriving + clocks), BoundReason::SendStamps),
            (arriving + arriving, BoundReason::ArrivalStamps),
        ];
        Some(errors.into_iter().fold(Bounded::exactly(value), |figure, (error, why)| {
            figure
                .lower_lower_bound(figure.least.saturating_sub(error), why)
                .raise_upper_bound(figure.most + error, why)
        }))
    }

    /// Errors of the stamps of a stream at its ends.
    fn collect_stamp_errors(
        self,
        stream: usize,
        rows: &[StreamReceiver<'_>],
        clocks: Nanos,
    ) -> StampErrors<'a> {
        let sender = self.sender_of(stream);
        let leaving = sender.map(|sender| &sender.row.stamp_bound).filter(|bounds| bounds.count() > 0);
        let ports = rows.iter().filter_map(|receiver| self.port_result(receiver.row.port));
        // The worst port counts, because one figure represents the arrivals at all ports.
        StampErrors { leaving, arriving: ports.map(|port| port.clock_bound).max(), clocks }
    }

    fn combine_loss_times(self, stream: usize, rows: &[StreamReceiver<'_>]) -> LossTimes {
        let mut all = LossTimes::default();
        for row in rows {
            all.add_port_loss_times(self.compute_loss_times(stream, *row));
        }
        all
    }

    fn port_share(self, stream: usize, receiver: StreamReceiver<'_>, sent: Option<u64>) -> PortShare {
        let of = &self.plan.streams[stream];
        let mut received = summarise_arrivals(&[receiver]);
        if of.rx.len() == 1 {
            // The series cover the whole stream; a report of a thousand streams need not have them twice.
            received.series = RateSeries::default();
            received.quality = QualitySeries::default();
        }
        // Where receivers share a stream, the share of one of them is not known in advance.
        let sent = sent.filter(|_| of.metrics.enable && is_every_frame_expected_everywhere(of));
        PortShare {
            port: self.port_name(receiver.row.port),
            loss: sent.map(|frames| FrameLoss::new(frames, &received.sequence, true)),
            latency: self.stream_latency(stream, &[receiver]).map(|(report, _)| report),
            jitter: receiver.row.jitter,
            received,
        }
    }

    /// Returns the latency of a stream over these receivers, with its distribution; `None` if it was not measured, or
    /// if the clocks were not compared.
    fn stream_latency(self, stream: usize, rows: &[StreamReceiver<'_>]) -> Option<(LatencyReport, Latency)> {
        let clock = match self.compare_clocks(stream, rows) {
            StreamClocks::One => None,
            StreamClocks::Apart(bound) => Some(bound),
            // Without a comparison of the clocks, the difference of their times has no meaning.
            StreamClocks::Unknown => return None,
        };
        let mut all: Option<Latency> = None;
        for times in rows.iter().filter_map(|receiver| receiver.row.latency.as_ref()) {
            match &mut all {
                None => all = Some(times.clone()),
                Some(all) => all.merge(times),
            }
        }
        let delays = rows.iter().map(|receiver| receiver.row.counts.least_delay_ns);
        // A delay above zero means that no frame arrived before it was sent.
        let least = delays.min().unwrap_or(0).min(0);
        let early = Nanos::new(least.unsigned_abs());
        let all = all?;
        let error = LatencyError { clock, ..self.build_latency_error(stream, rows) };
        let stamps = self.collect_stamp_errors(stream, rows, clock.unwrap_or(Nanos::ZERO));
        let report = LatencyReport::from_distribution(&all, early, error, stamps)?;
        Some((report, all))
    }

    fn build_latency_error(self, stream: usize, rows: &[StreamReceiver<'_>]) -> LatencyError {
        let send = self.sender_of(stream).map(|sender| &sender.row.stamp_bound);
        let ports: Vec<_> = rows.iter().filter_map(|receiver| self.port_result(receiver.row.port)).collect();
        LatencyError {
            tx_stamp: self.port_result(self.plan.streams[stream].tx).map(|port| port.info.tx_stamp),
            rx_stamp: ports.iter().map(|port| port.info.rx_stamp).max(),
            tx_p99: send.and_then(|bound| bound.quantile(990_000)),
            tx_max: send.and_then(Latency::max),
            rx_conversion: ports.iter().map(|port| port.clock_bound).max(),
            clock: None,
        }
    }
}

/// Returns the largest error of the jitter at any of these receivers; `Nanos::MAX` if no latency was measured.
fn worst_jitter_error(rows: &[StreamReceiver<'_>], leaving: &Latency, doubt: Nanos) -> Nanos {
    let delays = rows.iter().filter_map(|receiver| receiver.row.latency.as_ref());
    delays.map(|delays| largest_jitter_error(leaving, delays, doubt)).max().unwrap_or(Nanos::MAX)
}

/// Combines the jitter of all receivers. Each receiver measures its own, because arrivals at different ports
/// have no common order.
fn combine_jitter(rows: &[StreamReceiver<'_>]) -> Option<JitterSummary> {
    let mut all: Option<JitterSummary> = None;
    for jitter in rows.iter().filter_map(|receiver| receiver.row.jitter.as_ref()) {
        match &mut all {
            None => all = Some(*jitter),
            Some(all) => all.merge(jitter),
        }
    }
    all
}

fn summarise_sent_frames(sender: StreamSender<'_>, timeline: Option<&StreamTimeline>) -> SentFrames {
    let StreamSender { node, row } = sender;
    let counts = &row.counts;
    SentFrames {
        planned: row.planned,
        frames: counts.frames,
        unsent: row.planned.saturating_sub(counts.frames),
        late: counts.late,
        untagged: counts.untagged,
        bytes: counts.bytes,
        first: counts.first.map(|at| at.since(node.started)),
        last: counts.last.map(|at| at.since(node.started)),
        rate: MeanRate::from_counts(counts.frames, counts.bytes, counts.first, counts.last),
        rate_error_ppm: timeline.and_then(|timeline| rate_error_ppm(row, timeline)),
        send_error: ErrorDistribution::from_distribution(&row.send_error),
        stamp_bound: ErrorDistribution::from_distribution(&row.stamp_bound),
        series: row.series.clone(),
    }
}

/// Deviation of the mean frame rate from the schedule, in millionths. The schedule gives the time that the
/// sent frames should have taken, bursts and gaps included.
fn rate_error_ppm(row: &SendResult, timeline: &StreamTimeline) -> Option<i64> {
    let last = row.counts.frames.checked_sub(1)?;
    let wanted = i128::from(timeline.due_time(last).saturating_sub(timeline.due_time(0)).as_u64());
    let taken = i128::from(row.counts.last?.since(row.counts.first?).as_u64());
    // If the frames took less time than planned, the error is positive.
    let ppm = ((wanted - taken) * 1_000_000).checked_div(taken)?;
    i64::try_from(ppm).ok()
}

fn summarise_arrivals(rows: &[StreamReceiver<'_>]) -> ArrivedFrames {
    let mut counts = StreamRxCounts::default();
    let mut series = RateSeries::default();
    let mut quality = QualitySeries::default();
    let mut first: Option<MonoTime> = None;
    let mut last: Option<MonoTime> = None;
    for StreamReceiver { node, row } in rows {
        counts.frames = counts.frames.saturating_add(row.counts.frames);
        counts.bytes = counts.bytes.saturating_add(row.counts.bytes);
        counts.sequence.merge(&row.counts.sequence);
        counts.altered = counts.altered.saturating_add(row.counts.altered);
        counts.corrupt = counts.corrupt.saturating_add(row.counts.corrupt);
        counts.unnumbered = counts.unnumbered.saturating_add(row.counts.unnumbered);
        // The clocks of nodes differ, so the times are first counted from each node's own start time.
        first = first.into_iter().chain(row.counts.first.map(|at| shift_to_common_start(node, at))).min();
        last = last.into_iter().chain(row.counts.last.map(|at| shift_to_common_start(node, at))).max();
        series.merge(&row.series);
        quality.merge(&row.quality);
    }
    ArrivedFrames {
        frames: counts.frames,
        bytes: counts.bytes,
        rate: MeanRate::from_counts(counts.frames, counts.bytes, first, last),
        sequence: counts.sequence,
        altered: counts.altered,
        corrupt: counts.corrupt,
        unnumbered: counts.unnumbered,
        first: first.map(|at| at.since(MonoTime::default())),
        last: last.map(|at| at.since(MonoTime::default())),
        series,
        quality,
    }
}

fn shift_to_common_start(node: &NodeResult, at: MonoTime) -> MonoTime {
    MonoTime::default() + at.since(node.started)
}
