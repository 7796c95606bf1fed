//! The fleet's own authority: one directory with its keys, the nodes it has let in, and the secrets by which others may
//! come in.
//!
//! Certificates name a node in their subject and nowhere else, because the server looks at other names first. Invariant:
//! files with a secret are readable by their owner only; a node's private key never comes here.

mod files;
mod secrets;

pub use secrets::{Allowance, Secret};

use crate::broker::Security;
use crate::connection::Credentials;
use crate::seal::{Keys, MAC_KEY};
use crate::subject;
use files::Files;
use packetrig_fleet::message::NodeName;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm,
};
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Why the authority did not do it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// World: a file.
    #[error("{file}: {source}")]
    File {
        /// Which.
        file: String,
        /// Why.
        source: std::io::Error,
    },
    /// World: what a file says cannot be used.
    #[error("{0} is damaged")]
    Damaged(String),
    /// Bug: the library refused.
    #[error("no certificate could be made: {0}")]
    Certificate(String),
    /// User: not a name.
    #[error("`{0}` is no name for a node: 1 to 32 of a-z, 0-9 and -, and not `controller`")]
    Name(String),
    /// User: the name belongs to another key.
    #[error("there is already a node called {0}, with another key; choose another name or remove that node")]
    Taken(NodeName),
    /// User: a secret that is unknown, used up, too old or taken back.
    #[error("this secret is not valid, or not any more; ask for a new join line")]
    Secret,
}

/// What a node gets when it is let in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admission {
    /// Its certificate, PEM.
    pub certificate: String,
    /// The authority's, PEM.
    pub authority: String,
    /// The controller's public key (Ed25519), hexadecimal.
    pub controller: String,
    /// The key for grants, hexadecimal.
    pub grants: String,
}

/// See the module.
#[derive(Debug)]
pub struct Authority {
    files: Files,
    /// Changes of the directory, one at a time.
    turn: Mutex<()>,
}

/// A public key that came from elsewhere: a point of P-256.
struct Point(Vec<u8>);

impl PublicKeyData for Point {
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
    SystemRandom::new().fill(&mut bytes).map_err(|_| Error::Certificate("no random numbers".to_owned()))?;
    Ok(bytes)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    let pair = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    text.len().is_multiple_of(2).then(|| (0..text.len()).step_by(2).map(pair).collect()).flatten()
}

const AUTHORITY: &str = "authority";
const CONTROLLER: &str = "controller";
const SERVER: &str = "server";
const SIGNING: &str = "signing.key";

impl Authority {
    /// The authority in `directory`; it is made if it is not there.
    pub fn open(directory: &Path) -> Result<Self, Error> {
        let authority = Self { files: Files::open(directory)?, turn: Mutex::default() };
        if !authority.files.has(SIGNING) {
            authority.found()?;
        }
        Ok(authority)
    }

    /// The signing key is written last: with it the authority is complete.
    fn found(&self) -> Result<(), Error> {
        let key = KeyPair::generate().map_err(certificate)?;
        let own = authority_parameters().self_signed(&key).map_err(certificate)?;
        self.files.write(&format!("{AUTHORITY}.key"), &key.serialize_pem())?;
        self.files.write(&format!("{AUTHORITY}.pem"), &own.pem())?;
        self.issue_own(CONTROLLER, CertificateParams::default())?;
        let signing = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new());
        let signing = signing.map_err(|_| Error::Certificate("no signing key".to_owned()))?;
        self.files.write(SIGNING, &hex(signing.as_ref()))
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn issuer(&self) -> Result<Issuer<'static, KeyPair>, Error> {
        let key = self.files.read(&format!("{AUTHORITY}.key"))?;
        let damaged = |_| Error::Damaged(format!("{AUTHORITY}.key"));
        Ok(Issuer::new(authority_parameters(), KeyPair::from_pem(&key).map_err(damaged)?))
    }

    /// A certificate with a key of our own.
    fn issue_own(&self, name: &str, parameters: CertificateParams) -> Result<(), Error> {
        let key = KeyPair::generate().map_err(certificate)?;
        let parameters = named(name, parameters);
        let issued = parameters.signed_by(&key, &self.issuer()?).map_err(certificate)?;
        self.files.write(&format!("{name}.key"), &key.serialize_pem())?;
        self.files.write(&format!("{name}.pem"), &issued.pem())
    }

    /// Certificate of the authority, PEM.
    pub fn certificate(&self) -> Result<String, Error> {
        self.files.read(&format!("{AUTHORITY}.pem"))
    }

    /// The server's certificate for these addresses and names, made anew, for [`crate::broker::Setup`] and enrolment.
    pub fn server(&self, names: &[String]) -> Result<Security, Error> {
        let turn = self.turn();
        let mut parameters = CertificateParams::new(names).map_err(certificate)?;
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.issue_own(SERVER, parameters)?;
        drop(turn);
        let path = |file: String| self.files.path(&file);
        Ok(Security {
            certificate: path(format!("{SERVER}.pem")),
            key: path(format!("{SERVER}.key")),
            authority: path(format!("{AUTHORITY}.pem")),
        })
    }

    /// What the controller connects and seals with. Nodes that come later are found.
    pub fn controller(&self) -> Result<(Credentials, Keys), Error> {
        let credentials = Credentials {
            authority: self.certificate()?,
            certificate: self.files.read(&format!("{CONTROLLER}.pem"))?,
            key: self.files.read(&format!("{CONTROLLER}.key"))?,
        };
        let files = self.files.clone();
        let grants = move |node: &NodeName| Node::read(&files, node).ok()?.key();
        Ok((credentials, Keys::Controller { signing: self.signing()?, grants: std::sync::Arc::new(grants) }))
    }

    fn signing(&self) -> Result<Vec<u8>, Error> {
        unhex(self.files.read(SIGNING)?.trim()).ok_or_else(|| Error::Damaged(SIGNING.to_owned()))
    }

    /// Lets a node in by its public key (a point of P-256). The same key gets the same again; another one does not.
    pub fn admit(&self, name: &NodeName, public_key: &[u8]) -> Result<Admission, Error> {
        if !subject::is_name(&name.0) || *name == NodeName::controller() {
            return Err(Error::Name(name.0.clone()));
        }
        let turn = self.turn();
        let node = match Node::read(&self.files, name) {
            Ok(node) if node.public_key == hex(public_key) => node,
            Ok(_) => return Err(Error::Taken(name.clone())),
            Err(Error::File { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                let node = Node { public_key: hex(public_key), grants: hex(&random::<MAC_KEY>()?) };
                node.write(&self.files, name)?;
                node
            }
            Err(error) => return Err(error),
        };
        drop(turn);
        let mut parameters = CertificateParams::default();
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let issued = named(&name.0, parameters).signed_by(&Point(public_key.to_vec()), &self.issuer()?);
        let signing = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&self.signing()?);
        let signing = signing.map_err(|_| Error::Damaged(SIGNING.to_owned()))?;
        Ok(Admission {
            certificate: issued.map_err(certificate)?.pem(),
            authority: self.certificate()?,
            controller: hex(signing.public_key().as_ref()),
            grants: node.grants,
        })
    }

    /// Forgets a node. It is out when the broker has been told which are left.
    pub fn remove(&self, name: &NodeName) -> Result<(), Error> {
        let _turn = self.turn();
        self.files.remove(&Node::file(name))
    }

    /// The nodes that were let in, in order of their names.
    pub fn nodes(&self) -> Result<Vec<NodeName>, Error> {
        let names = self.files.names(".node")?;
        Ok(names.into_iter().filter(|name| subject::is_name(name)).map(NodeName).collect())
    }
}

/// What is kept of a node.
#[derive(Debug, Serialize, Deserialize)]
struct Node {
    public_key: String,
    grants: String,
}

impl Node {
    fn file(name: &NodeName) -> String {
        format!("{name}.node")
    }

    fn read(files: &Files, name: &NodeName) -> Result<Self, Error> {
        if !subject::is_name(&name.0) {
            return Err(Error::Name(name.0.clone()));
        }
        let text = files.read(&Self::file(name))?;
        serde_json::from_str(&text).map_err(|_| Error::Damaged(Self::file(name)))
    }

    fn write(&self, files: &Files, name: &NodeName) -> Result<(), Error> {
        let text = serde_json::to_string(self).map_err(|error| Error::Certificate(error.to_string()))?;
        files.write(&Self::file(name), &text)
    }

    fn key(&self) -> Option<[u8; MAC_KEY]> {
        unhex(&self.grants)?.try_into().ok()
    }
}

/// Always the same, so that the certificate itself need not be read back.
fn authority_parameters() -> CertificateParams {
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
