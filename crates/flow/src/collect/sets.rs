//! Sets of a message: templates are kept, data is read or waits for its template.
//!
//! Invariant: the work is proportional to the bytes of the message and of the sets it releases.

use super::ExportProtocol;
use super::MalformedMessage;
use super::counts::SKIPPED;
use super::draft::{MessageTime, RecordDraft};
use super::meaning::spelled;
use super::memory::block;
use super::options::OptionsDraft;
use super::reader::ByteReader;
use super::received::ReceivedMessage;
use super::session::{ExportSession, SessionMessage};
use super::template::{FieldName, ReceivedTemplate, TemplateField, skipped};
use super::waiting::WaitingMessage;
use crate::export::section::VARIABLE;

impl ExportSession {
    /// Keeps a template and reads the data that waited for it.
    pub(super) fn learn(
        &mut self,
        id: u16,
        fields: &[(FieldName, u16)],
        options: bool,
        message: &mut SessionMessage,
        out: &mut impl FnMut(ReceivedMessage),
    ) -> Result<(), MalformedMessage> {
        let template = ReceivedTemplate::new(id, fields, options, message.now_ns)?;
        self.counts.templates += 1;
        if !options {
            self.name_skipped(fields);
        }
        self.counts.templates_no_room += self.templates.keep(id, template, &self.options);
        self.release(id, message, out)
    }

    fn name_skipped(&mut self, fields: &[(FieldName, u16)]) {
        if self.counts.skipped.len() >= SKIPPED {
            return;
        }
        for name in skipped(fields).into_iter().map(spelled) {
            let cost = block(name.len());
            if self.counts.skipped.len() < SKIPPED && self.counts.skipped.insert(name) {
                self.names += cost;
            }
        }
    }

    fn release(
        &mut self,
        id: u16,
        message: &mut SessionMessage,
        out: &mut impl FnMut(ReceivedMessage),
    ) -> Result<(), MalformedMessage> {
        let mut result = Ok(());
        while let Some(ready) = self.waiting.take(id) {
            self.counts.recovered_bytes += ready.bytes.len() as u64;
            self.counts.pending_bytes -= ready.bytes.len() as u64;
            let held = ready.message;
            let (units, done) = self.read_set(id, &ready.bytes, held.moment, out);
            result = result.and(done);
            if held.number == self.counts.messages {
                message.units += units;
                message.unread = message.unread.saturating_sub(size(&ready.bytes));
            } else if self.protocol == ExportProtocol::Ipfix {
                self.waiting.move_end(held.number, units);
                self.sequence.recover(held.end, units, ready.is_last);
            }
        }
        result
    }

    /// Reads a set of data, or keeps it until its template comes.
    pub(super) fn data(
        &mut self,
        id: u16,
        bytes: &[u8],
        message: &mut SessionMessage,
        out: &mut impl FnMut(ReceivedMessage),
    ) -> Result<(), MalformedMessage> {
        if self.templates.find(id).is_some() {
            let (units, result) = self.read_set(id, bytes, message.moment, out);
            message.units += units;
            return result;
        }
        self.counts.template_misses += 1;
        if bytes.is_empty() {
            return Ok(());
        }
        message.unread = message.unread.saturating_add(size(bytes));
        let of = WaitingMessage {
            number: self.counts.messages,
            moment: message.moment,
            at_ns: message.now_ns,
            end: message.number,
        };
        self.counts.waited_bytes += bytes.len() as u64;
        self.counts.pending_bytes += bytes.len() as u64;
        let given_up = self.waiting.keep(id, bytes, of, self.options.hold_bytes) as u64;
        self.counts.give_up(given_up, |counts| &mut counts.undecoded_no_room_bytes);
        Ok(())
    }

    /// Gives out the records of a set, and how many there were.
    fn read_set(
        &mut self,
        id: u16,
        bytes: &[u8],
        moment: MessageTime,
        out: &mut impl FnMut(ReceivedMessage),
    ) -> (u32, Result<(), MalformedMessage>) {
        let Self { templates, about, counts, reported, .. } = self;
        let Some(template) = templates.find(id) else { return (0, Ok(())) };
        let mut reader = ByteReader::new(bytes);
        let mut units = 0;
        let most = most_records(bytes);
        // What is shorter than any record is padding.
        while reader.left() >= template.least {
            if units >= most {
                let (left, result) = pass_over(template, &mut reader);
                counts.over_budget += u64::from(left);
                return (units + left, result.ok_or(MalformedMessage::Record { id }));
            }
            if template.options {
                let mut draft = OptionsDraft::default();
                if !walk(&template.fields, &mut reader, |field, value| draft.take(field, value)) {
                    return (units, Err(MalformedMessage::Record { id }));
                }
                counts.options_records += 1;
                if let Some(said) = draft.finish(moment.sent_ns, about) {
                    reported.get_or_insert_default().update(&said);
                    out(ReceivedMessage::Statistics(Box::new(said)));
                }
            } else {
                let mut draft = RecordDraft::default();
                if !walk(&template.fields, &mut reader, |field, value| draft.take(field, value)) {
                    return (units, Err(MalformedMessage::Record { id }));
                }
                let moment = MessageTime { boot_ms: about.boot_ms, ..moment };
                let (record, is_timed) = draft.finish(&moment, about);
                counts.flow(&record, is_timed);
                out(ReceivedMessage::Record(record));
            }
            units += 1;
        }
        (units, Ok(()))
    }
}

/// Records that are made of a set, at most. Known exporters send records of four bytes at least (tables of samplers), flows of
/// far more; a record here has some hundreds, so one for each byte would be a sender's lever.
fn most_records(set: &[u8]) -> u32 {
    size(set) / 4 + 16
}

/// Counts the records that are left without making them; `None` if the last one is cut.
fn pass_over(template: &ReceivedTemplate, reader: &mut ByteReader<'_>) -> (u32, Option<()>) {
    if template.is_fixed {
        return (u32::try_from(reader.left() / template.least).unwrap_or(u32::MAX), Some(()));
    }
    let mut left = 0;
    while reader.left() >= template.least {
        if !walk(&template.fields, reader, |_, _| {}) {
            return (left, None);
        }
        left += 1;
    }
    (left, Some(()))
}

fn size(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

/// Takes a record's values one by one. Says whether they were all there.
fn walk(
    fields: &[TemplateField],
    reader: &mut ByteReader<'_>,
    mut take: impl FnMut(TemplateField, &[u8]),
) -> bool {
    for field in fields {
        let value =
            if field.length == VARIABLE { reader.variable() } else { reader.take(usize::from(field.length)) };
        let Some(value) = value else { return false };
        take(*field, value);
    }
    true
}
