//! Errors that keep the server from starting.

use std::net::SocketAddr;
use std::path::PathBuf;

/// An error of the server itself. Errors of a request go to the client.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Listening failed: for example, the address is in use, or is not an address of this machine.
    #[error("cannot listen on {address} for {transport}: {source}")]
    Listen { transport: &'static str, address: SocketAddr, source: std::io::Error },
    /// A file cannot be read.
    #[error("cannot read {what} {}: {source}", path.display())]
    File {
        /// Expected content of the file.
        what: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    /// Certificate and key do not belong together, a client CA is not valid, or no certificate could be made.
    #[error("cannot set up TLS: {0}")]
    Tls(String),
    /// The server does not start with these options; the text says why.
    #[error("{0}")]
    Options(String),
    /// The threads of the async runtime did not start.
    #[error("cannot start the server's threads: {0}")]
    Runtime(std::io::Error),
}
