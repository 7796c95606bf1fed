//! The table next to a list that is searched from end to end.

use super::*;
use crate::canonical::{is_icmp, request_type_code};
use crate::record::FlowHalf;
use proptest::prelude::*;
use std::collections::BTreeMap;

const ACTIVE: u64 = 5 * SECOND;
const IDLE: u64 = 2 * SECOND;
const GRACE: u64 = SECOND;

#[derive(Clone)]
struct ModelFlow {
    record: FlowRecord,
    last: [u64; 2],
    start: u64,
    fins: [bool; 2],
    ended: bool,
}

#[derive(Default)]
struct TableModel {
    biflow: bool,
    flows: Vec<ModelFlow>,
    records: Vec<FlowRecord>,
}

/// The direction in which a key runs along a flow's.
fn direction(flow: &FlowKey, key: &FlowKey, biflow: bool) -> Option<usize> {
    let ask = |key: &FlowKey| {
        if is_icmp(key.protocol) && biflow {
            FlowKey { destination_port: request_type_code(key.protocol, key.destination_port), ..*key }
        } else {
            *key
        }
    };
    let back = FlowKey { source: key.destination, destination: key.source, ..*key };
    let back = if is_icmp(key.protocol) {
        back
    } else {
        FlowKey { source_port: key.destination_port, destination_port: key.source_port, ..back }
    };
    if ask(flow) == ask(key) { Some(0) } else { (biflow && ask(flow) == ask(&back)).then_some(1) }
}

impl TableModel {
    fn add(&mut self, packet: &PacketInfo) {
        let key = FlowKey::from_packet(packet);
        let known = self
            .flows
            .iter()
            .enumerate()
            .find_map(|(at, flow)| Some((at, direction(&flow.record.key, &key, self.biflow)?)));
        let (at, way) = match known {
            Some((at, way)) if self.goes_on(at, packet) => (at, way),
            Some((at, _)) => {
                self.flows.remove(at);
                self.open(key, packet)
            }
            None => self.open(key, packet),
        };
        let flow = &mut self.flows[at];
        if flow.record.packets() == 0 {
            flow.start = packet.at_ns;
        }
        flow.last[way] = flow.last[way].max(packet.at_ns);
        let last_ns = flow.last[way];
        let half = if way == 0 { &mut flow.record.forward } else { &mut flow.record.reverse };
        if half.packets == 0 {
            half.first_ns = packet.at_ns;
        }
        half.packets += 1;
        half.bytes += u64::from(packet.bytes);
        half.frame_bytes += u64::from(packet.frame_bytes);
        half.last_ns = last_ns;
        half.tcp_flags |= u16::from(packet.tcp_flags);
        flow.record.ttl_min = flow.record.ttl_min.min(packet.ttl);
        flow.record.ttl_max = flow.record.ttl_max.max(packet.ttl);
        if packet.protocol == 6 {
            flow.fins[way] |= packet.tcp_flags & FIN != 0;
            let fins = flow.fins[0] && (flow.fins[1] || !self.biflow);
            flow.ended |= fins || packet.tcp_flags & RST != 0;
        }
    }

    fn open(&mut self, key: FlowKey, packet: &PacketInfo) -> (usize, usize) {
        let record = FlowRecord {
            key,
            flow_id: crate::flow_id(&key, [0, 0]),
            ttl_min: u8::MAX,
            tos: packet.tos,
            icmp: if is_icmp(packet.protocol) { packet.destination_port } else { 0 },
            source_mac: packet.source_mac,
            sampling: 1,
            ..FlowRecord::default()
        };
        self.flows.push(ModelFlow {
            record,
            last: [packet.at_ns, 0],
            start: packet.at_ns,
            fins: [false; 2],
            ended: false,
        });
        (self.flows.len() - 1, 0)
    }

    /// Reports everything due before a packet; returns whether that one is of the same flow.
    fn goes_on(&mut self, at: usize, packet: &PacketInfo) -> bool {
        loop {
            let flow = &self.flows[at];
            let last = flow.last[0].max(flow.last[1]);
            let (silence, end) =
                if flow.ended { (GRACE, EndReason::EndOfFlow) } else { (IDLE, EndReason::Idle) };
            let splits = flow.record.packets() > 0 && flow.start + ACTIVE < last + silence;
            if splits && packet.at_ns >= flow.start + ACTIVE {
                self.report(at, EndReason::Active);
            } else if !splits && packet.at_ns >= last + silence {
                self.report(at, end);
                return false;
            } else if flow.ended && packet.protocol == 6 && packet.tcp_flags & SYN != 0 {
                self.report(at, EndReason::EndOfFlow);
                return false;
            } else {
                return true;
            }
        }
    }

    fn report(&mut self, at: usize, end: EndReason) {
        let record = &mut self.flows[at].record;
        if record.packets() > 0 {
            self.records.push(FlowRecord { end, ..record.clone() });
            *record = FlowRecord {
                forward: FlowHalf::default(),
                reverse: FlowHalf::default(),
                part: record.part + 1,
                ttl_min: u8::MAX,
                ttl_max: 0,
                ..record.clone()
            };
        }
    }

    /// Ends all, each as time would have, and those that time has not ended as forced.
    fn finish(mut self, now: u64) -> Vec<FlowRecord> {
        for at in 0..self.flows.len() {
            let last = PacketInfo { at_ns: now, ..PacketInfo::default() };
            if self.goes_on(at, &last) {
                let ended = self.flows[at].ended;
                self.report(at, if ended { EndReason::EndOfFlow } else { EndReason::Forced });
            }
        }
        self.records
    }
}

fn packets() -> impl Strategy<Value = PacketInfo> {
    let ends = (0..4_u8, 0..4_u8, 0..3_u16, 0..3_u16, any::<bool>());
    let kind = prop_oneof![Just(6_u8), Just(6), Just(17), Just(1), Just(58)];
    let carried = prop_oneof![4 => Just((0, TunnelKind::None, 0)), 1 => Just((5, TunnelKind::None, 0)), 1 => Just((0, TunnelKind::Gtp, 3))];
    let flags = prop_oneof![4 => Just(0_u8), 1 => Just(SYN), 1 => Just(FIN), 1 => Just(RST)];
    (ends, kind, carried, flags, 1..2000_u32, any::<u8>()).prop_map(
        |((from, to, a, b, wide), protocol, (vlan, tunnel, tunnel_id), tcp_flags, bytes, ttl)| {
            let address = |last| if wide { [last; 16] } else { v4(last) };
            let (source_port, destination_port) = match protocol {
                // Echo, its answer, unreachable.
                1 => (0, [0x0800, 0, 0x0301][usize::from(b)]),
                58 => (0, [0x8000, 0x8100, 0x0100][usize::from(b)]),
                _ => (a, b),
            };
            PacketInfo {
                source: address(from),
                destination: address(to),
                source_port,
                destination_port,
                protocol,
                vlan,
                tunnel,
                tunnel_id,
                tcp_flags: if protocol == 6 { tcp_flags } else { 0 },
                bytes,
                frame_bytes: bytes + 14,
                ttl,
                tos: ttl / 2,
                source_mac: [ttl; 6],
                ..PacketInfo::default()
            }
        },
    )
}

fn options(capacity: u32, biflow: bool) -> TableOptions {
    TableOptions {
        capacity,
        biflow,
        active: Nanos::new(ACTIVE),
        idle: Nanos::new(IDLE),
        grace: Nanos::new(GRACE),
        hash_key: [capacity.into(), 1],
        ..TableOptions::default()
    }
}

/// Sorts the records; only their order is undefined.
fn sorted(mut records: Vec<FlowRecord>) -> Vec<FlowRecord> {
    records.sort_by_key(|record| (record.first_ns(), record.key, record.part, record.packets()));
    records
}

/// Packets and bytes by canonical key.
fn sums(counts: impl Iterator<Item = (FlowKey, u64, u64)>) -> BTreeMap<[u64; 6], (u64, u64)> {
    let mut sums = BTreeMap::new();
    for (key, packets, bytes) in counts {
        let sum: &mut (u64, u64) =
            sums.entry(crate::canonical::CanonicalKey::from_key(&key).words).or_default();
        *sum = (sum.0 + packets, sum.1 + bytes);
    }
    sums
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Every record, whatever its time is driven by.
    #[test]
    fn records_are_those_of_a_searched_list(
        steps in proptest::collection::vec((packets(), 0..2500_u64, any::<bool>()), 1..200),
        biflow in any::<bool>(),
    ) {
        let mut table = FlowTable::<()>::new(&options(1024, biflow));
        let mut model = TableModel { biflow, ..TableModel::default() };
        let (mut records, mut now, mut batch) = (Vec::new(), SECOND, Vec::new());
        for (packet, milliseconds, flush) in steps {
            now += milliseconds * 1_000_000 / 8;
            let packet = PacketInfo { at_ns: now, ..packet };
            model.add(&packet);
            batch.push(packet);
            if flush {
                table.meter_packets(&batch, now, &mut records);
                table.audit();
                batch.clear();
            }
        }
        table.meter_packets(&batch, now, &mut records);
        // These end like the flows of the list when their time comes, and only then by force.
        let later = now + TICK;
        table.advance_to(later, &mut records);
        let model = model.finish(tick_border(later));
        table.finish_flows(&mut records);
        table.audit();
        prop_assert_eq!(table.counts().untracked, 0);
        let (ours, theirs) = (sorted(records), sorted(model));
        for (ours, theirs) in ours.iter().zip(&theirs) {
            // Between the border and now, a timer may have expired already or not.
            let free = |record: &FlowRecord| FlowRecord { end: EndReason::Idle, ..record.clone() };
            if ours.end == theirs.end {
                prop_assert_eq!(ours, theirs);
            } else {
                prop_assert_eq!(theirs.end, EndReason::Forced);
                prop_assert_eq!(free(ours), free(theirs));
            }
        }
        prop_assert_eq!(ours.len(), theirs.len());
    }

    /// Every packet of every flow, with any times and too little room.
    #[test]
    fn no_packet_is_lost_or_counted_twice(
        steps in proptest::collection::vec((packets(), any::<u16>(), any::<u8>()), 1..300),
        capacity in 1..40_u32,
        refuse in any::<bool>(),
    ) {
        let when_full = if refuse { FullTableReaction::Refuse } else { FullTableReaction::Evict };
        let mut table = FlowTable::<()>::new(&TableOptions { when_full, ..options(capacity, true) });
        let mut records: Vec<FlowRecord> = Vec::new();
        let mut given = Vec::new();
        for chunk in steps.chunks(7) {
            let packets: Vec<_> =
                chunk.iter().map(|(packet, at, _)| PacketInfo { at_ns: u64::from(*at) << 20, ..*packet }).collect();
            let now = u64::from(chunk[0].2) << 28;
            table.meter_packets(&packets, now, &mut records);
            if chunk[0].2 % 3 == 0 {
                table.advance_to(now, &mut records);
            }
            table.audit();
            given.extend(packets);
        }
        table.finish_flows(&mut records);
        table.audit();
        let counts = table.counts();
        prop_assert_eq!(counts.metered + counts.untracked, given.len() as u64);
        let reasons = records.iter().filter(|record| record.end == EndReason::LackOfResources).count();
        prop_assert_eq!(counts.evicted, reasons as u64);
        let ours = sums(records.iter().map(|record| (record.key, record.packets(), record.bytes())));
        let theirs = sums(given.iter().map(|packet| (FlowKey::from_packet(packet), 1, u64::from(packet.bytes))));
        if counts.untracked == 0 {
            prop_assert_eq!(ours, theirs);
        } else {
            prop_assert!(ours.iter().all(|(key, sum)| sum.0 <= theirs[key].0));
        }
    }
}

/// The last time at which all timers before it have rung.
const fn tick_border(now: u64) -> u64 {
    now >> 26 << 26
}
