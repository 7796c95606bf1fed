//! IPFIX messages (RFC 7011).

use super::Malformed;
use super::draft::Moment;
use super::reader::Reader;
use super::received::Received;
use super::sequence::{Claim, fingerprint};
use super::session::{Message, Session};
use super::template::FieldName;

/// Bytes of a message header.
pub(super) const HEADER: usize = 16;
const TEMPLATES: u16 = 2;
const OPTIONS_TEMPLATES: u16 = 3;
/// Numbers from here on are those of templates.
pub(super) const FIRST_DATA: u16 = 256;
const ENTERPRISE: u16 = 1 << 15;

struct Header {
    length: u16,
    sent_s: u32,
    number: u32,
}

fn header(reader: &mut Reader<'_>) -> Option<Header> {
    let _version = reader.u16()?;
    let length = reader.u16()?;
    let (sent_s, number, _domain) = (reader.u32()?, reader.u32()?, reader.u32()?);
    Some(Header { length, sent_s, number })
}

pub(super) fn decode(
    session: &mut Session,
    bytes: &[u8],
    now_ns: u64,
    out: &mut impl FnMut(Received),
) -> Result<(), Malformed> {
    let mut reader = Reader::new(bytes);
    let short = Malformed::Short { found: bytes.len(), needed: HEADER };
    let header = header(&mut reader).ok_or(short)?;
    if usize::from(header.length) != bytes.len() {
        return Err(Malformed::Length { said: header.length.into(), found: bytes.len() });
    }
    let has_data = check_sets(reader)?;
    let moment = Moment { sent_ns: u64::from(header.sent_s) * 1_000_000_000, ..Moment::default() };
    let claim = Claim {
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
fn check_sets(mut reader: Reader<'_>) -> Result<bool, Malformed> {
    let mut has_data = false;
    while reader.left() > 0 {
        let (id, _) = next_set(&mut reader)?;
        has_data |= id >= FIRST_DATA;
    }
    Ok(has_data)
}

/// A set's number and content; both protocols with templates have the same.
pub(super) fn next_set<'a>(reader: &mut Reader<'a>) -> Result<(u16, &'a [u8]), Malformed> {
    let left = reader.left();
    let (Some(id), Some(said)) = (reader.u16(), reader.u16()) else {
        return Err(Malformed::Set { id: 0, said: 0, left });
    };
    let said = usize::from(said);
    let content = said.checked_sub(4).and_then(|length| reader.take(length));
    content.map(|content| (id, content)).ok_or(Malformed::Set { id, said, left })
}

fn sets(
    session: &mut Session,
    mut reader: Reader<'_>,
    message: &mut Message,
    out: &mut impl FnMut(Received),
) -> Result<(), Malformed> {
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
    session: &mut Session,
    options: bool,
    content: &[u8],
    message: &mut Message,
    out: &mut impl FnMut(Received),
) -> Result<(), Malformed> {
    let mut reader = Reader::new(content);
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
            return Err(Malformed::Template { id, why: "has a number that is reserved" });
        }
        let cut = Malformed::Template { id, why: "ends behind its set" };
        if options {
            let scopes = reader.u16().ok_or(cut)?;
            if scopes == 0 || scopes > count {
                return Err(Malformed::Template { id, why: "has no scope, or more scopes than fields" });
            }
        }
        let fields = fields(&mut reader, count).ok_or(cut)?;
        session.learn(id, &fields, options, message, out)?;
    }
    Ok(())
}

fn withdraw(session: &mut Session, id: u16, options: bool) {
    if !session.may_withdraw() {
        return;
    }
    match id {
        TEMPLATES | OPTIONS_TEMPLATES => session.withdraw_all(options),
        id => session.withdraw(id),
    }
}

fn fields(reader: &mut Reader<'_>, count: u16) -> Option<Vec<(FieldName, u16)>> {
    // Each takes four bytes at least: what is announced beyond that allocates nothing.
    let mut fields = Vec::with_capacity(usize::from(count).min(reader.left() / 4));
    for _ in 0..count {
        let (id, length) = (reader.u16()?, reader.u16()?);
        let enterprise = if id & ENTERPRISE == 0 { 0 } else { reader.u32()? };
        fields.push((FieldName { enterprise, id: id & !ENTERPRISE }, length));
    }
    Some(fields)
}
