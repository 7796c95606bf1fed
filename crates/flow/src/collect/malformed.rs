//! Why a message cannot be read.

use crate::sim::SimError;

/// Fault of a message. If [`message_length`](super::message_length) returns a fault, the rest of the stream cannot be
/// read. After any other fault, the next message can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MalformedMessage {
    /// The message ends within its header, or the header is not valid.
    #[error("a message of {found} bytes has no valid header: a header has at least {needed} bytes")]
    Short {
        found: usize,
        /// Bytes of the header.
        needed: usize,
    },
    /// A protocol that the collector cannot read.
    #[error("unknown version {0}: packetrig reads NetFlow 5, NetFlow 9, IPFIX (10), sFlow 5 and SIM")]
    Version(u16),
    /// The length in the header is not the length of the message.
    #[error("the header of a message gives a length of {said} bytes, but the message has {found}")]
    Length { said: usize, found: usize },
    /// A set that ends after the end of the message, or within its own header.
    #[error("set {id} has an invalid length of {said} (minimum 4); bytes left in the message: {left}")]
    Set { id: u16, said: usize, left: usize },
    /// A template that is not valid.
    #[error("template {id} {why}")]
    Template {
        id: u16,
        /// Reason why it is not valid.
        why: &'static str,
    },
    /// A sample of sFlow that ends after the end of the datagram, or with content that ends after the sample.
    #[error("sample {number} of an sFlow datagram is truncated")]
    Sample {
        /// Number of the sample in the datagram, from 1.
        number: u32,
    },
    /// A fault of a SIM datagram.
    #[error(transparent)]
    Sim(SimError),
    /// A value that goes beyond the end of its set.
    #[error("a record of template {id} does not end within its set")]
    Record {
        /// Number of its template.
        id: u16,
    },
}
