//! IPFIX messages (RFC 7011).

use super::MalformedMessage;
use super::draft::MessageTime;
use super::reader::ByteReader;
use super::received::ReceivedMessage;
use super::sequence::{MessageSequenceFacts, message_fingerprint};
use super::session::{ExportSession, SessionMessage};
use super::template::{FieldName, FieldSpecifier};

/// Bytes of a message header.
pub(super) const HEADER: usize = 16;
const TEMPLATE_SET_ID: u16 = 2;
const OPTIONS_TEMPLATE_SET_ID: u16 = 3;
/// Set numbers from here on are the numbers of templates: such a set holds data.
pub(super) const FIRST_DATA_SET_ID: u16 = 256;
const ENTERPRISE_BIT: u16 = 1 << 15;

struct IpfixHeader {
    length: u16,
    sent_s: u32,
    number: u32,
}

fn read_header(reader: &mut ByteReader<'_>) -> Option<IpfixHeader> {
    let _version = reader.read_u16()?;
    let length = reader.read_u16()?;
    let sent_s = reader.read_u32()?;
    let number = reader.read_u32()?;
    let _domain = reader.read_u32()?;
    Some(IpfixHeader { length, sent_s, number })
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
    // A datagram holds one whole message. On a stream, the caller has cut the bytes by this length.
    if usize::from(header.length) != bytes.len() {
        return Err(MalformedMessage::Length { said: header.length.into(), found: bytes.len() });
    }
    // The lengths of all sets are checked before any set is used: of a truncated message, no set is used.
    let has_data = check_message_sets(reader)?;
    let moment = MessageTime { sent_ns: u64::from(header.sent_s) * 1_000_000_000, ..MessageTime::default() };
    let claim = MessageSequenceFacts {
        number: header.number,
        fingerprint: message_fingerprint(bytes),
        sent_s: header.sent_s,
        empty: !has_data,
        rebooted: false,
    };
    let Some(mut message) = session.open_message(claim, moment, now_ns, out) else { return Ok(()) };
    let result = decode_sets(session, reader, &mut message, out);
    // The sequence numbers already count the message as received, so it must be closed even if a set could not be read.
    session.close_message(message);
    result
}

/// Checks that every set lies within the message. Returns whether one holds data.
fn check_message_sets(mut reader: ByteReader<'_>) -> Result<bool, MalformedMessage> {
    let mut has_data = false;
    while reader.unread_byte_count() > 0 {
        has_data |= read_next_set(&mut reader)?.id >= FIRST_DATA_SET_ID;
    }
    Ok(has_data)
}

/// A set of a message. IPFIX and NetFlow 9 have the same form of sets.
pub(super) struct ReceivedSet<'a> {
    pub(super) id: u16,
    pub(super) content: &'a [u8],
}

pub(super) fn read_next_set<'a>(reader: &mut ByteReader<'a>) -> Result<ReceivedSet<'a>, MalformedMessage> {
    let left = reader.unread_byte_count();
    let short = MalformedMessage::Set { id: 0, said: 0, left };
    let id = reader.read_u16().ok_or(short)?;
    let said = usize::from(reader.read_u16().ok_or(short)?);
    // The length includes the four bytes just read. With a smaller length, the reader would never get to the next set.
    let content = said.checked_sub(4).and_then(|length| reader.read_bytes(length));
    content.map(|content| ReceivedSet { id, content }).ok_or(MalformedMessage::Set { id, said, left })
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
            TEMPLATE_SET_ID | OPTIONS_TEMPLATE_SET_ID => {
                decode_templates(session, id == OPTIONS_TEMPLATE_SET_ID, content, message, out)
            }
            id if id >= FIRST_DATA_SET_ID => session.process_data_set(id, content, message, out),
            // Reserved by the RFC; a later version may have a use for them.
            _ => Ok(()),
        };
        result = result.and(done);
    }
    result
}

fn decode_templates(
    session: &mut ExportSession,
    options: bool,
    content: &[u8],
    message: &mut SessionMessage,
    out: &mut impl FnMut(ReceivedMessage),
) -> Result<(), MalformedMessage> {
    let mut reader = ByteReader::new(content);
    // Fewer than four bytes at the end are padding, and so are zeros.
    while reader.unread_byte_count() >= 4
        && let Some(id) = reader.read_u16()
        && let Some(count) = reader.read_u16()
    {
        if id == 0 && count == 0 {
            break;
        }
        // RFC 7011 section 8.1: a template without fields withdraws the template with the same number.
        if count == 0 {
            withdraw_templates(session, id, options);
            continue;
        }
        if id < FIRST_DATA_SET_ID {
            return Err(MalformedMessage::Template { id, why: "has a reserved number (below 256)" });
        }
        let cut = MalformedMessage::Template { id, why: "does not end within its set" };
        if options {
            let scopes = reader.read_u16().ok_or(cut)?;
            // RFC 7011 section 3.4.2.2: the scope field count must not be zero.
            if scopes == 0 || scopes > count {
                return Err(MalformedMessage::Template {
                    id,
                    why: "has no scope, or more scopes than fields",
                });
            }
        }
        let fields = read_fields(&mut reader, count).ok_or(cut)?;
        session.learn_template(id, &fields, options, message, out)?;
    }
    Ok(())
}

fn withdraw_templates(session: &mut ExportSession, id: u16, options: bool) {
    if !session.may_withdraw_templates() {
        return;
    }
    match id {
        // A number that is itself that of a template set means all templates of this kind.
        TEMPLATE_SET_ID | OPTIONS_TEMPLATE_SET_ID => session.withdraw_all_templates(options),
        id => session.withdraw_template(id),
    }
}

fn read_fields(reader: &mut ByteReader<'_>, count: u16) -> Option<Vec<FieldSpecifier>> {
    // A sender may announce 65 535 fields in a set of a few bytes. Each field takes four bytes at least, so no more
    // memory is reserved than the set can fill.
    let mut fields = Vec::with_capacity(usize::from(count).min(reader.unread_byte_count() / 4));
    for _ in 0..count {
        let id = reader.read_u16()?;
        let length = reader.read_u16()?;
        let enterprise = if id & ENTERPRISE_BIT == 0 { 0 } else { reader.read_u32()? };
        let name = FieldName { enterprise, id: id & !ENTERPRISE_BIT };
        fields.push(FieldSpecifier { name, length });
    }
    Some(fields)
}
