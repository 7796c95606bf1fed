//! Fields that routers, firewalls and tunnels send and that our meter does not see.

use super::*;
use crate::foreign::{ForeignFields, MAX_OTHER_BYTES};
use crate::packet::ipv4_mapped;

/// Fields, each with its number and its value; a number above 2^15 is of the enterprise that follows it.
type SentFields<'a> = (u32, u16, &'a [u8]);

/// The record of these fields, sent in this order.
fn received(fields: &[SentFields<'_>]) -> FlowRecord {
    let head = MessageBytes::default().u16(300).u16(u16::try_from(fields.len()).expect("few"));
    let template = fields.iter().fold(head, |bytes, (enterprise, id, value)| {
        let length = u16::try_from(value.len()).expect("short");
        match enterprise {
            0 => bytes.u16(*id).u16(length),
            enterprise => bytes.u16(id | 0x8000).u16(length).u32(*enterprise),
        }
    });
    let data = fields.iter().fold(MessageBytes::default(), |bytes, (_, _, value)| bytes.bytes(value));
    let message = ipfix(0, MessageBytes::default().set(2, template).set(300, data));
    let [record] = &heard(&[message]).records[..] else { panic!("one record") };
    record.clone()
}

fn foreign(record: &FlowRecord) -> &ForeignFields {
    record.foreign.as_deref().expect("there is something")
}

fn json(record: &FlowRecord) -> String {
    let mut text = String::new();
    foreign(record).others.append_json(&mut text);
    text
}

const V6: [[u8; 16]; 4] = [[0x20; 16], [0x21; 16], [0x22; 16], [0x23; 16]];
const ENDS: [SentFields<'_>; 3] = [(0, 8, &[198, 18, 0, 1]), (0, 12, &[198, 18, 0, 2]), (0, 2, &[7])];

#[test]
fn routers_and_firewalls_have_columns() {
    let told = [
        (0, 14, &[3][..]),
        (0, 16, &[0xfb, 0xf4]),
        (0, 17, &[0xfa, 0x56, 0xea, 0x00]),
        (0, 15, &[198, 18, 0, 254]),
        (0, 63, &V6[0]),
        (0, 55, &[0x28]),
        (0, 254, &[0, 5]),
        (0, 225, &[203, 0, 113, 1]),
        (0, 282, &V6[1]),
        (0, 227, &[0x10, 0]),
        (0, 228, &[0, 80]),
    ];
    let record = received(&[&ENDS[..], &told[..]].concat());
    let expected = ForeignFields {
        output: 3,
        source_as: 64_500,
        destination_as: 4_200_000_000,
        next_hop: ipv4_mapped([198, 18, 0, 254]),
        bgp_next_hop: V6[0],
        nat_source: ipv4_mapped([203, 0, 113, 1]),
        nat_destination: V6[1],
        nat_source_port: 4096,
        nat_destination_port: 80,
        post_vlan: 5,
        post_tos: 0x28,
        ..ForeignFields::default()
    };
    assert_eq!(foreign(&record), &expected);
}

#[test]
fn uninformative_foreign_fields_are_omitted() {
    assert_eq!(received(&ENDS).foreign, None);
    // A router that fills fields it knows nothing of.
    let empty = [
        (0, 14, &[0, 0][..]),
        (0, 15, &[0; 4]),
        (0, 62, &[0; 16]),
        (0, 16, &[0; 4]),
        (0, 210, &[1; 8]),
        (0, 60, &[4]),
    ];
    assert_eq!(received(&[&ENDS[..], &empty[..]].concat()).foreign, None);
}

#[test]
fn fields_without_a_column_are_kept_by_name() {
    let others = [(0, 61, &[1][..]), (9, 8232, b"dns"), (29305, 136, &[2]), (0, 96, b"web\0\0")];
    let record = received(&[&ENDS[..], &others[..]].concat());
    assert_eq!(
        json(&record),
        r#"{"flowDirection":1,"9/8232":"0x646e73","reverseFlowEndReason":2,"applicationName":"web"}"#
    );
    assert_eq!(record.forward.packets, 7);
}

/// The fields kept of one record are bounded, whatever its template describes.
#[test]
fn foreign_fields_are_bounded_and_omissions_counted() {
    let value = [7; 100];
    let many: Vec<SentFields<'_>> = (0..40).map(|n| (9, n, &value[..])).collect();
    let record = received(&[&ENDS[..], &many[..]].concat());
    let text = json(&record);
    assert!(text.ends_with(r#","fieldsLeftOut":36}"#), "{text}");
    assert!(text.len() < 3 * MAX_OTHER_BYTES);
}

/// SRv6, and any other tunnel whose exporter sends both pairs of addresses: RFC 7011 has the outer ones first.
#[test]
fn both_address_pairs_of_a_tunnel_are_kept() {
    let pairs = |inner: [SentFields<'static>; 2], outer: [SentFields<'static>; 2]| {
        let record = received(&[&outer[..], &inner[..], &ENDS[2..]].concat());
        (record.key.source, record.key.destination, record.outer_source, record.outer_destination)
    };
    let six = |at: usize| [(0, 27, &V6[at][..]), (0, 28, &V6[at + 1][..])];
    let four = [ENDS[0], ENDS[1]];
    let [one, two] = [ipv4_mapped([198, 18, 0, 1]), ipv4_mapped([198, 18, 0, 2])];
    assert_eq!(pairs(six(2), six(0)), (V6[2], V6[3], V6[0], V6[1]));
    assert_eq!(pairs(four, six(0)), (one, two, V6[0], V6[1]));
    assert_eq!(pairs(six(0), four), (V6[0], V6[1], one, two));
    // Zeros of the other version are no second pair.
    let none = [(0, 27, &[0; 16][..]), (0, 28, &[0; 16][..])];
    assert_eq!(pairs(four, none), (one, two, [0; 16], [0; 16]));
    assert_eq!(pairs(none, four), (one, two, [0; 16], [0; 16]));
    // Nor is the same address again.
    assert_eq!(pairs(four, four), (one, two, [0; 16], [0; 16]));
}

#[test]
fn netflow_5_tells_where_a_flow_went() {
    let mut packet = MessageBytes::default().u16(5).u16(1).u32(1000).u32(SENT).u32(0).u32(0).u16(0).u16(0);
    packet = packet.bytes(&[198, 18, 0, 1, 198, 18, 0, 2, 198, 18, 0, 254]).u16(3).u16(4).u32(7).u32(700);
    packet = packet.u32(500).u32(600).u16(1000).u16(53).bytes(&[0, 0, 17, 0]).u16(64_500).u16(64_501).u32(0);
    let [record] = &heard(&[packet.0]).records[..] else { panic!("one record") };
    let told = foreign(record);
    assert_eq!((record.input, told.output, told.next_hop), (3, 4, ipv4_mapped([198, 18, 0, 254])));
    assert_eq!((told.source_as, told.destination_as), (64_500, 64_501));
}
