//! Packets that carry the same content.

use super::*;

/// A record of a meter that follows the flow since `since_ns`, with landmarks: content, kind, time, alone, packets since.
fn record_with_landmarks(
    meter: u32,
    since_ns: u64,
    [own, followed]: [u64; 2],
    landmarks: &[(u32, LandmarkKind, u64, u32, u64)],
) -> FlowRecord {
    let mut record = record(meter, since_ns, own, followed);
    let history = record.history.as_mut().unwrap();
    for (to, (content, kind, at_ns, alone_us, packets)) in history.forward.landmarks.iter_mut().zip(landmarks)
    {
        let since = CountTotals { packets: *packets, bytes: 100 * packets, frame_bytes: 114 * packets };
        *to = Landmark { content: *content, kind: *kind, at_ns: *at_ns, alone_us: *alone_us, since };
    }
    (record.forward.first_ns, record.forward.last_ns) = (landmarks[0].2, landmarks[0].2);
    record
}

/// A meter that was started between two packets of equal content takes the later one for unique. Its position must not become that of
/// the earlier one.
#[test]
fn packet_of_equal_content_at_another_time_is_another_one() {
    let mut grouped = GroupRecordJoiner::new(GroupOptions::default(), BEGIN - SECOND);
    let mut new = |record: FlowRecord| {
        grouped.reduce_to_unstored_packets(record, 1).map(|record| record.packets()).sum::<u64>()
    };
    // The offset of the two clocks becomes known.
    for (flow, meter) in (10..16).flat_map(|flow| [(flow, 1), (flow, 2)]) {
        new(FlowRecord { flow_id: flow, ..record(meter, BEGIN, 1, 1) });
    }
    let at = |millis: u64| BEGIN + millis * MILLI;
    let (alone, started) = (u32::MAX >> 1, at(8610));
    let [smallest, first, last] = [LandmarkKind::Smallest, LandmarkKind::First, LandmarkKind::Last];
    let before = [(4, smallest, at(8130), alone, 0)];
    assert_eq!(new(record_with_landmarks(2, BEGIN, [8, 8], &before)), 8);
    let between = [(4, last, at(8715), 2_000_000, 0), (4, smallest, at(8130), 585_000, 1)];
    assert_eq!(new(record_with_landmarks(2, BEGIN, [1, 9], &between)), 1);
    let lone = [(4, smallest, at(8715), 80_000, 0)];
    assert_eq!(new(record_with_landmarks(1, started, [1, 1], &lone)), 0);
    let after = [(9, first, at(11_650), alone, 0)];
    assert_eq!(new(record_with_landmarks(2, BEGIN, [1, 10], &after)), 1);
    let strange = [(9, first, at(11_650), alone, 0), (4, smallest, at(8715), alone, 1)];
    assert_eq!(new(record_with_landmarks(1, started, [1, 2], &strange)), 0);
    // The first record comes again.
    assert_eq!(new(record_with_landmarks(2, BEGIN, [8, 8], &before)), 0);
    let next = [(5, smallest, at(12_000), 350_000, 0)];
    assert_eq!(new(record_with_landmarks(2, BEGIN, [1, 11], &next)), 1);
}
