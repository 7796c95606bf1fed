//! The outputs of a meter: the export, and stores: Parquet files, Kafka and ClickHouse.

use super::options::group_export;
use crate::args::{MeterArgs as Arguments, MeterFormat};
use crate::commands::flows::{directory_limits, recover_killed_files};
use crate::error::Error;
use crate::losses::split_sink_losses_by_cause;
use packetrig_flow::export::{AnnouncedInterface as Named, ExportFormat};
use packetrig_flow_io::export::{
    self, ExportContent, ExportDestination, ExportTarget, RunningExport, TlsFiles,
};
use packetrig_flow_io::ledger::{MeterAccounts, SinkCounts};
use packetrig_flow_io::source::InterfaceCounts;
use packetrig_flow_io::{MeterInput, MeterOptions, WorkerBatch};
use packetrig_flow_store::alert::AlertCountsReader;
use packetrig_flow_store::{ParquetOptions, ParquetSink, RecordExporter, RecordSink, SinkRecordCounts};
use packetrig_sys::clock;
use packetrig_units::{MonoTime, Nanos, clamp_to_usize};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest time for which a meter with peers collects records for one message. It is short, because records that still
/// wait when another meter takes over are sent twice.
const STANDBY_FLUSH_DELAY: Nanos = Nanos::from_millis(10);
/// Longest time between two checks for due work of a sink.
const SINK_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between two ledgers that are stored with the records.
const LEDGER_STORE_INTERVAL_NS: u64 = 10_000_000_000;

/// Threads that export or store the records of the workers.
#[derive(Default)]
pub(super) struct MeterOutputs {
    export: Option<RunningExport>,
    stores: Vec<JoinHandle<()>>,
    alerts: AlertCountsReader,
}

impl MeterOutputs {
    /// Opens all outputs, or none: after a failure, the outputs that were already opened are closed.
    pub(super) fn open_outputs(
        arguments: &Arguments,
        options: &MeterOptions,
        accounts: &Arc<MeterAccounts>,
    ) -> Result<Self, Error> {
        let mut outputs = Self::default();
        match outputs.open_sinks_and_export(arguments, options, accounts) {
            Ok(()) => Ok(outputs),
            Err(error) => {
                outputs.abandon_outputs(accounts);
                Err(error)
            }
        }
    }

    fn open_sinks_and_export(
        &mut self,
        arguments: &Arguments,
        options: &MeterOptions,
        accounts: &Arc<MeterAccounts>,
    ) -> Result<(), Error> {
        // Stores are opened before any thread starts, because opening them fails most often.
        let mut sinks: Vec<_> = open_directory(arguments)?.into_iter().collect();
        let is_live = matches!(options.input, MeterInput::Interfaces(..));
        let alerts = arguments.alerts.to_target(is_live, &self.alerts)?;
        for target in arguments.stores.to_targets()?.into_iter().chain(alerts) {
            sinks.push(NamedSink { name: target.to_string(), sink: target.open_sink()? });
        }
        if !arguments.export.is_empty() {
            self.export = Some(start_export(arguments, options, accounts)?);
        }
        for sink in sinks {
            self.stores.push(start_sink_thread(sink, arguments.domain, accounts)?);
        }
        Ok(())
    }

    pub(super) fn alert_counts(&self) -> AlertCountsReader {
        self.alerts.clone()
    }

    /// Ends the outputs of a meter that did not start, by closing their queues. Failures of the outputs are ignored:
    /// the user sees the error because of which the meter did not start.
    pub(super) fn abandon_outputs(self, accounts: &MeterAccounts) {
        drop(accounts.take_output_senders());
        drop(self.join_threads());
    }

    /// Returns true if all records are sent, stored or lost.
    pub(super) fn has_ended(&self) -> bool {
        self.export.as_ref().is_none_or(RunningExport::has_ended)
            && self.stores.iter().all(JoinHandle::is_finished)
    }

    /// Waits until all records are sent or stored; returns a message for each thread that panicked.
    pub(super) fn join_threads(self) -> Vec<String> {
        let mut failures = Vec::new();
        if self.export.is_some_and(|export| !export.join_threads().1) {
            failures.push("a thread that exports records panicked: this is a bug in packetrig".to_owned());
        }
        if self.stores.into_iter().any(|thread| thread.join().is_err()) {
            failures.push("a thread that stores records panicked: this is a bug in packetrig".to_owned());
        }
        failures
    }
}

fn start_export(
    arguments: &Arguments,
    options: &MeterOptions,
    accounts: &Arc<MeterAccounts>,
) -> Result<RunningExport, Error> {
    let content = match arguments.format {
        MeterFormat::Ipfix => ExportContent::Records(ExportFormat::Ipfix),
        MeterFormat::V9 => ExportContent::Records(ExportFormat::NetFlow9),
        MeterFormat::V5 => ExportContent::Records(ExportFormat::NetFlow5),
        MeterFormat::Sim => ExportContent::Sim,
    };
    let mut destinations = Vec::new();
    for text in &arguments.export {
        let target: ExportTarget = text.parse().map_err(|error| Error::Usage(format!("{error}")))?;
        destinations.push(ExportDestination { target, content });
    }
    let tls = arguments.tls_ca.clone().map(|authorities| TlsFiles {
        authorities,
        identity: arguments.tls_cert.clone().zip(arguments.tls_key.clone()),
        server_name: arguments.tls_name.clone(),
    });
    // A quarter of `--queue` is for bursts between the workers and the export thread. Each target has its own
    // backlog of the other three quarters.
    let group = group_export(arguments)?;
    let usual = export::MeterExport::default().flush_after;
    let flush_after = if group.is_some() { usual.min(STANDBY_FLUSH_DELAY) } else { usual };
    let queue_bytes = clamp_to_usize(arguments.queue.0);
    let common_bytes = queue_bytes / 4;
    let export = export::MeterExport {
        destinations,
        domain: arguments.domain,
        biflow: arguments.biflow,
        has_history: arguments.of_group.group.is_some() && content != ExportContent::Sim,
        group,
        flush_after,
        sampling: arguments.sample,
        interfaces: interface_names(&options.input)?,
        backlog_bytes: queue_bytes - common_bytes,
        tls,
        ..export::MeterExport::default()
    };
    let (queue, incoming) = export::open_export_queue(common_bytes, accounts.backpressure());
    let ledger = Arc::clone(accounts);
    let thread = export::spawn_export(&export, incoming, move || ledger.current_ledger())?;
    accounts.set_export(queue, content == ExportContent::Sim, thread.export_watch());
    // Only a meter with peers has a role that can change.
    if let Some(group_role) = thread.role_handle() {
        accounts.set_group_role_handle(group_role.clone());
    }
    Ok(thread)
}

/// Names of the interfaces, for options records: flow records contain only the numbers of interfaces.
fn interface_names(input: &MeterInput) -> Result<Vec<Named>, Error> {
    let MeterInput::Interfaces(locations, _) = input else { return Ok(Vec::new()) };
    let mut named = Vec::new();
    for location in locations {
        let InterfaceCounts { index, name, .. } = InterfaceCounts::start_counting(location)?;
        named.push(Named { index, name: location.interface.clone(), description: name });
    }
    Ok(named)
}

/// A sink and the name that users know it by.
struct NamedSink {
    name: String,
    sink: Box<dyn RecordSink>,
}

fn open_directory(arguments: &Arguments) -> Result<Option<NamedSink>, Error> {
    let limits = directory_limits(&arguments.keep, arguments.directory.as_deref())?;
    let Some(to) = arguments.directory.as_deref() else { return Ok(None) };
    let sink = ParquetSink::new(ParquetOptions { limits, ..ParquetOptions::new(to) })?;
    recover_killed_files("meter", to)?;
    Ok(Some(NamedSink { name: to.display().to_string(), sink: Box::new(sink) }))
}

/// Starts the thread that stores records in a sink.
fn start_sink_thread(
    NamedSink { name, sink }: NamedSink,
    domain: u32,
    accounts: &Arc<MeterAccounts>,
) -> Result<JoinHandle<()>, Error> {
    let kept = Arc::<Mutex<SinkState>>::default();
    let account = Arc::clone(&kept);
    let account = Box::new(move || account.lock().unwrap_or_else(PoisonError::into_inner).sink_counts());
    // The sink is registered before the thread starts: the queue exists before a worker can have a record for
    // it.
    let batches = accounts.add_sink(name, account);
    let accounts = Arc::clone(accounts);
    let source = RecordExporter { domain, ..RecordExporter::default() };
    let mut keeper = SinkThread { sink, source, kept, accounts, ledger_ns: 0 };
    let thread = std::thread::Builder::new().name("store".into());
    let started = thread.spawn(move || {
        loop {
            match batches.recv_timeout(SINK_CHECK_INTERVAL) {
                Ok(WorkerBatch::Records(records)) => {
                    keeper.write_and_publish_counts(|sink| sink.write_records(&records, source));
                }
                // Packet events are for the export only.
                Ok(WorkerBatch::Sim(_)) => {}
                // After a timeout, only the tick below is due: a meter without traffic must close its files, too.
                Err(error) if error.is_timeout() => {}
                // The last worker has dropped its end of the queue.
                Err(_) => return keeper.close_files(),
            }
            keeper.tick_sink();
        }
    });
    started.map_err(|error| packetrig_flow_io::Error::Thread(error).into())
}

/// Counts of the sink for the ledger, which other threads read.
#[derive(Debug, Default)]
struct SinkState {
    kept: SinkRecordCounts,
    /// The latest failure. The failed records may have been stored since.
    failure: Option<String>,
}

impl SinkState {
    fn sink_counts(&self) -> SinkCounts {
        let SinkRecordCounts { stored, waiting, file_bytes, removed, .. } = self.kept;
        SinkCounts {
            stored,
            waiting,
            losses: split_sink_losses_by_cause(&self.kept),
            file_bytes,
            removed,
            failure: self.failure.clone(),
        }
    }
}

/// A sink on its thread, and the counts that the ledger reads from other threads.
struct SinkThread {
    sink: Box<dyn RecordSink>,
    source: RecordExporter,
    kept: Arc<Mutex<SinkState>>,
    accounts: Arc<MeterAccounts>,
    ledger_ns: u64,
}

impl SinkThread {
    fn write_and_publish_counts(
        &mut self,
        work: impl FnOnce(&mut dyn RecordSink) -> Result<(), packetrig_flow_store::Error>,
    ) {
        let done = work(&mut *self.sink);
        self.publish_counts(self.sink.kept_counts(), done);
    }

    fn publish_counts(&self, kept: SinkRecordCounts, done: Result<(), packetrig_flow_store::Error>) {
        let mut state = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        state.kept = kept;
        if let Err(error) = done {
            // The last failure stays visible when later records are stored: records may have been lost in between.
            state.failure = Some(error.to_string());
        }
    }

    fn tick_sink(&mut self) {
        let now_ns = clock::monotonic_ns();
        if now_ns >= self.ledger_ns + LEDGER_STORE_INTERVAL_NS {
            self.ledger_ns = now_ns;
            self.store_ledger();
        }
        self.write_and_publish_counts(|sink| sink.on_tick(MonoTime::from_nanos(now_ns)));
    }

    fn store_ledger(&mut self) {
        let ledger = self.accounts.current_ledger();
        let source = self.source;
        self.write_and_publish_counts(|sink| sink.write_ledger(&ledger, source, clock::wall_clock_ns()));
    }

    /// Stores the last ledger and closes the files.
    fn close_files(mut self) {
        self.store_ledger();
        let (kept, closed) = self.sink.close_sink();
        self.publish_counts(kept, closed);
    }
}
