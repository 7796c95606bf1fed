//! Letting nodes in: a name, a key and the use of a secret together, or none of them.

use super::files::AuthorityFiles;
use super::{
    AdmittedNode, CurvePoint, DAY, Error, FleetAuthority, SIGNING, VALID_DAYS, certificate, hex, named,
    random, secrets, unhex, valid_from,
};
use crate::seal::MAC_KEY;
use crate::subject;
use packetrig_fleet::labels::{LabelChange, OperatorLabels};
use packetrig_fleet::message::NodeName;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose};
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a node gets when it is let in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeAdmission {
    pub certificate: String,
    pub authority: String,
    /// The controller's public key (Ed25519), hexadecimal.
    pub controller: String,
    /// The key for grants, hexadecimal; empty where only the certificate is renewed.
    pub grants: String,
    /// What the node shows to the server beside its certificate: its account there.
    #[serde(default)]
    pub user: String,
    /// When the certificate ends, in seconds since 1970.
    #[serde(default)]
    pub expires: u64,
    /// What letting it in has changed here.
    #[serde(skip)]
    change: AdmissionChange,
}

/// What an admission has changed in the directory, so that it can be undone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum AdmissionChange {
    /// Nothing: it is a renewal, or the answer to the same question was lost.
    #[default]
    None,
    /// A use of the secret, by a node that was in the fleet already.
    Secret,
    /// That, and the name.
    SecretAndName,
}

impl FleetAuthority {
    /// Lets a node in by its public key (a point of P-256), for which `secret` is used up: all of it, or nothing. The
    /// same key gets the same again; another one does not. A node that asks again with the key and the secret that admitted it has
    /// lost the answer, and no further use is taken.
    pub fn admit(
        &self,
        name: &NodeName,
        public_key: &[u8],
        secret: &str,
        now: u64,
    ) -> Result<NodeAdmission, Error> {
        if !subject::is_name(&name.0) || name.is_controller() {
            return Err(Error::Name(name.0.clone()));
        }
        let lock = self.lock()?;
        // What changes here if the secret is used up.
        let mut change_by_use = AdmissionChange::Secret;
        let node = match KeptNode::read(&self.files, name) {
            Ok(node) if node.public_key == hex(public_key) => node,
            Ok(_) => return Err(Error::Taken(name.clone())),
            Err(Error::File { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                change_by_use = AdmissionChange::SecretAndName;
                KeptNode::new(public_key, now)?
            }
            Err(error) => return Err(error),
        };
        let mut change = AdmissionChange::None;
        let admitted_by = secrets::hash(secret);
        let node = if node.admitted_by == admitted_by {
            node
        } else {
            // The secret first: without one, nobody can reserve a name.
            self.use_up(secret, now)?;
            change = change_by_use;
            let node = KeptNode { admitted_by, ..node };
            node.write(&self.files, name)?;
            node
        };
        drop(lock);
        // Nothing in the directory changes from here on: nobody has to wait for the signature.
        let certificate = self.certify(name, &node, public_key, now)?;
        let signing = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&self.signing()?);
        let signing = signing.map_err(|_| Error::Damaged(SIGNING.to_owned()))?;
        let controller = hex(signing.public_key().as_ref());
        Ok(NodeAdmission { controller, grants: node.grants, change, ..certificate })
    }

    /// Undoes an admission whose answer did not reach the node.
    pub fn take_back(&self, name: &NodeName, admission: &NodeAdmission, secret: &str) -> Result<(), Error> {
        let _lock = self.lock()?;
        if admission.change == AdmissionChange::None {
            return Ok(());
        }
        // Another node may have the name by now.
        let is_its_own = KeptNode::read(&self.files, name).is_ok_and(|node| node.grants == admission.grants);
        if admission.change == AdmissionChange::SecretAndName && is_its_own {
            self.files.remove(&KeptNode::file(name))?;
        } else if is_its_own {
            // The same secret counts again when it comes again.
            let node = KeptNode::read(&self.files, name)?;
            KeptNode { admitted_by: String::new(), ..node }.write(&self.files, name)?;
        }
        self.give_back(secret)
    }

    /// A new certificate for a node that is still in the fleet and has the same key. It carries no secret.
    pub fn renew(&self, name: &NodeName, public_key: &[u8], now: u64) -> Result<NodeAdmission, Error> {
        let node = KeptNode::read(&self.files, name).map_err(|_| Error::Unknown(name.clone()))?;
        if node.public_key != hex(public_key) {
            return Err(Error::Unknown(name.clone()));
        }
        self.certify(name, &node, public_key, now)
    }

    /// An admission with the certificate and nothing else.
    fn certify(
        &self,
        name: &NodeName,
        node: &KeptNode,
        public_key: &[u8],
        now: u64,
    ) -> Result<NodeAdmission, Error> {
        let mut parameters = CertificateParams::default();
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let admitted = AdmittedNode { name: name.clone(), generation: node.generation.clone() };
        let parameters = valid_from(now, VALID_DAYS, named(&admitted.common_name(), parameters));
        let issued = parameters.signed_by(&CurvePoint(public_key.to_vec()), &self.issuer()?);
        Ok(NodeAdmission {
            certificate: issued.map_err(certificate)?.pem(),
            authority: self.certificate()?,
            controller: String::new(),
            grants: String::new(),
            user: self.accounts()?.user_of(&admitted)?,
            expires: now + VALID_DAYS * DAY,
            change: AdmissionChange::None,
        })
    }

    /// Changes the labels of a node; gives those that it has then.
    pub fn label(&self, name: &NodeName, changes: &[LabelChange]) -> Result<OperatorLabels, Error> {
        let _lock = self.lock()?;
        let mut node = KeptNode::read(&self.files, name)?;
        node.labels.apply(changes).map_err(|source| Error::Labels { node: name.clone(), source })?;
        node.write(&self.files, name)?;
        Ok(node.labels)
    }

    /// Nodes that are in the fleet, with what is kept of each.
    pub fn enrolled(&self) -> Result<BTreeMap<NodeName, EnrolledNode>, Error> {
        let mut enrolled = BTreeMap::new();
        for name in self.nodes()? {
            match KeptNode::read(&self.files, &name) {
                Ok(KeptNode { labels, joined_at, .. }) => {
                    enrolled.insert(name, EnrolledNode { labels, joined_at });
                }
                // Removed a moment ago.
                Err(Error::File { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(enrolled)
    }

    /// Forgets a node. It is out when the broker has been told which are left.
    pub fn remove(&self, name: &NodeName) -> Result<(), Error> {
        let _lock = self.lock()?;
        self.files.remove(&KeptNode::file(name))
    }
}

/// What the operator knows of a node without having heard it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnrolledNode {
    /// Labels from the operator.
    pub labels: OperatorLabels,
    /// When it was let in, in seconds since 1970, if that was noted.
    pub joined_at: Option<u64>,
}

/// What is kept of a node.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct KeptNode {
    pub(super) public_key: String,
    pub(super) grants: String,
    #[serde(default)]
    pub(super) generation: String,
    /// Hash of the secret that let it in last.
    #[serde(default)]
    admitted_by: String,
    /// When it was let in first, in seconds since 1970; absent in records of earlier versions.
    #[serde(default)]
    joined_at: Option<u64>,
    /// What the operator has labelled it.
    #[serde(default)]
    pub(super) labels: OperatorLabels,
}

impl KeptNode {
    fn new(public_key: &[u8], now: u64) -> Result<Self, Error> {
        let generation = hex(&random::<8>()?);
        let grants = hex(&random::<MAC_KEY>()?);
        Ok(Self {
            public_key: hex(public_key),
            grants,
            generation,
            admitted_by: String::new(),
            joined_at: Some(now),
            labels: OperatorLabels::default(),
        })
    }

    pub(super) fn file(name: &NodeName) -> String {
        format!("{name}.node")
    }

    pub(super) fn read(files: &AuthorityFiles, name: &NodeName) -> Result<Self, Error> {
        if !subject::is_name(&name.0) {
            return Err(Error::Name(name.0.clone()));
        }
        let text = files.read(&Self::file(name))?;
        serde_json::from_str(&text).map_err(|_| Error::Damaged(Self::file(name)))
    }

    fn write(&self, files: &AuthorityFiles, name: &NodeName) -> Result<(), Error> {
        let text = serde_json::to_string(self).map_err(|error| Error::Certificate(error.to_string()))?;
        files.write(&Self::file(name), &text)
    }

    pub(super) fn key(&self) -> Option<[u8; MAC_KEY]> {
        unhex(&self.grants)?.try_into().ok()
    }
}
