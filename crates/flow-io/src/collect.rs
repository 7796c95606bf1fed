//! The collector: reads messages from sockets and files, and gives records to a [`CollectedRecordReceiver`].
//!
//! ```text
//!  UDP socket ---- thread --.
//!  TCP, TLS peer - thread ---> queue (bounded) -> decoding thread -> CollectedRecordReceiver (sinks)
//!  file ---------- thread --'                          |
//!                                            published as CollectLedger
//! ```
//! `flow::collect` decodes the messages. If the decoding thread or its outlet is too slow, listeners wait: TCP slows
//! the connections down, and the kernel drops datagrams and counts them.
//!
//! Invariant: memory is bounded, and every datagram is decoded, counted as malformed, refused, not allowed or unread,
//! or in the socket's drops ([`CollectLedger::imbalances`]).

mod datagrams;
mod decode;
mod error;
mod files;
mod intake;
mod ledger;
mod listen;
mod relay;
mod stream;
mod tls;

pub use decode::CollectedRecordReceiver;
pub use error::Error;
pub use intake::IntakeCounts;
pub use ledger::{
    CollectLedger, ExporterLedger, GroupLedger, HandedOverRecords, MissingData, PacketBalance, PacketLoss,
};
pub use listen::{ListenAddress, ListenAddressError};
use relay::{RelayCounters, RelayQueue};
pub use relay::{RelayCounts, RelayTarget, RelayTargetError};
use tls::ListenerEncryption;
pub use tls::TlsFiles;

use crossbeam_channel::bounded;
use decode::{CollectorSnapshot, MessageDecoder};
use intake::{ListenerCounters, MAX_QUEUED_BATCHES};
use packetrig_flow::collect::{
    CollectorOptions, ExporterIdentity, ExporterList, FlowGatherer, GatherOptions, GroupOptions,
    GroupRecordJoiner, MessageTransport,
};
use packetrig_sys::clock;
use packetrig_units::Nanos;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Options of a collector.
#[derive(Clone, Debug)]
pub struct CollectOptions {
    pub listen: Vec<ListenAddress>,
    pub files: Vec<PathBuf>,
    /// Certificate and key of `tls://` listeners.
    pub tls: Option<TlsFiles>,
    /// Receive buffer of each UDP socket, in bytes.
    pub receive_buffer_bytes: usize,
    /// Maximum number of connections of each listener at a time.
    pub connections: usize,
    /// Time limit of a handshake, and of each message once it has begun.
    pub message_timeout: Nanos,
    /// Time limit from the opening of a connection to its first whole message.
    pub first_message: Nanos,
    /// List of allowed exporters, and limits for the state that the collector stores about exporters.
    pub collector: CollectorOptions,
    /// Options for turning SIM's packets into records.
    pub gather: GatherOptions,
    /// Options for joining records of meters that see copies of one link.
    pub groups: GroupOptions,
    /// True if this collector knows which group records its previous process stored. If not, it skips group records
    /// that meters sent before its start: meters send these again, and the previous process has probably stored them.
    pub has_memory: bool,
    /// Collectors to which received datagrams are forwarded.
    pub relays: Vec<RelayTarget>,
}

impl Default for CollectOptions {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            files: Vec::new(),
            tls: None,
            receive_buffer_bytes: 32 << 20,
            connections: 64,
            message_timeout: Nanos::from_secs(10),
            first_message: Nanos::from_secs(60),
            collector: CollectorOptions::default(),
            gather: GatherOptions::default(),
            groups: GroupOptions::default(),
            has_memory: true,
            relays: Vec::new(),
        }
    }
}

impl CollectOptions {
    /// Divides memory: half for the state of exporters, a quarter for flows that SIM holds open, and a quarter for flows
    /// that several meters report.
    pub fn set_memory_bytes(&mut self, bytes: usize) {
        self.collector.memory = bytes / 2;
        self.groups = GroupOptions::within_memory(bytes / 4);
        self.gather.flows = FlowGatherer::<ExporterIdentity>::max_flows_in_memory(bytes / 4);
    }
}

/// State that all threads share.
#[derive(Debug)]
struct CollectorState {
    over: AtomicBool,
    allowed: ExporterList,
    connections: usize,
    message_timeout_ns: u64,
    first_message_ns: u64,
}

impl CollectorState {
    fn is_stopping(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Maximum number of connections that one address may have with a listener.
    // The limit is a quarter: one hostile exporter, or one that reconnects all the time, cannot lock
    // out the other exporters.
    const fn connections_per_address(&self) -> usize {
        self.connections.div_ceil(4)
    }
}

/// Reads the ledger of a running collector.
#[derive(Clone, Debug)]
pub struct LedgerReader {
    intake: Arc<Vec<(String, Arc<ListenerCounters>)>>,
    relays: Arc<Vec<(String, Arc<RelayCounters>)>>,
    known: Arc<Mutex<CollectorSnapshot>>,
    began_ns: u64,
}

/// A running collector with its threads and its ledger.
#[derive(Debug)]
pub struct RunningCollector<O> {
    shared: Arc<CollectorState>,
    reading: LedgerReader,
    bound: Vec<ListenAddress>,
    intakes: Vec<JoinHandle<()>>,
    relays: Vec<JoinHandle<()>>,
    decoder: JoinHandle<O>,
}

impl<O: CollectedRecordReceiver + 'static> RunningCollector<O> {
    /// Opens all listeners and files, and starts to decode.
    pub fn start_listening(options: &CollectOptions, outlet: O) -> Result<Self, Error> {
        // Records carry times since 1970, so the start time of this process must count from 1970, too.
        let grouped = GroupRecordJoiner::new(options.groups, clock::wall_clock_ns());
        Self::start_with_stored_flows(options, outlet, grouped)
    }

    /// Like [`Self::start_listening`], but begins with the group flows that a previous process has stored.
    pub fn start_with_stored_flows(
        options: &CollectOptions,
        outlet: O,
        grouped: GroupRecordJoiner,
    ) -> Result<Self, Error> {
        let shared = Arc::new(CollectorState {
            over: AtomicBool::new(false),
            allowed: options.collector.allowed.clone(),
            connections: options.connections,
            message_timeout_ns: options.message_timeout.as_u64(),
            first_message_ns: options.first_message.as_u64(),
        });
        // The queue is bounded: a slow outlet must slow the listeners and not fill the memory.
        let (queue, items) = bounded(MAX_QUEUED_BATCHES);
        let known = Arc::<Mutex<CollectorSnapshot>>::default();
        let mut opening = CollectorOpening {
            options,
            shared: &shared,
            queue,
            bound: vec![],
            counters: vec![],
            threads: vec![],
            relay_queues: vec![],
            relay_counters: vec![],
            relays: vec![],
        };
        let opened = opening.open_inputs_and_relays();
        // The listeners have their own senders to the relays. A relay ends when its last sender is dropped.
        let CollectorOpening { bound, counters, threads, relay_counters, relays, .. } = opening;
        let decoder = MessageDecoder::new(options, outlet, grouped);
        let of_decoder = Arc::clone(&known);
        let thread = std::thread::Builder::new().name("collect".into());
        // The thread starts only if all listeners and files were opened. Otherwise `items` is dropped here, and
        // the listeners' threads find their queue closed and end.
        let decoder = match opened.and_then(|()| {
            thread.spawn(move || decoder.decode_until_closed(&items, &of_decoder)).map_err(Error::Thread)
        }) {
            Ok(decoder) => decoder,
            Err(error) => {
                shared.over.store(true, Ordering::Release);
                // These threads are joined before the error is reported: none of them must outlive a failed start.
                return join_threads(threads, "a listener or file reader").and(Err(error));
            }
        };
        let reading = LedgerReader {
            intake: Arc::new(counters),
            relays: Arc::new(relay_counters),
            known,
            began_ns: clock::monotonic_ns(),
        };
        Ok(Self { shared, reading, bound, intakes: threads, relays, decoder })
    }

    /// Listen addresses; a port 0 is replaced by the port that the kernel chose.
    pub fn bound_addresses(&self) -> &[ListenAddress] {
        &self.bound
    }

    /// Reports whether no more messages will be decoded: all file readers and listeners have ended, or the thread
    /// that decodes has ended.
    pub fn is_done(&self) -> bool {
        self.intakes.iter().all(JoinHandle::is_finished) || self.decoder.is_finished()
    }

    /// Returns a handle that reads the ledger from any thread.
    pub fn ledger_reader(&self) -> LedgerReader {
        self.reading.clone()
    }

    /// Stops the listeners, decodes the messages that have arrived, and joins all threads. Returns the final ledger
    /// and the caller's outlet.
    pub fn stop_and_join(self) -> Result<(CollectLedger, O), Error> {
        let Self { shared, reading, intakes, relays, decoder, .. } = self;
        shared.over.store(true, Ordering::Release);
        // Listeners first: the decoding thread ends when the last of them has dropped its sender of the queue.
        let listened = join_threads(intakes, "a listener or file reader");
        // The relays end now, because the listeners held the last senders of their queues. They are joined even if a
        // listener has panicked.
        let relayed = join_threads(relays, "a relay");
        let outlet = decoder.join().map_err(|_| Error::Panicked("the decoding thread"));
        listened.and(relayed).and(outlet).map(|outlet| (reading.read_ledger(), outlet))
    }
}

/// Waits for all threads, even if one has panicked. `kind` names them in the error.
fn join_threads(threads: Vec<JoinHandle<()>>, kind: &'static str) -> Result<(), Error> {
    let panicked = threads.into_iter().filter_map(|thread| thread.join().err()).count();
    if panicked > 0 { Err(Error::Panicked(kind)) } else { Ok(()) }
}

impl LedgerReader {
    pub fn elapsed_time(&self) -> Nanos {
        Nanos::new(clock::monotonic_ns().saturating_sub(self.began_ns))
    }

    /// Lists the listeners with failed TLS handshakes: name of the listener, number of failures, last reason.
    pub fn handshake_failures(&self) -> Vec<(String, u64, String)> {
        let all = self.intake.iter().map(|(place, counters)| counters.read_counts(place.clone()));
        let failed = all.filter_map(|one| Some((one.place, one.handshakes_failed, one.handshake_failure?)));
        failed.collect()
    }

    /// Reads the ledger. The counts of listeners and relays are current; those of exporters, groups and records are up
    /// to two seconds old, or older while the outlet blocks.
    pub fn read_ledger(&self) -> CollectLedger {
        // The lock is held only for this copy, so that the decoding thread does not wait for the whole report.
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        CollectLedger {
            elapsed_ns: self.elapsed_time().as_u64(),
            intake: self.intake.iter().map(|(place, counters)| counters.read_counts(place.clone())).collect(),
            exporters: known.exporters,
            total: known.total,
            refused: known.refused,
            forgotten: known.forgotten,
            memory: known.memory,
            handed: known.handed,
            groups: known.groups,
            relays: self.relays.iter().map(|(to, counters)| counters.read_counts(to.clone())).collect(),
        }
    }
}

/// Opens relays, listeners and files, in this order. If one of them cannot be opened, the caller ends the
/// threads that have been started.
struct CollectorOpening<'a> {
    options: &'a CollectOptions,
    shared: &'a Arc<CollectorState>,
    queue: crossbeam_channel::Sender<intake::DecoderQueueItem>,
    bound: Vec<ListenAddress>,
    counters: Vec<(String, Arc<ListenerCounters>)>,
    threads: Vec<JoinHandle<()>>,
    relay_queues: Vec<RelayQueue>,
    relay_counters: Vec<(String, Arc<RelayCounters>)>,
    relays: Vec<JoinHandle<()>>,
}

impl CollectorOpening<'_> {
    fn open_inputs_and_relays(&mut self) -> Result<(), Error> {
        for target in &self.options.relays {
            let relay = relay::start_relay(target, &self.options.listen)?;
            self.relay_queues.push(relay.queue);
            self.relay_counters.push((target.to_string(), relay.counters));
            self.relays.push(relay.thread);
        }
        for listen in &self.options.listen {
            self.open_listener(*listen)?;
        }
        for (number, path) in self.options.files.iter().enumerate() {
            let counters = Arc::<ListenerCounters>::default();
            self.counters.push((path.display().to_string(), Arc::clone(&counters)));
            self.threads.push(files::start_file_reader(
                path,
                number,
                self.shared,
                counters,
                self.queue.clone(),
            )?);
        }
        Ok(())
    }

    fn open_listener(&mut self, listen: ListenAddress) -> Result<(), Error> {
        let counters = Arc::<ListenerCounters>::default();
        let address = listen.address;
        let queue = self.queue.clone();
        let of_thread = Arc::clone(&counters);
        let listener = if listen.transport == MessageTransport::Udp {
            datagrams::start_udp_listener(
                address,
                self.options.receive_buffer_bytes,
                self.shared,
                of_thread,
                datagrams::DatagramDestinations { queue, relays: self.relay_queues.clone() },
            )?
        } else {
            let tls = match (listen.transport, &self.options.tls) {
                (MessageTransport::Tls, None) => return Err(Error::NoIdentity(address)),
                (MessageTransport::Tls, Some(files)) => Some(ListenerEncryption::new(files)?),
                _ => None,
            };
            stream::start_tcp_listener(address, tls, self.shared, of_thread, queue)?
        };
        // The ledger shows the bound address: with port 0, the kernel has chosen the port.
        let bound = ListenAddress { address: listener.bound, ..listen };
        self.bound.push(bound);
        self.counters.push((bound.to_string(), counters));
        self.threads.push(listener.thread);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
