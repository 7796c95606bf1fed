//! Rows of ports, and where lost frames were lost.

use super::StreamReport;
use super::doubt::EventReport;
use super::figures::{MeanRate, sum_of};
use super::frame_loss::FrameLoss;
use super::lookup::ResultLookup;
use super::out_of_order::OutOfOrderLosses;
use crate::message::NodeName;
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
    /// The node it is on.
    pub node: String,
    /// What ran, and why.
    pub info: PortInfo,
    /// What its transmit half counted.
    pub tx: TxCounters,
    /// Bytes of the streams sent here, FCS included.
    pub tx_bytes: u64,
    /// What its receive half counted.
    pub rx: RxCounters,
    /// Mean rate sent, over all streams.
    pub tx_rate: Option<MeanRate>,
    /// Mean rate received, over all streams.
    pub rx_rate: Option<MeanRate>,
    /// Sent per second since T.
    pub tx_series: RateSeries,
    /// Received per second since T.
    pub rx_series: RateSeries,
    /// Its part of the ledger.
    pub ledger: FrameLedger,
    /// Doubt of bringing arrival stamps onto the monotonic clock.
    pub clock_bound: Nanos,
    /// What happened to its interface during the run.
    #[serde(default)]
    pub events: Vec<EventReport>,
    /// The most frames sent within short times.
    #[serde(default)]
    pub peaks: Option<SendingPeaks>,
    /// Frames that left closer together than planned because the sender had been held up: a device may drop as many.
    #[serde(default)]
    pub sent_ahead: u64,
    /// Frames of other runs that arrived here.
    #[serde(default)]
    pub other_runs: Vec<OtherRunFrames>,
}

impl PortReport {
    /// The node it is on, if the run was on a fleet.
    pub fn fleet_node(&self) -> Option<&str> {
        Some(self.node.as_str()).filter(|node| *node != NodeName::LOCAL)
    }

    /// Its name, and on a fleet the node it is on.
    pub fn full_name(&self) -> String {
        let name = &self.info.name;
        self.fleet_node().map_or_else(|| name.clone(), |node| format!("{name} on {node}"))
    }
}

/// Where the frames that were sent and never counted went. A place is absent if it could not be measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossPlaces {
    /// Sent and never counted, over all streams whose both ends reported.
    pub total: u64,
    /// Refused by the kernel or dropped by our sending interface.
    pub sender: Option<u64>,
    /// Dropped by our receiver: its ring was full. At most `total`; frames of others may be among the drops.
    pub receiver: Option<u64>,
    /// Lost at times when a port was not in order, by the rig or by a link without carrier; beyond those above.
    #[serde(default)]
    pub in_doubt: u64,
    /// The rest: the device under test or the path to and from it. Absent if either end is.
    pub path: Option<u64>,
}

impl LossPlaces {
    /// Splits `total` by what the ends of the run say they dropped themselves and by what was lost while a port was not in
    /// order (`in_doubt`, whose ports `out_of_order` tells).
    pub(super) fn new(
        total: u64,
        in_doubt: u64,
        out_of_order: &OutOfOrderLosses,
        ports: &[&PortResult],
    ) -> Self {
        let places = Self::of_ends(total, ports.iter().map(|port| (&port.tx, &port.rx)));
        let (sender, receiver) = (places.sender.unwrap_or(0), places.receiver.unwrap_or(0));
        // What a port dropped while it was not in order is counted there.
        let explained = |port: &&PortResult| {
            port.rx.unseen() - port.rx.unseen_beyond(out_of_order.receiving_at(port.port))
        };
        let at_receiver = sum_of(ports.iter().map(explained)).min(receiver);
        let at_sender = out_of_order.all_sending().min(sender);
        let left = total - sender - receiver;
        let in_doubt = in_doubt.saturating_sub(sum_of([at_sender, at_receiver])).min(left);
        Self { in_doubt, path: places.path.map(|path| path - in_doubt), ..places }
    }

    /// The same by what the ends say alone, without the times of losses.
    pub fn of_ends<'a>(
        total: u64,
        ports: impl Iterator<Item = (&'a TxCounters, &'a RxCounters)> + Clone,
    ) -> Self {
        // Sender first, then receiver, each at most what is left: a frame is placed once.
        let senders = ports.clone().filter(|(tx, _)| tx.has_sent());
        let sender = senders.map(|(tx, _)| tx.unsent_by_interface()).collect::<Option<Vec<u64>>>();
        let sender = sender.map(|dropped| sum_of(dropped).min(total));
        let left = total - sender.unwrap_or(0);
        // The interface's own receive drops do not count: the kernel also counts frames there that it gave us
        // and then found no other use for.
        let receiver = sum_of(ports.map(|(_, rx)| rx.unseen())).min(left);
        Self { total, sender, receiver: Some(receiver), in_doubt: 0, path: sender.map(|_| left - receiver) }
    }
}

/// Puts losses in doubt that the rig's own ports dropped at unknown times: as many of each stream as its ports dropped.
/// What was lost while a port was `out_of_order` is in doubt already and explains drops of that port.
pub(super) fn doubt_dropped(
    streams: &mut [StreamReport],
    plan: &Plan,
    lookup: &ResultLookup<'_>,
    out_of_order: &OutOfOrderLosses,
) {
    for (stream, of_plan) in streams.iter_mut().zip(&plan.streams) {
        let by_sender = lookup.port(of_plan.tx).and_then(|port| port.tx.unsent_by_interface()).unwrap_or(0);
        let by_sender = by_sender.saturating_sub(out_of_order.sending_at(of_plan.tx));
        let receivers = of_plan.rx.iter().filter_map(|rx| lookup.port(*rx));
        let by_receivers =
            sum_of(receivers.map(|port| port.rx.unseen_beyond(out_of_order.receiving_at(port.port))));
        // When they were dropped is not known, and whose frames they were: each stream of the port may have
        // lost all.
        let dropped = by_sender.saturating_add(by_receivers);
        if let Some(loss) = &mut stream.loss {
            loss.in_doubt = loss.in_doubt.saturating_add(dropped).min(loss.lost);
            lookup.port(of_plan.tx).into_iter().for_each(|port| doubt_engine(loss, port));
        }
        if let Some(contents) = &mut stream.contents {
            contents.in_doubt = contents.in_doubt.saturating_add(dropped).min(contents.lost);
        }
    }
}

/// An engine's counts are another program's word. If more arrived than it says it sent, the rest was sent and not counted; if
/// the interface cannot confirm them, what is lost may not have been sent.
fn doubt_engine(loss: &mut FrameLoss, sender: &PortResult) {
    if sender.info.back_end != BackEnd::Process {
        return;
    }
    loss.extra_in_doubt = loss.extra;
    if sender.tx.on_wire.is_none() {
        loss.in_doubt = loss.lost;
    }
}

/// Frames of several streams together, with the first and the last of them.
#[derive(Default)]
struct CountSums {
    frames: u64,
    bytes: u64,
    first: Option<MonoTime>,
    last: Option<MonoTime>,
}

impl CountSums {
    fn add(&mut self, frames: u64, bytes: u64, first: Option<MonoTime>, last: Option<MonoTime>) {
        self.frames = self.frames.saturating_add(frames);
        self.bytes = self.bytes.saturating_add(bytes);
        self.first = self.first.into_iter().chain(first).min();
        self.last = self.last.into_iter().chain(last).max();
    }

    fn rate(&self) -> Option<MeanRate> {
        MeanRate::of(self.frames, self.bytes, self.first, self.last)
    }
}

/// The row of one port.
pub(super) fn port_of(
    plan: &Plan,
    node: &NodeResult,
    row: &PortResult,
    carrier_loss: CarrierLossCause,
) -> PortReport {
    let mut sent = CountSums::default();
    for send in node.send.iter().filter(|send| plan.streams[send.stream].tx == row.port) {
        sent.add(send.counts.frames, send.counts.bytes, send.counts.first, send.counts.last);
    }
    let mut received = CountSums::default();
    for receive in node.receive.iter().filter(|receive| receive.port == row.port) {
        received.add(receive.counts.frames, receive.counts.bytes, receive.counts.first, receive.counts.last);
    }
    PortReport {
        node: node.node.clone(),
        info: row.info.clone(),
        tx: row.tx,
        tx_bytes: sent.bytes,
        rx: row.rx,
        tx_rate: sent.rate(),
        rx_rate: received.rate(),
        tx_series: row.tx_series.clone(),
        rx_series: row.rx_series.clone(),
        ledger: row.ledger.clone(),
        clock_bound: row.clock_bound,
        events: row.events.iter().map(|event| EventReport::of(event, node.started, carrier_loss)).collect(),
        peaks: row.peaks,
        sent_ahead: sum_of(row.sent_ahead.iter().map(|burst| burst.frames)),
        other_runs: node.other_runs.iter().filter(|of| of.port == row.port).cloned().collect(),
    }
}
