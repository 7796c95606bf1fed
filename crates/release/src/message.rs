//! The messages between a client and the service. `docs/book/release-protocol.md` draws them.
//!
//! ```text
//!  ClientMessage  --write-->  bytes  --read-->  ClientMessage      (read by the service)
//!  ServiceMessage --write-->  bytes  --read-->  ServiceMessage     (read by the client)
//! ```
//! Invariant: `read` gives back exactly what `write` was given, and refuses all that `write` cannot have written.

mod client_side;
mod report;
mod service_side;

pub use client_side::{AnswerFilter, ClientMessage, PacketKind, PacketToRelease, ReleaseClock};
pub use report::{PacketOutcome, PacketReport, PacketStamp, ReportFlags, StampClockName, StampReader};
pub use service_side::{HeardAnswer, ProtocolErrorCode, ServiceFacts, ServiceMessage, ServiceState};

use crate::fields::{FieldReader, FieldWriter};

/// The version of the protocol that this crate speaks.
pub const VERSION: u16 = 1;
/// Bytes of the longest message.
pub const LONGEST_MESSAGE: usize = 65_536;
/// Bytes of the header of every message.
pub const HEADER: usize = 16;
/// "PRRS", the first field of HELLO.
const MAGIC: u32 = 0x5052_5253;

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MessageHeader {
    kind: u16,
    id: u64,
}

/// Reads the header and checks the length of the message.
fn begin_reading(bytes: &[u8]) -> Option<(MessageHeader, FieldReader<'_>)> {
    let mut fields = FieldReader::new(bytes);
    let kind = fields.u16()?;
    fields.reserved(2)?;
    let length = fields.u32()? as usize;
    let id = fields.u64()?;
    (length == bytes.len()).then_some((MessageHeader { kind, id }, fields))
}

/// A message whose body `write` adds.
fn written(kind: u16, id: u64, write: impl FnOnce(&mut FieldWriter)) -> Vec<u8> {
    let mut fields = FieldWriter::default();
    fields.u16(kind).u16(0).u32(0).u64(id);
    write(&mut fields);
    let mut bytes = fields.pad().take();
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    bytes[4..8].copy_from_slice(&length.to_ne_bytes());
    bytes
}

#[cfg(test)]
mod tests;
