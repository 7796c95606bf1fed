use crate::device::DeviceNeighbour;
use crate::{Plan, PlanProblem, Stream};
use packetrig_units::{BitRate, Nanos};
use packetrig_wire::header::{FieldSetting, HeaderKind};
use packetrig_wire::tag::{TagKey, TagStamp};

const DEVICES_PLAN: &str = r#"
ports: [{name: p1, location: veth-a}, {name: p2, location: veth-z}]
devices:
- name: d1
  ethernets:
  - {name: e1, connection: {port_name: p1}, mac: "02:00:00:00:00:01",
     vlans: [{name: outer, tpid: x88A8, priority: 3, id: 7}, {name: inner, id: 8}],
     ipv4_addresses: [{name: v4a, address: 198.18.0.2, gateway: 198.18.0.1}],
     ipv6_addresses: [{name: v6a, address: "2001:2::2", gateway: "2001:2::1", gateway_mac: {value: "02:00:00:00:00:aa"}}]}
- name: d2
  ethernets:
  - {name: e2, connection: {port_name: p2}, mac: "02:00:00:00:00:02",
     ipv4_addresses: [{name: v4b, address: 198.19.0.2, gateway: 198.19.0.1}, {name: v4c, address: 198.18.0.9, gateway: 198.18.0.1}],
     ipv6_addresses: [{name: v6b, address: "2001:2:1::2", gateway: "2001:2:1::1", prefix: 96}]}
"#;

fn with(flow: &str) -> String {
    [DEVICES_PLAN, "flows:\n- {name: f, size: {fixed: 128}, ", flow, "}\n"].concat()
}

fn streams(flow: &str) -> Vec<Stream> {
    Plan::from_text(&with(flow)).unwrap_or_else(|problems| panic!("{problems}")).streams
}

fn error(text: &str) -> PlanProblem {
    Plan::from_text(text).unwrap_err().0.remove(0)
}

/// The first bytes of frame `n`, as hexadecimal digits.
fn bytes(stream: &Stream, n: u64, len: usize) -> String {
    let mut frame = [0; 2048];
    stream.frames.template().unwrap().render_frame(
        n,
        TagStamp { key: TagKey(1), stream: 0, time: 0 },
        &mut frame,
    );
    use std::fmt::Write;
    frame[..len].iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn value(stream: &Stream, kind: HeaderKind, field: &str) -> Option<u128> {
    let spec = stream.frames.template().unwrap().spec();
    match spec.headers.iter().find(|header| header.kind() == kind)?.field_setting(field)? {
        FieldSetting::Pattern(pattern) => Some(pattern.value_at(0, 128)),
        FieldSetting::BadChecksum => None,
    }
}

#[test]
fn device_flow_defaults_come_from_its_interfaces() {
    let all = streams(
        "tx_rx: {device: {tx_names: [v4a], rx_names: [e2]}}, packet: [{ethernet: {}}, {ipv4: {}}, {udp: {}}]",
    );
    let stream = &all[0];
    assert_eq!((all.len(), stream.name.as_str(), stream.tx, &stream.rx[..]), (1, "f", 0, &[1][..]));
    let asked = DeviceNeighbour { interface: 0, address: 0, ip: "198.18.0.1".parse().unwrap() };
    assert_eq!(stream.awaits, Some(asked));
    // Destination not known yet, source of the interface, its two tags, then IPv4.
    assert_eq!(
        bytes(stream, 0, 24),
        "000000000000020000000001".to_owned() + "88a8" + "60078100" + "00080800" + "4500"
    );
    assert_eq!(value(stream, HeaderKind::Ipv4, "src"), Some(0xc612_0002));
    assert_eq!(value(stream, HeaderKind::Ipv4, "dst"), Some(0xc613_0002));
    let there = Stream { frames: stream.frames_with_mac([2, 0, 0, 0, 0, 9]).unwrap(), ..stream.clone() };
    assert_eq!(bytes(&there, 0, 12), "020000000009020000000001");
    assert_eq!(bytes(&there, 0, 100)[24..], bytes(stream, 0, 100)[24..], "nothing else changes");
}

#[test]
fn frames_are_routed_if_next_hop_is_gateway() {
    for (ends, ip, routed) in [
        ("tx_names: [v4a], rx_names: [e2]", "ipv4: {}", true),
        ("tx_names: [e1], rx_names: [v4c]", "ipv4: {}", false),
        ("tx_names: [e1], rx_names: [v6b]", "ipv6: {}", true),
        ("tx_names: [e1], rx_names: [v6b]", "ipv6: {dst: {value: '2001:2::77'}}", false),
        ("tx_names: [v4a], rx_names: [e2]", "ipv4: {dst: {value: 239.1.2.3}}", false),
    ] {
        let all = streams(&format!("tx_rx: {{device: {{{ends}}}}}, packet: [{{ethernet: {{}}}}, {{{ip}}}]"));
        assert_eq!(all[0].frames.template().unwrap().spec().routed, routed, "{ends} {ip}");
        let found = all[0].frames_with_mac([2, 0, 0, 0, 0, 9]).unwrap();
        assert_eq!(found.template().unwrap().spec().routed, routed, "{ends} {ip}");
    }
}

#[test]
fn next_hop_is_resolved_unless_mac_is_given() {
    let direct =
        streams("tx_rx: {device: {tx_names: [e1], rx_names: [v4c]}}, packet: [{ethernet: {}}, {ipv4: {}}]");
    assert_eq!(direct[0].awaits.unwrap().ip.to_string(), "198.18.0.9");
    let given =
        streams("tx_rx: {device: {tx_names: [e1], rx_names: [v6b]}}, packet: [{ethernet: {}}, {ipv6: {}}]");
    assert_eq!(
        (given[0].awaits, value(&given[0], HeaderKind::Ethernet, "dst")),
        (None, Some(0x0200_0000_00aa))
    );
    let said = streams(
        "tx_rx: {device: {tx_names: [e2], rx_names: [e1]}}, packet: [{ethernet: {dst: {value: '02:00:00:00:00:77'}}}, {ipv4: {}}]",
    );
    assert_eq!(
        (said[0].awaits, value(&said[0], HeaderKind::Ethernet, "dst")),
        (None, Some(0x0200_0000_0077))
    );
    let group = streams(
        "tx_rx: {device: {tx_names: [e2], rx_names: [e1]}}, packet: [{ethernet: {}}, {ipv4: {dst: {value: 239.129.2.3}}}]",
    );
    assert_eq!(
        (group[0].awaits, value(&group[0], HeaderKind::Ethernet, "dst")),
        (None, Some(0x0100_5e01_0203))
    );
    let bare = streams("tx_rx: {device: {tx_names: [e2], rx_names: [e1]}}");
    assert_eq!(
        (bare[0].awaits, value(&bare[0], HeaderKind::Ethernet, "dst")),
        (None, Some(0x0200_0000_0001))
    );
}

#[test]
fn device_mesh_distributes_frames_values_and_times() {
    let text = with(
        "tx_rx: {device: {tx_names: [v4a, e1], rx_names: [v4c, v6b]}}, rate: {pps: 1000}, \
         duration: {fixed_packets: {packets: 10}}, packet: [{ethernet: {dst: {value: '02:00:00:00:00:77'}}}, \
         {ipv4: {src: {values: [10.0.0.1, 10.0.0.2]}, dst: {value: 10.9.9.9}}}, {udp: {src_port: {increment: {start: 100, count: 6}}}}]",
    );
    let bound = Plan::from_text(&text)
        .unwrap_or_else(|p| panic!("{p}"))
        .bind_to_links(&[Some(BitRate::new(10_000_000_000)); 2])
        .unwrap();
    let names: Vec<_> = bound.plan.streams.iter().map(|stream| stream.name.as_str()).collect();
    assert_eq!(names, ["f: v4a > v4c", "f: v4a > v6b", "f: e1 > v4c", "f: e1 > v6b"]);
    let totals: Vec<_> = bound.streams.iter().map(|bound| bound.timeline.total_frames().unwrap()).collect();
    assert_eq!(totals, [3, 3, 2, 2]);
    for n in 0..10u64 {
        let part = usize::try_from(n % 4).unwrap();
        assert_eq!(bound.streams[part].timeline.due_time(n / 4), Nanos::from_millis(n));
        let spec = bound.plan.streams[part].frames.template().unwrap().spec();
        let at = |header: &packetrig_wire::header::PacketHeader, field| match header.field_setting(field) {
            Some(FieldSetting::Pattern(pattern)) => pattern.value_at(n / 4, 32),
            _ => panic!("no pattern"),
        };
        let udp = spec.headers.iter().find(|header| header.kind() == HeaderKind::Udp).unwrap();
        let ipv4 = spec.headers.iter().find(|header| header.kind() == HeaderKind::Ipv4).unwrap();
        assert_eq!(
            (at(udp, "src_port"), at(ipv4, "src") & 0xff),
            (100 + u128::from(n % 6), 1 + u128::from(n % 2))
        );
    }
}

#[test]
fn the_way_back_turns_addresses_and_ports_round() {
    let all = streams(
        "tx_rx: {device: {tx_names: [v4a], rx_names: [v4b], bidirectional: true}}, duration: {fixed_packets: {packets: 7}}, \
         packet: [{ethernet: {}}, {ipv4: {src: {value: 10.0.0.1}}}, {udp: {src_port: {value: 5000}}}]",
    );
    let [there, back] = &all[..] else { panic!("{}", all.len()) };
    assert_eq!(
        (there.flow, back.flow, back.flow_name.as_str(), back.tx, &back.rx[..]),
        (0, 0, "f", 1, &[0][..])
    );
    assert_eq!((back.name.as_str(), back.part, back.duration), ("f: v4b > v4a", there.part, there.duration));
    assert_eq!(value(back, HeaderKind::Ethernet, "src"), Some(0x0200_0000_0002));
    assert_eq!(back.awaits.unwrap().ip.to_string(), "198.19.0.1");
    assert_eq!(
        (value(back, HeaderKind::Ipv4, "src"), value(back, HeaderKind::Ipv4, "dst")),
        (Some(0xc613_0002), Some(0x0a00_0001))
    );
    assert_eq!(
        (value(back, HeaderKind::Udp, "src_port"), value(back, HeaderKind::Udp, "dst_port")),
        (Some(0), Some(5000))
    );
    assert!(value(back, HeaderKind::Vlan, "id").is_none(), "the interface there has no tags");
}

#[test]
fn tunnel_keeps_its_port_on_the_way_back() {
    let ports_back = |content: &str| {
        let all = streams(&format!(
            "tx_rx: {{device: {{tx_names: [v4a], rx_names: [v4b], bidirectional: true}}}}, packet: [{{ethernet: {{}}}}, \
             {{ipv4: {{}}}}, {{udp: {{src_port: {{value: 5000}}, dst_port: {{value: 4789}}}}}}{content}]"
        ));
        ["src_port", "dst_port"].map(|field| value(&all[1], HeaderKind::Udp, field))
    };
    for header in ["vxlan: {}", "x_geneve: {}", "gre: {}", "mpls: {}"] {
        assert_eq!(ports_back(&format!(", {{{header}}}")), [Some(5000), Some(4789)], "{header}");
    }
    for payload in ["", ", {custom: {bytes: '00'}}"] {
        assert_eq!(ports_back(payload), [Some(4789), Some(5000)], "{payload}");
    }
}

#[test]
fn impossible_device_flows_are_refused_by_path() {
    let cases = [
        (
            "tx_rx: {device: {tx_names: [d1], rx_names: [e2]}}",
            "flows[0].tx_rx.device.tx_names[0]",
            "there is no interface",
        ),
        (
            "tx_rx: {device: {tx_names: [e1], rx_names: [e1]}}",
            "flows[0].tx_rx.device",
            "would send to itself",
        ),
        (
            "tx_rx: {device: {mode: one_to_one, tx_names: [e1], rx_names: [e2, v4b]}}",
            "flows[0].tx_rx.device",
            "same number of names",
        ),
        (
            "tx_rx: {device: {tx_names: [v6a], rx_names: [e2]}}, packet: [{ethernet: {}}, {ipv4: {}}]",
            "flows[0]",
            "no IPv4 address",
        ),
        (
            "tx_rx: {port: {tx_name: p1}}, packet: [{ethernet: {}}, {ipv4: {src: {auto: 0.0.0.0}}}]",
            "flows[0].packet[1].ipv4.src",
            "port to port",
        ),
    ];
    for (flow, path, message) in cases {
        let problem = error(&with(flow));
        assert_eq!(problem.path, path, "{problem}");
        assert!(problem.message.contains(message), "{problem}");
    }
    let changed = |from: &str, to: &str| error(&DEVICES_PLAN.replace(from, to));
    assert_eq!(changed("name: v4b", "name: v4a").path, "devices[1].ethernets[0].ipv4_addresses[0].name");
    assert!(
        changed("name: inner", "name: e1").message.contains("already the name of devices[0].ethernets[0]")
    );
    assert_eq!(changed("02:00:00:00:00:02", "01:00:00:00:00:02").path, "devices[1].ethernets[0].mac");
    assert_eq!(changed("{port_name: p2}", "{lag_name: l}").path, "devices[1].ethernets[0].connection");
    assert_eq!(changed("- name: d2", "- name: d2\n  bgp: {router_id: 1.1.1.1}").path, "devices[1].bgp");
    let tags = "     vlans: [{name: outer, tpid: x88A8, priority: 3, id: 7}, {name: inner, id: 8}],\n";
    let twin = DEVICES_PLAN
        .replace(tags, "")
        .replace("{port_name: p2}", "{port_name: p1}")
        .replace("198.19.0.2,", "198.18.0.2,");
    assert!(error(&twin).message.contains("198.18.0.2 already belongs to interface `e1`"));
    let uneven =
        with("tx_rx: {device: {tx_names: [e1], rx_names: [v4b, v4c]}}, duration: {burst: {packets: 3}}");
    assert!(
        Plan::from_text(&uneven)
            .unwrap()
            .bind_to_links(&[None, None])
            .unwrap_err()
            .to_string()
            .contains("cannot be divided")
    );
}

#[test]
fn protocols_start_by_themselves_unless_told_otherwise() {
    assert!(Plan::from_text(DEVICES_PLAN).unwrap().auto_start);
    let text = format!(
        "{DEVICES_PLAN}options: {{port_options: {{location_preemption: true}}, protocol_options: {{auto_start_all: false}}}}\n"
    );
    let plan = Plan::from_text(&text).unwrap();
    assert!(!plan.auto_start && plan.warnings.is_empty());
    assert_eq!(plan.interfaces[0].vlans[0].to_string(), "0x88a8/7");
    assert_eq!(plan.interfaces[1].addresses[2].prefix, 96);
}
