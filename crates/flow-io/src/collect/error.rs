//! Errors of a collector.

use std::net::SocketAddr;
use std::path::PathBuf;

/// Reasons why a collector cannot start, or why one of its threads ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A TCP or TLS listener cannot be bound to the address.
    #[error("cannot listen on TCP address {address}")]
    Listen { address: SocketAddr, source: std::io::Error },
    /// A TLS listener without a certificate.
    #[error(
        "cannot listen on tls://{0} without a certificate and its private key; give both with --cert and --key"
    )]
    NoIdentity(SocketAddr),
    /// A certificate or key file cannot be used.
    #[error("cannot use {what} in {}: {reason}", path.display())]
    Tls {
        /// The kind of file: certificate, key or authorities.
        what: &'static str,
        path: PathBuf,
        reason: String,
    },
    /// A file of messages cannot be read.
    #[error("cannot read the flow message file {}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    /// A system call failed, for example because a UDP address is in use.
    #[error(transparent)]
    Kernel(#[from] packetrig_sys::Error),
    /// A target of the relay cannot be used.
    #[error("cannot relay to {target}")]
    Relay { target: String, source: std::io::Error },
    /// The relay would send to this collector.
    #[error("cannot relay to {0}: this collector listens there, so datagrams would loop for ever")]
    RelayLoop(String),
    /// The system refused to start another thread.
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
    /// A thread panicked, which is a bug.
    #[error("{0} panicked; this is a bug in packetrig")]
    Panicked(&'static str),
}
