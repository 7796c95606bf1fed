//! The thread of one target: takes batches from its backlog only while its transport takes messages.
//!
//! Invariant: a batch that was taken is in messages sent, refused, kept for the next connection, or open in the encoder; at the end
//! each record is in one account.

use super::accounts::TargetAccount;
use super::backlog::{BacklogEnd, TargetBacklog};
use super::deadline::SendDeadline;
use super::encoder::TargetEncoder;
use super::transport::{TargetTransport, UntakenMessage};
use super::written::{KeptMessage, WrittenMessages};
use crate::batch::WorkerBatch;
use packetrig_flow::export::{ExportMessage, MessageSink};
use packetrig_flow::{CarriedRecords, LossCause, MeterLedger};
use packetrig_sys::clock;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// How often the thread checks its deadline while nothing arrives.
const LOOK: Duration = Duration::from_millis(20);

/// Returns the meter's ledger, without the accounts of the export.
pub(super) type LedgerSource = Arc<dyn Fn() -> MeterLedger + Send + Sync>;

/// The transport and its accounts, as encoders see them.
#[derive(Debug)]
pub(super) struct EncoderOutput {
    transport: TargetTransport,
    account: TargetAccount,
    deadline: SendDeadline,
    kept: VecDeque<KeptMessage>,
    kept_bytes: usize,
    /// `None`: what was written counts as sent, and is never sent again.
    written: Option<WrittenMessages>,
    /// The last datagram: whether its receiver refuses it is known a little later.
    unsettled: Option<SentMessage>,
    /// Whether messages can go out: there is a connection, and it has the templates.
    begun: bool,
    /// Whether a refused message may have contained templates, so that they must be sent again.
    templates_lost: bool,
}

/// What a message counts for.
#[derive(Clone, Copy, Debug)]
struct SentMessage {
    carried: CarriedRecords,
    own_records: u64,
    bytes: usize,
}

pub(super) struct TargetSender {
    encoder: TargetEncoder,
    out: EncoderOutput,
    backlog: TargetBacklog,
    ledger: LedgerSource,
    /// Offset from the monotonic clock to 1970, read once: setting the wall clock must not delay messages.
    epoch_ns: u64,
    unfit: CarriedRecords,
}

impl TargetSender {
    pub(super) fn new(
        encoder: TargetEncoder,
        out: EncoderOutput,
        backlog: TargetBacklog,
        ledger: LedgerSource,
    ) -> Self {
        let epoch_ns = clock::wall_clock_ns().saturating_sub(clock::monotonic_ns());
        Self { encoder, out, backlog, ledger, epoch_ns, unfit: CarriedRecords::default() }
    }

    pub(super) fn run(mut self) {
        while self.take() {}
        self.finish();
    }

    /// Takes a batch if there is one and a connection to send it; `false` at the end.
    fn take(&mut self) -> bool {
        self.out.confirm();
        let is_up = self.is_up();
        self.out.account.set_reachable(is_up);
        self.out.deadline.set_connected(is_up);
        if !is_up {
            return self.keep_next();
        }
        // Before the records of a new role: it says which of them are repeated.
        if self.backlog.has_new_role() {
            self.send_ledger(self.now_ns());
        }
        match self.backlog.next(LOOK, &self.out.account) {
            Ok(Some(handed)) => self.encode(&handed.batch),
            Ok(None) if self.out.deadline.is_past() => return false,
            // A standby writes too seldom to notice it otherwise.
            Ok(None) => self.out.notice_end(),
            Err(BacklogEnd) => return false,
        }
        let now_ns = self.now_ns();
        if self.encoder.is_ledger_due(now_ns) {
            self.send_ledger(now_ns);
        }
        self.encoder.tick(now_ns, &mut self.out);
        true
    }

    /// Without a connection, records of a group are kept as messages, which take less memory than batches: a batch of a few records
    /// takes as much as a full one. Others stay in the backlog. `false` at the end.
    fn keep_next(&mut self) -> bool {
        if !self.out.may_keep() {
            std::thread::sleep(LOOK);
            return !self.out.deadline.is_past();
        }
        match self.backlog.next(LOOK, &self.out.account) {
            Ok(Some(handed)) => self.encode(&handed.batch),
            Ok(None) => {}
            Err(BacklogEnd) => return false,
        }
        self.encoder.tick(self.now_ns(), &mut self.out);
        !self.out.deadline.is_past()
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
            let new = CarriedRecords {
                records: unfit.records - before.records,
                packets: unfit.packets - before.packets,
                bytes: unfit.bytes - before.bytes,
            };
            self.out.account.lost(LossCause::Unfit, new);
        }
    }

    fn send_ledger(&mut self, now_ns: u64) {
        let ledger = MeterLedger { export: self.out.account.counts(), ..(self.ledger)() };
        self.encoder.ledger(&ledger, now_ns, &mut self.out);
        if let Some(membership) = self.backlog.membership(ledger.packets.metered) {
            self.encoder.membership(&membership, now_ns, &mut self.out);
        }
    }

    fn now_ns(&self) -> u64 {
        self.epoch_ns + clock::monotonic_ns()
    }

    /// Whether messages can go out. Connects if it is time to, and sends what the last connection did not take.
    fn is_up(&mut self) -> bool {
        if !self.out.begun && self.out.connect() {
            self.out.begun = true;
            let now_ns = self.now_ns();
            // Templates and options are made for each connection, so those that were kept are of no use.
            self.out.kept.retain(|kept| kept.carried != CarriedRecords::default());
            let kept = std::mem::take(&mut self.out.kept);
            self.encoder.begin(true, now_ns, &mut self.out);
            // Behind these, if the connection has broken already.
            self.out.kept.extend(kept);
            self.out.kept_bytes = self.out.kept.iter().map(|kept| kept.bytes.len()).sum();
        }
        if self.out.begun && !self.has_sent_kept() {
            self.send_kept();
        }
        self.out.begun
    }

    /// Whether nothing that was kept is to be sent any more. What a collector had from this meter before it was killed comes again
    /// whoever is active now: the others believe that it is stored.
    fn has_sent_kept(&self) -> bool {
        let mut kept = self.out.kept.iter();
        if self.backlog.may_send() { kept.next().is_none() } else { !kept.any(|kept| kept.is_repeated) }
    }

    fn send_kept(&mut self) {
        let may_send = self.backlog.may_send();
        self.out.kept_bytes = 0;
        for mut kept in std::mem::take(&mut self.out.kept) {
            if !(may_send || kept.is_repeated) {
                self.out.keep(kept);
                continue;
            }
            // A sequence number of the new connection (RFC 7011, section 3.1).
            self.encoder.renumber(&mut kept.bytes, kept.step);
            self.out.send(kept);
        }
    }

    /// Sends what is in the encoder and then the last ledger. What the target does not take in time counts as refused.
    fn finish(mut self) {
        if !self.backlog.may_send() {
            self.out.account.leave_rest();
        }
        let now_ns = self.now_ns();
        self.encoder.flush(now_ns, &mut self.out);
        while !(self.out.deadline.is_past() || self.is_up() && self.has_sent_kept()) {
            std::thread::sleep(LOOK);
        }
        if self.out.begun {
            if std::mem::take(&mut self.out.templates_lost) {
                self.encoder.begin(false, now_ns, &mut self.out);
            }
            self.out.confirm();
            // After everything else: this ledger says that all records before it were sent.
            let now_ns = self.now_ns();
            self.send_ledger(now_ns);
            self.encoder.flush(now_ns, &mut self.out);
        }
        while !(self.out.deadline.is_past() || self.out.is_confirmed()) {
            self.out.confirm();
            std::thread::sleep(LOOK / 10);
        }
        self.out.confirm();
        self.out.transport.close();
        self.out.account.abandon(self.out.deadline.progress.cause_at_end());
    }
}

impl EncoderOutput {
    /// `written`: for messages that may have to be sent again.
    pub(super) fn new(
        transport: TargetTransport,
        account: TargetAccount,
        deadline: SendDeadline,
        written: Option<WrittenMessages>,
    ) -> Self {
        let begun = !matches!(transport, TargetTransport::Stream(_));
        Self {
            transport,
            account,
            deadline,
            kept: VecDeque::new(),
            kept_bytes: 0,
            written,
            unsettled: None,
            begun,
            templates_lost: false,
        }
    }

    /// Whether everything that was written has been acknowledged, as far as it can be.
    fn is_confirmed(&self) -> bool {
        !self.begun || self.written.as_ref().is_none_or(WrittenMessages::is_confirmed)
    }

    /// Connects if it is time to. Notes why that failed.
    fn connect(&mut self) -> bool {
        let is_up = self.transport.connect(self.deadline.ns());
        if let Some(failure) = self.transport.take_failure() {
            self.account.note_failure(failure);
        }
        is_up
    }

    /// Counts what has been acknowledged, or was not refused.
    fn confirm(&mut self) {
        if let Some(last) = self.unsettled.take() {
            self.settle(last);
        }
        let Self { written, transport, account, deadline, .. } = self;
        if let Some(written) = written {
            written.confirm(transport.acknowledged(), clock::monotonic_ns(), |message| {
                deadline.note_taken();
                let (carried, own_records) = message.counted();
                account.sent(carried, own_records, message.bytes.len());
            });
        }
    }

    /// Sends a message that was kept.
    fn send(&mut self, message: KeptMessage) {
        if !self.begun {
            return self.keep(message);
        }
        if let Some(last) = self.unsettled.take() {
            self.settle(last);
        }
        match self.transport.send(&message.bytes, &self.deadline) {
            Ok(()) => self.note_written(message),
            Err(UntakenMessage::Refused(why)) => self.note_refused(message.counted().0, &why),
            Err(UntakenMessage::Gone(why)) => {
                self.keep_all(&why);
                self.keep(message);
            }
        }
    }

    fn note_written(&mut self, message: KeptMessage) {
        let (carried, own_records) = message.counted();
        if let Some(written) = &mut self.written {
            written.push(self.transport.written(), message);
        } else {
            self.note_sent(SentMessage { carried, own_records, bytes: message.bytes.len() });
        }
    }

    fn note_sent(&mut self, sent: SentMessage) {
        if matches!(self.transport, TargetTransport::Udp(_)) {
            self.unsettled = Some(sent);
        } else {
            self.account.sent(sent.carried, sent.own_records, sent.bytes);
        }
    }

    /// Counts the last datagram as sent, unless its receiver has refused it.
    fn settle(&mut self, last: SentMessage) {
        match self.transport.take_refusal() {
            Some(why) => self.note_refused(last.carried, &why),
            None => self.account.sent(last.carried, last.own_records, last.bytes),
        }
    }

    fn note_refused(&mut self, carried: CarriedRecords, why: &io::Error) {
        self.account.refused(carried);
        self.account.note_failure(why.to_string());
        self.templates_lost = true;
    }

    /// If the connection is gone, what was sent may have to be sent again.
    fn notice_end(&mut self) {
        if self.begun
            && self.written.is_some()
            && let Some(why) = self.transport.take_end()
        {
            self.keep_all(&why);
        }
    }

    /// The connection is gone: what the collector may lack goes first on the next one.
    fn keep_all(&mut self, why: &io::Error) {
        self.begun = false;
        self.account.note_failure(format!("the connection broke: {why}"));
        let again: Vec<KeptMessage> = self.written.iter_mut().flat_map(WrittenMessages::take_all).collect();
        for message in again {
            self.keep(message);
        }
    }

    fn keep(&mut self, message: KeptMessage) {
        self.kept_bytes += message.bytes.len();
        self.kept.push_back(message);
    }

    /// Whether more messages may be kept for the next connection.
    fn may_keep(&self) -> bool {
        self.written.as_ref().is_some_and(|written| self.kept_bytes < written.most_bytes())
    }
}

impl MessageSink for EncoderOutput {
    fn message(&mut self, message: ExportMessage<'_>) {
        // Copied only if it has to outlive its encoder: most messages need not.
        if !self.begun || self.written.is_some() {
            return self.send(KeptMessage::of(message));
        }
        if let Some(last) = self.unsettled.take() {
            self.settle(last);
        }
        let ExportMessage { carried, own_records, .. } = message;
        match self.transport.send(message.bytes, &self.deadline) {
            Ok(()) => self.note_sent(SentMessage { carried, own_records, bytes: message.bytes.len() }),
            Err(UntakenMessage::Refused(why)) => self.note_refused(carried, &why),
            Err(UntakenMessage::Gone(why)) => {
                self.keep_all(&why);
                self.keep(KeptMessage::of(message));
            }
        }
    }
}
