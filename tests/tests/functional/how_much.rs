//! Rates in every unit, and sizes of every kind: what is planned is exact, and all of it is sent.

use super::document;
use packetrig_testkit::Lab;
use packetrig_tests::document::Flow;
use packetrig_tests::program::run;
use packetrig_tests::skip;
use serde_json::{Value, json};

#[test]
fn every_unit_of_rate_means_what_it_says() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    // Frames of 1000 bytes are 8000 bits, and 8160 bits on the line.
    let rates = [
        (json!({"choice": "pps", "pps": 1000}), 1000),
        (json!({"choice": "bps", "bps": 800_000}), 100),
        (json!({"choice": "kbps", "kbps": 1600}), 200),
        (json!({"choice": "mbps", "mbps": 4}), 500),
        (json!({"choice": "percentage", "percentage": 0.0816}), 1000),
    ];
    let second = json!({"choice": "fixed_seconds", "fixed_seconds": {"seconds": 1}});
    let flows = (1u16..).zip(&rates).map(|(key, (rate, _))| {
        Flow::new(rate["choice"].as_str().unwrap(), key)
            .size(1000)
            .with("rate", rate.clone())
            .with("duration", second.clone())
    });
    let speed =
        json!([{"name": "l1", "port_names": ["port 0", "port 1"], "speed": "speed_10_gbps", "mtu": 9000}]);
    // Whole gigabits per second only: the largest frames keep their number low.
    let giga = Flow::new("gbps", 99)
        .size(9000)
        .with("rate", json!({"choice": "gbps", "gbps": 1}))
        .with("duration", second.clone());
    let report = run(&document(&lab).flows(flows).flow(giga).with("layer1", speed)).report();
    // 10^9 bits per second of 72 000 bits each, the last begun within the second.
    assert_eq!(report.number("gbps", "/sent/planned"), 13_889);
    for (rate, frames) in rates {
        let name = rate["choice"].as_str().unwrap();
        assert_eq!(report.number(name, "/sent/planned"), frames, "{name}");
        assert_eq!(
            report.number(name, "/sent/frames") + report.number(name, "/sent/unsent"),
            frames,
            "{name}"
        );
        assert_eq!(report.number(name, "/sent/bytes"), 1000 * report.number(name, "/sent/frames"), "{name}");
    }
    assert_eq!(report.0["imbalances"], json!([]));
}

/// Sum of the sizes of 120 frames, by the definition of each kind.
fn sizes() -> Vec<(&'static str, Value, Option<u64>)> {
    let weights = json!([{"size": 100, "weight": 3}, {"size": 200, "weight": 1}]);
    vec![
        ("fixed", json!({"choice": "fixed", "fixed": 333}), Some(120 * 333)),
        (
            "increment",
            json!({"choice": "increment", "increment": {"start": 64, "end": 104, "step": 20}}),
            Some(120 * 84),
        ),
        ("random", json!({"choice": "random", "random": {"min": 100, "max": 1400}}), None),
        (
            "imix",
            json!({"choice": "weight_pairs", "weight_pairs": {"choice": "predefined", "predefined": "imix"}}),
            Some(10 * (7 * 64 + 4 * 570 + 1518)),
        ),
        (
            "custom",
            json!({"choice": "weight_pairs", "weight_pairs": {"choice": "custom", "custom": weights}}),
            Some(30 * 500),
        ),
        ("jumbo", json!({"choice": "fixed", "fixed": 9000}), Some(120 * 9000)),
    ]
}

#[test]
fn size_kinds_add_up_at_both_ends() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let flows = (1u16..)
        .zip(sizes())
        .map(|(key, (name, size, _))| Flow::new(name, key).with("size", size).packets(120));
    let mtu = json!([{"name": "l1", "port_names": ["port 0", "port 1"], "mtu": 9000}]);
    let report = run(&document(&lab).flows(flows).with("layer1", mtu)).report();
    report.assert_clean();
    for (name, _, bytes) in sizes() {
        let sent = report.number(name, "/sent/bytes");
        assert_eq!(report.number(name, "/received/bytes"), sent, "{name}");
        assert!(bytes.is_none_or(|bytes| bytes == sent), "{name}: {sent} bytes, not {bytes:?}");
        assert!((120 * 64..=120 * 9000).contains(&sent), "{name}");
    }
}
