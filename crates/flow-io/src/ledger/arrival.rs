//! Checks the first equation of the ledger: packets that arrived at the interfaces = packets delivered + packets
//! dropped, as counted on the wire.
//!
//! An interface counts by itself, and not in the same moment as the ring. So its counters are read before and after a
//! ring is opened, and before and after it is shut: the true number is in between. Some interfaces count a merged
//! packet as one (a veth pair, a card with LRO). Other interfaces count the packets on the wire (a card, if the kernel
//! merges its packets afterwards by GRO). No interface reports its way of counting, so the check accepts both.
//!
//! Invariant: where the check holds, `arrived` = dropped by the driver + dropped by the ring + delivered - sent by this machine.

use super::LedgerSnapshot;
use packetrig_flow::{CaptureCounts, MeterLedger};
use serde::Serialize;

/// Sums of the interfaces' counters while their rings were open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct InterfaceTotals {
    /// Minimum number of frames that arrived.
    pub(crate) least: u64,
    /// Maximum number of frames that arrived.
    pub(crate) most: u64,
    /// Frames that arrived, as the best estimate while the meter works.
    pub(crate) arrived: u64,
    /// Frames that drivers dropped.
    pub(crate) dropped: u64,
}

impl InterfaceTotals {
    pub(crate) fn add_totals(self, other: Self) -> Self {
        Self {
            least: self.least + other.least,
            most: self.most + other.most,
            arrived: self.arrived + other.arrived,
            dropped: self.dropped + other.dropped,
        }
    }
}

/// Result of comparing the meter's own counts of arrived packets with the interfaces' counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ArrivalCheck {
    /// Frames that the interfaces counted.
    pub interface_frames: u64,
    /// Packets on the wire that arrived by our own count: delivered and dropped, without the packets
    /// that this machine sent.
    pub accounted: u64,
    /// True if `interface_frames` and `accounted` agree, within the uncertainty of the counters.
    pub holds: bool,
}

/// Compares the interfaces' counters with the rings', and writes the arrived and the dropped packets into the ledger, as
/// packets on the wire.
pub(super) fn compare_and_set_arrivals(
    ledger: &mut MeterLedger,
    sent_frames: u64,
    interface: InterfaceTotals,
) -> ArrivalCheck {
    let split_off = ledger.packets.packets_gained_by_splitting();
    let capture = &mut ledger.capture;
    // An interface does not count packets that this machine sends as arrived, but the ring delivers them.
    let received = capture.delivered.saturating_sub(capture.sent);
    let received_frames = (capture.delivered - split_off).saturating_sub(sent_frames);
    let known = received + capture.ring_dropped;
    // A ring may have dropped frames that this machine sent, which no interface counts as arrived.
    let least_dropped = if capture.sent > 0 { 0 } else { capture.ring_dropped };
    // If the ring dropped merged frames, nobody knows how many packets these contained.
    let is_open = split_off > 0 && capture.ring_dropped > 0;
    let most = if is_open { u64::MAX } else { known.saturating_add(interface.dropped) };
    // Both ways of counting a merged packet are accepted: as one frame, or as its packets.
    let holds = interface.most >= received_frames + least_dropped && interface.least <= most;
    // Here the interface has counted packets on the wire, and only its number includes merged packets that were
    // dropped.
    if is_open && interface.least > known + interface.dropped {
        capture.ring_dropped = interface.least - received - interface.dropped;
    }
    let accounted = received + capture.ring_dropped + interface.dropped;
    capture.driver_dropped = Some(interface.dropped);
    capture.arrived = Some(if holds { accounted } else { interface.arrived });
    ArrivalCheck { interface_frames: interface.arrived, accounted, holds }
}

/// Estimates the arrived packets while packets still arrive: the interface may be ahead of the ring.
pub(super) fn set_estimated_arrivals(capture: &mut CaptureCounts, interface: InterfaceTotals) {
    let received = capture.delivered.saturating_sub(capture.sent) + capture.ring_dropped;
    capture.driver_dropped = Some(interface.dropped);
    capture.arrived = Some(interface.arrived.max(received + interface.dropped));
}

impl ArrivalCheck {
    /// Explains to the user why the counts do not agree, or that they differ only because packets were merged. `None`
    /// if neither is the case.
    pub(super) fn difference_remark(&self, snapshot: &LedgerSnapshot) -> Option<String> {
        let Self { interface_frames, accounted, holds } = *self;
        if !holds {
            return Some(format!(
                "the interface counted {interface_frames} packets, but {accounted} were delivered or dropped; \
                perhaps another program reset the interface's counters, or its driver updates them late"
            ));
        }
        let is_merged = snapshot.ledger.packets.packets_gained_by_splitting() > 0;
        (is_merged && interface_frames < accounted).then(|| {
            format!(
                "the interface counted {interface_frames} packets, but some of them were merged: on the \
                wire there were {accounted}"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_flow::PacketCounts;

    fn exactly(frames: u64, dropped: u64) -> InterfaceTotals {
        InterfaceTotals { least: frames, most: frames, arrived: frames, dropped }
    }

    /// 100 packets from 10 frames, of which this machine sent `sent` one by one; `ring` were dropped.
    fn ledger(sent: u64, ring: u64) -> MeterLedger {
        MeterLedger {
            capture: CaptureCounts { delivered: 100, sent, ring_dropped: ring, ..CaptureCounts::default() },
            packets: PacketCounts { seen: 100, merged: 10, merged_packets: 100, ..PacketCounts::default() },
            ..MeterLedger::default()
        }
    }

    fn settled(mut ledger: MeterLedger, interface: InterfaceTotals) -> (ArrivalCheck, CaptureCounts) {
        let sent = ledger.capture.sent;
        let check = compare_and_set_arrivals(&mut ledger, sent, interface);
        (check, ledger.capture)
    }

    #[test]
    fn arrival_check_allows_merged_or_split_frame_counts() {
        for frames in [10, 55, 100] {
            let (check, capture) = settled(ledger(0, 0), exactly(frames, 0));
            assert!(check.holds, "{frames}");
            assert_eq!((capture.arrived, check.interface_frames), (Some(100), frames));
        }
        for frames in [9, 101] {
            let (check, capture) = settled(ledger(0, 0), exactly(frames, 0));
            assert_eq!((check.holds, capture.arrived), (false, Some(frames)));
        }
    }

    #[test]
    fn single_packet_counts_must_match_interface_range() {
        let mut single = ledger(0, 0);
        single.packets = PacketCounts { seen: 100, ..PacketCounts::default() };
        for (least, most, holds) in [(98, 103, true), (100, 100, true), (101, 103, false), (90, 99, false)] {
            let (check, _) = settled(single, InterfaceTotals { least, most, arrived: most, dropped: 0 });
            assert_eq!(check.holds, holds, "{least} to {most}");
        }
    }

    #[test]
    fn driver_drops_may_count_as_arrived_or_not() {
        for frames in [100, 103] {
            let (check, capture) = settled(ledger(0, 0), exactly(frames, 3));
            assert_eq!((check.holds, capture.arrived, capture.driver_dropped), (true, Some(103), Some(3)));
        }
    }

    #[test]
    fn sent_packets_are_not_counted_as_arrived() {
        let mut both = ledger(30, 0);
        both.packets = PacketCounts { seen: 100, ..PacketCounts::default() };
        let (check, capture) = settled(both, exactly(70, 0));
        assert_eq!((check.holds, capture.arrived), (true, Some(70)));
    }

    #[test]
    fn merged_ring_drops_follow_interface_count() {
        let (check, capture) = settled(ledger(0, 2), exactly(140, 0));
        assert_eq!((check.holds, capture.arrived, capture.ring_dropped), (true, Some(140), 40));
        // An interface that counts them as one gives the least number: one packet for each frame.
        let (check, capture) = settled(ledger(0, 2), exactly(12, 0));
        assert_eq!((check.holds, capture.arrived, capture.ring_dropped), (true, Some(102), 2));
    }
}
