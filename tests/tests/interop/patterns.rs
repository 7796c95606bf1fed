//! Every kind of pattern, as tshark reads it frame by frame.

use super::{captured, captured_with};
use packetrig_tests::document::{Flow, ethernet, ipv4, value};
use packetrig_tests::tools;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The destination ports of frames whose UDP destination port has this pattern.
fn ports(pattern: Value) -> Option<Vec<u64>> {
    ports_with(pattern, &[])
}

/// The same, with more flags.
fn ports_with(pattern: Value, more: &[&str]) -> Option<Vec<u64>> {
    let udp = json!({"choice": "udp", "udp": {"src_port": value(1), "dst_port": pattern}});
    let flow = Flow::new("f", 1).packets(60).packet([ethernet(1), ipv4(), udp]);
    let finished = captured_with(flow, "pcapng", more)?;
    let frames = tools::tshark(&finished.capture(), &["udp.dstport", "udp.checksum.status"]);
    assert!(frames.iter().all(|f| f[1] == "1"), "{frames:?}");
    Some(frames.iter().map(|f| f[0].parse().unwrap()).collect())
}

#[test]
fn one_value_and_a_list_of_values() {
    let Some(found) = ports(value(4711)) else { return };
    assert_eq!(found, [4711; 60]);
    let Some(found) = ports(json!({"choice": "values", "values": [9, 7, 8]})) else { return };
    assert_eq!(found, [9, 7, 8].repeat(20));
}

#[test]
fn increment_and_decrement_patterns_repeat_and_wrap() {
    let step = |start, step, count| json!({"start": start, "step": step, "count": count});
    let Some(up) = ports(json!({"choice": "increment", "increment": step(65_530, 3, 4)})) else { return };
    assert_eq!(up, [65_530, 65_533, 0, 3].repeat(15));
    let Some(down) = ports(json!({"choice": "decrement", "decrement": step(1, 2, 3)})) else { return };
    assert_eq!(down, [1, 65_535, 65_533].repeat(20));
}

#[test]
fn random_pattern_stays_in_range_and_repeats() {
    let random = json!({"choice": "random", "random": {"min": 1000, "max": 1999, "seed": 5, "count": 20}});
    let Some(found) = ports(random) else { return };
    assert!(found.iter().all(|port| (1000..2000).contains(port)));
    assert_eq!((&found[..20], &found[..20]), (&found[20..40], &found[40..]));
    assert!(found[..20].iter().collect::<BTreeSet<_>>().len() > 10, "{found:?}");
}

#[test]
fn random_pattern_uses_the_run_seed() {
    let by_chance =
        || json!({"choice": "random", "random": {"min": 0, "max": 65_535, "seed": 0, "count": 60}});
    let Some(found) = ports_with(by_chance(), &["--seed", "7"]) else { return };
    assert_eq!(Some(&found), ports_with(by_chance(), &["--seed", "7"]).as_ref());
    assert_ne!(Some(&found), ports_with(by_chance(), &["--seed", "8"]).as_ref());
}

#[test]
fn several_fields_advance_together_with_every_checksum_right() {
    let counting = |start: &str, step: &str| json!({"choice": "increment", "increment": {"start": start, "step": step, "count": 50}});
    let packet = [
        json!({"choice": "ethernet", "ethernet": {"src": counting("02:00:00:00:00:00", "00:00:00:00:00:01"), "dst": value("02:00:00:00:00:01")}}),
        json!({"choice": "ipv4", "ipv4": {"src": counting("198.18.0.0", "0.0.0.1"), "dst": value("198.19.0.1")}}),
        json!({"choice": "tcp", "tcp": {"seq_num": {"choice": "increment", "increment": {"start": 100, "step": 1000, "count": 50}}}}),
    ];
    let Some(finished) = captured(Flow::new("f", 1).packets(50).packet(packet), "pcapng") else { return };
    let fields = ["eth.src", "ip.src", "tcp.seq_raw", "ip.checksum.status", "tcp.checksum.status"];
    for (n, found) in tools::tshark(&finished.capture(), &fields).iter().enumerate() {
        let wanted = [
            format!("02:00:00:00:00:{n:02x}"),
            format!("198.18.0.{n}"),
            (100 + 1000 * n).to_string(),
            "1".into(),
            "1".into(),
        ];
        assert_eq!(*found, wanted);
    }
}
