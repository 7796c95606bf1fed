//! Fragments and the ports they join.

use super::frames::*;
use super::*;

const SECOND: u64 = 1_000_000_000;

fn ports(parser: &mut FrameParser, frame: &[u8], at_ns: u64) -> (u8, u16, u16) {
    let packet = parsed_by(parser, frame, frame.len(), at_ns).unwrap();
    assert!(packet.flags & flags::FRAGMENT_FLAG != 0);
    (packet.protocol, packet.source_port, packet.destination_port)
}

fn first4() -> Vec<u8> {
    eth(0x0800, &fragment4(17, 0, true, &udp(1000, 2000, &[0; 40])))
}

fn later4() -> Vec<u8> {
    eth(0x0800, &fragment4(17, 48, false, &[0x11; 24]))
}

#[test]
fn later_fragments_have_the_ports_of_their_first() {
    let mut parser = FrameParser::new(ParseOptions::default());
    assert_eq!(ports(&mut parser, &first4(), 0), (17, 1000, 2000));
    assert_eq!(ports(&mut parser, &later4(), 1), (17, 1000, 2000));
    assert_eq!(ports(&mut parser, &later4(), 2), (17, 1000, 2000), "and every later one");
    let echo = eth(0x0800, &fragment4(1, 0, true, &icmp(8, 0)));
    assert_eq!(ports(&mut parser, &echo, 3), (1, 0, 0x0800));
    assert_eq!(ports(&mut parser, &eth(0x0800, &fragment4(1, 16, false, &[0; 9])), 4), (1, 0, 0x0800));
    let expected = FragmentCounts { first: 2, joined: 3, ..FragmentCounts::default() };
    assert_eq!(parser.fragment_counts(), expected);
}

#[test]
fn ipv6_fragment_inherits_protocol_of_first() {
    let mut parser = FrameParser::new(ParseOptions::default());
    let first = v6(0, &extension(44, 0, &fragment6(60, 0, true, &extension(6, 0, &tcp(7, 8, 2, b"")))));
    let later = v6(0, &extension(44, 0, &fragment6(60, 32, false, &[0; 20])));
    assert_eq!(ports(&mut parser, &eth(0x86dd, &first), 0), (6, 7, 8));
    assert_eq!(ports(&mut parser, &eth(0x86dd, &later), 0), (6, 7, 8));
    let whole = v6(44, &fragment6(17, 0, false, &udp(5, 6, b"")));
    let whole = parsed_by(&mut parser, &eth(0x86dd, &whole), 70, 0).unwrap();
    assert_eq!((whole.flags, whole.destination_port), (flags::IPV6_FLAG, 6), "its own only fragment is none");
}

#[test]
fn early_fragment_is_counted_and_has_no_ports() {
    let mut parser = FrameParser::new(ParseOptions::default());
    assert_eq!(ports(&mut parser, &later4(), 0), (17, 0, 0));
    assert_eq!(ports(&mut parser, &first4(), 1), (17, 1000, 2000));
    assert_eq!(ports(&mut parser, &later4(), 2), (17, 1000, 2000));
    let expected = FragmentCounts { first: 1, joined: 1, early: 1, ..FragmentCounts::default() };
    assert_eq!(parser.fragment_counts(), expected);
}

#[test]
fn ports_are_kept_for_so_long() {
    let options = ParseOptions { fragment_ns: SECOND, ..ParseOptions::default() };
    let mut parser = FrameParser::new(options);
    ports(&mut parser, &first4(), 10 * SECOND);
    assert_eq!(ports(&mut parser, &later4(), 11 * SECOND), (17, 1000, 2000));
    assert_eq!(ports(&mut parser, &later4(), 11 * SECOND + 1), (17, 0, 0));
    assert_eq!(
        ports(&mut parser, &later4(), 9 * SECOND),
        (17, 1000, 2000),
        "a clock set back expires nothing"
    );
    ports(&mut parser, &first4(), 20 * SECOND);
    assert_eq!(ports(&mut parser, &later4(), 20 * SECOND), (17, 1000, 2000));
    let expected = FragmentCounts { first: 2, joined: 3, expired: 1, ..FragmentCounts::default() };
    assert_eq!(parser.fragment_counts(), expected);
}

#[test]
fn fragments_of_others_are_told_apart() {
    let mut parser = FrameParser::new(ParseOptions::default());
    ports(&mut parser, &first4(), 0);
    let mut other_id = later4();
    other_id[18] ^= 1;
    let mut other_address = later4();
    other_address[29] ^= 1;
    let other_protocol = eth(0x0800, &fragment4(6, 48, false, &[0; 24]));
    let other_vlan = eth(0x8100, &tag(5, 0x0800, &fragment4(17, 48, false, &[0; 24])));
    for other in [other_id, other_address, other_protocol, other_vlan] {
        let (_, source, destination) = ports(&mut parser, &other, 0);
        assert_eq!((source, destination), (0, 0));
    }
    assert_eq!(parser.fragment_counts().early, 4);
}

#[test]
fn fragment_cache_is_bounded_and_counts_evictions() {
    let options = ParseOptions { fragments: 64, hash_key: [77, 78], ..ParseOptions::default() };
    let mut parser = FrameParser::new(options);
    let numbered = |frame: &[u8], n: u16| {
        let mut frame = frame.to_vec();
        frame[18..20].copy_from_slice(&n.to_be_bytes());
        frame
    };
    for n in 0..1000 {
        ports(&mut parser, &numbered(&first4(), n), u64::from(n));
    }
    let newest = ports(&mut parser, &numbered(&later4(), 999), 1000);
    assert_eq!(newest, (17, 1000, 2000), "the oldest make room");
    for n in 0..999 {
        ports(&mut parser, &numbered(&later4(), n), 1000);
    }
    let counts = parser.fragment_counts();
    assert_eq!(counts.first, 1000);
    assert_eq!(counts.joined, 64, "all places are used");
    assert_eq!(counts.evicted, 1000 - 64);
    assert_eq!(counts.early, 1000 - 64);
    // Once all have expired, new ones evict no other.
    for n in 0..4 {
        ports(&mut parser, &numbered(&first4(), n), 100 * SECOND);
    }
    assert_eq!(parser.fragment_counts().evicted, counts.evicted);
}

#[test]
fn none_are_kept_where_none_are_wanted() {
    let mut parser = FrameParser::new(ParseOptions { fragments: 0, ..ParseOptions::default() });
    ports(&mut parser, &first4(), 0);
    assert_eq!(ports(&mut parser, &later4(), 0), (17, 0, 0));
    assert_eq!(parser.fragment_counts().early, 1);
}

#[test]
fn fragments_inside_a_tunnel_join_within_it() {
    let mut parser = FrameParser::new(ParseOptions::default());
    let through = |key: u8, inside: Vec<u8>| {
        let mut gre = gre(0x20, 0x0800, &inside);
        gre[7] = key;
        eth(0x0800, &v4_of([198, 18, 9, 1], [198, 18, 9, 2], 47, &gre))
    };
    let (first, later) =
        (fragment4(17, 0, true, &udp(1000, 2000, &[0; 40])), fragment4(17, 48, false, &[0; 24]));
    assert_eq!(ports(&mut parser, &through(1, first), 0), (17, 1000, 2000));
    assert_eq!(ports(&mut parser, &through(1, later.clone()), 0), (17, 1000, 2000));
    assert_eq!(ports(&mut parser, &through(2, later), 0), (17, 0, 0), "of another network");
}

#[test]
fn tunnel_fragments_are_metered_as_outer_tunnel() {
    let mut parser = FrameParser::new(ParseOptions::default());
    let load = vxlan(5, &eth(0x0800, &v4(17, &udp(1, 2, &[0; 60]))));
    assert_eq!(ports(&mut parser, &eth(0x0800, &fragment4(17, 0, true, &load[..88])), 0), (17, 50_000, 4789));
    assert_eq!(
        ports(&mut parser, &eth(0x0800, &fragment4(17, 88, false, &load[88..])), 0),
        (17, 50_000, 4789)
    );
}
