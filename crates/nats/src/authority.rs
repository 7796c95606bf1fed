//! The fleet's own authority: one directory with its keys, the admitted nodes, and the secrets that let others join.
//!
//! Certificates name a node in their subject and nowhere else, because the server looks at other names first. Invariant:
//! files with a secret are readable by their owner only; a node's private key never comes here.

mod admission;
mod files;
mod renewal;
mod secrets;
mod server_accounts;

use admission::KeptNode;
pub use admission::{EnrolledNode, NodeAdmission, NodeKeys};
pub use renewal::ServerCertificateKeeper;
pub use secrets::{JoinSecret, SecretAllowance};
pub use server_accounts::{AccountClaims, ServerAccounts};
pub(crate) use server_accounts::{REMOVE_ACCOUNTS, SERVER_FACTS, SYSTEM_USER};

use crate::broker::ServerSecurity;
use crate::connection::FleetCredentials;
use crate::seal::{MAC_KEY, SealKeys};
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

/// Why the authority did not do it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("{file}: {source}")]
    File { file: String, source: std::io::Error },
    /// What a file says cannot be used.
    #[error("{0} is damaged")]
    Damaged(String),
    /// The library refused.
    #[error("cannot make a certificate: {0}")]
    Certificate(String),
    /// Not a name.
    #[error("`{0}` is not a valid node name: use {rule}", rule = NodeName::RULE)]
    Name(String),
    /// The name belongs to another key.
    #[error("there is already a node called {0}, with another key; choose another name or remove that node")]
    Taken(NodeName),
    /// A name that was never let in, or is not any more.
    #[error("there is no node called {0} with this key in the fleet; ask for a join line")]
    Unknown(NodeName),
    /// Labels that a node cannot have.
    #[error("the labels of {node} were not changed: {source}")]
    Labels { node: NodeName, source: TooManyLabels },
    /// A secret that is unknown, used up, too old or taken back.
    #[error("the secret of this join line is unknown, used up or expired; ask for a new join line")]
    Secret,
}

/// A node that was let in.
///
/// Its certificate names it and when it was let in, so that the certificate of a node that was removed is worth nothing to
/// the next one of that name, nor the other way round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmittedNode {
    pub name: NodeName,
    /// Drawn when it was let in.
    pub generation: String,
    /// With which it logs in to the server; empty for a node that an earlier version let in.
    pub user_key: String,
}

impl AdmittedNode {
    /// The subject of its certificate.
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
    /// Changes of the directory, one at a time.
    lock: Mutex<()>,
}

/// How long a certificate of a node, of the server or of the controller is good.
const VALID_DAYS: u64 = 90;
/// How long that of the authority is.
const AUTHORITY_DAYS: u64 = 20 * 365;
/// How far the clocks of nodes may be behind, in seconds.
const SLACK: u64 = 24 * 3600;
const DAY: u64 = 24 * 3600;
/// Changes of a directory that are this far apart have different times on every file system.
const SETTLED: Duration = Duration::from_secs(2);

/// One change of the directory at a time, in this process and in others.
struct DirectoryLock<'a> {
    _own: MutexGuard<'a, ()>,
    /// Unlocked when it is closed.
    _file: fs::File,
}

/// A public key that came from elsewhere: a point of P-256.
struct CurvePoint(Vec<u8>);

impl PublicKeyData for CurvePoint {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

fn certificate(error: rcgen::Error) -> Error {
    Error::Certificate(error.to_string())
}

fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| Error::Certificate("the system gave no random numbers".to_owned()))?;
    Ok(bytes)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok()).collect()
}

const AUTHORITY: &str = "authority";
const CONTROLLER: &str = "controller";
const SERVER: &str = "server";
const SIGNING: &str = "signing.key";
/// The secret of the server's accounts.
const ACCOUNTS: &str = "accounts.key";
/// When the controller's certificate is to be made anew, in seconds since 1970.
const CONTROLLER_DUE: &str = "controller.due";

impl FleetAuthority {
    /// The authority in `directory`; it is made if it is not there.
    pub fn open(directory: &Path) -> Result<Self, Error> {
        let authority = Self { files: AuthorityFiles::open(directory)?, lock: Mutex::default() };
        if !authority.files.has(SIGNING) || !authority.files.has(ACCOUNTS) {
            authority.create_missing()?;
        }
        Ok(authority)
    }

    /// Of processes that find it incomplete at once, one makes what is missing.
    fn create_missing(&self) -> Result<(), Error> {
        // Looked at again under the lock: another process may have made it meanwhile.
        let _lock = self.lock()?;
        if !self.files.has(SIGNING) {
            self.create_keys()?;
        }
        if !self.files.has(ACCOUNTS) {
            self.files.write(ACCOUNTS, &hex(&random::<32>()?))?;
        }
        Ok(())
    }

    /// The signing key is written last: with it the authority is complete.
    fn create_keys(&self) -> Result<(), Error> {
        let key = KeyPair::generate().map_err(certificate)?;
        let parameters = valid_from(now(), AUTHORITY_DAYS, authority_parameters());
        let own = parameters.self_signed(&key).map_err(certificate)?;
        self.files.write(&format!("{AUTHORITY}.key"), &key.serialize_pem())?;
        self.files.write(&format!("{AUTHORITY}.pem"), &own.pem())?;
        let signing = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new());
        let signing = signing.map_err(|_| Error::Certificate("no signing key".to_owned()))?;
        // Last: `open` takes this file as the sign that the authority is complete.
        self.files.write(SIGNING, &hex(signing.as_ref()))
    }

    fn lock(&self) -> Result<DirectoryLock<'_>, Error> {
        let own = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(DirectoryLock { _own: own, _file: self.files.lock()? })
    }

    fn issuer(&self) -> Result<Issuer<'static, KeyPair>, Error> {
        let key = self.files.read(&format!("{AUTHORITY}.key"))?;
        let key = KeyPair::from_pem(&key).map_err(|_| Error::Damaged(format!("{AUTHORITY}.key")))?;
        Ok(Issuer::new(authority_parameters(), key))
    }

    /// A certificate for a key of our own, at `now` (seconds since 1970).
    fn issue_own(
        &self,
        name: &str,
        key: &KeyPair,
        parameters: CertificateParams,
        now: u64,
    ) -> Result<(), Error> {
        let parameters = valid_from(now, VALID_DAYS, named(name, parameters));
        let issued = parameters.signed_by(key, &self.issuer()?).map_err(certificate)?;
        // A crash between these two is mended at the next call: the controller's due time is written after
        // both, and the server's certificate is made at every start.
        self.files.write(&format!("{name}.key"), &key.serialize_pem())?;
        self.files.write(&format!("{name}.pem"), &issued.pem())
    }

    /// Certificate of the authority, PEM.
    pub fn certificate(&self) -> Result<String, Error> {
        self.files.read(&format!("{AUTHORITY}.pem"))
    }

    /// The server's certificate for these addresses and names, made anew, for [`crate::broker::BrokerSetup`] and enrolment.
    pub fn server(&self, names: &[String]) -> Result<ServerSecurity, Error> {
        self.server_at(names, now())
    }

    /// The same at `now`, in seconds since 1970.
    pub fn server_at(&self, names: &[String], now: u64) -> Result<ServerSecurity, Error> {
        let lock = self.lock()?;
        let mut parameters = CertificateParams::new(names).map_err(certificate)?;
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.issue_own(SERVER, &KeyPair::generate().map_err(certificate)?, parameters, now)?;
        drop(lock);
        Ok(ServerSecurity {
            certificate: self.files.path(&format!("{SERVER}.pem")),
            key: self.files.path(&format!("{SERVER}.key")),
            authority: self.files.path(&format!("{AUTHORITY}.pem")),
            accounts: self.accounts()?,
        })
    }

    /// The accounts of the server.
    fn accounts(&self) -> Result<ServerAccounts, Error> {
        let secret = unhex(self.files.read(ACCOUNTS)?.trim());
        Ok(ServerAccounts::new(&secret.ok_or_else(|| Error::Damaged(ACCOUNTS.to_owned()))?))
    }

    /// What the server is asked with to remove the accounts of nodes, and whether it has read its configuration.
    pub fn server_asker(&self) -> Result<FleetCredentials, Error> {
        let credentials = self.controller()?.0;
        let user = self.accounts()?.system_user(&user_key_of(&credentials.key)?)?;
        Ok(FleetCredentials { user: Some(user), ..credentials })
    }

    /// What the controller connects and seals with. Nodes that come later are found.
    pub fn controller(&self) -> Result<(FleetCredentials, SealKeys), Error> {
        self.controller_at(now())
    }

    /// The same at `now`, in seconds since 1970: a certificate of which two thirds of its time are over is made anew, for the
    /// same key.
    pub fn controller_at(&self, now: u64) -> Result<(FleetCredentials, SealKeys), Error> {
        let lock = self.lock()?;
        self.keep_controller_valid(now)?;
        let key = self.files.read(&format!("{CONTROLLER}.key"))?;
        let credentials = FleetCredentials {
            renewed: std::sync::Arc::default(),
            authority: self.certificate()?,
            certificate: self.files.read(&format!("{CONTROLLER}.pem"))?,
            user: Some(self.accounts()?.controller_user(&user_key_of(&key)?)?),
            key,
        };
        drop(lock);
        let files = self.files.clone();
        let grants = std::sync::Arc::new(move |node: &NodeName| key_of(&files, node));
        Ok((credentials, SealKeys::Controller { signing: self.signing()?, grants }))
    }

    fn signing(&self) -> Result<Vec<u8>, Error> {
        unhex(self.files.read(SIGNING)?.trim()).ok_or_else(|| Error::Damaged(SIGNING.to_owned()))
    }

    /// The caller holds the lock.
    fn keep_controller_valid(&self, now: u64) -> Result<(), Error> {
        let due = self.files.read(CONTROLLER_DUE).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        if now < due {
            return Ok(());
        }
        let kept = self.files.read(&format!("{CONTROLLER}.key")).ok();
        let key = match kept.and_then(|pem| KeyPair::from_pem(&pem).ok()) {
            Some(key) => key,
            None => KeyPair::generate().map_err(certificate)?,
        };
        self.issue_own(CONTROLLER, &key, CertificateParams::default(), now)?;
        self.files.write(CONTROLLER_DUE, &renewal_due(now).to_string())
    }

    /// The nodes that were let in, in order of their names.
    pub fn nodes(&self) -> Result<Vec<NodeName>, Error> {
        let names = self.files.names(".node")?;
        Ok(names.into_iter().filter(|name| subject::is_name(name)).map(NodeName).collect())
    }

    /// The same with the generation of each, for the broker.
    pub fn admitted(&self) -> Result<Vec<AdmittedNode>, Error> {
        let admitted = self.nodes()?.into_iter().filter_map(|name| self.admitted_node(&name).transpose());
        admitted.collect()
    }

    /// When the directory was changed last, if that is long enough ago for a later change to have another time.
    pub fn settled_since(&self) -> Option<SystemTime> {
        let changed = self.files.changed()?;
        changed.elapsed().ok().filter(|age| *age > SETTLED).and(Some(changed))
    }

    /// One of them; `None` if it is not in the fleet.
    pub fn admitted_node(&self, name: &NodeName) -> Result<Option<AdmittedNode>, Error> {
        match KeptNode::read(&self.files, name) {
            Ok(node) => Ok(Some(node.admitted(name))),
            Err(Error::File { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn user_key_of(private_key: &str) -> Result<String, Error> {
    let key = user_key::derive(private_key).map_err(|_| Error::Damaged(format!("{CONTROLLER}.key")))?;
    Ok(key.public_key())
}

/// The key for grants to a node, read anew each time, so that nodes may join while the controller runs. `None` if the node
/// is not in the fleet.
fn key_of(files: &AuthorityFiles, node: &NodeName) -> Result<Option<[u8; MAC_KEY]>, String> {
    match KeptNode::read(files, node) {
        Ok(found) => found.key().map(Some).ok_or_else(|| format!("{} is damaged", KeptNode::file(node))),
        Err(Error::Name(_)) => Ok(None),
        Err(Error::File { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// The time in seconds since 1970 (UTC).
fn now() -> u64 {
    wall_clock_ns() / 1_000_000_000
}

/// When a certificate that was made at `issued` is to be made anew: after two thirds of its time. In seconds since 1970.
pub(crate) const fn renewal_due(issued: u64) -> u64 {
    issued + VALID_DAYS * DAY / 3 * 2
}

/// Valid for `days`, from a little before `now`.
fn valid_from(now: u64, days: u64, mut parameters: CertificateParams) -> CertificateParams {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    parameters.not_before = epoch + Duration::from_secs(now.saturating_sub(SLACK));
    parameters.not_after = epoch + Duration::from_secs(now + days * DAY);
    parameters
}

fn authority_parameters() -> CertificateParams {
    // Constant, so that an issuer needs only the key, not the certificate itself.
    let mut parameters = named("packetrig fleet", CertificateParams::default());
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    parameters
}

/// With that name in the subject and nothing else there.
fn named(name: &str, mut parameters: CertificateParams) -> CertificateParams {
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    parameters.distinguished_name.push(DnType::CommonName, name);
    parameters
}

#[cfg(test)]
mod tests;
