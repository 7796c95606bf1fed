//! Traffic through a router, Linux itself, without a document: `--gateway` and the other flags of emulated hosts.

use packetrig_sys::kernel;
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::xdp;
use packetrig_testkit::Lab;
use packetrig_tests::hosts;
use packetrig_tests::program::{Finished, Running};
use packetrig_tests::recording::{Recorded, stored, udp};
use packetrig_tests::skip::{self, OwnLab};

/// Two ports, and a router between them with the first address of each network.
fn routed_lab() -> Option<OwnLab> {
    let lab = skip::lab(|| Lab::with_unconnected_ports(2))?;
    let router = hosts::between(&lab).unwrap();
    for (key, value) in [
        ("net/ipv4/ip_forward", "1"),
        // Its addresses are of use at once: it solicits nobody from one that is still tentative.
        ("net/ipv6/conf/port0/accept_dad", "0"),
        ("net/ipv6/conf/port1/accept_dad", "0"),
        ("net/ipv6/conf/port0/disable_ipv6", "0"),
        ("net/ipv6/conf/port1/disable_ipv6", "0"),
        ("net/ipv6/conf/all/forwarding", "1"),
    ] {
        kernel::write_setting(router, key, value).unwrap();
    }
    let mut links = NamespaceLinks::open_in(router).unwrap();
    for side in 0..2 {
        let port = links.find_link_by_name(&format!("port{side}")).unwrap().index;
        links.add_address(port, format!("10.0.{side}.1").parse().unwrap(), 24).unwrap();
        links.add_address(port, format!("fd00:{side}::1").parse().unwrap(), 64).unwrap();
    }
    Some(lab)
}

fn through(lab: &Lab, command: &[&str], flags: &[&str]) -> Finished {
    let [tx, rx] = [0, 1].map(|port| lab.location(port));
    let ends = ["--tx", &tx, "--rx", &rx, "--out", "{out}", "--store", "{out}-store", "--quiet"];
    Running::start(&[command, &ends, flags].concat(), "").finish()
}

/// Sends 300 frames each way, of which none may be lost or count as altered.
fn assert_routed(lab: &Lab, flags: &[&str], streams: &[&str]) {
    let frames = ["--packets", "300", "--max-late", "5s", "--max-altered", "0%"];
    let finished = through(lab, &["run"], &[&frames, flags].concat());
    let report = finished.report();
    report.assert_clean();
    assert_eq!(report.0["streams"].as_array().unwrap().len(), streams.len(), "{flags:?}");
    for stream in streams {
        assert_eq!(report.number(stream, "/received/sequence/unique"), 300, "{flags:?}");
        assert_eq!(report.number(stream, "/received/altered"), 0, "{flags:?}");
    }
}

#[test]
fn router_is_found_by_arp_and_discovery() {
    let Some(lab) = routed_lab() else { return };
    for (gateway, src, dst) in [("10.0.0.1", "10.0.0.2", "10.0.1.2"), ("fd00::1", "fd00::2/64", "fd00:1::2")]
    {
        assert_routed(&lab, &["--gateway", gateway, "--src-ip", src, "--dst-ip", dst], &["stream"]);
    }
}

#[test]
fn live_frames_pass_the_router() {
    let Some(mut lab) = routed_lab() else { return };
    if !skip::may_use_bpf(xdp::bpf_obstacle().map_or(Ok(()), Err)) {
        return;
    }
    lab.enable_live_frames().unwrap();
    let ends = ["--src-ip", "10.0.0.2", "--dst-ip", "10.0.1.2", "--both-ways", "--back-end", "xdp"];
    let flags = [&ends[..], &["--gateway", "10.0.0.1", "--rx-gateway", "10.0.1.1"]].concat();
    assert_routed(&lab, &flags, &["stream: sender > receiver", "stream: receiver > sender"]);
}

#[test]
fn both_ways_lead_through_the_router() {
    let Some(lab) = routed_lab() else { return };
    let ends = ["--src-ip", "10.0.0.2", "--dst-ip", "10.0.1.2", "--both-ways"];
    let flags = [&ends[..], &["--gateway", "10.0.0.1", "--rx-gateway", "10.0.1.1"]].concat();
    assert_routed(&lab, &flags, &["stream: sender > receiver", "stream: receiver > sender"]);
}

#[test]
fn given_mac_address_needs_no_gateway() {
    let Some(lab) = routed_lab() else { return };
    let mut links = NamespaceLinks::open_in(hosts::between(&lab).unwrap()).unwrap();
    let mac = links.find_link_by_name("port0").unwrap().mac.unwrap();
    let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
    assert_routed(&lab, &["--dst-mac", &mac, "--src-ip", "10.0.0.2", "--dst-ip", "10.0.1.2"], &["stream"]);
}

#[test]
fn both_ways_need_no_router_on_a_bridge() {
    let Some(lab) = skip::lab(|| Lab::with_bridge(2)) else { return };
    assert_routed(&lab, &["--both-ways"], &["stream: sender > receiver", "stream: receiver > sender"]);
    assert_routed(&lab, &["--src-ip", "fd00::2", "--dst-ip", "fd00::3"], &["stream"]);
}

#[test]
fn missing_gateway_is_named() {
    let Some(lab) = routed_lab() else { return };
    let flags = ["--gateway", "10.0.0.99", "--src-ip", "10.0.0.2", "--dst-ip", "10.0.1.2"];
    through(&lab, &["run"], &flags).assert_refused(4, &["10.0.0.99 does not answer", "tx interface"]);
    through(&lab, &["run"], &flags[2..]).assert_refused(2, &["10.0.1.2 is not in the network", "--gateway"]);
}

#[test]
fn replay_goes_through_the_router() {
    let Some(lab) = routed_lab() else { return };
    let frames: Vec<Recorded> =
        (0..300).map(|n| Recorded { at: n * 1_000_000, bytes: udp(1, n, 200) }).collect();
    let (_directory, file) = stored(&frames);
    let [tx, rx] = [0, 1].map(|port| lab.location(port));
    // From 10.1.2.3 to 10.9.8.7, which is the receiver's host now.
    let map = "10.1.2.0/24=10.0.0.0/24,10.9.8.0/24=10.0.1.0/24";
    let hosts = ["--gateway", "10.0.0.1", "--src-ip", "10.0.0.3", "--dst-ip", "10.0.1.7"];
    let ends = ["--tx", &tx, "--rx", &rx, "--map-ip", map];
    let report = Running::replay(&file, &[&ends[..], &hosts].concat()).finish().report();
    report.assert_clean();
    assert_eq!(report.number("replay", "/received/sequence/unique"), 300);
}

#[test]
fn methods_measure_the_router() {
    let Some(lab) = routed_lab() else { return };
    let search = ["--max-rate", "2kpps", "--time", "300ms", "--resolution", "20%"];
    let ends = ["--gateway", "10.0.0.1", "--src-ip", "10.0.0.2", "--dst-ip", "10.0.1.2"];
    let finished = through(&lab, &["test", "bisect"], &[search, ends].concat());
    assert!(matches!(finished.code, Some(0 | 7)), "{finished:?}");
    let text = std::fs::read_to_string(finished.out().join("result.json")).unwrap();
    let result: serde_json::Value = serde_json::from_str(&text).unwrap();
    let carried = result.pointer("/result/lower_bound_frames_per_second").and_then(serde_json::Value::as_f64);
    // A busy machine may carry less.
    assert!(carried.is_some_and(|carried| carried > 0.0), "{carried:?} {finished:?}");
}
