//! The message that is being filled, of the formats that are made of sets: IPFIX and NetFlow 9.
//!
//! Invariant: the buffer holds a whole message except for its header, and never more than the limit.

use super::options::{ExportFormat, ExportOptions};
use super::write::ValueWriter;
use super::{ExportMessage, MessageSink};
use crate::ledger::CarriedRecords;
use crate::narrow::fitting_u16;

const IPFIX_HEADER: usize = 16;
const NETFLOW9_HEADER_BYTES: usize = 20;
const SET_HEADER: usize = 4;

/// Kind of a record in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenRecordKind {
    /// A template, or a template of options.
    Template,
    Options,
    /// A flow record, with its counts.
    Flow(CarriedRecords),
}

/// A record to add: its set, its length in bytes, and its kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordToAdd {
    pub(super) set: u16,
    pub(super) length: usize,
    pub(super) kind: OpenRecordKind,
}

/// The set at the end of a message; its length is not written yet.
#[derive(Clone, Copy, Debug)]
struct OpenSet {
    id: u16,
    start: usize,
}

/// A message being filled.
#[derive(Debug)]
pub(super) struct OpenMessage {
    format: ExportFormat,
    domain: u32,
    limit: usize,
    buffer: Vec<u8>,
    set: Option<OpenSet>,
    records: u16,
    data_records: u32,
    own: u64,
    carried: CarriedRecords,
    opened_ns: u64,
    sequence: u32,
    messages: u32,
    /// Time from which the exporter's uptime counts.
    begun_ns: Option<u64>,
}

impl OpenMessage {
    pub(super) fn new(options: &ExportOptions) -> Self {
        // The upper bound is the largest value of IPFIX's length field. The lower one leaves room for any template and
        // any record, because neither may be split over two messages.
        let limit = options.message_bytes.clamp(ExportOptions::LEAST_BYTES, usize::from(u16::MAX));
        let mut open = Self {
            format: options.format,
            domain: options.domain,
            limit,
            buffer: Vec::with_capacity(limit),
            set: None,
            records: 0,
            data_records: 0,
            own: 0,
            carried: CarriedRecords::default(),
            opened_ns: 0,
            sequence: 0,
            messages: 0,
            begun_ns: None,
        };
        open.clear();
        open
    }

    /// Returns the counts of the flow records in the message.
    pub(super) const fn carried_records(&self) -> CarriedRecords {
        self.carried
    }

    /// Returns whether the message has no records.
    pub(super) const fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Returns the time at which the first record was added.
    pub(super) const fn opened_ns(&self) -> u64 {
        self.opened_ns
    }

    /// Returns the number of messages passed to a sink, modulo 2^32.
    pub(super) const fn message_count(&self) -> u32 {
        self.messages
    }

    /// Creates an empty message that continues the sequence and message numbers of this one.
    pub(super) fn with_same_numbers(&self, options: &ExportOptions) -> Self {
        let Self { sequence, messages, begun_ns, .. } = *self;
        Self { sequence, messages, begun_ns, ..Self::new(options) }
    }

    /// Continues the sequence and message numbers of another message.
    pub(super) const fn continue_sequence_numbers(&mut self, other: &Self) {
        self.sequence = other.sequence;
        self.messages = other.messages;
        self.begun_ns = other.begun_ns;
    }

    /// Starts the sequence numbers from zero: a new transport session has its own (RFC 7011 section 3.1).
    pub(super) const fn restart_sequence(&mut self) {
        self.sequence = 0;
    }

    /// Writes a sequence number of the new connection into a message that the last connection did not accept.
    pub(super) fn renumber_message(&mut self, message: &mut [u8], step: u32) {
        // Only IPFIX is renumbered: NetFlow 9 uses UDP, which has no connection to lose.
        if let Some(field) = message.get_mut(8..12).filter(|_| self.format == ExportFormat::Ipfix) {
            field.copy_from_slice(&self.sequence.to_be_bytes());
        }
        self.sequence = self.sequence.wrapping_add(step);
    }

    /// Adds a record, in a new message if the open one has no room for it. `write` must append as many
    /// bytes as `record` says.
    pub(super) fn add_record(
        &mut self,
        record: RecordToAdd,
        now_ns: u64,
        sink: &mut impl MessageSink,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        // An empty message takes the record in any case: a record that is too
        // long for every message must not loop.
        if self.length_with_record(record.set, record.length) > self.limit && !self.is_empty() {
            self.seal_message(now_ns, sink);
        }
        if self.is_empty() {
            self.opened_ns = now_ns;
        }
        if self.set.is_none_or(|open| open.id != record.set) {
            // A new set begins whenever the number changes, because a set holds records of one template only.
            self.close_set();
            self.set = Some(OpenSet { id: record.set, start: self.buffer.len() });
            self.buffer.put_u16(record.set);
            // The length of the set: `close_set` fills it in.
            self.buffer.put_u16(0);
        }
        write(&mut self.buffer);
        self.records += 1;
        self.data_records += u32::from(record.kind != OpenRecordKind::Template);
        match record.kind {
            OpenRecordKind::Flow(carried) => self.carried.add_records(carried),
            OpenRecordKind::Template | OpenRecordKind::Options => self.own += 1,
        }
    }

    /// Returns the length of the message with one more record, including the padding that its sets will need.
    fn length_with_record(&self, id: u16, length: usize) -> usize {
        let open_bytes = self.set.map_or(0, |open| self.buffer.len() - open.start);
        if self.set.is_some_and(|open| open.id == id) {
            return self.buffer.len() + length + self.padding_len(open_bytes + length);
        }
        // A record of another set pads the open set first, then adds a new header. Headers are a
        // multiple of four themselves.
        self.buffer.len() + self.padding_len(open_bytes) + SET_HEADER + length + self.padding_len(length)
    }

    /// Returns the padding of a set. RFC 3954 section 5.3: sets of NetFlow 9 end on multiples of four bytes. In IPFIX,
    /// padding is optional, and none is written.
    const fn padding_len(&self, set: usize) -> usize {
        match self.format {
            ExportFormat::NetFlow9 => set.next_multiple_of(4) - set,
            ExportFormat::Ipfix | ExportFormat::NetFlow5 => 0,
        }
    }

    fn close_set(&mut self) {
        let Some(OpenSet { start, .. }) = self.set.take() else { return };
        let padding = self.padding_len(self.buffer.len() - start);
        self.buffer.extend(&[0; 3][..padding]);
        let length = fitting_u16(self.buffer.len() - start);
        self.buffer[start + 2..start + 4].copy_from_slice(&length.to_be_bytes());
    }

    /// Completes the message, passes it to `sink` and begins a new one. Does nothing if the message is empty.
    pub(super) fn seal_message(&mut self, now_ns: u64, sink: &mut impl MessageSink) {
        if self.is_empty() {
            return;
        }
        self.close_set();
        // RFC 7011 section 3.1 numbers data records, options among them, but not templates; RFC 3954 section 5.1
        // numbers packets. A collector that sees any other step reports a loss.
        let step = if self.format == ExportFormat::Ipfix { self.data_records } else { 1 };
        self.write_header(now_ns);
        sink.on_message(ExportMessage {
            bytes: &self.buffer,
            carried: self.carried,
            own_records: self.own,
            step,
        });
        self.sequence = self.sequence.wrapping_add(step);
        self.messages = self.messages.wrapping_add(1);
        self.clear();
    }

    fn clear(&mut self) {
        let header = if self.format == ExportFormat::Ipfix { IPFIX_HEADER } else { NETFLOW9_HEADER_BYTES };
        self.buffer.clear();
        self.buffer.resize(header, 0);
        self.set = None;
        self.records = 0;
        self.data_records = 0;
        self.own = 0;
        self.carried = CarriedRecords::default();
    }

    /// Writes the header of the message. Seconds are cut to 32 bits, as in both formats.
    fn write_header(&mut self, now_ns: u64) {
        let begun_ns = *self.begun_ns.get_or_insert(now_ns);
        let seconds = low_u32(now_ns / 1_000_000_000);
        let up_ms = low_u32(now_ns.saturating_sub(begun_ns) / 1_000_000);
        let is_ipfix = self.format == ExportFormat::Ipfix;
        let version: u16 = if is_ipfix { 10 } else { 9 };
        // At this offset, IPFIX has the length of the message in bytes, and NetFlow 9 the number of
        // its records, templates included.
        let size = if is_ipfix { fitting_u16(self.buffer.len()) } else { self.records };
        // NetFlow 9 has the exporter's uptime before the fields that both formats have.
        let words = [up_ms, seconds, self.sequence, self.domain];
        let words = if is_ipfix { &words[1..] } else { &words[..] };
        self.buffer[..2].copy_from_slice(&version.to_be_bytes());
        self.buffer[2..4].copy_from_slice(&size.to_be_bytes());
        for (place, word) in self.buffer[4..].chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_be_bytes());
        }
    }
}

/// Returns the low 32 bits.
pub(super) const fn low_u32(value: u64) -> u32 {
    (value & 0xffff_ffff) as u32
}
