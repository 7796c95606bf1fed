//! NetFlow 5: a message has up to 30 records of 48 bytes, which are called lines here. It has IPv4 only, one direction
//! in a record, and times in milliseconds since the exporter began.
//!
//! Counts of a line have 32 bits: a larger count takes several lines. Times have 32 bits, too. So a message states a
//! start time from which all its times can be expressed. The start time moves only if a record starts before it, or
//! ends more than 49 days after it.

use super::open::low_u32;
use super::options::ExportOptions;
use super::section::direction_flags;
use super::write::ValueWriter;
use super::{ExportMessage, MessageSink};
use crate::ledger::CarriedRecords;
use crate::packet::protocol::ICMP;
use crate::record::FlowRecord;
use packetrig_units::clamp_to_u16;

const HEADER: usize = 24;
const RECORD_BYTES: usize = 48;
const MAX_LINES: usize = 30;
const NANOS_PER_MS: u64 = 1_000_000;
/// The exporter claims to have begun an hour before its first record, so that the times of older records that come
/// later can be expressed, too.
const CLAIMED_UPTIME_MS: u64 = 3_600_000;

/// The message being filled.
#[derive(Debug)]
pub(super) struct NetflowFiveMessage {
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

impl NetflowFiveMessage {
    pub(super) fn new(options: &ExportOptions) -> Self {
        let most_lines = (options.message_bytes.saturating_sub(HEADER) / RECORD_BYTES).clamp(1, MAX_LINES);
        // The upper two bits are the method, 1 for deterministic; the other fourteen bits are the interval.
        let sampling = clamp_to_u16(options.sampling).min(0x3fff);
        let mut five = Self {
            buffer: Vec::with_capacity(HEADER + RECORD_BYTES * most_lines),
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

    pub(super) const fn carried_records(&self) -> CarriedRecords {
        self.carried
    }

    pub(super) const fn unfit_records(&self) -> CarriedRecords {
        self.unfit
    }

    pub(super) const fn opened_ns(&self) -> u64 {
        self.opened_ns
    }

    pub(super) fn add_record(
        &mut self,
        record: &FlowRecord,
        carried: CarriedRecords,
        now_ns: u64,
        sink: &mut impl MessageSink,
    ) {
        if !record.key.is_ipv4() {
            self.unfit.add_records(carried);
            return;
        }
        let first_ms = record.forward.first_ns / NANOS_PER_MS;
        if !self.can_express_times(record) {
            // All lines of a message share its start time, so the open message must be sent before
            // the start time moves.
            self.seal_message(now_ns, sink);
            self.began_ms = Some(first_ms.saturating_sub(CLAIMED_UPTIME_MS));
            self.newest_ms = 0;
        }
        let half = record.forward;
        let most = u64::from(u32::MAX);
        // Usually the bytes decide: at 1500 bytes a packet, they overflow 1500 times as early as the packets.
        let lines = half.packets.div_ceil(most).max(half.bytes.div_ceil(most)).max(1);
        for line in 0..lines {
            let part = CarriedRecords {
                // The lines are one record of the table, so the ledger counts it once.
                records: if line == 0 { carried.records } else { 0 },
                packets: count_for_line(half.packets, line, lines),
                bytes: count_for_line(half.bytes, line, lines),
            };
            self.add_line(record, part, now_ns, sink);
        }
    }

    /// Returns whether the times of a record can be expressed relative to the start time that the message states.
    fn can_express_times(&self, record: &FlowRecord) -> bool {
        let first_ms = record.forward.first_ns / NANOS_PER_MS;
        let last_ms = record.forward.last_ns / NANOS_PER_MS;
        self.began_ms.is_some_and(|began_ms| {
            // 2^32 milliseconds are 49.7 days.
            first_ms >= began_ms && u32::try_from(last_ms.saturating_sub(began_ms)).is_ok()
        })
    }

    /// Converts a time to milliseconds since the start time; `None` if 32 bits cannot hold the result.
    fn uptime_ms(&self, at_ms: u64) -> Option<u32> {
        u32::try_from(at_ms.checked_sub(self.began_ms.unwrap_or(0))?).ok()
    }

    fn add_line(
        &mut self,
        record: &FlowRecord,
        part: CarriedRecords,
        now_ns: u64,
        sink: &mut impl MessageSink,
    ) {
        if usize::from(self.lines) == self.most_lines {
            self.seal_message(now_ns, sink);
        }
        if self.lines == 0 {
            self.opened_ns = now_ns;
        }
        let began_ms = self.began_ms.unwrap_or(0);
        let first_ms = record.forward.first_ns / NANOS_PER_MS;
        let last_ms = record.forward.last_ns / NANOS_PER_MS;
        let key = &record.key;
        let out = &mut self.buffer;
        out.put_ipv4(&key.source);
        out.put_ipv4(&key.destination);
        // No next hop: the meter does not route.
        out.put_u32(0);
        out.put_u16((record.input & 0xffff) as u16);
        // There is no output interface: the meter only sees where packets arrive.
        out.put_u16(0);
        out.put_u32(low_u32(part.packets));
        out.put_u32(low_u32(part.bytes));
        out.put_u32(low_u32(first_ms.saturating_sub(began_ms)));
        out.put_u32(low_u32(last_ms.saturating_sub(began_ms)));
        out.put_u16(key.source_port);
        // ICMP has type and code in the place of the destination port.
        out.put_u16(if key.protocol == ICMP { record.icmp } else { key.destination_port });
        out.put_bytes(&[0, direction_flags(record.forward.tcp_flags), key.protocol, record.tos]);
        // Autonomous systems and masks are not known.
        out.put_u64(0);
        self.lines += 1;
        self.carried.add_records(part);
        self.newest_ms = self.newest_ms.max(last_ms);
    }

    pub(super) fn seal_message(&mut self, now_ns: u64, sink: &mut impl MessageSink) {
        if self.lines == 0 {
            return;
        }
        self.write_header(now_ns);
        let step = u32::from(self.lines);
        sink.on_message(ExportMessage { bytes: &self.buffer, carried: self.carried, own_records: 0, step });
        self.sequence = self.sequence.wrapping_add(step);
        self.clear();
    }

    fn clear(&mut self) {
        self.buffer.clear();
        self.buffer.resize(HEADER, 0);
        self.lines = 0;
        self.carried = CarriedRecords::default();
    }

    fn write_header(&mut self, now_ns: u64) {
        // Collectors compute the exporter's start as header time minus uptime, and the uptime has 32 bits of
        // milliseconds: 49 days. So the header has the present time. If the records are older than 49 days,
        // for example from a file, it has the time of the newest record.
        let now_ms = now_ns / NANOS_PER_MS;
        let at_ms = if self.uptime_ms(now_ms).is_some() { now_ms } else { self.newest_ms };
        let up_ms = self.uptime_ms(at_ms).unwrap_or(u32::MAX);
        let mut header = [0; HEADER];
        header[..2].copy_from_slice(&5_u16.to_be_bytes());
        header[2..4].copy_from_slice(&self.lines.to_be_bytes());
        header[4..8].copy_from_slice(&up_ms.to_be_bytes());
        header[8..12].copy_from_slice(&low_u32(at_ms / 1000).to_be_bytes());
        // The time is cut to the millisecond, like the uptime: otherwise collectors would compute another start
        // time of the exporter from each message.
        header[12..16].copy_from_slice(&low_u32(at_ms % 1000 * NANOS_PER_MS).to_be_bytes());
        header[16..20].copy_from_slice(&self.sequence.to_be_bytes());
        header[20..22].copy_from_slice(&self.engine.to_be_bytes());
        header[22..24].copy_from_slice(&self.sampling.to_be_bytes());
        self.buffer[..HEADER].copy_from_slice(&header);
    }
}

/// Returns the part of a count that goes into one of several lines: the parts differ by one at most and add
/// up to the whole.
fn count_for_line(whole: u64, line: u64, lines: u64) -> u64 {
    whole / lines + u64::from(line < whole % lines)
}
