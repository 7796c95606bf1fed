//! A meter from its start to its end: sources are opened, workers started, stopped, joined.
//!
//! ```text
//!  Books::new -> outputs added -> Meter::start -> … -> stop -> join -> outputs end, their queues being closed -> report
//! ```
//! Invariant: every thread that was started is joined, also when another one failed.

use crate::Error;
use crate::intake::Intake;
use crate::ledger::{Books, Captured};
use crate::outbox::Outbox;
use crate::placement;
use crate::source::{
    FileOptions, Interface, LiveOptions, LiveSource, Location, Source, open_files, open_live,
};
use crate::worker::{Desk, Worker};
use crossbeam_channel::bounded;
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
    Interfaces(Vec<Location>, LiveOptions),
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

/// What is opened before anything starts.
struct Opened {
    sources: Vec<Box<dyn Source>>,
    reader: Option<JoinHandle<()>>,
    captured: Captured,
    processors: Vec<Option<usize>>,
}

impl Meter {
    /// Starts; from now on everything that arrives is in the books.
    pub fn start(options: &MeterOptions, books: &Books) -> Result<Self, Error> {
        let opened = open(&options.input);
        // Also if nothing comes of it: the outputs wait for their queues to close.
        let channels = books.take_channels();
        let Opened { sources, reader, captured, processors } = opened?;
        let count = sources.len();
        if matches!(&options.input, Input::Files(files) if files.pace.is_none()) {
            channels.patience.begin();
        }
        let desks: Vec<_> = (0..count).map(|_| Arc::new(Desk::new(options.has_top))).collect();
        books.begin(desks.clone(), captured);
        let share = u32::try_from(count).unwrap_or(1).max(1);
        let table =
            TableOptions { capacity: options.table.capacity.div_ceil(share), ..options.table.clone() };
        let mut meter = Self { desks, workers: Vec::with_capacity(count), reader };
        let (ready, is_ready) = bounded::<()>(count);
        for ((source, desk), processor) in sources.into_iter().zip(meter.desks.clone()).zip(processors) {
            let intake = Intake::new(options.parse, table.sampling);
            let (table, outbox, ready) = (table.clone(), Outbox::new(&channels), ready.clone());
            let work = move || {
                placement::settle(processor);
                // Here, so that its memory is near the processor that uses it.
                let table = FlowTable::new(&table);
                // Whoever started it may have given up.
                ready.send(()).unwrap_or(());
                drop(ready);
                Worker { source, intake, table, outbox, desk }.run()
            };
            let thread = std::thread::Builder::new().name(format!("meter-{}", meter.workers.len()));
            match thread.spawn(work) {
                Ok(thread) => meter.workers.push(thread),
                Err(source) => {
                    meter.stop();
                    return meter.join().and(Err(Error::Thread(source)));
                }
            }
        }
        drop(ready);
        // Until all tables are there, or their workers gone.
        is_ready.iter().for_each(drop);
        Ok(meter)
    }

    /// Whether every worker has come to its end, or one to a bad one: then the others are to be stopped.
    pub fn is_over(&self) -> bool {
        let has_failed = self.desks.iter().any(|desk| desk.has_failed());
        has_failed || self.workers.iter().all(JoinHandle::is_finished)
    }

    /// Lets nothing in any more: what has arrived is metered, then it is over.
    pub fn stop(&self) {
        self.desks.iter().for_each(|desk| desk.stop());
    }

    /// The workers' desks.
    pub fn desks(&self) -> &[Arc<Desk>] {
        &self.desks
    }

    /// Waits for the workers, and says what the first that failed says.
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

fn open(input: &Input) -> Result<Opened, Error> {
    match input {
        Input::Files(options) => {
            let files = open_files(options)?;
            let processors = vec![None; files.sources.len()];
            let boxed = |source| Box::new(source) as Box<dyn Source>;
            let sources = files.sources.into_iter().map(boxed).collect();
            Ok(Opened { sources, reader: files.reader, captured: Captured::Files(files.read), processors })
        }
        Input::Interfaces(locations, options) => open_interfaces(locations, *options),
    }
}

fn open_interfaces(locations: &[Location], options: LiveOptions) -> Result<Opened, Error> {
    let mut interfaces: Vec<Interface> = locations.iter().map(Interface::open).collect::<Result<_, _>>()?;
    let mut sources: Vec<LiveSource> = Vec::new();
    for (location, interface) in locations.iter().zip(&mut interfaces) {
        let input = u16::try_from(interface.index)
            .map_err(|_| Error::TooManyInputs { count: interface.index as usize, most: u16::MAX.into() })?;
        sources.extend(open_live(location, input, options)?);
        // At once: a frame that is in a ring and not in the interface's count would unbalance the ledger.
        interface.restart()?;
    }
    let processors = placement::processors(locations, sources.len());
    Ok(Opened {
        sources: sources.into_iter().map(|source| Box::new(source) as Box<dyn Source>).collect(),
        reader: None,
        captured: Captured::Interfaces(interfaces.into()),
        processors,
    })
}
