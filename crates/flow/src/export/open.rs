//! The message that is being filled, of the formats that are made of sets: IPFIX and NetFlow 9.
//!
//! Invariant: what is in the buffer is a whole message but for its header, at most as long as it may be.

use super::options::{ExportFormat, ExportOptions};
use super::write::ValueWriter;
use super::{ExportMessage, MessageSink};
use crate::ledger::CarriedRecords;

const IPFIX_HEADER: usize = 16;
const NINE_HEADER: usize = 20;
const SET_HEADER: usize = 4;

/// What a record in a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenRecordKind {
    /// A template, or a template of options.
    Template,
    Options,
    /// A flow record, and what it stands for.
    Flow(CarriedRecords),
}

/// A message being filled.
#[derive(Debug)]
pub(super) struct OpenMessage {
    format: ExportFormat,
    domain: u32,
    limit: usize,
    buffer: Vec<u8>,
    /// The set at the end: its number, where it begins.
    set: Option<(u16, usize)>,
    records: u16,
    data_records: u32,
    own: u64,
    carried: CarriedRecords,
    opened_ns: u64,
    sequence: u32,
    messages: u32,
    /// What the time since the exporter began is counted from.
    begun_ns: Option<u64>,
}

impl OpenMessage {
    pub(super) fn new(options: &ExportOptions) -> Self {
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

    /// What its flow records stand for.
    pub(super) const fn carried(&self) -> CarriedRecords {
        self.carried
    }

    /// Whether it has nothing in it.
    pub(super) const fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// When its first record came.
    pub(super) const fn opened_ns(&self) -> u64 {
        self.opened_ns
    }

    /// How many were handed out, modulo 2^32.
    pub(super) const fn messages(&self) -> u32 {
        self.messages
    }

    /// An empty one that goes on where this one is.
    pub(super) fn beside(&self, options: &ExportOptions) -> Self {
        let Self { sequence, messages, begun_ns, .. } = *self;
        Self { sequence, messages, begun_ns, ..Self::new(options) }
    }

    /// Goes on where the other one is.
    pub(super) const fn follow(&mut self, other: &Self) {
        (self.sequence, self.messages, self.begun_ns) = (other.sequence, other.messages, other.begun_ns);
    }

    /// The transport begins anew, and so do the numbers of its messages.
    pub(super) const fn restart_sequence(&mut self) {
        self.sequence = 0;
    }

    /// Gives a message that was not taken its place among those of a new connection.
    pub(super) fn renumber(&mut self, message: &mut [u8], step: u32) {
        if let Some(field) = message.get_mut(8..12).filter(|_| self.format == ExportFormat::Ipfix) {
            field.copy_from_slice(&self.sequence.to_be_bytes());
        }
        self.sequence = self.sequence.wrapping_add(step);
    }

    /// Adds a record of `length` bytes to set `id`, in a new message if it does not fit this one.
    pub(super) fn add(
        &mut self,
        (id, length, kind): (u16, usize, OpenRecordKind),
        now_ns: u64,
        sink: &mut impl MessageSink,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        if self.length_with(id, length) > self.limit && !self.is_empty() {
            self.seal(now_ns, sink);
        }
        if self.is_empty() {
            self.opened_ns = now_ns;
        }
        if self.set.is_none_or(|(open, _)| open != id) {
            self.close_set();
            self.set = Some((id, self.buffer.len()));
            self.buffer.u16(id);
            self.buffer.u16(0);
        }
        write(&mut self.buffer);
        self.records += 1;
        self.data_records += u32::from(kind != OpenRecordKind::Template);
        match kind {
            OpenRecordKind::Flow(carried) => self.carried.add(carried),
            OpenRecordKind::Template | OpenRecordKind::Options => self.own += 1,
        }
    }

    /// How long the message is with one more record; sets of NetFlow 9 end on multiples of four.
    fn length_with(&self, id: u16, length: usize) -> usize {
        let (begun, header) = match self.set {
            Some((open, start)) if open == id => (self.buffer.len() - start, 0),
            Some((_, start)) => (0, SET_HEADER + self.padding(self.buffer.len() - start)),
            None => (0, SET_HEADER),
        };
        let set = begun + length;
        self.buffer.len() + header + length + self.padding(set)
    }

    const fn padding(&self, set: usize) -> usize {
        match self.format {
            ExportFormat::NetFlow9 => set.next_multiple_of(4) - set,
            ExportFormat::Ipfix | ExportFormat::NetFlow5 => 0,
        }
    }

    fn close_set(&mut self) {
        let Some((_, start)) = self.set.take() else { return };
        let padding = self.padding(self.buffer.len() - start);
        self.buffer.extend(&[0; 3][..padding]);
        let length = u16::try_from(self.buffer.len() - start).unwrap_or(u16::MAX);
        self.buffer[start + 2..start + 4].copy_from_slice(&length.to_be_bytes());
    }

    /// Hands out the message if there is anything in it.
    pub(super) fn seal(&mut self, now_ns: u64, sink: &mut impl MessageSink) {
        if self.is_empty() {
            return;
        }
        self.close_set();
        let step = if self.format == ExportFormat::Ipfix { self.data_records } else { 1 };
        self.write_header(now_ns);
        sink.message(ExportMessage {
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
        let header = if self.format == ExportFormat::Ipfix { IPFIX_HEADER } else { NINE_HEADER };
        self.buffer.clear();
        self.buffer.resize(header, 0);
        self.set = None;
        (self.records, self.data_records, self.own) = (0, 0, 0);
        self.carried = CarriedRecords::default();
    }

    /// Seconds are cut to 32 bits, as the formats do.
    fn write_header(&mut self, now_ns: u64) {
        let begun_ns = *self.begun_ns.get_or_insert(now_ns);
        let seconds = low(now_ns / 1_000_000_000);
        let up_ms = low(now_ns.saturating_sub(begun_ns) / 1_000_000);
        let length = u16::try_from(self.buffer.len()).unwrap_or(u16::MAX);
        // NetFlow 9 has the time since it began in front of what both have.
        let words = [up_ms, seconds, self.sequence, self.domain];
        let (version, size, words) = match self.format {
            ExportFormat::Ipfix => (10_u16, length, &words[1..]),
            ExportFormat::NetFlow9 | ExportFormat::NetFlow5 => (9, self.records, &words[..]),
        };
        let (head, mut rest) = self.buffer.split_at_mut(4);
        head[..2].copy_from_slice(&version.to_be_bytes());
        head[2..].copy_from_slice(&size.to_be_bytes());
        for word in words {
            let (place, behind) = rest.split_at_mut(4);
            place.copy_from_slice(&word.to_be_bytes());
            rest = behind;
        }
    }
}

pub(super) const fn low(value: u64) -> u32 {
    (value & 0xffff_ffff) as u32
}
