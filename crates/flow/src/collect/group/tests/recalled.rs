//! A collector that is started again: what it knows is what its records say.

use super::*;
use crate::history::FlowHistory;

/// Returns a collector that has read these records from its files.
fn restart_collector(stored: &[FlowRecord]) -> GroupRecordJoiner {
    let mut again = GroupRecordJoiner::new(GroupOptions::default(), BEGIN - SECOND);
    for record in stored {
        let history = Some(Box::new(stored_history(record)));
        again.restore_stored_record(FlowRecord { history, foreign: None, ..record.clone() }, 1);
    }
    again
}

fn stored_history(record: &FlowRecord) -> FlowHistory {
    let mut text = String::new();
    record.foreign.as_ref().unwrap().others.append_json(&mut text);
    let history = FlowHistory::from_fields(
        |name| field_value(&text, name)?.parse().ok(),
        |name| Some(field_value(&text, name)?.trim_matches('"')),
    );
    history.unwrap()
}

fn new_packets(grouped: &mut GroupRecordJoiner, record: &FlowRecord) -> Vec<u64> {
    grouped.reduce_to_unstored_packets(record.clone(), 2).map(|new| new.packets()).collect()
}

/// The hour of 2026-11-29: a new active meter reported 28 packets of 16 s in one record, and a restarted collector took it for a record
/// of its last 0.2 s. The former active meter then sent the packets of before again, and 23 of them were stored twice.
#[test]
fn recovered_packets_are_not_stored_again_after_restart() {
    let mut grouped = GroupRecordJoiner::new(GroupOptions::default(), BEGIN - SECOND);
    let mut late = record(2, BEGIN, 3, 28);
    (late.forward.first_ns, late.forward.last_ns) = (BEGIN + 15 * SECOND, BEGIN + 16 * SECOND);
    let stored: Vec<FlowRecord> = grouped.reduce_to_unstored_packets(late, 1).collect();
    assert_eq!(stored.iter().map(FlowRecord::packets).collect::<Vec<u64>>(), [28]);
    let mut again = restart_collector(&stored);
    let mut early = record(1, BEGIN + MILLI, 8, 8);
    early.history.as_mut().unwrap().forward.landmarks[0].content = 4;
    early.forward.last_ns = BEGIN + 4 * SECOND;
    assert_eq!(new_packets(&mut again, &early), []);
}

/// The hour of 2026-11-30: of two records, the second one has made up for lost packets. Its claim overlaps the times of another meter's
/// record, whose positions nobody can compare after the restart. It is true all the same.
#[test]
fn recalled_claim_counts_beside_lines_of_its_times() {
    let new_collector = || GroupRecordJoiner::new(GroupOptions::default(), BEGIN - SECOND);
    let counts = |packets| CountTotals { packets, bytes: 100 * packets, frame_bytes: 114 * packets };
    let mut other = life(2, 4, [BEGIN - SECOND / 2, BEGIN + 4 * SECOND], 8, 8);
    let landmarks = &mut other.history.as_mut().unwrap().forward.landmarks;
    let common = Landmark { content: 5, at_ns: BEGIN + 2 * SECOND, ..landmarks[0] };
    landmarks[1] = Landmark { since: counts(5), ..common };
    let mut stored: Vec<FlowRecord> = new_collector().reduce_to_unstored_packets(other, 1).collect();
    let mut grouped = new_collector();
    let first = record(1, BEGIN, 7, 7);
    assert_eq!(new_packets(&mut grouped, &first), [7]);
    let mut late = record(1, BEGIN, 3, 28);
    (late.forward.first_ns, late.forward.last_ns) = (BEGIN + 15 * SECOND, BEGIN + 16 * SECOND);
    stored.extend(grouped.reduce_to_unstored_packets(late, 1));
    assert_eq!(stored.iter().map(FlowRecord::packets).collect::<Vec<u64>>(), [8, 21]);
    let mut next = record(1, BEGIN, 5, 33);
    (next.forward.first_ns, next.forward.last_ns) = (BEGIN + 17 * SECOND, BEGIN + 18 * SECOND);
    next.history.as_mut().unwrap().forward.landmarks[1] = Landmark { since: counts(25), ..common };
    assert_eq!(new_packets(&mut restart_collector(&stored), &next), [5]);
}

/// If the packets of a waiting record were stored with those of the record that placed it, nothing would tell which ones they are.
#[test]
fn waiting_record_is_stored_by_itself() {
    let mut grouped = GroupRecordJoiner::new(GroupOptions::default(), BEGIN - SECOND);
    let mut stored: Vec<FlowRecord> = grouped.reduce_to_unstored_packets(record(1, BEGIN, 7, 7), 1).collect();
    let mut strange = life(2, 50, [BEGIN + MILLI, BEGIN + 2 * MILLI], 30, 30);
    strange.history.as_mut().unwrap().is_strange = true;
    assert_eq!(new_packets(&mut grouped, &strange), []);
    let mut naming = record(1, BEGIN, 5, 12);
    let landmarks = &mut naming.history.as_mut().unwrap().forward.landmarks;
    let since = CountTotals { packets: 8, bytes: 800, frame_bytes: 912 };
    landmarks[1] = Landmark { content: 50, at_ns: BEGIN + MILLI, since, ..landmarks[0] };
    stored.extend(grouped.reduce_to_unstored_packets(naming.clone(), 3));
    assert_eq!(stored.iter().map(FlowRecord::packets).collect::<Vec<u64>>(), [7, 5, 21]);
    assert_eq!(stored_history(&stored[2]).mark.meter, 2, "its own meter");
    let mut again = restart_collector(&stored);
    for known in [&strange, &naming] {
        assert_eq!(new_packets(&mut again, known), []);
    }
}

/// Nothing of a direction is stored with a record that had no position in it.
#[test]
fn unplaced_direction_is_not_recalled_as_stored() {
    let mut grouped = GroupRecordJoiner::new(GroupOptions::default(), BEGIN - SECOND);
    let mut stored: Vec<FlowRecord> = grouped.reduce_to_unstored_packets(record(2, BEGIN, 7, 7), 1).collect();
    let mut strange = record(1, BEGIN, 2, 9);
    strange.reverse =
        FlowHalf { packets: 30, first_ns: BEGIN, last_ns: BEGIN + SECOND, ..FlowHalf::default() };
    let history = strange.history.as_mut().unwrap();
    history.is_strange = true;
    history.reverse = DirectionHistory {
        followed: CountTotals { packets: 30, ..CountTotals::default() },
        ..DirectionHistory::default()
    };
    stored.extend(grouped.reduce_to_unstored_packets(strange, 2));
    assert_eq!(stored.iter().map(FlowRecord::packets).collect::<Vec<u64>>(), [7, 2]);
    let mut again = restart_collector(&stored);
    let mut replies = record(2, BEGIN, 0, 9);
    replies.forward = FlowHalf::default();
    replies.reverse =
        FlowHalf { packets: 30, first_ns: BEGIN, last_ns: BEGIN + SECOND, ..FlowHalf::default() };
    let history = replies.history.as_mut().unwrap();
    history.reverse = DirectionHistory {
        followed: CountTotals { packets: 30, ..CountTotals::default() },
        ..history.forward
    };
    assert_eq!(new_packets(&mut again, &replies), [30]);
}

/// Returns the value of a field in a JSON object without nested ones.
fn field_value<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let key = format!("\"{name}\":");
    text[text.find(&key)? + key.len()..].split([',', '}']).next()
}
