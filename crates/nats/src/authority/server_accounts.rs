//! Accounts and users of the message server, as claims (JWT of NATS, version 2) that the fleet's operator key signs.
//!
//! Each node has its own account, in a file that the server reads when the node first connects. So admitting a node
//! changes nothing else. Accounts in the server's configuration would need a reload of all accounts, and during a
//! reload nats-server 2.15.2 crashes if a node subscribes (nil subscription list of the exporting account). In a test,
//! 32 nodes that joined at the same time caused this crash.
//!
//! The keys of operator and accounts are derived from one secret, so only that secret is stored. A user's key
//! is derived from the private key of its certificate ([`crate::user_key`]), so claims are useful only to the
//! owner of that key.
//!
//! Invariant: with the claims of one node, nobody can make claims for another node or log in as another node.

use super::{AdmittedNode, Error, encode_hex};
use crate::subject::{self, SubjectPermissions};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use nkeys::{KeyPair, KeyPairType};
use ring::hmac;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Derives the keys of operator and accounts from the stored secret, and signs the claims with them.
#[derive(Clone)]
pub struct ServerAccounts(hmac::Key);

impl std::fmt::Debug for ServerAccounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ServerAccounts(..)")
    }
}

/// An account as the server stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountClaims {
    /// Public key of the account, which identifies it.
    pub id: String,
    /// Signed rights of the account (JWT).
    pub claims: String,
}

/// Contents of a claims token, without the name of the signer.
struct ClaimSubject<'a> {
    id: &'a str,
    name: &'a str,
    nats: Value,
}

impl ServerAccounts {
    pub(super) fn new(secret: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    fn derive_key(&self, kind: KeyPairType, purpose: &str) -> Result<KeyPair, Error> {
        // HMAC-SHA-256 gives 32 bytes, the length of the seed of an Ed25519 key.
        let seed = hmac::sign(&self.0, purpose.as_bytes()).as_ref().try_into();
        seed.ok().and_then(|seed| KeyPair::new_from_raw(kind, seed).ok()).ok_or_else(derivation_error)
    }

    fn derive_operator_key(&self) -> Result<KeyPair, Error> {
        self.derive_key(KeyPairType::Operator, "operator")
    }

    fn derive_account_key(&self, name: &str) -> Result<KeyPair, Error> {
        self.derive_key(KeyPairType::Account, &format!("account {name}"))
    }

    /// Signs the claims of the fleet's operator, which name the system account.
    pub fn sign_operator_token(&self) -> Result<String, Error> {
        let operator = self.derive_operator_key()?;
        let system = self.derive_account_key(SYSTEM_ACCOUNT)?;
        let nats = json!({"type": "operator", "version": 2, "system_account": system.public_key()});
        sign_claims(&operator, &ClaimSubject { id: &operator.public_key(), name: "packetrig", nats })
    }

    /// Signs the claims of the server's system account, which can use no subject of the fleet.
    pub fn sign_system_account_claims(&self) -> Result<AccountClaims, Error> {
        self.sign_account_token(SYSTEM_ACCOUNT, true, json!({}))
    }

    /// Signs the claims of the controller's account, the only one that may have streams and records. It exports the
    /// subjects to and from nodes.
    pub fn sign_control_account_claims(&self) -> Result<AccountClaims, Error> {
        let to_nodes = subject::subjects_to_node("*");
        let from_nodes = subject::subjects_from_node("*");
        let exports = to_nodes.iter().map(|at| export_entry("stream", at));
        let exports: Vec<Value> =
            exports.chain(from_nodes.iter().map(|at| export_entry("service", at))).collect();
        self.sign_account_token(CONTROL_ACCOUNT, true, json!({"exports": exports}))
    }

    /// Signs the claims of a node's account, which imports only the subjects of that node.
    pub fn sign_node_account_claims(&self, node: &AdmittedNode) -> Result<AccountClaims, Error> {
        // The server publishes the confirmation of a segment to the reply subject that the sender chose, without
        // checking the sender's rights. In an account with only the node's own subjects, that reaches no other member.
        let control = self.derive_account_key(CONTROL_ACCOUNT)?.public_key();
        let to_node = subject::subjects_to_node(&node.name.0);
        let subjects_from_node = subject::subjects_from_node(&node.name.0);
        let imports = to_node.iter().map(|at| import_entry("stream", at, &control));
        let imports: Vec<Value> = imports
            .chain(subjects_from_node.iter().map(|at| import_entry("service", at, &control)))
            .collect();
        // A node without a user key cannot sign the server's nonce, so its claims are accepted without a signature.
        let can_sign = !node.user_key.is_empty();
        self.sign_account_token(&node_account_name(node), can_sign, json!({"imports": imports}))
    }

    /// ID (public key) of a node's account.
    pub(crate) fn account_id(&self, node: &AdmittedNode) -> Result<String, Error> {
        Ok(self.derive_account_key(&node_account_name(node))?.public_key())
    }

    /// Signs the claims that a node shows to the server when it logs in.
    pub fn sign_node_user_claims(&self, node: &AdmittedNode) -> Result<String, Error> {
        let permissions = subject::node_permissions(&node.name.0);
        self.sign_user_token(&node_account_name(node), &node.user_key, &permissions)
    }

    /// Signs the claims that the controller shows when it logs in; `user_key` is its public user key.
    pub fn sign_controller_user_claims(&self, user_key: &str) -> Result<String, Error> {
        self.sign_user_token(CONTROL_ACCOUNT, user_key, &subject::controller_permissions())
    }

    /// Signs the claims of the user that removes accounts, and that asks the server when it read its configuration.
    pub(crate) fn sign_system_user_claims(&self, user_key: &str) -> Result<String, Error> {
        let publish = vec![ACCOUNT_REMOVAL_SUBJECT.to_owned(), SERVER_FACTS_SUBJECT.to_owned()];
        let subscribe = vec![format!("{}.>", subject::inbox_prefix(ACCOUNT_REMOVAL_USER))];
        self.sign_user_token(SYSTEM_ACCOUNT, user_key, &SubjectPermissions { publish, subscribe })
    }

    /// Signs the request to the server to delete these accounts.
    pub(crate) fn sign_removal_order(&self, accounts: &[String]) -> Result<String, Error> {
        let operator = self.derive_operator_key()?;
        let nats = json!({"type": "generic", "version": 2, "accounts": accounts});
        sign_claims(&operator, &ClaimSubject { id: &operator.public_key(), name: "removal", nats })
    }

    /// Signs the claims of an account. If `signs` is true, its users must prove that they have their
    /// key (no bearer tokens).
    fn sign_account_token(
        &self,
        name: &str,
        signs: bool,
        particulars: Value,
    ) -> Result<AccountClaims, Error> {
        // Only the controller's account may store results and records.
        let storage = if name == CONTROL_ACCOUNT { -1 } else { 0 };
        // In claims of NATS, -1 means no limit, and 0 means that the account gets nothing.
        let limits = json!({
            "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": 0,
            "disallow_bearer": signs,
            "mem_storage": storage, "disk_storage": storage, "streams": storage, "consumer": storage,
        });
        let mut nats = json!({"type": "account", "version": 2, "limits": limits});
        if let (Value::Object(nats), Value::Object(particulars)) = (&mut nats, particulars) {
            nats.extend(particulars);
        }
        let id = self.derive_account_key(name)?.public_key();
        let claims = sign_claims(&self.derive_operator_key()?, &ClaimSubject { id: &id, name, nats })?;
        Ok(AccountClaims { id, claims })
    }

    fn sign_user_token(
        &self,
        account: &str,
        user_key: &str,
        permissions: &SubjectPermissions,
    ) -> Result<String, Error> {
        let SubjectPermissions { publish, subscribe } = permissions;
        let nats = json!({
            "type": "user", "version": 2,
            "pub": {"allow": publish}, "sub": {"allow": subscribe},
            "subs": -1, "data": -1, "payload": -1,
        });
        sign_claims(&self.derive_account_key(account)?, &ClaimSubject { id: user_key, name: account, nats })
    }
}

/// Name of the controller's account. Names of node accounts have another form, see [`node_account_name`].
const CONTROL_ACCOUNT: &str = "CONTROL";
const SYSTEM_ACCOUNT: &str = "SYSTEM";
/// Name of the user that removes accounts.
pub(crate) const ACCOUNT_REMOVAL_USER: &str = "removal";
/// Subject of requests to delete accounts.
pub(crate) const ACCOUNT_REMOVAL_SUBJECT: &str = "$SYS.REQ.CLAIMS.DELETE";
/// Subject on which the server answers questions about its own state.
pub(crate) const SERVER_FACTS_SUBJECT: &str = "$SYS.REQ.SERVER.PING.VARZ";

fn node_account_name(node: &AdmittedNode) -> String {
    let bare = format!("node {}", node.common_name());
    // A node that an earlier version admitted has no user key. Until it renews its certificate, anyone who has its
    // claims can use them (bearer token).
    if node.user_key.is_empty() { bare } else { format!("{bare} {}", node.user_key) }
}

fn derivation_error() -> Error {
    Error::Certificate("a key for the server could not be derived".to_owned())
}

fn export_entry(kind: &str, at: &str) -> Value {
    json!({"name": at, "subject": at, "type": kind})
}

fn import_entry(kind: &str, at: &str, account: &str) -> Value {
    json!({"name": at, "subject": at, "account": account, "type": kind})
}

/// Formats claims with this id as JSON.
fn claims_json(id: &str, issuer: &KeyPair, subject: &ClaimSubject<'_>) -> String {
    let ClaimSubject { id: of, name, nats } = subject;
    // The time of issue is constant, so the same claims always give the same token, and its file need not be rewritten.
    json!({"jti": id, "iat": 1, "iss": issuer.public_key(), "sub": of, "name": name, "nats": nats})
        .to_string()
}

/// Builds a signed token: header, claims, and the issuer's signature over both.
fn sign_claims(issuer: &KeyPair, subject: &ClaimSubject<'_>) -> Result<String, Error> {
    let id = encode_hex(&Sha256::digest(claims_json("", issuer, subject)));
    let header = BASE64.encode(r#"{"typ":"JWT","alg":"ed25519-nkey"}"#);
    let covered = format!("{header}.{}", BASE64.encode(claims_json(&id, issuer, subject)));
    let signature = issuer.sign(covered.as_bytes()).map_err(|_| derivation_error())?;
    Ok(format!("{covered}.{}", BASE64.encode(signature)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_fleet::message::NodeName;
    use std::collections::BTreeSet;

    fn node(generation: &str) -> AdmittedNode {
        AdmittedNode { name: NodeName("a".into()), generation: generation.into(), user_key: "U".into() }
    }

    fn said(token: &str) -> Value {
        let claims = token.split('.').nth(1).expect("header, claims, signature");
        serde_json::from_slice(&BASE64.decode(claims).expect("base64")).expect("claims")
    }

    fn texts(list: &Value) -> Vec<String> {
        let texts = list.as_array().expect("a list").iter();
        texts.map(|text| text.as_str().expect("a subject").to_owned()).collect()
    }

    #[test]
    fn a_node_may_use_its_own_subjects_only() {
        let accounts = ServerAccounts::new(&[1; 32]);
        let user = said(&accounts.sign_node_user_claims(&node("7f")).expect("made"));
        let mut words = texts(&user["nats"]["pub"]["allow"]);
        words.extend(texts(&user["nats"]["sub"]["allow"]));
        let account = said(&accounts.sign_node_account_claims(&node("7f")).expect("made").claims);
        let imports = account["nats"]["imports"].as_array().expect("imports");
        words.extend(imports.iter().map(|import| import["subject"].as_str().expect("a subject").to_owned()));
        for word in &words {
            assert!(
                *word == "cmd.all" || *word == "_INBOX_a.>" || word.split('.').next_back() == Some("a"),
                "{word} is not of the node"
            );
        }
        assert_eq!(words.len(), 23, "{words:?}");
        assert_eq!(user["iss"], account["sub"], "the account signs its user");
        assert_eq!(account["nats"]["limits"]["disk_storage"], 0, "nodes keep nothing on the server");
    }

    #[test]
    fn server_account_is_stable_per_node_generation() {
        let accounts = ServerAccounts::new(&[1; 32]);
        let made = [node("1"), node("2"), node("1")]
            .map(|node| accounts.sign_node_account_claims(&node).expect("made"));
        assert_eq!(made[0], made[2]);
        let ids: BTreeSet<&String> = made.iter().map(|account| &account.id).collect();
        assert_eq!(ids.len(), 2);
        let other = ServerAccounts::new(&[2; 32]).sign_node_account_claims(&node("1")).expect("made");
        assert_ne!(other.id, made[0].id);
    }
}
