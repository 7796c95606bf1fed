//! The exporter: turns records into messages, and adds templates and options when they are due.
//!
//! One exporter serves one transport session: its sequence numbers are of that session.

use super::announce;
use super::netflow5::NetflowFiveMessage;
use super::open::{OpenMessage, OpenRecordKind, RecordToAdd};
use super::options::{ExportFormat, ExportOptions, TemplateRefresh};
use super::template::{ExportTemplate, RecordShape};
use super::{MessageSink, announce::write_announcements};
use crate::ledger::{CarriedRecords, MeterLedger};
use crate::membership::GroupMembership;
use crate::record::FlowRecord;

/// Encodes flow records as export messages.
#[derive(Debug)]
pub struct MessageExporter {
    options: ExportOptions,
    inner: ExporterFormat,
    statistics_ns: Option<u64>,
}

#[derive(Debug)]
enum ExporterFormat {
    Sets(Box<SetBasedFormats>),
    Five(Box<NetflowFiveMessage>),
}

/// State for the formats that consist of sets: IPFIX and NetFlow 9.
#[derive(Debug)]
struct SetBasedFormats {
    open: OpenMessage,
    templates: Vec<ExportTemplate>,
    announced: Option<TemplateAnnouncement>,
}

/// Time at which the templates were sent last, and the number of messages sent by then.
#[derive(Clone, Copy, Debug)]
struct TemplateAnnouncement {
    at_ns: u64,
    messages: u32,
}

impl MessageExporter {
    /// Creates an exporter for a new transport session.
    pub fn new(options: ExportOptions) -> Self {
        let inner = match options.format {
            ExportFormat::NetFlow5 => ExporterFormat::Five(Box::new(NetflowFiveMessage::new(&options))),
            format => ExporterFormat::Sets(Box::new(SetBasedFormats {
                open: OpenMessage::new(&options),
                templates: ExportTemplate::all_templates(
                    format,
                    options.biflow,
                    options.has_history,
                    options.has_routes,
                ),
                announced: None,
            })),
        };
        Self { options, inner, statistics_ns: None }
    }

    /// Adds a record to the open message: as one record of both directions, or as one record for each
    /// direction that had packets.
    pub fn add_record(&mut self, record: &FlowRecord, now_ns: u64, sink: &mut impl MessageSink) {
        // NetFlow cannot state two directions in one record: its biflows are sent as two records.
        if self.options.biflow && self.options.format.has_biflow() {
            let carried = CarriedRecords { records: 1, packets: record.packets(), bytes: record.bytes() };
            self.encode_record(record, carried, now_ns, sink);
            return;
        }
        let (forward, back) = record.split_directions();
        // The ledger counts records of the table. Two one-way records come from one record of the table, so
        // only the first counts; the packets of each are its own. A biflow may have packets of the reverse
        // direction only, after a part in which the source was silent.
        let first = forward.forward.packets > 0 || back.is_none();
        if first {
            self.encode_record(&forward, count_one_way_record(&forward, 1), now_ns, sink);
        }
        if let Some(back) = back {
            self.encode_record(&back, count_one_way_record(&back, u64::from(!first)), now_ns, sink);
        }
    }

    fn encode_record(
        &mut self,
        record: &FlowRecord,
        carried: CarriedRecords,
        now_ns: u64,
        sink: &mut impl MessageSink,
    ) {
        match &mut self.inner {
            ExporterFormat::Five(five) => five.add_record(record, carried, now_ns, sink),
            ExporterFormat::Sets(sets) => {
                sets.refresh_templates(&self.options, now_ns, sink);
                // Templates that were due are written by now, before the record that needs one.
                let shape = RecordShape::from_record(record);
                let shape = if self.options.has_routes { shape } else { shape.without_routes() };
                let template = &sets.templates[shape.index()];
                let kind = OpenRecordKind::Flow(carried);
                let place = RecordToAdd { set: template.id, length: template.record_length(record), kind };
                sets.open.add_record(place, now_ns, sink, |out| template.encode_record(record, out));
            }
        }
    }

    /// Writes the templates if they are due, and passes the open message to `sink` if it has waited for `flush_after`.
    pub fn send_due_messages(&mut self, now_ns: u64, sink: &mut impl MessageSink) {
        match &mut self.inner {
            ExporterFormat::Five(five) if self.options.is_flush_due(five.opened_ns(), now_ns) => {
                five.seal_message(now_ns, sink);
            }
            ExporterFormat::Five(_) => {}
            ExporterFormat::Sets(sets) => {
                sets.refresh_templates(&self.options, now_ns, sink);
                if self.options.is_flush_due(sets.open.opened_ns(), now_ns) {
                    sets.open.seal_message(now_ns, sink);
                }
            }
        }
    }

    /// Returns whether it is time to send the ledger again; never for NetFlow 5, which cannot carry it.
    pub fn is_statistics_due(&self, now_ns: u64) -> bool {
        let every = self.options.statistics_every.as_u64();
        matches!(self.inner, ExporterFormat::Sets(_))
            && self.statistics_ns.is_none_or(|sent_ns| now_ns.saturating_sub(sent_ns) >= every)
    }

    pub fn add_statistics(&mut self, ledger: &MeterLedger, now_ns: u64, sink: &mut impl MessageSink) {
        self.statistics_ns = Some(now_ns);
        if let ExporterFormat::Sets(sets) = &mut self.inner {
            sets.refresh_templates(&self.options, now_ns, sink);
            announce::write_statistics(&mut sets.open, self.options.format, ledger, now_ns, sink);
        }
    }

    /// Adds the meter's role in its group, but only if the records have histories: otherwise there is no template.
    pub fn add_membership(&mut self, membership: &GroupMembership, now_ns: u64, sink: &mut impl MessageSink) {
        if let ExporterFormat::Sets(sets) = &mut self.inner
            && self.options.has_history
        {
            announce::write_membership(&mut sets.open, membership, now_ns, sink);
        }
    }

    /// Passes the open message to `sink`, although it is not full yet.
    pub fn flush_message(&mut self, now_ns: u64, sink: &mut impl MessageSink) {
        match &mut self.inner {
            ExporterFormat::Five(five) => five.seal_message(now_ns, sink),
            ExporterFormat::Sets(sets) => sets.open.seal_message(now_ns, sink),
        }
    }

    /// Handles a new connection: sequence numbers start again, and templates go first, also before records that wait.
    pub fn on_reconnect(&mut self, now_ns: u64, sink: &mut impl MessageSink) {
        if let ExporterFormat::Sets(sets) = &mut self.inner {
            sets.open.restart_sequence();
        }
        self.announce_templates_first(now_ns, sink);
    }

    /// Sends the templates first, also before records that wait. Needed if templates that are sent only once were lost.
    pub fn announce_templates_first(&mut self, now_ns: u64, sink: &mut impl MessageSink) {
        if let ExporterFormat::Sets(sets) = &mut self.inner {
            // The open message already holds records, so the templates go into a second message, which is
            // sent first. Then the open message continues its numbers.
            let mut first = sets.open.with_same_numbers(&self.options);
            std::mem::swap(&mut first, &mut sets.open);
            sets.announce_templates(&self.options, now_ns, sink);
            sets.open.seal_message(now_ns, sink);
            std::mem::swap(&mut first, &mut sets.open);
            sets.open.continue_sequence_numbers(&first);
        }
    }

    /// Writes a sequence number of the present connection into a message that the last connection did not accept.
    /// `step` is the number by which the message advances the sequence number.
    pub fn renumber_message(&mut self, message: &mut [u8], step: u32) {
        if let ExporterFormat::Sets(sets) = &mut self.inner {
            sets.open.renumber_message(message, step);
        }
    }

    /// Returns the counts of the flow records in the open message.
    pub fn waiting_records(&self) -> CarriedRecords {
        match &self.inner {
            ExporterFormat::Five(five) => five.carried_records(),
            ExporterFormat::Sets(sets) => sets.open.carried_records(),
        }
    }

    /// Returns the counts of the records that the format cannot carry: in NetFlow 5 everything but IPv4.
    pub fn unfit_records(&self) -> CarriedRecords {
        match &self.inner {
            ExporterFormat::Five(five) => five.unfit_records(),
            ExporterFormat::Sets(_) => CarriedRecords::default(),
        }
    }
}

/// Returns the counts of a record of one direction. `records` is 0 for the second record made from
/// the same table record.
const fn count_one_way_record(record: &FlowRecord, records: u64) -> CarriedRecords {
    CarriedRecords { records, packets: record.forward.packets, bytes: record.forward.bytes }
}

impl SetBasedFormats {
    fn refresh_templates(&mut self, options: &ExportOptions, now_ns: u64, sink: &mut impl MessageSink) {
        let due = match (self.announced, options.refresh) {
            (None, _) => true,
            (Some(_), TemplateRefresh::OnConnection) => false,
            (Some(last), TemplateRefresh::Every { time, messages }) => {
                now_ns.saturating_sub(last.at_ns) >= time.as_u64()
                    // With zero, the templates would come again before every record.
                    || self.open.message_count().wrapping_sub(last.messages) >= messages.max(1)
            }
        };
        if due {
            self.announce_templates(options, now_ns, sink);
        }
    }

    fn announce_templates(&mut self, options: &ExportOptions, now_ns: u64, sink: &mut impl MessageSink) {
        write_announcements(&mut self.open, &self.templates, options, now_ns, sink);
        // The count is taken after writing: the templates may fill separate messages, and these must not make
        // the templates due again.
        self.announced = Some(TemplateAnnouncement { at_ns: now_ns, messages: self.open.message_count() });
    }
}
