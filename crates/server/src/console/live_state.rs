//! Builds the state of the run that viewers see. It is built from clones of shared values, without holding a lock.

use super::live::{LiveCounts, find_received_counts, sent_counts};
use super::names::{ConfigurationNames, FlowRoute, NamedFlow};
use super::rows::{self, StreamRates, WallClock};
use super::{ClientView, TestConsole};
use crate::tester::{LatencyFigures, TransmitState};
use crate::viewing::{
    LiveLosses, LivePort, LiveRun, LiveSource, LiveState, LiveStream, LiveTotals, ReceivedStream,
};
use packetrig_fleet::served::RunSource;
use packetrig_plan::{Plan, Stream};
use packetrig_report::LossPlaces;
use packetrig_stats::counts::{DelaySummary, StreamTxCounts};
use packetrig_stats::ledger::{FrameLedger, LedgerAccount};
use packetrig_stats::live_loss::LiveLoss;
use packetrig_stats::port::{RxCounters, TxCounters};
use packetrig_stats::result::CountSample;
use std::sync::Arc;

impl<R: RunSource> LiveSource for TestConsole<R> {
    fn revision(&self) -> u64 {
        let view = self.lock_view();
        combine_revisions(view.number, &view.lock_live())
    }

    fn live_state(&self) -> LiveState {
        self.lock_view().take_snapshot().live_state(&|at| self.rigs.to_wall_clock_ns(at))
    }
}

/// Combines the number of the configuration and the revision of its counts, which both only grow, into one number
/// that practically never repeats.
pub(super) const fn combine_revisions(configuration: u64, live: &LiveCounts) -> u64 {
    // 40 bits suffice for 10^12 events of one configuration.
    configuration.wrapping_mul(1 << 40).wrapping_add(live.revision())
}

/// What is needed to show a run to viewers: names, plan and counts. A clone is cheap.
#[derive(Clone, Debug, Default)]
pub(super) struct ViewedRun {
    /// See [`LiveState::configuration`].
    pub(super) number: u64,
    pub(super) names: Arc<ConfigurationNames>,
    pub(super) plan: Option<Arc<Plan>>,
    pub(super) live: LiveCounts,
}

impl ViewedRun {
    pub(super) fn live_state(&self, wall: WallClock<'_>) -> LiveState {
        let run = self.plan.as_ref().map(|plan| build_live_run(plan, &self.names, &self.live, wall));
        LiveState { revision: combine_revisions(self.number, &self.live), configuration: self.number, run }
    }
}

impl ClientView {
    fn take_snapshot(&self) -> ViewedRun {
        let live = self.lock_live().clone();
        ViewedRun { number: self.number, names: Arc::clone(&self.names), plan: self.plan.clone(), live }
    }
}

fn build_live_run(
    plan: &Plan,
    names: &ConfigurationNames,
    live: &LiveCounts,
    wall: WallClock<'_>,
) -> LiveRun {
    let ports = (0..plan.ports.len()).map(|port| build_live_port(plan, names, live, port, wall)).collect();
    let routes = names.flows().iter().flat_map(|flow| flow.routes.iter().map(move |route| (flow, route)));
    let streams: Vec<LiveStream> =
        routes.map(|(flow, route)| build_live_stream(plan, flow, route, live)).collect();
    let mut run = LiveRun {
        id: live.run.as_ref().map(|run| run.0.clone()),
        state: live.state.map(|state| state.to_string()),
        ended: live.end_reason().map(str::to_owned),
        findings: live.findings.iter().cloned().collect(),
        history: live.history.points(),
        ports,
        ..LiveRun::default()
    };
    if let Some(latest) = live.latest_sample() {
        run.sampled_wall_ns = Some(wall(latest.at));
        run.elapsed = live.history.latest().elapsed;
        run.totals = sum_live_totals(latest, live, &streams);
        run.ledger = build_live_ledger(latest, live);
        run.losses = sum_live_losses(plan, live, latest, run.totals.started > 0);
        run.neighbours = latest.neighbours.iter().map(rows::build_neighbour_row).collect();
    }
    run.streams = streams;
    run
}

fn build_live_port(
    plan: &Plan,
    names: &ConfigurationNames,
    live: &LiveCounts,
    port: usize,
    wall: WallClock<'_>,
) -> LivePort {
    let open = live.ports.iter().find(|open| open.info.name == plan.ports[port].name);
    let counters =
        live.latest_sample().and_then(|latest| latest.ports.iter().find(|(index, ..)| *index == port));
    LivePort {
        row: rows::build_port_row(plan, names, live, port, wall),
        node: open.map(|open| open.node.to_string()),
        info: open.map(|open| open.info.clone()),
        tx: counters.map(|(_, tx, _)| *tx),
        rx: counters.map(|(.., rx)| *rx),
    }
}

fn build_live_stream(plan: &Plan, flow: &NamedFlow, route: &FlowRoute, live: &LiveCounts) -> LiveStream {
    let receivers: Vec<&str> = route.rx.iter().map(|port| plan.ports[*port].name.as_str()).collect();
    let bare = LiveStream {
        name: flow.name.clone(),
        port_tx: plan.ports[route.tx].name.clone(),
        port_rx: receivers.join(","),
        ..LiveStream::default()
    };
    let Some(latest) = live.latest_sample() else { return bare };
    let state = rows::compute_transmit_state(plan, live, latest, &route.streams);
    // A stream that has stopped has no rate, although the samples of the last second still differ.
    let rates = if state == TransmitState::Started {
        rows::compute_stream_rates(live, &route.streams)
    } else {
        StreamRates::default()
    };
    let out = rows::sum_sent_since_start(latest, &route.streams);
    let arrived = rows::sum_received_since_start(latest, &route.streams);
    let received = ReceivedStream {
        frames: arrived.frames,
        bytes: arrived.bytes,
        frames_rate: rates.frames_rx,
        bytes_rate: rates.bytes_rx,
        loss: rows::live_loss(plan, latest, &route.streams, state),
        latency: rows::stream_latency(latest, &route.streams),
    };
    LiveStream {
        state,
        frames_tx: out.frames,
        bytes_tx: out.bytes,
        frames_tx_rate: rates.frames_tx,
        bytes_tx_rate: rates.bytes_tx,
        received: flow.measured.then_some(received),
        ..bare
    }
}

fn sum_live_totals(latest: &CountSample, live: &LiveCounts, streams: &[LiveStream]) -> LiveTotals {
    let mut totals = LiveTotals { counts: live.history.latest(), ..LiveTotals::default() };
    for stream in streams {
        totals.frames_tx_rate += stream.frames_tx_rate;
        totals.bytes_tx_rate += stream.bytes_tx_rate;
        if let Some(received) = &stream.received {
            totals.frames_rx_rate += received.frames_rate;
            totals.bytes_rx_rate += received.bytes_rate;
        }
        totals.started += usize::from(stream.state == TransmitState::Started);
        totals.paused += usize::from(stream.state == TransmitState::Paused);
    }
    let mut delays = DelaySummary::default();
    for (.., received) in &latest.rx {
        // The sums are merged, not the means: a mean of means would give every stream the same weight.
        delays.merge(&received.delays);
    }
    // Without a mean no latency was measured, so there is no smallest and no largest latency either.
    totals.latency = delays.mean().map(|mean| LatencyFigures {
        minimum: delays.min.as_u64() as f64,
        average: mean.as_u64() as f64,
        maximum: delays.max.as_u64() as f64,
    });
    totals
}

/// Fills the accounts that are known during a run. The planned and the expected numbers are known only at the end.
fn build_live_ledger(sample: &CountSample, live: &LiveCounts) -> FrameLedger {
    let mut ledger = FrameLedger::default();
    ledger.add_frames(LedgerAccount::Built, live.history.latest().frames_tx);
    for (_, tx, rx) in &sample.ports {
        // An interface counts every frame that it transmits. If the port sent nothing, none of these frames
        // belong to this run.
        if tx.has_tried_to_send() {
            ledger.add_sending_port_counters(tx);
        }
        ledger.add_receiving_port_counters(rx);
    }
    for (.., received) in &sample.rx {
        ledger.add_frames(LedgerAccount::Recognised, received.frames);
        ledger.add_frames(LedgerAccount::Counted, received.sequence.unique);
        ledger.add_frames(LedgerAccount::Duplicate, received.sequence.duplicates);
        ledger.add_frames(LedgerAccount::Stale, received.sequence.stale);
    }
    ledger
}

/// Losses of the whole run: their number, and how many of them the sender, the path and the receiver lost.
fn sum_live_losses(plan: &Plan, live: &LiveCounts, sample: &CountSample, in_motion: bool) -> LiveLosses {
    // Without metrics, receivers do not recognise a stream, so its losses are unknown.
    let measured = plan.streams.iter().enumerate().filter(|(_, stream)| stream.metrics.enable);
    let loss = measured
        .map(|(index, stream)| {
            let state = rows::compute_transmit_state(plan, live, sample, &[index]);
            compute_stream_loss(stream, index, sample, state == TransmitState::Started)
        })
        .fold(LiveLoss::default(), LiveLoss::plus);
    let ends: Vec<(&TxCounters, RxCounters)> = sample
        .ports
        .iter()
        .map(|(_, tx, rx)| {
            // Interface and receiver are not read at the same time. While traffic runs, a frame that only the
            // interface has counted may still be counted by the receiver, so only drops of the receive ring
            // count as its losses.
            let arrived = rx.arrived.filter(|_| !in_motion);
            (tx, RxCounters { arrived, ..*rx })
        })
        .collect();
    let places = LossPlaces::from_end_counters(loss.lost, ends.iter().map(|(tx, rx)| (*tx, rx)));
    LiveLosses {
        loss,
        in_motion,
        sender: places.sender,
        receiver: places.receiver.unwrap_or(0),
        path_or_in_doubt: places.path,
    }
}

/// Losses of a stream since the run was opened.
fn compute_stream_loss(
    stream: &Stream,
    index: usize,
    sample: &CountSample,
    may_be_in_flight: bool,
) -> LiveLoss {
    // A receiver cannot notice the loss of a frame without a sequence number, so only numbered frames are expected.
    let numbered = sent_counts(sample, index).map_or(0, StreamTxCounts::numbered_frames);
    let (mut counted, mut gaps) = (0, 0);
    for (_, counts) in find_received_counts(sample, index) {
        counted += counts.sequence.unique;
        gaps += counts.sequence.lost;
    }
    LiveLoss::new(stream.expected_copies(numbered), counted, gaps, may_be_in_flight)
}
