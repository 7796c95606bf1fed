//! The life of a meter: starts workers, opens their sources, stops and joins them.
//!
//! ```text
//!  MeterAccounts::new -> outputs added -> RunningMeter::start_metering -> … -> stop -> join -> queues close, outputs end -> report
//!                                           `-> tables allocated -> sources opened -> workers get their sources
//! ```
//! Sources are opened last: a ring fills from the moment that it is opened.
//!
//! Invariant: every thread that was started is joined, even if another one failed.

use crate::Error;
use crate::FlowShareFilter;
use crate::intake::PacketIntake;
use crate::ledger::{LedgerPacketSource, MeterAccounts};
use crate::memory::MeterMemory;
use crate::outbox::{OutputChannels, OutputQueues};
use crate::placement;
use crate::reorder::ReorderBuffer;
use crate::silence::SilenceBuffer;
use crate::source::{
    FileOptions, InterfaceCounts, LiveOptions, LiveSource, PacketSource, PortLocation, SharedInterfaceCounts,
    open_files, open_live_sources,
};
use crate::worker::{MeterWorker, WorkerStatus};
use crossbeam_channel::{Receiver, Sender, bounded};
use packetrig_flow::RecordOriginMark;
use packetrig_flow::parse::ParseOptions;
use packetrig_flow::table::{FlowTable, TableOptions};
use packetrig_units::{clamp_to_u16, clamp_to_u32};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Source of the packets.
#[derive(Clone, Debug)]
pub enum MeterInput {
    Files(FileOptions),
    /// Interfaces, all with the same options.
    Interfaces(Vec<PortLocation>, LiveOptions),
}

/// Options of a meter: its input, its parser and its tables.
#[derive(Clone, Debug)]
pub struct MeterOptions {
    /// Source of the packets.
    pub input: MeterInput,
    /// Options of the frame parser.
    pub parse: ParseOptions,
    /// Options of the flow tables. The capacity is for the whole meter; it is divided equally among the workers.
    pub table: TableOptions,
    /// Share of the traffic that is metered; `None` means all traffic.
    pub share: Option<FlowShareFilter>,
    /// True if workers count the largest flows, for a live view.
    pub has_top: bool,
    /// True if other meters of the group show whether packets of this one's copy of the link were lost.
    pub has_compared_copies: bool,
}

/// A running meter with its threads. The caller must stop and join it.
#[derive(Debug)]
pub struct RunningMeter {
    worker_statuses: Vec<Arc<WorkerStatus>>,
    workers: Vec<JoinHandle<Result<(), Error>>>,
    reader: Option<JoinHandle<()>>,
}

/// Opened sources, ready to be read.
struct OpenedSources {
    sources: Vec<Box<dyn PacketSource>>,
    reader: Option<JoinHandle<()>>,
    captured: LedgerPacketSource,
}

impl RunningMeter {
    /// Starts the workers and opens the sources. Everything that arrives from then on is in the ledger.
    pub fn start_metering(options: &MeterOptions, accounts: &MeterAccounts) -> Result<Self, Error> {
        // The senders are taken even if the start fails: outputs end when their queues close, and these are
        // the last senders.
        let channels = accounts.take_output_senders();
        if matches!(&options.input, MeterInput::Files(files) if files.pace.is_none()) {
            // Files can wait for slow outputs. A replay at the recorded times cannot, like live traffic.
            channels.backpressure.enable_backpressure_for_files();
        }
        let processors = choose_processors(&options.input)?;
        let placed = processors.clone();
        Self::launch_workers(options, processors, &channels, accounts, || {
            open_sources(&options.input, &placed)
        })
    }

    /// Starts a worker for each of these processors, then opens as many sources for them.
    fn launch_workers(
        options: &MeterOptions,
        processors: Vec<Option<usize>>,
        channels: &OutputChannels,
        accounts: &MeterAccounts,
        open: impl FnOnce() -> Result<OpenedSources, Error>,
    ) -> Result<Self, Error> {
        let mut starting = StartingWorkers::default();
        let opened = starting.start_all_workers(options, processors, channels).and_then(|()| open());
        let StartingWorkers { statuses, workers, source_inlets } = starting;
        match opened {
            Ok(OpenedSources { sources, reader, captured }) => {
                accounts.set_workers_and_source(statuses.clone(), captured);
                for (inlet, source) in source_inlets.into_iter().zip(sources) {
                    // Fails only if the worker has ended already; then `join_workers` returns its error.
                    drop(inlet.send(source));
                }
                Ok(Self { worker_statuses: statuses, workers, reader })
            }
            Err(error) => {
                // Workers that wait for a source end now.
                drop(source_inlets);
                Self { worker_statuses: statuses, workers, reader: None }.join_workers().and(Err(error))
            }
        }
    }

    /// Reports whether all workers have ended, or one has failed. In the second case the caller has to
    /// stop the remaining workers.
    pub fn has_ended_or_failed(&self) -> bool {
        let has_failed = self.worker_statuses.iter().any(|status| status.has_failed());
        has_failed || self.has_ended()
    }

    /// Reports whether all workers have ended, so that no more records are passed on.
    pub fn has_ended(&self) -> bool {
        self.workers.iter().all(JoinHandle::is_finished)
    }

    /// Stops the sources. Packets that have arrived by now are still metered.
    pub fn stop_sources(&self) {
        self.worker_statuses.iter().for_each(|status| status.request_stop());
    }

    pub fn worker_statuses(&self) -> &[Arc<WorkerStatus>] {
        &self.worker_statuses
    }

    /// Waits for all workers and returns the first error. Workers of files end by themselves; other
    /// workers end after [`Self::stop_sources`].
    pub fn join_workers(self) -> Result<(), Error> {
        let mut ended = Ok(());
        for worker in self.workers {
            let result = worker.join().unwrap_or(Err(Error::Panicked("a worker")));
            if result.is_err() {
                // Otherwise the workers of other interfaces would never end.
                self.worker_statuses.iter().for_each(|status| status.request_stop());
            }
            ended = ended.and(result);
        }
        if let Some(reader) = self.reader {
            let read = reader.join().map_err(|_| Error::Panicked("the thread that reads files"));
            ended = ended.and(read);
        }
        ended
    }
}

/// Workers that have their tables and wait for a source. A worker ends if its sender in `source_inlets` is dropped.
#[derive(Default)]
struct StartingWorkers {
    statuses: Vec<Arc<WorkerStatus>>,
    workers: Vec<JoinHandle<Result<(), Error>>>,
    source_inlets: Vec<Sender<Box<dyn PacketSource>>>,
}

impl StartingWorkers {
    /// Starts a worker for each of these processors. On success all tables are allocated.
    fn start_all_workers(
        &mut self,
        options: &MeterOptions,
        processors: Vec<Option<usize>>,
        channels: &OutputChannels,
    ) -> Result<(), Error> {
        let count = processors.len();
        // The division rounds up, so that no worker gets a table without slots.
        let capacity = options.table.capacity.div_ceil(clamp_to_u32(count as u64).max(1));
        let (ready, is_ready) = bounded::<()>(count);
        // All interfaces have the same number of workers, so the number of a worker determines its interface.
        let of_each = count / interface_count(&options.input).max(1);
        for (number, processor) in processors.into_iter().enumerate() {
            let lane = clamp_to_u16(number / of_each.max(1));
            // The lane is the number of the interface: the same link has the same number at all meters of a group.
            let group = options.table.group.map(|mark| RecordOriginMark { lane, ..mark });
            let status = Arc::new(WorkerStatus::new(options.has_top));
            let (source_inlet, source) = bounded(1);
            let start = WorkerStart {
                processor,
                parse: options.parse,
                share: options.share,
                table: TableOptions { capacity, group, ..options.table.clone() },
                has_compared_copies: options.has_compared_copies,
                outbox: OutputQueues::new(channels),
                status: Arc::clone(&status),
                ready: ready.clone(),
                source,
            };
            let thread = std::thread::Builder::new().name(format!("meter-{}", self.workers.len()));
            self.workers.push(thread.spawn(|| start.run_worker()).map_err(Error::Thread)?);
            self.statuses.push(status);
            self.source_inlets.push(source_inlet);
        }
        drop(ready);
        // The iterator ends when every worker has dropped its sender: after its table was allocated, or by a panic.
        if is_ready.iter().count() < count { Err(Error::Panicked("a worker")) } else { Ok(()) }
    }
}

/// Everything that a worker needs at its start; its source follows.
struct WorkerStart {
    processor: Option<usize>,
    parse: ParseOptions,
    share: Option<FlowShareFilter>,
    table: TableOptions,
    has_compared_copies: bool,
    outbox: OutputQueues,
    status: Arc<WorkerStatus>,
    ready: Sender<()>,
    source: Receiver<Box<dyn PacketSource>>,
}

impl WorkerStart {
    fn run_worker(self) -> Result<(), Error> {
        let Self { processor, parse, share, table, has_compared_copies, outbox, status, ready, source } =
            self;
        // The guard is held to the end of this function, so that it notices a panic in any line below.
        let _alarm = status.guard_against_panic();
        placement::pin_current_thread_if_assigned(processor);
        let parse = ParseOptions { hashes_content: table.group.is_some(), ..parse };
        let intake = PacketIntake::new(parse, table.sampling, share);
        // The memory is allocated on this thread, after it was pinned: the kernel takes memory from the
        // NUMA node of the processor that first touches it.
        let table = FlowTable::<MeterMemory>::new(&table);
        // Both calls fail only if the start of the meter has failed: then there is no source for this worker.
        if ready.send(()).is_err() {
            return Ok(());
        }
        drop(ready);
        let Ok(source) = source.recv() else { return Ok(()) };
        let reorder = source.can_hold_back_packets().then(ReorderBuffer::new);
        MeterWorker {
            source,
            intake,
            table,
            outbox,
            status,
            reorder,
            silence: has_compared_copies.then(SilenceBuffer::default),
            settled_ns: 0,
            delivered_ns: 0,
            tell_from: None,
            has_open_ring_loss: false,
        }
        .run_until_ended()
    }
}

/// Number of interfaces; all files count as one.
fn interface_count(input: &MeterInput) -> usize {
    match input {
        MeterInput::Files(_) => 1,
        MeterInput::Interfaces(locations, _) => locations.len(),
    }
}

/// Chooses a processor for each worker; `None` means that a worker may run on any processor.
fn choose_processors(input: &MeterInput) -> Result<Vec<Option<usize>>, Error> {
    match input {
        MeterInput::Files(options) => Ok(vec![None; options.workers.max(1)]),
        MeterInput::Interfaces(locations, options) => {
            let of_each = options.workers_per_interface()?;
            Ok(placement::assign_processors(locations, of_each))
        }
    }
}

fn open_sources(input: &MeterInput, processors: &[Option<usize>]) -> Result<OpenedSources, Error> {
    match input {
        MeterInput::Files(options) => {
            let files = open_files(options)?;
            Ok(OpenedSources {
                sources: files
                    .sources
                    .into_iter()
                    .map(|source| Box::new(source) as Box<dyn PacketSource>)
                    .collect(),
                reader: files.reader,
                captured: LedgerPacketSource::Files(files.read),
            })
        }
        MeterInput::Interfaces(locations, options) => open_interfaces(locations, *options, processors),
    }
}

fn open_interfaces(
    locations: &[PortLocation],
    options: LiveOptions,
    processors: &[Option<usize>],
) -> Result<OpenedSources, Error> {
    let of_each = options.workers_per_interface()?;
    let interfaces: Vec<SharedInterfaceCounts> = locations
        .iter()
        .map(|location| Ok(Arc::new(Mutex::new(InterfaceCounts::start_counting(location)?))))
        .collect::<Result<_, Error>>()?;
    let mut sources: Vec<LiveSource> = Vec::new();
    for (at, (location, interface)) in locations.iter().zip(&interfaces).enumerate() {
        let input = {
            let counts = interface.lock().unwrap_or_else(PoisonError::into_inner);
            to_record_index(&counts.name, counts.index)?
        };
        let processor = processors.get(at * of_each).copied().flatten();
        sources.extend(placement::run_on_processor(processor, || {
            open_live_sources(location, interface, input, options)
        })?);
        // The interface counts independently of the ring. Its counters, read before and after the ring was opened,
        // limit how many packets may have come in between.
        interface.lock().unwrap_or_else(PoisonError::into_inner).read_counters_after_opening()?;
    }
    Ok(OpenedSources {
        sources: sources.into_iter().map(|source| Box::new(source) as Box<dyn PacketSource>).collect(),
        reader: None,
        captured: LedgerPacketSource::Interfaces(interfaces),
    })
}

/// Converts an interface index to the 16 bits that records have for it.
fn to_record_index(name: &str, index: u32) -> Result<u16, Error> {
    u16::try_from(index).map_err(|_| Error::IndexTooLarge { name: name.to_owned(), index })
}

#[cfg(test)]
mod tests;
