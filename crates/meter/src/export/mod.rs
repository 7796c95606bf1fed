//! The export thread: takes what workers offer, and has every target get it in its format, over UDP, TCP, TLS or into a file.
//!
//! ```text
//!  worker: Outbox --.                                 .-> backlog -> Sender (encoder, transport) ~~> collector
//!  worker: Outbox ---> queue (bounded) -> dispatcher -+-> backlog -> Sender ~~> ...
//!  worker: Outbox --'       |                   |     '-> backlog -> Sender -> file
//!                      queue dropped       queue dropped          sent, refused
//! ```
//! Without [`SharedPatience`](crate::SharedPatience) nobody in front of a bound waits: a full queue or backlog loses whole batches, which are counted
//! with the packets they stand for. With it, the dispatcher waits for each target that takes something. A target that is slow or gone
//! costs its own backlog and nobody else anything.
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

/// What keeps an export from beginning.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing can be sent there.
    #[error("cannot export to {target}: {source}")]
    Target { target: String, source: std::io::Error },
    /// A format that cannot be told apart in a stream.
    #[error(
        "{format} cannot go to {target}: its messages do not say how long they are; use udp://, or IPFIX"
    )]
    NotFramed { format: &'static str, target: String },
    /// TLS without anybody to trust.
    #[error(
        "cannot export to {target}: whom to trust is missing; name a file with the certificate of its authority"
    )]
    NoAuthorities { target: String },
    /// Certificates that are of no use.
    #[error("certificates for TLS: {0}")]
    Tls(String),
    #[error("cannot start a thread for the export: {0}")]
    Thread(std::io::Error),
}

/// An export at work. It ends when every [`WorkerOutbox`] and [`WorkerQueue`] is gone.
#[derive(Debug)]
pub struct ExportThread {
    accounts: TargetAccounts,
    threads: Vec<JoinHandle<()>>,
}

/// Starts an export. `ledger` is asked for what the meter knows before the export; its part of the export is filled in here.
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
        let (encoder, transport) = prepare(options, destination)?;
        let account = incoming.accounts.add_target(destination.target.to_string(), encoder.content());
        backlogs.push(OutputQueue::new(backlog, &incoming.patience));
        let ledger = Arc::clone(&ledger);
        senders.push(TargetSender::new(encoder, transport, account, batches, (ledger, deadline.clone())));
    }
    for (index, sender) in senders.into_iter().enumerate() {
        threads.push(start(&format!("export-{index}"), move || sender.run())?);
    }
    let accounts = incoming.accounts.clone();
    threads.push(start("export", move || {
        dispatch(&incoming, &backlogs);
        deadline.begin(clock::monotonic_ns());
    })?);
    Ok(ExportThread { accounts, threads })
}

fn start(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map_err(Error::Thread)
}

fn prepare(
    options: &MeterExport,
    destination: &ExportDestination,
) -> Result<(TargetEncoder, TargetTransport), Error> {
    let target = &destination.target;
    if let ExportContent::Records(format) = destination.content
        && target.is_stream()
        && !format.is_framed()
    {
        return Err(Error::NotFramed { format: format.name(), target: target.to_string() });
    }
    let transport = TargetTransport::new(target, options.tls.as_ref())?;
    let v6 = transport.is_v6();
    let encoder = match destination.content {
        ExportContent::Records(format) => {
            TargetEncoder::Records(Box::new(MessageExporter::new(options.of_records(format, target, v6))))
        }
        ExportContent::Sim => TargetEncoder::Sim {
            encoder: Box::new(SimEncoder::new(options.of_sim(target, v6))),
            ledger_every: options.statistics_every,
            ledger_ns: None,
        },
    };
    Ok((encoder, transport))
}

/// Gives every batch to every target of its kind that has room for it, until nobody can offer any more.
fn dispatch(incoming: &ExportInlet, backlogs: &[OutputQueue<Arc<WorkerBatch>>]) {
    for batch in &incoming.batches {
        let content = match batch {
            WorkerBatch::Records(_) => accounts::BatchContent::Records,
            WorkerBatch::Sim(_) => accounts::BatchContent::Sim,
        };
        let carried = batch.carried();
        let batch = Arc::new(batch);
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

    /// The counts of each target, by its name.
    pub fn targets(&self) -> Vec<(String, ExportCounts)> {
        self.accounts.of_targets()
    }

    /// What reads the counts when the threads belong to somebody else.
    pub fn watch(&self) -> ExportWatch {
        ExportWatch(self.accounts.clone())
    }

    /// Waits until everything offered was sent or lost. Every [`WorkerOutbox`] and [`WorkerQueue`] must be gone, or it waits for ever.
    /// `false`: a thread panicked.
    pub fn join(self) -> (ExportCounts, bool) {
        let panicked = self.threads.into_iter().map(JoinHandle::join).filter(Result::is_err).count();
        (self.accounts.total(), panicked == 0)
    }
}

/// Reads the counts of an export.
#[derive(Clone, Debug)]
pub struct ExportWatch(TargetAccounts);

impl ExportWatch {
    /// The counts of each target, by its name.
    pub fn targets(&self) -> Vec<(String, ExportCounts)> {
        self.0.of_targets()
    }
}

#[cfg(test)]
mod tests;
