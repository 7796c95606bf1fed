//! A flow's key in a form that does not depend on which end is asked: six words, the lower end first.
//!
//! An answer of ICMP is written as the question it answers, so both are of one flow. It does no hashing and reads no packet.
//! Where each direction is a flow of its own, nothing is turned round.
//!
//! Invariant: two keys have the same words exactly if they are of the same flow.

use crate::key::FlowKey;
use crate::packet::TunnelKind;
use crate::packet::protocol::{ICMP, ICMPV6};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CanonicalKey {
    /// Lower end's address (2), upper end's (2), ports with protocol and tunnel, VLANs with the tunnel's number.
    pub(crate) words: [u64; 6],
    /// Whether the source is the upper end.
    pub(crate) flipped: bool,
}

impl CanonicalKey {
    /// Of both directions alike.
    #[inline]
    pub(crate) fn of(key: &FlowKey) -> Self {
        let (source, destination) = ends(key);
        let flipped = source > destination;
        let (low, high) = if flipped { (destination, source) } else { (source, destination) };
        Self { words: words(key, low, high, question(key.protocol, key.destination_port)), flipped }
    }

    /// Of this direction alone.
    #[inline]
    pub(crate) fn one_way(key: &FlowKey) -> Self {
        let (source, destination) = ends(key);
        Self { words: words(key, source, destination, key.destination_port), flipped: false }
    }

    /// The key again. `icmp` is what its packets' type and code were, which the words have as a question.
    pub(crate) fn key(&self, icmp: u16) -> FlowKey {
        let [low_a, low_b, high_a, high_b, middle, last] = self.words;
        let [p0, p1, q0, q1, _, _, protocol, tunnel] = middle.to_be_bytes();
        let [v0, v1, i0, i1, t0, t1, t2, t3] = last.to_be_bytes();
        let low = (address(low_a, low_b), u16::from_be_bytes([p0, p1]));
        let high = (address(high_a, high_b), u16::from_be_bytes([q0, q1]));
        let (source, destination) = if self.flipped { (high, low) } else { (low, high) };
        let is_icmp = is_icmp(protocol);
        FlowKey {
            source: source.0,
            destination: destination.0,
            source_port: if is_icmp { 0 } else { source.1 },
            destination_port: if is_icmp { icmp } else { destination.1 },
            protocol,
            tunnel: TunnelKind::from_number(tunnel).unwrap_or_default(),
            vlan: u16::from_be_bytes([v0, v1]),
            inner_vlan: u16::from_be_bytes([i0, i1]),
            tunnel_id: u32::from_be_bytes([t0, t1, t2, t3]),
        }
    }
}

/// Whether its "ports" are type and code.
pub(crate) const fn is_icmp(protocol: u8) -> bool {
    matches!(protocol, ICMP | ICMPV6)
}

/// Types of ICMP that ask, each with the one that answers.
const QUESTIONS: [(u8, u8, u8); 6] = [
    (ICMP, 8, 0),       // echo
    (ICMP, 13, 14),     // time stamp
    (ICMP, 15, 16),     // information
    (ICMP, 17, 18),     // address mask
    (ICMPV6, 128, 129), // echo
    (ICMPV6, 139, 140), // node information
];

/// Type and code of the question, if this is an answer of ICMP.
pub(crate) const fn question(protocol: u8, type_code: u16) -> u16 {
    let [kind, code] = type_code.to_be_bytes();
    let mut at = 0;
    while at < QUESTIONS.len() {
        let (of, question, answer) = QUESTIONS[at];
        if of == protocol && answer == kind {
            return u16::from_be_bytes([question, code]);
        }
        at += 1;
    }
    type_code
}

/// Type and code of what comes back for this: the answer of a question, the question of an answer. What is neither comes
/// back as it is.
pub(crate) const fn counterpart(protocol: u8, type_code: u16) -> u16 {
    let [kind, code] = type_code.to_be_bytes();
    let mut at = 0;
    while at < QUESTIONS.len() {
        let (of, question, answer) = QUESTIONS[at];
        if of == protocol && question == kind {
            return u16::from_be_bytes([answer, code]);
        }
        at += 1;
    }
    question(protocol, type_code)
}

type KeyEnd = (u128, u16);

/// Both ends. What ICMP has in place of ports belongs to neither.
fn ends(key: &FlowKey) -> (KeyEnd, KeyEnd) {
    let is_icmp = is_icmp(key.protocol);
    let port = |port: u16| if is_icmp { 0 } else { port };
    (
        (u128::from_be_bytes(key.source), port(key.source_port)),
        (u128::from_be_bytes(key.destination), port(key.destination_port)),
    )
}

#[expect(clippy::cast_possible_truncation, reason = "an address is taken apart")]
fn words(key: &FlowKey, low: KeyEnd, high: KeyEnd, type_code: u16) -> [u64; 6] {
    let (low_port, high_port) = if is_icmp(key.protocol) { (0, type_code) } else { (low.1, high.1) };
    [
        (low.0 >> 64) as u64,
        low.0 as u64,
        (high.0 >> 64) as u64,
        high.0 as u64,
        u64::from(low_port) << 48
            | u64::from(high_port) << 32
            | u64::from(key.protocol) << 8
            | u64::from(key.tunnel as u8),
        u64::from(key.vlan) << 48 | u64::from(key.inner_vlan) << 32 | u64::from(key.tunnel_id),
    ]
}

fn address(upper: u64, lower: u64) -> [u8; 16] {
    (u128::from(upper) << 64 | u128::from(lower)).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn keys() -> impl Strategy<Value = FlowKey> {
        let ends = (any::<[u8; 16]>(), any::<[u8; 16]>(), any::<u16>(), any::<u16>());
        let rest = (any::<u8>(), 0..TunnelKind::ALL.len(), any::<u16>(), any::<u16>(), any::<u32>());
        (ends, rest).prop_map(
            |((source, destination, a, b), (protocol, tunnel, vlan, inner_vlan, tunnel_id))| {
                let ports = if is_icmp(protocol) { (0, b) } else { (a, b) };
                FlowKey {
                    source,
                    destination,
                    source_port: ports.0,
                    destination_port: ports.1,
                    protocol,
                    tunnel: TunnelKind::ALL[tunnel],
                    vlan,
                    inner_vlan,
                    tunnel_id,
                }
            },
        )
    }

    proptest! {
        #[test]
        fn both_ends_say_the_same(key in keys()) {
            let (one, other) = (CanonicalKey::of(&key), CanonicalKey::of(&key.reversed()));
            prop_assert_eq!(one.words, other.words);
            prop_assert_eq!(key.canonical(), key.reversed().canonical());
            prop_assert_eq!(CanonicalKey::of(&key.canonical()), CanonicalKey { flipped: false, ..one });
        }

        #[test]
        fn turned_round_twice_it_is_itself(key in keys()) {
            prop_assert_eq!(key.reversed().reversed(), key);
        }

        #[test]
        fn nothing_is_forgotten(key in keys()) {
            prop_assert_eq!(CanonicalKey::of(&key).key(key.destination_port), key);
            prop_assert_eq!(CanonicalKey::one_way(&key).key(key.destination_port), key);
        }
    }

    #[test]
    fn an_echo_and_its_answer_are_one_flow_and_other_kinds_are_not() {
        let ask = FlowKey {
            source: [1; 16],
            destination: [2; 16],
            destination_port: 0x0800,
            protocol: 1,
            ..FlowKey::default()
        };
        let answer = ask.reversed();
        assert_eq!((answer.source_port, answer.destination_port), (0, 0));
        let unreachable = FlowKey { destination_port: 0x0301, ..answer };
        assert_eq!(CanonicalKey::of(&ask).words, CanonicalKey::of(&answer).words);
        assert_ne!(CanonicalKey::of(&ask).words, CanonicalKey::of(&unreachable).words);
        assert_eq!(question(ICMPV6, 0x8100), 0x8000);
    }
}
