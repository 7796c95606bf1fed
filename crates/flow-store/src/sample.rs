//! Flow records for the tests of this crate.

use packetrig_flow::{
    EndReason, FlowHalf, FlowKey, FlowRecord, ForeignFields, IPV4_MAPPED_PREFIX, OtherFields, TunnelKind,
};
use std::sync::Arc;

/// 2026-11-21 13:00:00 UTC.
pub(super) const THIRTEEN: u64 = 1_795_266_000_000_000_000;
pub(super) const SECOND: u64 = 1_000_000_000;

/// An address of the benchmarking range.
pub(super) fn address(number: u16) -> [u8; 16] {
    let mut address = [0; 16];
    address[..12].copy_from_slice(&IPV4_MAPPED_PREFIX);
    address[12..14].copy_from_slice(&[198, 18]);
    address[14..].copy_from_slice(&number.to_be_bytes());
    address
}

/// A record whose values are computed from `number`. Its flow began `number` seconds after 13:00.
pub(super) fn record(number: u16) -> FlowRecord {
    let n = u64::from(number);
    let start = THIRTEEN + n * SECOND;
    FlowRecord {
        key: FlowKey {
            source: address(number),
            destination: address(9999),
            source_port: 40_000 + number % 1000,
            destination_port: 443,
            protocol: if number % 4 == 3 { 17 } else { 6 },
            tunnel: if number.is_multiple_of(2) { TunnelKind::None } else { TunnelKind::Vxlan },
            vlan: 100,
            inner_vlan: 7,
            tunnel_id: u32::from(number % 2) * 0xff_ff_fe,
        },
        forward: half(1 + n, start),
        reverse: half(2 * n, start + 1000),
        flow_id: u64::MAX - n,
        part: number % 3,
        end: EndReason::EndOfFlow,
        ttl_min: 63,
        ttl_max: 64,
        tos: 0xb8,
        icmp: 0x0800,
        mpls: [0xffff_f1ff, 2, 0],
        source_mac: [2, 0, 0, 0, 0, 1],
        destination_mac: [2, 0, 0, 0, 0, 2],
        outer_source: address(1),
        outer_destination: address(2),
        sampling: 1,
        input: 3,
        loss: number % 2 == 1,
        merged: number.is_multiple_of(3),
        foreign: None,
        history: None,
    }
}

fn half(packets: u64, first_ns: u64) -> FlowHalf {
    FlowHalf {
        packets,
        bytes: packets * 100,
        frame_bytes: packets * 114,
        first_ns,
        last_ns: first_ns + 500,
        tcp_flags: 0x1b,
    }
}

/// Record `number` as a router exports it.
pub(super) fn foreign_record(number: u16) -> FlowRecord {
    let mut others = OtherFields::default();
    others.add_field(0, 61, &[u8::from(number.is_multiple_of(2))]);
    let foreign = ForeignFields {
        output: 1000 + u32::from(number),
        source_as: 64_500,
        destination_as: 4_200_000_000 + u32::from(number % 3),
        next_hop: address(7),
        bgp_next_hop: address(8),
        nat_source: address(9),
        nat_destination: address(10),
        nat_source_port: 11,
        nat_destination_port: 12,
        post_vlan: 13,
        post_tos: 14,
        others,
    };
    FlowRecord { foreign: Some(Arc::new(foreign)), ..record(number) }
}

/// The first `count` records, from record 0 on.
pub(super) fn records(count: u16) -> Vec<FlowRecord> {
    (0..count).map(record).collect()
}
