//! Errors of client calls. Each message names the reason and, if there is one, a remedy.

use super::ApiAddress;
use packetrig_units::Blame;
use std::io;

/// Why a call of the client failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Connecting failed: for example, no server listens on the address, or the host name is unknown.
    #[error(
        "cannot connect to a server at {address} ({source}); start one with `packetrig serve`, or give the \
         address that the running server has printed"
    )]
    NoServer { address: String, source: io::Error },
    /// The connection ended or went silent.
    #[error("the connection to the server at {address} was lost ({source})")]
    Lost { address: String, source: io::Error },
    #[error(
        "the server at {address} does not use TLS; if it was started with `--plain-http`, write \
         http://{authority}"
    )]
    NotTls { address: String, authority: String },
    #[error(
        "the answer from {address} is not a valid answer of a packetrig server; if the server uses HTTPS, write \
         https://{authority}"
    )]
    NotHttp { address: String, authority: String },
    #[error("the answer from {address} is longer than {limit_mib} MiB, the most that this program reads")]
    TooLong { address: String, limit_mib: usize },
    /// The certificate is not one of the trusted certificates.
    #[error(
        "the certificate of {address} cannot be verified ({reason}); give the certificate of its authority, \
         or the server's own certificate, with --ca FILE, or connect anyway with --insecure"
    )]
    Untrusted { address: String, reason: String },
    /// The options do not permit the call. For example, the server is on another machine or gets a token, so its
    /// certificate must be verified, but no option says how.
    #[error("{0}")]
    Options(String),
    /// The file with the trusted certificates cannot be read.
    #[error("cannot read the certificate file {path}: {source}")]
    File { path: String, source: io::Error },
    /// The server answers 401 or 403.
    #[error(
        "the server at {address} refused the call: {message}; callers on other machines, and local users \
         that the server does not admit, need --token-file"
    )]
    Forbidden { address: String, message: String },
    /// The server answers with any other status that is not 200.
    #[error("{message}")]
    Refused { status: u16, message: String },
}

impl ClientError {
    pub(super) fn not_http_error(address: &ApiAddress) -> Self {
        Self::NotHttp { address: address.to_string(), authority: address.authority() }
    }

    /// The connection ended before the answer was complete, for example because the server is stopping.
    pub(super) fn incomplete_answer_error(address: &ApiAddress) -> Self {
        let why = "the server closed the connection before the answer was complete";
        // A server with TLS may close a plain connection without an answer.
        let hint = format!("{why}; if the server uses HTTPS, write https://{}", address.authority());
        let why = if address.has_tls { why.to_owned() } else { hint };
        let source = io::Error::new(io::ErrorKind::UnexpectedEof, why);
        Self::Lost { address: address.to_string(), source }
    }

    /// Says what caused the error: wrong options, missing rights, or the network and the server.
    pub fn blame(&self) -> Blame {
        match self {
            Self::NoServer { .. } | Self::Lost { .. } | Self::Untrusted { .. } => Blame::World,
            Self::NotTls { .. }
            | Self::NotHttp { .. }
            | Self::TooLong { .. }
            | Self::Options(_)
            | Self::Refused { .. } => Blame::Usage,
            Self::File { source, .. } => Blame::from_named_file(source),
            Self::Forbidden { .. } => Blame::Rights,
        }
    }

    /// Returns whether the same call can succeed later without a change by the user.
    pub fn can_succeed_later(&self) -> bool {
        match self {
            Self::NoServer { .. } | Self::Lost { .. } => true,
            // For example, the server has too many viewers, or a proxy does not reach the server.
            Self::Refused { status, .. } => *status >= 500,
            _ => false,
        }
    }
}
