//! The thread of one target: encodes batches from the backlog and sends the messages. If written messages may have to
//! be sent again, it also encodes batches while there is no connection, and keeps their messages up to a limit.
//!
//! Invariant: a batch is in messages that were sent, refused or kept for the next connection, or it is open
//! in the encoder; at the end each record is in one account.

use super::accounts::TargetAccount;
use super::backlog::{BacklogClosed, TargetBacklog};
use super::deadline::SendDeadline;
use super::dispatch::BacklogBatch;
use super::encoder::TargetEncoder;
use super::transport::{TargetTransport, UnsentMessageReason};
use super::written::{ResendableMessage, UnconfirmedMessageStore};
use packetrig_flow::export::{ExportMessage, MessageSink};
use packetrig_flow::{CarriedRecords, LossCause, MeterLedger};
use packetrig_sys::clock;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tracing::warn;

/// Interval at which the thread checks its deadline while nothing arrives.
const DEADLINE_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Returns the meter's ledger, without the accounts of the export.
pub(super) type LedgerSource = Arc<dyn Fn() -> MeterLedger + Send + Sync>;

/// Destination of an encoder's messages: the transport of one target, with the target's account and deadline.
#[derive(Debug)]
pub(super) struct EncoderOutput {
    transport: TargetTransport,
    account: TargetAccount,
    deadline: SendDeadline,
    kept: VecDeque<ResendableMessage>,
    kept_bytes: usize,
    /// Messages that were written to the connection. If `None`, written messages count as sent and
    /// are never sent again.
    written: Option<UnconfirmedMessageStore>,
    /// The last datagram, which is not counted yet: an ICMP error from its receiver arrives a little later.
    unsettled: Option<SentMessage>,
    /// True while messages can go out: there is a connection, and it has the templates.
    begun: bool,
    /// True if a refused message may have contained templates, so that they must be sent again.
    templates_lost: bool,
    /// True while records are encoded that another meter has sent before.
    is_repeating: bool,
}

/// What is added to the accounts when a message counts as sent.
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
    /// Offset from the monotonic clock to Unix time, read once: setting the wall clock must not delay messages.
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

    pub(super) fn run_until_closed(mut self) {
        while self.send_next() {}
        self.send_remaining_and_close();
    }

    /// Connects if necessary, and encodes and sends the next batch if there is one. Returns `false` once the thread
    /// must stop taking batches.
    fn send_next(&mut self) -> bool {
        self.out.count_acknowledged();
        let is_up = self.connect_and_send_kept();
        // The election of the active meter needs this, too: a meter without working targets cannot export.
        self.out.account.set_reachable(is_up);
        self.out.deadline.set_connected(is_up);
        if !is_up {
            return self.encode_next_batch_offline();
        }
        // Records of a new role may be repeated. The group membership, sent with the ledger, says so,
        // and must come first.
        if self.backlog.take_role_change() {
            self.send_ledger(self.now_ns());
        }
        match self.backlog.next_batch(DEADLINE_CHECK_INTERVAL, &self.out.account) {
            Ok(Some(handed)) => self.encode_batch(&handed),
            // No batch came in time, and the deadline counts from the last offer: no more batches are taken.
            Ok(None) if self.out.deadline.is_past() => return false,
            // A standby writes too seldom to notice a broken connection by its writes.
            Ok(None) => self.out.check_for_broken_connection(),
            Err(BacklogClosed) => return false,
        }
        let now_ns = self.now_ns();
        if self.encoder.is_ledger_due(now_ns) {
            self.send_ledger(now_ns);
        }
        self.encoder.send_due_messages(now_ns, &mut self.out);
        true
    }

    /// While there is no connection, encodes the next batch and keeps its messages, if this target keeps written
    /// messages at all. Messages take less memory than batches, because a batch of a few records takes as much as a
    /// full one. Otherwise the records stay in the backlog. Returns `false` once the thread must stop taking batches.
    fn encode_next_batch_offline(&mut self) -> bool {
        if !self.out.can_keep_more_messages() {
            // Records wait in the backlog, which is bounded. Only the connection is tried again.
            std::thread::sleep(DEADLINE_CHECK_INTERVAL);
            return !self.out.deadline.is_past();
        }
        match self.backlog.next_batch(DEADLINE_CHECK_INTERVAL, &self.out.account) {
            Ok(Some(handed)) => self.encode_batch(&handed),
            Ok(None) => {}
            Err(BacklogClosed) => return false,
        }
        self.encoder.send_due_messages(self.now_ns(), &mut self.out);
        !self.out.deadline.is_past()
    }

    fn encode_batch(&mut self, handed: &BacklogBatch) {
        // Without a connection, a meter does not notice that a collector was restarted. So datagrams and files count as
        // sent once they are written.
        if handed.is_repeated && self.out.written.is_none() {
            return;
        }
        let now_ns = self.now_ns();
        if std::mem::take(&mut self.out.templates_lost) {
            self.encoder.announce_templates(false, now_ns, &mut self.out);
        }
        if handed.is_repeated {
            // A message contains only repeated or only new records, because it is counted as a whole.
            self.encoder.flush_messages(now_ns, &mut self.out);
            self.out.is_repeating = true;
            self.encoder.encode_batch(&handed.batch, now_ns, &mut self.out);
            self.encoder.flush_messages(now_ns, &mut self.out);
            self.out.is_repeating = false;
            self.unfit = self.encoder.unfit_records();
            return;
        }
        self.encoder.encode_batch(&handed.batch, now_ns, &mut self.out);
        self.count_unencodable_records_as_lost();
    }

    /// Counts records that the format cannot carry: they are in no message, so they leave the waiting account here.
    fn count_unencodable_records_as_lost(&mut self) {
        let unfit = self.encoder.unfit_records();
        if unfit != self.unfit {
            // The encoder counts from its start, so only the difference is new.
            let before = std::mem::replace(&mut self.unfit, unfit);
            let new = CarriedRecords {
                records: unfit.records - before.records,
                packets: unfit.packets - before.packets,
                bytes: unfit.bytes - before.bytes,
            };
            self.out.account.count_lost(LossCause::Unfit, new);
        }
    }

    fn send_ledger(&mut self, now_ns: u64) {
        // Each collector gets the accounts of its own target: the accounts of other targets would
        // not match its records.
        let ledger = MeterLedger { export: self.out.account.export_counts(), ..(self.ledger)() };
        self.encoder.encode_ledger(&ledger, now_ns, &mut self.out);
        if let Some(membership) = self.backlog.group_membership(ledger.packets.metered) {
            self.encoder.encode_membership(&membership, now_ns, &mut self.out);
        }
    }

    fn now_ns(&self) -> u64 {
        self.epoch_ns + clock::monotonic_ns()
    }

    /// Connects if there is no connection and the pause is over. Then sends the kept messages, and reports whether
    /// messages can go out.
    fn connect_and_send_kept(&mut self) -> bool {
        if !self.out.begun && self.out.ensure_connected() {
            self.out.begun = true;
            self.out.account.note_connection();
            let now_ns = self.now_ns();
            // Templates and options are encoded for each connection, so kept messages without records are useless.
            self.out.kept.retain(|kept| kept.carried != CarriedRecords::default());
            let kept = std::mem::take(&mut self.out.kept);
            self.encoder.announce_templates(true, now_ns, &mut self.out);
            // The kept messages follow the new templates, which are kept as well if the connection has broken already.
            self.out.kept.extend(kept);
            self.out.kept_bytes = self.out.kept.iter().map(|kept| kept.bytes.len()).sum();
        }
        // The connection may have broken while the templates were sent.
        if self.out.begun && !self.has_no_sendable_kept_message() {
            self.send_kept();
        }
        self.out.begun
    }

    /// Reports whether no kept message may be sent now. A standby sends only messages that the collector had
    /// acknowledged before the connection ended: the other meters assume that their records are stored.
    fn has_no_sendable_kept_message(&self) -> bool {
        let mut kept = self.out.kept.iter();
        if self.backlog.may_send() { kept.next().is_none() } else { !kept.any(|kept| kept.is_repeated) }
    }

    /// Reports whether this meter has no kept record that it may still have to send. A standby may get its role back,
    /// so it waits until another meter has exported the same records.
    fn has_no_kept_record_to_send(&self) -> bool {
        self.has_no_sendable_kept_message()
            && (self.out.kept.is_empty() || self.backlog.is_exported_by_others())
    }

    fn send_kept(&mut self) {
        let may_send = self.backlog.may_send();
        // Reset, because `keep_message` adds the bytes of each message that stays.
        self.out.kept_bytes = 0;
        for mut kept in std::mem::take(&mut self.out.kept) {
            if !(may_send || kept.is_repeated) {
                self.out.keep_message(kept);
                continue;
            }
            // The message gets a sequence number of the new connection (RFC 7011, section 3.1).
            self.encoder.renumber_message(&mut kept.bytes, kept.step);
            self.out.send_message(kept);
        }
    }

    /// Sends the content of the encoder and then the last ledger. Records that the target does not accept in time count
    /// as lost, unless another meter of the group has exported the same records.
    fn send_remaining_and_close(mut self) {
        let now_ns = self.now_ns();
        self.encoder.flush_messages(now_ns, &mut self.out);
        while !(self.out.deadline.is_past()
            || self.connect_and_send_kept() && self.has_no_kept_record_to_send())
        {
            std::thread::sleep(DEADLINE_CHECK_INTERVAL);
        }
        // From here on kept messages are not sent, even if this meter becomes active: each message counts once.
        self.out.kept.clear();
        let is_exported = self.backlog.is_exported_by_others();
        // Without a connection nobody can be informed; the remaining messages count as lost below.
        if self.out.begun {
            if std::mem::take(&mut self.out.templates_lost) {
                self.encoder.announce_templates(false, now_ns, &mut self.out);
            }
            self.out.count_acknowledged();
            // The ledger comes last: it says that all records before it were sent.
            let now_ns = self.now_ns();
            self.send_ledger(now_ns);
            self.encoder.flush_messages(now_ns, &mut self.out);
        }
        while !(self.out.deadline.is_past() || self.out.is_confirmed()) {
            self.out.count_acknowledged();
            std::thread::sleep(DEADLINE_CHECK_INTERVAL / 10);
        }
        self.out.count_acknowledged();
        self.out.transport.close_connection();
        // Only now have all acknowledged messages left the waiting account.
        if is_exported {
            self.out.account.count_waiting_as_exported_by_others();
        } else {
            self.out.account.count_waiting_as_lost(self.out.deadline.progress.loss_cause_at_end());
        }
    }
}

impl EncoderOutput {
    /// Makes the output of a target. `written` keeps messages that may have to be sent again.
    pub(super) fn new(
        transport: TargetTransport,
        account: TargetAccount,
        deadline: SendDeadline,
        written: Option<UnconfirmedMessageStore>,
    ) -> Self {
        // Sockets and files need no connection, so messages can go out at once.
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
            is_repeating: false,
        }
    }

    /// Reports whether no acknowledgement is missing. Without a connection, no acknowledgement can come.
    fn is_confirmed(&self) -> bool {
        !self.begun || self.written.as_ref().is_none_or(UnconfirmedMessageStore::is_confirmed)
    }

    /// Connects if there is no connection and the pause is over, and stores the reason of a failure for the report.
    fn ensure_connected(&mut self) -> bool {
        let is_up = self.transport.ensure_connected(self.deadline.deadline_ns());
        if let Some(failure) = self.transport.take_failure() {
            warn!(why = %failure, "the collector cannot be reached");
            self.account.note_failure(failure);
        }
        is_up
    }

    /// Counts messages as sent: those that have been acknowledged, and the last datagram unless it was refused.
    fn count_acknowledged(&mut self) {
        if let Some(last) = self.unsettled.take() {
            self.count_last_datagram(last);
        }
        let Self { written, transport, account, deadline, .. } = self;
        if let Some(written) = written {
            written.confirm_acknowledged_messages(
                transport.acknowledged_bytes(),
                clock::monotonic_ns(),
                |message| {
                    deadline.record_accepted_send();
                    let (carried, own_records) = message.uncounted_records();
                    account.count_sent(carried, own_records, message.bytes.len());
                },
            );
        }
    }

    /// Sends a message, or keeps it if there is no connection.
    fn send_message(&mut self, message: ResendableMessage) {
        if !self.begun {
            return self.keep_message(message);
        }
        if let Some(last) = self.unsettled.take() {
            self.count_last_datagram(last);
        }
        match self.transport.send_message(&message.bytes, &self.deadline) {
            Ok(()) => self.record_written_message(message),
            Err(UnsentMessageReason::Refused(why)) => {
                self.record_refused_message(message.uncounted_records().0, &why);
            }
            Err(UnsentMessageReason::Gone(why)) => {
                // Messages that were written before go first: the collector may lack them too.
                self.on_connection_broken(&why);
                self.keep_message(message);
            }
        }
    }

    fn record_written_message(&mut self, message: ResendableMessage) {
        let (carried, own_records) = message.uncounted_records();
        // A message counts as sent only when it is acknowledged: until then another meter may have to send it.
        if let Some(written) = &mut self.written {
            written.push_message(self.transport.written_bytes(), message);
        } else {
            self.count_or_defer_sent(SentMessage { carried, own_records, bytes: message.bytes.len() });
        }
    }

    fn count_or_defer_sent(&mut self, sent: SentMessage) {
        if matches!(self.transport, TargetTransport::Udp(_)) {
            // An ICMP error is reported with the next call on the socket, so a
            // datagram is counted one call later.
            self.unsettled = Some(sent);
        } else {
            self.account.count_sent(sent.carried, sent.own_records, sent.bytes);
        }
    }

    /// Counts the last datagram as sent, unless its receiver has refused it.
    fn count_last_datagram(&mut self, last: SentMessage) {
        match self.transport.take_refusal() {
            Some(why) => self.record_refused_message(last.carried, &why),
            None => self.account.count_sent(last.carried, last.own_records, last.bytes),
        }
    }

    fn record_refused_message(&mut self, carried: CarriedRecords, why: &io::Error) {
        self.account.count_refused(carried);
        self.account.note_failure(why.to_string());
        // The templates may have been in this message or before it, and the collector may have been restarted since.
        self.templates_lost = true;
    }

    /// Checks whether the connection has ended. If it has, the sent messages may have to be sent again.
    fn check_for_broken_connection(&mut self) {
        if self.begun
            // Only written messages can be lost with the connection. Without such messages, the next write
            // finds out soon enough.
            && self.written.is_some()
            && let Some(why) = self.transport.take_end_reason()
        {
            self.on_connection_broken(&why);
        }
    }

    /// Keeps all messages that the collector may lack, because the connection has ended. They are sent first on the
    /// next connection, after the templates.
    fn on_connection_broken(&mut self, why: &io::Error) {
        self.begun = false;
        warn!(%why, "connection to the collector broke");
        self.account.note_failure(format!("the connection broke: {why}"));
        let again: Vec<ResendableMessage> =
            self.written.iter_mut().flat_map(UnconfirmedMessageStore::take_lost_messages).collect();
        for message in again {
            self.keep_message(message);
        }
    }

    fn keep_message(&mut self, message: ResendableMessage) {
        self.kept_bytes += message.bytes.len();
        self.kept.push_back(message);
    }

    /// Reports whether more messages may be kept for the next connection.
    fn can_keep_more_messages(&self) -> bool {
        self.written.as_ref().is_some_and(|written| self.kept_bytes < written.most_bytes())
    }
}

impl MessageSink for EncoderOutput {
    fn on_message(&mut self, message: ExportMessage<'_>) {
        // The message is copied only if it has to outlive this call: most messages need not.
        if !self.begun || self.written.is_some() {
            let is_repeated = self.is_repeating;
            return self
                .send_message(ResendableMessage { is_repeated, ..ResendableMessage::from_message(message) });
        }
        if let Some(last) = self.unsettled.take() {
            self.count_last_datagram(last);
        }
        let ExportMessage { carried, own_records, .. } = message;
        match self.transport.send_message(message.bytes, &self.deadline) {
            Ok(()) => {
                self.count_or_defer_sent(SentMessage { carried, own_records, bytes: message.bytes.len() });
            }
            Err(UnsentMessageReason::Refused(why)) => self.record_refused_message(carried, &why),
            Err(UnsentMessageReason::Gone(why)) => {
                self.on_connection_broken(&why);
                self.keep_message(ResendableMessage::from_message(message));
            }
        }
    }
}
