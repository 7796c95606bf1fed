//! The export threads: take what workers offer, and send it to every target in its format, over UDP, TCP, TLS or into a file.
//!
//! ```text
//!  WorkerOutbox --.                                 .-> backlog -> TargetSender (encoder, transport) ~~> collector
//!  WorkerOutbox ---> queue (bounded) -> dispatcher -+-> backlog -> TargetSender ~~> ...
//!  WorkerOutbox --'       |                   |     '-> backlog -> TargetSender -> file
//!                    queue dropped       queue dropped          sent, refused
//! ```
//! Unless [`SharedPatience`](crate::SharedPatience) has begun, no thread waits for room: a full queue or backlog loses whole batches,
//! which are counted with their packets. With patience, the dispatcher waits for each target that still takes data. A target that
//! is slow or gone costs its own backlog; the other targets lose nothing.
//!
//! Invariant: offered = queue dropped + sent + refused + waiting, for each target, at any time.

mod accounts;
mod deadline;
mod encoder;
mod options;
mod outbox;
mod sender;
mod target;
mod transport;

pub use options::{ExportContent, ExportDestination, MeterExport, TlsFiles};
pub use outbox::{BATCH_BYTES, ExportInlet, WorkerOutbox, WorkerQueue, batches_of, queue};
pub use target::{ExportTarget, HostPort, TargetError};

use crate::batch::WorkerBatch;
use crate::patience::OutputQueue;
use accounts::TargetAccounts;
use crossbeam_channel::bounded;
use deadline::SendDeadline;
use encoder::TargetEncoder;
use packetrig_flow::export::MessageExporter;
use packetrig_flow::sim::SimEncoder;
use packetrig_flow::{ExportCounts, MeterLedger};
use packetrig_sys::clock;
use sender::{LedgerSource, TargetSender};
use std::sync::Arc;
use std::thread::JoinHandle;
use transport::TargetTransport;

/// Why an export cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot export to {target}: {source}")]
    Target { target: String, source: std::io::Error },
    /// The format's messages have no length field, so a byte stream of them cannot be split again.
    #[error("cannot export {format} to {target}: its messages have no length field; use udp://, or IPFIX")]
    NotFramed { format: &'static str, target: String },
    /// TLS without a certificate authority.
    #[error(
        "cannot export to {target}: no certificate authority is given; name its certificate file with --tls-ca"
    )]
    NoAuthorities { target: String },
    /// A certificate, key or server name cannot be used.
    #[error("cannot set up TLS: {0}")]
    Tls(String),
    #[error("cannot start a thread for the export: {0}")]
    Thread(std::io::Error),
}

/// A running export. It ends when every [`WorkerOutbox`] and [`WorkerQueue`] has been dropped.
#[derive(Debug)]
pub struct ExportThread {
    accounts: TargetAccounts,
    threads: Vec<JoinHandle<()>>,
}

/// Starts an export. `ledger` returns the meter's ledger; the accounts of the export itself are filled in here.
pub fn spawn(
    options: &MeterExport,
    incoming: ExportInlet,
    ledger: impl Fn() -> MeterLedger + Send + Sync + 'static,
) -> Result<ExportThread, Error> {
    let ledger: LedgerSource = Arc::new(ledger);
    let deadline = SendDeadline::never(options.linger);
    let mut threads = Vec::new();
    let mut backlogs = Vec::new();
    let mut senders = Vec::new();
    for destination in &options.destinations {
        let (backlog, batches) = bounded(batches_of(options.backlog_bytes));
        let transport = open_transport(options, destination)?;
        let encoder = encoder(options, destination, transport.is_v6());
        let account = incoming.accounts.add_target(destination.target.to_string(), encoder.content());
        backlogs.push(OutputQueue::new(backlog, &incoming.patience));
        let ledger = Arc::clone(&ledger);
        senders.push(TargetSender::new(encoder, transport, account, batches, ledger, deadline.clone()));
    }
    // Threads start only after every target was opened: an error above leaves none behind.
    for (index, sender) in senders.into_iter().enumerate() {
        threads.push(start(&format!("export-{index}"), move || sender.run())?);
    }
    let accounts = incoming.accounts.clone();
    threads.push(start("export", move || {
        dispatch(&incoming, &backlogs);
        // Dropping `backlogs` with this closure ends the targets' threads, once they have taken what is left.
        deadline.begin(clock::monotonic_ns());
    })?);
    Ok(ExportThread { accounts, threads })
}

fn start(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map_err(Error::Thread)
}

fn open_transport(options: &MeterExport, destination: &ExportDestination) -> Result<TargetTransport, Error> {
    let target = &destination.target;
    if let ExportContent::Records(format) = destination.content
        && target.is_stream()
        && !format.is_framed()
    {
        return Err(Error::NotFramed { format: format.name(), target: target.to_string() });
    }
    TargetTransport::new(target, options.tls.as_ref())
}

fn encoder(options: &MeterExport, destination: &ExportDestination, v6: bool) -> TargetEncoder {
    let target = &destination.target;
    match destination.content {
        ExportContent::Records(format) => {
            TargetEncoder::Records(Box::new(MessageExporter::new(options.of_records(format, target, v6))))
        }
        ExportContent::Sim => TargetEncoder::Sim {
            encoder: Box::new(SimEncoder::new(options.of_sim(target, v6))),
            ledger_every: options.statistics_every,
            ledger_ns: None,
        },
    }
}

/// Gives each batch to every target of its content that has room, until all workers have dropped their ends of the queue.
fn dispatch(incoming: &ExportInlet, backlogs: &[OutputQueue<Arc<WorkerBatch>>]) {
    for batch in &incoming.batches {
        let content = match batch {
            WorkerBatch::Records(_) => accounts::BatchContent::Records,
            WorkerBatch::Sim(_) => accounts::BatchContent::Sim,
        };
        let carried = batch.carried();
        let batch = Arc::new(batch);
        // Waits here and not below: the accounts are locked while the batch is handed over. Only this thread fills the
        // backlogs, so room that was found is still there.
        OutputQueue::await_room(backlogs);
        incoming.accounts.hand_over(content, carried, |index| {
            backlogs.get(index).is_some_and(|backlog| backlog.try_give(Arc::clone(&batch)).is_ok())
        });
    }
}

impl ExportThread {
    /// The sums over all targets: with several, each is offered everything.
    pub fn counts(&self) -> ExportCounts {
        self.accounts.total()
    }

    /// Names and counts of the targets.
    pub fn targets(&self) -> Vec<(String, ExportCounts)> {
        self.accounts.of_targets()
    }

    /// A handle that reads the counts, independent of this owner of the threads.
    pub fn watch(&self) -> ExportWatch {
        ExportWatch(self.accounts.clone())
    }

    /// Waits until everything offered was sent or lost. It returns only after every [`WorkerOutbox`] and [`WorkerQueue`] was
    /// dropped. `false`: a thread panicked.
    pub fn join(self) -> (ExportCounts, bool) {
        let panicked = self.threads.into_iter().map(JoinHandle::join).filter(Result::is_err).count();
        (self.accounts.total(), panicked == 0)
    }
}

/// Reads the counts of an export.
#[derive(Clone, Debug)]
pub struct ExportWatch(TargetAccounts);

impl ExportWatch {
    /// Names and counts of the targets.
    pub fn targets(&self) -> Vec<(String, ExportCounts)> {
        self.0.of_targets()
    }
}

#[cfg(test)]
mod tests;
