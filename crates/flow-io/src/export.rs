//! The export threads: receive batches from workers and send them to every target in the target's format, over UDP, TCP
//! or TLS, or into a file.
//!
//! ```text
//!  WorkerExportBuffer --.                                 .-> backlog -> TargetSender (encoder, transport) ~~> collector
//!  WorkerExportBuffer ---> queue (bounded) -> dispatcher -+-> backlog -> TargetSender ~~> ...
//!  WorkerExportBuffer --'       |                   |     '-> backlog -> TargetSender -> file
//!                    queue dropped       queue dropped          sent, refused
//! ```
//! Until [`BackpressurePolicy`](crate::BackpressurePolicy) enables waiting, no thread waits for room: a full queue or
//! backlog loses whole batches, and packetrig counts them with their packets. After that, the dispatcher waits for
//! each target that still accepts data. A target that is slow or unreachable loses batches of its own backlog; the
//! other targets lose nothing.
//!
//! If one meter of a group exports for all, an export gate stands before the backlogs (see `gate`).
//!
//! Invariant: offered = queue dropped + sent + refused + left to other meters + waiting, for each target, at
//! any time; and each dropped or refused record has a cause.

mod accounts;
mod backlog;
mod deadline;
mod dispatch;
mod encoder;
mod gate;
mod kept;
mod options;
mod outbox;
mod sender;
mod target;
mod transport;
mod written;

pub use options::GroupExport;
pub use options::{ExportContent, ExportDestination, MeterExport, TlsFiles};
pub use outbox::{
    BATCH_BYTES, ExportQueueReceiver, ExportQueueSender, WorkerExportBuffer, WorkerProgress,
    full_batches_in_bytes, open_export_queue,
};
pub use target::{ExportTarget, HostPort, TargetError};

use crate::backpressure::{OutputProgress, OutputQueue};
use crate::group::{GroupError, GroupMember, GroupRoleHandle, group_time_ns};
use crate::output_report::OutputReport;
use accounts::TargetAccounts;
use backlog::TargetBacklog;
use crossbeam_channel::bounded;
use deadline::{LastOfferTime, SendDeadline};
use dispatch::Dispatcher;
use encoder::TargetEncoder;
use gate::ExportGate;
use outbox::SharedProgress;
use packetrig_flow::export::MessageExporter;
use packetrig_flow::group::MeterCoverage;
use packetrig_flow::sim::SimEncoder;
use packetrig_flow::{ExportCounts, MeterLedger};
use packetrig_sys::clock;
use packetrig_units::Nanos;
use sender::{EncoderOutput, LedgerSource, TargetSender};
use std::sync::Arc;
use std::thread::JoinHandle;
use transport::TargetTransport;
use written::UnconfirmedMessageStore;

/// Reasons why an export cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot export to {target}: {source}")]
    Target { target: String, source: std::io::Error },
    /// The format's messages have no length field, so a byte stream of them cannot be split again.
    #[error(
        "cannot export {format} to {target}: the messages of {format} have no length field; use a udp:// \
        target, or IPFIX"
    )]
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
    /// The meter cannot join its group.
    #[error(transparent)]
    Group(#[from] GroupError),
}

/// A running export. It ends when every [`WorkerExportBuffer`] and [`ExportQueueSender`] has been dropped.
#[derive(Debug)]
pub struct RunningExport {
    accounts: TargetAccounts,
    threads: Vec<JoinHandle<()>>,
    progress: SharedProgress,
    /// Present if one meter of a group exports for all.
    member: Option<GroupMember>,
}

/// Starts an export. `ledger` returns the meter's ledger; the export fills in its own counts.
pub fn spawn_export(
    options: &MeterExport,
    incoming: ExportQueueReceiver,
    ledger: impl Fn() -> MeterLedger + Send + Sync + 'static,
) -> Result<RunningExport, Error> {
    let ledger: LedgerSource = Arc::new(ledger);
    // Shared by all targets, so that their deadlines start at the same moment.
    let last_offer = LastOfferTime::no_offer_yet();
    let member = options.group.as_ref().map(join_group).transpose()?;
    let mut threads = Vec::new();
    let mut backlogs = Vec::new();
    let mut senders = Vec::new();
    for destination in &options.destinations {
        // Each target has its own backlog, so that a slow target does not delay the other targets.
        let (room, batches) = bounded(full_batches_in_bytes(options.backlog_bytes));
        let transport = open_transport(options, destination)?;
        let encoder = build_encoder(options, destination, transport.is_v6());
        let account = incoming.accounts.add_target(destination.target.to_string(), encoder.content());
        let progress = OutputProgress::new(transport.initial_reach());
        backlogs.push(OutputQueue::with_progress(room, &incoming.backpressure, progress.clone()));
        let deadline = SendDeadline {
            last_offer: last_offer.clone(),
            linger: options.linger,
            backpressure: incoming.backpressure.clone(),
            progress,
        };
        let ledger = Arc::clone(&ledger);
        let role_handle = member.as_ref().map(|member| member.role_handle().clone());
        let backlog = TargetBacklog::new(batches, role_handle);
        // Only a stream has acknowledgements: a datagram or a file counts as sent once the kernel has accepted it.
        let written = make_unconfirmed_store_if_needed(options)
            .filter(|_| matches!(transport, TargetTransport::Stream(_)));
        let out = EncoderOutput::new(transport, account, deadline, written);
        senders.push(TargetSender::new(encoder, out, backlog, ledger));
    }
    // Threads start only after every target was opened, so that an error above leaves no thread running.
    for (index, sender) in senders.into_iter().enumerate() {
        threads.push(start_thread(&format!("export-{index}"), move || sender.run_until_closed())?);
    }
    let (accounts, progress) = (incoming.accounts.clone(), incoming.progress.clone());
    let gate = options.group.as_ref().zip(member.as_ref());
    let gate = gate.map(|(group, member)| {
        ExportGate::new(member.role_handle(), group.keep_bytes, group.ready_after, resend_time(options))
    });
    let dispatcher = Dispatcher::new(incoming, backlogs, options.linger);
    threads.push(start_thread("export", move || {
        match gate {
            Some(mut gate) => gate.run_until_closed(&dispatcher),
            None => dispatcher.run_until_closed(),
        }
        // This ends the targets' threads, once they have sent the rest of their backlogs.
        drop(dispatcher);
        last_offer.start_countdown(clock::monotonic_ns());
    })?);
    Ok(RunningExport { accounts, threads, progress, member })
}

/// Makes the store that keeps written messages until they are acknowledged. Only meters with a history or a group have
/// one, because they may have to send these messages again.
fn make_unconfirmed_store_if_needed(options: &MeterExport) -> Option<UnconfirmedMessageStore> {
    (options.has_history || options.group.is_some())
        .then(|| UnconfirmedMessageStore::new(options.backlog_bytes, resend_time(options)))
}

/// Returns the age up to which records are sent again on a new connection.
fn resend_time(options: &MeterExport) -> Nanos {
    // Without a history in its records, a collector cannot recognise repeated records. Without a connection, a meter
    // does not notice that a collector was restarted.
    let mut targets = options.destinations.iter().map(|destination| &destination.target);
    let has_connections = targets.any(|target| matches!(target, ExportTarget::Tcp(_) | ExportTarget::Tls(_)));
    if options.has_history && has_connections { written::ACKNOWLEDGED_KEEP_TIME } else { Nanos::ZERO }
}

fn join_group(group: &GroupExport) -> Result<GroupMember, GroupError> {
    GroupMember::join_group(group.member.clone(), MeterCoverage::seen_since(group_time_ns()))
}

fn start_thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map_err(Error::Thread)
}

fn open_transport(options: &MeterExport, destination: &ExportDestination) -> Result<TargetTransport, Error> {
    let target = &destination.target;
    if let ExportContent::Records(format) = destination.content
        && target.is_stream()
        && !format.states_message_length()
    {
        return Err(Error::NotFramed { format: format.name(), target: target.to_string() });
    }
    TargetTransport::new(target, options.tls.as_ref())
}

fn build_encoder(options: &MeterExport, destination: &ExportDestination, v6: bool) -> TargetEncoder {
    let target = &destination.target;
    match destination.content {
        ExportContent::Records(format) => {
            TargetEncoder::Records(Box::new(MessageExporter::new(options.record_options(format, target, v6))))
        }
        ExportContent::Sim => TargetEncoder::Sim {
            encoder: Box::new(SimEncoder::new(options.sim_options(target, v6))),
            ledger_every: options.statistics_every,
            ledger_ns: None,
        },
    }
}

impl RunningExport {
    /// Sums the counts of all targets. With several targets, a record counts once for each of them.
    pub fn total_counts(&self) -> ExportCounts {
        self.accounts.total_counts()
    }

    /// Returns the report of each target.
    pub fn output_reports(&self) -> Vec<OutputReport> {
        self.accounts.output_reports()
    }

    /// Returns a handle that reads the counts. It stays valid after [`Self::join_threads`].
    pub fn export_watch(&self) -> ExportCountsReader {
        ExportCountsReader(self.accounts.clone())
    }

    /// Reports whether all threads have ended: no record waits any more.
    pub fn has_ended(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Waits until all threads have ended, and returns the final counts. It returns only after every [`WorkerExportBuffer`]
    /// and [`ExportQueueSender`] was dropped. The flag is `false` if a thread panicked.
    pub fn join_threads(self) -> (ExportCounts, bool) {
        // All threads are joined, also after a panic: no thread may outlive the report of its records.
        let panicked = self.threads.into_iter().map(JoinHandle::join).filter(Result::is_err).count();
        let is_whole = self.member.is_none_or(|member| {
            // The final watermark is set before the member stops: its farewell carries the watermark to the
            // successor.
            let is_complete = self.accounts.delivery_counts().is_complete();
            gate::set_final_watermark(member.role_handle(), self.progress.combined_progress(), is_complete);
            member.leave_group()
        });
        (self.accounts.total_counts(), panicked == 0 && is_whole)
    }

    /// Returns this meter's role in its group, if one meter exports for all.
    pub fn role_handle(&self) -> Option<&GroupRoleHandle> {
        self.member.as_ref().map(GroupMember::role_handle)
    }
}

/// Reads the counts of an export.
#[derive(Clone, Debug)]
pub struct ExportCountsReader(TargetAccounts);

impl ExportCountsReader {
    /// Returns the report of each target.
    pub fn output_reports(&self) -> Vec<OutputReport> {
        self.0.output_reports()
    }
}

#[cfg(test)]
mod tests;
