//! Merges the packets of several captures in the order of one clock.

use super::PacketIdentity;
use packetrig_units::Nanos;
use std::collections::{BTreeMap, HashMap};

/// Maximum number of captures that can be merged together.
pub const MAX_CAPTURES: usize = 32;
/// Approximate memory of a waiting packet in addition to its bytes: its entries in two tables, and the
/// overhead of its allocation.
const PACKET_OVERHEAD_BYTES: usize = 256;

/// Set of captures that contain a packet, with one bit for each capture number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CaptureSet(u32);

impl CaptureSet {
    /// Set of the first `count` captures.
    pub const fn first_captures(count: usize) -> Self {
        Self(if count >= MAX_CAPTURES { u32::MAX } else { (1 << count) - 1 })
    }

    pub const fn has_capture(self, capture: usize) -> bool {
        capture < MAX_CAPTURES && self.0 & 1 << capture != 0
    }

    pub const fn count(self) -> u32 {
        self.0.count_ones()
    }

    const fn with_capture(self, capture: usize) -> Self {
        Self(self.0 | 1 << capture)
    }

    /// Lowest number in the set; [`MAX_CAPTURES`] if it is empty.
    const fn lowest_capture(self) -> usize {
        self.0.trailing_zeros() as usize
    }
}

/// A packet as a capture contains it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CapturedPacket {
    pub bytes: Vec<u8>,
    pub full_len: u32,
    pub link_type: u16,
    /// Payload bytes of each original packet, if the kernel or the card merged several packets into this one.
    pub merged: Option<u16>,
}

/// A packet of the merged series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergedPacket {
    /// Time in the common clock, from the first capture that has the packet.
    pub at_ns: u64,
    pub captures: CaptureSet,
    /// Packet from the capture that contains most of its bytes.
    pub packet: CapturedPacket,
}

/// The order of packets: their time, then the order in which they were offered.
type MergeOrderKey = (u64, u64);

/// Merges packets. It stores the packets that another capture may still contain.
#[derive(Debug)]
pub struct PacketMerger {
    tolerance_ns: u64,
    pending: BTreeMap<MergeOrderKey, PendingPacket>,
    places: HashMap<PacketIdentity, Vec<MergeOrderKey>>,
    offered: u64,
    waiting_bytes: usize,
}

#[derive(Debug)]
struct PendingPacket {
    identity: PacketIdentity,
    merged: MergedPacket,
}

impl PacketMerger {
    /// Creates a merger. `tolerance`: maximum difference between the times of one packet in two captures.
    pub fn new(tolerance: Nanos) -> Self {
        Self {
            tolerance_ns: tolerance.as_u64(),
            pending: BTreeMap::new(),
            places: HashMap::new(),
            offered: 0,
            waiting_bytes: 0,
        }
    }

    pub const fn tolerance_ns(&self) -> u64 {
        self.tolerance_ns
    }

    /// Approximate memory of the waiting packets, in bytes.
    pub const fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// Adds a packet of capture number `capture` (below [`MAX_CAPTURES`]) with its time in the common clock. If the
    /// packet is waiting from another capture, the two are joined.
    pub fn offer_packet(
        &mut self,
        capture: usize,
        at_ns: u64,
        identity: PacketIdentity,
        packet: CapturedPacket,
    ) {
        let fresh = MergedPacket { at_ns, captures: CaptureSet::default().with_capture(capture), packet };
        let merged = match self.find_same_packet(capture, at_ns, identity) {
            // The entry is removed and inserted again, because its time and its bytes may change.
            Some(place) => join_packets(self.remove_pending_packet(place), fresh),
            None => fresh,
        };
        // The number separates packets with the same time, in the order in which they were offered.
        let place = (merged.at_ns, self.offered);
        self.offered += 1;
        self.waiting_bytes += PACKET_OVERHEAD_BYTES + merged.packet.bytes.len();
        self.places.entry(identity).or_default().push(place);
        self.pending.insert(place, PendingPacket { identity, merged });
    }

    /// Finds the same packet from other captures: among the packets with the same content, the nearest one in
    /// time, within the tolerance.
    fn find_same_packet(
        &self,
        capture: usize,
        at_ns: u64,
        identity: PacketIdentity,
    ) -> Option<MergeOrderKey> {
        let places = self.places.get(&identity)?.iter();
        // Equal packets of one capture are different packets, so they stay separate.
        let lacking = places.filter(|place| !self.pending[place].merged.captures.has_capture(capture));
        let near = lacking.filter(|(time, _)| time.abs_diff(at_ns) <= self.tolerance_ns);
        // At equal distances the packet that was offered first is taken, so that a repeated merge
        // gives the same result.
        near.min_by_key(|(time, number)| (time.abs_diff(at_ns), *number)).copied()
    }

    /// Removes and returns the earliest packet, if it is earlier than `until_ns`.
    pub fn take_earliest_before(&mut self, until_ns: u64) -> Option<MergedPacket> {
        let place = *self.pending.first_key_value()?.0;
        (place.0 < until_ns).then(|| self.remove_pending_packet(place))
    }

    /// Removes and returns the earliest packet. Used when no more packets come, or when too many are waiting.
    pub fn take_earliest_packet(&mut self) -> Option<MergedPacket> {
        let place = *self.pending.first_key_value()?.0;
        Some(self.remove_pending_packet(place))
    }

    fn remove_pending_packet(&mut self, place: MergeOrderKey) -> MergedPacket {
        #[expect(clippy::expect_used, reason = "places are those of pending packets")]
        let PendingPacket { identity, merged } = self.pending.remove(&place).expect("a pending packet");
        self.waiting_bytes -= PACKET_OVERHEAD_BYTES + merged.packet.bytes.len();
        if let Some(places) = self.places.get_mut(&identity) {
            places.retain(|known| *known != place);
            if places.is_empty() {
                self.places.remove(&identity);
            }
        }
        merged
    }
}

/// Joins two packets into one. It gets the time of the capture with the lower number, and the bytes of the capture
/// that has more of them.
fn join_packets(known: MergedPacket, fresh: MergedPacket) -> MergedPacket {
    // No capture is in both sets, because equal packets of one capture stay apart.
    let captures = CaptureSet(known.captures.0 | fresh.captures.0);
    let at_ns = if fresh.captures.lowest_capture() < known.captures.lowest_capture() {
        fresh.at_ns
    } else {
        known.at_ns
    };
    let packet =
        if fresh.packet.bytes.len() > known.packet.bytes.len() { fresh.packet } else { known.packet };
    MergedPacket { at_ns, captures, packet }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packet(length: u8) -> CapturedPacket {
        CapturedPacket { bytes: vec![0; length.into()], full_len: 99, link_type: 1, merged: None }
    }

    fn all(mut merger: PacketMerger) -> Vec<MergedPacket> {
        std::iter::from_fn(|| merger.take_earliest_packet()).collect()
    }

    #[test]
    fn merged_packet_takes_first_time_and_most_bytes() {
        let mut merger = PacketMerger::new(Nanos::new(10));
        merger.offer_packet(1, 100, PacketIdentity(5), packet(60));
        merger.offer_packet(0, 104, PacketIdentity(5), packet(40));
        merger.offer_packet(0, 102, PacketIdentity(6), packet(40));
        assert_eq!(merger.waiting_bytes(), 2 * PACKET_OVERHEAD_BYTES + 60 + 40);
        assert_eq!(merger.take_earliest_before(102), None);
        let series = all(merger);
        assert_eq!(series.iter().map(|merged| merged.at_ns).collect::<Vec<_>>(), [102, 104]);
        assert_eq!((series[1].captures, series[1].packet.bytes.len()), (CaptureSet::first_captures(2), 60));
        assert!(
            series[0].captures.has_capture(0)
                && !series[0].captures.has_capture(1)
                && !series[0].captures.has_capture(99)
        );
    }

    #[test]
    fn equal_packets_merge_only_across_captures_within_tolerance() {
        let mut merger = PacketMerger::new(Nanos::new(10));
        for (capture, at_ns) in [(0, 100), (0, 101), (1, 112), (1, 102)] {
            merger.offer_packet(capture, at_ns, PacketIdentity(5), packet(60));
        }
        let series = all(merger);
        let sizes: Vec<u32> = series.iter().map(|merged| merged.captures.count()).collect();
        assert_eq!((series.len(), sizes), (3, vec![1, 2, 1]), "{series:?}");
    }

    proptest! {
        /// However packets repeat and whatever each capture lost: each capture's packets are in the series once, and
        /// with one packet in flight at a time nothing that any capture has is missing or twice.
        #[test]
        fn every_packet_is_in_the_series_once(
            sent in prop::collection::vec((0_u64..3, 0_u8..8), 1..200),
            jitter in prop::collection::vec(0_u64..400, 600),
        ) {
            let mut merger = PacketMerger::new(Nanos::new(1000));
            let mut offered = [0; 3];
            for (index, (content, kept_by)) in sent.iter().enumerate() {
                for capture in (0..3).filter(|capture| kept_by & 1 << capture != 0) {
                    let at_ns = 10_000 * index as u64 + jitter[3 * index + capture];
                    merger.offer_packet(capture, at_ns, PacketIdentity(*content), packet(60));
                    offered[capture] += 1;
                }
            }
            let series = all(merger);
            let captured = sent.iter().filter(|(_, kept_by)| *kept_by != 0).count();
            prop_assert_eq!(series.len(), captured);
            for (capture, offered) in offered.into_iter().enumerate() {
                prop_assert_eq!(series.iter().filter(|merged| merged.captures.has_capture(capture)).count(), offered);
            }
            prop_assert!(series.is_sorted_by_key(|merged| merged.at_ns));
        }
    }
}
