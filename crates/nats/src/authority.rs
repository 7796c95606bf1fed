//! The fleet's certificate authority: a directory with its keys, the admitted nodes and the secrets of join lines.
//!
//! The certificate of a node names the node only in the subject and has no subject alternative names: a NATS server
//! that identifies users by their certificates would prefer the alternative names.
//!
//! Invariant: files with a secret can be read only by their owner. The private key of a node never leaves the node.

mod admission;
mod files;
mod renewal;
mod secrets;
mod server_accounts;

use admission::NodeRecord;
pub use admission::{EnrolledNode, NodeAdmission, NodeKeys};
pub use renewal::ServerCertificateRenewer;
pub use secrets::{JoinSecret, SecretAllowance};
pub(crate) use server_accounts::{ACCOUNT_REMOVAL_SUBJECT, ACCOUNT_REMOVAL_USER, SERVER_FACTS_SUBJECT};
pub use server_accounts::{AccountClaims, ServerAccounts};

use crate::broker::ServerSecurity;
use crate::connection::FleetCredentials;
use crate::seal::{MAC_KEY_BYTES, SealKeys};
use crate::{subject, user_key};
use files::AuthorityFiles;
use packetrig_fleet::labels::TooManyLabels;
use packetrig_fleet::message::NodeName;
use packetrig_sys::clock::wall_clock_ns;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm,
};
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::Ed25519KeyPair;
use std::fs;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// Reasons why the authority refused or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("{file}: {source}")]
    File { file: String, source: std::io::Error },
    /// The contents of a file cannot be used.
    #[error("the file {0} of the fleet's authority is damaged")]
    Damaged(String),
    /// A library could not make a key, a certificate, a claim or a random number.
    #[error("cannot make a key or certificate: {0}")]
    Certificate(String),
    /// The text is not a valid node name.
    #[error("`{0}` is not a valid node name: use {rule}", rule = NodeName::NAME_RULE)]
    Name(String),
    /// A node with another key has the name.
    #[error("the fleet already has a node {0} with another key; choose another name or remove that node")]
    Taken(NodeName),
    /// The fleet has no node with this name and key: it was never admitted, or it was removed.
    #[error("the fleet has no node {0} with this key; ask the operator of the fleet for a join line")]
    Unknown(NodeName),
    /// The node would have more labels than a node may have.
    #[error("the labels of {node} were not changed: {source}")]
    Labels { node: NodeName, source: TooManyLabels },
    /// The secret is unknown, used up, expired or revoked.
    #[error("this join line is unknown, used up or expired; ask the operator of the fleet for a new one")]
    Secret,
}

/// Identity of a node of the fleet: its name, and what was recorded when it was admitted.
///
/// The certificate contains the node's name and generation. So a removed node and the next node with the same
/// name cannot use each other's certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmittedNode {
    pub name: NodeName,
    /// Random text, drawn when the node was admitted; empty for a node that an earlier version admitted.
    pub generation: String,
    /// Public key with which the node logs in to the server; empty for a node that an earlier version admitted.
    pub user_key: String,
}

impl AdmittedNode {
    /// Common name of the certificate that is issued to this node.
    pub fn common_name(&self) -> String {
        if self.generation.is_empty() {
            self.name.0.clone()
        } else {
            format!("{}.{}", self.name, self.generation)
        }
    }
}

#[derive(Debug)]
pub struct FleetAuthority {
    files: AuthorityFiles,
    /// Serialises changes of the directory within this process.
    lock: Mutex<()>,
}

/// Validity of the certificates of nodes, server and controller, in days.
const CERTIFICATE_VALID_DAYS: u64 = 90;
/// Validity of the authority's certificate, in days.
const AUTHORITY_VALID_DAYS: u64 = 20 * 365;
/// Maximum time by which a node's clock may be behind, in seconds.
const MAX_CLOCK_LAG_S: u64 = 24 * 3600;
const DAY: u64 = 24 * 3600;
/// Two changes of the directory that are this far apart have different modification times on every file system.
const MODIFICATION_TIME_RESOLUTION: Duration = Duration::from_secs(2);

/// Serialises changes of the directory, in this process and in others.
struct DirectoryLock<'a> {
    _own: MutexGuard<'a, ()>,
    /// The file lock ends when the file is closed.
    _file: fs::File,
}

/// A public key that another machine sent: a point of P-256.
struct PeerPublicKey(Vec<u8>);

impl PublicKeyData for PeerPublicKey {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

fn certificate_error(error: rcgen::Error) -> Error {
    Error::Certificate(error.to_string())
}

fn random_bytes<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| Error::Certificate("the system returned no random numbers".to_owned()))?;
    Ok(bytes)
}

pub(crate) fn encode_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

pub(crate) fn decode_hex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) {
        return None;
    }
    // `get` instead of an index, because the text may have characters of several bytes.
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok()).collect()
}

const AUTHORITY_FILE_STEM: &str = "authority";
const CONTROLLER_FILE_STEM: &str = "controller";
const SERVER_FILE_STEM: &str = "server";
const SIGNING_KEY_FILE: &str = "signing.key";
/// File with the secret from which the keys of the server's accounts are derived.
const ACCOUNTS_KEY_FILE: &str = "accounts.key";
/// File with the time from which the controller's certificate is due for renewal, in seconds since 1970.
const CONTROLLER_RENEWAL_FILE: &str = "controller.due";

impl FleetAuthority {
    /// Opens the authority in `directory`, or creates it there.
    pub fn open_or_create(directory: &Path) -> Result<Self, Error> {
        let authority = Self { files: AuthorityFiles::open_directory(directory)?, lock: Mutex::default() };
        if !authority.files.has_file(SIGNING_KEY_FILE) || !authority.files.has_file(ACCOUNTS_KEY_FILE) {
            authority.create_missing_keys()?;
        }
        Ok(authority)
    }

    /// Creates the missing keys. If several processes find the directory incomplete, one of them creates the keys.
    fn create_missing_keys(&self) -> Result<(), Error> {
        // The keys are checked again under the lock: another process may have created them meanwhile.
        let _lock = self.lock_directory()?;
        if !self.files.has_file(SIGNING_KEY_FILE) {
            self.create_keys()?;
        }
        if !self.files.has_file(ACCOUNTS_KEY_FILE) {
            self.files.write_file(ACCOUNTS_KEY_FILE, &encode_hex(&random_bytes::<32>()?))?;
        }
        Ok(())
    }

    /// Creates the keys and the certificate of the authority.
    fn create_keys(&self) -> Result<(), Error> {
        let key = KeyPair::generate().map_err(certificate_error)?;
        let parameters = with_validity(unix_seconds(), AUTHORITY_VALID_DAYS, authority_parameters());
        let own = parameters.self_signed(&key).map_err(certificate_error)?;
        self.files.write_file(&format!("{AUTHORITY_FILE_STEM}.key"), &key.serialize_pem())?;
        self.files.write_file(&format!("{AUTHORITY_FILE_STEM}.pem"), &own.pem())?;
        let signing = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new());
        let signing =
            signing.map_err(|_| Error::Certificate("the signing key cannot be generated".to_owned()))?;
        // This file is written last: `open_or_create` treats it as the sign that the authority is complete.
        self.files.write_file(SIGNING_KEY_FILE, &encode_hex(signing.as_ref()))
    }

    fn lock_directory(&self) -> Result<DirectoryLock<'_>, Error> {
        let own = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(DirectoryLock { _own: own, _file: self.files.lock_directory()? })
    }

    fn load_issuer(&self) -> Result<Issuer<'static, KeyPair>, Error> {
        let key = self.files.read_file(&format!("{AUTHORITY_FILE_STEM}.key"))?;
        let key =
            KeyPair::from_pem(&key).map_err(|_| Error::Damaged(format!("{AUTHORITY_FILE_STEM}.key")))?;
        Ok(Issuer::new(authority_parameters(), key))
    }

    /// Issues a certificate for `key`, a key of this machine, and stores both as files. `now` is in seconds since 1970.
    fn issue_and_store_certificate(
        &self,
        name: &str,
        key: &KeyPair,
        parameters: CertificateParams,
        now: u64,
    ) -> Result<(), Error> {
        let parameters = with_validity(now, CERTIFICATE_VALID_DAYS, with_common_name(name, parameters));
        let issued = parameters.signed_by(key, &self.load_issuer()?).map_err(certificate_error)?;
        // A crash between these two writes is repaired at the next call: the controller's due time is written after
        // both, and the server's certificate is issued at every start.
        self.files.write_file(&format!("{name}.key"), &key.serialize_pem())?;
        self.files.write_file(&format!("{name}.pem"), &issued.pem())
    }

    /// Reads the certificate of the authority, in PEM.
    pub fn read_certificate_pem(&self) -> Result<String, Error> {
        self.files.read_file(&format!("{AUTHORITY_FILE_STEM}.pem"))
    }

    /// Issues a new certificate for these IP addresses and host names. The message server and the
    /// enrolment server use it.
    pub fn issue_server_certificate(&self, names: &[String]) -> Result<ServerSecurity, Error> {
        self.issue_server_certificate_at(names, unix_seconds())
    }

    /// Like [`Self::issue_server_certificate`], at `now` in seconds since 1970.
    pub fn issue_server_certificate_at(&self, names: &[String], now: u64) -> Result<ServerSecurity, Error> {
        let lock = self.lock_directory()?;
        let mut parameters = CertificateParams::new(names).map_err(certificate_error)?;
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.issue_and_store_certificate(
            SERVER_FILE_STEM,
            &KeyPair::generate().map_err(certificate_error)?,
            parameters,
            now,
        )?;
        drop(lock);
        Ok(ServerSecurity {
            certificate: self.files.path(&format!("{SERVER_FILE_STEM}.pem")),
            key: self.files.path(&format!("{SERVER_FILE_STEM}.key")),
            authority: self.files.path(&format!("{AUTHORITY_FILE_STEM}.pem")),
            accounts: self.read_server_accounts()?,
        })
    }

    /// Reads the stored secret, from which the accounts of the message server are derived.
    fn read_server_accounts(&self) -> Result<ServerAccounts, Error> {
        let secret = decode_hex(self.files.read_file(ACCOUNTS_KEY_FILE)?.trim());
        Ok(ServerAccounts::new(&secret.ok_or_else(|| Error::Damaged(ACCOUNTS_KEY_FILE.to_owned()))?))
    }

    /// Returns the credentials of the server's system user. With them packetrig removes accounts of nodes, and asks the
    /// server when it last read its configuration. Renews the controller's certificate if it is due.
    pub fn load_system_user_credentials(&self) -> Result<FleetCredentials, Error> {
        let credentials = self.load_controller_credentials()?.0;
        let user_key = derive_public_user_key(&credentials.key)?;
        let user = self.read_server_accounts()?.sign_system_user_claims(&user_key)?;
        Ok(FleetCredentials { user: Some(user), ..credentials })
    }

    /// Returns the credentials and the sealing keys of the controller. Renews its certificate if it is due. The keys
    /// of nodes are looked up at each use, so nodes that join later are found.
    pub fn load_controller_credentials(&self) -> Result<(FleetCredentials, SealKeys), Error> {
        self.load_controller_credentials_at(unix_seconds())
    }

    /// Like [`Self::load_controller_credentials`], at `now` in seconds since 1970. A certificate is renewed after two
    /// thirds of its lifetime.
    pub fn load_controller_credentials_at(&self, now: u64) -> Result<(FleetCredentials, SealKeys), Error> {
        let lock = self.lock_directory()?;
        self.renew_controller_certificate_if_due(now)?;
        let key = self.files.read_file(&format!("{CONTROLLER_FILE_STEM}.key"))?;
        let credentials = FleetCredentials {
            renewed: std::sync::Arc::default(),
            authority: self.read_certificate_pem()?,
            certificate: self.files.read_file(&format!("{CONTROLLER_FILE_STEM}.pem"))?,
            user: Some(
                self.read_server_accounts()?.sign_controller_user_claims(&derive_public_user_key(&key)?)?,
            ),
            key,
        };
        drop(lock);
        let files = self.files.clone();
        let grants = std::sync::Arc::new(move |node: &NodeName| read_grant_key(&files, node));
        Ok((credentials, SealKeys::Controller { signing: self.read_signing_key()?, grants }))
    }

    fn read_signing_key(&self) -> Result<Vec<u8>, Error> {
        decode_hex(self.files.read_file(SIGNING_KEY_FILE)?.trim())
            .ok_or_else(|| Error::Damaged(SIGNING_KEY_FILE.to_owned()))
    }

    /// Renews the controller's certificate if it is due. The caller holds the lock.
    fn renew_controller_certificate_if_due(&self, now: u64) -> Result<(), Error> {
        // A time that cannot be read makes the certificate due, which costs only a renewal.
        let due = self
            .files
            .read_file(CONTROLLER_RENEWAL_FILE)
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(0);
        if now < due {
            return Ok(());
        }
        // The key stays the same at a renewal, because the key of the controller's user is derived from it.
        let kept = self.files.read_file(&format!("{CONTROLLER_FILE_STEM}.key")).ok();
        let key = match kept.and_then(|pem| KeyPair::from_pem(&pem).ok()) {
            Some(key) => key,
            None => KeyPair::generate().map_err(certificate_error)?,
        };
        self.issue_and_store_certificate(CONTROLLER_FILE_STEM, &key, CertificateParams::default(), now)?;
        self.files.write_file(CONTROLLER_RENEWAL_FILE, &renewal_due_time(now).to_string())
    }

    /// Lists the names of the admitted nodes, sorted.
    pub fn list_node_names(&self) -> Result<Vec<NodeName>, Error> {
        let names = self.files.list_names_with_ending(".node")?;
        Ok(names.into_iter().filter(|name| subject::is_node_name(name)).map(NodeName).collect())
    }

    /// Lists the admitted nodes with their generations, for the message server.
    pub fn list_admitted_nodes(&self) -> Result<Vec<AdmittedNode>, Error> {
        let admitted_nodes =
            self.list_node_names()?.into_iter().filter_map(|name| self.read_admitted_node(&name).transpose());
        admitted_nodes.collect()
    }

    /// Returns the modification time of the directory; `None` if it cannot be read, lies in the future, or is so recent
    /// that another change could have the same time.
    pub fn read_unambiguous_change_time(&self) -> Option<SystemTime> {
        let changed = self.files.read_modification_time()?;
        // A modification time in the future means that the clock was set back since then, so it proves nothing.
        changed.elapsed().ok().filter(|age| *age > MODIFICATION_TIME_RESOLUTION).and(Some(changed))
    }

    /// Reads the record of an admitted node; `None` if the node is not in the fleet.
    pub fn read_admitted_node(&self, name: &NodeName) -> Result<Option<AdmittedNode>, Error> {
        match NodeRecord::read_record(&self.files, name) {
            Ok(node) => Ok(Some(node.to_admitted_node(name))),
            Err(Error::File { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn derive_public_user_key(private_key: &str) -> Result<String, Error> {
    let key = user_key::derive_user_key(private_key)
        .map_err(|_| Error::Damaged(format!("{CONTROLLER_FILE_STEM}.key")))?;
    Ok(key.public_key())
}

/// Reads the key for lease grants of a node; `None` if the node is not in the fleet. The file is read at each call, so
/// that nodes can join while the controller runs.
fn read_grant_key(files: &AuthorityFiles, node: &NodeName) -> Result<Option<[u8; MAC_KEY_BYTES]>, String> {
    match NodeRecord::read_record(files, node) {
        Ok(found) => {
            let file = NodeRecord::file_name(node);
            let damaged = || format!("the file {file} of the fleet's authority is damaged");
            found.grant_key().map(Some).ok_or_else(damaged)
        }
        // The authority admits no node with an invalid name.
        Err(Error::Name(_)) => Ok(None),
        Err(Error::File { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// The time in seconds since 1970 (UTC).
fn unix_seconds() -> u64 {
    wall_clock_ns() / 1_000_000_000
}

/// Time at which a certificate that was issued at `issued` must be renewed, in seconds since 1970: after two
/// thirds of its lifetime.
pub(crate) const fn renewal_due_time(issued: u64) -> u64 {
    issued + CERTIFICATE_VALID_DAYS * DAY / 3 * 2
}

/// Makes the certificate valid until `days` after `now`, and from `MAX_CLOCK_LAG_S` before `now`.
fn with_validity(now: u64, days: u64, mut parameters: CertificateParams) -> CertificateParams {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    // A node whose clock is behind by less than `MAX_CLOCK_LAG_S` must not see a certificate from the future.
    parameters.not_before = epoch + Duration::from_secs(now.saturating_sub(MAX_CLOCK_LAG_S));
    parameters.not_after = epoch + Duration::from_secs(now + days * DAY);
    parameters
}

fn authority_parameters() -> CertificateParams {
    // These parameters are constant, so an issuer needs only the key and not the certificate itself.
    let mut parameters = with_common_name("packetrig fleet", CertificateParams::default());
    // The path length is 0 (RFC 5280, 4.2.1.9): a certificate that the authority issues cannot sign further ones.
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    parameters
}

/// Sets the subject to this common name and nothing else.
fn with_common_name(name: &str, mut parameters: CertificateParams) -> CertificateParams {
    // rcgen sets a default common name, which is replaced here.
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    parameters.distinguished_name.push(DnType::CommonName, name);
    parameters
}

#[cfg(test)]
mod tests;
