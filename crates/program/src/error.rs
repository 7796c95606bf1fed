//! Errors while a program starts and enters its sandbox, and the party at fault.

use packetrig_units::Blame;
use std::io;
use std::net::SocketAddr;

/// Error that kept a program from starting as its flags say.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Flags that contradict each other or this machine in ways the parser cannot know.
    #[error("{0}")]
    Usage(String),
    /// A file or directory could not be made.
    #[error("cannot write {what}")]
    Write { what: String, source: io::Error },
    /// The address for metrics cannot be bound.
    #[error("cannot serve metrics on {address}")]
    Metrics { address: SocketAddr, source: io::Error },
    /// The system has no room for another thread.
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

/// A result that could not be written, or not as JSON.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {what}")]
pub struct UnwrittenResult {
    /// The result, as a noun.
    pub what: &'static str,
    pub source: io::Error,
}

impl UnwrittenResult {
    pub fn blame(&self) -> Blame {
        Blame::from_io(&self.source)
    }
}
