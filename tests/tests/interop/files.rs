//! Capture files.

use super::captured;
use packetrig_tests::document::Flow;
use packetrig_tests::{skip, tools};

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
