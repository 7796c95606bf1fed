//! Every header of the subset, as tshark reads it.

use super::captured;
use packetrig_tests::document::{Flow, ethernet, ipv4, ipv6, udp, value, vlan};
use packetrig_tests::tools;
use serde_json::{Value, json};

/// Sends frames of these headers and asserts what tshark finds in the first one. Checksums it can check are right.
fn assert_read(size: u32, packet: Vec<Value>, wanted: &[(&str, &str)]) {
    let Some(finished) = captured(Flow::new("f", 1).packets(5).size(size).packet(packet), "pcapng") else {
        return;
    };
    let fields: Vec<&str> =
        wanted.iter().map(|(field, _)| *field).chain(["_ws.malformed", "frame.len"]).collect();
    let frames = tools::tshark(&finished.capture(), &fields);
    assert_eq!(frames.len(), 5);
    for ((field, wanted), found) in wanted.iter().zip(&frames[0]) {
        assert_eq!(found, wanted, "{field}");
    }
    assert_eq!(frames[0][wanted.len()..], [String::new(), size.to_string()]);
}

fn header(kind: &str, fields: Value) -> Value {
    json!({"choice": kind, kind: fields})
}

#[test]
fn ethernet_ipv4_udp() {
    let ip = header(
        "ipv4",
        json!({"src": value("198.18.0.9"), "dst": value("198.19.9.0"), "time_to_live": value(17), "identification": value(4660),
               "priority": {"choice": "dscp", "dscp": {"phb": value(46), "ecn": value(1)}}}),
    );
    assert_read(
        100,
        vec![ethernet(0x1234), ip, udp()],
        &[
            ("eth.src", "02:00:00:00:12:34"),
            ("eth.dst", "02:00:00:01:00:01"),
            ("eth.type", "0x0800"),
            ("ip.src", "198.18.0.9"),
            ("ip.dst", "198.19.9.0"),
            ("ip.ttl", "17"),
            ("ip.id", "0x1234"),
            ("ip.dsfield.dscp", "46"),
            ("ip.dsfield.ecn", "1"),
            ("ip.len", "82"),
            ("ip.proto", "17"),
            ("ip.checksum.status", "1"),
            ("udp.srcport", "10000"),
            ("udp.dstport", "20000"),
            ("udp.length", "62"),
            ("udp.checksum.status", "1"),
        ],
    );
}

#[test]
fn vlan_tags_one_and_two() {
    let tag = header("vlan", json!({"id": value(100), "priority": value(5)}));
    assert_read(
        100,
        vec![ethernet(1), tag, ipv4(), udp()],
        &[("vlan.id", "100"), ("vlan.priority", "5"), ("vlan.etype", "0x0800"), ("udp.checksum.status", "1")],
    );
    let service = header(
        "ethernet",
        json!({"src": value("02:00:00:00:00:01"), "dst": value("02:00:00:01:00:01"), "ether_type": value(0x88a8)}),
    );
    let outer = header("vlan", json!({"id": value(7), "tpid": value(0x8100)}));
    assert_read(
        100,
        vec![service, outer, vlan(8), ipv4(), udp()],
        &[("eth.type", "0x88a8"), ("ieee8021ad.id", "7"), ("vlan.id", "8"), ("ip.checksum.status", "1")],
    );
}

#[test]
fn ipv6_tcp() {
    let six = header(
        "ipv6",
        json!({"src": value("2001:2::9"), "dst": value("2001:2:0:1::9"), "hop_limit": value(33), "flow_label": value(0x12345),
               "traffic_class": value(184)}),
    );
    let tcp = header(
        "tcp",
        json!({"src_port": value(443), "dst_port": value(50_000), "seq_num": value(7), "ack_num": value(8), "ctl_syn": value(1),
               "window": value(1024)}),
    );
    assert_read(
        128,
        vec![ethernet(1), six, tcp],
        &[
            ("ipv6.src", "2001:2::9"),
            ("ipv6.dst", "2001:2:0:1::9"),
            ("ipv6.hlim", "33"),
            ("ipv6.flow", "0x012345"),
            ("ipv6.tclass", "0x000000b8"),
            ("ipv6.plen", "70"),
            ("tcp.srcport", "443"),
            ("tcp.dstport", "50000"),
            ("tcp.seq_raw", "7"),
            ("tcp.ack_raw", "8"),
            ("tcp.hdr_len", "20"),
            ("tcp.window_size_value", "1024"),
            ("tcp.checksum.status", "1"),
        ],
    );
}

#[test]
fn echo_requests() {
    let echo = json!({"choice": "echo", "echo": {"identifier": value(77), "sequence_number": value(88)}});
    assert_read(
        100,
        vec![ethernet(1), ipv4(), header("icmp", echo.clone())],
        &[("ip.proto", "1"), ("icmp.type", "8"), ("icmp.ident", "77"), ("icmp.checksum.status", "1")],
    );
    assert_read(
        100,
        vec![ethernet(1), ipv6(), header("icmpv6", echo)],
        &[
            ("ipv6.nxt", "58"),
            ("icmpv6.type", "128"),
            ("icmpv6.echo.sequence_number", "88"),
            ("icmpv6.checksum.status", "1"),
        ],
    );
}

#[test]
fn arp_requests() {
    let arp = header(
        "arp",
        json!({"operation": value(1), "sender_protocol_addr": value("198.18.0.1"), "target_protocol_addr": value("198.18.0.2"),
               "sender_hardware_addr": value("02:00:00:00:00:05")}),
    );
    assert_read(
        64,
        vec![ethernet(1), arp],
        &[
            ("eth.type", "0x0806"),
            ("arp.opcode", "1"),
            ("arp.src.proto_ipv4", "198.18.0.1"),
            ("arp.dst.proto_ipv4", "198.18.0.2"),
            ("arp.src.hw_mac", "02:00:00:00:00:05"),
        ],
    );
}

#[test]
fn tunnels() {
    assert_read(
        200,
        vec![ethernet(1), ipv4(), header("gre", json!({})), ipv4(), udp()],
        &[
            ("ip.proto", "47,17"),
            ("gre.proto", "0x0800"),
            ("udp.dstport", "20000"),
            ("udp.checksum.status", "1"),
        ],
    );
    let to_vxlan = header("udp", json!({"src_port": value(50_000), "dst_port": value(4789)}));
    // The lengths inside leave out four bytes for the inner frame's own check sequence.
    assert_read(
        256,
        vec![
            ethernet(1),
            ipv6(),
            to_vxlan,
            header("vxlan", json!({"vni": value(1234)})),
            ethernet(2),
            ipv4(),
            udp(),
        ],
        &[("vxlan.vni", "1234"), ("ipv6.plen", "198"), ("udp.length", "198,144"), ("ip.len", "164")],
    );
}

#[test]
fn geneve_with_and_without_options() {
    let to_geneve = header("udp", json!({"src_port": value(50_000), "dst_port": value(6081)}));
    let inside = [ethernet(2), ipv4(), udp()];
    let stack = |geneve| [vec![ethernet(1), ipv4(), to_geneve.clone(), geneve], inside.to_vec()].concat();
    assert_read(
        256,
        stack(header("x_geneve", json!({"vni": value(1234)}))),
        &[
            ("geneve.vni", "0x0004d2"),
            ("geneve.proto_type", "0x6558"),
            ("geneve.option.length", "0"),
            ("udp.dstport", "6081,20000"),
            ("udp.checksum.status", "1,1"),
        ],
    );
    // One option: class 0x0102, type 3, four bytes.
    assert_read(
        256,
        stack(header(
            "x_geneve",
            json!({"vni": value(5), "critical": value(1), "options": "0102030111223344"}),
        )),
        &[
            ("geneve.vni", "0x000005"),
            ("geneve.flags.critical", "1"),
            ("geneve.option.class", "0x0102"),
            ("geneve.option.length", "8,8"),
            ("udp.dstport", "6081,20000"),
        ],
    );
}

#[test]
fn label_stacks() {
    let label = |label: u32| header("mpls", json!({"label": value(label), "time_to_live": value(9)}));
    assert_read(
        128,
        vec![ethernet(1), label(1000), label(2000), ipv4(), udp()],
        &[
            ("eth.type", "0x8847"),
            ("mpls.label", "1000,2000"),
            ("mpls.bottom", "0,1"),
            ("ip.checksum.status", "1"),
        ],
    );
}

#[test]
fn pause_frames_and_bytes_of_ones_own() {
    let flow = |packet| {
        Flow::new("f", 1).packets(5).size(64).packet([packet]).with("metrics", json!({"enable": false}))
    };
    let pause = header("ethernetpause", json!({"src": value("02:00:00:00:00:01"), "time": value(99)}));
    let Some(finished) = captured_unmeasured(flow(pause)) else { return };
    let found = tools::tshark(&finished.capture(), &["eth.dst", "macc.opcode", "macc.pause_time"]);
    assert_eq!(found[0], ["01:80:c2:00:00:01", "0x0001", "99"]);
    let own = header("custom", json!({"bytes": "02000001000102000000000188b5cafe"}));
    let Some(finished) = captured_unmeasured(flow(own)) else { return };
    let found = tools::tshark(&finished.capture(), &["eth.src", "eth.type", "data.data"]);
    assert_eq!(found[0][..2], ["02:00:00:00:00:01", "0x88b5"]);
    assert!(found[0][2].starts_with("cafe"), "{found:?}");
}

/// As [`captured`], for flows without metrics, whose verdict cannot be PASS.
fn captured_unmeasured(flow: Flow) -> Option<packetrig_tests::program::Finished> {
    use packetrig_testkit::{Lab, lab::LabPort};
    if !packetrig_tests::skip::has_tool("tshark") {
        return None;
    }
    let lab = packetrig_tests::skip::lab(Lab::cabled_pair)?;
    let locations: Vec<String> = lab.ports().iter().map(LabPort::location).collect();
    let document = packetrig_tests::document::Document::new(&locations).flow(flow).capture(1, "pcapng");
    let finished = packetrig_tests::program::run(&document);
    assert_eq!(finished.code, Some(7), "{}{}", finished.stdout, finished.stderr);
    Some(finished)
}
