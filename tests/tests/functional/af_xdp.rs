//! Sending through AF_XDP, and what is sent so without being asked.

use super::{await_traffic, document};
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::xdp;
use packetrig_testkit::Lab;
use packetrig_tests::at_once::for_all;
use packetrig_tests::document::{Document, Flow};
use packetrig_tests::program::{Report, Running};
use packetrig_tests::recording::{captured, mixture, stored};
use packetrig_tests::skip;
use rustix::process::Signal;
use serde_json::{Value, json};

/// A lab, if BPF programs may be loaded.
fn lab(make: impl FnOnce() -> Result<Lab, packetrig_testkit::device::Error>) -> Option<skip::OwnLab> {
    if !skip::may_use_bpf(xdp::bpf_obstacle().map_or(Ok(()), Err)) {
        return None;
    }
    skip::lab(make)
}

fn large() -> Value {
    json!([{"name": "any", "port_names": ["port 0", "port 1"], "speed": "speed_400_gbps", "mtu": 9000}])
}

fn run(lab: &Lab, flow: Flow, back_end: &str) -> Report {
    let document = document(lab).flow(flow).with("layer1", large());
    Running::run(&document, &["--quiet", "--back-end", back_end]).finish().report()
}

fn assert_all_arrived(report: &Report) {
    assert_arrived_but(report, 0);
}

/// All frames arrived once, whole and in order, but those that the report says our own receive ring had no room for.
fn assert_arrived_but(report: &Report, in_our_ring: u64) {
    for account in ["imbalances", "unchecked"] {
        assert_eq!(report.0[account], json!([]), "{account}");
    }
    let sent = report.number("f", "/sent/frames");
    let arrived = report.number("f", "/received/sequence/unique");
    assert_eq!(arrived + in_our_ring, sent, "{}", report.0["caveats"]);
    for none in ["/received/sequence/duplicates", "/received/sequence/reordered", "/received/corrupt"] {
        assert_eq!(report.number("f", none), 0, "{none}");
    }
    assert_eq!(report.number("f", "/received/altered"), 0);
}

fn assert_ran(report: &Report, back_end: &str, words: &[&str]) {
    let info = &report.0["ports"][0]["info"];
    assert_eq!(info["back_end"], back_end, "{info}");
    for word in words {
        assert!(info["why"].as_str().unwrap().contains(word), "no `{word}` in {info}");
    }
}

#[test]
fn the_same_bytes_leave_as_through_rings() {
    let frames = mixture(1200, 100_000);
    let recorded: Vec<Vec<u8>> = frames.iter().map(|frame| frame.bytes.clone()).collect();
    for back_end in ["packet", "af-xdp"] {
        let Some(lab) = lab(Lab::cabled_pair) else { return };
        let (_directory, file) = stored(&frames);
        let (tx, rx) = (lab.location(0), lab.location(1));
        let flags = ["--tx", &tx, "--rx", &rx, "--capture", "--no-tag", "--back-end", back_end];
        let finished = Running::replay(&file, &flags).finish();
        assert_eq!(captured(&finished.capture()), recorded, "{back_end}");
    }
}

#[test]
fn long_frames_fall_back_to_af_xdp() {
    for_all(&[3304, 3305, 4100, 9000], |&size| {
        let Some(lab) = lab(Lab::cabled_pair) else { return };
        let report = run(&lab, Flow::new("f", 1).size(size).pps(5000).packets(2000), "xdp");
        report.assert_clean();
        assert_all_arrived(&report);
        if size == 3304 {
            assert_ran(&report, "xdp", &["requested"]);
        } else {
            assert_ran(&report, "af-xdp", &["AF_XDP (copy)", "flows[0]", "have room for 3300"]);
        }
    });
}

#[test]
fn peer_refusing_live_frames_gets_af_xdp() {
    let Some(lab) = lab(|| Lab::with_bridge(2)) else { return };
    let report = run(&lab, Flow::new("f", 1).size(500).pps(5000).packets(2000), "xdp");
    report.assert_clean();
    assert_ran(&report, "af-xdp", &["the other end of its cable, does not accept them"]);
}

/// Faster than the receiver takes them: its queue is full all the time.
#[test]
fn a_full_queue_loses_nothing() {
    let Some(lab) = lab(Lab::cabled_pair) else { return };
    for (size, count) in [(64, 300_000), (9000, 60_000)] {
        let report = run(&lab, Flow::new("f", 1).size(size).pps(5_000_000).packets(count), "af-xdp");
        assert_ran(&report, "af-xdp", &["requested", "AF_XDP (copy)"]);
        assert_eq!(report.number("f", "/sent/frames"), count);
        // On a busy machine the receiver is too slow for this load. That is no loss of the sender's queue.
        let in_our_ring = report.0["ports"][1]["rx"]["ring_dropped"].as_u64().unwrap();
        assert_arrived_but(&report, in_our_ring);
    }
}

#[test]
fn af_xdp_run_follows_stopped_run_immediately() {
    for_all(&[(); 3], |()| {
        let Some(lab) = lab(Lab::cabled_pair) else { return };
        let endless = Flow::new("f", 1).pps(50_000).with("duration", json!({"choice": "continuous"}));
        let mut running = Running::run(&document(&lab).flow(endless), &["--quiet", "--back-end", "af-xdp"]);
        await_traffic(&lab);
        running.signal(Signal::INT);
        let report = running.finish().report();
        assert!(report.number("f", "/sent/frames") >= 100);
        assert_all_arrived(&report);
        let report = run(&lab, Flow::new("f", 1).packets(500), "af-xdp");
        report.assert_clean();
        assert_eq!(report.number("f", "/sent/frames"), 500);
    });
}

#[test]
fn live_frames_are_used_where_peer_accepts() {
    let Some(mut lab) = lab(|| Lab::with_bridge(2)) else { return };
    lab.enable_live_frames().unwrap();
    let report = run(&lab, Flow::new("f", 1).size(500).pps(5000).packets(2000), "xdp");
    report.assert_clean();
    assert_ran(&report, "xdp", &["requested"]);
}

/// A bridge has no XDP of its own: programs run in the kernel's generic path, and no live frame leaves through it.
#[test]
fn interface_without_native_xdp_uses_generic_path() {
    let Some(lab) = lab(Lab::cabled_pair) else { return };
    let port = &lab.ports()[1];
    let mut links = NamespaceLinks::open_in(port.netns()).unwrap();
    links.create_bridge("br0").unwrap();
    let bridge = links.find_link_by_name("br0").unwrap().index;
    links.set_master(port.link.index, Some(bridge)).unwrap();
    links.switch_interface(bridge, true).unwrap();
    let bridge = format!("{}/br0", port.namespace());
    for ends in [[lab.location(0), bridge.clone()], [bridge, lab.location(0)]] {
        let flow = Flow::new("f", 1).size(300).pps(5000).packets(2000);
        let document = Document::new(&ends).flow(flow);
        let report = Running::run(&document, &["--quiet", "--back-end", "xdp"]).finish().report();
        report.assert_clean();
        assert_all_arrived(&report);
        let of_bridge = report.0["ports"]
            .as_array()
            .unwrap()
            .iter()
            .find(|port| port["info"]["location"].as_str().unwrap().ends_with("/br0"));
        let info = &of_bridge.unwrap()["info"];
        assert!(
            info["why"].as_str().unwrap().contains("XDP receives in the kernel's generic path"),
            "{info}"
        );
        assert_eq!(info["rx_stamp"], "software");
    }
}
