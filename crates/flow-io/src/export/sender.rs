//! The thread of one target: takes batches from its backlog only while its transport takes messages.
//!
//! Invariant: a batch that was taken is in messages sent, refused, kept for the next connection, or open in the encoder; at the end
//! each record is in one account.

use super::accounts::TargetAccount;
use super::deadline::SendDeadline;
use super::encoder::TargetEncoder;
use super::transport::{TargetTransport, UntakenMessage};
use crate::batch::WorkerBatch;
use crossbeam_channel::{Receiver, RecvTimeoutError};
use packetrig_flow::export::{ExportMessage, MessageSink};
use packetrig_flow::{CarriedRecords, MeterLedger};
use packetrig_sys::clock;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// How often the thread checks its deadline while nothing arrives.
const LOOK: Duration = Duration::from_millis(20);

/// Returns the meter's ledger, without the accounts of the export.
pub(super) type LedgerSource = Arc<dyn Fn() -> MeterLedger + Send + Sync>;

/// A message that waits for the next connection.
#[derive(Debug)]
struct KeptMessage {
    bytes: Vec<u8>,
    carried: CarriedRecords,
    own_records: u64,
    step: u32,
}

/// The transport and its accounts, as encoders see them.
#[derive(Debug)]
struct EncoderOutput {
    transport: TargetTransport,
    account: TargetAccount,
    deadline: SendDeadline,
    kept: VecDeque<KeptMessage>,
    /// Whether messages can go out: there is a connection, and it has the templates.
    begun: bool,
    /// Whether a refused message may have contained templates, so that they must be sent again.
    templates_lost: bool,
}

pub(super) struct TargetSender {
    encoder: TargetEncoder,
    out: EncoderOutput,
    backlog: Receiver<Arc<WorkerBatch>>,
    ledger: LedgerSource,
    /// Offset from the monotonic clock to 1970, read once: setting the wall clock must not delay messages.
    epoch_ns: u64,
    unfit: CarriedRecords,
}

impl TargetSender {
    pub(super) fn new(
        encoder: TargetEncoder,
        transport: TargetTransport,
        account: TargetAccount,
        backlog: Receiver<Arc<WorkerBatch>>,
        ledger: LedgerSource,
        deadline: SendDeadline,
    ) -> Self {
        let epoch_ns = clock::wall_clock_ns().saturating_sub(clock::monotonic_ns());
        let begun = !matches!(transport, TargetTransport::Stream(_));
        let kept = VecDeque::new();
        let out = EncoderOutput { transport, account, deadline, kept, begun, templates_lost: false };
        Self { encoder, out, backlog, ledger, epoch_ns, unfit: CarriedRecords::default() }
    }

    pub(super) fn run(mut self) {
        while self.take() {}
        self.finish();
    }

    /// Takes a batch if there is one and a connection to send it; `false` at the end.
    fn take(&mut self) -> bool {
        // Without a connection batches stay in the backlog, where they are bounded and counted.
        if !self.is_up() {
            std::thread::sleep(LOOK);
            return !self.out.deadline.is_past();
        }
        match self.backlog.recv_timeout(LOOK) {
            Ok(batch) => self.encode(&batch),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return false,
        }
        let now_ns = self.now_ns();
        if self.encoder.is_ledger_due(now_ns) {
            self.send_ledger(now_ns);
        }
        self.encoder.tick(now_ns, &mut self.out);
        true
    }

    fn encode(&mut self, batch: &WorkerBatch) {
        let now_ns = self.now_ns();
        if std::mem::take(&mut self.out.templates_lost) {
            self.encoder.begin(false, now_ns, &mut self.out);
        }
        self.encoder.batch(batch, now_ns, &mut self.out);
        // Records that the format cannot carry leave no message, so they must leave the waiting account here.
        let unfit = self.encoder.unfit();
        if unfit != self.unfit {
            let before = std::mem::replace(&mut self.unfit, unfit);
            self.out.account.refused(CarriedRecords {
                records: unfit.records - before.records,
                packets: unfit.packets - before.packets,
                bytes: unfit.bytes - before.bytes,
            });
        }
    }

    fn send_ledger(&mut self, now_ns: u64) {
        let ledger = MeterLedger { export: self.out.account.counts(), ..(self.ledger)() };
        self.encoder.ledger(&ledger, now_ns, &mut self.out);
    }

    fn now_ns(&self) -> u64 {
        self.epoch_ns + clock::monotonic_ns()
    }

    /// Whether messages can go out. Connects if it is time to, and sends what the last connection did not take.
    fn is_up(&mut self) -> bool {
        if !self.out.begun && self.out.transport.connect(self.out.deadline.ns()) {
            self.out.begun = true;
            let kept = std::mem::take(&mut self.out.kept);
            let now_ns = self.now_ns();
            self.encoder.begin(true, now_ns, &mut self.out);
            // Only messages with records are sent again: templates and options were just made for this connection.
            // `renumber` gives them sequence numbers of the new connection (RFC 7011, section 3.1).
            for mut kept in kept.into_iter().filter(|kept| kept.carried != CarriedRecords::default()) {
                self.encoder.renumber(&mut kept.bytes, kept.step);
                self.out.message(kept.message());
            }
        }
        self.out.begun
    }

    /// Sends what is in the encoder and then the last ledger. What the target does not take in time counts as refused.
    fn finish(mut self) {
        let now_ns = self.now_ns();
        self.encoder.flush(now_ns, &mut self.out);
        while !(self.out.deadline.is_past() || self.is_up() && self.out.kept.is_empty()) {
            std::thread::sleep(LOOK);
        }
        if self.out.begun {
            if std::mem::take(&mut self.out.templates_lost) {
                self.encoder.begin(false, now_ns, &mut self.out);
            }
            // After everything else: this ledger says that all records before it were sent.
            let now_ns = self.now_ns();
            self.send_ledger(now_ns);
            self.encoder.flush(now_ns, &mut self.out);
        }
        self.out.transport.close();
        self.out.account.abandon();
    }
}

impl KeptMessage {
    fn of(message: ExportMessage<'_>) -> Self {
        let ExportMessage { bytes, carried, own_records, step } = message;
        Self { bytes: bytes.to_vec(), carried, own_records, step }
    }

    fn message(&self) -> ExportMessage<'_> {
        let Self { bytes, carried, own_records, step } = self;
        ExportMessage { bytes, carried: *carried, own_records: *own_records, step: *step }
    }
}

impl MessageSink for EncoderOutput {
    fn message(&mut self, message: ExportMessage<'_>) {
        if !self.begun {
            // The connection broke within a batch. Encoders take whole batches, so the rest waits for the next connection.
            self.kept.push_back(KeptMessage::of(message));
            return;
        }
        match self.transport.send(message.bytes, &self.deadline) {
            Ok(()) => self.account.sent(message.carried, message.own_records, message.bytes.len()),
            Err(UntakenMessage::Refused) => {
                self.account.refused(message.carried);
                self.templates_lost = true;
            }
            Err(UntakenMessage::Gone) => {
                self.begun = false;
                self.kept.push_back(KeptMessage::of(message));
            }
        }
    }
}
