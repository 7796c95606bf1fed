//! Admits nodes, renews their certificates, changes their labels and removes them.
//!
//! Invariant: each node that joins uses up one use of a secret, even if this process crashes while it admits the node.

use super::files::AuthorityFiles;
use super::{
    AdmittedNode, CERTIFICATE_VALID_DAYS, DAY, Error, FleetAuthority, PeerPublicKey, SIGNING_KEY_FILE,
    certificate_error, decode_hex, encode_hex, random_bytes, secrets, with_common_name, with_validity,
};
use crate::seal::MAC_KEY_BYTES;
use crate::{subject, user_key};
use packetrig_fleet::labels::{LabelChange, OperatorLabels};
use packetrig_fleet::message::NodeName;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, KeyPair, PublicKeyData};
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Answer to a node that was admitted, or that has renewed its certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeAdmission {
    pub certificate: String,
    pub authority: String,
    /// The controller's public key (Ed25519), hexadecimal; empty if only the certificate is renewed.
    pub controller: String,
    /// The key that authenticates lease grants, hexadecimal; empty if only the certificate is renewed.
    pub grants: String,
    /// Claims (JWT) that the node shows to the server in addition to its certificate.
    #[serde(default)]
    pub user: String,
    /// Expiry of the certificate, in seconds since 1970.
    #[serde(default)]
    pub expires: u64,
    /// The change that this admission made in the directory.
    #[serde(skip)]
    change: AdmissionChange,
}

/// The change that an admission made in the directory, so that it can be undone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum AdmissionChange {
    /// No change: this is a renewal, or a repeated request after a lost answer.
    #[default]
    None,
    /// One use of the secret, by a node that was already in the fleet.
    Secret,
    /// One use of the secret, and a new name.
    SecretAndName,
}

/// The public keys of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeKeys {
    /// The key of its certificate: a point of P-256.
    pub certificate: Vec<u8>,
    /// The key with which the node logs in to the message server. The node derives it from the private
    /// key of the certificate.
    pub user: String,
}

impl NodeKeys {
    /// Computes the public keys that belong to this private key (PEM).
    pub fn from_private_key(private_key: &str) -> Result<Self, Error> {
        let pair = KeyPair::from_pem(private_key).map_err(certificate_error)?;
        let user = user_key::derive_user_key(private_key).map_err(Error::Certificate)?;
        Ok(Self { certificate: pair.der_bytes().to_vec(), user: user.public_key() })
    }
}

impl FleetAuthority {
    /// Admits a node with its keys, which counts as one use of `secret`. A crash can waste a use, but never
    /// admits a node without one. Fails if a node with another key has the name. A node that asks again with the
    /// same key and secret has lost the first answer: it gets a new certificate and the same key for grants, and
    /// no further use is counted.
    pub fn admit_node(
        &self,
        name: &NodeName,
        keys: &NodeKeys,
        secret: &str,
        now: u64,
    ) -> Result<NodeAdmission, Error> {
        if !subject::is_node_name(&name.0) || name.is_controller() {
            return Err(Error::Name(name.0.clone()));
        }
        let lock = self.lock_directory()?;
        let known = NodeRecord::read_if_present(&self.files, name)?;
        let admitted_by = secrets::hash_secret(secret);
        let is_repeated =
            known.as_ref().is_some_and(|node| node.has_keys(keys) && node.admitted_by == admitted_by);
        // The secret is checked before the name: without a valid secret, nobody can find out which names exist.
        if !is_repeated {
            self.check_secret(secret, now)?;
        }
        let change_by_use =
            if known.is_some() { AdmissionChange::Secret } else { AdmissionChange::SecretAndName };
        let node = match known {
            Some(node) if node.has_keys(keys) => node,
            // The name stays with its first key until the operator removes the node.
            Some(_) => return Err(Error::Taken(name.clone())),
            None => NodeRecord::new(keys, now)?,
        };
        let change = if is_repeated { AdmissionChange::None } else { change_by_use };
        let node = NodeRecord { admitted_by, user_key: keys.user.clone(), ..node };
        // The certificate is issued before the directory changes: if that fails, no use of the secret is lost.
        let certificate = self.issue_certificate(name, &node, now)?;
        let signing = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&self.read_signing_key()?);
        let signing = signing.map_err(|_| Error::Damaged(SIGNING_KEY_FILE.to_owned()))?;
        let controller = encode_hex(signing.public_key().as_ref());
        // With this order, a crash in between only wastes a use of the secret. With the other order it would admit a
        // node without a use.
        if !is_repeated {
            self.use_secret_once(secret, now)?;
            node.write_record(&self.files, name)?;
        }
        drop(lock);
        Ok(NodeAdmission { controller, grants: node.grants, change, ..certificate })
    }

    /// Undoes an admission whose answer was not sent to the node. Does nothing if the admission changed nothing.
    pub fn undo_admission(
        &self,
        name: &NodeName,
        admission: &NodeAdmission,
        secret: &str,
    ) -> Result<(), Error> {
        let _lock = self.lock_directory()?;
        if admission.change == AdmissionChange::None {
            return Ok(());
        }
        // Another node may have taken the name meanwhile.
        let is_its_own =
            NodeRecord::read_record(&self.files, name).is_ok_and(|node| node.grants == admission.grants);
        if admission.change == AdmissionChange::SecretAndName && is_its_own {
            self.files.remove_file(&NodeRecord::file_name(name))?;
        } else if is_its_own {
            // Without the stored hash, the next request with the same secret counts as a new use.
            let node = NodeRecord::read_record(&self.files, name)?;
            NodeRecord { admitted_by: String::new(), ..node }.write_record(&self.files, name)?;
        }
        // This comes last: a crash before it only wastes a use of the secret, and admits no node.
        self.restore_secret_use(secret)
    }

    /// Issues a new certificate to a node that is still in the fleet and has the same key. The
    /// answer contains no secret.
    pub fn renew_certificate(
        &self,
        name: &NodeName,
        keys: &NodeKeys,
        now: u64,
    ) -> Result<NodeAdmission, Error> {
        let lock = self.lock_directory()?;
        // A record that cannot be read is an error here, because it does not prove that the node was removed.
        let node = NodeRecord::read_if_present(&self.files, name)?.filter(|node| node.has_keys(keys));
        let mut node = node.ok_or_else(|| Error::Unknown(name.clone()))?;
        // A node that an earlier version admitted has no user key yet. From now on its claims are bound to its key.
        if node.user_key != keys.user {
            node.user_key.clone_from(&keys.user);
            node.write_record(&self.files, name)?;
        }
        drop(lock);
        self.issue_certificate(name, &node, now)
    }

    /// Issues a certificate and claims for the node. In the answer, `controller` and `grants` stay empty.
    fn issue_certificate(
        &self,
        name: &NodeName,
        node: &NodeRecord,
        now: u64,
    ) -> Result<NodeAdmission, Error> {
        let mut parameters = CertificateParams::default();
        // The certificate of a node must not be usable as one of a server.
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let admitted = node.to_admitted_node(name);
        let public_key =
            decode_hex(&node.public_key).ok_or_else(|| Error::Damaged(NodeRecord::file_name(name)))?;
        let parameters =
            with_validity(now, CERTIFICATE_VALID_DAYS, with_common_name(&admitted.common_name(), parameters));
        let issued = parameters.signed_by(&PeerPublicKey(public_key), &self.load_issuer()?);
        Ok(NodeAdmission {
            certificate: issued.map_err(certificate_error)?.pem(),
            authority: self.read_certificate_pem()?,
            controller: String::new(),
            grants: String::new(),
            user: self.read_server_accounts()?.sign_node_user_claims(&admitted)?,
            expires: now + CERTIFICATE_VALID_DAYS * DAY,
            change: AdmissionChange::None,
        })
    }

    /// Changes labels of a node and returns all its labels after the change.
    pub fn change_labels(&self, name: &NodeName, changes: &[LabelChange]) -> Result<OperatorLabels, Error> {
        let _lock = self.lock_directory()?;
        let mut node = NodeRecord::read_record(&self.files, name)?;
        node.labels.apply_changes(changes).map_err(|source| Error::Labels { node: name.clone(), source })?;
        node.write_record(&self.files, name)?;
        Ok(node.labels)
    }

    /// Reads the records of all nodes of the fleet.
    pub fn read_enrolled_nodes(&self) -> Result<BTreeMap<NodeName, EnrolledNode>, Error> {
        let mut enrolled = BTreeMap::new();
        for name in self.list_node_names()? {
            match NodeRecord::read_record(&self.files, &name) {
                Ok(NodeRecord { labels, joined_at, .. }) => {
                    enrolled.insert(name, EnrolledNode { labels, joined_at });
                }
                // The node was removed after its name was listed.
                Err(Error::File { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(enrolled)
    }

    /// Removes a node from the fleet. The message server disconnects the node only when it gets the list of the others.
    pub fn remove_node(&self, name: &NodeName) -> Result<(), Error> {
        let _lock = self.lock_directory()?;
        self.files.remove_file(&NodeRecord::file_name(name))
    }
}

/// Facts about a node that the authority's directory contains, whether or not the node is connected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnrolledNode {
    /// Labels from the operator.
    pub labels: OperatorLabels,
    /// Time of its first admission, in seconds since 1970; `None` if an earlier version admitted the node.
    pub joined_at: Option<u64>,
}

/// The record of a node, as it is stored in its file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct NodeRecord {
    pub(super) public_key: String,
    pub(super) grants: String,
    #[serde(default)]
    pub(super) generation: String,
    /// See [`NodeKeys::user`]; empty in records of earlier versions.
    #[serde(default)]
    user_key: String,
    /// Hash of the secret with which the node was admitted last.
    #[serde(default)]
    admitted_by: String,
    /// Time of its first admission, in seconds since 1970; absent in records of earlier versions.
    #[serde(default)]
    joined_at: Option<u64>,
    /// Labels that the operator gave the node.
    #[serde(default)]
    pub(super) labels: OperatorLabels,
}

impl NodeRecord {
    fn new(keys: &NodeKeys, now: u64) -> Result<Self, Error> {
        let generation = encode_hex(&random_bytes::<8>()?);
        let grants = encode_hex(&random_bytes::<MAC_KEY_BYTES>()?);
        Ok(Self {
            public_key: encode_hex(&keys.certificate),
            grants,
            generation,
            user_key: keys.user.clone(),
            admitted_by: String::new(),
            joined_at: Some(now),
            labels: OperatorLabels::default(),
        })
    }

    fn has_keys(&self, keys: &NodeKeys) -> bool {
        // The user key follows from the same private key, so it need not be compared.
        self.public_key == encode_hex(&keys.certificate)
    }

    pub(super) fn to_admitted_node(&self, name: &NodeName) -> AdmittedNode {
        AdmittedNode {
            name: name.clone(),
            generation: self.generation.clone(),
            user_key: self.user_key.clone(),
        }
    }

    pub(super) fn file_name(name: &NodeName) -> String {
        format!("{name}.node")
    }

    pub(super) fn read_record(files: &AuthorityFiles, name: &NodeName) -> Result<Self, Error> {
        // The name becomes a file name, so it must not contain a path.
        if !subject::is_node_name(&name.0) {
            return Err(Error::Name(name.0.clone()));
        }
        let text = files.read_file(&Self::file_name(name))?;
        serde_json::from_str(&text).map_err(|_| Error::Damaged(Self::file_name(name)))
    }

    fn read_if_present(files: &AuthorityFiles, name: &NodeName) -> Result<Option<Self>, Error> {
        match Self::read_record(files, name) {
            Err(Error::File { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some),
        }
    }

    fn write_record(&self, files: &AuthorityFiles, name: &NodeName) -> Result<(), Error> {
        let text = serde_json::to_string(self).map_err(|error| Error::Certificate(error.to_string()))?;
        files.write_file(&Self::file_name(name), &text)
    }

    pub(super) fn grant_key(&self) -> Option<[u8; MAC_KEY_BYTES]> {
        decode_hex(&self.grants)?.try_into().ok()
    }
}
