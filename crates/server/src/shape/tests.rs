use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};

fn settled(of: &str, document: Value) -> Result<Value, Vec<String>> {
    let mut complaints = DocumentProblems::default();
    let settled = normalise_document(document, &message_descriptor(of), &mut complaints);
    if complaints.is_empty() { Ok(settled) } else { Err(complaints.into_lines()) }
}

fn encode_and_decode(of: &str, document: Value) -> Value {
    let settled = settled(of, document).expect("a sound document");
    let bytes = encode_message(&settled, &message_descriptor(of)).expect("settled JSON fits");
    let mut complaints = DocumentProblems::default();
    let decoded = decode_message(&bytes, &message_descriptor(of), &mut complaints)
        .expect("what we encode can be decoded");
    let again = normalise_document(decoded, &message_descriptor(of), &mut complaints);
    assert!(complaints.is_empty(), "{complaints:?}");
    assert_eq!(again, settled);
    settled
}

fn normalise_config(bytes: &[u8], complaints: &mut DocumentProblems) -> Option<String> {
    normalise_json(bytes, &message_descriptor("Config"), complaints)
}

/// A configuration as snappi sends it.
fn usual() -> Value {
    json!({
        "ports": [{"name": "p1", "location": "veth-a"}, {"name": "p2", "location": "veth-z"}],
        "flows": [{
            "name": "f1",
            "tx_rx": {"choice": "port", "port": {"tx_name": "p1", "rx_names": ["p2"]}},
            "rate": {"choice": "pps", "pps": "50"},
            "size": {"choice": "fixed", "fixed": 128},
            "packet": [
                {"choice": "ethernet", "ethernet": {}},
                {"choice": "ipv4", "ipv4": {}},
                {"choice": "udp", "udp": {"src_port": {
                    "choice": "increment", "increment": {"start": 5000, "step": 1, "count": 1}}}},
            ],
            "duration": {"choice": "fixed_packets", "fixed_packets": {"packets": 100, "gap": 12}},
            "metrics": {"enable": true, "loss": false, "timestamps": false},
        }],
    })
}

#[test]
fn snappi_config_is_settled_and_survives_wire() {
    assert_eq!(encode_and_decode("Config", usual()), usual());
}

#[test]
fn u64_fields_print_as_text_and_accept_numbers() {
    for pps in [json!("50"), json!(50), json!(50.0)] {
        let settled = settled("FlowRate", json!({ "pps": pps }));
        assert_eq!(settled, Ok(json!({"choice": "pps", "pps": "50"})));
    }
    let largest = encode_and_decode("FlowRate", json!({"bps": u64::MAX}));
    assert_eq!(largest["bps"], u64::MAX.to_string());
    assert!(settled("FlowRate", json!({"pps": "18446744073709551616"})).is_err());
    assert!(settled("FlowRate", json!({"pps": -1})).is_err());
    assert!(settled("FlowRate", json!({"pps": 0.5})).is_err());
    assert_eq!(settled("FlowSize", json!({"fixed": "64"})), Ok(json!({"choice": "fixed", "fixed": 64})));
    assert!(settled("FlowSize", json!({"fixed": 4_294_967_296_u64})).is_err());
}

#[test]
fn null_is_absent() {
    assert_eq!(settled("Flow", json!({"name": "f", "rate": null, "packet": null})), Ok(json!({"name": "f"})));
    assert_eq!(settled("Config", json!({"lags": null, "events": null})), Ok(json!({})));
}

#[test]
fn choice_is_derived_from_single_member() {
    assert_eq!(settled("FlowSize", json!({"fixed": 9})).expect("sound")["choice"], "fixed");
    assert_eq!(settled("FlowSize", json!({})), Ok(json!({})));
    assert_eq!(settled("MetricsRequest", json!({"choice": "flow"})), Ok(json!({"choice": "flow"})));
    assert_eq!(
        settled("FlowSize", json!({"choice": "random", "fixed": 9})),
        Err(vec!["`choice` is `random`, but `fixed` is also given".into()])
    );
    assert_eq!(
        settled("Flow", json!({"size": {"random": {}, "fixed": 9}})),
        Err(vec!["size: only one of fixed, random is allowed".into()])
    );
}

#[test]
fn all_problems_are_listed_with_paths() {
    let document = json!({
        "ports": [{"name": 1}, 7, null],
        "flows": {"name": "f"},
        "devices": [{"name": "d", "bgp": {}, "ethernets": [{"mac": "x", "dhcpv4_interfaces": [{}]}]}],
        "layer1": [{"speed": "speed_3_gbps", "promiscuous": "yes"}],
        "captures": [{"packet_sise": 3}],
        "lags": [{}],
    });
    let mut errors = settled("Config", document).expect_err("much is wrong");
    errors.sort();
    let expected = [
        "captures[0].packet_sise: unknown field `packet_sise`; did you mean `packet_size`?",
        "devices[0].bgp: not supported: packetrig does not do this yet",
        "devices[0].ethernets[0].dhcpv4_interfaces: not supported: packetrig does not do this yet",
        "flows: must be a list, not an object",
        "lags: not supported: packetrig does not do this yet",
        "layer1[0].promiscuous: must be true or false, not `yes`",
        "layer1[0].speed: must be one of speed_10_fd_mbps, speed_10_hd_mbps, speed_100_fd_mbps, speed_100_hd_mbps, \
         speed_1_gbps, speed_10_gbps, speed_25_gbps, speed_40_gbps, speed_50_gbps, speed_100_gbps, speed_200_gbps, \
         speed_400_gbps, speed_800_gbps, not `speed_3_gbps`",
        "ports[0].name: must be text, not 1",
        "ports[1]: must be an object, not a number",
        "ports[2]: must be an object, not null",
    ];
    assert_eq!(errors, expected);
}

#[test]
fn refused_values_are_named_by_both_transports() {
    let (_, headers) =
        model::all_refused_members().find(|(owner, _)| *owner == "FlowHeader").expect("some headers");
    // A small number, which takes one byte on the wire.
    let (number, name) = *headers.iter().min().expect("there is one");
    let member = u8::try_from(number).ok().filter(|number| *number < 16).expect("a small number");
    let refused = format!("packet[0].choice: `{name}` is not supported: packetrig does not do this yet");
    let errors = settled("Flow", json!({"packet": [{"choice": name}]})).expect_err("no such header");
    assert_eq!(errors, [refused.as_str()]);
    // Flow.packet (2) with one FlowHeader: its choice (1), whose number is less by one, and an empty member.
    let bytes = [0x12, 4, 0x08, member - 1, member << 3 | 2, 0];
    let mut complaints = DocumentProblems::default();
    decode_message(&bytes, &message_descriptor("Flow"), &mut complaints);
    let lines = complaints.into_lines();
    assert_eq!(lines, [format!("packet[0].{name}: not supported: packetrig does not do this yet"), refused]);
}

#[test]
fn unknown_field_number_is_refused() {
    let mut complaints = DocumentProblems::default();
    // Field 300 with value 1; Flow.name is there and sound.
    decode_message(&[0xe0, 0x12, 1, 0x3a, 1, b'f'], &message_descriptor("Flow"), &mut complaints);
    assert_eq!(complaints.into_lines(), ["field 300 of Flow is unknown"]);
}

/// The paths of HTTP and of gRPC are the same for every member and value that packetrig refuses.
#[test]
fn refused_member_table_matches_model() {
    for (owner, members) in model::all_refused_members() {
        for (number, name) in members {
            let full = format!("otg.{owner}");
            if let Some(of) = model::descriptor_pool().get_message_by_name(&full) {
                assert!(
                    of.get_field(*number).is_none() && of.get_field_by_name(name).is_none(),
                    "{owner}.{name}"
                );
            } else {
                let of =
                    model::descriptor_pool().get_enum_by_name(&full).unwrap_or_else(|| panic!("no {owner}"));
                let number = i32::try_from(*number).expect("a small number");
                assert!(
                    of.get_value(number).is_none() && of.get_value_by_name(name).is_none(),
                    "{owner}.{name}"
                );
            }
        }
    }
}

#[test]
fn metric_tags_are_refused_by_name() {
    let mut complaints = DocumentProblems::default();
    // FlowIpv4.src (13) { metric_tags (7) { } }
    decode_message(&[13 << 3 | 2, 2, 7 << 3 | 2, 0], &message_descriptor("FlowIpv4"), &mut complaints);
    assert_eq!(complaints.into_lines(), ["src.metric_tags: not supported: packetrig does not do this yet"]);
    let empty = settled("FlowIpv4", json!({"src": {"value": "1.1.1.1", "metric_tags": []}}));
    assert_eq!(empty.expect("an empty list asks for nothing")["src"]["choice"], "value");
}

/// snappi fills in the defaults of every object that a script touches.
#[test]
fn false_unsupported_member_is_accepted() {
    let options = json!({"location_preemption": true, "data_integrity": false});
    assert_eq!(settled("PortOptions", options), Ok(json!({"location_preemption": true})));
    assert!(settled("PortOptions", json!({"data_integrity": true})).is_err());
    for (value, errors) in [(0, 0), (1, 1)] {
        let mut complaints = DocumentProblems::default();
        decode_message(&[2 << 3, value], &message_descriptor("PortOptions"), &mut complaints);
        assert_eq!(complaints.into_lines().len(), errors);
    }
}

#[test]
fn short_floats_stay_short() {
    let settled = encode_and_decode("FlowRate", json!({"percentage": 99.9}));
    assert_eq!(settled["percentage"], json!(99.9));
}

#[test]
fn repeated_key_is_refused() {
    let mut complaints = DocumentProblems::default();
    assert_eq!(normalise_config(br#"{"ports": [], "ports": []}"#, &mut complaints), None);
    let [line] = &complaints.into_lines()[..] else { panic!("one complaint") };
    assert!(line.contains("`ports` is given twice"), "{line}");
}

#[test]
fn json_text_and_values_are_settled_alike() {
    let document = usual();
    let mut complaints = DocumentProblems::default();
    let text = normalise_config(document.to_string().as_bytes(), &mut complaints).expect("a sound document");
    assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON"), document);
    let wrong = br#"{"ports": [{"name": 1, "nmae": {"a": [1]}}], "flows": 7, "captures": null} "#;
    assert_eq!(normalise_config(wrong, &mut complaints), None);
    let expected = [
        "ports[0].name: must be text, not 1",
        "ports[0].nmae: unknown field `nmae`",
        "flows: must be a list, not a number",
    ];
    assert_eq!(std::mem::take(&mut complaints).into_lines(), expected, "in the order of the document");
    assert_eq!(normalise_config(b"{\"ports\": 1} x", &mut complaints), None);
    let [line] = &complaints.into_lines()[..] else { panic!("one complaint") };
    assert!(line.starts_with("the request is not a JSON document"), "{line}");
}

#[test]
fn repeated_long_name_is_cut_in_its_complaint() {
    let long = "x".repeat(1 << 20);
    let mut complaints = DocumentProblems::default();
    let document = format!("{{\"{long}\": 1, \"{long}\": 1}}");
    assert_eq!(normalise_config(document.as_bytes(), &mut complaints), None);
    let lines = complaints.into_lines();
    assert!(lines[0].contains("is given twice") && lines[0].len() < 300, "{}", lines[0].len());
}

#[test]
fn an_empty_body_is_an_empty_document() {
    let mut complaints = DocumentProblems::default();
    assert_eq!(normalise_config(b" \n", &mut complaints).as_deref(), Some("{}"));
    assert!(complaints.is_empty());
}

#[test]
fn hostile_documents_end_in_few_complaints() {
    let mut complaints = DocumentProblems::default();
    let flows: Vec<Value> = (0..5_000).map(|_| json!({"nonsense": 1})).collect();
    normalise_document(json!({ "flows": flows }), &message_descriptor("Config"), &mut complaints);
    let lines = std::mem::take(&mut complaints).into_lines();
    assert_eq!(lines.len(), 1_001);
    assert_eq!(lines.last().map(String::as_str), Some("4000 more problems are not listed"));
    assert_eq!(normalise_config("[],".repeat(2_000_001).as_bytes(), &mut complaints), None);
    assert_eq!(
        complaints.into_lines(),
        ["the document has up to 4000002 values, but at most 4000000 are allowed"]
    );
    let deep = "[".repeat(100_000);
    assert_eq!(normalise_config(deep.as_bytes(), &mut DocumentProblems::default()), None);
}

#[test]
fn printed_json_suits_yaml_readers() {
    assert_eq!(format_json(&json!({"warnings": []})), r#"{"warnings":[]}"#);
    assert_eq!(format_json(&json!(1.76e18)), "1760000000000000000.0");
    assert_eq!(format_json(&json!(1e16)), "10000000000000000.0");
    assert_eq!(format_json(&json!(1e-7)), "0.0000001");
    assert_eq!(format_json(&json!([true, null, 7, -7, 0.5])), "[true,null,7,-7,0.5]");
    assert_eq!(format_json(&json!("a\tb\u{7f}\u{2028}\"\\ü")), "\"a\\u0009b\\u007f\\u2028\\\"\\\\ü\"");
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        // serde_json reads most floats exactly, not all: these it does.
        any::<i32>().prop_map(|quarters| Value::from(f64::from(quarters) / 4.0)),
        ".{0,8}".prop_map(Value::from),
    ];
    let name =
        prop_oneof!["choice", "name", "flows", "ports", "packet", "ipv4", "src", "value", "values", ".{0,4}"];
    leaf.prop_recursive(6, 64, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map(name.clone(), inner, 0..5)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn floats_have_no_exponent_and_read_back_equal(bits: u64) {
        let float = f64::from_bits(bits);
        prop_assume!(float.is_finite());
        let text = format_json(&json!(float));
        prop_assert!(!text.contains(['e', 'E']) && text.contains('.'), "{}", text);
        prop_assert_eq!(text.parse::<f64>().expect("a number").to_bits(), bits);
    }

    #[test]
    fn printed_json_reads_back_unchanged(document in any_json()) {
        let read: Value = serde_json::from_str(&format_json(&document)).expect("JSON");
        // Whether a float is whole does not change what it is, and nothing else may change.
        prop_assert_eq!(format_json(&read), format_json(&document));
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        for of in ["Config", "ControlState", "MetricsRequest", "Data", "FlowHeader"] {
            let mut complaints = DocumentProblems::default();
            let decoded = decode_message(&bytes, &message_descriptor(of), &mut complaints);
            prop_assert!(decoded.is_some() || !complaints.is_empty());
            if let Some(decoded) = decoded {
                normalise_document(decoded, &message_descriptor(of), &mut complaints);
            }
        }
        let mut complaints = DocumentProblems::default();
        let parsed = normalise_config(&bytes, &mut complaints);
        prop_assert_eq!(parsed.is_none(), !complaints.is_empty());
    }

    #[test]
    fn damaged_messages_are_decoded_or_refused(at in 0usize..400, byte: u8) {
        let settled = settled("Config", usual()).expect("sound");
        let mut bytes = encode_message(&settled, &message_descriptor("Config")).expect("fits");
        let at = at % bytes.len();
        bytes[at] = byte;
        let mut complaints = DocumentProblems::default();
        if let Some(decoded) = decode_message(&bytes, &message_descriptor("Config"), &mut complaints) {
            let again = normalise_document(decoded, &message_descriptor("Config"), &mut complaints);
            if complaints.is_empty() {
                prop_assert!(encode_message(&again, &message_descriptor("Config")).is_ok());
            }
        }
    }

    #[test]
    fn any_json_is_settled_or_refused(document in any_json()) {
        for of in ["Config", "Flow", "FlowHeader", "PatternFlowIpv4Src"] {
            let mut complaints = DocumentProblems::default();
            let settled = normalise_document(document.clone(), &message_descriptor(of), &mut complaints);
            if complaints.is_empty() {
                prop_assert!(encode_message(&settled, &message_descriptor(of)).is_ok());
                // Settled is settled.
                prop_assert_eq!(&normalise_document(settled.clone(), &message_descriptor(of), &mut complaints), &settled);
                prop_assert!(complaints.is_empty());
            }
        }
    }
}
