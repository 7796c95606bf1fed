//! Reports of several meters of a group on the same flows.

use super::*;
use crate::history::{
    CountTotals, DirectionHistory, Landmark, LandmarkKind, MAX_RECORD_LANDMARKS, RecordOriginMark,
};

fn of_group(meter: u32) -> FlowTable<()> {
    let group = Some(RecordOriginMark { group: 9, meter, lane: 0 });
    FlowTable::new(&TableOptions { active: Nanos::from_secs(4), idle: Nanos::from_secs(2), group, ..small() })
}

/// A packet each tenth of a second, each with another content.
fn flow(from: u64, to: u64) -> Vec<PacketInfo> {
    let at = |number: u64| PacketInfo {
        content: u32::try_from(number).unwrap().wrapping_mul(0x9e37_79b9),
        ..packet(1, 2, 1000 * SECOND + number * SECOND / 10)
    };
    (from..to).map(at).collect()
}

fn directions(records: &[FlowRecord]) -> Vec<DirectionHistory> {
    records.iter().filter_map(|record| Some(record.history.as_ref()?.forward)).collect()
}

fn landmarks(direction: &DirectionHistory) -> Vec<Landmark> {
    direction.landmarks.iter().copied().filter(|landmark| landmark.at_ns > 0).collect()
}

#[test]
fn late_meter_records_the_same_landmarks() {
    let [mut first, mut later] = [1, 2].map(of_group);
    let whole = directions(&metered(&mut first, &flow(0, 300)));
    let late = directions(&metered(&mut later, &flow(77, 300)));
    let [whole, late] = [whole, late].map(|all| all.last().copied().unwrap());
    assert_eq!(landmarks(&whole).len(), MAX_RECORD_LANDMARKS - 1);
    for (one, other) in landmarks(&whole).iter().zip(landmarks(&late)) {
        assert_eq!((one.content, one.at_ns, one.since), (other.content, other.at_ns, other.since));
    }
    assert!(whole.followed.packets > late.followed.packets);
}

#[test]
fn flow_is_strange_until_two_whole_parts() {
    let mut table = of_group(1);
    let strange: Vec<usize> = (0..30)
        .map(|second| {
            if second == 15 {
                table.mark_packet_loss();
            }
            metered(&mut table, &flow(10 * second, 10 * second + 10));
            table.strange_flows()
        })
        .collect();
    assert_eq!((strange[0], strange[14], strange[15], strange[29]), (1, 0, 1, 0), "{strange:?}");
    let known_after = strange.iter().position(|count| *count == 0).unwrap();
    assert!(
        (8..=13).contains(&known_after),
        "two parts of four seconds, and the one that it came into: {strange:?}"
    );
}

#[test]
fn record_after_loss_omits_earlier_history() {
    let mut table = of_group(1);
    let mut records = metered(&mut table, &flow(0, 50));
    table.mark_packet_loss();
    records.extend(metered(&mut table, &flow(53, 60)));
    table.finish_flows(&mut records);
    let [.., before, after] = &directions(&records)[..] else { panic!("{records:?}") };
    assert_eq!((before.followed.packets, after.followed.packets), (50, 7));
    let begin = 1000 * SECOND + 53 * SECOND / 10;
    assert!(landmarks(after).iter().all(|landmark| landmark.at_ns >= begin), "{after:?}");
}

#[test]
fn equal_content_landmarks_report_their_spacing() {
    let mut table = of_group(1);
    let same: Vec<PacketInfo> =
        flow(0, 300).into_iter().map(|packet| PacketInfo { content: 5, ..packet }).collect();
    let records = metered(&mut table, &same);
    let last = directions(&records).last().copied().unwrap();
    let of_parts: Vec<Landmark> =
        landmarks(&last).into_iter().filter(|landmark| landmark.kind == LandmarkKind::Smallest).collect();
    assert!(!of_parts.is_empty() && of_parts.iter().all(|landmark| landmark.alone_us == 100_000), "{last:?}");
}

#[test]
fn the_packets_around_a_silence_are_landmarks() {
    let mut table = of_group(1);
    let mut records = metered(&mut table, &flow(0, 10));
    records.extend(metered(&mut table, &flow(50, 60)));
    table.finish_flows(&mut records);
    let ended = records.iter().find(|record| record.end == EndReason::Idle).unwrap();
    let last = ended.history.as_ref().unwrap().forward.landmarks[0];
    assert_eq!((last.kind, last.at_ns), (LandmarkKind::Last, ended.last_ns()));
    assert_eq!(last.since, CountTotals::default());
    let resumed = directions(&records).last().copied().unwrap();
    let first = landmarks(&resumed).into_iter().find(|landmark| landmark.kind == LandmarkKind::First);
    assert_eq!(first.map(|first| first.at_ns), Some(1005 * SECOND));
}
