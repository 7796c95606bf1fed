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
use crate::Share;
use crate::intake::Intake;
use crate::ledger::{Books, Captured};
use crate::memory::Memory;
use crate::outbox::{Channels, Outbox};
use crate::placement;
use crate::reorder::ReorderBuffer;
use crate::source::{
    FileOptions, Interface, LiveOptions, LiveSource, PortLocation, Source, open_files, open_live,
};
use crate::worker::{Desk, Worker};
use crossbeam_channel::{Receiver, Sender, bounded};
use packetrig_flow::parse::ParseOptions;
use packetrig_flow::table::{FlowTable, TableOptions};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Where packets come from.
#[derive(Clone, Debug)]
pub enum Input {
    /// Capture files.
    Files(FileOptions),
    /// Interfaces, all listened at in the same way.
    Interfaces(Vec<PortLocation>, LiveOptions),
}

/// What to meter, and how.
#[derive(Clone, Debug)]
pub struct MeterOptions {
    /// Where packets come from.
    pub input: Input,
    /// How frames are read.
    pub parse: ParseOptions,
    /// Of each worker's table; its capacity is the meter's, and is shared out.
    pub table: TableOptions,
    /// What it is to meter of what it sees; all if absent.
    pub share: Option<Share>,
    /// Whether somebody looks at the largest flows.
    pub has_top: bool,
}

/// A meter at work.
#[derive(Debug)]
pub struct Meter {
    desks: Vec<Arc<Desk>>,
    workers: Vec<JoinHandle<Result<(), Error>>>,
    reader: Option<JoinHandle<()>>,
}

/// What is opened last.
struct Opened {
    sources: Vec<Box<dyn Source>>,
    reader: Option<JoinHandle<()>>,
    captured: Captured,
}

impl Meter {
    /// Starts; from now on everything that arrives is in the books.
    pub fn start(options: &MeterOptions, books: &Books) -> Result<Self, Error> {
        // Also if nothing comes of it: the outputs wait for their queues to close.
        let channels = books.take_channels();
        if matches!(&options.input, Input::Files(files) if files.pace.is_none()) {
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
        channels: &Channels,
        books: &Books,
        open: impl FnOnce() -> Result<Opened, Error>,
    ) -> Result<Self, Error> {
        let mut crew = Crew::default();
        let opened = crew.assemble(options, processors, channels).and_then(|()| open());
        let Crew { desks, workers, seats } = crew;
        match opened {
            Ok(Opened { sources, reader, captured }) => {
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

    /// The workers' desks.
    pub fn desks(&self) -> &[Arc<Desk>] {
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
struct Crew {
    desks: Vec<Arc<Desk>>,
    workers: Vec<JoinHandle<Result<(), Error>>>,
    seats: Vec<Sender<Box<dyn Source>>>,
}

impl Crew {
    /// Starts a worker for each of these processors; all tables are there when it returns well.
    fn assemble(
        &mut self,
        options: &MeterOptions,
        processors: Vec<Option<usize>>,
        channels: &Channels,
    ) -> Result<(), Error> {
        let count = processors.len();
        let share = u32::try_from(count).unwrap_or(1).max(1);
        let capacity = options.table.capacity.div_ceil(share);
        let (ready, is_ready) = bounded::<()>(count);
        for processor in processors {
            let desk = Arc::new(Desk::new(options.has_top));
            let (seat, seated) = bounded(1);
            let place = Place {
                processor,
                parse: options.parse,
                share: options.share,
                table: TableOptions { capacity, ..options.table.clone() },
                outbox: Outbox::new(channels),
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
struct Place {
    processor: Option<usize>,
    parse: ParseOptions,
    share: Option<Share>,
    table: TableOptions,
    outbox: Outbox,
    desk: Arc<Desk>,
    ready: Sender<()>,
    seated: Receiver<Box<dyn Source>>,
}

impl Place {
    fn work(self) -> Result<(), Error> {
        let Self { processor, parse, share, table, outbox, desk, ready, seated } = self;
        let _alarm = desk.alarm();
        placement::settle(processor);
        let intake = Intake::new(parse, table.sampling, share);
        // Here, so that its memory is near the processor that uses it.
        let table = FlowTable::<Memory>::new(&table);
        // Whoever started it may have given up.
        ready.send(()).unwrap_or(());
        drop(ready);
        let Ok(source) = seated.recv() else { return Ok(()) };
        let reorder = source.may_be_held().then(ReorderBuffer::new);
        Worker { source, intake, table, outbox, desk, reorder }.run()
    }
}

/// A processor for each worker.
fn processors(input: &Input) -> Result<Vec<Option<usize>>, Error> {
    match input {
        Input::Files(options) => Ok(vec![None; options.workers.max(1)]),
        Input::Interfaces(locations, options) => {
            let of_each = options.workers_of_each()?;
            Ok(placement::processors(locations, of_each))
        }
    }
}

fn open(input: &Input, processors: &[Option<usize>]) -> Result<Opened, Error> {
    match input {
        Input::Files(options) => {
            let files = open_files(options)?;
            let boxed = |source| Box::new(source) as Box<dyn Source>;
            let sources = files.sources.into_iter().map(boxed).collect();
            Ok(Opened { sources, reader: files.reader, captured: Captured::Files(files.read) })
        }
        Input::Interfaces(locations, options) => open_interfaces(locations, *options, processors),
    }
}

fn open_interfaces(
    locations: &[PortLocation],
    options: LiveOptions,
    processors: &[Option<usize>],
) -> Result<Opened, Error> {
    let of_each = options.workers_of_each()?;
    let mut interfaces: Vec<Interface> = locations.iter().map(Interface::open).collect::<Result<_, _>>()?;
    let mut sources: Vec<LiveSource> = Vec::new();
    for (at, (location, interface)) in locations.iter().zip(&mut interfaces).enumerate() {
        let input = number(&interface.name, interface.index)?;
        let processor = processors.get(at * of_each).copied().flatten();
        sources.extend(placement::on(processor, || open_live(location, input, options))?);
        // At once: a frame that is in a ring and not in the interface's count would unbalance the ledger.
        interface.restart()?;
    }
    Ok(Opened {
        sources: sources.into_iter().map(|source| Box::new(source) as Box<dyn Source>).collect(),
        reader: None,
        captured: Captured::Interfaces(interfaces.into()),
    })
}

/// An interface's number in records.
fn number(name: &str, index: u32) -> Result<u16, Error> {
    u16::try_from(index).map_err(|_| Error::IndexTooLarge { name: name.to_owned(), index })
}

#[cfg(test)]
mod tests;
