//! Seals on the controller's messages. With them, a compromised message server cannot start a sender
//! or keep it running.
//!
//! The controller signs (Ed25519) the subject of a letter, the instance of the receiving node, the instance of the
//! controller's endpoint, a rising number, and the bytes of the letter. Grants of leases are frequent, so they carry an
//! HMAC over the same fields instead, with a key that controller and node share since the enrolment. Messages of nodes
//! carry a MAC ([`node`]). The controller's signature proves an epoch ([`epoch`]).
//!
//! Grants have their own connection, so their numbers rise independently of the numbers of other letters.
//!
//! Invariant: for each kind of letter, a node accepts each number of a controller's instance once and in order, and
//! only if the letter was sealed for the current instance of the node.

mod capture;
mod epoch;
mod node;
mod numbers;

pub(crate) use capture::{is_capture_genuine, is_question_genuine, seal_capture, seal_question};
pub(crate) use epoch::{EpochProofs, verify_epoch_proof};
pub(crate) use node::{LetterRefusal, NodeSealChecker, NodeSealer, is_segment_genuine, seal_segment};
pub(crate) use numbers::OVERTAKEN_MESSAGE_REASON;

use crate::subject;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use numbers::AcceptedNumbers;
use packetrig_fleet::fabric::Error;
use packetrig_fleet::message::{MessageBody, NodeName};
use ring::hmac;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Length in bytes of the key that a node shares with the controller.
pub const MAC_KEY_BYTES: usize = 32;
/// Maximum number of pairs of a controller instance and a kind of letter whose numbers a node remembers. Messages of a
/// forgotten instance belong to an epoch that has ended.
const MAX_REMEMBERED_INSTANCES: usize = 4096;
/// Prefix of the bytes that a seal covers. With it, nothing else that is signed with the key can pass as a letter.
const LETTER_SEAL_PREFIX: &[u8] = b"packetrig letter 1\0";

/// Finds the key of a node; `None` if the node is not in the fleet. An error says why the key cannot be read now. The
/// function is called again for each new instance of a node, so that nodes may join while the controller runs.
pub type MacKeys = Arc<dyn Fn(&NodeName) -> Result<Option<[u8; MAC_KEY_BYTES]>, String> + Send + Sync>;

/// Keys with which an endpoint seals its messages and checks messages of other endpoints.
#[derive(Clone)]
pub enum SealKeys {
    Controller {
        /// The controller's signing key, PKCS#8.
        signing: Vec<u8>,
        grants: MacKeys,
    },
    Node {
        /// The controller's public key.
        controller: Vec<u8>,
        /// The key that the node shares with the controller, for grants and for the seals of the node.
        grants: [u8; MAC_KEY_BYTES],
    },
}

impl std::fmt::Debug for SealKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Controller { .. } => "Keys::Controller",
            Self::Node { .. } => "Keys::Node",
        })
    }
}

/// The fields that a seal covers in addition to the bytes.
struct SealScope<'a> {
    subject: &'a str,
    /// Instance number of the receiving node.
    incarnation: u64,
    /// Instance number of the controller's endpoint.
    session: u64,
    number: u64,
}

impl SealScope<'_> {
    fn signed_payload(&self, body: &[u8]) -> Vec<u8> {
        let mut bytes = LETTER_SEAL_PREFIX.to_vec();
        // The subject is prefixed by its length: otherwise the end of one field could be read as the
        // beginning of the next.
        bytes.extend((self.subject.len() as u64).to_be_bytes());
        bytes.extend(self.subject.as_bytes());
        for number in [self.incarnation, self.session, self.number] {
            bytes.extend(number.to_be_bytes());
        }
        bytes.extend(body);
        bytes
    }
}

pub(crate) struct LetterSealer {
    key: Ed25519KeyPair,
    grants: MacKeys,
    /// The key of each node, with the instance of the node for which the key was looked up.
    known: BTreeMap<NodeName, (u64, hmac::Key)>,
    session: u64,
    number: u64,
    /// The epoch of the latest command, and its proof.
    epoch: Option<(u64, String)>,
}

impl LetterSealer {
    pub(crate) fn new(signing: &[u8], grants: MacKeys, session: u64) -> Result<Self, Error> {
        let key = signing_key(signing)?;
        Ok(Self { key, grants, known: BTreeMap::new(), session, number: 0, epoch: None })
    }

    /// Builds the seal for `bytes`, which encode `body`. `to`: the receiving node and its instance;
    /// `None` for all nodes.
    pub(crate) fn seal_letter(
        &mut self,
        subject: &str,
        to: Option<(&NodeName, u64)>,
        body: &MessageBody,
        bytes: &[u8],
    ) -> Result<String, Error> {
        // A letter to all nodes names no instance of a node, so an attacker could replay it to a later instance. Only
        // roll calls may be sent to all nodes: a replayed one commands nothing.
        if to.is_none() && !matches!(body, MessageBody::RollCall(_)) {
            return Err(Error::NotPermitted(format!(
                "only roll calls may be sent on subject {}",
                subject::ALL_NODES_SUBJECT
            )));
        }
        // The first number is 1: `AcceptedNumbers` never accepts 0.
        self.number += 1;
        let incarnation = to.map_or(0, |(_, incarnation)| incarnation);
        let scope = SealScope { subject, incarnation, session: self.session, number: self.number };
        let covered = scope.signed_payload(bytes);
        let head = format!("{:016x}.{:016x}", self.session, self.number);
        if let (MessageBody::Granted(..), Some((node, life))) = (body, to) {
            let seal = hmac::sign(self.grant_key_of_instance(node, life)?, &covered);
            return Ok(format!("m.{head}.{}", BASE64.encode(seal)));
        }
        Ok(format!("s.{head}.{}", BASE64.encode(self.key.sign(&covered))))
    }

    /// The controller's public key.
    pub(crate) fn public_key(&self) -> &[u8] {
        self.key.public_key().as_ref()
    }

    /// Returns the proof for commands of this epoch.
    pub(crate) fn epoch_proof(&mut self, epoch: u64) -> &str {
        // Every command carries the proof of its epoch. Commands of one epoch share one signature.
        let known = self.epoch.take().filter(|(known, _)| *known == epoch);
        &self.epoch.insert(known.unwrap_or_else(|| (epoch, epoch::sign_epoch(&self.key, epoch)))).1
    }

    fn grant_key_of_instance(&mut self, node: &NodeName, life: u64) -> Result<&hmac::Key, Error> {
        // A node that has joined again has another key, and a new instance.
        if self.known.get(node).is_none_or(|(of, _)| *of != life) {
            let key = (self.grants)(node).map_err(Error::Down)?;
            let key = key.ok_or_else(|| {
                Error::NotPermitted(format!("there is no key to sign lease answers for node {node}"))
            })?;
            self.known.insert(node.clone(), (life, hmac::Key::new(hmac::HMAC_SHA256, &key)));
        }
        self.known.get(node).map(|(_, key)| key).ok_or_else(|| Error::Unknown(node.clone()))
    }
}

pub(crate) struct LetterChecker {
    controller: Vec<u8>,
    grants: hmac::Key,
    incarnation: u64,
    /// The numbers of each instance of a controller, for each kind of letter.
    seen: BTreeMap<(u64, LetterKind), AcceptedNumbers>,
    /// The keys of `seen`, the oldest first.
    order: VecDeque<(u64, LetterKind)>,
}

/// Kinds of letters. Letters of one kind must arrive in order; letters of different kinds may overtake each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LetterKind {
    ToAll,
    ToNode,
    Grant,
}

impl LetterKind {
    const fn from_body(body: &MessageBody, is_to_all: bool) -> Self {
        match body {
            _ if is_to_all => Self::ToAll,
            MessageBody::Granted(..) => Self::Grant,
            _ => Self::ToNode,
        }
    }
}

impl LetterChecker {
    pub(crate) fn new(controller: Vec<u8>, grants: &[u8; MAC_KEY_BYTES], incarnation: u64) -> Self {
        let grants = hmac::Key::new(hmac::HMAC_SHA256, grants);
        Self { controller, grants, incarnation, seen: BTreeMap::new(), order: VecDeque::new() }
    }

    /// Checks that `bytes`, which encode `body`, come from the controller, are for this instance of the node, and are
    /// new. Returns the instance of the controller.
    pub(crate) fn check_letter(
        &mut self,
        subject: &str,
        seal: Option<&str>,
        body: &MessageBody,
        bytes: &[u8],
    ) -> Result<u64, &'static str> {
        let to_all = subject == subject::ALL_NODES_SUBJECT;
        if to_all && !matches!(body, MessageBody::RollCall(_)) {
            return Err("only a roll call may be sent to all nodes");
        }
        let seal = WrittenSeal::parse_written_seal(seal.ok_or("the seal is missing")?)
            .ok_or("the seal cannot be parsed")?;
        let WrittenSeal { session, number, .. } = seal;
        let incarnation = if to_all { 0 } else { self.incarnation };
        let covered = SealScope { subject, incarnation, session, number }.signed_payload(bytes);
        let genuine = match (seal.kind, body) {
            ("m", MessageBody::Granted(..)) => hmac::verify(&self.grants, &covered, &seal.bytes).is_ok(),
            // The kind itself is not sealed, so it must match the body. A MAC is valid only for grants, because the
            // node has that key, too.
            ("s", MessageBody::Granted(..)) | ("m", _) => false,
            _ => UnparsedPublicKey::new(&ED25519, &self.controller).verify(&covered, &seal.bytes).is_ok(),
        };
        if !genuine {
            return Err("the seal is forged, or is for an earlier instance of this node");
        }
        let key = (session, LetterKind::from_body(body, to_all));
        // A recorded letter that is sent again has a number that was accepted before.
        match self.seen.entry(key) {
            Entry::Occupied(mut known) => known.get_mut().accept_number(number)?,
            Entry::Vacant(new) => {
                let mut numbers = AcceptedNumbers::default();
                numbers.accept_number(number)?;
                new.insert(numbers);
                self.order.push_back(key);
            }
        }
        if self.order.len() > MAX_REMEMBERED_INSTANCES
            && let Some(oldest) = self.order.pop_front()
        {
            self.seen.remove(&oldest);
        }
        Ok(session)
    }
}

/// A seal as it is sent: `KIND.SESSION.NUMBER.BYTES`, with hexadecimal numbers and the bytes in base64.
struct WrittenSeal<'a> {
    kind: &'a str,
    session: u64,
    number: u64,
    bytes: Vec<u8>,
}

impl<'a> WrittenSeal<'a> {
    fn parse_written_seal(text: &'a str) -> Option<Self> {
        let mut words = text.splitn(4, '.');
        Some(Self {
            kind: words.next()?,
            session: u64::from_str_radix(words.next()?, 16).ok()?,
            number: u64::from_str_radix(words.next()?, 16).ok()?,
            bytes: BASE64.decode(words.next()?).ok()?,
        })
    }
}

fn signing_key(pkcs8: &[u8]) -> Result<Ed25519KeyPair, Error> {
    Ed25519KeyPair::from_pkcs8_maybe_unchecked(pkcs8)
        .map_err(|_| Error::NotPermitted("the signing key of the fleet cannot be used".to_owned()))
}

/// Returns the message ID of a segment; the server stores each ID only once. With a key, no other node can guess the ID
/// and make the server drop the segment as a repetition.
pub(crate) fn segment_message_id(id: &str, keys: Option<&SealKeys>) -> String {
    match keys {
        Some(SealKeys::Node { grants, .. }) => {
            let tag =
                hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, grants), format!("segment {id}").as_bytes());
            format!("{id}.{}", BASE64.encode(tag))
        }
        _ => id.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_fleet::message::{LeaseGrant, MessageHead, Nonce, PlanHash, RunId};
    use ring::rand::SystemRandom;

    const AT: &str = "cmd.node.a";

    fn head() -> MessageHead {
        MessageHead { run: RunId("r".into()), attempt: 1, epoch: 1, plan: PlanHash::from_document("p") }
    }

    fn grant() -> MessageBody {
        MessageBody::Granted(head(), LeaseGrant { nonce: Nonce(7), go_on: true })
    }

    fn pair() -> (LetterSealer, impl Fn(u64) -> LetterChecker) {
        let signing = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("a key");
        let sealer = LetterSealer::new(signing.as_ref(), Arc::new(|_| Ok(Some([7; MAC_KEY_BYTES]))), 5)
            .expect("it is good");
        let public = sealer.key.public_key().as_ref().to_vec();
        (sealer, move |incarnation| LetterChecker::new(public.clone(), &[7; MAC_KEY_BYTES], incarnation))
    }

    #[test]
    fn sealed_letter_is_accepted_once_by_its_addressee() {
        let (mut sealer, checker) = pair();
        let node = NodeName("a".into());
        for body in [MessageBody::Command(head(), packetrig_fleet::message::NodeCommand::Arm), grant()] {
            let seal = sealer.seal_letter(AT, Some((&node, 9)), &body, b"bytes").expect("sealed");
            let mut own = checker(9);
            assert_eq!(own.check_letter(AT, Some(&seal), &body, b"bytes"), Ok(5));
            assert_eq!(
                own.check_letter(AT, Some(&seal), &body, b"bytes"),
                Err(numbers::REPEATED_MESSAGE_REASON)
            );
            assert!(checker(8).check_letter(AT, Some(&seal), &body, b"bytes").is_err(), "another life");
            assert!(
                checker(9).check_letter("cmd.node.b", Some(&seal), &body, b"bytes").is_err(),
                "another node"
            );
            assert!(checker(9).check_letter(AT, Some(&seal), &body, b"other").is_err(), "other bytes");
            assert!(checker(9).check_letter(AT, None, &body, b"bytes").is_err(), "no seal");
        }
    }

    #[test]
    fn grants_and_commands_have_separate_keys_and_order() {
        let (mut sealer, checker) = pair();
        let node = NodeName("a".into());
        let stop = MessageBody::Command(head(), packetrig_fleet::message::NodeCommand::Stop);
        let mac = sealer.seal_letter(AT, Some((&node, 9)), &grant(), b"bytes").expect("sealed");
        assert!(checker(9).check_letter(AT, Some(&mac), &stop, b"bytes").is_err());
        let later = sealer.seal_letter(AT, Some((&node, 9)), &stop, b"bytes").expect("sealed");
        let mut own = checker(9);
        assert_eq!(own.check_letter(AT, Some(&later), &stop, b"bytes"), Ok(5));
        assert_eq!(
            own.check_letter(AT, Some(&mac), &grant(), b"bytes"),
            Ok(5),
            "grants have a way of their own"
        );
        for (seal, body) in [(&later, &stop), (&mac, &grant())] {
            assert_eq!(
                own.check_letter(AT, Some(seal), body, b"bytes"),
                Err(numbers::REPEATED_MESSAGE_REASON)
            );
        }
    }

    #[test]
    fn only_a_roll_call_goes_to_all() {
        let (mut sealer, checker) = pair();
        let seal = sealer
            .seal_letter(subject::ALL_NODES_SUBJECT, None, &MessageBody::RollCall(Nonce(1)), b"x")
            .expect("sealed");
        assert_eq!(
            checker(3).check_letter(
                subject::ALL_NODES_SUBJECT,
                Some(&seal),
                &MessageBody::RollCall(Nonce(1)),
                b"x"
            ),
            Ok(5)
        );
        assert!(checker(3).check_letter(subject::ALL_NODES_SUBJECT, Some(&seal), &grant(), b"x").is_err());
        assert!(sealer.seal_letter(subject::ALL_NODES_SUBJECT, None, &grant(), b"x").is_err());
    }
}
