//! Why a message cannot be read.

use crate::sim::SimError;

/// What is wrong with a message. On a stream, nothing behind it can be read either.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MalformedMessage {
    /// Ends within its header.
    #[error("{found} bytes are no message: its header has {needed}")]
    Short {
        found: usize,
        /// Bytes of the header.
        needed: usize,
    },
    /// Of a protocol that is not spoken here.
    #[error("version {0} is not collected: it is none of 5 (NetFlow), 9 (NetFlow), 10 (IPFIX) and SIM")]
    Version(u16),
    /// Says another length than it has.
    #[error("says it has {said} bytes and has {found}")]
    Length { said: usize, found: usize },
    /// A set that ends behind the message or within its own header.
    #[error("set {id} says it has {said} bytes where {left} are left")]
    Set { id: u16, said: usize, left: usize },
    /// A template that cannot be.
    #[error("template {id} {why}")]
    Template {
        id: u16,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A datagram of SIM.
    #[error(transparent)]
    Sim(SimError),
    /// A value that ends behind its set.
    #[error("a record of template {id} ends behind its set")]
    Record {
        /// Number of its template.
        id: u16,
    },
}
