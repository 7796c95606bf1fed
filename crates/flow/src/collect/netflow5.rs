//! NetFlow version 5 packets: IPv4 only, counters of 32 bits, interface numbers of 16 bits.

use super::MalformedMessage;
use super::draft::{MessageTime, RecordDraft};
use super::meaning::{FieldMeaning, FieldRank, TimeNotation};
use super::reader::ByteReader;
use super::received::ReceivedMessage;
use super::sequence::{MessageSequenceFacts, message_fingerprint};
use super::session::ExportSession;
use super::template::TemplateField;

/// Bytes of a packet header.
pub(super) const HEADER: usize = 24;
const RECORD_BYTES: usize = 48;

struct NetflowFiveHeader {
    count: u16,
    uptime_ms: u32,
    sent_s: u32,
    sent_ns: u32,
    number: u32,
    sampling: u16,
}

fn read_header(reader: &mut ByteReader<'_>) -> Option<NetflowFiveHeader> {
    let _version = reader.read_u16()?;
    let count = reader.read_u16()?;
    let uptime_ms = reader.read_u32()?;
    let sent_s = reader.read_u32()?;
    let sent_ns = reader.read_u32()?;
    let number = reader.read_u32()?;
    let _engine = reader.read_u16()?;
    let sampling = reader.read_u16()?;
    Some(NetflowFiveHeader { count, uptime_ms, sent_s, sent_ns, number, sampling })
}

pub(super) fn decode_message(
    session: &mut ExportSession,
    bytes: &[u8],
    now_ns: u64,
    out: &mut impl FnMut(ReceivedMessage),
) -> Result<(), MalformedMessage> {
    let mut reader = ByteReader::new(bytes);
    let short = MalformedMessage::Short { found: bytes.len(), needed: HEADER };
    let header = read_header(&mut reader).ok_or(short)?;
    let said = HEADER + RECORD_BYTES * usize::from(header.count);
    // NetFlow 5 states no length of its own, so its number of records must agree with the bytes.
    if said != bytes.len() {
        return Err(MalformedMessage::Length { said, found: bytes.len() });
    }
    let moment = MessageTime {
        // The sender chooses both numbers. A billion nanoseconds or more
        // would move the time out of its second.
        sent_ns: u64::from(header.sent_s) * 1_000_000_000 + u64::from(header.sent_ns.min(999_999_999)),
        uptime_ms: Some(header.uptime_ms),
        boot_ms: None,
    };
    let claim = MessageSequenceFacts {
        number: header.number,
        fingerprint: message_fingerprint(bytes),
        sent_s: header.sent_s,
        empty: header.count == 0,
        rebooted: false,
    };
    let Some(message) = session.open_message(claim, moment, now_ns, out) else { return Ok(()) };
    // The upper two bits are the sampling mode, the other bits the interval. An interval of zero means that
    // there was no sampling.
    let sampling = (header.sampling & 0x3fff).to_be_bytes();
    while let Some(record) = reader.read_bytes(RECORD_BYTES) {
        let mut draft = draft_record(record);
        if sampling != [0, 0] {
            draft.set_field(plain_field(FieldMeaning::SamplingInterval), &sampling);
        }
        session.deliver_flow(draft, &moment, out);
    }
    session.close_message(message.with_units(header.count.into()));
    Ok(())
}

const fn plain_field(meaning: FieldMeaning) -> TemplateField {
    TemplateField { length: 0, reverse: false, meaning }
}

/// Position and length of each value in a record.
const RECORD_LAYOUT: [(usize, usize, FieldMeaning); 16] = [
    (0, 4, FieldMeaning::Source4),
    (4, 4, FieldMeaning::Destination4),
    (8, 4, FieldMeaning::NextHop),
    (12, 2, FieldMeaning::Input),
    (14, 2, FieldMeaning::Output),
    (16, 4, FieldMeaning::Packets(FieldRank::Delta)),
    (20, 4, FieldMeaning::Octets(FieldRank::Delta)),
    (24, 4, FieldMeaning::Start(TimeNotation::Uptime)),
    (28, 4, FieldMeaning::End(TimeNotation::Uptime)),
    (32, 2, FieldMeaning::SourcePort),
    (34, 2, FieldMeaning::DestinationPort),
    // Byte 36 is padding.
    (37, 1, FieldMeaning::TcpFlags),
    (38, 1, FieldMeaning::Protocol),
    (39, 1, FieldMeaning::Tos),
    (40, 2, FieldMeaning::SourceAs),
    (42, 2, FieldMeaning::DestinationAs),
];

fn draft_record(record: &[u8]) -> RecordDraft {
    let mut draft = RecordDraft::default();
    for (from, length, meaning) in RECORD_LAYOUT {
        if let Some(value) = record.get(from..from + length) {
            draft.set_field(plain_field(meaning), value);
        }
    }
    draft
}
