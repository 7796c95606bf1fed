//! A sample of a capture's packets. It is chosen by their content, so the samples of two captures
//! contain the same packets.

use super::PacketIdentity;
use std::collections::BTreeMap;

/// The `most` packets of a capture with the smallest identities. Identities are hashes, so this choice favours
/// no packet and does not depend on the capture: the samples of two captures of a link contain the same
/// packets, as far as both captures have them.
#[derive(Clone, Debug)]
pub struct PacketSample {
    most: usize,
    packets: BTreeMap<u64, SampledPacket>,
}

/// A packet of the sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SampledPacket {
    pub(super) at_ns: u64,
    /// Number of packets in the capture before this one.
    pub(super) number: u64,
    /// True if no other packet of the capture has the same content.
    pub(super) is_unique: bool,
}

impl PacketSample {
    pub fn new(most: usize) -> Self {
        Self { most, packets: BTreeMap::new() }
    }

    /// Offers a packet that came after `number` other packets.
    pub fn add_packet(&mut self, identity: PacketIdentity, number: u64, at_ns: u64) {
        let is_full = self.packets.len() >= self.most;
        if is_full && self.packets.last_key_value().is_none_or(|(largest, _)| identity.0 > *largest) {
            return;
        }
        let offered = SampledPacket { at_ns, number, is_unique: true };
        // A stored identity is removed only in favour of smaller ones and is never stored again, so a
        // repetition is always noticed.
        self.packets.entry(identity.0).and_modify(|known| known.is_unique = false).or_insert(offered);
        // The largest identity is removed in every capture, so samples of two captures keep the same packets.
        if self.packets.len() > self.most {
            self.packets.pop_last();
        }
    }

    /// Returns the packets that are unique in both samples, as pairs (ours, theirs), in the order of the other capture.
    pub(super) fn common_packets(&self, other: &Self) -> Vec<(SampledPacket, SampledPacket)> {
        let ours = self.packets.iter().filter(|(_, packet)| packet.is_unique);
        let both = ours.filter_map(|(identity, ours)| {
            let theirs = other.packets.get(identity).filter(|theirs| theirs.is_unique)?;
            Some((*ours, *theirs))
        });
        let mut common: Vec<_> = both.collect();
        // The pairs are sorted by number and not by time, because a clock may have been set back.
        common.sort_by_key(|(_, theirs)| theirs.number);
        common
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_wire::pattern::keyed_mix;

    fn sample(numbers: impl Iterator<Item = u64>, most: usize) -> PacketSample {
        let mut sample = PacketSample::new(most);
        for (number, packet) in numbers.enumerate() {
            sample.add_packet(PacketIdentity(keyed_mix(1, packet)), number as u64, 10 * packet);
        }
        sample
    }

    #[test]
    fn two_captures_choose_the_same_packets() {
        // The second lacks every tenth packet and has others besides.
        let ours = sample(0..10_000, 500);
        let theirs = sample((0..10_000).filter(|n| n % 10 > 0).chain(20_000..21_000), 500);
        let common = ours.common_packets(&theirs);
        assert!((400..=500).contains(&common.len()), "{}", common.len());
        assert!(common.is_sorted_by_key(|(_, theirs)| theirs.number));
        assert!(common.iter().all(|(ours, theirs)| ours.at_ns == theirs.at_ns));
    }

    #[test]
    fn duplicated_content_is_no_common_packet() {
        let ours = sample([1, 2, 3, 2].into_iter(), 9);
        assert_eq!(ours.common_packets(&sample(1..4, 9)).len(), 2);
        assert_eq!(sample(1..4, 9).common_packets(&ours).len(), 2);
    }
}
