//! Submits packets with their release times to the service `packetrig probe serve`, which reports when they left.
//!
//! [`ReleaseClient`] is a connection to the service. [`message`] contains the messages of both sides; the service uses
//! it, too. The protocol is described for other languages in `docs/book/release-protocol.md`.
//!
//! Invariant: bytes from the other side that break the protocol lead to an error and never to a panic.
#![forbid(unsafe_code)]

mod client;
mod fields;
pub mod message;

pub use client::{
    BatchAcceptance, ReleaseClient, ReleaseError, ReleaseEvent, SOCKET_VARIABLE, release_socket_path,
};
pub use message::{
    AnswerFilter, PacketKind, PacketOutcome, PacketReport, PacketStamp, PacketToRelease, ReleaseClock,
    ReportFlags, ServiceFacts, StampClockName, StampReader,
};
