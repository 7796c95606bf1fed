//! The sinks that store records, each on a separate thread.
//!
//! If the queue of a slow sink is full, files and TCP connections are read more slowly. Records that came over UDP are
//! dropped instead, but only for the slow sink.

use super::earlier::DirectoryProgress;
use crate::args::{AlertArgs, RecordStoreArgs};
use crate::commands::flows::recover_killed_files;
use crate::error::Error;
use crate::losses::split_sink_losses_by_cause;
use crate::output::print_remark;
use packetrig_flow::collect::{ExporterIdentity, MessageTransport};
use packetrig_flow::{CarriedRecords, FlowRecord, MeterLedger};
use packetrig_flow_io::collect::{CollectedRecordReceiver, ExporterLedger};
use packetrig_flow_store::alert::AlertCountsReader;
use packetrig_flow_store::progress::KilledCollectorRecords;
use packetrig_flow_store::recover::RecoveredFiles;
use packetrig_flow_store::{
    QueuePolicy, QueuedSink, RecordExporter, RecordSink, SinkRecordCounts, StoreTarget,
};
use packetrig_sys::clock;
use packetrig_units::{MonoTime, RetentionLimits};
use serde::Serialize;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Records that may wait for one sink.
const MAX_QUEUED_RECORDS: u64 = 1 << 19;
/// Shortest time between two reports about a sink that keeps failing.
const FAILURE_REPORT_INTERVAL_NS: u64 = 10_000_000_000;

/// The sinks that the user named.
pub(super) struct SinkKinds<'a> {
    pub(super) directory: Option<&'a Path>,
    /// Limits on the size and age of the files in `directory`, and on the free disk space.
    pub(super) limits: RetentionLimits,
    /// True if records come from the network, where anybody may send them.
    pub(super) is_live: bool,
    pub(super) stores: &'a RecordStoreArgs,
    pub(super) alerts: &'a AlertArgs,
}

struct NamedSink {
    name: String,
    /// False if the sink only checks the records against alert rules.
    stores_records: bool,
    recovered: Option<RecoveredFiles>,
    queued: QueuedSink,
    /// The progress file, if the sink is a directory.
    progress: Option<DirectoryProgress>,
    reported_ns: Option<u64>,
}

impl NamedSink {
    fn open_target(target: StoreTarget) -> Result<Self, Error> {
        let name = target.to_string();
        let directory = if let StoreTarget::Directory(options) = &target {
            Some(options.directory.clone())
        } else {
            None
        };
        let stores_records = !matches!(target, StoreTarget::Alerts(_));
        let queued = QueuedSink::new(target.open_sink()?, MAX_QUEUED_RECORDS)?;
        let recovered =
            directory.as_deref().map(|directory| recover_killed_files("collect", directory)).transpose()?;
        let recovered = recovered.filter(|found| !found.is_empty());
        let progress = directory.as_deref().map(DirectoryProgress::open_directory).transpose()?;
        Ok(Self { name, stores_records, recovered, queued, progress, reported_ns: None })
    }

    fn write_records(
        &mut self,
        records: &[FlowRecord],
        exporter: &ExporterIdentity,
    ) -> Result<(), packetrig_flow_store::Error> {
        let maker = record_maker(exporter);
        // Only this thread offers records to the queue, so the difference of the counts is that of this call.
        let before = self.queued.kept_counts();
        let done = self.queued.write_records_by(records, maker, queue_policy(exporter));
        let after = self.queued.kept_counts();
        if let Some(progress) = &mut self.progress {
            // The queue was offered all records and may have dropped some; the sink takes the others. The progress file
            // stores no counts of bytes.
            let taken = CarriedRecords {
                records: after.offered.records
                    - before.offered.records
                    - (after.queue_dropped.records - before.queue_dropped.records),
                packets: after.offered.packets
                    - before.offered.packets
                    - (after.queue_dropped.packets - before.queue_dropped.packets),
                bytes: 0,
            };
            progress.add_accepted_records(maker, taken, records);
        }
        done
    }

    fn tick_sink(
        &mut self,
        now: MonoTime,
        exporters: &[ExporterLedger],
    ) -> Result<(), packetrig_flow_store::Error> {
        match &mut self.progress {
            Some(progress) => {
                self.queued.run_due_work_then_call(now, progress.prepare_progress_callback(exporters))
            }
            None => self.queued.on_tick(now),
        }
    }

    fn close_sink(mut self) -> SinkStoredCounts {
        // The sink ends first, because its queue may still contain callbacks that write to the progress file.
        let (kept, done) = self.queued.close_sink();
        let failure = done.err().map(|error| Error::from(error).full_message());
        let before = self.progress.map(DirectoryProgress::close_progress_file).unwrap_or_default();
        SinkStoredCounts {
            sink: self.name,
            stores_records: self.stores_records,
            kept,
            failure,
            recovered: self.recovered,
            before,
        }
    }
}

/// Counts of the records that one sink stored and lost.
#[derive(Clone, Debug, Serialize)]
pub(super) struct SinkStoredCounts {
    pub(super) sink: String,
    /// False if the sink only checked the records against alert rules.
    pub(super) stores_records: bool,
    #[serde(flatten)]
    pub(super) kept: SinkRecordCounts,
    pub(super) failure: Option<String>,
    /// Unfinished files of an earlier collector in the directory. No counter of this collector includes their records.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) recovered: Option<RecoveredFiles>,
    /// Records of killed collectors in this sink's directory.
    #[serde(skip)]
    pub(super) before: KilledCollectorRecords,
}

impl SinkStoredCounts {
    /// Returns true if the sink failed or lost records that its queue had accepted. A full queue does not count: it
    /// means that the sink was slow, not that its target failed.
    pub(super) fn has_failed(&self) -> bool {
        self.failure.is_some() || split_sink_losses_by_cause(&self.kept).has_failure()
    }
}

/// Copies of the counters of all sinks, for other threads to read.
#[derive(Clone, Default)]
pub(super) struct SinkAccounts(Arc<Mutex<Vec<SinkAccount>>>);

#[derive(Clone, Copy)]
struct SinkAccount {
    stores_records: bool,
    kept: SinkRecordCounts,
}

impl SinkAccounts {
    pub(super) fn read_counts(&self) -> Vec<SinkRecordCounts> {
        self.lock_accounts().iter().map(|account| account.kept).collect()
    }

    /// The number of records that every sink has stored; `None` if no sink stores records.
    pub(super) fn count_records_stored_by_all_sinks(&self) -> Option<u64> {
        let accounts = self.lock_accounts();
        let stores = accounts.iter().filter(|account| account.stores_records);
        stores.map(|account| account.kept.stored.records).min()
    }

    fn lock_accounts(&self) -> MutexGuard<'_, Vec<SinkAccount>> {
        // The counters are replaced as a whole, so a thread that panicked with the lock has not left half of them.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct RecordSinks {
    all: Vec<NamedSink>,
    accounts: SinkAccounts,
    alerts: AlertCountsReader,
    ticked_ns: u64,
}

impl RecordSinks {
    pub(super) fn open_sinks(kinds: &SinkKinds<'_>) -> Result<Self, Error> {
        let directory = kinds.directory.map(|path| {
            let options = packetrig_flow_store::ParquetOptions::new(path);
            let SinkKinds { is_live, limits, .. } = *kinds;
            StoreTarget::Directory(packetrig_flow_store::ParquetOptions { is_live, limits, ..options })
        });
        let alerts = AlertCountsReader::default();
        let watching = kinds.alerts.to_target(kinds.is_live, &alerts)?;
        let targets = directory.into_iter().chain(kinds.stores.to_targets()?).chain(watching);
        let mut sinks = Vec::new();
        for target in targets {
            sinks.push(NamedSink::open_target(target)?);
        }
        Ok(Self { all: sinks, accounts: SinkAccounts::default(), alerts, ticked_ns: 0 })
    }

    pub(super) fn stores_records(&self) -> bool {
        self.all.iter().any(|sink| sink.stores_records)
    }

    pub(super) fn alert_counts(&self) -> AlertCountsReader {
        self.alerts.clone()
    }

    pub(super) fn accounts(&self) -> SinkAccounts {
        self.accounts.clone()
    }

    /// Stores the records that wait in the queues, closes the sinks and returns the final counts.
    pub(super) fn close_all_sinks(self) -> Vec<SinkStoredCounts> {
        self.all.into_iter().map(NamedSink::close_sink).collect()
    }

    fn for_each_sink(&mut self, work: impl Fn(&mut NamedSink) -> Result<(), packetrig_flow_store::Error>) {
        for sink in &mut self.all {
            // The other sinks still get the records: one broken sink must not stop a collector.
            let Err(error) = work(sink) else { continue };
            let now_ns = clock::monotonic_ns();
            // Every record of a broken sink fails: without a pause there would be a line for each of them.
            if sink.reported_ns.is_none_or(|at_ns| now_ns.saturating_sub(at_ns) >= FAILURE_REPORT_INTERVAL_NS)
            {
                sink.reported_ns = Some(now_ns);
                print_remark(format_args!("collect: {}: {}", sink.name, Error::from(error).full_message()));
            }
        }
    }
}

pub(super) fn record_maker(exporter: &ExporterIdentity) -> RecordExporter {
    let address = match exporter.address() {
        // Files of records have one column for both address families, with IPv4 addresses in mapped form.
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    RecordExporter { exporter: address.octets(), domain: exporter.domain }
}

/// Handling of records when the queue of a sink is full. Records from TCP and files wait, because their source can be
/// slowed down. If records from UDP waited, the sockets would overflow, and records for all sinks would be lost.
const fn queue_policy(exporter: &ExporterIdentity) -> QueuePolicy {
    match exporter.source.transport {
        MessageTransport::Udp => QueuePolicy::Drop,
        MessageTransport::Tcp | MessageTransport::Tls | MessageTransport::File => QueuePolicy::Wait,
    }
}

impl CollectedRecordReceiver for RecordSinks {
    fn accept_records(&mut self, records: &[FlowRecord], exporter: &ExporterIdentity) {
        self.for_each_sink(|sink| sink.write_records(records, exporter));
    }

    fn accept_ledger(&mut self, ledger: &MeterLedger, exporter: &ExporterIdentity, at_ns: u64) {
        self.for_each_sink(|sink| {
            sink.queued.write_ledger_by(ledger, record_maker(exporter), at_ns, queue_policy(exporter))
        });
    }

    fn on_tick(&mut self, exporters: &[ExporterLedger]) {
        // Sinks do periodic work once a second. The accounts are copied at every call, for the live line and `/metrics`.
        let now_ns = clock::monotonic_ns();
        if now_ns.saturating_sub(self.ticked_ns) >= 1_000_000_000 {
            self.ticked_ns = now_ns;
            self.for_each_sink(|sink| sink.tick_sink(MonoTime::from_nanos(now_ns), exporters));
        }
        let accounts = self
            .all
            .iter()
            .map(|sink| SinkAccount { stores_records: sink.stores_records, kept: sink.queued.kept_counts() });
        *self.accounts.lock_accounts() = accounts.collect();
    }
}
