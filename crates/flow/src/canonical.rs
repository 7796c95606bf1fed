//! A flow key in a form that is the same for both directions of a flow: six 64-bit words, the lower endpoint first.
//!
//! The type of an ICMP reply is replaced by the type of its request, so both belong to one flow. If each direction is a
//! flow of its own, source and destination are not swapped. This module hashes nothing and reads no packet.
//!
//! Invariant: two keys have the same words exactly if they belong to the same flow.

use crate::key::FlowKey;
use crate::packet::TunnelKind;
use crate::packet::protocol::{ICMP, ICMPV6};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CanonicalKey {
    /// Two words for the lower endpoint's address, two for the upper endpoint's address, one for ports, protocol and
    /// kind of tunnel, one for VLANs and the tunnel's number.
    pub(crate) words: [u64; 6],
    /// True if the source is the upper endpoint.
    pub(crate) flipped: bool,
}

impl CanonicalKey {
    /// Builds a key with the same words for both directions of a flow.
    #[inline]
    pub(crate) fn from_key(key: &FlowKey) -> Self {
        let [source, destination] = key_endpoints(key);
        let low = source.min(destination);
        let high = source.max(destination);
        // A reply is written as its request, so both directions of an echo have the same words.
        let type_code = request_type_code(key.protocol, key.destination_port);
        Self { words: pack_words(key, low, high, type_code), flipped: source > destination }
    }

    /// Builds a key for this direction alone; the opposite direction has other words.
    #[inline]
    pub(crate) fn one_way(key: &FlowKey) -> Self {
        let [source, destination] = key_endpoints(key);
        Self { words: pack_words(key, source, destination, key.destination_port), flipped: false }
    }

    /// Converts back to a flow key. For ICMP, `icmp` is the type and code of the result: the words of a biflow hold
    /// only the type and code of the request.
    pub(crate) fn to_flow_key(self, icmp: u16) -> FlowKey {
        let [low_a, low_b, high_a, high_b, middle, last] = self.words;
        let [p0, p1, q0, q1, _, _, protocol, tunnel] = middle.to_be_bytes();
        let [v0, v1, i0, i1, t0, t1, t2, t3] = last.to_be_bytes();
        let low = KeyEndpoint { address: join_address(low_a, low_b), port: u16::from_be_bytes([p0, p1]) };
        let high = KeyEndpoint { address: join_address(high_a, high_b), port: u16::from_be_bytes([q0, q1]) };
        let source = if self.flipped { high } else { low };
        let destination = if self.flipped { low } else { high };
        let is_icmp = is_icmp(protocol);
        FlowKey {
            source: source.address.to_be_bytes(),
            destination: destination.address.to_be_bytes(),
            source_port: if is_icmp { 0 } else { source.port },
            destination_port: if is_icmp { icmp } else { destination.port },
            protocol,
            tunnel: TunnelKind::from_number(tunnel).unwrap_or_default(),
            vlan: u16::from_be_bytes([v0, v1]),
            inner_vlan: u16::from_be_bytes([i0, i1]),
            tunnel_id: u32::from_be_bytes([t0, t1, t2, t3]),
        }
    }
}

/// Returns whether a key of this protocol holds an ICMP type and code in place of a destination port.
pub(crate) const fn is_icmp(protocol: u8) -> bool {
    matches!(protocol, ICMP | ICMPV6)
}

/// An ICMP type of a request, and the type of its reply.
struct IcmpExchange {
    protocol: u8,
    question: u8,
    answer: u8,
}

const fn icmp_exchange(protocol: u8, question: u8, answer: u8) -> IcmpExchange {
    IcmpExchange { protocol, question, answer }
}

// Neighbour and router discovery are not in the list. Their answers go to groups or arrive unsolicited, so the
// addresses of request and reply are not each other's reverse.
const ICMP_EXCHANGES: [IcmpExchange; 6] = [
    icmp_exchange(ICMP, 8, 0),       // echo
    icmp_exchange(ICMP, 13, 14),     // time stamp
    icmp_exchange(ICMP, 15, 16),     // information
    icmp_exchange(ICMP, 17, 18),     // address mask
    icmp_exchange(ICMPV6, 128, 129), // echo
    icmp_exchange(ICMPV6, 139, 140), // node information
];

/// Converts the type and code of an ICMP reply to those of its request. Any other type and code stay as they are.
pub(crate) const fn request_type_code(protocol: u8, type_code: u16) -> u16 {
    let [kind, code] = type_code.to_be_bytes();
    let mut at = 0;
    while at < ICMP_EXCHANGES.len() {
        let known = &ICMP_EXCHANGES[at];
        if known.protocol == protocol && known.answer == kind {
            return u16::from_be_bytes([known.question, code]);
        }
        at += 1;
    }
    type_code
}

/// Converts the type and code of a request to those of its reply, and the reverse. Any other type and code
/// stay as they are.
pub(crate) const fn counterpart_type_code(protocol: u8, type_code: u16) -> u16 {
    let [kind, code] = type_code.to_be_bytes();
    let mut at = 0;
    while at < ICMP_EXCHANGES.len() {
        let known = &ICMP_EXCHANGES[at];
        if known.protocol == protocol && known.question == kind {
            return u16::from_be_bytes([known.answer, code]);
        }
        at += 1;
    }
    request_type_code(protocol, type_code)
}

/// One end of a flow. Ends are ordered by address, then by port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct KeyEndpoint {
    address: u128,
    port: u16,
}

/// Returns the source and the destination. The ports of ICMP are 0.
fn key_endpoints(key: &FlowKey) -> [KeyEndpoint; 2] {
    // The type and code of ICMP are stored as the destination port, but belong to neither end. If they were part of an
    // endpoint, a reply would have them at the other one. `pack_words` places them separately.
    let has_ports = !is_icmp(key.protocol);
    [(key.source, key.source_port), (key.destination, key.destination_port)].map(|(address, port)| {
        KeyEndpoint { address: u128::from_be_bytes(address), port: if has_ports { port } else { 0 } }
    })
}

#[expect(clippy::cast_possible_truncation, reason = "an address is split into two words")]
fn pack_words(key: &FlowKey, low: KeyEndpoint, high: KeyEndpoint, type_code: u16) -> [u64; 6] {
    let high_port = if is_icmp(key.protocol) { type_code } else { high.port };
    // Every field of the key has its own bits: the table compares only these words, so two fields with common
    // bits would merge flows without a trace.
    [
        (low.address >> 64) as u64,
        low.address as u64,
        (high.address >> 64) as u64,
        high.address as u64,
        u64::from(low.port) << 48
            | u64::from(high_port) << 32
            | u64::from(key.protocol) << 8
            | u64::from(key.tunnel as u8),
        u64::from(key.vlan) << 48 | u64::from(key.inner_vlan) << 32 | u64::from(key.tunnel_id),
    ]
}

fn join_address(upper: u64, lower: u64) -> u128 {
    u128::from(upper) << 64 | u128::from(lower)
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
            let (one, other) = (CanonicalKey::from_key(&key), CanonicalKey::from_key(&key.opposite_direction()));
            prop_assert_eq!(one.words, other.words);
            prop_assert_eq!(key.to_canonical(), key.opposite_direction().to_canonical());
            prop_assert_eq!(CanonicalKey::from_key(&key.to_canonical()), CanonicalKey { flipped: false, ..one });
        }

        #[test]
        fn turned_round_twice_it_is_itself(key in keys()) {
            prop_assert_eq!(key.opposite_direction().opposite_direction(), key);
        }

        #[test]
        fn nothing_is_forgotten(key in keys()) {
            prop_assert_eq!(CanonicalKey::from_key(&key).to_flow_key(key.destination_port), key);
            prop_assert_eq!(CanonicalKey::one_way(&key).to_flow_key(key.destination_port), key);
        }
    }

    #[test]
    fn icmp_echo_and_reply_share_canonical_key() {
        let ask = FlowKey {
            source: [1; 16],
            destination: [2; 16],
            destination_port: 0x0800,
            protocol: 1,
            ..FlowKey::default()
        };
        let answer = ask.opposite_direction();
        assert_eq!((answer.source_port, answer.destination_port), (0, 0));
        let unreachable = FlowKey { destination_port: 0x0301, ..answer };
        assert_eq!(CanonicalKey::from_key(&ask).words, CanonicalKey::from_key(&answer).words);
        assert_ne!(CanonicalKey::from_key(&ask).words, CanonicalKey::from_key(&unreachable).words);
        assert_eq!(request_type_code(ICMPV6, 0x8100), 0x8000);
    }
}
