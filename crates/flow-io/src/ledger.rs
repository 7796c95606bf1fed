//! The meter's ledger: all accounts in one place, at any time and at the end.
//!
//! Workers publish their counters, outputs return theirs on request, and the kernel reports the counters of
//! interfaces. While a meter works, the content of a queue is everything that was offered and is in no other
//! account. At the end the outputs report their remaining records, and everything must add up.
//!
//! Invariant: this module counts nothing itself; an unknown count is absent.

mod account_lines;
mod arrival;
mod exposition;

pub use account_lines::{LedgerLine, ledger_lines};
pub use arrival::ArrivalCheck;
pub(crate) use arrival::InterfaceTotals;
pub use exposition::prometheus_text;

use crate::backpressure::{BackpressurePolicy, OutputQueue};
use crate::export::{self, ExportCountsReader};
use crate::group::{GroupReport, GroupRoleHandle};
use crate::outbox::OutputChannels;
pub use crate::output_report::OutputReport;
use crate::source::{ReadCounts, SharedInterfaceCounts};
use crate::worker::{WorkerCounts, WorkerStatus};
use crossbeam_channel::{Receiver, Sender, bounded};
use packetrig_flow::{
    CaptureCounts, CarriedRecords, CountImbalance, ExportCounts, MeterLedger, PacketCounts, RecordLosses,
};
use packetrig_sys::clock;
use packetrig_units::RemovedFiles;
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of batches that wait for a sink: 65,536 records.
pub const MAX_QUEUED_BATCHES: usize = 256;

/// Counts of a sink, for the records that the sink's queue has accepted.
#[derive(Clone, Debug, Default)]
pub struct SinkCounts {
    pub stored: CarriedRecords,
    pub waiting: CarriedRecords,
    pub losses: RecordLosses,
    pub file_bytes: u64,
    /// Old files that the sink has removed.
    pub removed: RemovedFiles,
    /// Text of the last error.
    pub failure: Option<String>,
}

/// Returns the stored, lost and waiting records of a sink.
pub type SinkAccount = Box<dyn Fn() -> SinkCounts + Send + Sync>;

/// A sink and its accounts.
struct LedgerSink {
    name: String,
    /// Sender of the sink's queue; `None` once the meter has started and taken it.
    queue: Option<Sender<crate::WorkerBatch>>,
    account: SinkAccount,
}

/// The export: its accounts, and its queue, which is taken when the meter starts.
struct LedgerExport {
    queue: Option<(export::ExportQueueSender, bool)>,
    watch: ExportCountsReader,
}

/// Source of the packets, with its counters.
#[derive(Debug, Default)]
pub(crate) enum LedgerPacketSource {
    #[default]
    Nothing,
    Files(Arc<ReadCounts>),
    Interfaces(Vec<SharedInterfaceCounts>),
}

#[derive(Default)]
pub struct MeterAccounts {
    /// Time at which the workers were ready.
    start_ns: AtomicU64,
    backpressure: BackpressurePolicy,
    export: Mutex<Option<LedgerExport>>,
    sinks: Mutex<Vec<LedgerSink>>,
    worker_statuses: Mutex<Vec<Arc<WorkerStatus>>>,
    captured: Mutex<Arc<LedgerPacketSource>>,
    group: Mutex<Option<GroupRoleHandle>>,
}

impl std::fmt::Debug for MeterAccounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MeterAccounts").finish_non_exhaustive()
    }
}

/// The ledger of a meter at one moment, with its outputs, its group and remarks.
#[derive(Clone, Debug, Serialize)]
pub struct LedgerReport {
    pub elapsed_ns: u64,
    /// The ledger; `export` in it is the sum of all outputs.
    pub ledger: MeterLedger,
    /// Comparison of the interfaces' own counters with the ledger; absent before the end, for files, and if an interface is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arrival: Option<ArrivalCheck>,
    pub outputs: Vec<OutputReport>,
    /// State of the meter in its group, if one meter exports for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupReport>,
    /// Rules of the ledger that do not hold; empty before the end.
    pub imbalances: Vec<String>,
    /// Remarks about the source, such as a file that ends within its last packet.
    pub remarks: Vec<String>,
    /// Files that could be read only in part.
    pub damages: Vec<String>,
    /// True if the meter was stopped before it had read the files to their end.
    pub stopped: bool,
}

impl MeterAccounts {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { start_ns: clock::monotonic_ns().into(), ..Self::default() })
    }

    /// Returns the policy that decides whether workers wait when a queue is full.
    pub fn backpressure(&self) -> &BackpressurePolicy {
        &self.backpressure
    }

    /// Adds a sink of records, and returns the receiver of the sink's queue. The ledger calls `account` to read the
    /// counts of the sink.
    pub fn add_sink(&self, name: String, account: SinkAccount) -> Receiver<crate::WorkerBatch> {
        // The queue is bounded: a slow sink loses batches, which are counted, but does not fill the memory.
        let (batches, taken) = bounded(MAX_QUEUED_BATCHES);
        lock_ignoring_poison(&self.sinks).push(LedgerSink { name, queue: Some(batches), account });
        taken
    }

    /// Sets the export. It receives SIM events if `wants_events`, otherwise records.
    pub fn set_export(
        &self,
        queue: export::ExportQueueSender,
        wants_events: bool,
        watch: ExportCountsReader,
    ) {
        *lock_ignoring_poison(&self.export) =
            Some(LedgerExport { queue: Some((queue, wants_events)), watch });
    }

    pub fn set_group_role_handle(&self, role_handle: GroupRoleHandle) {
        *lock_ignoring_poison(&self.group) = Some(role_handle);
    }

    /// State of the meter in its group, if one meter exports for all.
    pub fn group_report(&self) -> Option<GroupReport> {
        lock_ignoring_poison(&self.group).as_ref().map(|seat| GroupReport::from_status(&seat.status()))
    }

    /// Removes and returns the senders of the outputs' queues. Only the workers have clones then, so a queue closes
    /// when the last worker ends.
    pub fn take_output_senders(&self) -> OutputChannels {
        OutputChannels {
            export: lock_ignoring_poison(&self.export).as_mut().and_then(|export| export.queue.take()),
            sinks: lock_ignoring_poison(&self.sinks)
                .iter_mut()
                .filter_map(|sink| Some(OutputQueue::new(sink.queue.take()?, &self.backpressure)))
                .collect(),
            backpressure: self.backpressure.clone(),
        }
    }

    pub(crate) fn set_workers_and_source(
        &self,
        worker_statuses: Vec<Arc<WorkerStatus>>,
        captured: LedgerPacketSource,
    ) {
        // The time is set again: allocating the tables has taken time in which no packet was metered.
        self.start_ns.store(clock::monotonic_ns(), Ordering::Release);
        *lock_ignoring_poison(&self.worker_statuses) = worker_statuses;
        *lock_ignoring_poison(&self.captured) = Arc::new(captured);
    }

    /// Reads the ledger as of now. Rates are differences of two ledgers.
    pub fn current_ledger(&self) -> MeterLedger {
        self.take_snapshot(false).ledger
    }

    /// Reports all accounts as of now. If `is_over`, all threads have ended, and the rules of the ledger are checked.
    pub fn build_report(&self, is_over: bool) -> LedgerReport {
        let snapshot = self.take_snapshot(is_over);
        let arrival_remark = snapshot.arrival.and_then(|arrival| arrival.difference_remark(&snapshot));
        let LedgerSnapshot { ledger, arrival, outputs, notes } = snapshot;
        let captured = Arc::clone(&lock_ignoring_poison(&self.captured));
        let read = if let LedgerPacketSource::Files(read) = &*captured { Some(read) } else { None };
        let mut found = Vec::new();
        // While threads work, the accounts are read at slightly different times and need not balance.
        if is_over {
            found.extend(ledger.find_imbalances());
            found.extend(check_count_rules(&notes));
            found.extend(outputs.iter().flat_map(OutputReport::imbalances));
        }
        LedgerReport {
            elapsed_ns: clock::monotonic_ns().saturating_sub(self.start_ns.load(Ordering::Acquire)),
            ledger,
            arrival,
            outputs,
            group: self.group_report(),
            imbalances: found.iter().map(ToString::to_string).collect(),
            remarks: read
                .map(|read| read.remarks())
                .unwrap_or_default()
                .into_iter()
                .chain(arrival_remark)
                .collect(),
            damages: read.map(|read| read.damage_remarks()).unwrap_or_default(),
            stopped: read.is_some_and(|read| read.is_stopped()),
        }
    }

    fn take_snapshot(&self, is_over: bool) -> LedgerSnapshot {
        // Workers are read before their outputs: an output may then be
        // ahead, and differences saturate at zero.
        let notes: Vec<WorkerCounts> = lock_ignoring_poison(&self.worker_statuses)
            .iter()
            .map(|status| status.published_counts())
            .collect();
        let mut packets = PacketCounts::default();
        for notes in &notes {
            packets.add_counts(&notes.counts);
        }
        let watched = lock_ignoring_poison(&self.export).as_ref().map(|export| export.watch.output_reports());
        let exports = watched.into_iter().flatten();
        let sinks = lock_ignoring_poison(&self.sinks);
        let sinks = sinks.iter().enumerate().map(|(n, sink)| build_sink_report(n, sink, &notes, is_over));
        let outputs: Vec<_> = exports.chain(sinks).collect();
        let mut export = ExportCounts::default();
        for output in &outputs {
            add_counts(&mut export, &output.counts);
        }
        let mut ledger = MeterLedger { capture: sum_capture_counts(&notes), packets, export };
        let arrival = self.count_arrivals(&mut ledger, &notes, is_over);
        LedgerSnapshot { ledger, arrival, outputs, notes }
    }

    /// Writes into the ledger how many packets arrived at the interfaces or were in the files. At the end, compares
    /// them with the interfaces' counters.
    fn count_arrivals(
        &self,
        ledger: &mut MeterLedger,
        notes: &[WorkerCounts],
        is_over: bool,
    ) -> Option<ArrivalCheck> {
        match &**lock_ignoring_poison(&self.captured) {
            LedgerPacketSource::Nothing => None,
            LedgerPacketSource::Files(read) => {
                // Packets that a stopped worker left in its block were read, but never reached the parser.
                let left: u64 = notes.iter().map(|notes| notes.left).sum();
                let records = read.packets().saturating_sub(left);
                ledger.capture.arrived = Some(records + ledger.packets.packets_gained_by_splitting());
                None
            }
            LedgerPacketSource::Interfaces(interfaces) => {
                // The counters of a removed interface are unknown, and so are the sums then.
                let read: Option<Vec<_>> =
                    interfaces.iter().map(|counts| lock_ignoring_poison(counts).read_totals()).collect();
                let totals = read?.into_iter().fold(InterfaceTotals::default(), InterfaceTotals::add_totals);
                // The interface may be ahead of the ring now, so the two are compared only at the end.
                if !is_over {
                    arrival::set_estimated_arrivals(&mut ledger.capture, totals);
                    return None;
                }
                let sent_frames = notes.iter().map(|notes| notes.sent.frames).sum();
                Some(arrival::compare_and_set_arrivals(ledger, sent_frames, totals))
            }
        }
    }
}

/// Sums the workers' counts of packets before the parser.
fn sum_capture_counts(notes: &[WorkerCounts]) -> CaptureCounts {
    CaptureCounts {
        ring_dropped: notes.iter().map(|notes| notes.ring_dropped).sum(),
        delivered: notes.iter().map(|notes| notes.delivered).sum(),
        sent: notes.iter().map(|notes| notes.sent.packets).sum(),
        ..CaptureCounts::default()
    }
}

/// Everything that [`MeterAccounts::take_snapshot`] reads at one time.
struct LedgerSnapshot {
    ledger: MeterLedger,
    arrival: Option<ArrivalCheck>,
    outputs: Vec<OutputReport>,
    notes: Vec<WorkerCounts>,
}

fn lock_ignoring_poison<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn build_sink_report(
    number: usize,
    sink: &LedgerSink,
    notes: &[WorkerCounts],
    is_over: bool,
) -> OutputReport {
    let mut counts = ExportCounts::default();
    let mut losses = RecordLosses::default();
    for offered in notes.iter().filter_map(|notes| notes.offered.get(number)) {
        counts.offered.add_records(offered.offered);
        losses.add_losses(&offered.lost);
    }
    let SinkCounts { stored, waiting, losses: refused, file_bytes, removed, failure } = (sink.account)();
    // The worker counts losses of the queue, the sink counts refused records: no record is in both.
    counts.queue_dropped = losses.total_records();
    counts.refused = refused.total_records();
    losses.add_losses(&refused);
    counts = ExportCounts { sent: stored, waiting, message_bytes: file_bytes, ..counts };
    if !is_over {
        // A running sink does not count the records in its queue. At the end, a record in no account is a bug, so the
        // difference must not be hidden then.
        counts.waiting = unaccounted_records(&counts);
    }
    OutputReport { to: sink.name.clone(), counts, losses, removed, failure }
}

/// Returns the records that were offered and are in no other account. Saturates, because a sink may count a record
/// before the worker has published that it was offered.
fn unaccounted_records(counts: &ExportCounts) -> CarriedRecords {
    let mut gone = counts.queue_dropped;
    gone.add_records(counts.sent);
    gone.add_records(counts.refused);
    gone.add_records(counts.left_to_others);
    CarriedRecords {
        records: counts.offered.records.saturating_sub(gone.records),
        packets: counts.offered.packets.saturating_sub(gone.packets),
        bytes: counts.offered.bytes.saturating_sub(gone.bytes),
    }
}

fn add_counts(sum: &mut ExportCounts, counts: &ExportCounts) {
    sum.offered.add_records(counts.offered);
    sum.queue_dropped.add_records(counts.queue_dropped);
    sum.sent.add_records(counts.sent);
    sum.refused.add_records(counts.refused);
    sum.left_to_others.add_records(counts.left_to_others);
    sum.waiting.add_records(counts.waiting);
    sum.messages += counts.messages;
    sum.message_bytes += counts.message_bytes;
    sum.own_records += counts.own_records;
}

/// Checks rules that hold at the end, in addition to those of the ledger itself, and returns the rules
/// that do not hold.
fn check_count_rules(notes: &[WorkerCounts]) -> Vec<CountImbalance> {
    // `None` if one of the rings does not count its frames: then the rule cannot be checked.
    let rings: Option<u64> = notes.iter().map(|notes| notes.put_in).sum();
    // A merged frame is one frame in the ring, but several delivered packets.
    let given: u64 =
        notes.iter().map(|notes| notes.delivered - notes.counts.packets_gained_by_splitting()).sum();
    let live: u64 = notes.iter().map(|notes| notes.counts.live).sum();
    let rules = [
        ("frames put into the rings = frames delivered", rings.unwrap_or(given), given),
        ("packets in live flows at the end = 0", live, 0),
    ];
    let broken = rules.into_iter().filter(|(_, left, right)| left != right);
    broken.map(|(rule, left, right)| CountImbalance { rule, left, right }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::OfferedCounts;
    use packetrig_flow::LossCause;

    #[test]
    fn sink_records_not_yet_stored_are_waiting() {
        let accounts = MeterAccounts::new();
        let carried = |records| CarriedRecords { records, packets: 2 * records, bytes: 3 * records };
        let lost = |cause, records| {
            let mut losses = RecordLosses::default();
            losses.add_loss(cause, carried(records));
            losses
        };
        let losses = lost(LossCause::Refused, 1);
        let counts = SinkCounts { stored: carried(4), losses, ..SinkCounts::default() };
        let taken = accounts.add_sink("file".into(), Box::new(move || counts.clone()));
        let offered = OfferedCounts { offered: carried(10), lost: lost(LossCause::QueueFull, 2) };
        let status = Arc::<WorkerStatus>::default();
        status.publish(WorkerCounts { offered: vec![offered], ..WorkerCounts::default() });
        accounts.set_workers_and_source(vec![Arc::clone(&status)], LedgerPacketSource::Nothing);
        let ledger = accounts.current_ledger();
        assert_eq!((ledger.export.offered, ledger.export.waiting), (carried(10), carried(3)));
        assert_eq!(ledger.capture.arrived, None);
        drop(taken);
        // At the end no record may wait: an offered record in no account is a defect, and no sink may hide it.
        let report = accounts.build_report(true);
        assert_eq!(report.ledger.export.waiting, CarriedRecords::default());
        assert_eq!(report.outputs[0].losses.total_records(), carried(3));
        let rule = "records offered to an output = stored + left to others + lost by cause";
        assert!(report.imbalances.iter().any(|text| text.contains(rule)), "{:?}", report.imbalances);
    }
}
