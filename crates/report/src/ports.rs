//! Rows of ports, and the places of losses.

use super::StreamReport;
use super::doubt::PortEventReport;
use super::figures::{MeanRate, saturating_sum_of};
use super::frame_loss::FrameLoss;
use super::lookup::ResultLookup;
use super::out_of_order::FaultyPortLosses;
use crate::NodeName;
use packetrig_plan::Plan;
use packetrig_plan::criteria::CarrierLossCause;
use packetrig_stats::ledger::FrameLedger;
use packetrig_stats::port::{BackEnd, PortInfo, RxCounters, TxCounters};
use packetrig_stats::result::{NodeResult, OtherRunFrames, PortResult, SendingPeaks};
use packetrig_stats::series::RateSeries;
use packetrig_units::{MonoTime, Nanos};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PortReport {
    /// The node of the port.
    pub node: String,
    /// Name, location and driver of the port, and its back end with the reason for it.
    pub info: PortInfo,
    /// Counts of the transmit direction.
    pub tx: TxCounters,
    /// Bytes of the streams sent here, FCS included.
    pub tx_bytes: u64,
    /// Counts of the receive direction.
    pub rx: RxCounters,
    /// Mean rate sent, over all streams.
    pub tx_rate: Option<MeanRate>,
    /// Mean rate received, over all streams.
    pub rx_rate: Option<MeanRate>,
    /// Frames and bytes sent in each second since the start of the run.
    pub tx_series: RateSeries,
    /// Frames and bytes received in each second since the start of the run.
    pub rx_series: RateSeries,
    /// Frame counts of the port by account: its part of the run's ledger.
    pub ledger: FrameLedger,
    /// Error of the conversion of arrival stamps to the monotonic clock.
    pub clock_bound: Nanos,
    /// Events of its interface during the run.
    #[serde(default)]
    pub events: Vec<PortEventReport>,
    /// Largest numbers of frames that the port sent within short times.
    #[serde(default)]
    pub peaks: Option<SendingPeaks>,
    /// Frames that left closer together than planned because the sender had been delayed. A device may drop
    /// up to this number of frames.
    #[serde(default)]
    pub sent_ahead: u64,
    /// Frames of other runs that arrived here.
    #[serde(default)]
    pub other_runs: Vec<OtherRunFrames>,
}

impl PortReport {
    /// The node of the port, if the run was on a fleet.
    pub fn fleet_node(&self) -> Option<&str> {
        Some(self.node.as_str()).filter(|node| *node != NodeName::LOCAL_NAME)
    }

    /// Name of the port, and on a fleet also the name of its node.
    pub fn full_name(&self) -> String {
        let name = &self.info.name;
        self.fleet_node().map_or_else(|| name.clone(), |node| format!("{name} on {node}"))
    }
}

/// Number of frames that were lost at each place; absent if the place could not be measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossPlaces {
    /// Frames that were sent and never counted, over all streams with reports of both ends.
    pub total: u64,
    /// Frames that the rig's sending side lost: the kernel refused them, or the sending interface dropped them.
    pub sender: Option<u64>,
    /// Frames that the rig's receivers dropped because a receive ring was full. At most `total`; frames of other
    /// senders may be among the drops.
    pub receiver: Option<u64>,
    /// Losses while a port had a fault or a link had no carrier, in addition to `sender` and `receiver`.
    #[serde(default)]
    pub in_doubt: u64,
    /// Frames lost elsewhere: in the device under test, or on the path to and from it. Absent if
    /// either end is unknown.
    pub path: Option<u64>,
}

impl LossPlaces {
    /// Splits `total` by the drops at the sending and receiving ports, and by the losses while a port had a
    /// fault (`in_doubt`; `out_of_order` has them by port).
    pub(super) fn new(
        total: u64,
        in_doubt: u64,
        out_of_order: &FaultyPortLosses,
        ports: &[&PortResult],
    ) -> Self {
        let places = Self::from_end_counters(total, ports.iter().map(|port| (&port.tx, &port.rx)));
        let (sender, receiver) = (places.sender.unwrap_or(0), places.receiver.unwrap_or(0));
        // Drops of a port while it had a fault are already counted as losses in doubt.
        let at_receiver = saturating_sum_of(ports.iter().map(|port| {
            port.rx.unseen_frames()
                - port.rx.unexplained_unseen_frames(out_of_order.losses_of_faulty_receiver(port.port))
        }))
        .min(receiver);
        let at_sender = out_of_order.total_losses_of_faulty_senders().min(sender);
        // This cannot underflow: `from_end_counters` limits each count to the remaining frames.
        let left = total - sender - receiver;
        let in_doubt = in_doubt.saturating_sub(saturating_sum_of([at_sender, at_receiver])).min(left);
        Self { in_doubt, path: places.path.map(|path| path - in_doubt), ..places }
    }

    /// Splits `total` by the drops that the sending and receiving ports counted, without the times of losses.
    pub fn from_end_counters<'a>(
        total: u64,
        ports: impl Iterator<Item = (&'a TxCounters, &'a RxCounters)> + Clone,
    ) -> Self {
        // Losses are attributed to the senders first and then to the receivers, each at most the remaining
        // frames, so that a frame is counted at one place. A port that only receives drops nothing as a
        // sender, so it must not make the sum unknown.
        let senders = ports.clone().filter(|(tx, _)| tx.has_tried_to_send());
        // If one count is unknown, the sum is unknown.
        let sender = senders.map(|(tx, _)| tx.unsent_by_interface()).collect::<Option<Vec<u64>>>();
        let sender = sender.map(|dropped| saturating_sum_of(dropped).min(total));
        let left = total - sender.unwrap_or(0);
        // Receive drops that the interface reports do not count: the kernel also counts there frames that it
        // delivered to packetrig but to no other protocol.
        let receiver = saturating_sum_of(ports.map(|(_, rx)| rx.unseen_frames())).min(left);
        Self { total, sender, receiver: Some(receiver), in_doubt: 0, path: sender.map(|_| left - receiver) }
    }
}

/// Marks losses as doubtful if the rig's own ports dropped frames at unknown times: in each stream as many as
/// its ports dropped. Losses in `out_of_order` are in doubt already, and explain drops of the same port.
pub(super) fn add_drop_doubt(
    streams: &mut [StreamReport],
    plan: &Plan,
    lookup: &ResultLookup<'_>,
    out_of_order: &FaultyPortLosses,
) {
    for (stream, of_plan) in streams.iter_mut().zip(&plan.streams) {
        let by_sender =
            lookup.port_result(of_plan.tx).and_then(|port| port.tx.unsent_by_interface()).unwrap_or(0);
        let by_sender = by_sender.saturating_sub(out_of_order.losses_of_faulty_sender(of_plan.tx));
        let receivers = of_plan.rx.iter().filter_map(|rx| lookup.port_result(*rx));
        let by_receivers = saturating_sum_of(receivers.map(|port| {
            port.rx.unexplained_unseen_frames(out_of_order.losses_of_faulty_receiver(port.port))
        }));
        // Times and streams of these drops are unknown: each stream of the port may have lost all of them.
        let dropped = by_sender.saturating_add(by_receivers);
        if let Some(loss) = &mut stream.loss {
            loss.in_doubt = loss.in_doubt.saturating_add(dropped).min(loss.lost);
            lookup.port_result(of_plan.tx).into_iter().for_each(|port| add_engine_doubt(loss, port));
        }
        if let Some(contents) = &mut stream.contents {
            contents.in_doubt = contents.in_doubt.saturating_add(dropped).min(contents.lost);
        }
    }
}

/// Marks losses and surplus frames as doubtful if an engine, which is another program, sent the stream. If
/// more frames arrived than the engine reports, it has not counted all of its frames. If the interface cannot
/// confirm the engine's count, the lost frames may not have been sent.
fn add_engine_doubt(loss: &mut FrameLoss, sender: &PortResult) {
    if sender.info.back_end != BackEnd::Process {
        return;
    }
    loss.extra_in_doubt = loss.extra;
    if sender.tx.on_wire.is_none() {
        loss.in_doubt = loss.lost;
    }
}

/// Sums over several streams: frames, bytes, and the times of the first and the last frame.
#[derive(Default)]
struct FrameSums {
    frames: u64,
    bytes: u64,
    first: Option<MonoTime>,
    last: Option<MonoTime>,
}

impl FrameSums {
    fn add_frames(&mut self, frames: u64, bytes: u64, first: Option<MonoTime>, last: Option<MonoTime>) {
        self.frames = self.frames.saturating_add(frames);
        self.bytes = self.bytes.saturating_add(bytes);
        // A stream without frames has no times, so it must not affect the first and last time of the sum.
        self.first = self.first.into_iter().chain(first).min();
        self.last = self.last.into_iter().chain(last).max();
    }

    fn mean_rate(&self) -> Option<MeanRate> {
        MeanRate::from_counts(self.frames, self.bytes, self.first, self.last)
    }
}

/// Builds the row of one port.
pub(super) fn build_port_report(
    plan: &Plan,
    node: &NodeResult,
    row: &PortResult,
    carrier_loss: CarrierLossCause,
) -> PortReport {
    let mut sent = FrameSums::default();
    for send in node.send.iter().filter(|send| plan.streams[send.stream].tx == row.port) {
        sent.add_frames(send.counts.frames, send.counts.bytes, send.counts.first, send.counts.last);
    }
    let mut received = FrameSums::default();
    for receive in node.receive.iter().filter(|receive| receive.port == row.port) {
        received.add_frames(
            receive.counts.frames,
            receive.counts.bytes,
            receive.counts.first,
            receive.counts.last,
        );
    }
    PortReport {
        node: node.node.clone(),
        info: row.info.clone(),
        tx: row.tx,
        tx_bytes: sent.bytes,
        rx: row.rx,
        tx_rate: sent.mean_rate(),
        rx_rate: received.mean_rate(),
        tx_series: row.tx_series.clone(),
        rx_series: row.rx_series.clone(),
        ledger: row.ledger.clone(),
        clock_bound: row.clock_bound,
        events: row
            .events
            .iter()
            .map(|event| PortEventReport::from_event(event, node.started, carrier_loss))
            .collect(),
        peaks: row.peaks,
        sent_ahead: saturating_sum_of(row.sent_ahead.iter().map(|burst| burst.frames)),
        other_runs: node.other_runs.iter().filter(|of| of.port == row.port).cloned().collect(),
    }
}
