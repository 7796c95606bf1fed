//! A meter from its start to its end: workers started, sources opened for them, stopped, joined.
//!
//! ```text
//!  Books::new -> outputs added -> Meter::start -> … -> stop -> join -> outputs end, their queues being closed -> report
//!                                     `-> tables made -> sources opened -> workers seated
//! ```
//! Sources are opened when everything else is there: a ring fills from its first moment on.
//!
//! Invariant: every thread that was started is joined, also when another one failed.

use crate::Error;
use crate::FlowShareFilter;
use crate::intake::PacketIntake;
use crate::ledger::{MeterBooks, PacketOrigin};
use crate::memory::MeterMemory;
use crate::outbox::{OutputChannels, OutputQueues};
use crate::placement;
use crate::reorder::ReorderBuffer;
use crate::source::{
    FileOptions, InterfaceCounts, LiveOptions, LiveSource, PacketSource, PortLocation, open_files, open_live,
};
use crate::worker::{MeterWorker, WorkerMeeting};
use crossbeam_channel::{Receiver, Sender, bounded};
use packetrig_flow::parse::ParseOptions;
use packetrig_flow::table::{FlowTable, TableOptions};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Where packets come from.
#[derive(Clone, Debug)]
pub enum MeterInput {
    Files(FileOptions),
    /// Interfaces, all listened at in the same way.
    Interfaces(Vec<PortLocation>, LiveOptions),
}

/// What to meter, and how.
#[derive(Clone, Debug)]
pub struct MeterOptions {
    /// Where packets come from.
    pub input: MeterInput,
    /// How frames are read.
    pub parse: ParseOptions,
    /// Of each worker's table; its capacity is the meter's, and is shared out.
    pub table: TableOptions,
    /// What it is to meter of what it sees; all if absent.
    pub share: Option<FlowShareFilter>,
    /// Whether somebody looks at the largest flows.
    pub has_top: bool,
}

/// A meter at work.
#[derive(Debug)]
pub struct RunningMeter {
    desks: Vec<Arc<WorkerMeeting>>,
    workers: Vec<JoinHandle<Result<(), Error>>>,
    reader: Option<JoinHandle<()>>,
}

/// What is opened last.
struct OpenedOutputs {
    sources: Vec<Box<dyn PacketSource>>,
    reader: Option<JoinHandle<()>>,
    captured: PacketOrigin,
}

impl RunningMeter {
    /// Starts; from now on everything that arrives is in the books.
    pub fn start(options: &MeterOptions, books: &MeterBooks) -> Result<Self, Error> {
        // Also if nothing comes of it: the outputs wait for their queues to close.
        let channels = books.take_channels();
        if matches!(&options.input, MeterInput::Files(files) if files.pace.is_none()) {
            channels.patience.begin();
        }
        let processors = processors(&options.input)?;
        let placed = processors.clone();
        Self::launch(options, processors, &channels, books, || open(&options.input, &placed))
    }

    /// With a worker for each of these processors, and as many sources opened for them.
    fn launch(
        options: &MeterOptions,
        processors: Vec<Option<usize>>,
        channels: &OutputChannels,
        books: &MeterBooks,
        open: impl FnOnce() -> Result<OpenedOutputs, Error>,
    ) -> Result<Self, Error> {
        let mut crew = WorkerCrew::default();
        let opened = crew.assemble(options, processors, channels).and_then(|()| open());
        let WorkerCrew { desks, workers, seats } = crew;
        match opened {
            Ok(OpenedOutputs { sources, reader, captured }) => {
                books.begin(desks.clone(), captured);
                for (seat, source) in seats.into_iter().zip(sources) {
                    // A worker that has gone in between says so at its desk.
                    seat.send(source).unwrap_or(());
                }
                Ok(Self { desks, workers, reader })
            }
            Err(error) => {
                // Nobody is seated any more, and the workers leave.
                drop(seats);
                Self { desks, workers, reader: None }.join().and(Err(error))
            }
        }
    }

    /// Whether every worker has come to its end, or one to a bad one: then the others are to be stopped.
    pub fn is_over(&self) -> bool {
        let has_failed = self.desks.iter().any(|desk| desk.has_failed());
        has_failed || self.has_ended()
    }

    /// Whether every worker has come to its end: none has anything more to hand over.
    pub fn has_ended(&self) -> bool {
        self.workers.iter().all(JoinHandle::is_finished)
    }

    /// Lets nothing in any more: what has arrived is metered, then it is over.
    pub fn stop(&self) {
        self.desks.iter().for_each(|desk| desk.stop());
    }

    pub fn desks(&self) -> &[Arc<WorkerMeeting>] {
        &self.desks
    }

    /// Waits for the workers, which end by themselves or are [to be stopped](Self::is_over), and says what the first that failed says.
    pub fn join(self) -> Result<(), Error> {
        let mut ended = Ok(());
        for worker in self.workers {
            let result = worker.join().unwrap_or(Err(Error::Panicked("a worker")));
            if result.is_err() {
                // The others would go on without an end.
                self.desks.iter().for_each(|desk| desk.stop());
            }
            ended = ended.and(result);
        }
        if let Some(reader) = self.reader {
            let read = reader.join().map_err(|_| Error::Panicked("the reader"));
            ended = ended.and(read);
        }
        ended
    }
}

/// Workers at their tables, waiting for a source each. One whose seat is dropped leaves.
#[derive(Default)]
struct WorkerCrew {
    desks: Vec<Arc<WorkerMeeting>>,
    workers: Vec<JoinHandle<Result<(), Error>>>,
    seats: Vec<Sender<Box<dyn PacketSource>>>,
}

impl WorkerCrew {
    /// Starts a worker for each of these processors; all tables are there when it returns well.
    fn assemble(
        &mut self,
        options: &MeterOptions,
        processors: Vec<Option<usize>>,
        channels: &OutputChannels,
    ) -> Result<(), Error> {
        let count = processors.len();
        let share = u32::try_from(count).unwrap_or(1).max(1);
        let capacity = options.table.capacity.div_ceil(share);
        let (ready, is_ready) = bounded::<()>(count);
        for processor in processors {
            let desk = Arc::new(WorkerMeeting::new(options.has_top));
            let (seat, seated) = bounded(1);
            let place = WorkerPlace {
                processor,
                parse: options.parse,
                share: options.share,
                table: TableOptions { capacity, ..options.table.clone() },
                outbox: OutputQueues::new(channels),
                desk: Arc::clone(&desk),
                ready: ready.clone(),
                seated,
            };
            let thread = std::thread::Builder::new().name(format!("meter-{}", self.workers.len()));
            self.workers.push(thread.spawn(|| place.work()).map_err(Error::Thread)?);
            self.desks.push(desk);
            self.seats.push(seat);
        }
        drop(ready);
        // Until all tables are there, or their workers gone.
        if is_ready.iter().count() < count { Err(Error::Panicked("a worker")) } else { Ok(()) }
    }
}

/// What a worker is given before its source.
struct WorkerPlace {
    processor: Option<usize>,
    parse: ParseOptions,
    share: Option<FlowShareFilter>,
    table: TableOptions,
    outbox: OutputQueues,
    desk: Arc<WorkerMeeting>,
    ready: Sender<()>,
    seated: Receiver<Box<dyn PacketSource>>,
}

impl WorkerPlace {
    fn work(self) -> Result<(), Error> {
        let Self { processor, parse, share, table, outbox, desk, ready, seated } = self;
        let _alarm = desk.alarm();
        placement::settle(processor);
        let intake = PacketIntake::new(parse, table.sampling, share);
        // Here, so that its memory is near the processor that uses it.
        let table = FlowTable::<MeterMemory>::new(&table);
        // Whoever started it may have given up.
        ready.send(()).unwrap_or(());
        drop(ready);
        let Ok(source) = seated.recv() else { return Ok(()) };
        let reorder = source.may_be_held().then(ReorderBuffer::new);
        MeterWorker { source, intake, table, outbox, desk, reorder }.run()
    }
}

/// A processor for each worker.
fn processors(input: &MeterInput) -> Result<Vec<Option<usize>>, Error> {
    match input {
        MeterInput::Files(options) => Ok(vec![None; options.workers.max(1)]),
        MeterInput::Interfaces(locations, options) => {
            let of_each = options.workers_of_each()?;
            Ok(placement::processors(locations, of_each))
        }
    }
}

fn open(input: &MeterInput, processors: &[Option<usize>]) -> Result<OpenedOutputs, Error> {
    match input {
        MeterInput::Files(options) => {
            let files = open_files(options)?;
            let boxed = |source| Box::new(source) as Box<dyn PacketSource>;
            let sources = files.sources.into_iter().map(boxed).collect();
            Ok(OpenedOutputs { sources, reader: files.reader, captured: PacketOrigin::Files(files.read) })
        }
        MeterInput::Interfaces(locations, options) => open_interfaces(locations, *options, processors),
    }
}

fn open_interfaces(
    locations: &[PortLocation],
    options: LiveOptions,
    processors: &[Option<usize>],
) -> Result<OpenedOutputs, Error> {
    let of_each = options.workers_of_each()?;
    let mut interfaces: Vec<InterfaceCounts> =
        locations.iter().map(InterfaceCounts::open).collect::<Result<_, _>>()?;
    let mut sources: Vec<LiveSource> = Vec::new();
    for (at, (location, interface)) in locations.iter().zip(&mut interfaces).enumerate() {
        let input = number(&interface.name, interface.index)?;
        let processor = processors.get(at * of_each).copied().flatten();
        sources.extend(placement::on(processor, || open_live(location, input, options))?);
        // At once: a frame that is in a ring and not in the interface's count would unbalance the ledger.
        interface.restart()?;
    }
    Ok(OpenedOutputs {
        sources: sources.into_iter().map(|source| Box::new(source) as Box<dyn PacketSource>).collect(),
        reader: None,
        captured: PacketOrigin::Interfaces(interfaces.into()),
    })
}

/// An interface's number in records.
fn number(name: &str, index: u32) -> Result<u16, Error> {
    u16::try_from(index).map_err(|_| Error::IndexTooLarge { name: name.to_owned(), index })
}

#[cfg(test)]
mod tests;
