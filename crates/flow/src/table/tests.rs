use super::slot::HAS_RARE_STATE;
use super::*;
use crate::history::RecordOriginMark;
use crate::packet::{IPV4_MAPPED_PREFIX, TunnelKind, protocol};
use crate::record::{FlowHalf, FlowRecord};
use packetrig_units::Nanos;

mod merged;
mod model;
mod parts;
mod telling;

const SECOND: u64 = 1_000_000_000;
/// An end is noticed within a tick.
const TICK: u64 = 1 << 26;
const SYN: u8 = 2;
const FIN: u8 = 1;
const RST: u8 = 4;

fn v4(last: u8) -> [u8; 16] {
    let mut address = [0; 16];
    address[..12].copy_from_slice(&IPV4_MAPPED_PREFIX);
    address[12..].copy_from_slice(&[198, 18, 0, last]);
    address
}

/// A packet of 100 bytes from one host to another.
fn packet(from: u8, to: u8, at_ns: u64) -> PacketInfo {
    PacketInfo {
        source: v4(from),
        destination: v4(to),
        source_port: 1000 + u16::from(from),
        destination_port: 1000 + u16::from(to),
        protocol: 17,
        bytes: 100,
        frame_bytes: 114,
        ttl: 64,
        at_ns,
        ..PacketInfo::default()
    }
}

fn tcp(from: u8, to: u8, at_ns: u64, tcp_flags: u8) -> PacketInfo {
    PacketInfo { protocol: protocol::TCP, tcp_flags, ..packet(from, to, at_ns) }
}

fn small() -> TableOptions {
    TableOptions {
        capacity: 64,
        active: Nanos::from_secs(60),
        idle: Nanos::from_secs(10),
        grace: Nanos::from_secs(1),
        ..TableOptions::default()
    }
}

/// Meters packets at their own times, without an end.
fn metered(table: &mut FlowTable<()>, packets: &[PacketInfo]) -> Vec<FlowRecord> {
    let mut records = Vec::new();
    for packet in packets {
        table.meter_packets(&[*packet], packet.at_ns, &mut records);
        table.audit();
    }
    records
}

/// Returns all records of some packets.
fn all(options: &TableOptions, packets: &[PacketInfo]) -> Vec<FlowRecord> {
    let mut table = FlowTable::new(options);
    let mut records = metered(&mut table, packets);
    table.finish_flows(&mut records);
    table.audit();
    assert_eq!(table.counts().live, 0);
    records
}

impl<H: MemoryHints> FlowTable<H> {
    /// Checks the invariants of the table.
    pub(super) fn audit(&self) {
        let counts = PacketCounts { seen: self.counts.metered + self.counts.untracked, ..self.counts };
        assert_eq!(counts.find_imbalances(), []);
        let held: Vec<u32> =
            (0..slot_number(self.hot.len())).filter(|&slot| !self.hot[slot as usize].is_free()).collect();
        assert_eq!(held.len(), self.flow_count());
        let mut live = 0;
        for &slot in &held {
            let (hot, cold) = (&self.hot[slot as usize], &self.cold[slot as usize]);
            let hash = self.keys.hash_words(hot.key_words());
            assert_eq!(self.index.find_slot(hash, |there| there == slot), Some(slot), "not in the index");
            let rare = hot.has_flow_state(HAS_RARE_STATE).then(|| &self.rare[slot as usize]);
            live += slot::build_record(hot, cold, rare, true, EndReason::Idle, 0).packets();
        }
        assert_eq!(live, self.counts.live, "packets in the table");
    }
}

#[test]
fn flow_joins_both_directions_from_first_packet() {
    let packets = [packet(2, 1, 5), packet(1, 2, 6), packet(2, 1, 8)];
    let records = all(&small(), &packets);
    assert_eq!(records.len(), 1);
    let record = &records[0];
    assert_eq!(record.key, FlowKey::from_packet(&packets[0]));
    assert_eq!((record.forward.packets, record.reverse.packets), (2, 1));
    assert_eq!((record.forward.first_ns, record.forward.last_ns), (5, 8));
    assert_eq!((record.reverse.first_ns, record.reverse.last_ns), (6, 6));
    assert_eq!((record.forward.bytes, record.forward.frame_bytes), (200, 228));
    assert_eq!(record.end, EndReason::Forced);
    assert_eq!(record.flow_id, crate::flow_id(&record.key, [0, 0]));
}

#[test]
fn uniflows_are_two() {
    let records = all(&TableOptions { biflow: false, ..small() }, &[packet(2, 1, 5), packet(1, 2, 6)]);
    assert_eq!(records.len(), 2);
    assert!(records.iter().all(|record| record.reverse.packets == 0));
    assert_eq!(records[0].flow_id, records[1].flow_id);
}

#[test]
fn a_silent_flow_ends_when_nothing_arrives() {
    let mut table = FlowTable::<()>::new(&small());
    let mut records = metered(&mut table, &[packet(1, 2, 100 * SECOND)]);
    table.advance_to(110 * SECOND - 1, &mut records);
    assert_eq!(records, []);
    table.advance_to(110 * SECOND + TICK, &mut records);
    assert_eq!(records.len(), 1);
    assert_eq!((records[0].end, table.flow_count()), (EndReason::Idle, 0));
    table.audit();
}

/// A live source that has read nothing yet knows no time.
#[test]
fn flow_table_without_time_starts_at_first_packet() {
    let mut table = FlowTable::<()>::new(&small());
    let mut records = Vec::new();
    table.advance_to(0, &mut records);
    table.meter_packets(&[packet(1, 2, 1000 * SECOND)], 1000 * SECOND, &mut records);
    // Each look is at few timers: a wheel that is far behind would need more than there are.
    for _ in 0..4 {
        table.advance_with_limit(1100 * SECOND, 16, &mut records);
    }
    assert_eq!((records.len(), table.flow_count()), (1, 0));
}

#[test]
fn packet_after_idle_timeout_opens_new_flow() {
    let mut table = FlowTable::<()>::new(&small());
    let mut records = Vec::new();
    // The clock stands still: only the packets have times.
    table.meter_packets(&[packet(1, 2, 0), packet(1, 2, 10 * SECOND)], 0, &mut records);
    table.finish_flows(&mut records);
    let ends: Vec<_> = records.iter().map(|record| (record.end, record.part, record.packets())).collect();
    assert_eq!(ends, [(EndReason::Idle, 0, 1), (EndReason::Forced, 0, 1)]);
    assert_eq!(table.counts().flows, 2);
}

#[test]
fn long_flow_is_split_at_active_timeout() {
    let packets: Vec<_> = (0..=130).map(|second| packet(1, 2, second * SECOND)).collect();
    let records = all(&small(), &packets);
    let parts: Vec<_> = records.iter().map(|record| (record.part, record.packets(), record.end)).collect();
    assert_eq!(parts, [(0, 60, EndReason::Active), (1, 60, EndReason::Active), (2, 11, EndReason::Forced)]);
    assert_eq!(records[1].first_ns(), 60 * SECOND);
}

#[test]
fn part_is_reported_on_time_without_traffic() {
    let options = TableOptions { active: Nanos::from_secs(5), ..small() };
    let mut table = FlowTable::<()>::new(&options);
    let mut records = metered(&mut table, &[packet(1, 2, 0), packet(2, 1, SECOND)]);
    table.advance_to(5 * SECOND + TICK, &mut records);
    assert_eq!((records.len(), table.flow_count()), (1, 1));
    // The next part begins with its packet, and its time is counted from there.
    records.extend(metered(&mut table, &[packet(2, 1, 7 * SECOND)]));
    table.advance_to(12 * SECOND + TICK, &mut records);
    assert_eq!(records.len(), 2);
    assert_eq!((records[1].part, records[1].forward.packets, records[1].reverse.packets), (1, 0, 1));
    assert_eq!(records[1].key, records[0].key);
    // No packet came since: the end of an empty part is no record.
    table.advance_to(60 * SECOND, &mut records);
    assert_eq!((records.len(), table.flow_count()), (2, 0));
    table.audit();
}

#[test]
fn both_fins_end_tcp_flow_after_late_packets() {
    let mut table = FlowTable::<()>::new(&small());
    let talk =
        [tcp(1, 2, 0, SYN), tcp(2, 1, 10, SYN), tcp(1, 2, 20, FIN), tcp(2, 1, 30, FIN), tcp(1, 2, 40, 0)];
    let mut records = metered(&mut table, &talk);
    table.advance_to(SECOND + 40 + TICK, &mut records);
    assert_eq!(records.len(), 1);
    assert_eq!((records[0].end, records[0].packets()), (EndReason::EndOfFlow, 5));
    assert_eq!(
        (records[0].forward.tcp_flags, records[0].reverse.tcp_flags),
        ((SYN | FIN).into(), (SYN | FIN).into())
    );
}

#[test]
fn single_fin_ends_only_one_way_tcp_flow() {
    let talk = [tcp(1, 2, 0, SYN), tcp(1, 2, 20, FIN)];
    for (biflow, end) in [(true, EndReason::Idle), (false, EndReason::EndOfFlow)] {
        let mut table = FlowTable::<()>::new(&TableOptions { biflow, ..small() });
        let mut records = metered(&mut table, &talk);
        table.advance_to(10 * SECOND + 2 * TICK, &mut records);
        assert_eq!(records[0].end, end);
    }
}

#[test]
fn a_syn_after_the_end_opens_a_flow() {
    let records = all(&small(), &[tcp(1, 2, 0, SYN), tcp(2, 1, 10, RST), tcp(1, 2, 20, SYN)]);
    let ends: Vec<_> = records.iter().map(|record| (record.end, record.packets(), record.part)).collect();
    assert_eq!(ends, [(EndReason::EndOfFlow, 2, 0), (EndReason::Forced, 1, 0)]);
}

#[test]
fn flags_of_other_protocols_end_nothing() {
    let odd = PacketInfo { tcp_flags: RST, ..packet(1, 2, 0) };
    let mut table = FlowTable::<()>::new(&small());
    let mut records = metered(&mut table, &[odd]);
    table.advance_to(5 * SECOND, &mut records);
    assert_eq!(records, []);
}

#[test]
fn backward_times_are_counted_without_effect() {
    let mut table = FlowTable::<()>::new(&small());
    let mut records =
        metered(&mut table, &[packet(1, 2, 5 * SECOND), packet(1, 2, 3 * SECOND), packet(2, 1, 4 * SECOND)]);
    table.finish_flows(&mut records);
    assert_eq!(table.counts().backwards, 2);
    assert_eq!((records[0].forward.last_ns, records[0].reverse.last_ns), (5 * SECOND, 4 * SECOND));
}

#[test]
fn full_table_evicts_longest_idle_flow() {
    let options = TableOptions { capacity: 4, ..small() };
    let mut table = FlowTable::<()>::new(&options);
    let opened: Vec<_> = (1..=4).map(|host| packet(host, 100, u64::from(host) * SECOND)).collect();
    let mut records = metered(&mut table, &opened);
    // The oldest speaks again, so the second is now the most silent.
    records.extend(metered(&mut table, &[packet(1, 100, 5 * SECOND), packet(5, 100, 6 * SECOND)]));
    assert_eq!(records.len(), 1);
    assert_eq!((records[0].key.source, records[0].end), (v4(2), EndReason::LackOfResources));
    assert_eq!((table.counts().evicted, table.counts().untracked, table.flow_count()), (1, 0, 4));
}

/// Their timers expire first, for their parts: they are not the ones that are silent.
#[test]
fn full_table_keeps_busy_flows_near_active_timeout() {
    const BUSY: u8 = 40;
    let mut table = FlowTable::<()>::new(&TableOptions { active: Nanos::from_secs(65), ..small() });
    let mut records = Vec::new();
    for second in 0..64 {
        let talk: Vec<_> = (0..BUSY).map(|host| packet(host, 200, second * SECOND)).collect();
        records.extend(metered(&mut table, &talk));
    }
    let silent: Vec<_> = (BUSY..64).map(|host| packet(host, 200, 56 * SECOND + u64::from(host))).collect();
    records.extend(metered(&mut table, &silent));
    assert_eq!((records.len(), table.flow_count()), (0, 64));
    let new: Vec<_> = (64..64 + 20).map(|host| packet(host, 200, 64 * SECOND)).collect();
    let evicted = metered(&mut table, &new);
    let hosts: Vec<_> = evicted.iter().map(|record| (record.key.source[15], record.end)).collect();
    let expected: Vec<_> = (BUSY..BUSY + 20).map(|host| (host, EndReason::LackOfResources)).collect();
    assert_eq!(hosts, expected);
    // The parts are still reported in time.
    let mut parts = Vec::new();
    table.advance_to(65 * SECOND + TICK, &mut parts);
    let active = parts.iter().filter(|record| record.end == EndReason::Active);
    assert_eq!(active.count(), usize::from(BUSY));
    table.audit();
}

/// No flow is silent, so only timers of parts expire.
#[test]
fn full_table_of_busy_flows_still_evicts_one() {
    let options = TableOptions { capacity: 4, active: Nanos::from_secs(5), ..small() };
    let mut table = FlowTable::<()>::new(&options);
    let opened: Vec<_> = (1..=4).map(|host| packet(host, 100, u64::from(host))).collect();
    let mut records = metered(&mut table, &opened);
    records.extend(metered(&mut table, &[packet(1, 100, SECOND), packet(5, 100, SECOND)]));
    assert_eq!((records.len(), records[0].key.source, table.flow_count()), (1, v4(2), 4));
}

#[test]
fn refusing_full_table_counts_untracked_packets() {
    let options = TableOptions { capacity: 2, when_full: FullTableReaction::Refuse, ..small() };
    let mut table = FlowTable::<()>::new(&options);
    let packets: Vec<_> = (1..=5).map(|host| packet(host, 100, SECOND)).collect();
    assert_eq!(metered(&mut table, &packets), []);
    assert_eq!((table.counts().metered, table.counts().untracked, table.counts().evicted), (2, 3, 0));
}

/// All flows in one bucket pair: the 17th has no place, though the table has room.
#[test]
fn bucket_flood_evicts_without_losing_packets() {
    let mut table = FlowTable::<()>::new(&small());
    let look = |host| table.keys.make_lookup(&packet(host, 100, 0)).hash;
    let mut by_bucket: Vec<(u64, u8)> = (0..200).map(|host| (look(host) >> 60, host)).collect();
    by_bucket.sort_unstable();
    let packets: Vec<_> = by_bucket.iter().map(|&(_, host)| packet(host, 100, 1)).collect();
    let mut records = metered(&mut table, &packets);
    table.finish_flows(&mut records);
    assert_eq!(records.iter().map(FlowRecord::packets).sum::<u64>(), 200);
}

#[test]
fn loss_marks_only_flows_open_at_the_time() {
    let mut table = FlowTable::<()>::new(&small());
    let mut records = metered(&mut table, &[packet(1, 2, 0)]);
    table.mark_packet_loss();
    records.extend(metered(&mut table, &[packet(1, 2, 10), packet(3, 4, 20)]));
    table.finish_flows(&mut records);
    assert_eq!(records.iter().map(|record| record.loss).collect::<Vec<_>>(), [true, false]);
}

#[test]
fn counts_do_not_overflow() {
    let huge =
        PacketInfo { bytes: u32::MAX, frame_bytes: u32::MAX, outer_source: [7; 16], ..packet(1, 2, 0) };
    let small_ones = vec![packet(1, 2, 1); 70_000];
    let packets = [vec![huge; 3], small_ones, vec![huge]].concat();
    let mut table = FlowTable::<()>::new(&small());
    let mut records = Vec::new();
    table.meter_packets(&packets, 1, &mut records);
    table.audit();
    // The slot's next flow inherits nothing.
    table.meter_packets(&vec![packet(1, 2, 20 * SECOND); 70_000], 20 * SECOND, &mut records);
    table.finish_flows(&mut records);
    let bytes = 4 * u64::from(u32::MAX) + 7_000_000;
    assert_eq!((records[0].packets(), records[0].bytes()), (70_004, bytes));
    assert_eq!(records[0].outer_source, [7; 16]);
    assert_eq!((records[1].packets(), records[1].bytes()), (70_000, 7_000_000));
    assert_eq!(records[1].outer_source, [0; 16]);
}

#[test]
fn icmp_echo_and_reply_share_one_biflow() {
    let icmp = |from, to, destination_port| PacketInfo {
        protocol: 1,
        source_port: 0,
        destination_port,
        ..packet(from, to, 0)
    };
    let packets = [icmp(1, 2, 0x0800), icmp(2, 1, 0), icmp(2, 1, 0x0301)];
    let with = all(&small(), &packets);
    assert_eq!(with.len(), 2);
    assert_eq!(
        (with[0].forward.packets, with[0].reverse.packets, with[0].key.destination_port),
        (1, 1, 0x0800)
    );
    assert_eq!(with[1].icmp, 0x0301);
    let without = all(&TableOptions { icmp_in_key: false, ..small() }, &packets);
    assert_eq!((without.len(), without[0].packets(), without[0].key.destination_port), (1, 3, 0));
    assert_eq!(without[0].icmp, 0x0800);
    let one_way = all(
        &TableOptions { biflow: false, ..small() },
        &[icmp(1, 2, 0x0800), icmp(2, 1, 0), icmp(2, 1, 0x0800)],
    );
    assert_eq!(one_way.len(), 3);
}

#[test]
fn flow_key_fields_are_configurable() {
    let plain = packet(1, 2, 0);
    let tagged = PacketInfo { vlan: 5, ..plain };
    let stacked = PacketInfo { inner_vlan: 7, ..tagged };
    let carried = PacketInfo { tunnel: TunnelKind::Vxlan, tunnel_id: 9, outer_source: [3; 16], ..plain };
    let packets = [plain, tagged, stacked, carried];
    let count = |vlan_in_key, tunnel_in_key| {
        all(&TableOptions { vlan_in_key, tunnel_in_key, ..small() }, &packets).len()
    };
    assert_eq!(
        [count(true, true), count(false, true), count(true, false), count(false, false)],
        [4, 2, 3, 1]
    );
    let records = all(&small(), &packets);
    assert_eq!(records[3].key, FlowKey::from_packet(&carried));
    assert_eq!(records[3].outer_source, [3; 16]);
    assert_eq!(records[2].key, FlowKey::from_packet(&stacked));
}

/// The flow numbers and their order do not depend on the secret.
#[test]
fn the_secret_changes_no_record() {
    let packets: Vec<_> =
        (0..200).map(|n| packet((n % 7) as u8, (n % 5) as u8 + 50, n * SECOND / 4)).collect();
    assert_eq!(all(&small(), &packets), all(&TableOptions { hash_key: [1, 2], ..small() }, &packets));
}

/// More packets than timers are looked at in one batch: nothing is held up for ever.
#[test]
fn many_ends_at_once_are_all_reported() {
    let options = TableOptions { capacity: 4096, ..small() };
    let mut table = FlowTable::<()>::new(&options);
    let packets: Vec<_> = (0..4000_u32)
        .map(|n| {
            let mut packet = packet(1, 2, 0);
            packet.source[12..].copy_from_slice(&n.to_be_bytes());
            packet
        })
        .collect();
    let mut records = Vec::new();
    table.meter_packets(&packets, 0, &mut records);
    table.meter_packets(&[packet(3, 4, 20 * SECOND)], 20 * SECOND, &mut records);
    assert!((TIMERS_PER_BATCH..200).contains(&records.len()), "{}", records.len());
    table.advance_to(20 * SECOND, &mut records);
    assert_eq!(records.len(), 4000);
    table.audit();
}

#[test]
fn flow_slots_are_touched_on_demand_without_moving() {
    let mut table = FlowTable::<()>::new(&TableOptions {
        capacity: 1000,
        group: Some(RecordOriginMark::default()),
        ..small()
    });
    let places = |table: &FlowTable<()>| {
        let histories = table.histories.as_ref().map(FlowHistories::slots_address);
        (table.hot.as_ptr(), table.cold.as_ptr(), table.free.as_ptr(), histories)
    };
    let held = |table: &FlowTable<()>| [table.hot.len(), table.histories.as_ref().unwrap().touched_slots()];
    let (reserved, bytes) = (places(&table), table.memory_bytes());
    assert_eq!(held(&table), [0; 2], "nothing is touched before it is needed");
    let mut records = Vec::new();
    for n in 0..3000 {
        table.meter_packets(&[PacketInfo { source_port: n, ..packet(1, 2, 5) }], 5, &mut records);
        let flows = usize::from(n) + 1;
        let most = flows.next_multiple_of(SLOTS_PER_ALLOCATION).min(1000);
        assert!(held(&table).into_iter().all(|held| held <= most), "{flows} flows");
    }
    assert_eq!((table.hot.len(), table.flow_count(), records.len()), (1000, 1000, 2000));
    assert_eq!((places(&table), table.memory_bytes()), (reserved, bytes));
    table.audit();
}

#[test]
fn due_timers_can_be_processed_in_parts() {
    let mut table = FlowTable::<()>::new(&TableOptions { capacity: 1000, ..small() });
    let mut records = Vec::new();
    for n in 0..500 {
        table.meter_packets(&[PacketInfo { source_port: n, ..packet(1, 2, 5) }], 5, &mut records);
    }
    let (now_ns, mut parts) = (100 * SECOND, 0);
    while !table.advance_with_limit(now_ns, 64, &mut records) {
        parts += 1;
        assert_eq!(records.len(), parts * 64);
        table.audit();
    }
    assert_eq!((table.flow_count(), records.len()), (0, 500));
    assert!(records.iter().all(|record| record.end == EndReason::Idle));
}

#[test]
fn late_packet_may_set_first_time_of_flow() {
    let times = [5, 3, 9, 4].map(|second| second * SECOND);
    let [ref record] = all(&small(), &times.map(|at_ns| packet(1, 2, at_ns)))[..] else {
        panic!("one record")
    };
    assert_eq!((record.first_ns(), record.forward.last_ns), (3 * SECOND, 9 * SECOND));
    assert_eq!(record.packets(), 4);
}

#[test]
fn clock_set_back_rearms_all_timers() {
    let mut table = FlowTable::<()>::new(&small());
    let mut records = Vec::new();
    let wrong = 1_000_000 * SECOND;
    table.meter_packets(&[packet(9, 9, wrong)], wrong, &mut records);
    for second in 100..200_u64 {
        let at_ns = second * SECOND;
        table.meter_packets(&[packet(u8::try_from(second - 100).unwrap(), 200, at_ns)], at_ns, &mut records);
        table.advance_to(at_ns, &mut records);
        table.audit();
    }
    // Each of them was silent for ten seconds, except the last. What was metered by the wrong clock is told at once.
    let at_wrong = records.remove(0);
    assert_eq!((at_wrong.end, at_wrong.first_ns(), at_wrong.last_ns()), (EndReason::Active, wrong, wrong));
    assert_eq!(records.len(), 100 - 10 - 1);
    assert!(records.iter().all(|record| record.end == EndReason::Idle));
    assert_eq!(table.counts().evicted, 0);
}

#[test]
fn flow_continues_in_parts_after_clock_step() {
    let hour = 3600 * SECOND;
    let times = [5, 6, 7].map(|second| hour + second * SECOND).into_iter();
    let packets: Vec<_> =
        times.chain([8, 9].map(|second| second * SECOND)).map(|at_ns| packet(1, 2, at_ns)).collect();
    let parts: Vec<_> = all(&small(), &packets)
        .iter()
        .map(|record| (record.packets(), [record.first_ns(), record.last_ns()]))
        .collect();
    assert_eq!(parts, [(3, [hour + 5 * SECOND, hour + 7 * SECOND]), (2, [8 * SECOND, 9 * SECOND])]);
}
