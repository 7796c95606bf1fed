//! The state of one exporter: its templates, its sequence numbers, its counts.
//!
//! The modules of the protocols read the messages; this module has what is common to all protocols.
//!
//! Invariant: memory is bounded by [`SessionOptions`], and reading a message always ends.

use super::counts::SessionCounts;
use super::draft::{FinishedRecord, MessageTime, RecordDraft};
use super::memory::map_memory_bytes;
use super::options::{ExporterDecodingState, ReportedLosses};
use super::received::{ReceivedMessage, SessionOptions};
use super::sequence::{MessageSequence, MessageSequenceFacts, SequencePosition};
use super::sflow::SflowState;
use super::template::SessionTemplates;
use super::waiting::WaitingSets;
use super::{ExportProtocol, MalformedMessage, ipfix, netflow5, netflow9, sflow, sim};
use crate::record::FlowRecord;
use crate::sim::SimEvent;

/// Templates younger than this survive a restart: messages overtake each other, so a template may arrive before the
/// message that shows the restart. Older ones are forgotten.
const RESTART_WINDOW_NS: u64 = 10_000_000_000;

/// A message that is being read.
#[derive(Clone, Copy, Debug)]
pub(super) struct SessionMessage {
    pub(super) place: SequencePosition,
    pub(super) number: u32,
    pub(super) moment: MessageTime,
    pub(super) now_ns: u64,
    /// Units decoded so far.
    pub(super) units: u32,
    /// Maximum number of units that sets without a template may hold.
    pub(super) unread: u32,
}

impl SessionMessage {
    /// Replaces the number of units, for protocols whose sequence numbers do not count the records of sets.
    pub(super) const fn with_units(self, units: u32) -> Self {
        Self { units, unread: 0, ..self }
    }
}

/// Uptime and time of the last message, where messages have both.
#[derive(Clone, Copy, Debug)]
struct UptimeSample {
    uptime_ms: u32,
    sent_ns: u64,
}

/// State of one exporter in one observation domain, for one protocol.
#[derive(Clone, Debug)]
pub struct ExportSession {
    pub(super) options: SessionOptions,
    pub(super) protocol: ExportProtocol,
    pub(super) templates: SessionTemplates,
    pub(super) sequence: MessageSequence,
    pub(super) about: ExporterDecodingState,
    pub(super) waiting: WaitingSets,
    pub(super) reported: Option<ReportedLosses>,
    pub(super) counts: SessionCounts,
    pub(super) sflow: SflowState,
    uptime: Option<UptimeSample>,
    looked_ns: u64,
    /// Memory of the names of skipped fields, in bytes.
    pub(super) names: usize,
}

impl ExportSession {
    /// Creates a session that has received nothing.
    pub fn new(protocol: ExportProtocol, options: SessionOptions) -> Self {
        Self {
            options,
            protocol,
            templates: SessionTemplates::default(),
            sequence: MessageSequence::default(),
            about: ExporterDecodingState::default(),
            waiting: WaitingSets::default(),
            reported: None,
            counts: SessionCounts::default(),
            sflow: SflowState::default(),
            uptime: None,
            looked_ns: 0,
            names: 0,
        }
    }

    pub const fn counts(&self) -> &SessionCounts {
        &self.counts
    }

    /// Returns the losses that the exporter has reported so far; `None` before its first report.
    pub const fn reported_losses(&self) -> Option<&ReportedLosses> {
        self.reported.as_ref()
    }

    pub fn template_count(&self) -> usize {
        self.templates.len()
    }

    /// Decodes one whole message and passes its content to `out`. If a part is malformed, the records that could be
    /// read are still passed on and counted.
    pub fn decode_message(
        &mut self,
        message: &[u8],
        now_ns: u64,
        out: &mut impl FnMut(ReceivedMessage),
    ) -> Result<(), MalformedMessage> {
        self.counts.messages += 1;
        self.counts.message_bytes += message.len() as u64;
        // Templates expire before the message is read: an expired template must not decode its data.
        self.expire_old_state(now_ns);
        let result = match self.protocol {
            ExportProtocol::Ipfix => ipfix::decode_message(self, message, now_ns, out),
            ExportProtocol::NetFlow9 => netflow9::decode_message(self, message, now_ns, out),
            ExportProtocol::NetFlow5 => netflow5::decode_message(self, message, now_ns, out),
            ExportProtocol::Sim => sim::decode_message(self, message, now_ns, out),
            ExportProtocol::SFlow => sflow::decode_datagram(self, message, now_ns, out),
        };
        self.counts.malformed += u64::from(result.is_err());
        // `lost` and `untold` may decrease, because late messages fill gaps. So both are copied after every message.
        self.counts.lost = self.sequence.certainly_lost_units();
        self.counts.untold = self.sequence.possibly_undecoded_units();
        result
    }

    /// Forgets templates and waiting data that are too old. Checks at most once a second, and returns
    /// whether it has checked.
    pub fn expire_old_state(&mut self, now_ns: u64) -> bool {
        // Every message calls this function, but for timeouts of minutes a check once a second is enough.
        if now_ns.saturating_sub(self.looked_ns) < 1_000_000_000 {
            return false;
        }
        self.looked_ns = now_ns;
        if let Some(life) = self.options.template_life {
            self.counts.templates_expired +=
                self.templates.expire_templates(now_ns.saturating_sub(life.as_u64()));
        }
        let oldest = now_ns.saturating_sub(self.options.hold.as_u64());
        let given_up = self.waiting.expire_waiting_sets(oldest) as u64;
        self.counts.move_pending_to_undecoded_bytes(given_up, |counts| &mut counts.undecoded_late_bytes);
        true
    }

    /// Discards the waiting data: the exporter is gone, so no template will come for it.
    pub fn end_session(&mut self) {
        let given_up = self.waiting.discard_all_waiting_sets() as u64;
        self.counts.move_pending_to_undecoded_bytes(given_up, |counts| &mut counts.undecoded_ended_bytes);
    }

    /// Returns the memory that the session holds, in bytes, without the size of the value itself.
    pub fn memory_bytes(&self) -> usize {
        self.templates.memory_bytes()
            + self.waiting.memory_bytes()
            + self.sequence.memory_bytes()
            + self.about.memory_bytes()
            + self.sflow.memory_bytes()
            // Live views hold the names too, and copy them once more for each reader.
            + 3 * (self.names + map_memory_bytes::<String, ()>(self.counts.skipped.len()))
    }

    /// Frees memory until the session holds at most `target` bytes, or can free no more. Data that waits for
    /// its template is discarded first, then templates, the oldest first in both, then the interface counters
    /// and samplers of sFlow.
    pub fn free_memory_down_to(&mut self, target: usize) {
        while self.memory_bytes() > target {
            if let Some(bytes) = self.waiting.discard_oldest_waiting_set() {
                self.counts.move_pending_to_undecoded_bytes(bytes as u64, |counts| {
                    &mut counts.undecoded_no_room_bytes
                });
            // Templates go after the waiting data: without one, all later data of its number would have to wait.
            } else if self.templates.drop_oldest_template() {
                self.counts.templates_no_room += 1;
            } else if self.sflow.evict_counters_or_samplers() {
                self.counts.interfaces_no_room += 1;
            } else {
                break;
            }
        }
    }

    /// Finds and counts the place of a message in the sequence. If the exporter restarted, this forgets older
    /// templates, waiting data and samplers. `None` if the message is not to be decoded.
    pub(super) fn open_message(
        &mut self,
        claim: MessageSequenceFacts,
        moment: MessageTime,
        now_ns: u64,
        out: &mut impl FnMut(ReceivedMessage),
    ) -> Option<SessionMessage> {
        let claim = MessageSequenceFacts { rebooted: self.is_rebooted(&moment), ..claim };
        let place = self.sequence.classify_and_record_message(claim);
        match place {
            SequencePosition::InOrder | SequencePosition::Late => {}
            SequencePosition::Ahead(units) => {
                self.counts.gaps += 1;
                out(ReceivedMessage::Gap { units });
            }
            SequencePosition::Duplicate => self.counts.duplicates += 1,
            SequencePosition::Early => self.counts.early += 1,
            SequencePosition::Old => self.counts.old += 1,
            SequencePosition::Restart => {
                self.counts.restarts += 1;
                let old = now_ns.saturating_sub(RESTART_WINDOW_NS);
                self.counts.templates_expired += self.templates.expire_templates(old);
                // The templates of the restarted exporter may differ, and its numbers have started again: data that
                // waits would be read by the wrong template, or fill the wrong gap.
                let given_up = self.waiting.discard_all_waiting_sets() as u64;
                self.counts
                    .move_pending_to_undecoded_bytes(given_up, |counts| &mut counts.undecoded_restart_bytes);
                self.about = ExporterDecodingState::default();
                self.sflow.forget_samplers();
                out(ReceivedMessage::Restart);
            }
        }
        if place.is_current() {
            let sent_ns = moment.sent_ns;
            self.uptime = moment.uptime_ms.map(|uptime_ms| UptimeSample { uptime_ms, sent_ns });
        }
        // Only a second copy is not decoded. An early or old message is decoded even if its number gives no
        // information: its records are not stored yet.
        let message = SessionMessage { place, number: claim.number, moment, now_ns, units: 0, unread: 0 };
        place.is_wanted().then_some(message)
    }

    /// Returns whether the exporter's uptime went back while its clock advanced.
    fn is_rebooted(&self, moment: &MessageTime) -> bool {
        let Some(uptime_ms) = moment.uptime_ms else { return false };
        let Some(last) = self.uptime else { return false };
        let went_on_ms = (moment.sent_ns / 1_000_000).wrapping_sub(last.sent_ns / 1_000_000);
        // The uptime wraps after 49.7 days. As a signed difference of 32 bits that is a small step forward, no reboot.
        let back_ms = last.uptime_ms.wrapping_sub(uptime_ms).cast_signed();
        // Messages overtake each other on the way, and the header's clock has whole seconds: the uptime must lag behind
        // the clock by more than 5 s.
        moment.sent_ns >= last.sent_ns
            && back_ms > 0
            && went_on_ms.saturating_add_signed(i64::from(back_ms)) > 5_000
    }

    /// Completes a message that was read, whole or up to the place where it is malformed.
    pub(super) fn close_message(&mut self, message: SessionMessage) {
        let SessionMessage { place, number, units, unread, .. } = message;
        // The units of waiting sets are numbered after the units that could be read: from here,
        // when their template comes.
        self.waiting.set_message_end(self.counts.messages, number.wrapping_add(units));
        self.counts.late_units += u64::from(self.sequence.complete_message(place, number, units, unread));
    }

    pub(super) fn withdraw_template(&mut self, id: u16) {
        self.templates.remove_template(id);
    }

    pub(super) fn withdraw_all_templates(&mut self, options: bool) {
        self.templates.withdraw_all(options);
    }

    /// Returns whether templates may be withdrawn: not over UDP, where messages overtake each other and may be forged.
    pub(super) const fn may_withdraw_templates(&self) -> bool {
        self.options.template_life.is_none()
    }

    /// Counts a packet or a new flow that SIM reported, and passes it to `out`.
    pub(super) fn deliver_event(&mut self, event: SimEvent, out: &mut impl FnMut(ReceivedMessage)) {
        self.counts.events += 1;
        if let SimEvent::Packet { bytes, .. } = event {
            self.counts.packets += 1;
            self.counts.newer_packets += 1;
            self.counts.bytes += u64::from(bytes);
        }
        out(ReceivedMessage::Sim(event));
    }

    /// Stores what the exporter reports about itself, and passes it to `out`.
    pub(super) fn deliver_statistics(
        &mut self,
        said: Box<ReportedLosses>,
        out: &mut impl FnMut(ReceivedMessage),
    ) {
        self.counts.options_records += 1;
        self.counts.restart_newer_packets_if_ledger(&said);
        self.reported.get_or_insert_default().update_from_later(&said);
        out(ReceivedMessage::Statistics(said));
    }

    /// Completes a record that needed no template, counts it and passes it to `out`.
    pub(super) fn deliver_flow(
        &mut self,
        draft: RecordDraft,
        moment: &MessageTime,
        out: &mut impl FnMut(ReceivedMessage),
    ) {
        let FinishedRecord { record, is_timed } = draft.finish_record(moment, &self.about);
        self.deliver_record(record, is_timed, out);
    }

    pub(super) fn deliver_record(
        &mut self,
        record: FlowRecord,
        is_timed: bool,
        out: &mut impl FnMut(ReceivedMessage),
    ) {
        self.counts.count_flow(&record, is_timed);
        out(ReceivedMessage::Record(record));
    }
}

impl SessionCounts {
    /// Sets the count of newer packets to zero if the exporter has sent its ledger.
    pub(super) const fn restart_newer_packets_if_ledger(&mut self, said: &ReportedLosses) {
        if said.ledger.is_some() {
            self.newer_packets = 0;
        }
    }

    /// Moves bytes from the pending to the undecoded ones, and to the count of their `cause`.
    pub(super) fn move_pending_to_undecoded_bytes(&mut self, bytes: u64, cause: fn(&mut Self) -> &mut u64) {
        *cause(self) += bytes;
        self.undecoded_bytes += bytes;
        self.pending_bytes -= bytes;
    }

    pub(super) fn count_flow(&mut self, record: &FlowRecord, is_timed: bool) {
        self.records += 1;
        let packets = record.forward.packets.saturating_add(record.reverse.packets);
        self.packets = self.packets.saturating_add(packets);
        self.newer_packets = self.newer_packets.saturating_add(packets);
        self.bytes = self.bytes.saturating_add(record.forward.bytes).saturating_add(record.reverse.bytes);
        self.timeless += u64::from(!is_timed);
    }
}
