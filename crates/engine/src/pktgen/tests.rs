use super::*;
use packetrig_plan::Plan;

/// A document with one flow; `changes` are put into it by path, in JSON.
fn plan(changes: &[(&str, &str)]) -> Plan {
    const FIELDS: [(&str, &str); 10] = [
        ("eth", r#""src": {"value": "02:00:00:00:00:01"}, "dst": {"value": "02:00:00:00:00:02"}"#),
        ("vlans", ""),
        (
            "ip",
            r#"{"choice": "ipv4", "ipv4": {"src": {"value": "198.18.0.1"}, "dst": {"value": "198.19.0.1"} $more}}"#,
        ),
        ("more", ""),
        (
            "transport",
            r#"{"choice": "udp", "udp": {"src_port": {"value": 1000}, "dst_port": {"value": 7} $udp}}"#,
        ),
        ("udp", ""),
        ("size", r#"{"choice": "fixed", "fixed": 128}"#),
        ("rate", r#"{"choice": "pps", "pps": 1000}"#),
        ("duration", r#"{"choice": "fixed_packets", "fixed_packets": {"packets": 100}}"#),
        ("metrics", r#"{"enable": false}"#),
    ];
    let mut text = r#"{"ports": [{"name": "a", "location": "eth1"}], "flows": [{"name": "f",
        "tx_rx": {"choice": "port", "port": {"tx_name": "a"}},
        "packet": [{"choice": "ethernet", "ethernet": {$eth}}, $vlans $ip, $transport],
        "size": $size, "rate": $rate, "duration": $duration, "metrics": $metrics $flow}]}"#
        .to_owned();
    for (name, default) in FIELDS.into_iter().chain([("flow", "")]) {
        let value = changes.iter().find(|(changed, _)| *changed == name).map_or(default, |(_, value)| *value);
        text = text.replace(&format!("${name}"), value);
    }
    Plan::from_text(&text).unwrap_or_else(|problems| panic!("{problems:?}\n{text}"))
}

pub(super) fn spec(changes: &[(&str, &str)]) -> StreamSpec {
    let bound = plan(changes).bind_to_links(&[None]).unwrap();
    StreamSpec {
        number: 0,
        source: crate::stream::FrameSource::from_origin(&bound.plan.streams[0].frames),
        timeline: bound.streams[0].timeline,
        latency: false,
        sent_elsewhere: false,
        untimed: false,
    }
}

fn read(changes: &[(&str, &str)]) -> Result<options::PktgenSettings, Vec<String>> {
    options::convert_stream(&spec(changes))
        .map_err(|problems| problems.iter().map(ToString::to_string).collect())
}

fn options(changes: &[(&str, &str)]) -> Vec<String> {
    read(changes).unwrap_or_else(|problems| panic!("{problems:?}")).options
}

#[test]
fn plain_flow_yields_complete_pktgen_options() {
    let expected = [
        "dst_mac 02:00:00:00:00:02",
        "src_mac 02:00:00:00:00:01",
        "tos 00",
        "src_min 198.18.0.1",
        "src_max 198.18.0.1",
        "dst_min 198.19.0.1",
        "dst_max 198.19.0.1",
        "udp_src_min 1000",
        "udp_src_max 1000",
        "udp_dst_min 7",
        "udp_dst_max 7",
        "flag UDPCSUM",
        "pkt_size 124",
        "count 100",
        "delay 1000000",
        "clone_skb 0",
    ];
    assert_eq!(options(&[]), expected);
}

#[test]
fn ranges_tags_and_service_classes_are_options() {
    let found = options(&[
        (
            "vlans",
            r#"{"choice": "vlan", "vlan": {"id": {"value": 5}, "priority": {"value": 3}}},
               {"choice": "vlan", "vlan": {"id": {"value": 6}}},"#,
        ),
        ("more", r#", "priority": {"choice": "dscp", "dscp": {"phb": {"value": 46}}}"#),
        (
            "transport",
            r#"{"choice": "udp", "udp": {"src_port": {"choice": "increment", "increment": {"start": 9, "count": 4}},
                "checksum": {"choice": "custom", "custom": 0}}}"#,
        ),
        ("duration", r#"{"choice": "continuous"}"#),
    ]);
    for option in [
        "vlan_id 6",
        "svlan_id 5",
        "svlan_p 3",
        "tos b8",
        "udp_src_min 9",
        "udp_src_max 13",
        "flag !UDPCSUM",
        "count 0",
    ] {
        assert!(found.iter().any(|has| has == option), "{option} in {found:?}");
    }
    let place = |option| found.iter().position(|has| has == option);
    assert!(place("vlan_id 6") < place("svlan_id 5"), "the kernel wants the inner one first");
}

#[test]
fn pktgen_addresses_count_up_and_ipv6_has_options() {
    let found = options(&[(
        "ip",
        r#"{"choice": "ipv4", "ipv4": {"dst": {"choice": "increment",
            "increment": {"start": "198.18.0.250", "step": "0.0.0.1", "count": 10}}}}"#,
    )]);
    assert!(
        found.contains(&"dst_min 198.18.0.250".to_owned())
            && found.contains(&"dst_max 198.18.1.3".to_owned())
    );
    let six = r#"{"choice": "ipv6", "ipv6": {"src": {"value": "2001:2::1"}, "dst": {"value": "2001:2::2"}}}"#;
    let found = options(&[("ip", six)]);
    assert!(found.contains(&"src6 2001:2::1".to_owned()) && found.contains(&"dst6 2001:2::2".to_owned()));
}

#[test]
fn everything_else_is_refused_by_name() {
    let increment = r#"{"choice": "increment", "increment": {"start": 1, "step": 2, "count": 3}}"#;
    let tagged = format!(r#"{{"choice": "vlan", "vlan": {{"id": {increment}}}}},"#);
    let vlan = r#"{"choice": "vlan", "vlan": {"id": {"value": 5}}},"#.repeat(3);
    let port = format!(r#"{{"choice": "udp", "udp": {{"src_port": {increment}}}}}"#);
    let cases = [
        ("transport", r#"{"choice": "tcp"}"#, "flows[0].packet[2].tcp: back end pktgen can send only UDP"),
        (
            "ip",
            r#"{"choice": "mpls"}"#,
            "flows[0].packet[1].mpls: back end pktgen can send only these headers",
        ),
        ("vlans", &vlan, "flows[0].packet[3].vlan"),
        ("vlans", &tagged, "flows[0].packet[1].vlan.id: back end pktgen cannot vary this field"),
        ("eth", "", "flows[0].packet[0].ethernet.src: back end pktgen replaces address 0"),
        (
            "more",
            r#", "time_to_live": {"value": 64}"#,
            "packet[1].ipv4.time_to_live: back end pktgen always writes 32 into this field",
        ),
        ("more", r#", "identification": {"value": 1}"#, "packet[1].ipv4.identification"),
        ("more", r#", "options": [{"choice": "router_alert"}]"#, "packet[1].ipv4.options"),
        (
            "transport",
            &port,
            "flows[0].packet[2].udp.src_port: back end pktgen can vary this field only by counting up",
        ),
        (
            "udp",
            r#", "checksum": {"choice": "generated", "generated": "bad"}"#,
            "flows[0].packet[2].udp.checksum",
        ),
        (
            "size",
            r#"{"choice": "random", "random": {"min": 100, "max": 200}}"#,
            "flows[0].size: back end pktgen",
        ),
        ("duration", r#"{"choice": "burst", "burst": {"bursts": 2, "packets": 5}}"#, "flows[0].duration"),
        (
            "metrics",
            r#"{"enable": true, "loss": true}"#,
            "flows[0].metrics.enable: back end pktgen writes no test tag",
        ),
        ("flow", r#", "payload": {"choice": "increment_byte"}"#, "flows[0].payload"),
    ];
    for (name, value, expected) in cases {
        let problems = read(&[(name, value)]).err().unwrap_or_default();
        assert!(problems.len() == 1 && problems[0].contains(expected), "{name} {value}: {problems:?}");
    }
}

#[test]
fn sizes_and_rates_have_bounds() {
    let slow = read(&[
        ("rate", r#"{"choice": "bps", "bps": 700}"#),
        ("size", r#"{"choice": "fixed", "fixed": 1000}"#),
    ]);
    assert!(slow.unwrap_err()[0].starts_with("flows[0].rate: back end pktgen"));
    // Its mark needs room behind the headers.
    let vlan = r#"{"choice": "vlan", "vlan": {"id": {"value": 5}}},"#;
    let smallest = ("size", r#"{"choice": "fixed", "fixed": 64}"#);
    assert!(read(&[smallest]).is_ok());
    let problems = read(&[smallest, ("vlans", vlan)]).unwrap_err();
    assert!(
        problems[0].starts_with("flows[0].size: ") && problems[0].contains("needs at least 66 B"),
        "{problems:?}"
    );
}

#[test]
fn all_problems_come_at_once() {
    let problems = read(&[("transport", r#"{"choice": "tcp"}"#), ("metrics", r#"{"enable": true}"#)]);
    assert_eq!(problems.unwrap_err().len(), 2);
}

#[test]
fn pktgen_deviations_from_plan_become_doubts() {
    let doubts = |changes: &[(&str, &str)]| read(changes).unwrap().doubts;
    assert_eq!(doubts(&[]), ["flows[0]: pktgen sets the hop limit of its packets to 32"]);
    let third = doubts(&[
        ("rate", r#"{"choice": "pps", "pps": 3000}"#),
        ("more", r#", "time_to_live": {"value": 32}"#),
    ]);
    assert_eq!(third, ["flows[0]: pktgen sends one frame every 333333 ns instead of 3000 frames/s"]);
}

#[test]
fn missing_pktgen_module_names_unsupported_feature() {
    if std::path::Path::new("/proc/net/pktgen").exists() {
        return;
    }
    let refused = open_port(&plan(&[]).ports[0], OpenOptions::default());
    let Err(Error::Kernel(packetrig_sys::Error::Unsupported(unsupported))) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(unsupported.feature, "back end pktgen");
}
