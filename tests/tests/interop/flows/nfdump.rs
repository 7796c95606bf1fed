//! nfcapd receives, nfdump prints. What Debian's 1.7.1 does in its own way:
//!
//! * Options records do not count in its idea of IPFIX sequence numbers, so it reports one error where they stand.
//! * It takes reverse elements for forward ones, but for counts, and the last of them wins: our templates have them first.
//! * In NetFlow 9 it takes elements 148 and 153 for those of firewall events: its JSON calls such flows `EVENT`.

use super::{Line, PROFILES, Profile, export, wanted};
use packetrig_tests::nfcapd::Nfcapd;
use packetrig_tests::skip;
use serde_json::Value;
use std::process::Command;

fn line(flow: &Value) -> Line {
    let number = |name: &str| flow[name].as_u64().unwrap_or(0);
    let small = |name: &str| u16::try_from(number(name)).unwrap();
    let text = |names: [&str; 2]| names.iter().find_map(|name| flow[*name].as_str()).unwrap().to_owned();
    let flags = flow["tcp_flags"].as_str().unwrap_or("");
    Line {
        source: text(["src4_addr", "src6_addr"]),
        destination: text(["dst4_addr", "dst6_addr"]),
        ports: (small("src_port"), small("dst_port")),
        protocol: u8::try_from(number("proto")).unwrap(),
        packets: number("in_packets"),
        bytes: number("in_bytes"),
        times: (millis(&flow["first"]), millis(&flow["last"])),
        flags: flags.bytes().fold(0, |bits, flag| bits << 1 | u16::from(flag != b'.')),
        vlan: small("src_vlan"),
        icmp: small("icmp_type") << 8 | small("icmp_code"),
        back: (number("out_packets"), number("out_bytes")),
    }
}

/// `2026-09-21T14:13:15.123`.
fn millis(time: &Value) -> u64 {
    let clock = time.as_str().unwrap().strip_prefix("2026-09-21T").unwrap();
    let number = |range: std::ops::Range<usize>| clock[range].parse::<u64>().unwrap();
    (super::DAY + number(0..2) * 3600 + number(3..5) * 60 + number(6..8)) * 1000 + number(9..12)
}

/// What nfdump prints of what nfcapd received.
fn dumped(profile: Profile) -> Vec<Line> {
    let directory = tempfile::tempdir().unwrap();
    let nfcapd = Nfcapd::start(directory.path()).unwrap();
    export(profile, &format!("udp://{}", nfcapd.address()));
    nfcapd.finish().unwrap();
    let mut nfdump = Command::new("nfdump");
    let output =
        nfdump.env("TZ", "UTC").arg("-R").arg(directory.path()).args(["-o", "json"]).output().unwrap();
    assert!(output.status.success(), "nfdump: {}", String::from_utf8_lossy(&output.stderr));
    let flows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    flows.iter().map(line).collect()
}

#[test]
fn nfdump_agrees_on_every_flow_of_every_format() {
    if !skip::has_tool("nfcapd") || !skip::has_tool("nfdump") {
        return;
    }
    for profile in PROFILES {
        assert_eq!(dumped(profile), wanted(profile), "{profile:?}");
    }
}
