//! Two meters that see the same packets by clocks of their own; one of them sends at a time. Whatever is sent twice or not by
//! the one that should have: in the end every packet is there once.

mod alike;
mod recalled;
mod silences;

use super::counts::{MAX_METERS_PER_GROUP, MAX_REMEMBERED_SWITCHES};
use super::*;
use crate::FlowHalf;
use crate::history::{CountTotals, DirectionHistory, Landmark, LandmarkKind};
use crate::packet::{PacketInfo, protocol};
use crate::table::{FlowTable, TableOptions};
use proptest::prelude::*;
use std::collections::HashMap;

const SECOND: u64 = 1_000_000_000;
const MILLI: u64 = 1_000_000;
const BEGIN: u64 = 1_790_000_000 * SECOND;
/// Interval at which a meter looks at its timers when nothing arrives.
const STEP: u64 = 200 * MILLI;
/// Start of the meters: before the first packet by more than the idle timeout.
const THERE: u64 = BEGIN - 10 * SECOND;
/// Time by which a standby goes back when it takes over, to repeat what the former meter may not have sent.
const MARGIN: u64 = 4 * SECOND;

/// A record and when it left the table.
type Left = (u64, FlowRecord);

struct Meter {
    table: FlowTable<()>,
    left: Vec<Left>,
    now_ns: u64,
}

impl Meter {
    /// A meter that is there from a time on.
    fn new(meter: u32, from_ns: u64) -> Self {
        let options = TableOptions {
            capacity: 256,
            active: Nanos::from_secs(7),
            idle: Nanos::from_secs(3),
            grace: Nanos::from_secs(1),
            group: Some(RecordOriginMark { group: 9, meter, lane: 0 }),
            ..TableOptions::default()
        };
        let mut table = FlowTable::new(&options);
        table.advance_to(from_ns, &mut Vec::new());
        Self { table, left: Vec::new(), now_ns: from_ns }
    }

    fn note(&mut self, at_ns: u64, records: Vec<FlowRecord>) {
        self.left.extend(records.into_iter().map(|record| (at_ns, record)));
    }

    /// Looks at the timers.
    fn look(&mut self, at_ns: u64) {
        let mut records = Vec::new();
        self.table.advance_to(at_ns, &mut records);
        self.note(at_ns, records);
    }

    fn meter(&mut self, packet: PacketInfo) {
        while self.now_ns + STEP < packet.at_ns {
            self.now_ns += STEP;
            self.look(self.now_ns);
        }
        self.now_ns = packet.at_ns.max(self.now_ns);
        let mut records = Vec::new();
        self.table.meter_packets(&[packet], self.now_ns, &mut records);
        self.note(self.now_ns, records);
    }

    fn finish(&mut self, at_ns: u64) {
        let mut records = Vec::new();
        self.table.finish_flows(&mut records);
        self.note(at_ns, records);
    }
}

/// A packet of one of four flows: which way it goes, after how long, and its TCP flags.
fn packets() -> impl Strategy<Value = Vec<(u8, bool, u64, u8)>> {
    // Pauses near the idle timeout and the grace, with and without the time that flows linger, are the difficult ones.
    let near = |middle: u64| (0..20_u64).prop_map(move |more| middle * MILLI + more * MILLI - 10 * MILLI);
    let pause = prop_oneof![
        6 => (0..900_u64).prop_map(|millis| millis * MILLI),
        1 => near(1000), 1 => near(2000), 1 => near(3000), 1 => near(4000), 1 => (0..9_u64).prop_map(|seconds| seconds * SECOND)
    ];
    let flags = prop_oneof![4 => Just(16_u8), 1 => Just(1), 1 => Just(2), 1 => Just(4)];
    prop::collection::vec((0..4_u8, any::<bool>(), pause, flags), 1..120)
}

fn packet(flow: u8, is_back: bool, flags: u8, number: usize, at_ns: u64) -> PacketInfo {
    let (one, other) = ([flow + 1; 16], [200 - flow; 16]);
    let (source, destination) = if is_back { (other, one) } else { (one, other) };
    let protocol = if flow.is_multiple_of(2) { protocol::TCP } else { 17 };
    let tcp_flags = if flow.is_multiple_of(2) { flags } else { 0 };
    PacketInfo {
        source,
        destination,
        protocol,
        tcp_flags,
        bytes: 100,
        frame_bytes: 114,
        at_ns,
        content: u32::try_from(number).unwrap_or(0).wrapping_mul(0x9e37_79b9),
        ..PacketInfo::default()
    }
}

/// Packets by number of flow and the end that sent them.
fn by_side<'a>(records: impl IntoIterator<Item = &'a FlowRecord>) -> HashMap<(u64, [u8; 16]), u64> {
    let mut sums = HashMap::new();
    for record in records {
        *sums.entry((record.flow_id, record.key.source)).or_default() += record.forward.packets;
        *sums.entry((record.flow_id, record.key.destination)).or_default() += record.reverse.packets;
    }
    sums.retain(|_, packets| *packets > 0);
    sums
}

/// Returns the records that are sent if the meters take turns: each sends from a margin before the moment at
/// which it takes over.
fn sent(meters: &[Meter; 2], turns: &[u64]) -> Vec<FlowRecord> {
    let mut sent = Vec::new();
    for (number, from_ns) in turns.iter().enumerate() {
        let until_ns = turns.get(number + 1).copied().unwrap_or(u64::MAX);
        let of = meters[number % 2].left.iter();
        let due = of.filter(|(at_ns, _)| *at_ns + MARGIN >= *from_ns && *at_ns < until_ns);
        sent.extend(due.map(|(_, record)| record.clone()));
    }
    sent
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn every_packet_is_there_once_whoever_sends(
        packets in packets(),
        offset in 0..5 * MILLI,
        jitter in prop::collection::vec(0..MILLI, 120),
        turns in prop::collection::vec(0..60 * SECOND, 0..5),
        repeats in any::<bool>(),
    ) {
        let mut meters = [1, 2].map(|meter| Meter::new(meter, THERE));
        let mut at_ns = BEGIN;
        for (number, ((flow, is_back, pause, flags), jitter)) in packets.iter().zip(jitter).enumerate() {
            at_ns += pause;
            meters[0].meter(packet(*flow, *is_back, *flags, number, at_ns));
            meters[1].meter(packet(*flow, *is_back, *flags, number, at_ns + offset + jitter));
        }
        for meter in &mut meters {
            meter.finish(at_ns + 10 * MILLI);
        }
        let mut turns: Vec<u64> = turns.into_iter().map(|turn| BEGIN + turn).collect();
        turns.sort_unstable();
        turns.insert(0, 0);
        let mut sent = sent(&meters, &turns);
        if repeats {
            sent.extend(sent.clone());
        }
        let mut grouped = GroupRecordJoiner::new(GroupOptions::default(), BEGIN - SECOND);
        let joined: Vec<FlowRecord> = sent.iter().flat_map(|record| grouped.reduce_to_unstored_packets(record.clone(), 1)).collect();
        let truth = by_side(meters[0].left.iter().map(|(_, record)| record));
        prop_assert_eq!(by_side(&joined), truth);
        let bytes = joined.iter().map(FlowRecord::bytes).sum::<u64>();
        prop_assert_eq!(bytes, 100 * packets.len() as u64);
        for record in &joined {
            prop_assert!(record.history.is_none() && record.last_ns() >= record.first_ns() && record.first_ns() >= BEGIN);
        }
    }
}

/// A record of a meter that saw this much since the first packet.
fn record(meter: u32, began_ns: u64, own: u64, followed: u64) -> FlowRecord {
    let counts = |packets| CountTotals { packets, bytes: 100 * packets, frame_bytes: 114 * packets };
    let first = Landmark {
        content: 3,
        kind: LandmarkKind::First,
        at_ns: began_ns,
        alone_us: u32::MAX,
        since: counts(followed - 1),
    };
    let mut direction = DirectionHistory { followed: counts(followed), ..DirectionHistory::default() };
    direction.landmarks[0] = first;
    let history = FlowHistory {
        mark: RecordOriginMark { group: 5, meter, lane: 0 },
        since_ns: began_ns,
        forward: direction,
        ..FlowHistory::default()
    };
    let forward = FlowHalf {
        packets: own,
        bytes: 100 * own,
        frame_bytes: 114 * own,
        first_ns: began_ns,
        last_ns: began_ns + 1,
        tcp_flags: 0,
    };
    FlowRecord { flow_id: 7, forward, history: Some(Box::new(history)), ..FlowRecord::default() }
}

#[test]
fn grouped_flows_drop_repeats_and_count_losses() {
    let mut grouped = GroupRecordJoiner::new(GroupOptions::default(), BEGIN - SECOND);
    let news = [
        record(1, BEGIN, 7, 7),
        record(2, BEGIN + MILLI, 9, 9),
        record(1, BEGIN, 5, 12),
        record(1, BEGIN, 5, 12),
        // A record of four packets was lost before it.
        record(1, BEGIN, 2, 18),
    ];
    let new: Vec<Option<u64>> = (1..)
        .zip(news)
        .map(|(now_ns, record)| {
            grouped.reduce_to_unstored_packets(record, now_ns).next().map(|record| record.packets())
        })
        .collect();
    assert_eq!(new, [Some(7), Some(2), Some(3), None, Some(6)]);
    let (group, counts) = grouped.groups().next().unwrap();
    assert_eq!((group, counts.records, counts.repeated, counts.overlapping), (5, 5, 1, 2));
    assert_eq!((counts.known_packets, counts.recovered_packets), (7 + 2 + 5, 4));
    assert_eq!(
        counts.meters[&2],
        MeterCounts { records: 1, packets: 9, new_packets: 2, heard_ns: 2, copy_packets: None }
    );
    assert_eq!((counts.packets, counts.unplaced_packets), (18, 0));
    assert_eq!(
        grouped.reduce_to_unstored_packets(FlowRecord::default(), 9).next(),
        Some(FlowRecord::default()),
        "of no group"
    );
}

/// A later record makes up for lost packets with the times of its own, even if it has no packets in this direction.
#[test]
fn recovered_packets_take_times_of_their_record() {
    let mut grouped = GroupRecordJoiner::new(GroupOptions::default(), BEGIN - SECOND);
    grouped.reduce_to_unstored_packets(record(1, BEGIN, 7, 7), 1).next();
    let mut late = record(1, BEGIN, 0, 9);
    late.forward = FlowHalf::default();
    late.reverse = FlowHalf { packets: 1, first_ns: BEGIN + 5, last_ns: BEGIN + 6, ..FlowHalf::default() };
    late.history.as_mut().unwrap().reverse.followed.packets = 1;
    let new = grouped.reduce_to_unstored_packets(late, 2).next().unwrap();
    let times = [new.forward, new.reverse].map(|half| (half.packets, half.first_ns, half.last_ns));
    assert_eq!(times, [(2, BEGIN + 5, BEGIN + 6), (1, BEGIN + 5, BEGIN + 6)]);
}

/// A collector that was killed may receive records again that it has not stored.
#[test]
fn flow_lifetimes_are_stored_once_in_any_order() {
    let mut grouped = GroupRecordJoiner::new(GroupOptions::default(), BEGIN - SECOND);
    let lives = [record(1, BEGIN, 7, 7), record(1, BEGIN + 5 * SECOND, 9, 9)];
    let new = [1, 0, 0, 1].map(|life| {
        grouped.reduce_to_unstored_packets(lives[life].clone(), 1).next().map(|record| record.packets())
    });
    assert_eq!(new, [Some(9), Some(7), None, None]);
}

/// A record that makes up for lost ones has stored their packets, although it begins long after them.
#[test]
fn recovered_packets_are_not_stored_again() {
    let mut grouped = GroupRecordJoiner::new(GroupOptions::default(), BEGIN - SECOND);
    let mut late = record(2, BEGIN, 90, 237);
    (late.forward.first_ns, late.forward.last_ns) = (BEGIN + 6 * SECOND, BEGIN + 7 * SECOND);
    assert_eq!(grouped.reduce_to_unstored_packets(late, 1).next().map(|record| record.packets()), Some(237));
    let mut early = record(1, BEGIN + MILLI, 76, 76);
    early.history.as_mut().unwrap().forward.landmarks[0].content = 4;
    early.forward.last_ns = BEGIN + SECOND;
    assert_eq!(grouped.reduce_to_unstored_packets(early, 2).next(), None);
}

/// A meter that came while the flow went on reports first; the landmark that it names is known later.
#[test]
fn packets_of_waiting_record_are_unplaced_until_it_is_placed() {
    let mut grouped = GroupRecordJoiner::new(GroupOptions::default(), BEGIN - SECOND);
    let unplaced = |grouped: &GroupRecordJoiner| {
        let (_, counts) = grouped.groups().next().unwrap();
        (counts.unplaced_packets, counts.known_packets, counts.recovered_packets)
    };
    assert!(grouped.reduce_to_unstored_packets(record(1, BEGIN, 7, 7), 1).next().is_some());
    let mut strange = life(2, 50, [BEGIN + MILLI, BEGIN + 2 * MILLI], 4, 5);
    strange.history.as_mut().unwrap().is_strange = true;
    assert_eq!(grouped.reduce_to_unstored_packets(strange, 2).next(), None);
    assert_eq!(unplaced(&grouped), (4, 0, 0));
    let mut naming = record(1, BEGIN, 5, 12);
    let landmarks = &mut naming.history.as_mut().unwrap().forward.landmarks;
    let since = CountTotals { packets: 8, bytes: 800, frame_bytes: 912 };
    landmarks[1] = Landmark { content: 50, at_ns: BEGIN + MILLI, since, ..landmarks[0] };
    assert_eq!(grouped.reduce_to_unstored_packets(naming, 3).next().map(|record| record.packets()), Some(5));
    assert_eq!(unplaced(&grouped), (0, 4, 0));
}

/// A record of another life than those of [`record`], with a landmark of its own.
fn life(meter: u32, content: u32, [first_ns, last_ns]: [u64; 2], own: u64, followed: u64) -> FlowRecord {
    let mut life = record(meter, first_ns, own, followed);
    life.forward.last_ns = last_ns;
    life.history.as_mut().unwrap().forward.landmarks[0].content = content;
    life
}

/// A standby saw a life of a flow while the meter that reports before and after it stood still.
/// One meter was ended early. The landmarks that it named are too old to be among those of the other one.
#[test]
fn records_with_the_same_beginning_are_placed() {
    for offset in 0..7 {
        let begin_ns = BEGIN + offset * SECOND;
        let mut meters = [1, 2].map(|meter| Meter::new(meter, THERE));
        for (number, millis) in [0, 1, 2600, 2601, 5200, 5201].into_iter().enumerate() {
            let packet = packet(1, false, 0, number, begin_ns + millis * MILLI);
            if number < 2 {
                meters[0].meter(packet);
            }
            meters[1].meter(packet);
        }
        let mut groups = GroupRecordJoiner::new(GroupOptions::default(), THERE);
        let mut stored = 0;
        for meter in &mut meters {
            meter.finish(begin_ns + 6 * SECOND);
            let new = meter
                .left
                .iter()
                .flat_map(|(at_ns, record)| groups.reduce_to_unstored_packets(record.clone(), *at_ns));
            stored += new.map(|record| record.packets()).sum::<u64>();
        }
        assert_eq!(stored, 6, "offset {offset}");
    }
}

/// A collector that was started again receives what a meter has sent in the last 90 s, and then what a meter that ended half a minute
/// ago has sent before.
#[test]
fn records_sent_again_are_placed_by_old_landmarks() {
    let mut meters = [1, 2].map(|meter| Meter::new(meter, THERE));
    let at = |number: usize| BEGIN + number as u64 * 100 * MILLI;
    for number in 0..900 {
        // The second meter came after a third of the time, and the first one ended after two thirds.
        if number == 300 {
            meters[1] = Meter::new(2, at(number));
        }
        if number < 600 {
            meters[0].meter(packet(1, false, 0, number, at(number)));
        }
        if number >= 300 {
            meters[1].meter(packet(1, false, 0, number, at(number)));
        }
    }
    meters[0].finish(at(600));
    meters[1].finish(at(900));
    let mut groups = GroupRecordJoiner::new(GroupOptions::default(), THERE);
    let sent_again = meters.iter().rev().flat_map(|meter| &meter.left);
    let new = sent_again.flat_map(|(_, record)| groups.reduce_to_unstored_packets(record.clone(), at(901)));
    assert_eq!(new.map(|record| record.packets()).sum::<u64>(), 900);
    let (_, counts) = groups.groups().next().unwrap();
    assert_eq!(counts.unplaced_packets, 0);
}

#[test]
fn life_between_known_lives_is_stored() {
    let mut grouped = GroupRecordJoiner::new(GroupOptions::default(), BEGIN - SECOND);
    let at = |second: u64| [BEGIN + second * SECOND, BEGIN + (second + 1) * SECOND];
    let lives = [life(1, 3, at(0), 7, 7), life(1, 4, at(30), 9, 9), life(2, 5, at(10), 8, 8)];
    for (life, own) in lives.into_iter().zip([7, 9, 8]) {
        assert_eq!(
            grouped.reduce_to_unstored_packets(life.clone(), 1).next().map(|record| record.packets()),
            Some(own)
        );
        assert_eq!(grouped.reduce_to_unstored_packets(life, 1).next(), None);
    }
    // It overlaps the second life, and nothing tells which packets they have in common.
    assert_eq!(
        grouped
            .reduce_to_unstored_packets(life(3, 6, [BEGIN + 9 * SECOND, BEGIN + 10 * SECOND], 5, 5), 1)
            .next(),
        None
    );
}

/// After its start, a collector receives an end of a life first, then all lives again, the oldest first.
#[test]
fn part_of_life_outlasts_older_lives() {
    let mut grouped = GroupRecordJoiner::new(GroupOptions::default(), BEGIN - SECOND);
    let at = |second: u64| [BEGIN + second * SECOND, BEGIN + (second + 1) * SECOND];
    let mut part = life(1, 99, at(100), 4, 4);
    part.history.as_mut().unwrap().is_strange = true;
    assert_eq!(grouped.reduce_to_unstored_packets(part, 1).next().map(|record| record.packets()), Some(4));
    for number in 0..20 {
        let older = life(2, 100 + u32::try_from(number).unwrap(), at(3 * number), 7, 7);
        assert_eq!(
            grouped.reduce_to_unstored_packets(older.clone(), 1).next().map(|record| record.packets()),
            Some(7)
        );
        assert_eq!(grouped.reduce_to_unstored_packets(older, 1).next(), None);
    }
    let whole = life(2, 99, at(100), 45, 45);
    assert_eq!(grouped.reduce_to_unstored_packets(whole, 1).next().map(|record| record.packets()), Some(41));
}

/// A record of a flow that has been quiet since has no packets of its own, but all since its first one.
#[test]
fn claim_without_own_packets_keeps_its_times() {
    let mut grouped = GroupRecordJoiner::new(GroupOptions::default(), BEGIN - SECOND);
    let mut quiet = life(1, 4, [BEGIN, BEGIN + 4 * SECOND], 0, 9);
    quiet.forward = FlowHalf::default();
    let last =
        Landmark { content: 9, kind: LandmarkKind::Last, at_ns: BEGIN + 4 * SECOND, ..Landmark::default() };
    quiet.history.as_mut().unwrap().forward.landmarks[1] = last;
    assert_eq!(grouped.reduce_to_unstored_packets(quiet, 1).next().map(|record| record.packets()), Some(9));
    let overlapping = life(2, 5, [BEGIN + 2 * SECOND, BEGIN + 3 * SECOND], 3, 3);
    assert_eq!(
        grouped.reduce_to_unstored_packets(overlapping, 1).next(),
        None,
        "its packets are among the nine"
    );
}

/// A meter that came while a flow was going on waits for the one that saw it begin, whichever reports first.
#[test]
fn strange_record_waits_for_the_witness_that_reports() {
    let mut grouped = GroupRecordJoiner::new(GroupOptions::default(), BEGIN - SECOND);
    let seconds = |from: u64, to: u64| [BEGIN + from * SECOND, BEGIN + to * SECOND];
    assert!(
        grouped.reduce_to_unstored_packets(life(2, 3, seconds(0, 1), 7, 7), 1).next().is_some(),
        "the witness lives"
    );
    let mut strange = life(1, 4, seconds(20, 24), 35, 35);
    strange.history.as_mut().unwrap().is_strange = true;
    assert_eq!(grouped.reduce_to_unstored_packets(strange, 2).next(), None);
    let new = grouped.reduce_to_unstored_packets(life(2, 5, seconds(15, 16), 4, 4), 3).next();
    assert_eq!(new.map(|record| record.packets()), Some(4), "only its own packets");
    let mut whole = life(2, 5, seconds(17, 24), 60, 64);
    whole.history.as_mut().unwrap().since_ns = BEGIN + 15 * SECOND;
    let new = grouped.reduce_to_unstored_packets(whole, 4).next();
    assert_eq!(new.map(|record| record.packets()), Some(60));
}

#[test]
fn flows_are_forgotten_by_number_or_age() {
    let mut grouped =
        GroupRecordJoiner::new(GroupOptions { flows: 10, memory: Nanos::from_secs(60) }, BEGIN - SECOND);
    for flow_id in 0..1000 {
        grouped.reduce_to_unstored_packets(FlowRecord { flow_id, ..record(1, BEGIN, 7, 7) }, 1).next();
        assert!(grouped.recent.len() <= 10 && grouped.older.len() <= 10);
    }
    let again = |grouped: &mut GroupRecordJoiner, now_ns| {
        grouped
            .reduce_to_unstored_packets(FlowRecord { flow_id: 999, ..record(1, BEGIN, 7, 7) }, now_ns)
            .next()
    };
    assert_eq!(again(&mut grouped, 2), None);
    assert_eq!(again(&mut grouped, 60 * SECOND), None);
    // After two turns without use the direction is forgotten, so the record's own totals count.
    grouped.reduce_to_unstored_packets(record(1, BEGIN, 7, 7), 120 * SECOND).next();
    grouped.reduce_to_unstored_packets(record(1, BEGIN, 7, 7), 180 * SECOND).next();
    assert!(again(&mut grouped, 181 * SECOND).is_some());
    let (_, counts) = grouped.groups().next().unwrap();
    // It began before flows were forgotten because they were too many.
    assert!(counts.forgotten > 0 && counts.forgotten < 2 * counts.records, "{counts:?}");
}

#[test]
fn memory_is_bounded_whatever_senders_say() {
    let memory = 1 << 20;
    let mut grouped = GroupRecordJoiner::new(GroupOptions::within_memory(memory), BEGIN - SECOND);
    for number in 0..20_000 {
        let mut of_any = FlowRecord { flow_id: number, ..record(1, BEGIN, 7, 7) };
        let mark = RecordOriginMark { group: number % 500, meter: u32::try_from(number).unwrap(), lane: 0 };
        of_any.history.as_mut().unwrap().mark = mark;
        grouped.reduce_to_unstored_packets(of_any, 1).next();
        assert!(grouped.memory_bytes() <= memory, "{}", grouped.memory_bytes());
    }
    assert_eq!(grouped.groups().count(), MAX_GROUPS);
    assert!(grouped.groups().all(|(_, counts)| counts.meters.len() <= MAX_METERS_PER_GROUP));
    assert!(grouped.memory_bytes() > memory / 16, "{}", grouped.memory_bytes());
}

#[test]
fn active_meter_switch_is_noted_once_with_duplicates() {
    let mut grouped = GroupRecordJoiner::new(GroupOptions::default(), 0);
    let standby = GroupMembership { group: 7, meter: 1, packets: 30, ..GroupMembership::default() };
    let active = GroupMembership { meter: 2, term: 4, since_ns: 100, silent_ns: 31, replayed: 0, ..standby };
    grouped.note_membership(&standby);
    grouped.note_membership(&active);
    grouped.note_membership(&GroupMembership { replayed: 5, packets: 40, ..active });
    let counts = grouped.groups.get_mut(&7).unwrap();
    let placed = RecordJoinOutcome::default();
    counts.count_record(2, &placed, [3, 0], 1);
    counts.count_record(2, &placed, [3, 3], 1);
    counts.count_record(1, &placed, [3, 0], 1);
    let expected = GroupSwitch {
        at_ns: 100,
        meter: 2,
        term: 4,
        silent_ns: 31,
        replay_from_ns: 0,
        replayed: 5,
        repeated: 1,
    };
    assert_eq!((counts.switch_count, counts.switches.iter().collect::<Vec<_>>()), (1, vec![&expected]));
    assert_eq!((counts.meters[&1].copy_packets, counts.meters[&2].copy_packets), (Some(30), Some(40)));
    // Meters that say all kinds of things take no memory.
    for n in 0..1000 {
        grouped.note_membership(&GroupMembership { term: n + 5, ..active });
        grouped.note_membership(&GroupMembership { group: n, meter: u32::try_from(n).unwrap(), ..active });
    }
    let all: usize = grouped.groups.values().map(|counts| counts.switches.len() + counts.meters.len()).sum();
    assert!(all <= MAX_GROUPS * (MAX_REMEMBERED_SWITCHES + MAX_METERS_PER_GROUP), "{all}");
    assert_eq!(grouped.groups[&7].switches.len(), MAX_REMEMBERED_SWITCHES);
}
