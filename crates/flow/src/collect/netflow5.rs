//! NetFlow version 5 packets: IPv4 only, counters of 32 bits, interfaces of 16.

use super::Malformed;
use super::draft::{Draft, Moment};
use super::meaning::{Clock, Meaning, Rank};
use super::reader::Reader;
use super::received::Received;
use super::sequence::{Claim, fingerprint};
use super::session::Session;
use super::template::Field;

/// Bytes of a packet header.
pub(super) const HEADER: usize = 24;
const RECORD: usize = 48;

struct Header {
    count: u16,
    uptime_ms: u32,
    sent_s: u32,
    sent_ns: u32,
    number: u32,
    sampling: u16,
}

fn header(reader: &mut Reader<'_>) -> Option<Header> {
    let _version = reader.u16()?;
    let count = reader.u16()?;
    let (uptime_ms, sent_s, sent_ns, number) = (reader.u32()?, reader.u32()?, reader.u32()?, reader.u32()?);
    let _engine = reader.u16()?;
    let sampling = reader.u16()?;
    Some(Header { count, uptime_ms, sent_s, sent_ns, number, sampling })
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
    let said = HEADER + RECORD * usize::from(header.count);
    if said != bytes.len() {
        return Err(Malformed::Length { said, found: bytes.len() });
    }
    let moment = Moment {
        sent_ns: u64::from(header.sent_s) * 1_000_000_000 + u64::from(header.sent_ns.min(999_999_999)),
        uptime_ms: Some(header.uptime_ms),
        boot_ms: None,
    };
    let claim = Claim {
        number: header.number,
        fingerprint: fingerprint(bytes),
        sent_s: header.sent_s,
        empty: header.count == 0,
        rebooted: false,
    };
    let Some(message) = session.open(claim, moment, now_ns, out) else { return Ok(()) };
    // Two bits say how packets are chosen.
    let sampling = (header.sampling & 0x3fff).to_be_bytes();
    while let Some(record) = reader.take(RECORD) {
        let mut draft = draft(record);
        if sampling != [0, 0] {
            draft.take(field(Meaning::SamplingInterval), &sampling);
        }
        session.flow(draft, &moment, out);
    }
    session.close(message.of_units(header.count.into()));
    Ok(())
}

const fn field(meaning: Meaning) -> Field {
    Field { length: 0, reverse: false, meaning }
}

/// Where each value lies.
const LAYOUT: [(usize, usize, Meaning); 16] = [
    (0, 4, Meaning::Source4),
    (4, 4, Meaning::Destination4),
    (8, 4, Meaning::NextHop),
    (12, 2, Meaning::Input),
    (14, 2, Meaning::Output),
    (16, 4, Meaning::Packets(Rank::Delta)),
    (20, 4, Meaning::Octets(Rank::Delta)),
    (24, 4, Meaning::Start(Clock::Uptime)),
    (28, 4, Meaning::End(Clock::Uptime)),
    (32, 2, Meaning::SourcePort),
    (34, 2, Meaning::DestinationPort),
    (37, 1, Meaning::TcpFlags),
    (38, 1, Meaning::Protocol),
    (39, 1, Meaning::Tos),
    (40, 2, Meaning::SourceAs),
    (42, 2, Meaning::DestinationAs),
];

fn draft(record: &[u8]) -> Draft {
    let mut draft = Draft::default();
    for (from, length, meaning) in LAYOUT {
        if let Some(value) = record.get(from..from + length) {
            draft.take(field(meaning), value);
        }
    }
    draft
}
