//! Capture files.

use super::captured;
use packetrig_sys::xdp;
use packetrig_testkit::Lab;
use packetrig_testkit::lab::LabPort;
use packetrig_tests::document::{Document, Flow, ethernet, ipv4};
use packetrig_tests::program::Running;
use packetrig_tests::{skip, tools};
use serde_json::json;

#[test]
fn both_formats_are_read_whole_by_both_readers() {
    for format in ["pcap", "pcapng"] {
        let Some(finished) = captured(Flow::new("f", 1).packets(250).size(100), format) else { return };
        let file = finished.capture();
        let frames =
            tools::tshark(&file, &["frame.len", "frame.cap_len", "eth.fcs.status", "frame.time_epoch"]);
        assert_eq!(frames.len(), 250, "{format}");
        // Length as in the plan, and the check sequence is right.
        assert!(frames.iter().all(|f| f[..3] == ["100", "100", "1"]), "{format}: {:?}", frames[0]);
        let times: Vec<f64> = frames.iter().map(|f| f[3].parse().unwrap()).collect();
        assert!(times.is_sorted() && times[0] > 1_600_000_000.0, "{format}: {times:?}");
        if skip::has_tool("tcpdump") {
            assert_eq!(tools::tcpdump_count(&file), 250, "{format}");
        }
    }
}

#[test]
fn an_empty_capture_is_a_valid_file() {
    for format in ["pcap", "pcapng"] {
        // What the first port receives: nothing.
        let flow = Flow::new("f", 1).between(1, &[0]);
        let Some(finished) = captured(flow, format) else { return };
        assert_eq!(tools::tshark(&finished.capture(), &["frame.number"]).len(), 0, "{format}");
    }
}

/// 100 frames with VLAN 100 or 101 and source ports 1000 to 1003 in turn.
fn tagged(receivers: &[usize]) -> Flow {
    let counting = |start: u32, count: u32| json!({"choice": "increment", "increment": {"start": start, "step": 1, "count": count}});
    Flow::new("f", 1).between(0, receivers).packet([
        ethernet(1),
        json!({"choice": "vlan", "vlan": {"id": counting(100, 2)}}),
        ipv4(),
        json!({"choice": "udp", "udp": {"src_port": counting(1000, 4)}}),
    ])
}

/// Untagged ones with the same source ports.
fn untagged(receivers: &[usize]) -> Flow {
    let ports = json!({"choice": "increment", "increment": {"start": 1000, "step": 1, "count": 4}});
    let udp = json!({"choice": "udp", "udp": {"src_port": ports}});
    Flow::new("g", 2).between(0, receivers).packet([ethernet(2), ipv4(), udp])
}

#[test]
fn plan_capture_filter_matches_display_filter() {
    if !skip::has_tool("tshark") {
        return;
    }
    // A source port: 16 bits from bit 272 of an untagged frame.
    let port = |value: &str, mask: &str, negate: bool| json!({"choice": "custom", "custom": {"offset": 272, "bit_length": 16, "value": value, "mask": mask, "negate": negate}});
    let vlan = json!({"choice": "vlan", "vlan": {"id": {"value": "64"}}});
    let protocol = json!({"choice": "ipv4", "ipv4": {"protocol": {"value": "11"}}});
    let ttl = json!({"choice": "ipv4", "ipv4": {"time_to_live": {"value": "11", "negate": true}}});
    let cases = [
        (json!([port("3e9", "0", false)]), "udp.srcport == 1001 && !vlan", 25),
        (json!([port("0", "fffe", false), protocol]), "udp.srcport in {1000, 1002} && !vlan", 50),
        (json!([vlan, port("3e9", "0", true), ttl]), "vlan.id == 100", 50),
    ];
    for (filters, display, wanted) in cases {
        for (back_end, receivers) in [("packet", &[1][..]), ("packet", &[]), ("xdp", &[1]), ("xdp", &[])] {
            if back_end == "xdp" && !skip::may_use_bpf(xdp::bpf_obstacle().map_or(Ok(()), Err)) {
                continue;
            }
            let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
            let locations: Vec<String> = lab.ports().iter().map(LabPort::location).collect();
            let capture =
                json!([{"name": "c", "port_names": ["port 1"], "format": "pcapng", "filters": filters}]);
            let flows = [tagged(receivers), untagged(receivers)];
            let document = Document::new(&locations).flows(flows).with("captures", capture);
            let finished = Running::run(&document, &["--quiet", "--back-end", back_end]).finish();
            let is_inconclusive = finished.code == Some(7);
            assert_eq!(is_inconclusive, receivers.is_empty(), "{}{}", finished.stdout, finished.stderr);
            let file = finished.capture();
            let all = tools::tshark(&file, &["frame.number"]).len();
            let shown = tools::tshark_shown(&file, display);
            assert_eq!((all, shown), (wanted, wanted), "{display} with receivers {receivers:?}");
            let report = finished.report().0;
            // Where nothing else looks at the frames, the kernel keeps back what does not pass; a socket's filter cannot judge
            // tagged ones.
            let seen = report["ports"][1]["rx"]["seen"].as_u64().unwrap();
            let untagged = if display.contains("!vlan") { wanted as u64 } else { 0 };
            assert_eq!(
                seen,
                match (back_end, receivers.is_empty()) {
                    (_, false) => 200,
                    ("xdp", true) => wanted as u64,
                    _ => 100 + untagged,
                },
                "{back_end}"
            );
            let captures = &report["captures"][0];
            assert_eq!((&captures["written"], &captures["dropped"]), (&json!(wanted), &json!(0)));
        }
    }
}
