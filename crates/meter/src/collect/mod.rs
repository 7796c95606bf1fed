//! The collector at work: sockets and files in, records out to an [`RecordOutlet`].
//!
//! ```text
//!  UDP socket ---- thread --.
//!  TCP, TLS peer - thread ---> queue (bounded) -> decoding thread -> Outlet (sinks)
//!  file ---------- thread --'                          |
//!                                                CollectLedger
//! ```
//! What messages mean is `flow::collect`'s. Whoever is faster than the decoding thread and its outlet waits: connections are
//! held up, datagrams are dropped by the kernel, which counts them.
//!
//! Invariant: memory is bounded, and every datagram is decoded, counted as malformed or refused, or in the socket's drops
//! ([`CollectLedger::imbalances`]).

mod datagrams;
mod decode;
mod error;
mod files;
mod intake;
mod ledger;
mod listen;
mod stream;
mod tls;

pub use decode::RecordOutlet;
pub use error::Error;
pub use intake::IntakeCounts;
pub use ledger::{CollectLedger, ExporterLedger, HandedRecords, MissingData, PacketBalance, PacketLoss};
pub use listen::{ListenAddress, ListenError};
pub use tls::TlsFiles;

use crossbeam_channel::bounded;
use decode::{KnownState, MessageDecoder};
use intake::{ListenerCounters, QUEUE};
use packetrig_flow::collect::{
    CollectorOptions, ExporterIdentity, ExporterList, FlowGatherer, GatherOptions, MessageTransport,
};
use packetrig_sys::clock;
use packetrig_units::Nanos;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// What a collector is told.
#[derive(Clone, Debug)]
pub struct CollectOptions {
    pub listen: Vec<ListenAddress>,
    pub files: Vec<PathBuf>,
    /// What `tls://` shows.
    pub tls: Option<TlsFiles>,
    /// Room of each UDP socket, in bytes.
    pub room: usize,
    /// Connections of each listener at one time, at most.
    pub connections: usize,
    /// How long a handshake or a message may take.
    pub patience: Nanos,
    /// How long a connection may be open before its first message is whole.
    pub first_message: Nanos,
    /// Bounds of what is known of exporters.
    pub collector: CollectorOptions,
    /// How SIM's packets become records.
    pub gather: GatherOptions,
}

impl Default for CollectOptions {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            files: Vec::new(),
            tls: None,
            room: 32 << 20,
            connections: 64,
            patience: Nanos::from_secs(10),
            first_message: Nanos::from_secs(60),
            collector: CollectorOptions::default(),
            gather: GatherOptions::default(),
        }
    }
}

impl CollectOptions {
    /// Divides memory between what is known of exporters, three quarters, and the flows that SIM holds open.
    pub fn set_memory(&mut self, bytes: usize) {
        self.collector.memory = bytes / 4 * 3;
        self.gather.flows = FlowGatherer::<ExporterIdentity>::flows_within(bytes / 4);
    }
}

/// What all threads see.
#[derive(Debug)]
struct CollectorState {
    over: AtomicBool,
    allowed: ExporterList,
    connections: usize,
    patience_ns: u64,
    first_message_ns: u64,
}

impl CollectorState {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Connections that one address may hold of a listener.
    const fn connections_per_address(&self) -> usize {
        self.connections.div_ceil(4)
    }
}

/// Reads the ledger of a collector at work.
#[derive(Clone, Debug)]
pub struct LedgerReading {
    intake: Arc<Vec<(String, Arc<ListenerCounters>)>>,
    known: Arc<Mutex<KnownState>>,
    began_ns: u64,
}

/// A collector at work.
#[derive(Debug)]
pub struct RunningCollector<O> {
    shared: Arc<CollectorState>,
    reading: LedgerReading,
    bound: Vec<ListenAddress>,
    intakes: Vec<JoinHandle<()>>,
    decoder: JoinHandle<O>,
}

impl<O: RecordOutlet + 'static> RunningCollector<O> {
    /// Listens from now on.
    pub fn start(options: &CollectOptions, outlet: O) -> Result<Self, Error> {
        let shared = Arc::new(CollectorState {
            over: AtomicBool::new(false),
            allowed: options.collector.allowed.clone(),
            connections: options.connections,
            patience_ns: options.patience.as_u64(),
            first_message_ns: options.first_message.as_u64(),
        });
        let (queue, items) = bounded(QUEUE);
        let known = Arc::<Mutex<KnownState>>::default();
        let mut opening = CollectorOpening {
            options,
            shared: &shared,
            queue,
            bound: vec![],
            counters: vec![],
            threads: vec![],
        };
        let opened = opening.open_all();
        let CollectorOpening { bound, counters, threads, .. } = opening;
        let decoder = MessageDecoder::new(options.collector.clone(), options.gather, outlet);
        let of_decoder = Arc::clone(&known);
        // If nothing comes of it, nobody takes what the other threads bring.
        let decode = move || decoder.run(&items, &of_decoder);
        let thread = std::thread::Builder::new().name("collect".into());
        let decoder = match opened.and_then(|()| thread.spawn(decode).map_err(Error::Thread)) {
            Ok(decoder) => decoder,
            Err(error) => {
                shared.over.store(true, Ordering::Release);
                return join_all(threads).and(Err(error));
            }
        };
        let reading = LedgerReading { intake: Arc::new(counters), known, began_ns: clock::monotonic_ns() };
        Ok(Self { shared, reading, bound, intakes: threads, decoder })
    }

    /// Where it listens, with the ports that were free.
    pub fn bound(&self) -> &[ListenAddress] {
        &self.bound
    }

    /// Whether nothing more comes: every file is read and nobody listens any more, or nobody decodes.
    pub fn is_done(&self) -> bool {
        self.intakes.iter().all(JoinHandle::is_finished) || self.decoder.is_finished()
    }

    /// What reads the ledger, from any thread.
    pub fn reading(&self) -> LedgerReading {
        self.reading.clone()
    }

    /// Takes what has arrived, and ends. Gives the outlet back.
    pub fn stop(self) -> Result<(CollectLedger, O), Error> {
        let Self { shared, reading, intakes, decoder, .. } = self;
        shared.over.store(true, Ordering::Release);
        let listened = join_all(intakes);
        let outlet = decoder.join().map_err(|_| Error::Panicked("the decoding thread"));
        listened.and(outlet).map(|outlet| (reading.ledger(), outlet))
    }
}

/// Waits for all of them, also when one has panicked.
fn join_all(threads: Vec<JoinHandle<()>>) -> Result<(), Error> {
    let panicked = threads.into_iter().filter_map(|thread| thread.join().err()).count();
    if panicked > 0 { Err(Error::Panicked("a listener")) } else { Ok(()) }
}

impl LedgerReading {
    pub fn elapsed(&self) -> Nanos {
        Nanos::new(clock::monotonic_ns().saturating_sub(self.began_ns))
    }

    /// What is known now; of exporters, as of a fraction of a second ago.
    pub fn ledger(&self) -> CollectLedger {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        CollectLedger {
            elapsed_ns: self.elapsed().as_u64(),
            intake: self.intake.iter().map(|(place, counters)| counters.read(place.clone())).collect(),
            exporters: known.exporters,
            total: known.total,
            refused: known.refused,
            forgotten: known.forgotten,
            memory: known.memory,
            handed: known.handed,
        }
    }
}

/// What is opened one after the other. If one cannot be, the threads of the others see that it is over, and that nobody takes
/// what they bring.
struct CollectorOpening<'a> {
    options: &'a CollectOptions,
    shared: &'a Arc<CollectorState>,
    queue: crossbeam_channel::Sender<intake::IntakeItem>,
    bound: Vec<ListenAddress>,
    counters: Vec<(String, Arc<ListenerCounters>)>,
    threads: Vec<JoinHandle<()>>,
}

impl CollectorOpening<'_> {
    fn open_all(&mut self) -> Result<(), Error> {
        for listen in &self.options.listen {
            self.open(*listen)?;
        }
        for (number, path) in self.options.files.iter().enumerate() {
            let counters = Arc::<ListenerCounters>::default();
            self.counters.push((path.display().to_string(), Arc::clone(&counters)));
            self.threads.push(files::start(path, number, self.shared, counters, self.queue.clone())?);
        }
        Ok(())
    }

    fn open(&mut self, listen: ListenAddress) -> Result<(), Error> {
        let counters = Arc::<ListenerCounters>::default();
        let (address, queue) = (listen.address, self.queue.clone());
        let of_thread = Arc::clone(&counters);
        let (address, thread) = if listen.transport == MessageTransport::Udp {
            datagrams::start(address, self.options.room, self.shared, of_thread, queue)?
        } else {
            let tls = match (listen.transport, &self.options.tls) {
                (MessageTransport::Tls, None) => return Err(Error::NoIdentity(address)),
                (MessageTransport::Tls, Some(files)) => Some(tls::config(files)?),
                _ => None,
            };
            stream::start(address, tls, self.shared, of_thread, queue)?
        };
        let bound = ListenAddress { address, ..listen };
        self.bound.push(bound);
        self.counters.push((bound.to_string(), counters));
        self.threads.push(thread);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
