//! Builds rows of metrics from the plan and the latest samples. The functions are pure.

use super::live::{LiveCounts, PortTotals, find_received_counts, sent_counts};
use super::names::{ConfigurationNames, FlowRoute, NamedFlow};
use crate::tester::{FlowRow, LatencyFigures, NeighbourRow, PortRow, TransmitState};
use packetrig_plan::{Plan, Stream};
use packetrig_stats::counts::{DelaySummary, SinceStart};
use packetrig_stats::live_loss::LiveLoss;
use packetrig_stats::result::{CountSample, NeighbourState};
use packetrig_units::{MonoTime, Nanos};

/// Converts a time of the run to wall-clock time.
pub(super) type WallClock<'a> = &'a dyn Fn(MonoTime) -> u64;

pub(super) fn build_port_row(
    plan: &Plan,
    names: &ConfigurationNames,
    live: &LiveCounts,
    port: usize,
    wall: WallClock<'_>,
) -> PortRow {
    // The port is looked up by name, because nodes open their ports in any order.
    let info = live.ports.iter().map(|open| &open.info).find(|info| info.name == plan.ports[port].name);
    let transmitting = live.latest_sample().is_some_and(|latest| {
        let mut streams = plan.streams.iter().enumerate().filter(|(_, stream)| stream.tx == port);
        streams.any(|(index, stream)| {
            live.is_stream_active(index, have_all_frames_arrived(stream, index, latest))
        })
    });
    let samples: Vec<PortSample> = live
        .samples()
        .map(|sample| PortSample { at: sample.at, totals: live.port_totals_since_start(plan, sample, port) })
        .collect();
    let now = samples.last().map(|sample| sample.totals).unwrap_or_default();
    // For a second after the last frame, the samples still differ. A port that does not transmit must
    // show no sending rate.
    let sending = if transmitting { samples.as_slice() } else { &[] };
    PortRow {
        name: plan.ports[port].name.clone(),
        // The row has the location as the client wrote it, even if an alias has replaced it.
        location: names.port_location(port),
        // OTG knows up and down only. Until the first sample reports the link, an open port counts as up.
        link_up: live.link_up(port).unwrap_or(true),
        capturing: live.is_capturing(port),
        transmitting,
        frames_tx: now.frames_tx,
        frames_rx: now.frames_rx,
        bytes_tx: now.bytes_tx,
        bytes_rx: now.bytes_rx,
        frames_tx_rate: compute_port_rate(sending, |totals| totals.frames_tx),
        frames_rx_rate: compute_port_rate(&samples, |totals| totals.frames_rx),
        bytes_tx_rate: compute_port_rate(sending, |totals| totals.bytes_tx),
        bytes_rx_rate: compute_port_rate(&samples, |totals| totals.bytes_rx),
        last_change_ns: live.link_change_time(port).map(wall),
        // OTG's `speed` is in kilobytes per second, of 1000 bytes: 1 Gbit/s is 125 000.
        speed_kbytes: info.and_then(|info| info.speed).map(|speed| speed.bits_per_second() / 8000),
    }
}

/// Counts of a port, and the time of the sample that has them.
struct PortSample {
    at: MonoTime,
    totals: PortTotals,
}

/// The mean rate of a count from the first sample to the last; 0 if there are fewer than two samples.
fn compute_port_rate(samples: &[PortSample], count: fn(&PortTotals) -> u64) -> f64 {
    match samples {
        [first, .., last] => {
            let moved = count(&last.totals).saturating_sub(count(&first.totals));
            per_second(moved, last.at.since(first.at))
        }
        _ => 0.0,
    }
}

/// The rows of a flow, one for each of its routes.
pub(super) fn flow_rows(
    plan: &Plan,
    flow: &NamedFlow,
    live: &LiveCounts,
    wall: WallClock<'_>,
) -> Vec<FlowRow> {
    flow.routes.iter().map(|route| build_flow_row(plan, flow, route, live, wall)).collect()
}

fn build_flow_row(
    plan: &Plan,
    flow: &NamedFlow,
    route: &FlowRoute,
    live: &LiveCounts,
    wall: WallClock<'_>,
) -> FlowRow {
    let rx: Vec<&str> = route.rx.iter().map(|port| plan.ports[*port].name.as_str()).collect();
    let bare = FlowRow {
        name: flow.name.clone(),
        port_tx: plan.ports[route.tx].name.clone(),
        port_rx: rx.join(","),
        ..FlowRow::default()
    };
    let Some(latest) = live.latest_sample() else { return bare };
    let out = sum_sent_since_start(latest, &route.streams);
    let arrived = sum_received_since_start(latest, &route.streams);
    let transmit = compute_transmit_state(plan, live, latest, &route.streams);
    // A flow that has stopped has no rate, although the samples of the last second still differ.
    let rates = if transmit == TransmitState::Started {
        compute_stream_rates(live, &route.streams)
    } else {
        StreamRates::default()
    };
    FlowRow {
        transmit,
        frames_tx: out.frames,
        frames_rx: arrived.frames,
        bytes_tx: out.bytes,
        bytes_rx: arrived.bytes,
        frames_tx_rate: rates.frames_tx,
        frames_rx_rate: rates.frames_rx,
        bytes_tx_rate: rates.bytes_tx,
        bytes_rx_rate: rates.bytes_rx,
        loss: flow
            .loss
            .then(|| live_loss(plan, latest, &route.streams, transmit).loss_share(arrived.frames).percent()),
        timestamps: flow
            .timestamps
            .then(|| (wall_ns_or_zero(arrived.first, wall), wall_ns_or_zero(arrived.last, wall))),
        latency: flow.latency.then(|| stream_latency(latest, &route.streams)).flatten(),
        ..bare
    }
}

/// Latency over these streams; `None` if no received frame had a send time, because nothing was measured then.
pub(super) fn stream_latency(latest: &CountSample, streams: &[usize]) -> Option<LatencyFigures> {
    let mut delays = DelaySummary::default();
    for (_, counts) in streams.iter().flat_map(|stream| find_received_counts(latest, *stream)) {
        delays.merge(&counts.delays);
    }
    Some(LatencyFigures {
        minimum: delays.min.as_u64() as f64,
        average: delays.mean()?.as_u64() as f64,
        maximum: delays.max.as_u64() as f64,
    })
}

/// Wall-clock time in ns. Without a frame there is no time, and OTG writes 0.
fn wall_ns_or_zero(at: Option<MonoTime>, wall: WallClock<'_>) -> f64 {
    at.map_or(0.0, |at| wall(at) as f64)
}

/// Frames and bytes of several streams since their last start, and the times of the first and the last frame.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StreamTotal {
    pub(super) frames: u64,
    pub(super) bytes: u64,
    first: Option<MonoTime>,
    last: Option<MonoTime>,
}

impl StreamTotal {
    fn sum_streams(parts: impl Iterator<Item = SinceStart>) -> Self {
        parts.fold(Self::default(), |all, part| Self {
            frames: all.frames + part.frames,
            bytes: all.bytes + part.bytes,
            // `None` is less than every time, so it must not take part in the minimum.
            first: all.first.into_iter().chain(part.first).min(),
            last: all.last.max(part.last),
        })
    }
}

pub(super) fn sum_sent_since_start(sample: &CountSample, streams: &[usize]) -> StreamTotal {
    let counts = streams.iter().filter_map(|stream| sent_counts(sample, *stream));
    StreamTotal::sum_streams(counts.map(|counts| counts.since_start))
}

pub(super) fn sum_received_since_start(sample: &CountSample, streams: &[usize]) -> StreamTotal {
    let counts = streams.iter().flat_map(|stream| find_received_counts(sample, *stream));
    StreamTotal::sum_streams(counts.map(|(_, counts)| counts.since_start))
}

/// Returns whether every frame of a stream has arrived; `false` without metrics, because receivers do not
/// recognise the frames then.
fn have_all_frames_arrived(stream: &Stream, index: usize, sample: &CountSample) -> bool {
    let expected = stream.expected_copies(sum_sent_since_start(sample, &[index]).frames);
    stream.metrics.enable && sum_received_since_start(sample, &[index]).frames >= expected
}

pub(super) fn compute_transmit_state(
    plan: &Plan,
    live: &LiveCounts,
    latest: &CountSample,
    streams: &[usize],
) -> TransmitState {
    let is_stream_active = streams.iter().any(|index| {
        live.is_stream_active(*index, have_all_frames_arrived(&plan.streams[*index], *index, latest))
    });
    if is_stream_active {
        TransmitState::Started
    } else if streams.iter().filter_map(|stream| sent_counts(latest, *stream)).any(|counts| counts.is_paused)
    {
        // One paused stream is enough, because resuming the flow continues that stream.
        TransmitState::Paused
    } else {
        TransmitState::Stopped
    }
}

/// Losses of these streams together since their last start. `state`: their present state.
pub(super) fn live_loss(
    plan: &Plan,
    latest: &CountSample,
    streams: &[usize],
    state: TransmitState,
) -> LiveLoss {
    let expected = streams
        .iter()
        .map(|index| plan.streams[*index].expected_copies(sum_sent_since_start(latest, &[*index]).frames))
        .sum();
    let arrived = sum_received_since_start(latest, streams).frames;
    let counts = streams.iter().flat_map(|stream| find_received_counts(latest, *stream));
    let gaps = counts.map(|(_, counts)| counts.missing).sum();
    LiveLoss::new(expected, arrived, gaps, state == TransmitState::Started)
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StreamRates {
    pub(super) frames_tx: f64,
    pub(super) frames_rx: f64,
    pub(super) bytes_tx: f64,
    pub(super) bytes_rx: f64,
}

/// Rates over the last second. Each rate is computed from the times of the last frames that two samples have counted,
/// so the times at which the samples were taken do not matter.
pub(super) fn compute_stream_rates(live: &LiveCounts, streams: &[usize]) -> StreamRates {
    let mut rates = StreamRates::default();
    let Some(latest) = live.latest_sample() else { return rates };
    for stream in streams {
        if let Some(now) = sent_counts(latest, *stream) {
            let then = live.samples().filter_map(|sample| sent_counts(sample, *stream));
            let rate = compute_count_rate(&now.since_start, then.map(|counts| counts.since_start));
            rates.frames_tx += rate.frames;
            rates.bytes_tx += rate.bytes;
        }
        for (port, now) in find_received_counts(latest, *stream) {
            let then = live
                .samples()
                .filter_map(|sample| find_received_counts(sample, *stream).find(|(at, _)| *at == port));
            let rate = compute_count_rate(&now.since_start, then.map(|(_, counts)| counts.since_start));
            rates.frames_rx += rate.frames;
            rates.bytes_rx += rate.bytes;
        }
    }
    rates
}

/// Frames and bytes per second.
#[derive(Default)]
struct CountRate {
    frames: f64,
    bytes: f64,
}

/// The rate since the earliest sample that was taken after the last start of the stream.
fn compute_count_rate(now: &SinceStart, mut samples: impl Iterator<Item = SinceStart>) -> CountRate {
    // A flow that was started again counts from zero: only samples with the same first frame are of this start.
    let before = samples.find(|then| then.first.is_some() && then.first == now.first);
    let Some((before, from, to)) = before.and_then(|then| Some((then, then.last?, now.last?))) else {
        return CountRate::default();
    };
    let span = to.since(from);
    CountRate {
        // Both samples belong to the same start. Counts only grow after it, so the differences cannot underflow.
        frames: per_second(now.frames - before.frames, span),
        bytes: per_second(now.bytes - before.bytes, span),
    }
}

fn per_second(count: u64, span: Nanos) -> f64 {
    if span == Nanos::ZERO { 0.0 } else { count as f64 * 1e9 / span.as_u64() as f64 }
}

pub(super) fn build_neighbour_row(state: &NeighbourState) -> NeighbourRow {
    NeighbourRow {
        ethernet: state.interface.clone(),
        address: state.address,
        mac: state.mac.map(|mac| mac.map(|byte| format!("{byte:02x}")).join(":")),
    }
}
