//! Final results of a run: counters, series and frame balance (ledger) of each port, and the caveats that
//! follow from the numbers.

use crate::capture::CaptureOutcome;
use crate::sender::LATE_FRAME_THRESHOLD;
use crate::stream::{FrameSource, ReceivedFrames, SendingRecord, StreamSpec};
use crate::worker::WorkerFault;
use packetrig_plan::BoundPlan;
use packetrig_stats::caveat::{Caveat, CaveatKind};
use packetrig_stats::content::ContentCounts;
use packetrig_stats::ledger::{FrameLedger, LedgerAccount};
use packetrig_stats::port::{BackEnd, PortInfo, RxCounters, TxCounters};
use packetrig_stats::port_event::{PortEvent, PortEventKind};
use packetrig_stats::result::{
    CaptureResult, CatchUpBurst, NodeResult, PortResult, ReceiveResult, SendResult, SendingPeaks,
};
use packetrig_stats::series::RateSeries;
use packetrig_units::{Nanos, Ratio};
use std::sync::Arc;

/// Final results of the receiver of one port.
pub(super) struct ReceiverResult {
    pub(super) frames: ReceivedFrames,
    /// Counters of the port; `None` if its receiver was never armed.
    pub(super) counters: Option<RxCounters>,
    pub(super) clock_bound: Nanos,
}

/// Final results of the sender of one port.
pub(super) struct SenderResult {
    pub(super) streams: Vec<SendResult>,
    pub(super) counters: TxCounters,
    pub(super) record: SendingRecord,
    /// Whether the sender met an error of its port, while it sent or when it was ended.
    pub(super) has_failed: bool,
}

/// A component of a port that has its own worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PortComponent {
    Sender,
    Receiver,
    /// The emulated interfaces of the port, if it has any.
    Interfaces,
}

/// The failure of one component of a port.
#[derive(Debug)]
pub(super) struct PortWorkerFault {
    pub(super) part: PortComponent,
    pub(super) fault: WorkerFault,
}

impl PortWorkerFault {
    fn port_event(&self) -> PortEvent {
        let only_sending = self.part == PortComponent::Sender;
        PortEvent { what: PortEventKind::PortFailed, from: self.fault.since, until: None, only_sending }
    }

    fn describe_fault(&self) -> String {
        let what = match self.part {
            PortComponent::Sender => "its sender stopped and sent no more frames",
            PortComponent::Receiver => "its receiver stopped and counted no more frames",
            PortComponent::Interfaces => "its emulated interfaces stopped and sent no more answers",
        };
        format!("{what}: {}", self.fault.error)
    }
}

/// Final results of one local port.
pub(super) struct PortOutcome {
    pub(super) port: usize,
    pub(super) info: PortInfo,
    pub(super) tx: TxCounters,
    /// Counters of the receiver; `None` if it was never armed.
    pub(super) rx: Option<RxCounters>,
    pub(super) clock_bound: Nanos,
    /// Events of the port's interface, such as a lost carrier.
    pub(super) events: Vec<PortEvent>,
    pub(super) peaks: Option<SendingPeaks>,
    /// Frames that left closer together than planned.
    pub(super) sent_ahead: Vec<CatchUpBurst>,
    pub(super) untagged_contents: ContentCounts,
    /// Texts for caveats about the port, such as a setting that could not be changed.
    pub(super) caveats: Vec<String>,
    /// Reason why the counts of the port's sender are uncertain, if they are.
    pub(super) sender_fault: Option<String>,
    pub(super) faults: Vec<PortWorkerFault>,
}

/// Inputs for the final results of a run.
pub(super) struct RigResultBuilder<'a> {
    pub(super) plan: &'a BoundPlan,
    pub(super) specs: &'a [Arc<StreamSpec>],
    pub(super) ports: &'a [PortOutcome],
    pub(super) interrupted: bool,
}

impl RigResultBuilder<'_> {
    /// Adds ports, captures and caveats to the result.
    pub(super) fn fill_node_result(&self, result: &mut NodeResult, captured: Vec<(usize, CaptureOutcome)>) {
        for outcome in self.ports {
            let texts = outcome.caveats.iter().cloned();
            result.caveats.extend(
                texts.map(|text| self.build_port_caveat(outcome.port, CaveatKind::NotQuiet, text, false)),
            );
        }
        for outcome in self.ports {
            let faults = outcome.sender_fault.iter().cloned();
            result.caveats.extend(
                faults.map(|text| self.build_port_caveat(outcome.port, CaveatKind::EngineFailed, text, true)),
            );
            let faults = outcome.faults.iter().map(PortWorkerFault::describe_fault);
            result.caveats.extend(
                faults.map(|text| self.build_port_caveat(outcome.port, CaveatKind::PortFailed, text, true)),
            );
            let port = self.build_port_result(outcome, result);
            result.caveats.extend(self.build_lateness_caveat(outcome.port, &result.send));
            self.add_port_caveats(&port, &mut result.caveats);
            result.ports.push(port);
        }
        for sent in &result.send {
            self.add_sender_caveats(sent, &mut result.caveats);
        }
        for received in &result.receive {
            self.add_receiver_caveats(received, &mut result.caveats);
        }
        // A run that was stopped after its last frame is complete.
        if self.interrupted && result.send.iter().any(|sent| self.has_ended_early(sent)) {
            let text = "the run was stopped before its plan ended".to_owned();
            result.caveats.push(Caveat {
                doubt: CaveatKind::Interrupted,
                subject: result.node.clone(),
                text,
                matters: false,
            });
        }
        result.captures = captured
            .into_iter()
            .map(|(port, captured)| self.build_capture_result(port, captured, &mut result.caveats))
            .collect();
    }

    /// Adds caveats about the capture files that this node replayed, and about sent frames without a tag.
    pub(super) fn add_recording_caveats(&self, result: &mut NodeResult) {
        for sent in &result.send {
            if let Some(FrameSource::Recorded(track)) = self.specs.get(sent.stream).map(|spec| &spec.source) {
                for (text, matters) in track.remarks() {
                    result.caveats.push(self.build_stream_caveat(
                        sent.stream,
                        CaveatKind::Recording,
                        text,
                        matters,
                    ));
                }
            }
            let untagged = sent.counts.untagged;
            let frames = sent.counts.frames;
            if untagged > 0 {
                let text = format!(
                    "{untagged} of {frames} frames have no room for a tag; receivers compare their content instead"
                );
                result.caveats.push(self.build_stream_caveat(sent.stream, CaveatKind::Untagged, text, false));
            }
        }
    }

    /// Returns whether fewer frames of a stream were sent than planned; false for an endless stream.
    fn has_ended_early(&self, sent: &SendResult) -> bool {
        self.plan.streams[sent.stream].timeline.total_frames().is_some_and(|total| sent.counts.frames < total)
    }

    fn build_port_result(&self, outcome: &PortOutcome, result: &NodeResult) -> PortResult {
        let port = outcome.port;
        let mut tx_series = RateSeries::default();
        let sent: Vec<&SendResult> =
            result.send.iter().filter(|s| self.plan.plan.streams[s.stream].tx == port).collect();
        for sent in &sent {
            tx_series.merge(&sent.series);
        }
        let mut rx_series = RateSeries::default();
        let received: Vec<&ReceiveResult> = result.receive.iter().filter(|r| r.port == port).collect();
        for received in &received {
            rx_series.merge(&received.series);
        }
        let mut ledger = FrameLedger::default();
        // A port that only receives has no sent frames to balance.
        if !sent.is_empty() {
            add_sender_accounts(&mut ledger, &sent, &outcome.tx);
        }
        if let Some(rx) = &outcome.rx {
            add_receiver_accounts(&mut ledger, &received, rx);
        }
        PortResult {
            port,
            info: outcome.info.clone(),
            tx: outcome.tx,
            rx: outcome.rx.unwrap_or_default(),
            ledger,
            tx_series,
            rx_series,
            clock_bound: outcome.clock_bound,
            events: outcome
                .events
                .iter()
                .copied()
                .chain(outcome.faults.iter().map(PortWorkerFault::port_event))
                .collect(),
            untagged_contents: outcome.untagged_contents.clone(),
            peaks: outcome.peaks,
            sent_ahead: outcome.sent_ahead.clone(),
        }
    }

    fn add_port_caveats(&self, port: &PortResult, caveats: &mut Vec<Caveat>) {
        let mut doubts = PortCaveatCollector { account: self, port: port.port, caveats };
        // Frames lost by the rig look like loss of the device, so this caveat matters.
        let lost = port.rx.ring_dropped;
        if lost > 0 {
            doubts.add_caveat(
                CaveatKind::ReceiverLost,
                format!("the receive ring was full: the rig itself lost {lost} frames"),
                true,
            );
        }
        if port.tx.refused > 0 {
            doubts.add_caveat(
                CaveatKind::SenderShort,
                format!("the kernel refused to send {} frames", port.tx.refused),
                true,
            );
        }
        if let Some(dropped) = port.tx.dropped.filter(|dropped| *dropped > 0) {
            doubts.add_caveat(
                CaveatKind::SenderShort,
                format!("the interface dropped {dropped} frames on transmit"),
                true,
            );
        }
        // A veth drops redirected frames silently unless its peer has GRO on or an XDP program.
        if port.info.back_end == BackEnd::Xdp
            && port.info.driver == "veth"
            && port.tx.handed_over > 0
            && port.tx.on_wire == Some(0)
        {
            let text = "the other end of this virtual cable does not accept live frames; switch its GRO on \
                (`ethtool -K IF gro on`) or use back end packet"
                .to_owned();
            doubts.add_caveat(CaveatKind::SenderShort, text, true);
        }
        if port.rx.foreign > 0 {
            let text = format!("{} frames arrived without a tag of this run", port.rx.foreign);
            doubts.add_caveat(CaveatKind::ForeignFrames, text, false);
        }
        // An imbalance means a bug or a wrong counter of a driver. In both cases the counts are uncertain.
        for imbalance in port.ledger.find_imbalances() {
            doubts.add_caveat(CaveatKind::Unbalanced, imbalance.to_string(), true);
        }
        let unchecked = port.ledger.unchecked_rules();
        if !unchecked.is_empty() {
            doubts.add_caveat(
                CaveatKind::NotMeasured,
                format!(
                    "these ledger rules could not be checked, because a counter is missing: {}",
                    unchecked.join("; ")
                ),
                false,
            );
        }
    }

    fn add_sender_caveats(&self, sent: &SendResult, caveats: &mut Vec<Caveat>) {
        // These are caveats and never a verdict: faults of the rig must not count against the device (decision 0017).
        let unsent = sent.planned.saturating_sub(sent.counts.frames);
        if unsent > 0 {
            let text = format!(
                "{unsent} of {} planned frames were not sent in time ({}): the sender did not reach its rate",
                sent.planned,
                Ratio::new(unsent, sent.planned)
            );
            caveats.push(self.build_stream_caveat(sent.stream, CaveatKind::SenderShort, text, true));
        }
        if sent.counts.lease_ended {
            // An endless stream has no total to compare with.
            let total = self.plan.streams[sent.stream].timeline.total_frames();
            let of = total.map_or(String::new(), |total| format!(" of {total}"));
            let text = format!(
                "the lease expired because the controller did not renew it: the sender stopped after {}{of} frames",
                sent.counts.frames
            );
            caveats.push(self.build_stream_caveat(sent.stream, CaveatKind::LeaseEnded, text, true));
        }
    }

    /// Builds one caveat for the late frames of a port: a stall makes frames of all its streams late.
    fn build_lateness_caveat(&self, port: usize, sent: &[SendResult]) -> Option<Caveat> {
        let streams = &self.plan.plan.streams;
        let late: Vec<_> =
            sent.iter().filter(|row| row.counts.late > 0 && streams[row.stream].tx == port).collect();
        let frames: u64 = late.iter().map(|row| row.counts.late).sum();
        let share = Ratio::new(frames, late.iter().map(|row| row.counts.frames).sum());
        let latest = late.iter().filter_map(|row| row.send_error.max()).max()?;
        let said = |of: &str| {
            format!(
                "{frames} frames{of} ({share}) left more than {LATE_FRAME_THRESHOLD} late, up to {latest}"
            )
        };
        Some(match late.as_slice() {
            [only] => self.build_stream_caveat(only.stream, CaveatKind::SentLate, said(""), false),
            many => {
                let text = said(&format!(" of {} streams", many.len()));
                self.build_port_caveat(port, CaveatKind::SentLate, text, false)
            }
        })
    }

    fn add_receiver_caveats(&self, received: &ReceiveResult, caveats: &mut Vec<Caveat>) {
        let stream = &self.plan.plan.streams[received.stream];
        if received.counts.negative > 0 {
            let text = format!(
                "{} frames seem to have arrived before they were sent, by up to {}: the clocks disagree",
                received.counts.negative,
                Nanos::new(received.counts.least_delay_ns.unsigned_abs())
            );
            caveats.push(self.build_stream_caveat(received.stream, CaveatKind::Clock, text, false));
        }
        // Without a send time there is no latency, and the report must say why the value is absent.
        let spec = self.specs.get(received.stream);
        let sent_elsewhere = spec.is_some_and(|spec| spec.sent_elsewhere);
        let is_untimed = spec.is_some_and(|spec| spec.untimed);
        if stream.metrics.enable
            && stream.metrics.latency
            && received.latency.is_none()
            && received.counts.frames > 0
        {
            let why = if is_untimed {
                "another program sends frames that were built before the run, without a send time"
            } else if sent_elsewhere {
                "the sender's clock could not be compared with this node's clock, or the frames have no room for \
                    a send time"
            } else {
                "the frames have no room for a send time"
            };
            let text = format!("{why}: the latency was not measured");
            caveats.push(self.build_stream_caveat(received.stream, CaveatKind::NoSendTime, text, false));
        }
        // If the sender's link speed is not known here, this node had to assume the rate of a stream in percent of it.
        let is_exact = self.plan.streams.get(received.stream).is_some_and(|bound| !bound.assumed);
        let has_seconds = is_exact && stream.frames.recording().is_none();
        if sent_elsewhere && received.counts.sequence.lost > 0 && !has_seconds {
            let text = "another node sends this stream, so this node does not know exactly when its frames were due: the \
                number of seconds with loss is an estimate";
            caveats.push(self.build_stream_caveat(
                received.stream,
                CaveatKind::NotMeasured,
                text.to_owned(),
                false,
            ));
        }
    }

    fn build_capture_result(
        &self,
        port: usize,
        captured: CaptureOutcome,
        caveats: &mut Vec<Caveat>,
    ) -> CaptureResult {
        let dropped = captured.missing.total();
        if dropped > 0 {
            let reasons = captured.missing.describe_reasons().join(", ");
            let failure = captured.failure.map(|why| format!(" ({why})")).unwrap_or_default();
            let text = format!("the capture lacks {dropped} frames: {reasons}{failure}");
            caveats.push(self.build_port_caveat(port, CaveatKind::CaptureIncomplete, text, false));
        } else if let Some(why) = captured.failure {
            let text = format!("the capture file could not be completed: {why}");
            caveats.push(self.build_port_caveat(port, CaveatKind::CaptureIncomplete, text, false));
        }
        CaptureResult { port, file: captured.file.display().to_string(), written: captured.written, dropped }
    }

    fn build_stream_caveat(&self, stream: usize, doubt: CaveatKind, text: String, matters: bool) -> Caveat {
        Caveat { doubt, subject: self.plan.plan.streams[stream].name.clone(), text, matters }
    }

    fn build_port_caveat(&self, port: usize, doubt: CaveatKind, text: String, matters: bool) -> Caveat {
        Caveat { doubt, subject: self.plan.plan.ports[port].name.clone(), text, matters }
    }
}

/// Collects the caveats about one port.
struct PortCaveatCollector<'a, 'b> {
    account: &'a RigResultBuilder<'b>,
    port: usize,
    caveats: &'a mut Vec<Caveat>,
}

impl PortCaveatCollector<'_, '_> {
    fn add_caveat(&mut self, doubt: CaveatKind, text: String, matters: bool) {
        self.caveats.push(self.account.build_port_caveat(self.port, doubt, text, matters));
    }
}

fn add_sender_accounts(ledger: &mut FrameLedger, sent: &[&SendResult], port: &TxCounters) {
    let planned = sent.iter().map(|s| s.planned).sum();
    // The ledger balances planned = unsent + built.
    let built: u64 = sent.iter().map(|s| s.counts.frames).sum();
    ledger.add_frames(LedgerAccount::Planned, planned);
    ledger.add_frames(LedgerAccount::Unsent, sent.iter().map(|s| s.planned - s.counts.frames).sum());
    ledger.add_frames(LedgerAccount::Built, built);
    ledger.add_sending_port_counters(port);
}

fn sum_counts(received: &[&ReceiveResult], of: fn(&ReceiveResult) -> u64) -> u64 {
    received.iter().map(|result| of(result)).sum()
}

fn add_receiver_accounts(ledger: &mut FrameLedger, received: &[&ReceiveResult], port: &RxCounters) {
    ledger.add_receiving_port_counters(port);
    ledger.add_frames(LedgerAccount::Recognised, sum_counts(received, |r| r.counts.frames));
    ledger.add_frames(LedgerAccount::Counted, sum_counts(received, |r| r.counts.sequence.unique));
    ledger.add_frames(LedgerAccount::Duplicate, sum_counts(received, |r| r.counts.sequence.duplicates));
    ledger.add_frames(LedgerAccount::Stale, sum_counts(received, |r| r.counts.sequence.stale));
}
