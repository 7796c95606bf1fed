//! Keeps the ports of fragmented packets: only the first fragment has them, and later ones belong to the same flow.
//!
//! Memory is fixed: the table consists of sets of four entries, and the oldest entry of a set makes room. Keys are
//! compared in full, so a fragment never joins another packet. The only exception is a sender that uses an
//! identification twice within the time for which ports are kept.

use super::ParseOptions;
use super::ip::FragmentId;
use crate::PacketInfo;
use crate::hash::WordHasher;

const FRAGMENT_CACHE_WAYS: usize = 4;

/// Counts of fragments by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FragmentCounts {
    /// First fragments. Their ports were kept, unless [`ParseOptions::fragments`] is 0.
    pub first: u64,
    /// Later fragments that got the ports of their first fragment.
    pub joined: u64,
    /// Later fragments without a known first fragment: it comes later or never, or its ports were replaced.
    pub early: u64,
    /// Later fragments whose first fragment came too long ago.
    pub expired: u64,
    /// Kept ports that were replaced before they expired.
    pub evicted: u64,
}

#[derive(Debug)]
pub(super) struct FragmentTable {
    sets: Vec<[FragmentEntry; FRAGMENT_CACHE_WAYS]>,
    keep_ns: u64,
    hasher: WordHasher,
    counts: FragmentCounts,
}

#[derive(Clone, Copy, Debug, Default)]
struct FragmentEntry {
    key: FragmentKey,
    at_ns: u64,
    source_port: u16,
    destination_port: u16,
    protocol: u8,
    is_used: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FragmentKey {
    source: [u8; 16],
    destination: [u8; 16],
    id: u32,
    tunnel_id: u32,
    vlan: u16,
    inner_vlan: u16,
    protocol: u8,
}

impl FragmentKey {
    const fn from_packet(id: FragmentId, packet: &PacketInfo) -> Self {
        Self {
            source: packet.source,
            destination: packet.destination,
            // A host numbers its fragments alone, so the number is only unique for its addresses. Tunnels and
            // VLANs may carry private addresses twice, so they belong to the key as well.
            id: id.id,
            tunnel_id: packet.tunnel_id,
            vlan: packet.vlan,
            inner_vlan: packet.inner_vlan,
            protocol: id.protocol,
        }
    }

    fn hash_with(&self, hasher: &WordHasher) -> u64 {
        let [[a, b], [c, d]] = [self.source, self.destination].map(address_halves);
        let number = u64::from(self.id) << 32 | u64::from(self.vlan) << 16 | u64::from(self.inner_vlan);
        let tunnel = u64::from(self.tunnel_id) << 32 | u64::from(self.protocol);
        hasher.hash_six_words(&[a, b, c, d, number, tunnel])[0]
    }
}

#[expect(clippy::cast_possible_truncation, reason = "an address is split into two words")]
const fn address_halves(address: [u8; 16]) -> [u64; 2] {
    let word = u128::from_be_bytes(address);
    [(word >> 64) as u64, word as u64]
}

impl FragmentEntry {
    const fn is_free_at(&self, now: u64, keep_ns: u64) -> bool {
        !self.is_used || now.saturating_sub(self.at_ns) > keep_ns
    }
}

fn oldest_entry_index(set: &[FragmentEntry; FRAGMENT_CACHE_WAYS]) -> usize {
    (0..FRAGMENT_CACHE_WAYS).min_by_key(|place| set[*place].at_ns).unwrap_or(0)
}

impl FragmentTable {
    pub(super) fn new(options: ParseOptions) -> Self {
        let sets =
            // A power of two, because `cache_set_for_key` finds the set by a mask.
            if options.fragments == 0 { 0 } else { options.fragments.div_ceil(FRAGMENT_CACHE_WAYS).next_power_of_two() };
        Self {
            sets: vec![[FragmentEntry::default(); FRAGMENT_CACHE_WAYS]; sets],
            keep_ns: options.fragment_ns,
            hasher: WordHasher::new(options.hash_key),
            counts: FragmentCounts::default(),
        }
    }

    pub(super) const fn counts(&self) -> FragmentCounts {
        self.counts
    }

    /// Keeps the ports of a first fragment.
    pub(super) fn remember_ports(&mut self, id: FragmentId, packet: &PacketInfo) {
        self.counts.first += 1;
        let key = FragmentKey::from_packet(id, packet);
        let keep_ns = self.keep_ns;
        let now = packet.at_ns;
        let Some(set) = self.cache_set_for_key(&key) else { return };
        // An entry of the same packet is used first, then a free entry, then the oldest one. So no packet takes two
        // entries of a set.
        let same = set.iter().position(|entry| entry.is_used && entry.key == key);
        let place = same.or_else(|| set.iter().position(|entry| entry.is_free_at(now, keep_ns)));
        let evicted = place.is_none();
        let place = place.unwrap_or_else(|| oldest_entry_index(set));
        set[place] = FragmentEntry {
            key,
            at_ns: now,
            source_port: packet.source_port,
            destination_port: packet.destination_port,
            protocol: packet.protocol,
            is_used: true,
        };
        self.counts.evicted += u64::from(evicted);
    }

    /// Sets the ports and the protocol of a later fragment to those of its first fragment, if they are still kept.
    pub(super) fn fill_fragment_ports(&mut self, id: FragmentId, packet: &mut PacketInfo) {
        let key = FragmentKey::from_packet(id, packet);
        let keep_ns = self.keep_ns;
        let found = self
            .cache_set_for_key(&key)
            .and_then(|set| set.iter().find(|entry| entry.is_used && entry.key == key));
        match found.copied() {
            // The packet does not wait for the first fragment: it is metered now, with ports 0.
            None => self.counts.early += 1,
            Some(entry) if packet.at_ns.saturating_sub(entry.at_ns) > keep_ns => self.counts.expired += 1,
            Some(entry) => {
                packet.source_port = entry.source_port;
                packet.destination_port = entry.destination_port;
                // A later fragment of IPv6 may name an extension header that only the first one contains, so
                // the protocol comes from the first one.
                packet.protocol = entry.protocol;
                self.counts.joined += 1;
            }
        }
    }

    fn cache_set_for_key(&mut self, key: &FragmentKey) -> Option<&mut [FragmentEntry; FRAGMENT_CACHE_WAYS]> {
        // Without sets the mask is all ones, so no index is in range and no ports are stored.
        let mask = self.sets.len().wrapping_sub(1);
        let hash = key.hash_with(&self.hasher);
        self.sets.get_mut((hash >> 32) as usize & mask)
    }
}
