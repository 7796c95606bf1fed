//! IPFIX messages (RFC 7011).

use super::MalformedMessage;
use super::draft::MessageTime;
use super::reader::ByteReader;
use super::received::ReceivedMessage;
use super::sequence::{MessageClaim, fingerprint};
use super::session::{ExportSession, SessionMessage};
use super::template::FieldName;

/// Bytes of a message header.
pub(super) const HEADER: usize = 16;
const TEMPLATES: u16 = 2;
const OPTIONS_TEMPLATES: u16 = 3;
/// Numbers from here on are those of templates.
pub(super) const FIRST_DATA: u16 = 256;
const ENTERPRISE: u16 = 1 << 15;

struct IpfixHeader {
    length: u16,
    sent_s: u32,
    number: u32,
}

fn header(reader: &mut ByteReader<'_>) -> Option<IpfixHeader> {
    let _version = reader.u16()?;
    let length = reader.u16()?;
    let (sent_s, number, _domain) = (reader.u32()?, reader.u32()?, reader.u32()?);
    Some(IpfixHeader { length, sent_s, number })
}

pub(super) fn decode(
    session: &mut ExportSession,
    bytes: &[u8],
    now_ns: u64,
    out: &mut impl FnMut(ReceivedMessage),
) -> Result<(), MalformedMessage> {
    let mut reader = ByteReader::new(bytes);
    let short = MalformedMessage::Short { found: bytes.len(), needed: HEADER };
    let header = header(&mut reader).ok_or(short)?;
    if usize::from(header.length) != bytes.len() {
        return Err(MalformedMessage::Length { said: header.length.into(), found: bytes.len() });
    }
    let has_data = check_sets(reader)?;
    let moment = MessageTime { sent_ns: u64::from(header.sent_s) * 1_000_000_000, ..MessageTime::default() };
    let claim = MessageClaim {
        number: header.number,
        fingerprint: fingerprint(bytes),
        sent_s: header.sent_s,
        empty: !has_data,
        rebooted: false,
    };
    let Some(mut message) = session.open(claim, moment, now_ns, out) else { return Ok(()) };
    let result = sets(session, reader, &mut message, out);
    session.close(message);
    result
}

/// Every set lies within the message; says whether one holds data. Nothing of a message is used before.
fn check_sets(mut reader: ByteReader<'_>) -> Result<bool, MalformedMessage> {
    let mut has_data = false;
    while reader.left() > 0 {
        let (id, _) = next_set(&mut reader)?;
        has_data |= id >= FIRST_DATA;
    }
    Ok(has_data)
}

/// A set's number and content; both protocols with templates have the same.
pub(super) fn next_set<'a>(reader: &mut ByteReader<'a>) -> Result<(u16, &'a [u8]), MalformedMessage> {
    let left = reader.left();
    let (Some(id), Some(said)) = (reader.u16(), reader.u16()) else {
        return Err(MalformedMessage::Set { id: 0, said: 0, left });
    };
    let said = usize::from(said);
    let content = said.checked_sub(4).and_then(|length| reader.take(length));
    content.map(|content| (id, content)).ok_or(MalformedMessage::Set { id, said, left })
}

fn sets(
    session: &mut ExportSession,
    mut reader: ByteReader<'_>,
    message: &mut SessionMessage,
    out: &mut impl FnMut(ReceivedMessage),
) -> Result<(), MalformedMessage> {
    let mut result = Ok(());
    while reader.left() > 0 {
        let (id, content) = next_set(&mut reader)?;
        let done = match id {
            TEMPLATES | OPTIONS_TEMPLATES => {
                templates(session, id == OPTIONS_TEMPLATES, content, message, out)
            }
            id if id >= FIRST_DATA => session.data(id, content, message, out),
            // Reserved by the RFC; a later version may have a use for them.
            _ => Ok(()),
        };
        result = result.and(done);
    }
    result
}

fn templates(
    session: &mut ExportSession,
    options: bool,
    content: &[u8],
    message: &mut SessionMessage,
    out: &mut impl FnMut(ReceivedMessage),
) -> Result<(), MalformedMessage> {
    let mut reader = ByteReader::new(content);
    // Fewer bytes are padding.
    while reader.left() >= 4 {
        let (Some(id), Some(count)) = (reader.u16(), reader.u16()) else { break };
        if id == 0 && count == 0 {
            break;
        }
        if count == 0 {
            withdraw(session, id, options);
            continue;
        }
        if id < FIRST_DATA {
            return Err(MalformedMessage::Template { id, why: "has a number that is reserved" });
        }
        let cut = MalformedMessage::Template { id, why: "ends behind its set" };
        if options {
            let scopes = reader.u16().ok_or(cut)?;
            if scopes == 0 || scopes > count {
                return Err(MalformedMessage::Template {
                    id,
                    why: "has no scope, or more scopes than fields",
                });
            }
        }
        let fields = fields(&mut reader, count).ok_or(cut)?;
        session.learn(id, &fields, options, message, out)?;
    }
    Ok(())
}

fn withdraw(session: &mut ExportSession, id: u16, options: bool) {
    if !session.may_withdraw() {
        return;
    }
    match id {
        TEMPLATES | OPTIONS_TEMPLATES => session.withdraw_all(options),
        id => session.withdraw(id),
    }
}

fn fields(reader: &mut ByteReader<'_>, count: u16) -> Option<Vec<(FieldName, u16)>> {
    // Each takes four bytes at least: what is announced beyond that allocates nothing.
    let mut fields = Vec::with_capacity(usize::from(count).min(reader.left() / 4));
    for _ in 0..count {
        let (id, length) = (reader.u16()?, reader.u16()?);
        let enterprise = if id & ENTERPRISE == 0 { 0 } else { reader.u32()? };
        fields.push((FieldName { enterprise, id: id & !ENTERPRISE }, length));
    }
    Some(fields)
}
