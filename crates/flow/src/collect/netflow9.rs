//! NetFlow version 9 packets (RFC 3954).

use super::MalformedMessage;
use super::draft::MessageTime;
use super::ipfix::{FIRST_DATA_SET_ID, ReceivedSet, read_next_set};
use super::reader::ByteReader;
use super::received::ReceivedMessage;
use super::sequence::{MessageSequenceFacts, message_fingerprint};
use super::session::{ExportSession, SessionMessage};
use super::template::{FieldName, FieldSpecifier};

/// Bytes of a packet header.
pub(super) const HEADER: usize = 20;
const TEMPLATE_FLOWSET_ID: u16 = 0;
const OPTIONS_TEMPLATE_FLOWSET_ID: u16 = 1;

struct NetflowNineHeader {
    uptime_ms: u32,
    sent_s: u32,
    number: u32,
}

fn read_header(reader: &mut ByteReader<'_>) -> Option<NetflowNineHeader> {
    let _version_and_count = reader.read_u32()?;
    let uptime_ms = reader.read_u32()?;
    let sent_s = reader.read_u32()?;
    let number = reader.read_u32()?;
    let _source = reader.read_u32()?;
    Some(NetflowNineHeader { uptime_ms, sent_s, number })
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
    // The lengths of all sets are checked before any set is used: of a truncated packet, no set is used, and its number
    // does not count as received.
    let mut ahead = reader;
    while ahead.unread_byte_count() > 0 {
        read_next_set(&mut ahead)?;
    }
    let moment = MessageTime {
        sent_ns: u64::from(header.sent_s) * 1_000_000_000,
        uptime_ms: Some(header.uptime_ms),
        boot_ms: None,
    };
    let claim = MessageSequenceFacts {
        number: header.number,
        fingerprint: message_fingerprint(bytes),
        sent_s: header.sent_s,
        ..MessageSequenceFacts::default()
    };
    let Some(mut message) = session.open_message(claim, moment, now_ns, out) else { return Ok(()) };
    let result = decode_sets(session, reader, &mut message, out);
    // RFC 3954 section 5.1 numbers packets, whatever they hold.
    // The sequence numbers already count the packet as received, so it must be closed even if a set could not be read.
    session.close_message(message.with_units(1));
    result
}

fn decode_sets(
    session: &mut ExportSession,
    mut reader: ByteReader<'_>,
    message: &mut SessionMessage,
    out: &mut impl FnMut(ReceivedMessage),
) -> Result<(), MalformedMessage> {
    let mut result = Ok(());
    while reader.unread_byte_count() > 0 {
        let ReceivedSet { id, content } = read_next_set(&mut reader)?;
        // An unreadable set does not stop the other sets: each has its own length.
        let done = match id {
            TEMPLATE_FLOWSET_ID => decode_templates(session, content, message, out),
            OPTIONS_TEMPLATE_FLOWSET_ID => decode_options_templates(session, content, message, out),
            id if id >= FIRST_DATA_SET_ID => session.process_data_set(id, content, message, out),
            // Numbers from 2 to 255 are reserved; a later version may use them.
            _ => Ok(()),
        };
        result = result.and(done);
    }
    result
}

fn decode_templates(
    session: &mut ExportSession,
    content: &[u8],
    message: &mut SessionMessage,
    out: &mut impl FnMut(ReceivedMessage),
) -> Result<(), MalformedMessage> {
    let mut reader = ByteReader::new(content);
    while reader.unread_byte_count() >= 4
        && let Some(id) = reader.read_u16()
        && let Some(count) = reader.read_u16()
    {
        // Zeros fill the set up to a multiple of four bytes.
        if id == 0 && count == 0 {
            break;
        }
        check_template_id(id)?;
        let fields = read_fields(&mut reader, count.into(), false);
        let fields = fields.ok_or(MalformedMessage::Template { id, why: "does not end within its set" })?;
        session.learn_template(id, &fields, false, message, out)?;
    }
    Ok(())
}

fn decode_options_templates(
    session: &mut ExportSession,
    content: &[u8],
    message: &mut SessionMessage,
    out: &mut impl FnMut(ReceivedMessage),
) -> Result<(), MalformedMessage> {
    let mut reader = ByteReader::new(content);
    while reader.unread_byte_count() >= 6
        && let Some(id) = reader.read_u16()
        && let Some(scopes) = reader.read_u16()
        && let Some(options) = reader.read_u16()
    {
        if id == 0 && scopes == 0 {
            break;
        }
        check_template_id(id)?;
        let cut = MalformedMessage::Template { id, why: "does not end within its set" };
        // RFC 3954 section 6.1: both lengths are in bytes, and each field takes four of them.
        let mut all = read_fields(&mut reader, usize::from(scopes) / 4, true).ok_or(cut)?;
        all.extend(read_fields(&mut reader, usize::from(options) / 4, false).ok_or(cut)?);
        session.learn_template(id, &all, true, message, out)?;
    }
    Ok(())
}

const fn check_template_id(id: u16) -> Result<(), MalformedMessage> {
    if id < FIRST_DATA_SET_ID {
        return Err(MalformedMessage::Template { id, why: "has a reserved number (below 256)" });
    }
    Ok(())
}

/// Reads field specifiers. Scopes have numbers of their own, which are not numbers of elements, so they get no name.
fn read_fields(reader: &mut ByteReader<'_>, count: usize, are_scopes: bool) -> Option<Vec<FieldSpecifier>> {
    // The sender states the count, but each field takes four bytes: the set bounds the memory.
    let mut fields = Vec::with_capacity(count.min(reader.unread_byte_count() / 4));
    for _ in 0..count {
        let id = reader.read_u16()?;
        let length = reader.read_u16()?;
        let name = if are_scopes { FieldName::NONE } else { FieldName { enterprise: 0, id } };
        fields.push(FieldSpecifier { name, length });
    }
    Some(fields)
}
