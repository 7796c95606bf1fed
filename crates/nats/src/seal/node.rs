//! Seals on the messages of nodes. A reply, a renewal or a segment is accepted only with a MAC that only the node and
//! the controller can compute.
//!
//! So neither the message server nor an intruder who evades its rules can send as a node. Each purpose has its own key,
//! derived from the key that node and controller share since the enrolment. So bytes that were sealed for one purpose
//! cannot be used for another.
//!
//! A letter names the instance of the controller that should receive it. Other instances refuse it, so nobody can
//! replay a letter after the controller that accepted it has ended.
//!
//! Invariant: the controller accepts each number of a node's instance once and in order, for each kind of subject.

use super::numbers::AcceptedNumbers;
use super::{BASE64, MAC_KEY_BYTES, MacKeys, SealScope, WrittenSeal};
use base64::Engine as _;
use packetrig_fleet::message::NodeName;
use ring::hmac;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};

/// Maximum number of earlier instances of a node that are remembered.
const MAX_EARLIER_INSTANCES: usize = 256;

const SEGMENT_SEAL_PURPOSE: &str = "packetrig segments 1";

/// Derives the key for one purpose.
pub(super) fn derive_key(key: &[u8; MAC_KEY_BYTES], purpose: &str) -> hmac::Key {
    let key = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), purpose.as_bytes());
    hmac::Key::new(hmac::HMAC_SHA256, key.as_ref())
}

fn derive_letter_key(key: &[u8; MAC_KEY_BYTES]) -> hmac::Key {
    derive_key(key, "packetrig letters of a node 1")
}

pub(crate) struct NodeSealer {
    key: hmac::Key,
    incarnation: u64,
    /// Instance of the controller for which letters are sealed; zero before the first one.
    session: u64,
    number: u64,
}

impl NodeSealer {
    pub(crate) fn new(key: &[u8; MAC_KEY_BYTES], incarnation: u64) -> Self {
        Self { key: derive_letter_key(key), incarnation, session: 0, number: 0 }
    }

    /// Seals all further letters for this instance of a controller.
    pub(crate) const fn set_session(&mut self, session: u64) {
        self.session = session;
    }

    pub(crate) fn seal_letter(&mut self, subject: &str, bytes: &[u8]) -> String {
        self.number += 1;
        let Self { incarnation, session, number, .. } = *self;
        let scope = SealScope { subject, incarnation, session, number };
        let seal = hmac::sign(&self.key, &scope.signed_payload(bytes));
        format!("n.{session:016x}.{number:016x}.{}", BASE64.encode(seal))
    }
}

/// Reasons for refusing a message of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LetterRefusal {
    /// The message does not come from the node that its subject names, or it was received before.
    NotGenuine(&'static str),
    /// The node has sealed the message for another controller, and this instance of the node has not sealed any message
    /// for this controller yet.
    OtherController,
    /// The node has sealed the message for another controller, although it has sent messages for this one: the message
    /// is for the other controller.
    NotForThisOne,
    /// The message is longer than allowed, or the node has sent too many.
    TooMuch(&'static str),
    /// The key of the node cannot be read now.
    NoKeyNow(String),
}

impl std::fmt::Display for LetterRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotGenuine(why) | Self::TooMuch(why) => f.write_str(why),
            Self::OtherController | Self::NotForThisOne => {
                f.write_str("the message is sealed for another controller")
            }
            Self::NoKeyNow(why) => write!(f, "the key of that node cannot be read: {why}"),
        }
    }
}

/// Checks the seals of all nodes, on the controller's side.
pub(crate) struct NodeSealChecker {
    keys: MacKeys,
    /// Instance of the controller for which letters must be sealed; `None` accepts any.
    session: Option<u64>,
    nodes: BTreeMap<NodeName, KnownNode>,
}

struct KnownNode {
    key: hmac::Key,
    incarnation: u64,
    earlier: VecDeque<u64>,
    /// The numbers for each kind of subject: the kinds use different connections and may overtake each other.
    numbers: BTreeMap<String, AcceptedNumbers>,
}

impl NodeSealChecker {
    pub(crate) const fn new(keys: MacKeys, session: Option<u64>) -> Self {
        Self { keys, session, nodes: BTreeMap::new() }
    }

    /// Checks that `bytes` come from this instance of the node `from`, and are new.
    pub(crate) fn check_letter(
        &mut self,
        from: &NodeName,
        incarnation: u64,
        subject: &str,
        seal: Option<&str>,
        bytes: &[u8],
    ) -> Result<(), LetterRefusal> {
        use LetterRefusal::{NoKeyNow, NotForThisOne, NotGenuine, OtherController};
        let seal = seal.ok_or(NotGenuine("the message has no seal"))?;
        let seal = WrittenSeal::parse_written_seal(seal).ok_or(NotGenuine("the seal cannot be parsed"))?;
        let WrittenSeal { session, number, .. } = seal;
        if seal.kind != "n" {
            return Err(NotGenuine("the seal was not made by a node"));
        }
        let known = self.nodes.get(from).filter(|node| node.incarnation == incarnation);
        let has_answered = known.is_some();
        let key = if let Some(node) = known {
            node.key.clone()
        } else {
            // The key is looked up for each instance, because a node that has joined again has another key.
            let key = (self.keys)(from).map_err(NoKeyNow)?;
            derive_letter_key(&key.ok_or(NotGenuine("the fleet has no key for that node"))?)
        };
        let covered = SealScope { subject, incarnation, session, number }.signed_payload(bytes);
        hmac::verify(&key, &covered, &seal.bytes).map_err(|_| NotGenuine("the seal is forged"))?;
        // The session is checked after the seal: before that, an attacker could have written it.
        if self.session.is_some_and(|own| own != session) {
            return Err(if has_answered { NotForThisOne } else { OtherController });
        }
        // No state is stored before this point, so forged messages leave no state behind.
        let node = self.find_or_add_instance(from, incarnation, key)?;
        let kind = subject.split('.').next().unwrap_or(subject);
        node.numbers.entry(kind.to_owned()).or_default().accept_number(number).map_err(NotGenuine)
    }

    /// Returns the state of this instance of a node, and adds it if it is new. The caller has verified the seal.
    fn find_or_add_instance(
        &mut self,
        from: &NodeName,
        incarnation: u64,
        key: hmac::Key,
    ) -> Result<&mut KnownNode, LetterRefusal> {
        let fresh = KnownNode { key, incarnation, earlier: VecDeque::new(), numbers: BTreeMap::new() };
        match self.nodes.entry(from.clone()) {
            Entry::Vacant(entry) => Ok(entry.insert(fresh)),
            Entry::Occupied(entry) => {
                let node = entry.into_mut();
                // An instance that was replaced sends nothing any more, so its letters are replays.
                if node.earlier.contains(&incarnation) {
                    return Err(LetterRefusal::NotGenuine(
                        "the message comes from an earlier instance of that node",
                    ));
                }
                if node.incarnation != incarnation {
                    node.start_new_instance(fresh);
                }
                Ok(node)
            }
        }
    }
}

impl KnownNode {
    fn start_new_instance(&mut self, fresh: Self) {
        let mut earlier = std::mem::take(&mut self.earlier);
        if earlier.len() == MAX_EARLIER_INSTANCES {
            earlier.pop_front();
        }
        earlier.push_back(self.incarnation);
        // A new instance of the node numbers its messages from 1 again.
        *self = Self { earlier, ..fresh };
    }
}

/// Builds the seal for a segment of results. It also covers the subject and the ID of the segment.
pub(crate) fn seal_segment(key: &[u8; MAC_KEY_BYTES], subject: &str, id: &str, body: &[u8]) -> String {
    let sealed = encode_with_length_prefixes(subject, id, body);
    BASE64.encode(hmac::sign(&derive_key(key, SEGMENT_SEAL_PURPOSE), &sealed))
}

pub(super) fn encode_with_length_prefixes(subject: &str, id: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in [subject.as_bytes(), id.as_bytes(), body] {
        bytes.extend((part.len() as u64).to_be_bytes());
        bytes.extend(part);
    }
    bytes
}

/// True if the node with this key has made `seal` for this segment.
pub(crate) fn is_segment_genuine(
    key: &[u8; MAC_KEY_BYTES],
    subject: &str,
    id: &str,
    body: &[u8],
    seal: &str,
) -> bool {
    let Ok(seal) = BASE64.decode(seal) else { return false };
    let sealed = encode_with_length_prefixes(subject, id, body);
    hmac::verify(&derive_key(key, SEGMENT_SEAL_PURPOSE), &sealed, &seal).is_ok()
}

#[cfg(test)]
mod tests {
    use super::super::numbers::REPEATED_MESSAGE_REASON;
    use super::LetterRefusal::{NoKeyNow, NotGenuine, OtherController};
    use super::*;
    use std::sync::Arc;

    const KEY: [u8; MAC_KEY_BYTES] = [7; MAC_KEY_BYTES];

    fn node() -> NodeName {
        NodeName("a".into())
    }

    fn checker() -> NodeSealChecker {
        NodeSealChecker::new(Arc::new(|name| Ok((name.0 == "a").then_some(KEY))), Some(0))
    }

    #[test]
    fn node_letter_is_accepted_once_as_sealed() {
        let mut sealer = NodeSealer::new(&KEY, 9);
        let seal = sealer.seal_letter("rep.a", b"bytes");
        let check = |from: &str, life, subject, bytes| {
            checker().check_letter(&NodeName(from.into()), life, subject, Some(&seal), bytes)
        };
        assert_eq!(check("a", 9, "rep.a", b"bytes"), Ok(()));
        assert!(check("a", 9, "rep.a", b"other").is_err());
        assert!(check("a", 9, "lease.a", b"bytes").is_err(), "another subject");
        assert!(check("a", 8, "rep.a", b"bytes").is_err(), "another life");
        assert!(check("b", 9, "rep.a", b"bytes").is_err(), "another node");
        let mut own = checker();
        let without_seal = own.check_letter(&node(), 9, "rep.a", None, b"bytes");
        assert_eq!(without_seal, Err(NotGenuine("the message has no seal")));
        assert_eq!(own.check_letter(&node(), 9, "rep.a", Some(&seal), b"bytes"), Ok(()));
        assert_eq!(
            own.check_letter(&node(), 9, "rep.a", Some(&seal), b"bytes"),
            Err(NotGenuine(REPEATED_MESSAGE_REASON))
        );
    }

    #[test]
    fn letters_reorder_across_subjects_not_across_instances() {
        let (mut old, mut new, mut own) = (NodeSealer::new(&KEY, 1), NodeSealer::new(&KEY, 2), checker());
        let (reply, renewal) = (old.seal_letter("rep.a", b"r"), old.seal_letter("lease.a", b"l"));
        assert_eq!(own.check_letter(&node(), 1, "lease.a", Some(&renewal), b"l"), Ok(()));
        assert_eq!(own.check_letter(&node(), 1, "rep.a", Some(&reply), b"r"), Ok(()));
        let restarted = new.seal_letter("hb.a", b"h");
        assert_eq!(own.check_letter(&node(), 2, "hb.a", Some(&restarted), b"h"), Ok(()));
        let late = old.seal_letter("rep.a", b"late");
        let refused = own.check_letter(&node(), 1, "rep.a", Some(&late), b"late");
        assert_eq!(refused, Err(NotGenuine("the message comes from an earlier instance of that node")));
    }

    #[test]
    fn node_letter_counts_only_for_its_controller() {
        let mut sealer = NodeSealer::new(&KEY, 9);
        let check = |session, seal: &str| {
            let keys: MacKeys = Arc::new(|_| Ok(Some(KEY)));
            NodeSealChecker::new(keys, session).check_letter(&node(), 9, "rep.a", Some(seal), b"armed")
        };
        sealer.set_session(4);
        let old = sealer.seal_letter("rep.a", b"armed");
        sealer.set_session(5);
        let new = sealer.seal_letter("rep.a", b"armed");
        assert_eq!([check(Some(4), &old), check(Some(5), &new), check(None, &old)], [Ok(()), Ok(()), Ok(())]);
        assert_eq!([check(Some(5), &old), check(Some(4), &new)], [const { Err(OtherController) }; 2]);
        let relabelled = old.replacen("0000000000000004", "0000000000000005", 1);
        assert_eq!(check(Some(5), &relabelled), Err(NotGenuine("the seal is forged")));
    }

    #[test]
    fn unreadable_key_is_not_reported_as_forgery() {
        let seal = NodeSealer::new(&KEY, 9).seal_letter("rep.a", b"armed");
        let keys: MacKeys = Arc::new(|_| Err("the disk is broken".to_owned()));
        let refused =
            NodeSealChecker::new(keys, Some(0)).check_letter(&node(), 9, "rep.a", Some(&seal), b"armed");
        assert_eq!(refused, Err(NoKeyNow("the disk is broken".to_owned())));
    }

    #[test]
    fn segment_seal_binds_subject_header_and_body() {
        let seal = seal_segment(&KEY, "res.r.a", "{1}", b"body");
        assert!(is_segment_genuine(&KEY, "res.r.a", "{1}", b"body", &seal));
        assert!(!is_segment_genuine(&KEY, "res.r.b", "{1}", b"body", &seal));
        assert!(!is_segment_genuine(&KEY, "res.r.a", "{2}", b"body", &seal));
        assert!(!is_segment_genuine(&KEY, "res.r.a", "{1}", b"bod", &seal));
        assert!(!is_segment_genuine(&[8; MAC_KEY_BYTES], "res.r.a", "{1}", b"body", &seal));
        assert!(!is_segment_genuine(&KEY, "res.r.a", "{1}", b"body", ""));
    }
}
