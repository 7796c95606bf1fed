//! The largest flows of the last second, for a live view.
//!
//! Each worker notes the packets of its batches in a small table of its own, which the live view takes once a second. A
//! full batch means a high rate: then one packet counts for the whole batch. So the numbers of an interval
//! are exact at low rates and estimates at high rates. No account uses these numbers.
//!
//! Invariant: noting allocates nothing; flows that do not fit into the table are left out.

use crate::intake::PACKETS_PER_BATCH;
use packetrig_flow::{FlowKey, PacketInfo};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Maximum number of flows that a worker notes in an interval.
const MAX_NOTED_FLOWS: usize = 4096;

/// Packets, and bytes of IP, in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowTraffic {
    pub packets: u64,
    pub bytes: u64,
}

pub type FlowTrafficMap = HashMap<FlowKey, FlowTraffic>;

/// A worker's table of noted flows, which a reader can take.
#[derive(Debug)]
pub struct TopFlowTable(Mutex<FlowTrafficMap>);

impl Default for TopFlowTable {
    fn default() -> Self {
        Self(Mutex::new(empty_flow_traffic_map()))
    }
}

fn empty_flow_traffic_map() -> FlowTrafficMap {
    HashMap::with_capacity(MAX_NOTED_FLOWS)
}

impl TopFlowTable {
    /// Notes a batch. If the table is being taken just now, this batch is left out.
    pub fn count_batch_flows(&self, batch: &[PacketInfo]) {
        // The worker does not wait for the lock: it has packets to meter, and these numbers are only for display.
        let Ok(mut noted) = self.0.try_lock() else { return };
        // The first packet serves as a random one, because batches begin anywhere in the traffic.
        let is_full_batch = batch.len() >= PACKETS_PER_BATCH;
        let chosen = if is_full_batch { &batch[..1] } else { batch };
        let stands_for = if is_full_batch { PACKETS_PER_BATCH as u64 } else { 1 };
        for packet in chosen {
            let key = FlowKey::from_packet(packet).to_canonical();
            let is_full = noted.len() >= MAX_NOTED_FLOWS;
            let share = match noted.get_mut(&key) {
                Some(share) => share,
                None if is_full => continue,
                None => noted.entry(key).or_default(),
            };
            share.packets += stands_for * u64::from(packet.packet_count());
            share.bytes += stands_for * u64::from(packet.bytes);
        }
    }

    /// Returns the flows that were noted since the last call, and empties the table.
    pub fn take_flows(&self) -> FlowTrafficMap {
        // The memory is allocated before the lock is taken, so that the worker misses as few batches as possible.
        let empty = empty_flow_traffic_map();
        std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), empty)
    }
}

/// Returns the largest flows, by bytes, among those that several workers noted.
pub fn merge_largest_flows(
    noted: impl IntoIterator<Item = FlowTrafficMap>,
    most: usize,
) -> Vec<(FlowKey, FlowTraffic)> {
    let mut all = FlowTrafficMap::new();
    for (key, share) in noted.into_iter().flatten() {
        let sum = all.entry(key).or_default();
        sum.packets += share.packets;
        sum.bytes += share.bytes;
    }
    let mut flows: Vec<_> = all.into_iter().collect();
    flows.sort_unstable_by(|(a, x), (b, y)| y.bytes.cmp(&x.bytes).then(a.cmp(b)));
    flows.truncate(most);
    flows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(from: u8, to: u8, bytes: u32) -> PacketInfo {
        let mut packet = PacketInfo { bytes, ..PacketInfo::default() };
        (packet.source[15], packet.destination[15]) = (from, to);
        packet
    }

    #[test]
    fn top_flows_merge_directions_and_sort_by_bytes() {
        let boards = [TopFlowTable::default(), TopFlowTable::default()];
        boards[0].count_batch_flows(&[packet(1, 2, 100), packet(2, 1, 50), packet(3, 4, 10)]);
        boards[1].count_batch_flows(&[packet(3, 4, 1000)]);
        let top = merge_largest_flows(boards.iter().map(TopFlowTable::take_flows), 5);
        let shares: Vec<_> =
            top.iter().map(|(key, share)| (key.source[15], share.packets, share.bytes)).collect();
        assert_eq!(shares, [(3, 2, 1010), (1, 2, 150)]);
        assert!(merge_largest_flows(boards.iter().map(TopFlowTable::take_flows), 5).is_empty());
    }

    #[test]
    fn icmp_echo_and_reply_are_one_top_flow() {
        let echo = |from, to, destination_port| PacketInfo {
            protocol: 1,
            destination_port,
            ..packet(from, to, 100)
        };
        for (one, other) in [(1, 2), (2, 1)] {
            let board = TopFlowTable::default();
            board.count_batch_flows(&[echo(one, other, 0x0800), echo(other, one, 0)]);
            let top = merge_largest_flows([board.take_flows()], 5);
            let shares: Vec<_> =
                top.iter().map(|(key, share)| (key.destination_port, share.packets)).collect();
            assert_eq!(shares, [(0x0800, 2)]);
        }
    }

    #[test]
    fn a_full_batch_is_estimated() {
        let board = TopFlowTable::default();
        board.count_batch_flows(&[packet(1, 2, 100); PACKETS_PER_BATCH]);
        assert_eq!(
            merge_largest_flows([board.take_flows()], 1)[0].1,
            FlowTraffic { packets: 32, bytes: 3200 }
        );
    }

    #[test]
    fn there_is_an_end_to_what_is_noted() {
        let board = TopFlowTable::default();
        for n in 0..u16::try_from(MAX_NOTED_FLOWS).unwrap() + 100 {
            let mut one = packet(1, 2, 1);
            one.source_port = n;
            board.count_batch_flows(&[one]);
        }
        assert_eq!(board.take_flows().len(), MAX_NOTED_FLOWS);
    }
}
