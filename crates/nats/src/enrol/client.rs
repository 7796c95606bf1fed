//! The node's side of enrolment: checks the authority of the line, proves that it has its key, and stores the answer.

use super::{
    ConnectionSecret, ENROL_ANSWER_TIMEOUT, ENROL_STEP_TIMEOUT, EnrolAnswer, EnrolQuestion, Error, JoinLine,
    certificate_fingerprint, export_connection_secret, network_error, read_message, write_message,
};
use crate::authority::{JoinSecret, NodeAdmission, decode_hex, encode_hex};
use crate::connection::{FleetCredentials, RenewedCredentials, ServerAccess, parse_certificates};
use crate::seal::SealKeys;
use crate::{subject, user_key};
use packetrig_fleet::message::NodeName;
use rcgen::{KeyPair, PublicKeyData, SigningKey};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme,
    StreamOwned,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

/// Membership of a node in a fleet. The node stores it in a file that only the file's owner can read.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetMembership {
    /// Name of the node.
    pub name: NodeName,
    /// Addresses of the message servers, `host:port`, separated by commas.
    pub address: String,
    /// Fingerprint of the authority's certificate.
    pub fleet: String,
    certificate: String,
    key: String,
    authority: String,
    controller: String,
    grants: String,
    /// Address at which certificates are renewed.
    #[serde(default)]
    enrol: String,
    /// Expiry of the certificate, in seconds since 1970; 0 if it is not known.
    #[serde(default)]
    expires: u64,
    /// Hash of the join line that was used.
    #[serde(default)]
    joined_by: String,
    /// Claims (JWT) for the server; empty in a membership of packetrig 0.1, whose server used only certificates.
    #[serde(default)]
    user: String,
    /// True if the claims are bound to the key; claims of earlier versions were not.
    #[serde(default)]
    has_bound_claims: bool,
}

/// A certificate with less remaining time than this, in seconds, is renewed.
const RENEWAL_LEAD_S: u64 = 60 * 24 * 3600;

impl std::fmt::Debug for FleetMembership {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FleetMembership")
            .field("name", &self.name)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// Writes a file that only its owner can read. The file is on the disk when this function returns.
fn write_private_file(file: &Path, text: &str) -> Result<(), Error> {
    packetrig_sys::private_files::replace_file(file, text).map_err(network_error(file.display().to_string()))
}

impl FleetMembership {
    pub fn load_from(file: &Path) -> Result<Self, Error> {
        let text = fs::read_to_string(file).map_err(network_error(file.display().to_string()))?;
        serde_json::from_str(&text)
            .map_err(|_| Error::Here(format!("the membership file {} is damaged", file.display())))
    }

    /// Stores the membership, readable by its owner only.
    pub fn save_to(&self, file: &Path) -> Result<(), Error> {
        let text = serde_json::to_string(self).map_err(|error| Error::Here(error.to_string()))?;
        write_private_file(file, &text)
    }

    /// True if this membership was obtained with `line`. The line may have expired since.
    pub fn was_issued_by(&self, line: &JoinLine) -> bool {
        self.joined_by == join_line_hash(line)
    }

    /// Expiry of the certificate, in seconds since 1970, if it is known.
    pub const fn expires(&self) -> Option<u64> {
        if self.expires > 0 { Some(self.expires) } else { None }
    }

    /// True if certificate and claims should be renewed at `now` (seconds since 1970). False if the expiry is unknown.
    pub const fn is_renewal_due(&self, now: u64) -> bool {
        self.expires > 0 && (now.saturating_add(RENEWAL_LEAD_S) >= self.expires || !self.has_bound_claims)
    }

    /// Returns the certificate and claims for new connections after a renewal.
    pub fn renewed_credentials(&self) -> RenewedCredentials {
        let user = (!self.user.is_empty()).then(|| self.user.clone());
        RenewedCredentials { certificate: self.certificate.clone(), user }
    }

    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Returns the parameters for access to the fabric with this membership.
    pub fn server_access(&self) -> Result<ServerAccess, Error> {
        let grants = decode_hex(&self.grants)
            .and_then(|key| key.try_into().ok())
            .ok_or_else(damaged_membership_error)?;
        let controller = decode_hex(&self.controller).ok_or_else(damaged_membership_error)?;
        let credentials = FleetCredentials {
            authority: self.authority.clone(),
            certificate: self.certificate.clone(),
            key: self.key.clone(),
            user: (!self.user.is_empty()).then(|| self.user.clone()),
            renewed: Arc::default(),
        };
        let mut access = ServerAccess::for_server(String::new(), Some(credentials));
        access.servers = self.address.split(',').map(str::to_owned).collect();
        access.keys = Some(SealKeys::Node { controller, grants });
        Ok(access)
    }
}

fn damaged_key_error(file: &Path) -> Error {
    Error::Here(format!(
        "the key file {} is damaged; remove it to join with a new key (if the fleet has admitted the old key, the node needs a new name)",
        file.display()
    ))
}

fn damaged_membership_error() -> Error {
    Error::Here("the membership file of this node is damaged; join the fleet again".to_owned())
}

/// The private key of a node. [`Self::load_or_create`] stores it before the node asks the authority: if the answer is
/// lost, the node asks again with the same key, and this counts as one use of the secret.
pub struct NodeKey(KeyPair);

impl std::fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NodeKey(..)")
    }
}

impl NodeKey {
    pub fn generate() -> Result<Self, Error> {
        KeyPair::generate().map(Self).map_err(|error| Error::Here(error.to_string()))
    }

    /// Returns the key that `membership` contains.
    pub fn from_membership(membership: &FleetMembership) -> Result<Self, Error> {
        KeyPair::from_pem(&membership.key).map(Self).map_err(|error| Error::Here(error.to_string()))
    }

    /// Loads the key from `file`. If the file does not exist, a new key is created and stored there first. A
    /// file that cannot be read is not replaced: the authority may have admitted its key already, and the name
    /// stays with that key.
    pub fn load_or_create(file: &Path) -> Result<Self, Error> {
        match fs::read_to_string(file) {
            Ok(pem) => KeyPair::from_pem(&pem).map(Self).map_err(|_| damaged_key_error(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let key = Self::generate()?;
                write_private_file(file, &key.0.serialize_pem())?;
                Ok(key)
            }
            Err(error) => Err(network_error(format!("cannot read the key file {}", file.display()))(error)),
        }
    }
}

/// Joins the fleet of `line` as `name`. With an earlier membership under this name, the node keeps its key, so it
/// may keep the name.
pub fn enrol_node(
    line: &JoinLine,
    name: &NodeName,
    earlier: Option<&FleetMembership>,
) -> Result<FleetMembership, Error> {
    // Another name means another node, which gets its own key.
    let earlier = earlier.filter(|it| it.name == *name);
    let key = earlier.map_or_else(NodeKey::generate, NodeKey::from_membership)?;
    enrol_node_with_key(line, name, &key)
}

/// Joins the fleet of `line` as `name` with this key.
pub(super) fn enrol_node_with_key(
    line: &JoinLine,
    name: &NodeName,
    key: &NodeKey,
) -> Result<FleetMembership, Error> {
    if !subject::is_node_name(&name.0) || name.is_controller() {
        return Err(Error::Name(name.0.clone()));
    }
    let admission = request_admission(line, &CertificateRequester { name, key: &key.0, is_renewal: false })?;
    // The handshake has proven the fingerprint of the authority. The node must store only the certificate with that
    // fingerprint, not another one from the answer.
    let first = parse_certificates(&admission.authority).into_iter().next();
    if first.as_ref().map(certificate_fingerprint).as_deref() != Some(&line.authority) {
        return Err(Error::Stranger(line.enrol.clone()));
    }
    Ok(FleetMembership {
        name: name.clone(),
        address: line.address.clone(),
        fleet: line.authority.clone(),
        certificate: admission.certificate,
        key: key.0.serialize_pem(),
        authority: admission.authority,
        controller: admission.controller,
        grants: admission.grants,
        enrol: line.enrol.clone(),
        expires: admission.expires,
        joined_by: join_line_hash(line),
        user: admission.user,
        has_bound_claims: true,
    })
}

/// Renews the certificate of a membership for the same key, with the authority that issued it.
pub fn renew_membership(membership: &FleetMembership) -> Result<FleetMembership, Error> {
    let key = KeyPair::from_pem(&membership.key).map_err(|error| Error::Here(error.to_string()))?;
    let door = JoinLine {
        address: membership.address.clone(),
        enrol: membership.enrol.clone(),
        authority: membership.fleet.clone(),
        // A renewal has no secret: the authority knows the node's key already.
        secret: JoinSecret(String::new()),
    };
    let admission = request_admission(
        &door,
        &CertificateRequester { name: &membership.name, key: &key, is_renewal: true },
    )?;
    let NodeAdmission { certificate, expires, user, .. } = admission;
    Ok(FleetMembership { certificate, expires, user, has_bound_claims: true, ..membership.clone() })
}

/// A node that asks for a certificate.
struct CertificateRequester<'a> {
    name: &'a NodeName,
    key: &'a KeyPair,
    is_renewal: bool,
}

impl CertificateRequester<'_> {
    /// Builds the question with its proof for this connection.
    fn signed_question(
        &self,
        secret: &JoinSecret,
        connection: &ConnectionSecret,
    ) -> Result<EnrolQuestion, Error> {
        let user_key = user_key::derive_user_key(&self.key.serialize_pem()).map_err(Error::Here)?;
        let bare = EnrolQuestion {
            name: self.name.0.clone(),
            secret: secret.0.clone(),
            public_key: encode_hex(self.key.der_bytes()),
            user_key: user_key.public_key(),
            proof: String::new(),
            is_renewal: self.is_renewal,
        };
        let proof = self
            .key
            .sign(&bare.signed_payload(connection))
            .map_err(|error| Error::Here(error.to_string()))?;
        Ok(EnrolQuestion { proof: encode_hex(&proof), ..bare })
    }
}

fn join_line_hash(line: &JoinLine) -> String {
    encode_hex(&Sha256::digest(line.to_string()))
}

fn request_admission(line: &JoinLine, asker: &CertificateRequester<'_>) -> Result<NodeAdmission, Error> {
    match exchange_messages(line, asker)? {
        EnrolAnswer::Admitted(admission) => Ok(admission),
        EnrolAnswer::Refused(why) => Err(Error::Refused(why)),
        EnrolAnswer::Later(why) => Err(Error::Later(why)),
    }
}

fn exchange_messages(line: &JoinLine, asker: &CertificateRequester<'_>) -> Result<EnrolAnswer, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier =
        Arc::new(FingerprintVerifier { print: line.authority.clone(), provider: Arc::clone(&provider) });
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Here(error.to_string()))?
        // In spite of the name, the check is as strict as usual: `FingerprintVerifier` trusts one authority and leaves
        // all other checks to rustls.
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    // IPv6 addresses are written in brackets, server names are not.
    let host = line.enrol.rsplit_once(':').map_or(&*line.enrol, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let server = ServerName::try_from(host).map_err(|_| Error::Line)?;
    let connection =
        ClientConnection::new(Arc::new(config), server).map_err(|error| Error::Here(error.to_string()))?;
    let mut stream = StreamOwned::new(connection, connect_to(&line.enrol)?);
    let failed = |error| connection_failure(line, error);
    // The proof covers the connection, so the question is made after the handshake.
    stream.conn.complete_io(&mut stream.sock).map_err(failed)?;
    let secret = export_connection_secret(&stream.conn).map_err(|error| Error::Here(error.to_string()))?;
    let question = asker.signed_question(&line.secret, &secret)?;
    write_message(&mut stream, &question).and_then(|()| read_message(&mut stream)).map_err(failed)
}

fn connection_failure(line: &JoinLine, error: io::Error) -> Error {
    use CertificateError as E;
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let Some(rustls::Error::InvalidCertificate(cause)) = inner else {
        return network_error(line.enrol.clone())(error);
    };
    // `FingerprintVerifier` checks the authority first, so these causes concern a certificate of this fleet.
    let reason = match cause {
        E::Expired | E::ExpiredContext { .. } => "it has expired, or the clock of this machine is ahead",
        E::NotValidYet | E::NotValidYetContext { .. } => {
            "it is not valid yet, so the clock of this machine is behind, or that of the server is ahead"
        }
        E::NotValidForName | E::NotValidForNameContext { .. } => "it was issued for another address",
        _ => return Error::Stranger(line.enrol.clone()),
    };
    Error::Certificate { address: line.enrol.clone(), reason }
}

fn connect_to(address: &str) -> Result<TcpStream, Error> {
    let mut connected = Err(io::ErrorKind::AddrNotAvailable.into());
    // All addresses of a name are tried: the server may not listen at its IPv6 address, for example.
    for address in address.to_socket_addrs().map_err(network_error(address))? {
        connected = TcpStream::connect_timeout(&address, ENROL_STEP_TIMEOUT);
        if connected.is_ok() {
            break;
        }
    }
    let stream = connected.map_err(network_error(address))?;
    stream.set_read_timeout(Some(ENROL_ANSWER_TIMEOUT)).map_err(network_error(address))?;
    stream.set_write_timeout(Some(ENROL_STEP_TIMEOUT)).map_err(network_error(address))?;
    Ok(stream)
}

/// Trusts only the authority with this fingerprint; all other checks are the usual ones of rustls.
#[derive(Debug)]
struct FingerprintVerifier {
    print: String,
    provider: Arc<rustls::crypto::CryptoProvider>,
}

const UNKNOWN_ISSUER: rustls::Error = rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);

impl ServerCertVerifier for FingerprintVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        // The fingerprint is that of the authority, not of the server, because the server's certificate is
        // renewed from time to time.
        let authority = intermediates
            .iter()
            .find(|it| certificate_fingerprint(it) == self.print)
            .ok_or(UNKNOWN_ISSUER)?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&self.provider))
            .build()
            .map_err(|_| UNKNOWN_ISSUER)?
            // No intermediates are allowed: only the authority itself may have signed the certificate.
            .verify_server_cert(end_entity, &[], server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_certificate_names_its_cause() {
        let line = JoinLine {
            address: "10.0.0.1:4222".into(),
            enrol: "10.0.0.1:4223".into(),
            authority: "ab".repeat(32),
            secret: JoinSecret("00".repeat(16)),
        };
        let cause = |cause| {
            let inner = rustls::Error::InvalidCertificate(cause);
            connection_failure(&line, io::Error::new(io::ErrorKind::InvalidData, inner)).to_string()
        };
        assert!(cause(CertificateError::Expired).contains("10.0.0.1:4223 cannot be used: it has expired"));
        assert!(cause(CertificateError::NotValidYet).contains("not valid yet"));
        assert!(cause(CertificateError::NotValidForName).contains("another address"));
        assert!(cause(CertificateError::UnknownIssuer).contains("could not prove that it belongs"));
    }
}
