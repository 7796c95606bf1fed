//! Enrolment of a node in a fleet: the owner of the node copies one join line to it, and one exchange over TLS follows.
//!
//! The line contains the fingerprint of the authority's certificate, so no other server can pose as the authority. The
//! secret in the line shows that the operator allowed the node to join.
//!
//! Invariant: the node's private key is made on the node and never leaves it. Nothing is issued before the secret, the
//! name and the possession of the key are checked.

mod client;
mod deadline;
mod retries;
mod server;
mod slots;

pub use client::{FleetMembership, NodeKey, enrol_node, renew_membership};
pub use retries::enrol_with_retries;
pub use server::{EnrolServer, JoinCallback, build_join_line};

use crate::authority::{self, JoinSecret, NodeAdmission};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use rustls::ConnectionCommon;
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::io::{Read, Write};
use std::str::FromStr;
use std::time::Duration;

/// Prefix of a join line; its number is the version of the format.
const JOIN_LINE_PREFIX: &str = "prig1:";
/// Time limit for each connection attempt, and for one step of the exchange.
const ENROL_STEP_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit of the authority's answer, which comes only after the message server knows the node.
const ENROL_ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Largest question or answer, in bytes.
const MAX_ENROL_MESSAGE_BYTES: u32 = 64 * 1024;

/// Reasons why a node was not enrolled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is not a join line.
    #[error(
        "this is not a join line ({JOIN_LINE_PREFIX}…): copy the whole line that `packetrig fleet up` or `fleet invite` printed"
    )]
    Line,
    /// The text is not a valid node name.
    #[error("`{0}` is not a valid node name: use {rule}", rule = packetrig_fleet::message::NodeName::NAME_RULE)]
    Name(String),
    /// The server did not show a certificate of the authority that the join line names.
    #[error("the server at {0} could not prove that it belongs to the fleet of this join line")]
    Stranger(String),
    /// The server has a certificate of the authority, but not for this time or address.
    #[error("the certificate of the fleet's server at {address} cannot be used: {reason}")]
    Certificate { address: String, reason: &'static str },
    /// The authority refused the node, for the reason in the text.
    #[error("the fleet refused this node: {0}")]
    Refused(String),
    /// The authority does not know the node any more, because the operator removed it.
    #[error(
        "the operator has removed this node from the fleet ({0}); to join again, give --join a new join line from `packetrig fleet invite`"
    )]
    Removed(String),
    /// The authority cannot admit nodes now.
    #[error("the fleet cannot admit this node now: {0}")]
    Later(String),
    #[error("{what}: {source}")]
    Network { what: String, source: std::io::Error },
    /// A failure on this machine: a damaged file, a failure of the system, or a bug.
    #[error("{0}")]
    Here(String),
    /// The authority's directory could not be read or changed.
    #[error(transparent)]
    Authority(#[from] authority::Error),
}

impl Error {
    /// True if the same request may succeed a moment later.
    pub const fn is_temporary(&self) -> bool {
        matches!(self, Self::Network { .. } | Self::Later(_))
    }
}

pub(crate) fn network_error(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Error {
    let what = what.into();
    move |source| Error::Network { what, source }
}

/// The line that a node's owner copies. It has the addresses, the fingerprint of the authority, and the secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinLine {
    /// Addresses of the message servers, `host:port`, separated by commas.
    pub address: String,
    /// Address of the enrolment server.
    pub enrol: String,
    /// SHA-256 of the authority's certificate, hexadecimal.
    pub authority: String,
    pub secret: JoinSecret,
}

#[derive(Serialize, Deserialize)]
struct JoinLineFields {
    a: String,
    e: String,
    f: String,
    s: String,
}

impl std::fmt::Display for JoinLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let written = JoinLineFields {
            a: self.address.clone(),
            e: self.enrol.clone(),
            f: self.authority.clone(),
            s: self.secret.0.clone(),
        };
        let json = serde_json::to_string(&written).map_err(|_| std::fmt::Error)?;
        write!(f, "{JOIN_LINE_PREFIX}{}", BASE64.encode(json))
    }
}

impl FromStr for JoinLine {
    type Err = Error;

    fn from_str(line: &str) -> Result<Self, Error> {
        let code = line.trim().strip_prefix(JOIN_LINE_PREFIX).ok_or(Error::Line)?;
        let json = BASE64.decode(code).map_err(|_| Error::Line)?;
        let JoinLineFields { a, e, f, s } = serde_json::from_slice(&json).map_err(|_| Error::Line)?;
        Ok(Self { address: a, enrol: e, authority: f, secret: JoinSecret(s) })
    }
}

/// Returns the fingerprint of a certificate: its SHA-256, hexadecimal.
pub(crate) fn certificate_fingerprint(certificate: &CertificateDer<'_>) -> String {
    authority::encode_hex(&Sha256::digest(certificate.as_ref()))
}

/// Request of a node for a certificate.
#[derive(Debug, Serialize, Deserialize)]
struct EnrolQuestion {
    name: String,
    secret: String,
    /// A point of P-256, hexadecimal.
    public_key: String,
    /// The key with which the node will log in to the message server, see [`authority::NodeKeys::user`].
    #[serde(default)]
    user_key: String,
    /// Signature over [`EnrolQuestion::signed_payload`]. It proves that the node has the private key.
    proof: String,
    /// True if the node is in the fleet and wants a new certificate; then there is no secret.
    #[serde(default)]
    is_renewal: bool,
}

impl EnrolQuestion {
    /// Returns the bytes that the proof signs. They include the secret of the connection, so the proof is valid only
    /// for this question in this connection.
    fn signed_payload(&self, connection: &ConnectionSecret) -> Vec<u8> {
        let purpose = if self.is_renewal { "renewal" } else { "enrolment" };
        let Self { name, secret, user_key, .. } = self;
        let connection = authority::encode_hex(connection);
        format!("packetrig {purpose} 2\0{name}\0{secret}\0{user_key}\0{connection}").into_bytes()
    }
}

/// A value that only the two ends of one TLS connection know (RFC 8446, section 7.5).
type ConnectionSecret = [u8; 32];

fn export_connection_secret<D>(connection: &ConnectionCommon<D>) -> Result<ConnectionSecret, rustls::Error> {
    connection.export_keying_material([0; 32], b"EXPORTER-packetrig-enrolment", None)
}

/// Answer of the authority to an [`EnrolQuestion`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum EnrolAnswer {
    Admitted(NodeAdmission),
    Refused(String),
    Later(String),
}

fn write_message(to: &mut impl Write, what: &impl Serialize) -> std::io::Result<()> {
    let bytes = serde_json::to_vec(what)?;
    let length = u32::try_from(bytes.len()).map_err(std::io::Error::other)?;
    to.write_all(&length.to_be_bytes())?;
    to.write_all(&bytes)?;
    to.flush()
}

fn read_message<T: for<'a> Deserialize<'a>>(from: &mut impl Read) -> std::io::Result<T> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length);
    // The length is checked before memory is allocated, because the sender is not authenticated yet.
    if length > MAX_ENROL_MESSAGE_BYTES {
        return Err(std::io::Error::from(std::io::ErrorKind::InvalidData));
    }
    // The buffer grows with the received bytes, not with the announced length.
    let mut bytes = Vec::new();
    from.take(u64::from(length)).read_to_end(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_the_same_when_read_back() {
        let line = JoinLine {
            address: "10.0.0.1:4222".into(),
            enrol: "10.0.0.1:4223".into(),
            authority: "ab".repeat(32),
            secret: JoinSecret("00".repeat(16)),
        };
        let text = line.to_string();
        assert!(text.starts_with("prig1:") && !text.contains(char::is_whitespace));
        assert_eq!(text.parse::<JoinLine>().expect("it is one"), line);
        for bad in ["", "prig1:", "prig2:e30", &text[..text.len() - 9], "prig1:e30"] {
            assert!(matches!(bad.parse::<JoinLine>(), Err(Error::Line)), "{bad}");
        }
    }
}
