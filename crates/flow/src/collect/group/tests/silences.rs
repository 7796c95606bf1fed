//! Flows that one meter forgot during a silence, and another one did not.

use super::*;

/// One meter forgot the flow during a silence of three seconds, and the other one, whose timer was a little later, did not. Only the
/// packets of the other direction have a landmark in common.
#[test]
fn packets_after_a_silence_of_their_direction_are_placed() {
    let mut grouped = GroupRecordJoiner::new(GroupOptions::default(), BEGIN - SECOND);
    let later_ns = BEGIN + 4 * SECOND;
    let answered = |mut record: FlowRecord| {
        let answer = life(1, 6, [later_ns, later_ns], 1, 1);
        record.reverse = answer.forward;
        record.history.as_mut().unwrap().reverse = answer.history.unwrap().forward;
        record
    };
    let mut known = answered(life(2, 4, [BEGIN, BEGIN + SECOND], 9, 9));
    let last =
        Landmark { content: 5, kind: LandmarkKind::Last, at_ns: BEGIN + SECOND, ..Landmark::default() };
    known.history.as_mut().unwrap().forward.landmarks[1] = last;
    let new = |grouped: &mut GroupRecordJoiner, record| {
        grouped.reduce_to_unstored_packets(record, 1).next().map(|record| record.packets())
    };
    assert_eq!(new(&mut grouped, known), Some(10));
    let mut begun = answered(life(1, 7, [later_ns + 30 * MILLI, later_ns + 2 * SECOND], 5, 5));
    begun.history.as_mut().unwrap().since_ns = later_ns;
    assert_eq!(new(&mut grouped, begun), Some(5), "the answer is stored already");
    assert_eq!(grouped.groups().next().unwrap().1.unplaced_packets, 0);
}
