//! Records of the program in the driver. That it makes them of frames as the parser does is held by `tests/tests/unified.rs`.

use super::*;

fn record(version: u8, addresses: &[u8]) -> Vec<u8> {
    let head = [version, 6, 0x12, 63, 0xb8, 0];
    let numbers = [1500_u16, 1000, 443, 5, 6].map(u16::to_ne_bytes).concat();
    [&head[..], &numbers, &[2; 6], &[1; 6], &7_u32.to_ne_bytes(), addresses].concat()
}

fn expected() -> PacketInfo {
    PacketInfo {
        at_ns: 9,
        bytes: 1500,
        frame_bytes: 1522,
        source_port: 1000,
        destination_port: 443,
        vlan: 5,
        inner_vlan: 6,
        protocol: 6,
        tcp_flags: 0x12,
        ttl: 63,
        tos: 0xb8,
        input: 3,
        source_mac: [1; 6],
        destination_mac: [2; 6],
        content: 7,
        ..PacketInfo::default()
    }
}

#[test]
fn a_record_of_either_version_is_a_packet() {
    let mut packet = PacketInfo { mpls: [9; 3], outer_source: [9; 16], flags: 0xff, ..PacketInfo::default() };
    assert!(unified::read_record(&record(4, &[LEFT, RIGHT].concat()), 1522, 9, 3, &mut packet));
    assert_eq!(
        packet,
        PacketInfo { source: ipv4_mapped(LEFT), destination: ipv4_mapped(RIGHT), ..expected() }
    );
    assert!(unified::read_record(&record(6, &[[7; 16], [8; 16]].concat()), 1522, 9, 3, &mut packet));
    let six = PacketInfo { source: [7; 16], destination: [8; 16], flags: flags::IPV6_FLAG, ..expected() };
    assert_eq!(packet, six);
}

#[test]
fn other_bytes_are_no_record() {
    let mut packet = PacketInfo::default();
    for len in 0..80 {
        for version in [0, 4, 5, 6] {
            let bytes = record(version, &[0; 60]);
            let is_record = matches!((version, len), (4, 40) | (6, 64));
            assert_eq!(
                unified::read_record(&bytes[..len], 60, 0, 0, &mut packet),
                is_record,
                "{version} {len}"
            );
        }
    }
    assert_eq!(unified::UNIFIED_RECORD_LENGTHS, [40, 64]);
}
