//! Sorts the packets of capture files by time before they are metered.
//!
//! Captures of several interfaces, and merged captures, have packets out of order; metered in that order, a flow would
//! fall apart into several records. While packets are in order they pass through. At the beginning of a capture, and
//! from the first packet that is out of order or more than a second ahead of the one before it, packets are held back
//! and sorted, until two windows (of [`MIN_REORDER_PACKETS`] packets each) in a row are in order. So a packet that
//! comes late by at most one window is metered as in the sorted capture. A few packets with times in the future wait
//! until the other packets are metered. Each worker sorts its own packets.
//!
//! Invariant: every packet comes out once, and the packets of one batch are in order.

use crate::intake::PACKETS_PER_BATCH;
use packetrig_flow::PacketInfo;

/// Number of packets that at least stay held back while packets are sorted (4.25 MiB); at most twice as
/// many are held back.
pub(crate) const MIN_REORDER_PACKETS: usize = 1 << 15;
/// A packet that is later than the one before it by more than this may have a wrong time.
const SUSPICIOUS_TIME_JUMP_NS: u64 = 1_000_000_000;

#[derive(Debug)]
pub(crate) struct ReorderBuffer {
    held: Vec<PacketInfo>,
    is_holding: bool,
    /// Time of the last packet that was released.
    released_ns: Option<u64>,
}

impl ReorderBuffer {
    /// Makes an empty buffer. It holds back the first packets, which may be out of order.
    pub(crate) const fn new() -> Self {
        Self { held: Vec::new(), is_holding: true, released_ns: None }
    }

    /// Accepts packets in the order of the file. Calls `out` with sorted batches, and with the time of the last
    /// packet of each batch.
    pub(crate) fn reorder_packets(
        &mut self,
        packets: &[PacketInfo],
        mut out: impl FnMut(&[PacketInfo], u64),
    ) {
        if !self.is_holding && has_steady_times(self.released_ns, packets) {
            self.emit_batches(packets, &mut out);
            return;
        }
        self.is_holding = true;
        self.held.extend_from_slice(packets);
        // The buffer holds twice the window: half of it can leave, and a whole window still stays to be
        // sorted with later packets.
        if self.held.len() >= 2 * MIN_REORDER_PACKETS {
            self.release_older_half(&mut out);
        }
    }

    /// Releases all packets that are held back, in order.
    pub(crate) fn release_all_packets(&mut self, mut out: impl FnMut(&[PacketInfo], u64)) {
        let mut held = std::mem::take(&mut self.held);
        held.sort_by_key(|packet| packet.at_ns);
        self.emit_batches(&held, &mut out);
    }

    /// Returns the time up to which all packets have been released, if the source has delivered all packets up to
    /// `given_ns`. `None` if no packet has been released yet.
    pub(crate) fn complete_until_ns(&self, given_ns: u64) -> Option<u64> {
        let released_ns = self.released_ns?;
        Some(if self.held.is_empty() { released_ns.max(given_ns) } else { released_ns })
    }

    fn release_older_half(&mut self, out: &mut impl FnMut(&[PacketInfo], u64)) {
        let mut held = std::mem::take(&mut self.held);
        // The older half is released. The newer half stays, to be sorted with later packets. If all packets
        // came in order, sorting ends.
        self.is_holding = !has_steady_times(self.released_ns, &held);
        let released = if self.is_holding { held.len() - MIN_REORDER_PACKETS } else { held.len() };
        // The sort is stable: packets of the same time keep the order of the file.
        if !held.is_sorted_by_key(|packet| packet.at_ns) {
            held.sort_by_key(|packet| packet.at_ns);
        }
        self.emit_batches(&held[..released], out);
        held.drain(..released);
        // The memory is reused while packets are held back, and freed after that.
        self.held = if self.is_holding { held } else { Vec::new() };
    }

    fn emit_batches(&mut self, packets: &[PacketInfo], out: &mut impl FnMut(&[PacketInfo], u64)) {
        for batch in packets.chunks(PACKETS_PER_BATCH) {
            let Some(last) = batch.last() else { continue };
            self.released_ns = Some(last.at_ns);
            out(batch, last.at_ns);
        }
    }
}

/// Reports whether the packets are in order, none is earlier than `after_ns`, and none is far ahead of
/// the one before it.
fn has_steady_times(after_ns: Option<u64>, packets: &[PacketInfo]) -> bool {
    let Some(first) = packets.first() else { return true };
    let mut before_ns = after_ns.unwrap_or(first.at_ns);
    packets.iter().all(|packet| {
        let is_near =
            packet.at_ns.checked_sub(before_ns).is_some_and(|ahead| ahead <= SUSPICIOUS_TIME_JUMP_NS);
        before_ns = packet.at_ns;
        is_near
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packets(times: impl IntoIterator<Item = u64>) -> Vec<PacketInfo> {
        (0..).zip(times).map(|(at, at_ns)| PacketInfo { at_ns, bytes: at, ..PacketInfo::default() }).collect()
    }

    fn passed(times: impl IntoIterator<Item = u64>) -> Vec<PacketInfo> {
        let mut buffer = ReorderBuffer::new();
        let mut out = Vec::new();
        for batch in packets(times).chunks(PACKETS_PER_BATCH) {
            buffer.reorder_packets(batch, |packets, _| out.extend_from_slice(packets));
        }
        buffer.release_all_packets(|packets, _| out.extend_from_slice(packets));
        out
    }

    fn times(packets: &[PacketInfo]) -> Vec<u64> {
        packets.iter().map(|packet| packet.at_ns).collect()
    }

    #[test]
    fn reorder_buffer_holds_ordered_packets_only_at_start() {
        let mut buffer = ReorderBuffer::new();
        let mut out = 0;
        for batch in packets(0..3 * MIN_REORDER_PACKETS as u64).chunks(PACKETS_PER_BATCH) {
            buffer.reorder_packets(batch, |packets, now_ns| {
                out += packets.len();
                assert_eq!(now_ns + 1, out as u64);
            });
        }
        assert_eq!((out, buffer.held.capacity()), (3 * MIN_REORDER_PACKETS, 0));
    }

    #[test]
    fn future_timestamp_is_released_last() {
        for at in [0, 31, 1000, 2 * MIN_REORDER_PACKETS as u64 + 31, 5 * MIN_REORDER_PACKETS as u64] {
            let time = |n: u64| if n == at { u64::MAX } else { n };
            let found = times(&passed((0..=5 * MIN_REORDER_PACKETS as u64).map(time)));
            let wanted: Vec<u64> =
                (0..=5 * MIN_REORDER_PACKETS as u64).filter(|n| *n != at).chain([u64::MAX]).collect();
            assert!(found == wanted, "at {at}");
        }
    }

    #[test]
    fn reordering_within_window_is_sorted_and_stable() {
        // Blocks turned around, after a beginning that is in order.
        let block = MIN_REORDER_PACKETS as u64 / 2;
        let time = |n: u64| if n < 4 * block { n } else { n / block * block + (block - 1 - n % block) / 2 };
        let found = passed((0..20 * block).map(time));
        assert!(found.is_sorted_by_key(|packet| (packet.at_ns, packet.bytes)));
        assert_eq!(found.len() as u64, 20 * block);
    }

    #[test]
    fn no_packet_is_lost_or_doubled() {
        let mut random = 1_u64;
        for case in 0..300_u64 {
            let times = (0..case).map(|_| {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                random >> (case % 3 * 20)
            });
            let mut found: Vec<u32> = passed(times).iter().map(|packet| packet.bytes).collect();
            found.sort_unstable();
            let wanted: Vec<u32> = (0..u32::try_from(case).unwrap()).collect();
            assert_eq!(found, wanted);
        }
    }
}
