//! Processes the sets of a message: templates are stored, data is decoded or waits for its template.
//!
//! Invariant: the work is proportional to the bytes of the message and of the waiting sets for which
//! it brings a template.

use super::ExportProtocol;
use super::MalformedMessage;
use super::counts::MAX_SKIPPED_NAMES;
use super::draft::{FinishedRecord, MessageTime, RecordDraft};
use super::meaning::field_label;
use super::memory::block_bytes;
use super::options::OptionsDraft;
use super::reader::ByteReader;
use super::received::ReceivedMessage;
use super::session::{ExportSession, SessionMessage};
use super::template::{FieldSpecifier, ReceivedTemplate, TemplateField, fields_without_column};
use super::waiting::WaitingMessage;
use crate::export::section::VARIABLE_LENGTH;
use packetrig_units::clamp_to_u32;

/// Number of records in a set that count in the sequence numbers, and whether the set could be read to its end.
struct SetReadOutcome {
    units: u32,
    result: Result<(), MalformedMessage>,
}

impl ExportSession {
    /// Stores a template, and decodes the data that waited for it.
    pub(super) fn learn_template(
        &mut self,
        id: u16,
        fields: &[FieldSpecifier],
        options: bool,
        message: &mut SessionMessage,
        out: &mut impl FnMut(ReceivedMessage),
    ) -> Result<(), MalformedMessage> {
        let template = ReceivedTemplate::new(id, fields, options, message.now_ns)?;
        self.counts.templates += 1;
        // Options records are not stored as rows, so a field without a column is not lost there.
        if !options {
            self.record_skipped_field_names(fields);
        }
        self.counts.templates_no_room += self.templates.store_template(id, template, &self.options);
        self.read_waiting_sets(id, message, out)
    }

    fn record_skipped_field_names(&mut self, fields: &[FieldSpecifier]) {
        if self.counts.skipped.len() >= MAX_SKIPPED_NAMES {
            return;
        }
        for name in fields_without_column(fields).into_iter().map(field_label) {
            let cost = block_bytes(name.len());
            if self.counts.skipped.len() < MAX_SKIPPED_NAMES && self.counts.skipped.insert(name) {
                self.names += cost;
            }
        }
    }

    fn read_waiting_sets(
        &mut self,
        id: u16,
        message: &mut SessionMessage,
        out: &mut impl FnMut(ReceivedMessage),
    ) -> Result<(), MalformedMessage> {
        let mut result = Ok(());
        while let Some(ready) = self.waiting.take_ready_set(id) {
            self.counts.recovered_bytes += ready.bytes.len() as u64;
            self.counts.pending_bytes -= ready.bytes.len() as u64;
            let of = ready.message;
            // Times relative to a message refer to the message of the data, so its time is used here.
            let read = self.read_record_set(id, &ready.bytes, of.moment, out);
            result = result.and(read.result);
            if of.number == self.counts.messages {
                // The template came later in the same message; the units of this message are still being counted.
                message.units += read.units;
                message.unread = message.unread.saturating_sub(clamped_len(&ready.bytes));
            } else if self.protocol == ExportProtocol::Ipfix {
                // Only IPFIX numbers records: the units that are missing after that message may be these records.
                // NetFlow 9 numbers packets, and that packet was counted when it came.
                self.waiting.advance_message_end(of.number, read.units);
                self.sequence.recover_units(of.end, read.units, ready.is_last);
            }
        }
        result
    }

    /// Decodes a data set, or stores it until its template comes.
    pub(super) fn process_data_set(
        &mut self,
        id: u16,
        bytes: &[u8],
        message: &mut SessionMessage,
        out: &mut impl FnMut(ReceivedMessage),
    ) -> Result<(), MalformedMessage> {
        if self.templates.find_template(id).is_some() {
            let read = self.read_record_set(id, bytes, message.moment, out);
            message.units += read.units;
            return read.result;
        }
        self.counts.template_misses += 1;
        if bytes.is_empty() {
            return Ok(());
        }
        // The number of these records is unknown. No record is shorter than a byte, so there are at most
        // as many as bytes.
        message.unread = message.unread.saturating_add(clamped_len(bytes));
        let of = WaitingMessage {
            number: self.counts.messages,
            moment: message.moment,
            at_ns: message.now_ns,
            end: message.number,
        };
        self.counts.waited_bytes += bytes.len() as u64;
        self.counts.pending_bytes += bytes.len() as u64;
        let given_up = self.waiting.store_waiting_set(id, bytes, of, self.options.hold_bytes) as u64;
        self.counts.move_pending_to_undecoded_bytes(given_up, |counts| &mut counts.undecoded_no_room_bytes);
        Ok(())
    }

    /// Decodes the records of a set and passes them to `out`.
    fn read_record_set(
        &mut self,
        id: u16,
        bytes: &[u8],
        moment: MessageTime,
        out: &mut impl FnMut(ReceivedMessage),
    ) -> SetReadOutcome {
        let Self { templates, about, counts, reported, .. } = self;
        let Some(template) = templates.find_template(id) else {
            return SetReadOutcome { units: 0, result: Ok(()) };
        };
        let mut reader = ByteReader::new(bytes);
        let mut units = 0;
        let most = max_records_of_set(bytes);
        let cut = MalformedMessage::Record { id };
        // RFC 7011 section 3.3.1: bytes that are too few for any record are padding.
        while reader.unread_byte_count() >= template.least {
            if units >= most {
                let skipped = skip_records(template, &mut reader);
                counts.over_budget += u64::from(skipped.count);
                let result = if skipped.is_cut { Err(cut) } else { Ok(()) };
                // These records are not decoded, but the exporter has numbered them.
                return SetReadOutcome { units: units + skipped.count, result };
            }
            if template.options {
                let mut draft = OptionsDraft::default();
                if !for_each_field_value(&template.fields, &mut reader, |field, value| {
                    draft.set_field(field, value);
                }) {
                    return SetReadOutcome { units, result: Err(cut) };
                }
                counts.options_records += 1;
                if let Some(said) = draft.finish_record(moment.sent_ns, about) {
                    counts.restart_newer_packets_if_ledger(&said);
                    reported.get_or_insert_default().update_from_later(&said);
                    out(ReceivedMessage::Statistics(Box::new(said)));
                }
            } else {
                let mut draft = RecordDraft::default();
                if !for_each_field_value(&template.fields, &mut reader, |field, value| {
                    draft.set_field(field, value);
                }) {
                    return SetReadOutcome { units, result: Err(cut) };
                }
                // Options records give the exporter's start time; uptimes in records cannot be read without it.
                let moment = MessageTime { boot_ms: about.boot_ms, ..moment };
                let FinishedRecord { record, is_timed } = draft.finish_record(&moment, about);
                counts.count_flow(&record, is_timed);
                out(ReceivedMessage::Record(record));
            }
            units += 1;
        }
        SetReadOutcome { units, result: Ok(()) }
    }
}

/// Maximum number of records of a set that are decoded. Known exporters send records of at least four bytes (tables of
/// samplers), and much longer flows. A decoded record takes several hundred bytes of memory, so a set with one record
/// for each byte would let a sender fill the memory.
fn max_records_of_set(set: &[u8]) -> u32 {
    clamped_len(set) / 4 + 16
}

/// Records that were counted and not decoded.
struct SkippedRecords {
    count: u32,
    /// True if the last record does not end within its set.
    is_cut: bool,
}

/// Counts the remaining records of a set. They are not decoded.
fn skip_records(template: &ReceivedTemplate, reader: &mut ByteReader<'_>) -> SkippedRecords {
    if template.is_fixed {
        return SkippedRecords {
            count: clamp_to_u32(reader.unread_byte_count() / template.least),
            is_cut: false,
        };
    }
    let mut count = 0;
    while reader.unread_byte_count() >= template.least {
        if !for_each_field_value(&template.fields, reader, |_, _| {}) {
            return SkippedRecords { count, is_cut: true };
        }
        count += 1;
    }
    SkippedRecords { count, is_cut: false }
}

fn clamped_len(bytes: &[u8]) -> u32 {
    clamp_to_u32(bytes.len())
}

/// Calls `take` for each value of a record. Returns false if the bytes end before the record does.
fn for_each_field_value(
    fields: &[TemplateField],
    reader: &mut ByteReader<'_>,
    mut take: impl FnMut(TemplateField, &[u8]),
) -> bool {
    for field in fields {
        let value = if field.length == VARIABLE_LENGTH {
            reader.read_variable_length_value()
        } else {
            reader.read_bytes(usize::from(field.length))
        };
        let Some(value) = value else { return false };
        take(*field, value);
    }
    true
}
