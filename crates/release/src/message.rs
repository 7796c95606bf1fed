//! Messages between a client and the service. `docs/book/release-protocol.md` describes their layout.
//!
//! ```text
//!  ClientMessage  --to_bytes-->  bytes  --from_bytes-->  ClientMessage      (read by the service)
//!  ServiceMessage --to_bytes-->  bytes  --from_bytes-->  ServiceMessage     (read by the client)
//! ```
//! Invariant: `from_bytes` returns the value that `to_bytes` was given, except that long texts are cut and an address
//! `::ffff:a.b.c.d` becomes IPv4. `ClientMessage::from_bytes` refuses unknown types, wrong lengths and reserved bytes
//! other than zero. A message of the service may be longer, because later services add fields at the end.

mod client_side;
mod report;
mod service_side;

pub use client_side::{
    AnswerFilter, BrokenMessage, ClientMessage, PacketKind, PacketToRelease, ReleaseClock,
};
pub use report::{
    PacketFault, PacketOutcome, PacketReport, PacketStamp, ReportFlags, StampClockName, StampReader,
};
pub use service_side::{
    ClientStatus, ErrorPosition, PacketLimits, ProtocolErrorCode, ReceivedAnswer, ServiceFacts,
    ServiceMessage,
};

use crate::fields::{FieldReader, FieldWriter};

/// The version of the protocol that this crate speaks.
pub const VERSION: u16 = 1;
/// Maximum length of a message, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 65_536;
/// Bytes of the header of every message.
pub const HEADER: usize = 16;
/// Magic number "PRRS", the first field of HELLO.
// A program that connects to this socket by mistake is refused at its first field.
const PROTOCOL_MAGIC: u32 = 0x5052_5253;

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MessageHeader {
    kind: u16,
    id: u64,
}

/// Reads the header and checks the length of the message.
fn read_header(fields: &mut FieldReader<'_>, message_length: usize) -> Option<MessageHeader> {
    let kind = fields.name_field("type").read_u16()?;
    fields.name_field("reserved").skip_reserved(2)?;
    let length = fields.name_field("length").read_u32()? as usize;
    // The socket delivers whole messages, so another length is a fault of the sender and not a part of a message.
    if length != message_length {
        return None;
    }
    let id = fields.name_field("id").read_u64()?;
    Some(MessageHeader { kind, id })
}

/// Builds a message; `write` adds the body.
fn build_message(kind: u16, id: u64, write: impl FnOnce(&mut FieldWriter)) -> Vec<u8> {
    let mut fields = FieldWriter::default();
    fields.put_u16(kind).put_u16(0).put_u32(0).put_u64(id);
    write(&mut fields);
    let mut bytes = fields.pad_to_alignment().take_bytes();
    // The length is known only now; the placeholder was 0.
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    bytes[4..8].copy_from_slice(&length.to_ne_bytes());
    bytes
}

#[cfg(test)]
mod tests;
