//! A packet's key in the two words that the table compares.
//!
//! A key of IPv4 without a tunnel and without an inner VLAN fits into them (*short*). For any other key they hold a
//! digest, and a match is confirmed by comparing the six words of [`CanonicalKey`] as well (*long*).

use super::TableOptions;
use super::index::NONE;
use crate::canonical::{CanonicalKey, is_icmp, request_type_code};
use crate::hash::WordHasher;
use crate::key::FlowKey;
use crate::packet::{IPV4_MAPPED_PREFIX, PacketInfo, TunnelKind};

/// Bits of the second word that are not part of the key: the flow's state.
pub(super) const STATE_BITS: u64 = 0xff;
/// Kind of the key, in the second word. If neither bit is set, there is no flow.
pub(super) const SHORT_KEY_KIND: u64 = 1 << 8;
pub(super) const LONG_KEY_KIND: u64 = 2 << 8;
pub(super) const KEY_KIND_BITS: u64 = SHORT_KEY_KIND | LONG_KEY_KIND;
/// Bits of a digest without the bits of state and kind.
const DIGEST_BITS: u64 = !0xfff;
/// VLAN identifiers have twelve bits.
const VLAN_BITS: u16 = 0xfff;

/// Key of a packet, and the slot where it was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyLookup {
    /// The words of the key; the bits of the state are zero.
    pub(super) words: [u64; 2],
    pub(super) hash: u64,
    /// Slot that probably has the flow; [`NONE`] before the search, or if no tag matched.
    pub(super) slot: u32,
    /// True if the packet goes from the upper endpoint to the lower one.
    pub(super) flipped: bool,
}

impl KeyLookup {
    pub(super) const EMPTY_LOOKUP: Self = Self { words: [0; 2], hash: 0, slot: NONE, flipped: false };

    pub(super) const fn is_long(&self) -> bool {
        self.words[1] & LONG_KEY_KIND != 0
    }
}

/// The two words of a key, and whether its source is the upper endpoint.
#[derive(Clone, Copy)]
struct KeyWords {
    words: [u64; 2],
    flipped: bool,
}

/// Makes keys of packets.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub(super) struct FlowKeyBuilder {
    hasher: WordHasher,
    biflow: bool,
    icmp: bool,
    vlan: bool,
    tunnel: bool,
}

impl FlowKeyBuilder {
    pub(super) const fn new(options: &TableOptions) -> Self {
        Self {
            hasher: WordHasher::new(options.hash_key),
            biflow: options.biflow,
            icmp: options.icmp_in_key,
            vlan: options.vlan_in_key,
            tunnel: options.tunnel_in_key,
        }
    }

    /// Returns the key of a packet and its hash, not looked up yet.
    #[inline]
    pub(super) fn make_lookup(&self, packet: &PacketInfo) -> KeyLookup {
        // The kind is part of the words, so a short key never equals the digest of a long one.
        let key = self.short_key_words(packet).unwrap_or_else(|| self.long_key_words(packet));
        KeyLookup { words: key.words, hash: self.hash_words(key.words), slot: NONE, flipped: key.flipped }
    }

    /// Hashes the words of a key, without the bits of the state.
    #[inline]
    pub(super) const fn hash_words(&self, words: [u64; 2]) -> u64 {
        self.hasher.hash_two_words(words)
    }

    /// Returns the packet's key as six words.
    #[inline]
    pub(super) fn canonical_key(&self, packet: &PacketInfo) -> CanonicalKey {
        let key = self.flow_key(packet);
        if self.biflow { CanonicalKey::from_key(&key) } else { CanonicalKey::one_way(&key) }
    }

    /// Returns the packet's key without the fields that the options exclude from keys.
    pub(super) fn flow_key(&self, packet: &PacketInfo) -> FlowKey {
        let mut key = FlowKey::from_packet(packet);
        if is_icmp(key.protocol) {
            key.source_port = 0;
            key.destination_port = if self.icmp { key.destination_port } else { 0 };
        }
        if !self.vlan {
            key.vlan = 0;
            key.inner_vlan = 0;
        }
        if !self.tunnel {
            key.tunnel = TunnelKind::None;
            key.tunnel_id = 0;
        }
        key
    }

    /// Returns whether type and code of ICMP are in the key.
    pub(super) const fn has_icmp(&self) -> bool {
        self.icmp
    }

    #[inline]
    fn short_key_words(&self, packet: &PacketInfo) -> Option<KeyWords> {
        let carried = self.tunnel && (packet.tunnel != TunnelKind::None || packet.tunnel_id != 0);
        let stacked = self.vlan && (packet.inner_vlan != 0 || packet.vlan > VLAN_BITS);
        let source = ipv4_address(&packet.source)?;
        let destination = ipv4_address(&packet.destination)?;
        if carried || stacked {
            return None;
        }
        // Type and code of ICMP belong to neither end, so they are added only when the ends are in order.
        let mut ports = 0;
        let mut source_port = u64::from(packet.source_port);
        let mut destination_port = u64::from(packet.destination_port);
        if is_icmp(packet.protocol) {
            if self.icmp {
                ports = u64::from(self.type_code(packet));
            }
            source_port = 0;
            destination_port = 0;
        }
        // An end is its address and port in one word. The lower one comes first, so that both directions have
        // the same key.
        let from = u64::from(source) << 16 | source_port;
        let to = u64::from(destination) << 16 | destination_port;
        let flipped = self.biflow && from > to;
        let low = if flipped { to } else { from };
        let high = if flipped { from } else { to };
        let vlan = if self.vlan { u64::from(packet.vlan) } else { 0 };
        let ports = ports | (low & 0xffff) << 16 | high & 0xffff;
        // The fields from the top: ports 32 bits, protocol 8, VLAN 12, kind of key 4 (SHORT is one of them), state 8.
        let rest = ports << 32 | u64::from(packet.protocol) << 24 | vlan << 12 | SHORT_KEY_KIND;
        Some(KeyWords { words: [(low >> 16) << 32 | high >> 16, rest], flipped })
    }

    /// Returns type and code of ICMP: a reply is in the flow of its request if both directions are one flow.
    const fn type_code(&self, packet: &PacketInfo) -> u16 {
        let type_code = packet.destination_port;
        if self.biflow { request_type_code(packet.protocol, type_code) } else { type_code }
    }

    #[inline(never)]
    fn long_key_words(&self, packet: &PacketInfo) -> KeyWords {
        let canonical = self.canonical_key(packet);
        let [first, second] = self.hasher.hash_six_words(&canonical.words);
        KeyWords { words: [first, second & DIGEST_BITS | LONG_KEY_KIND], flipped: canonical.flipped }
    }
}

/// Returns an IPv4 address as a number; `None` for an IPv6 address.
#[inline]
fn ipv4_address(address: &[u8; 16]) -> Option<u32> {
    let [prefix @ .., a, b, c, d] = address;
    (*prefix == IPV4_MAPPED_PREFIX).then(|| u32::from_be_bytes([*a, *b, *c, *d]))
}
