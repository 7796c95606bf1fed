//! Why the server did not start or could not go on.

use std::net::SocketAddr;
use std::path::PathBuf;

/// What went wrong with the server itself; what is wrong with a request goes to the client.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address is taken, or not ours.
    #[error("cannot listen on {address} for {transport}: {source}")]
    Listen { transport: &'static str, address: SocketAddr, source: std::io::Error },
    /// A file cannot be read.
    #[error("cannot read {what} {}: {reason}", path.display())]
    File {
        /// What it should hold.
        what: &'static str,
        path: PathBuf,
        reason: String,
    },
    /// Certificate and key do not make an identity, or none could be made.
    #[error("cannot set up TLS: {0}")]
    Tls(String),
    /// The options ask for what cannot be had together.
    #[error("{0}")]
    Options(String),
    /// The runtime did not start.
    #[error("cannot start threads: {0}")]
    Runtime(std::io::Error),
}
