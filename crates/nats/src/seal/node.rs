//! Seals on what nodes say: a reply, a renewal and a segment count only with a MAC that its node alone can make.
//!
//! The server vouches for the subject; the seal vouches for the bytes, so that neither the server nor whoever finds a way
//! around its rules can speak for a node. The key is the one that node and controller share since the enrolment, derived
//! anew for each purpose, so that nothing sealed for one can be shown for another.
//!
//! Invariant: the controller accepts each number of a node's life once and in order, for each kind of subject.

use super::{BASE64, MAC_KEY, MacKeys, Scope, SplitSeal};
use base64::Engine as _;
use packetrig_fleet::message::NodeName;
use ring::hmac;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};

/// Earlier lives of a node that are remembered.
const EARLIER_LIVES: usize = 256;

const SEGMENTS: &str = "packetrig segments 1";

/// The key for one purpose.
fn derived(key: &[u8; MAC_KEY], purpose: &str) -> hmac::Key {
    let key = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), purpose.as_bytes());
    hmac::Key::new(hmac::HMAC_SHA256, key.as_ref())
}

fn letter_key(key: &[u8; MAC_KEY]) -> hmac::Key {
    derived(key, "packetrig letters of a node 1")
}

/// The node's side.
pub(crate) struct NodeSealer {
    key: hmac::Key,
    incarnation: u64,
    number: u64,
}

impl NodeSealer {
    pub(crate) fn new(key: &[u8; MAC_KEY], incarnation: u64) -> Self {
        Self { key: letter_key(key), incarnation, number: 0 }
    }

    pub(crate) fn seal(&mut self, subject: &str, bytes: &[u8]) -> String {
        self.number += 1;
        let scope = Scope { subject, incarnation: self.incarnation, session: 0, number: self.number };
        let seal = hmac::sign(&self.key, &scope.covered(bytes));
        format!("n.{:016x}.{:016x}.{}", 0, self.number, BASE64.encode(seal))
    }
}

/// The controller's side, for all nodes.
pub(crate) struct NodeSealChecker {
    keys: MacKeys,
    nodes: BTreeMap<NodeName, KnownNode>,
}

struct KnownNode {
    key: hmac::Key,
    incarnation: u64,
    earlier: VecDeque<u64>,
    /// The last number at each kind of subject: they come by ways of their own and may overtake each other.
    last_numbers: BTreeMap<String, u64>,
}

impl NodeSealChecker {
    pub(crate) const fn new(keys: MacKeys) -> Self {
        Self { keys, nodes: BTreeMap::new() }
    }

    /// Whether `bytes` come from this life of the node `from`, and are new.
    pub(crate) fn check(
        &mut self,
        from: &NodeName,
        incarnation: u64,
        subject: &str,
        seal: Option<&str>,
        bytes: &[u8],
    ) -> Result<(), &'static str> {
        let (kind, session, number, mac) = seal.ok_or("no seal")?.split_seal().ok_or("no readable seal")?;
        if kind != "n" {
            return Err("not the seal of a node");
        }
        let known = self.nodes.get(from).filter(|node| node.incarnation == incarnation);
        let key = match known {
            Some(node) => node.key.clone(),
            None => letter_key(&(self.keys)(from).ok_or("no key for that node")?),
        };
        let covered = Scope { subject, incarnation, session, number }.covered(bytes);
        hmac::verify(&key, &covered, &mac).map_err(|_| "a forged seal")?;
        let node = self.life_of(from, incarnation, key)?;
        let kind = subject.split('.').next().unwrap_or(subject);
        let last = node.last_numbers.entry(kind.to_owned()).or_insert(0);
        if number <= *last {
            return Err("a repetition");
        }
        *last = number;
        Ok(())
    }

    /// What is known of this life of a node, which has just proven that it is one.
    fn life_of(
        &mut self,
        from: &NodeName,
        incarnation: u64,
        key: hmac::Key,
    ) -> Result<&mut KnownNode, &'static str> {
        let fresh = KnownNode { key, incarnation, earlier: VecDeque::new(), last_numbers: BTreeMap::new() };
        match self.nodes.entry(from.clone()) {
            Entry::Vacant(entry) => Ok(entry.insert(fresh)),
            Entry::Occupied(entry) => {
                let node = entry.into_mut();
                if node.earlier.contains(&incarnation) {
                    return Err("an earlier life of that node");
                }
                if node.incarnation != incarnation {
                    node.begin_anew(fresh);
                }
                Ok(node)
            }
        }
    }
}

impl KnownNode {
    fn begin_anew(&mut self, fresh: Self) {
        let mut earlier = std::mem::take(&mut self.earlier);
        if earlier.len() == EARLIER_LIVES {
            earlier.pop_front();
        }
        earlier.push_back(self.incarnation);
        *self = Self { earlier, ..fresh };
    }
}

/// The seal on a segment of results. It covers where and as what the segment is stored.
pub(crate) fn segment_seal(key: &[u8; MAC_KEY], subject: &str, id: &str, body: &[u8]) -> String {
    BASE64.encode(hmac::sign(&derived(key, SEGMENTS), &segment_bytes(subject, id, body)))
}

fn segment_bytes(subject: &str, id: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in [subject.as_bytes(), id.as_bytes(), body] {
        bytes.extend((part.len() as u64).to_be_bytes());
        bytes.extend(part);
    }
    bytes
}

/// Whether `seal` is that of the node with this key.
pub(crate) fn is_segment_genuine(
    key: &[u8; MAC_KEY],
    subject: &str,
    id: &str,
    body: &[u8],
    seal: &str,
) -> bool {
    let Ok(seal) = BASE64.decode(seal) else { return false };
    hmac::verify(&derived(key, SEGMENTS), &segment_bytes(subject, id, body), &seal).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    const KEY: [u8; MAC_KEY] = [7; MAC_KEY];

    fn node() -> NodeName {
        NodeName("a".into())
    }

    fn checker() -> NodeSealChecker {
        NodeSealChecker::new(Arc::new(|name| (name.0 == "a").then_some(KEY)))
    }

    #[test]
    fn a_letter_of_a_node_is_accepted_once_and_only_as_it_was_sealed() {
        let mut sealer = NodeSealer::new(&KEY, 9);
        let seal = sealer.seal("rep.a", b"bytes");
        let check = |from: &str, life, subject, bytes| {
            checker().check(&NodeName(from.into()), life, subject, Some(&seal), bytes)
        };
        assert_eq!(check("a", 9, "rep.a", b"bytes"), Ok(()));
        assert!(check("a", 9, "rep.a", b"other").is_err());
        assert!(check("a", 9, "lease.a", b"bytes").is_err(), "another subject");
        assert!(check("a", 8, "rep.a", b"bytes").is_err(), "another life");
        assert!(check("b", 9, "rep.a", b"bytes").is_err(), "another node");
        let mut own = checker();
        assert_eq!(own.check(&node(), 9, "rep.a", None, b"bytes"), Err("no seal"));
        assert_eq!(own.check(&node(), 9, "rep.a", Some(&seal), b"bytes"), Ok(()));
        assert_eq!(own.check(&node(), 9, "rep.a", Some(&seal), b"bytes"), Err("a repetition"));
    }

    #[test]
    fn kinds_of_subjects_may_overtake_each_other_and_lives_may_not_come_back() {
        let (mut old, mut new, mut own) = (NodeSealer::new(&KEY, 1), NodeSealer::new(&KEY, 2), checker());
        let (reply, renewal) = (old.seal("rep.a", b"r"), old.seal("lease.a", b"l"));
        assert_eq!(own.check(&node(), 1, "lease.a", Some(&renewal), b"l"), Ok(()));
        assert_eq!(own.check(&node(), 1, "rep.a", Some(&reply), b"r"), Ok(()));
        let restarted = new.seal("hb.a", b"h");
        assert_eq!(own.check(&node(), 2, "hb.a", Some(&restarted), b"h"), Ok(()));
        let late = old.seal("rep.a", b"late");
        assert_eq!(own.check(&node(), 1, "rep.a", Some(&late), b"late"), Err("an earlier life of that node"));
    }

    #[test]
    fn a_segment_is_genuine_where_and_as_what_it_was_sealed() {
        let seal = segment_seal(&KEY, "res.r.a", "{1}", b"body");
        assert!(is_segment_genuine(&KEY, "res.r.a", "{1}", b"body", &seal));
        assert!(!is_segment_genuine(&KEY, "res.r.b", "{1}", b"body", &seal));
        assert!(!is_segment_genuine(&KEY, "res.r.a", "{2}", b"body", &seal));
        assert!(!is_segment_genuine(&KEY, "res.r.a", "{1}", b"bod", &seal));
        assert!(!is_segment_genuine(&[8; MAC_KEY], "res.r.a", "{1}", b"body", &seal));
        assert!(!is_segment_genuine(&KEY, "res.r.a", "{1}", b"body", ""));
    }
}
