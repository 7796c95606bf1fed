//! Packets that a card or the kernel merges, or that a sender leaves to the card to cut: they count as what they were on the wire. The
//! judge is the sender's own account of its connections and datagrams.

use super::{ledger, number};
use packetrig_sys::{kernel, xdp};
use packetrig_testkit::Lab;
use packetrig_tests::hosts::tool;
use packetrig_tests::program::{Finished, Running};
use packetrig_tests::skip::{self, OwnLab};
use rustix::process::Signal;
use serde_json::Value;
use std::path::Path;

const TRAFFIC: &str = include_str!("traffic.py");
/// Ports of streams and of datagrams, each of IPv4 and IPv6.
const PORTS: [u64; 4] = [5004, 5006, 6004, 6006];

/// Two hosts with addresses on a cable of an Ethernet's MTU.
fn hosts() -> Option<OwnLab> {
    if !["python3", "ip", "ethtool"].into_iter().all(skip::has_tool) {
        return None;
    }
    let lab = skip::lab(Lab::cabled_pair)?;
    for (port, own, other) in [(0, 1, 2), (1, 2, 1)] {
        let netns = lab.ports()[port].netns();
        kernel::write_setting(netns, "net/ipv6/conf/eth0/disable_ipv6", "0").unwrap();
        let far = lab.ports()[1 - port].link.mac.unwrap().map(|byte| format!("{byte:02x}")).join(":");
        for words in [
            "link set eth0 mtu 1500".to_owned(),
            format!("addr add 198.18.0.{own}/24 dev eth0"),
            format!("addr add 2001:2::{own}/64 dev eth0 nodad"),
            format!("neigh replace 198.18.0.{other} lladdr {far} dev eth0"),
            format!("neigh replace 2001:2::{other} lladdr {far} dev eth0"),
        ] {
            tool(netns, "ip", &words).unwrap();
        }
    }
    Some(lab)
}

/// Switches what the sender leaves to its card, and what the receiver merges.
fn switch(lab: &Lab, cuts: &str, merges: &str) {
    let of_sender = format!("-K eth0 tso {cuts} gso {cuts} tx-udp-segmentation {cuts}");
    tool(lab.ports()[0].netns(), "ethtool", &of_sender).unwrap();
    let of_receiver = format!("-K eth0 gro {merges} rx-udp-gro-forwarding {merges}");
    tool(lab.ports()[1].netns(), "ethtool", &of_receiver).unwrap();
}

fn python(lab: &Lab, port: usize, words: &[&str]) -> Running {
    let arguments = [&["-c", TRAFFIC], words].concat();
    lab.ports()[port].netns().run_in_namespace(|| Running::start_program("python3", &arguments, "")).unwrap()
}

/// Sends by all sockets; returns packets and bytes of IP by port.
fn send(lab: &Lab) -> Value {
    let mut server = python(lab, 1, &["serve"]);
    server.await_printed("ready");
    let sent = python(lab, 0, &["send", "198.18.0.2", "2001:2::2"]).finish();
    assert_eq!((sent.code, server.finish().code), (Some(0), Some(0)), "{}", sent.stderr);
    serde_json::from_str(&sent.stdout).unwrap()
}

fn start_meter(location: &str, flags: &[&str]) -> Running {
    let usual = ["meter", location, "--json", "--directory", "flows"];
    let mut meter = Running::start(&[&usual[..], flags].concat(), "");
    meter.await_remark("listening");
    meter
}

/// Its records, as the program shows them.
fn records(directory: &Path) -> Vec<Value> {
    let directory = directory.join("flows").display().to_string();
    let shown = Running::start(&["flows", "show", &directory, "--json"], "").finish();
    assert_eq!(shown.code, Some(0), "{}", shown.stderr);
    shown.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn sum(records: &[Value], port: u64, column: &str) -> u64 {
    let of_port = records.iter().filter(|record| record["destinationTransportPort"] == port);
    of_port.map(|record| record[column].as_u64().unwrap()).sum()
}

/// What the meter counted is what was sent, to the packet and the byte; returns its result.
fn assert_as_sent(meter: &Finished, sent: &Value, what: &str) -> Value {
    let result = ledger(meter);
    let records = records(meter.directory.path());
    for port in PORTS {
        let of_port = |name| number(sent, &format!("/{port}/{name}"));
        let (packets, bytes) = (of_port("packets"), of_port("bytes"));
        assert_eq!(sum(&records, port, "packetDeltaCount"), packets, "{what}, port {port}: packets");
        assert_eq!(sum(&records, port, "octetDeltaCount"), bytes, "{what}, port {port}: bytes");
        let frames = bytes + 14 * packets;
        assert_eq!(sum(&records, port, "layer2OctetDeltaCount"), frames, "{what}, port {port}: frames");
    }
    assert!(records.iter().all(|record| record["observedMerge"] == false), "{what}");
    result
}

/// What the interface counted is explained: arrived = delivered + dropped, in packets on the wire.
fn assert_balanced(result: &Value, what: &str) {
    assert_eq!(result["arrival"]["holds"], true, "{what}: {result}");
    let capture = |name: &str| number(result, &format!("/ledger/capture/{name}"));
    let dropped = capture("ring_dropped") + capture("driver_dropped");
    assert_eq!(capture("arrived") + capture("sent"), capture("delivered") + dropped, "{what}");
}

#[test]
fn meter_counts_wire_packets_despite_offloads() {
    let Some(lab) = hosts() else { return };
    for (cuts, merges) in [("on", "on"), ("on", "off"), ("off", "on"), ("off", "off")] {
        let what = format!("sender's offloads {cuts}, merging {merges}");
        switch(&lab, cuts, merges);
        let mut meters = [
            start_meter(&lab.location(0), &["--direction", "both"]),
            start_meter(&lab.location(1), &["--direction", "in", "--workers", "2"]),
        ];
        let sent = send(&lab);
        for meter in &mut meters {
            meter.signal(Signal::TERM);
        }
        let [near, far] = meters.map(Running::finish);
        let (near, far) = (assert_as_sent(&near, &sent, &what), assert_as_sent(&far, &sent, &what));
        assert_balanced(&near, &what);
        assert_balanced(&far, &what);
        assert!(number(&near, "/ledger/capture/sent") > 0, "{near}");
        let merged = |result: &Value| number(result, "/ledger/packets/merged");
        assert_eq!(merged(&near) > 0, cuts == "on", "{what}: {near}");
        assert!(cuts == "off" || merged(&far) > 0, "{what}: {far}");
        assert!(merges == "on" || cuts == "on" || merged(&far) == 0, "{what}: {far}");
    }
}

#[test]
fn xdp_meter_sees_packets_as_on_wire() {
    if !skip::may_use_bpf(xdp::bpf_obstacle().map_or(Ok(()), Err)) {
        return;
    }
    let Some(lab) = hosts() else { return };
    switch(&lab, "on", "on");
    for source in ["xdp", "headers"] {
        let mut meter = start_meter(&lab.location(1), &["--source", source]);
        let sent = send(&lab);
        meter.signal(Signal::TERM);
        let result = assert_as_sent(&meter.finish(), &sent, source);
        assert_balanced(&result, source);
        assert_eq!(number(&result, "/ledger/packets/merged"), 0, "{source}");
    }
}

#[test]
fn tap_device_meter_splits_or_marks_merged_packets() {
    let Some(lab) = hosts() else { return };
    let mut tap = python(&lab, 0, &["tap", "tap0"]);
    tap.await_printed("ready");
    let location = format!("{}/tap0", lab.ports()[0].namespace());
    let mut meter = start_meter(&location, &["--direction", "in"]);
    tap.signal(Signal::USR1);
    tap.await_printed("sent");
    meter.signal(Signal::TERM);
    let meter = meter.finish();
    let result = ledger(&meter);
    assert_balanced(&result, "tap");
    let records = records(meter.directory.path());
    let counts = |port| (sum(&records, port, "packetDeltaCount"), sum(&records, port, "octetDeltaCount"));
    assert_eq!((counts(6001), counts(6002)), ((100, 97_800), (10, 95_280)));
    for record in &records {
        let is_marked = record["destinationTransportPort"] == 6002;
        assert!(record["observedMerge"] == is_marked || record["protocolIdentifier"] != 17, "{record}");
    }
    assert_eq!(number(&result, "/ledger/packets/unsplit"), 10);
    let flows = meter.directory.path().join("flows").display().to_string();
    let stats = Running::start(&["flows", "stats", &flows], "").finish();
    assert!(
        stats
            .stdout
            .contains("records of flows with packets that were merged before they reached the meter: 1"),
        "{}",
        stats.stdout
    );
}

#[test]
fn capture_marks_merged_packets_for_its_readers() {
    let Some(lab) = hosts() else { return };
    switch(&lab, "on", "on");
    let location = lab.location(1);
    let capture = |file| {
        let usual = ["capture", location.as_str(), "--direction", "in", "--write", file];
        let mut capture = Running::start(&usual, "");
        capture.await_remark("listening");
        capture
    };
    let mut captures = [capture("a.pcapng"), capture("a.pcap")];
    let sent = send(&lab);
    for capture in &mut captures {
        capture.signal(Signal::INT);
    }
    let [ng, classic] = captures.map(Running::finish);
    for (finished, words) in [(&ng, "each has a comment"), (&classic, "the file does not say which")] {
        assert!(finished.stdout.contains("merged from several packets"), "{}", finished.stdout);
        assert!(finished.stdout.contains(words), "{}", finished.stdout);
    }
    let file = |finished: &Finished, name| finished.directory.path().join(name).display().to_string();
    let meter = |path: &str| Running::start(&["meter", path, "--json", "--directory", "flows"], "").finish();
    let marked = meter(&file(&ng, "a.pcapng"));
    let result = assert_as_sent(&marked, &sent, "pcapng");
    assert_eq!(result["ledger"]["capture"]["arrived"], result["ledger"]["capture"]["delivered"]);
    // Without the comments the merged packets can only be marked.
    let unmarked = meter(&file(&classic, "a.pcap"));
    let result = ledger(&unmarked);
    assert!(number(&result, "/ledger/packets/unsplit") > 0, "{result}");
    assert!(result["remarks"].to_string().contains("packets longer than 1522 B: "), "{result}");
    let records = records(unmarked.directory.path());
    assert!(records.iter().any(|record| record["observedMerge"] == true), "{records:?}");
    for path in [file(&ng, "a.pcapng"), file(&classic, "a.pcap")] {
        let (tx, rx) = (lab.location(0), lab.location(1));
        let replay = Running::replay(Path::new(&path), &["--tx", &tx, "--rx", &rx]).finish();
        replay.assert_refused(3, &["a card or the kernel merged", "gro off lro off tso off gso off"]);
    }
}
