//! Errors while a program starts and enters its sandbox, and the party at fault.

use packetrig_units::Blame;
use std::io;
use std::net::SocketAddr;

/// Reason why a program could not start as its options ask.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Flags that contradict each other, or that are impossible on this machine. The parser of the command
    /// line cannot know this.
    #[error("{0}")]
    Usage(String),
    /// A file or directory could not be created or examined.
    #[error("cannot write {what}")]
    Write { what: String, source: io::Error },
    /// The address for metrics cannot be bound.
    #[error("cannot serve metrics on {address}")]
    Metrics { address: SocketAddr, source: io::Error },
    /// The kernel did not start another thread.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    /// See [`packetrig_sys::Error`].
    #[error(transparent)]
    Kernel(#[from] packetrig_sys::Error),
}

impl Error {
    pub fn blame(&self) -> Blame {
        match self {
            Self::Usage(_) => Blame::Usage,
            Self::Write { source, .. } | Self::Metrics { source, .. } => Blame::from_io(source),
            Self::Thread(_) => Blame::World,
            Self::Kernel(error) => error.blame(),
        }
    }
}

/// A result could not be written, or could not be converted to JSON.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {what}")]
pub struct UnwrittenResult {
    /// What could not be written, as a noun for the message.
    pub what: &'static str,
    pub source: io::Error,
}

impl UnwrittenResult {
    pub fn blame(&self) -> Blame {
        Blame::from_io(&self.source)
    }
}
