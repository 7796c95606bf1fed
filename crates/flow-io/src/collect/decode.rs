//! The decoding thread: decodes messages, hands the records to the outlet, and publishes its state.
//!
//! Invariant: the outlet gets every decoded record before the thread ends. Exception: packets that a meter group has
//! reported before are taken out of its records, and records without other packets are left out.

use super::CollectOptions;
use super::intake::{DecoderQueueItem, MessageBlock, collector_clock_ns};
use super::ledger::{ExporterLedger, GroupLedger, HandedOverRecords};
use crossbeam_channel::{Receiver, RecvTimeoutError};
use packetrig_flow::collect::{
    ExportProtocol, ExporterIdentity, FlowCollector, FlowGatherer, ForgottenExporters, GroupRecordJoiner,
    MalformedMessage, MessageTransport, ReceivedMessage, RefusedMessages, SessionCounts,
};
use packetrig_flow::{FlowRecord, MeterLedger};
use packetrig_sys::clock;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Maximum number of records that wait for the outlet.
const MAX_PENDING_RECORDS: usize = 8192;
/// Maximum number of exporters' ledgers that wait for the outlet.
const MAX_PENDING_LEDGERS: usize = 256;
/// Maximum number of records that the outlet gets in one call.
const MAX_RECORDS_PER_CALL: usize = 1024;
/// Interval at which the outlet gets the waiting records and the current state is published.
const TICK_INTERVAL_NS: u64 = 200_000_000;
/// With many exporters a tick takes long. The next tick begins after this many times the duration of the last one, so
/// that ticks take at most 1/20 of the time, but after `MAX_TICK_INTERVAL_NS` at the latest.
const TICK_SHARE_DIVISOR: u64 = 20;
const MAX_TICK_INTERVAL_NS: u64 = 2_000_000_000;

/// Destination of the records and ledgers that a collector has decoded.
pub trait CollectedRecordReceiver: Send {
    /// Receives records of one exporter.
    fn accept_records(&mut self, records: &[FlowRecord], exporter: &ExporterIdentity);

    /// Receives the loss ledger that a packetrig exporter sent, with its time in nanoseconds since 1970.
    fn accept_ledger(&mut self, ledger: &MeterLedger, exporter: &ExporterIdentity, at_ns: u64) {
        let _ = (ledger, exporter, at_ns);
    }

    /// Called every 0.2 to 2 seconds with the state of all exporters, after the calls for all earlier records.
    fn on_tick(&mut self, exporters: &[ExporterLedger]) {
        let _ = exporters;
    }
}

/// State of the collector as of the last tick.
#[derive(Clone, Debug, Default)]
pub(super) struct CollectorSnapshot {
    pub(super) exporters: Vec<ExporterLedger>,
    pub(super) total: SessionCounts,
    pub(super) refused: RefusedMessages,
    pub(super) forgotten: ForgottenExporters,
    pub(super) memory: u64,
    pub(super) handed: HandedOverRecords,
    pub(super) groups: Vec<GroupLedger>,
}

pub(super) struct MessageDecoder<O> {
    collector: FlowCollector,
    gather: FlowGatherer<ExporterIdentity>,
    pending: PendingRecords<O>,
    /// Time at which the next tick is due.
    due_ns: u64,
}

/// Records on their way to the outlet.
struct PendingRecords<O> {
    records: BTreeMap<ExporterIdentity, Vec<FlowRecord>>,
    waiting: usize,
    ledgers: Vec<(ExporterIdentity, u64, MeterLedger)>,
    handed: HandedOverRecords,
    grouped: GroupRecordJoiner,
    /// Group records in messages with an earlier export time are not stored. In seconds since 1970; 0 means that all
    /// group records are stored.
    taken_from_s: u64,
    /// Offset from the monotonic clock to Unix time, read once: in the accounts of groups, times of
    /// arrival must not jump.
    epoch_ns: u64,
    outlet: O,
}

impl<O: CollectedRecordReceiver> PendingRecords<O> {
    /// Queues the part of a record that no other meter of its group has reported.
    fn queue_pending_record(&mut self, exporter: ExporterIdentity, record: FlowRecord, sent_s: Option<u64>) {
        let now_ns = self.epoch_ns + clock::monotonic_ns();
        if record.history.is_some() && sent_s.is_some_and(|sent_s| sent_s < self.taken_from_s) {
            // On a new connection, meters send their most recent messages again. The previous process of this
            // collector has probably stored these records.
            return self.grouped.count_already_stored_record(&record, now_ns);
        }
        for new in self.grouped.reduce_to_unstored_packets(record, now_ns) {
            self.records.entry(exporter).or_default().push(new);
            self.waiting += 1;
        }
        // Bounds the memory between two ticks, whatever the exporters send.
        if self.waiting >= MAX_PENDING_RECORDS {
            self.pass_pending_records_on();
        }
    }

    fn queue_pending_ledger(&mut self, exporter: ExporterIdentity, at_ns: u64, ledger: &MeterLedger) {
        self.ledgers.push((exporter, at_ns, *ledger));
        if self.ledgers.len() >= MAX_PENDING_LEDGERS {
            self.pass_pending_records_on();
        }
    }

    /// Hands all waiting records and ledgers to the outlet. Frees the buffers of the records, so that an exporter that
    /// once sent much data does not occupy memory for ever.
    fn pass_pending_records_on(&mut self) {
        for (exporter, records) in std::mem::take(&mut self.records) {
            for batch in records.chunks(MAX_RECORDS_PER_CALL) {
                self.outlet.accept_records(batch, &exporter);
                self.handed.add_records(batch);
            }
        }
        self.waiting = 0;
        for (exporter, at_ns, ledger) in self.ledgers.drain(..) {
            self.outlet.accept_ledger(&ledger, &exporter, at_ns);
        }
    }
}

// Nothing is lost silently: the session or the collector has counted the malformed message.
fn ignore_malformed(_decoded: Result<(), MalformedMessage>) {}

impl<O: CollectedRecordReceiver> MessageDecoder<O> {
    pub(super) fn new(options: &CollectOptions, outlet: O, grouped: GroupRecordJoiner) -> Self {
        let epoch_ns = clock::wall_clock_ns().saturating_sub(clock::monotonic_ns());
        let mut of_collector = options.collector.clone();
        of_collector.session.epoch_ns = epoch_ns;
        Self {
            collector: FlowCollector::new(of_collector),
            gather: FlowGatherer::new(options.gather),
            pending: PendingRecords {
                records: BTreeMap::new(),
                waiting: 0,
                ledgers: Vec::new(),
                handed: HandedOverRecords::default(),
                grouped,
                taken_from_s: if options.has_memory { 0 } else { clock::wall_clock_ns() / 1_000_000_000 },
                epoch_ns,
                outlet,
            },
            due_ns: clock::monotonic_ns() + TICK_INTERVAL_NS,
        }
    }

    /// Decodes until every listener and file reader has dropped its sender, and returns the outlet.
    pub(super) fn decode_until_closed(
        mut self,
        items: &Receiver<DecoderQueueItem>,
        known: &Mutex<CollectorSnapshot>,
    ) -> O {
        loop {
            match items.recv_timeout(Duration::from_nanos(TICK_INTERVAL_NS)) {
                Ok(DecoderQueueItem::Messages(messages)) => self.decode_block(&messages),
                Ok(DecoderQueueItem::Closed(source)) => self.collector.close_source(source),
                // The tick below also happens without messages, because open flows end after a time.
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if clock::monotonic_ns() >= self.due_ns {
                self.emit_flows_and_publish_counts(known);
            }
        }
        // Flows that SIM still holds open become records now; the last tick passes them on and publishes the final state.
        let Self { gather, pending, .. } = &mut self;
        gather.finish_flows(&mut |exporter, record| pending.queue_pending_record(exporter, record, None));
        self.emit_flows_and_publish_counts(known);
        self.pending.outlet
    }

    fn decode_block(&mut self, messages: &MessageBlock) {
        // The time of arrival, not of decoding: the time in the queue must not age templates and flows.
        let now_ns = messages.at_ns;
        let Self { collector, gather, pending, .. } = self;
        let mut delivered = 0;
        for (source, message) in messages.iter() {
            // All records of a file count, at whatever time they were sent.
            let sent_s =
                if source.transport == MessageTransport::File { None } else { ipfix_export_time_s(message) };
            let decoded = collector.receive_message(source, message, now_ns, &mut |exporter, received| {
                delivered += u64::from(received.is_delivery());
                match received {
                    ReceivedMessage::Record(record) => {
                        pending.queue_pending_record(*exporter, record, sent_s);
                    }
                    ReceivedMessage::Sim(event) => {
                        gather.add_event(*exporter, event, now_ns, &mut |of, record| {
                            pending.queue_pending_record(of, record, None);
                        });
                    }
                    ReceivedMessage::Statistics(statistics) => {
                        if let Some(membership) = &statistics.membership {
                            pending.grouped.note_membership(membership);
                        }
                        if let Some(ledger) = &statistics.ledger {
                            pending.queue_pending_ledger(*exporter, statistics.at_ns, ledger);
                        }
                    }
                    // The session has already counted gaps and restarts.
                    ReceivedMessage::Gap { .. } | ReceivedMessage::Restart => {}
                }
            });
            ignore_malformed(decoded);
        }
        if let Some(of_connection) = &messages.delivered {
            of_connection.add_records(delivered);
        }
    }

    fn emit_flows_and_publish_counts(&mut self, known: &Mutex<CollectorSnapshot>) {
        let began_ns = clock::monotonic_ns();
        let now_ns = collector_clock_ns();
        let Self { collector, gather, pending, .. } = self;
        collector.expire_old_state(now_ns);
        gather
            .advance_to(now_ns, &mut |exporter, record| pending.queue_pending_record(exporter, record, None));
        // The records are handed over before the outlet's tick, as `CollectedRecordReceiver::on_tick` promises.
        pending.pass_pending_records_on();
        // The snapshot is made after the hand-over, so that its counts include the records that the outlet has.
        let snapshot = self.snapshot_state();
        // The outlet's tick comes before the lock is taken, so that readers of the ledger never wait for an
        // outlet.
        self.pending.outlet.on_tick(&snapshot.exporters);
        *known.lock().unwrap_or_else(PoisonError::into_inner) = snapshot;
        // The next tick is due after TICK_SHARE_DIVISOR times the duration of this one: copying the counters of
        // very many exporters must not stop the decoding.
        let took_ns = clock::monotonic_ns().saturating_sub(began_ns);
        self.due_ns = began_ns
            + took_ns.saturating_mul(TICK_SHARE_DIVISOR).clamp(TICK_INTERVAL_NS, MAX_TICK_INTERVAL_NS);
    }

    fn snapshot_state(&self) -> CollectorSnapshot {
        let ended = self.collector.ended_exporters().map(|of| (false, of));
        let here = self.collector.exporters().map(|of| (true, of));
        let exporters = here.chain(ended).map(|(is_here, (exporter, counts, reported))| ExporterLedger {
            exporter: *exporter,
            is_here,
            counts: counts.clone(),
            reported: reported.copied(),
            // An ended session is listed without its port, so another session may have the same identity.
            numbers: self.collector.sequence_numbers(exporter).filter(|_| is_here),
            interfaces: if is_here { self.collector.interface_counters(exporter) } else { Vec::new() },
        });
        CollectorSnapshot {
            exporters: exporters.collect(),
            total: self.collector.total_counts(),
            refused: self.collector.refused_messages(),
            forgotten: self.collector.forgotten_exporters(),
            memory: (self.collector.memory_bytes() + self.pending.grouped.memory_bytes()) as u64,
            groups: self
                .pending
                .grouped
                .groups()
                .map(|(group, counts)| GroupLedger::new(group, counts))
                .collect(),
            handed: HandedOverRecords { open_packets: self.open_packets(), ..self.pending.handed },
        }
    }

    fn open_packets(&self) -> u64 {
        let has_sim =
            self.collector.exporters().any(|(exporter, ..)| exporter.protocol == ExportProtocol::Sim);
        // The sum walks over all open flows, so a collector without SIM exporters skips it.
        if has_sim { self.gather.open_packets() } else { 0 }
    }
}

/// Reads the export time of an IPFIX message, in seconds since 1970 (RFC 7011, section 3.1). A message that is sent
/// again keeps its time. `None` for other protocols.
fn ipfix_export_time_s(message: &[u8]) -> Option<u64> {
    let (version, rest) = message.split_first_chunk::<2>()?;
    let time = rest.get(2..6)?.try_into().ok()?;
    (*version == [0, 10]).then(|| u32::from_be_bytes(time).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_export_time_comes_from_header() {
        assert_eq!(ipfix_export_time_s(&[0, 10, 0, 20, 0, 0, 1, 2, 9]), Some(258));
        assert_eq!(ipfix_export_time_s(&[0, 9, 0, 20, 0, 0, 1, 2, 9]), None);
        assert_eq!(ipfix_export_time_s(&[0, 10, 0, 20, 0]), None);
    }
}
