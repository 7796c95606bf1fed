use crate::timeline::SendPattern;
use crate::{OtgPause, Plan, PlanProblem, ProblemSeverity};
use packetrig_units::{BitRate, FrameRate, FrameSize, Nanos, Rate};
use packetrig_wire::header::{FieldSetting, HeaderKind, UNSUPPORTED_HEADERS};
use packetrig_wire::pattern::FieldPattern;
use proptest::prelude::*;

/// A plan of one flow with these members added to it.
fn with(members: &str) -> String {
    let ports = "ports: [{name: a, location: eth1}, {name: b, location: ns/eth2}]";
    let flow = "flows:\n- name: f\n  tx_rx: {port: {tx_name: a, rx_names: [b]}}";
    let members: Vec<String> = members.lines().map(|line| ["  ", line].concat()).collect();
    [ports, flow, &members.join("\n"), ""].join("\n")
}

fn plan(members: &str) -> Plan {
    Plan::from_text(&with(members)).unwrap_or_else(|problems| panic!("{problems}"))
}

fn errors(text: &str) -> Vec<PlanProblem> {
    Plan::from_text(text).err().map(|problems| problems.0).unwrap_or_default()
}

fn error(members: &str) -> PlanProblem {
    let problems = errors(&with(members));
    problems.into_iter().find(|p| p.severity == ProblemSeverity::Error).expect("an error")
}

fn setting(plan: &Plan, header: usize, name: &str) -> Option<FieldSetting> {
    plan.streams[0].frames.template().unwrap().spec().headers[header].field_setting(name).cloned()
}

fn rate(members: &str) -> FrameRate {
    plan(members).bind_to_links(&[Some(BitRate::new(10_000_000_000)); 2]).unwrap().streams[0].timeline.rate
}

/// A document as snappi sends it: defaults of touched objects filled in, numbers of 64 bits as text.
const SNAPPI: &str = r#"{"ports":[{"name":"p1","location":"veth-a"},{"name":"p2","location":"veth-z"}], "flows":[{"name":"f1",
  "tx_rx":{"choice":"port","port":{"tx_name":"p1","rx_names":["p2"]}}, "rate":{"choice":"pps","pps":"50"}, "size":{"choice":"fixed","fixed":128},
  "packet":[{"choice":"ethernet","ethernet":{}},{"choice":"ipv4","ipv4":{}},
            {"choice":"udp","udp":{"src_port":{"choice":"increment","increment":{"start":5000,"step":1,"count":1}}}}],
  "duration":{"choice":"fixed_packets","fixed_packets":{"packets":100,"gap":12}}, "metrics":{"enable":true,"loss":false,"timestamps":false}}]}"#;

#[test]
fn the_book_names_every_header() {
    let page = include_str!("../../../../docs/book/plan.md");
    let from = page.find("**Headers**").expect("the page has a list of them");
    let list = page[from..].split_once("A flow").expect("a sentence follows the list").0;
    let names: Vec<&str> = list.split('`').skip(1).step_by(2).collect();
    assert_eq!(names, HeaderKind::ALL.map(HeaderKind::name));
}

#[test]
fn snappi_request_reads_without_warnings() {
    let plan = Plan::from_text(SNAPPI).unwrap();
    assert_eq!(plan.warnings, []);
    assert_eq!(plan.streams[0].rate, Rate::Frames(FrameRate::per_second(50).unwrap()));
    let bound = plan.bind_to_links(&[None, None]).unwrap();
    assert_eq!(bound.streams[0].timeline.shape, SendPattern::Frames(100));
}

#[test]
fn empty_flow_gets_model_defaults() {
    let plan = plan("");
    let stream = &plan.streams[0];
    assert_eq!(stream.frames.template().unwrap().spec().headers[0].kind(), HeaderKind::Ethernet);
    assert_eq!(stream.frames.template().unwrap().spec().size.size_at(0), FrameSize::MIN);
    assert_eq!(stream.rate, Rate::Frames(FrameRate::per_second(1000).unwrap()));
    assert!(!stream.metrics.enable);
}

#[test]
fn all_problems_are_reported_with_path_and_line() {
    let text = "ports:\n- {name: a, location: eth1}\n- {name: a, location: 'host:5555'}\nflows:\n- name: f\n  tx_rx: {port: {tx_name: c}}\n  siez: {fixed: 64}\n  rate: {pps: -1}\n";
    let found: Vec<(String, usize)> =
        errors(text).into_iter().map(|p| (p.path, p.position.unwrap().0)).collect();
    let wanted = [
        ("ports[1].name", 3),
        ("ports[1].location", 3),
        ("flows[0].tx_rx.port.tx_name", 6),
        ("flows[0].siez", 7),
        ("flows[0].rate.pps", 8),
    ];
    assert_eq!(found, wanted.map(|(path, line)| (path.to_owned(), line)));
}

#[test]
fn typos_get_a_hint() {
    for (members, meant) in [
        ("siez: {fixed: 64}", "size"),
        ("packet: [{upd: {}}]", "udp"),
        ("packet: [{ipv4: {ttl: {value: 3}}}]", "time_to_live"),
        ("packet: [{choice: upd}]", "udp"),
    ] {
        let hint = errors(&with(members)).into_iter().find_map(|problem| problem.hint);
        assert_eq!(hint.unwrap(), format!("did you mean `{meant}`?"), "{members}");
    }
}

#[test]
fn advice_names_nothing_that_is_refused() {
    let found = errors(&with("packet: [{pppoe: {}}, {choice: bgp}, {ipv6: {xyz: 1}}]"));
    let said: Vec<String> = found
        .iter()
        .map(|problem| format!("{} {}", problem.message, problem.hint.as_deref().unwrap_or("")))
        .collect();
    assert!(said.iter().any(|text| text.contains("known fields: ethernet, vlan")), "{said:?}");
    assert!(said.iter().any(|text| text.contains("not one of ethernet, vlan")), "{said:?}");
    assert!(said.iter().any(|text| text.contains("known fields: version")), "{said:?}");
    for refused in UNSUPPORTED_HEADERS.iter().chain(&["dst_usids", "metric_tags"]) {
        let is_named = |text: &String| {
            text.split(|letter: char| !letter.is_alphanumeric() && letter != '_').any(|word| word == *refused)
        };
        assert!(!said.iter().any(is_named), "{refused} in {said:?}");
    }
}

#[test]
fn unsupported_otg_members_are_refused_by_path() {
    let path = |members: &str| error(members).path;
    for header in UNSUPPORTED_HEADERS {
        assert_eq!(path(&format!("packet: [{{{header}: {{}}}}]")), "flows[0].packet[0]");
    }
    assert_eq!(path("egress_packet: [{ethernet: {}}]"), "flows[0].egress_packet");
    assert_eq!(path("packet: [{ipv4: {src: {auto: {}}}}]"), "flows[0].packet[0].ipv4.src");
    assert_eq!(errors("lags: []"), []);
}

#[test]
fn every_pattern_kind_is_read() {
    let plan = plan(
        "size: {fixed: 128}\npacket:\n- ethernet: {dst: {values: ['02:00:00:00:00:01', '02:00:00:00:00:02']}}\n- ipv4:\n    src: {decrement: {start: 198.18.0.9, step: 0.0.0.2, count: 3}}\n    dst: {random: {min: 198.19.0.1, max: 198.19.0.9, seed: 5, count: 7}}\n- udp: {src_port: {choice: value, value: 5}, dst_port: {increment: {start: 7}}, checksum: {generated: bad}}",
    );
    let pattern = |header, name| match setting(&plan, header, name) {
        Some(FieldSetting::Pattern(pattern)) => pattern,
        other => panic!("{other:?}"),
    };
    assert_eq!(pattern(0, "dst"), FieldPattern::Values(vec![0x0200_0000_0001, 0x0200_0000_0002]));
    assert_eq!(pattern(1, "src"), FieldPattern::Step { start: 0xc612_0009, step: 2, count: 3, down: true });
    assert_eq!(
        pattern(1, "dst"),
        FieldPattern::Random { min: 0xc613_0001, max: 0xc613_0009, seed: 5, count: 7 }
    );
    assert_eq!(pattern(2, "src_port"), FieldPattern::Value(5));
    assert_eq!(pattern(2, "dst_port"), FieldPattern::Step { start: 7, step: 1, count: 1, down: false });
    assert_eq!(setting(&plan, 2, "checksum"), Some(FieldSetting::BadChecksum));
    assert_eq!(setting(&plan, 1, "total_length"), None);
}

#[test]
fn seed_zero_derives_from_run_seed() {
    let members = "size: {fixed: 128}\npacket: [{ipv4: {src: {random: {seed: 0, count: 9}}}}]";
    let of = |seed| {
        let plan = Plan::from_text_with(
            &with(members),
            crate::PlanParseOptions { seed, ..crate::PlanParseOptions::default() },
        )
        .unwrap();
        setting(&plan, 0, "src")
    };
    assert_eq!(of(1), of(1));
    assert_ne!(of(1), of(2));
}

#[test]
fn random_addresses_of_inner_and_outer_headers_differ() {
    let random = "ipv4: {src: {random: {seed: 0, count: 9}}}";
    let plan = plan(&format!("size: {{fixed: 128}}\npacket: [{{{random}}}, {{udp: {{}}}}, {{{random}}}]"));
    assert_ne!(setting(&plan, 0, "src"), setting(&plan, 2, "src"));
}

#[test]
fn placeholders_mean_work_it_out() {
    let plan = plan(
        "size: {fixed: 128}\npacket:\n- ethernet: {ether_type: {value: 34984}}\n- vlan: {tpid: {value: 65535}}\n- ipv4: {}\n- udp: {length: {value: 0}}",
    );
    assert_eq!((setting(&plan, 1, "tpid"), setting(&plan, 3, "length")), (None, None));
    assert_eq!(setting(&plan, 0, "ether_type"), Some(FieldSetting::Pattern(FieldPattern::Value(0x88a8))));
}

#[test]
fn missing_choice_is_inferred_and_contradiction_refused() {
    assert_eq!(rate("rate: {mbps: 1}\nsize: {fixed: 125}"), FrameRate::per_second(1000).unwrap());
    assert_eq!(error("rate: {choice: pps, mbps: 1}").path, "flows[0].rate.mbps");
    assert_eq!(error("rate: {choice: fps}").path, "flows[0].rate.choice");
}

#[test]
fn bit_rate_is_layer_2_percentage_layer_1() {
    assert_eq!(rate("rate: {kbps: 512}\nsize: {fixed: 64}"), FrameRate::per_second(1000).unwrap());
    assert_eq!(
        rate("rate: {percentage: 100}\nsize: {fixed: 64}").l1_bit_rate(FrameSize::MIN).bits_per_second(),
        10_000_000_000
    );
    assert_eq!(rate("rate: {percentage: 0.5}\nsize: {fixed: 105}"), FrameRate::per_second(50_000).unwrap());
    let imix = "rate: {bps: 8704000}\nsize: {weight_pairs: {custom: [{size: 64, weight: 1}, {size: 1024, weight: 1}]}}";
    assert_eq!(rate(imix), FrameRate::per_second(2000).unwrap());
}

#[test]
fn more_than_the_link_carries_is_refused() {
    let slow = [Some(BitRate::new(1_000_000)), None];
    let problems = plan("rate: {mbps: 2}").bind_to_links(&slow).unwrap_err();
    assert!(problems.0[0].message.contains("1.000 Mbit/s"), "{problems}");
    assert!(plan("rate: {percentage: 1}").bind_to_links(&[None, None]).is_err());
    assert!(plan("rate: {pps: 1000}").bind_to_links(&[None, None]).is_ok());
}

#[test]
fn durations_of_every_kind() {
    let shape = |members: &str| {
        plan(members).bind_to_links(&[Some(BitRate::new(1_000_000_000)); 2]).unwrap().streams[0].timeline
    };
    assert_eq!(shape("duration: {continuous: {}}").shape, SendPattern::Endless);
    assert_eq!(
        shape("duration: {fixed_seconds: {seconds: 2.5}}").shape,
        SendPattern::Within(Nanos::from_millis(2500))
    );
    let burst = |gap| format!("duration: {{burst: {{bursts: 3, packets: 10, inter_burst_gap: {{{gap}}}}}}}");
    for (gap, pause) in [("bytes: 125", 1000), ("nanoseconds: 7", 7), ("microseconds: 1.5", 1500)] {
        let wanted = SendPattern::Bursts { bursts: 3, frames: 10, pause: Nanos::new(pause) };
        assert_eq!(shape(&burst(gap)).shape, wanted);
    }
    let delayed = shape("duration: {fixed_packets: {packets: 5, delay: {microseconds: 3}}}");
    assert_eq!((delayed.shape, delayed.delay), (SendPattern::Frames(5), Nanos::from_micros(3)));
    assert_eq!(
        plan("duration: {continuous: {delay: {bytes: 9}}}").streams[0].duration.delay,
        OtgPause::Bytes(9)
    );
    assert!(error("duration: {fixed_seconds: {seconds: 0}}").message.contains("above 0"));
}

#[test]
fn impossible_sizes_say_what_would_do() {
    let ipv6 = "packet: [{ethernet: {}}, {ipv6: {}}, {udp: {}}]";
    for (metrics, size, needed) in [(true, 64, "72"), (true, 71, "72"), (false, 64, "66")] {
        let problem = error(&format!("metrics: {{enable: {metrics}}}\nsize: {{fixed: {size}}}\n{ipv6}"));
        assert_eq!(problem.path, "flows[0].size");
        assert!(problem.hint.as_ref().is_some_and(|hint| hint.contains(needed)), "{problem:?}");
    }
    // Frames without room for a tag are refused whatever the others are: the receiver would take them for lost.
    error(&format!("metrics: {{enable: true}}\nsize: {{random: {{min: 66, max: 128}}}}\n{ipv6}"));
    plan(&format!("metrics: {{enable: true}}\nsize: {{fixed: 72}}\n{ipv6}"));
    plan(&format!("metrics: {{enable: false}}\nsize: {{fixed: 66}}\n{ipv6}"));
    assert_eq!(error("size: {fixed: 100000}").path, "flows[0].size.fixed");
    assert_eq!(error("size: {random: {min: 200, max: 100}}").path, "flows[0].size.random");
    assert!(plan("size: {fixed: 60}").warnings[0].message.contains("sent with 64 bytes"));
}

#[test]
fn a_tag_that_does_not_fit_is_announced() {
    let tcp = plan("metrics: {enable: true}\npacket: [{ethernet: {}}, {ipv4: {}}, {tcp: {}}]");
    assert!(tcp.warnings[0].message.contains("latency is not measured"), "{:?}", tcp.warnings);
}

#[test]
fn captures_and_their_filters() {
    let text = with("")
        + "captures:\n- {name: c, port_names: [b], format: pcapng, packet_size: 64, filters: [{ipv4: {dst: {value: C6130001}}}, {custom: {offset: 96, bit_length: 16, value: '0800', negate: true}}]}\n";
    let plan = Plan::from_text(&text).unwrap();
    assert_eq!(plan.captures[0].filter.conditions.len(), 2);
    assert_eq!(plan.captures[0].filter.conditions[0].value, 0xc613_0001);
    assert_eq!(plan.captures[0].snap_len, Some(64));
    assert!(plan.captures[0].filter.conditions[1].negate);
}

#[test]
fn several_receivers_by_both_names() {
    let text = "ports: [{name: a, location: e1}, {name: b, location: e2}, {name: c, location: e3}]\nflows: [{name: f, tx_rx: {port: {tx_name: a, rx_name: c, rx_names: [b]}}, metrics: {enable: true, rx_tx_ratio: {rx_count: {}}}}]";
    let plan = Plan::from_text(text).unwrap();
    assert_eq!(plan.streams[0].rx, [1, 2]);
    assert_eq!(plan.streams[0].expected_copies(10), 20);
}

#[test]
fn ratio_that_is_no_number_is_refused() {
    let text = "ports: [{name: a, location: e1}, {name: b, location: e2}]\nflows: [{name: f, tx_rx: {port: {tx_name: a, rx_names: [b]}}, metrics: {enable: true, rx_tx_ratio: {value: two}}}]";
    let error = Plan::from_text(text).unwrap_err().to_string();
    assert!(error.contains("`two` is not a number of copies"), "{error}");
}

#[test]
fn custom_bytes_and_nested_headers_are_read() {
    let plan = plan(
        "size: {fixed: 200}\npacket:\n- ethernet: {}\n- custom: {bytes: '0a 0B:0c'}\n- ipv4: {priority: {dscp: {phb: {value: 46}}}, options: [{router_alert: {}}]}\n- icmp: {echo: {identifier: {value: 3}}}",
    );
    assert_eq!(plan.streams[0].frames.template().unwrap().header_len(), 14 + 3 + 24 + 8);
    assert_eq!(setting(&plan, 2, "priority.dscp.phb"), Some(FieldSetting::Pattern(FieldPattern::Value(46))));
    assert_eq!(setting(&plan, 3, "echo.identifier"), Some(FieldSetting::Pattern(FieldPattern::Value(3))));
}

proptest! {
    #[test]
    fn damaged_documents_never_panic(at in 0usize..700, with_byte in 32u8..127, cut in 0usize..700) {
        let mut bytes = SNAPPI.as_bytes().to_vec();
        let len = bytes.len();
        bytes[at % len] = with_byte;
        bytes.truncate(len - cut % 40);
        if let Ok(text) = String::from_utf8(bytes) {
            match Plan::from_text(&text) {
                Ok(plan) => drop(plan.bind_to_links(&[None, None])),
                Err(problems) => prop_assert!(!problems.0.is_empty()),
            }
        }
    }
}

#[test]
fn rate_without_number_gets_unit_default() {
    let unit = |unit: &str| plan(&format!("rate: {{choice: {unit}}}")).streams[0].rate;
    assert_eq!(unit("pps"), Rate::Frames(FrameRate::per_second(1000).unwrap()));
    assert_eq!(unit("percentage"), Rate::Share(packetrig_units::Share::WHOLE_LINK));
    for bits in ["bps", "kbps", "mbps", "gbps"] {
        assert_eq!(unit(bits), Rate::Bits(BitRate::new(1_000_000_000)), "{bits}");
    }
}

#[test]
fn null_member_is_absent_or_empty() {
    let rate = plan("rate: {choice: pps, pps: 5, bps: null}").streams[0].rate;
    assert_eq!(rate, Rate::Frames(FrameRate::per_second(5).unwrap()));
    let plan = plan("packet:\n- ethernet:\n- ipv4:\n- udp:");
    assert_eq!(plan.streams[0].frames.template().unwrap().header_len(), 42);
    assert!(error("rate: {pps: 5, bps: 1000}").message.contains("only one"));
}

#[test]
fn numbers_may_be_hexadecimal_and_need_no_sign() {
    let plan = plan("packet: [{ethernet: {ether_type: {value: 0x88a8}}}]");
    assert_eq!(setting(&plan, 0, "ether_type"), Some(FieldSetting::Pattern(FieldPattern::Value(0x88a8))));
    assert!(error("size: {fixed: +128}").message.contains("whole number"));
}

#[test]
fn unknown_field_hint_lists_known_fields() {
    let hint = error("size: {fixed: 128, zzzzzzzz: 1}").hint.unwrap();
    assert_eq!(hint, "known fields: fixed, increment, random, weight_pairs, choice");
}

#[test]
fn a_flood_of_problems_is_cut_and_counted() {
    let many = (0..5000).map(|n| format!("key{n}: 1")).collect::<Vec<_>>().join("\n");
    let problems = errors(&many);
    assert_eq!(problems.len(), 1001);
    assert_eq!(problems[1000].message, "4000 more problems are not listed");
    // Warnings give way to errors, so that the errors are among the listed problems.
    let warned: Vec<String> =
        (0..2000).map(|n| format!("- {{name: l{n}, port_names: [a], media: copper}}")).collect();
    let problems = errors(&format!("{}layer1:\n{}\nbad: 1\n", with(""), warned.join("\n")));
    assert!(problems.iter().any(|problem| problem.path == "bad"), "{}", problems.len());
}

#[test]
fn overload_problem_names_flows_and_rate_position() {
    let text = with("rate: {mbps: 900}\nsize: {fixed: 64}");
    let problem = Plan::from_text(&text)
        .unwrap()
        .bind_to_links(&[Some(BitRate::new(1_000_000_000)); 2])
        .unwrap_err()
        .0
        .remove(0);
    assert!(
        problem.message.contains("(f)") && problem.message.contains("1.181 Gbit/s"),
        "{}",
        problem.message
    );
    assert_eq!(problem.position.unwrap().0, text.lines().position(|line| line.contains("900")).unwrap() + 1);
}

#[test]
fn byte_pauses_and_percentages_need_link_speed() {
    for members in ["rate: {percentage: 5}", "duration: {fixed_packets: {delay: {bytes: 100}}}"] {
        let problem = plan(members).bind_to_links(&[None, None]).unwrap_err().0.remove(0);
        assert!(problem.hint.unwrap().contains("layer1"), "{members}");
    }
    let bursts = "duration: {burst: {packets: 2, inter_burst_gap: {bytes: 1250}}}\nrate: {pps: 1000}";
    let bound = plan(bursts).bind_to_links(&[Some(BitRate::new(1_000_000_000)); 2]).unwrap();
    assert_eq!(bound.streams[0].timeline.due_time(2), Nanos::from_millis(2) + Nanos::from_micros(10));
}

#[test]
fn defaults_that_clients_write_out_are_no_objection() {
    let text = with("metrics: {enable: true, predefined_metric_tags: {rx_name: false}}")
        + "options: {flow_options: {packet_loss_duration: false}}\ndevices: []\nlags: []\n";
    assert_eq!(Plan::from_text(&text).unwrap().warnings, []);
    assert!(error("metrics: {predefined_metric_tags: {rx_name: true}}").message.contains("not supported"));
}

#[test]
fn anchors_within_anchors_do_not_multiply() {
    let anchors: Vec<String> = (0..60).map(|level| format!("&x{level} [")).collect();
    let text = ["a: ", &anchors.concat(), &"1,".repeat(200_000), &"]".repeat(60)].concat();
    assert!(errors(&text)[0].message.contains("values"), "{:?}", errors(&text)[0]);
}

#[test]
fn the_predefined_mixes_are_exact() {
    let mean = |mix: &str| {
        let plan = plan(&format!("size: {{weight_pairs: {{predefined: {mix}}}}}"));
        plan.streams[0].frames.template().unwrap().spec().size.mean_size()
    };
    assert_eq!(mean("imix"), (7 * 64 + 4 * 570 + 1518, 12));
    assert_eq!(mean("tcp_imix"), (5867 * 90 + 200 * 92 + 2366 * 594 + 1567 * 1518, 10_000));
    assert_eq!(mean("ipsec_imix"), (5867 * 90 + 200 * 92 + 2366 * 594 + 1567 * 1418, 10_000));
    // Sizes below Ethernet's smallest frame are padded.
    assert_eq!(mean("ipv6_imix"), (5867 * 64 + 200 * 496 + 2366 * 594 + 1567 * 1518, 10_000));
    assert_eq!(mean("standard_imix"), (6067 * 64 + 2366 * 594 + 1567 * 1518, 10_000));
}

#[test]
fn layer_1_options_apply_or_warn() {
    let text = with("")
        + "layer1: [{name: l, port_names: [a], speed: speed_25_gbps, mtu: 9000, promiscuous: false, media: fiber}, {name: m, port_names: [a]}]\n";
    let plan = Plan::from_text(&text).unwrap();
    let port = &plan.ports[0];
    assert_eq!(
        (port.speed, port.mtu, port.promiscuous),
        (Some(BitRate::new(25_000_000_000)), Some(9000), false)
    );
    assert_eq!((plan.ports[1].speed, plan.ports[1].promiscuous), (None, true));
    assert_eq!(plan.warnings.len(), 1);
    assert_eq!(plan.warnings[0].path, "layer1[0].media");
}

#[test]
fn hexadecimal_values_have_no_sign() {
    let mac = error("packet: [{ethernet: {dst: {value: '02:00:00:00:00:+a'}}}]");
    assert!(mac.message.contains("is not a MAC address"), "{mac}");
    let filter =
        with("") + "captures: [{name: c, port_names: [b], filters: [{ipv4: {dst: {value: '+613'}}}]}]\n";
    assert!(errors(&filter)[0].message.contains("is not a hexadecimal value"), "{:?}", errors(&filter));
}

#[test]
fn port_can_be_in_one_capture_once() {
    let captures = |text: &str| with("") + "captures: [" + text + "]\n";
    let c = "{name: c, port_names: [b]}";
    assert!(Plan::from_text(&captures(c)).is_ok());
    for twice in ["{name: c, port_names: [b, b]}", &format!("{c}, {{name: d, port_names: [b]}}")] {
        let problems = errors(&captures(twice));
        assert!(problems[0].message.contains("already in capture `c`"), "{problems:?}");
    }
}

#[test]
fn locations_are_interfaces_and_nothing_else() {
    let location = |text: &str| text.parse::<crate::PortLocation>();
    assert_eq!(location("lab/eth1").unwrap().to_string(), "lab/eth1");
    for foreign in ["localhost:5555", "10.0.0.1;2;3", "../eth1", "a/b/c", "", "an-interface-too-long", "ns/"]
    {
        assert!(location(foreign).is_err(), "{foreign}");
    }
    let text = with("").replace("ns/eth2", "localhost:5555");
    let problem = errors(&text).remove(0);
    assert_eq!(problem.path, "ports[1].location");
    assert!(problem.hint.unwrap().contains("alias"));
    assert!(errors(&with("").replace("ns/eth2", "eth1"))[0].message.contains("already"));
}

#[test]
fn filter_matches_zero_mask_bits_and_pads_left() {
    let filter = |field: &str| {
        let text = with("") + "captures: [{name: c, port_names: [b], filters: [{" + field + "}]}]\n";
        Plan::from_text(&text).unwrap_or_else(|problems| panic!("{problems}")).captures.remove(0).filter
    };
    let mut frame = vec![0u8; 60];
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[5] = 0x0a;
    assert!(filter("ethernet: {dst: {value: '0xa'}}").accepts_frame(&frame));
    assert!(!filter("ethernet: {dst: {value: '0b'}}").accepts_frame(&frame));
    assert!(filter("ethernet: {dst: {value: '0b', mask: '01'}}").accepts_frame(&frame));
    assert!(filter("ethernet: {dst: {value: '0b', negate: true}}").accepts_frame(&frame));
    let text =
        with("") + "captures: [{name: c, port_names: [b], filters: [{vlan: {id: {value: '1000'}}}]}]\n";
    assert!(errors(&text)[0].message.contains("12 bits"));
}

#[test]
fn flow_count_is_limited_by_tag_size() {
    let flow = |n: u32| {
        let packet = "[{ethernet: {}}, {ipv4: {}}, {tcp: {}}]";
        let metrics = n >= 4095;
        format!(
            "- {{name: f{n}, tx_rx: {{port: {{tx_name: a}}}}, metrics: {{enable: {metrics}}}, size: {{fixed: 64}}, packet: {packet}}}"
        )
    };
    let text =
        |flows: Vec<String>| format!("ports: [{{name: a, location: eth1}}]\nflows:\n{}", flows.join("\n"));
    let plan = Plan::from_text(&text((0..4096).map(flow).collect())).unwrap();
    let paths: Vec<&str> = plan.warnings.iter().map(|warning| warning.path.as_str()).collect();
    assert_eq!(paths, ["flows[4095].size"]);
    let problems = errors(&text((0..4097).map(flow).collect()));
    let last = problems.iter().find(|problem| problem.severity == ProblemSeverity::Error).unwrap();
    assert_eq!(last.path, "flows[4096].size");
    assert!(last.message.contains("distinguishes 4096 streams"), "{}", last.message);
    let shortest = (0..65_537).map(|n| format!("- {{name: f{n}, tx_rx: {{port: {{tx_name: a}}}}}}"));
    assert!(errors(&text(shortest.collect())).iter().any(|problem| problem.message.contains("65536")));
}

#[test]
fn quoted_document_text_is_truncated() {
    let huge = "x".repeat(1_000_000);
    for text in
        [with(&format!("size: {{fixed: {huge}}}")), format!("{huge}: 1\n"), format!("{huge}: 1\n{huge}: 2\n")]
    {
        for problem in errors(&text) {
            assert!(problem.path.len() + problem.message.len() < 2_000, "{}", problem.message.len());
        }
        assert!(!errors(&text).is_empty());
    }
}
