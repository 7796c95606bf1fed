//! What keeps a collector from beginning.

use std::net::SocketAddr;
use std::path::PathBuf;

/// Why nothing can be collected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// User or world: nobody can listen there.
    #[error("cannot listen at tcp://{address}")]
    Listen { address: SocketAddr, source: std::io::Error },
    /// User: encrypted connections without anything to show.
    #[error("tls://{0} needs a certificate and its private key")]
    NoIdentity(SocketAddr),
    /// User: certificates that are of no use.
    #[error("{what} in {} cannot be used: {reason}", path.display())]
    Tls {
        /// Certificate, key or authorities.
        what: &'static str,
        path: PathBuf,
        reason: String,
    },
    /// User or world: a file of messages cannot be read.
    #[error("cannot read {}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    /// World: see [`packetrig_sys::Error`].
    #[error(transparent)]
    Kernel(#[from] packetrig_sys::Error),
    /// World: no thread can be made.
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
    /// Bug: a thread panicked.
    #[error("{0} panicked")]
    Panicked(&'static str),
}
