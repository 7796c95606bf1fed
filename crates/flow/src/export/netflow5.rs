//! NetFlow 5: up to 30 lines of 48 bytes, IPv4 only, one direction, times in milliseconds since the exporter began.
//!
//! Counts of a line have 32 bits: what is more takes several lines. A message's idea of when the exporter began is such that
//! its times can be said; it moves only when a record lies 49 days from it.

use super::open::low;
use super::options::ExportOptions;
use super::section::seen_flags;
use super::write::ValueWriter;
use super::{ExportMessage, MessageSink};
use crate::ledger::CarriedRecords;
use crate::packet::protocol::ICMP;
use crate::record::FlowRecord;

const HEADER: usize = 24;
const LINE: usize = 48;
const MOST_LINES: usize = 30;
const MS: u64 = 1_000_000;
/// The exporter claims to have begun an hour before its first record, so that somewhat older ones fit, too.
const EARLIER_MS: u64 = 3_600_000;

/// The message being filled.
#[derive(Debug)]
pub(super) struct FiveMessage {
    buffer: Vec<u8>,
    most_lines: usize,
    lines: u16,
    carried: CarriedRecords,
    unfit: CarriedRecords,
    opened_ns: u64,
    sequence: u32,
    began_ms: Option<u64>,
    newest_ms: u64,
    engine: u16,
    sampling: u16,
}

impl FiveMessage {
    pub(super) fn new(options: &ExportOptions) -> Self {
        let most_lines = (options.message_bytes.saturating_sub(HEADER) / LINE).clamp(1, MOST_LINES);
        // Two bits say that it is deterministic, fourteen how much.
        let sampling = u16::try_from(options.sampling).unwrap_or(u16::MAX).min(0x3fff);
        let mut five = Self {
            buffer: Vec::with_capacity(HEADER + LINE * most_lines),
            most_lines,
            lines: 0,
            carried: CarriedRecords::default(),
            unfit: CarriedRecords::default(),
            opened_ns: 0,
            sequence: 0,
            began_ms: None,
            newest_ms: 0,
            engine: (options.domain & 0xffff) as u16,
            sampling: if sampling > 1 { 1 << 14 | sampling } else { 0 },
        };
        five.clear();
        five
    }

    pub(super) const fn carried(&self) -> CarriedRecords {
        self.carried
    }

    pub(super) const fn unfit(&self) -> CarriedRecords {
        self.unfit
    }

    pub(super) const fn opened_ns(&self) -> u64 {
        self.opened_ns
    }

    pub(super) fn record(
        &mut self,
        record: &FlowRecord,
        carried: CarriedRecords,
        now_ns: u64,
        sink: &mut impl MessageSink,
    ) {
        if !record.key.is_ipv4() {
            self.unfit.add(carried);
            return;
        }
        let (first_ms, last_ms) = (record.forward.first_ns / MS, record.forward.last_ns / MS);
        if !self.can_say(first_ms, last_ms) {
            self.seal(now_ns, sink);
            self.began_ms = Some(first_ms.saturating_sub(EARLIER_MS));
            self.newest_ms = 0;
        }
        let half = record.forward;
        let most = u64::from(u32::MAX);
        let lines = half.packets.div_ceil(most).max(half.bytes.div_ceil(most)).max(1);
        for line in 0..lines {
            let share = |whole: u64| whole / lines + u64::from(line < whole % lines);
            let part = CarriedRecords {
                records: if line == 0 { carried.records } else { 0 },
                packets: share(half.packets),
                bytes: share(half.bytes),
            };
            self.line(record, part, (first_ms, last_ms), now_ns, sink);
        }
    }

    fn can_say(&self, first_ms: u64, last_ms: u64) -> bool {
        self.began_ms.is_some_and(|began_ms| {
            first_ms >= began_ms && u32::try_from(last_ms.saturating_sub(began_ms)).is_ok()
        })
    }

    fn line(
        &mut self,
        record: &FlowRecord,
        part: CarriedRecords,
        (first_ms, last_ms): (u64, u64),
        now_ns: u64,
        sink: &mut impl MessageSink,
    ) {
        if usize::from(self.lines) == self.most_lines {
            self.seal(now_ns, sink);
        }
        if self.lines == 0 {
            self.opened_ns = now_ns;
        }
        let began_ms = self.began_ms.unwrap_or(0);
        let key = &record.key;
        let out = &mut self.buffer;
        out.v4(&key.source);
        out.v4(&key.destination);
        out.u32(0);
        out.u16((record.input & 0xffff) as u16);
        out.u16(0);
        out.u32(low(part.packets));
        out.u32(low(part.bytes));
        out.u32(low(first_ms.saturating_sub(began_ms)));
        out.u32(low(last_ms.saturating_sub(began_ms)));
        out.u16(key.source_port);
        // ICMP has type and code in the place of the destination port.
        out.u16(if key.protocol == ICMP { record.icmp } else { key.destination_port });
        out.bytes(&[0, seen_flags(record.forward.tcp_flags), key.protocol, record.tos]);
        // Autonomous systems and masks are not known.
        out.u64(0);
        self.lines += 1;
        self.carried.add(part);
        self.newest_ms = self.newest_ms.max(last_ms);
    }

    pub(super) fn seal(&mut self, now_ns: u64, sink: &mut impl MessageSink) {
        if self.lines == 0 {
            return;
        }
        self.write_header(now_ns);
        let step = u32::from(self.lines);
        sink.message(ExportMessage { bytes: &self.buffer, carried: self.carried, own_records: 0, step });
        self.sequence = self.sequence.wrapping_add(step);
        self.clear();
    }

    fn clear(&mut self) {
        self.buffer.clear();
        self.buffer.resize(HEADER, 0);
        self.lines = 0;
        self.carried = CarriedRecords::default();
    }

    /// Readers take the beginning for the time now less the time since then. Now is the clock's, unless what is told is
    /// 49 days older, as from a file.
    fn write_header(&mut self, now_ns: u64) {
        let began_ms = self.began_ms.unwrap_or(0);
        let up = |at_ms: u64| (at_ms >= began_ms).then(|| u32::try_from(at_ms - began_ms).ok()).flatten();
        let (at_ms, up_ms) = match up(now_ns / MS) {
            Some(up_ms) => (now_ns / MS, up_ms),
            None => (self.newest_ms, up(self.newest_ms).unwrap_or(u32::MAX)),
        };
        let mut header = [0; HEADER];
        header[..2].copy_from_slice(&5_u16.to_be_bytes());
        header[2..4].copy_from_slice(&self.lines.to_be_bytes());
        header[4..8].copy_from_slice(&up_ms.to_be_bytes());
        header[8..12].copy_from_slice(&low(at_ms / 1000).to_be_bytes());
        // To the millisecond, as the time since the beginning is: their difference stays the same.
        header[12..16].copy_from_slice(&low(at_ms % 1000 * MS).to_be_bytes());
        header[16..20].copy_from_slice(&self.sequence.to_be_bytes());
        header[20..22].copy_from_slice(&self.engine.to_be_bytes());
        header[22..24].copy_from_slice(&self.sampling.to_be_bytes());
        self.buffer[..HEADER].copy_from_slice(&header);
    }
}
