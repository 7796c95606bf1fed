//! Packets that stand for several on the wire, and those of which that is not known.

use super::*;
use crate::flags;

fn merged(at_ns: u64, segments: u16) -> PacketInfo {
    let bytes = 100 * u32::from(segments);
    let frame_bytes = 114 * u32::from(segments);
    let flags = flags::MERGED_FLAG;
    PacketInfo { bytes, frame_bytes, flags, segments, segment_bytes: 100, ..packet(1, 2, at_ns) }
}

#[test]
fn merged_packets_count_fully_beyond_narrow_counters() {
    let most = u16::MAX - 1;
    let mut table = FlowTable::<()>::new(&small());
    let packets = [merged(0, 3), packet(1, 2, 1), merged(2, most), merged(3, most), merged(4, 1)];
    let mut records = metered(&mut table, &packets);
    table.finish_flows(&mut records);
    let sent = 3 + 1 + 2 * u64::from(most) + 1;
    assert_eq!(records.len(), 1);
    let FlowHalf { packets, bytes, frame_bytes, .. } = records[0].forward;
    assert_eq!((packets, bytes, frame_bytes), (sent, 100 * sent, 114 * sent));
    assert_eq!((table.counts().metered, table.counts().recorded), (sent, sent));
    assert!(!records[0].merged);
}

#[test]
fn untracked_merged_packets_count_each_segment() {
    let options = TableOptions { capacity: 1, when_full: FullTableReaction::Refuse, ..small() };
    let mut table = FlowTable::<()>::new(&options);
    metered(&mut table, &[packet(3, 4, 0), merged(1, 7)]);
    assert_eq!((table.counts().metered, table.counts().untracked), (1, 7));
}

#[test]
fn unsplit_packet_marks_only_its_own_part() {
    let unsplit = |at_ns| PacketInfo { flags: flags::UNSPLIT_FLAG, ..packet(1, 2, at_ns) };
    let mut packets: Vec<_> = (0..16).map(|n| packet(1, 2, n * 9 * SECOND)).collect();
    packets[2] = unsplit(18 * SECOND);
    let records = all(&small(), &packets);
    assert!(records.len() > 2, "parts of 60 s");
    let marks: Vec<_> = records.iter().map(|record| record.merged).collect();
    assert!(marks[0] && marks[1..].iter().all(|is_marked| !is_marked), "{marks:?}");
}
