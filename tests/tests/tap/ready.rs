//! The line that a tap prints when it forwards: what is sent after it passes, and it does not come before that.

use crate::testbed::{Testbed, many, stop, udp};
use packetrig_tests::program::Running;
use packetrig_tests::station::Station;

const READY: &str = "forwarding with back end";

/// Starts a tap between stations 0 and 1 and does not wait.
fn begin(testbed: &Testbed, way: &str) -> Running {
    let (a, b) = (testbed.side(0), testbed.side(1));
    Running::start(&["tap", &a, &b, "--back-end", way, "--json", "--no-link-state"], "")
}

#[test]
fn frames_sent_after_ready_line_pass() {
    for way in ["xdp", "packet"] {
        for _ in 0..3 {
            let Some(testbed) = Testbed::new(way, 2) else { continue };
            let mut listeners = [testbed.listen(0), testbed.listen(1)];
            // Open before the line comes: nothing is between the line and the first frame.
            let mut stations = [testbed.station(0), testbed.station(1)];
            let frames = many(100, 60);
            let mut tap = begin(&testbed, way);
            tap.await_remark(READY);
            for station in &mut stations {
                station.send(&frames);
            }
            for listener in &mut listeners {
                assert_eq!(listener.hear(100).len(), 100, "{way}");
            }
            stop(tap);
        }
    }
}

#[test]
fn tap_without_carrier_is_not_ready() {
    for way in ["xdp", "packet"] {
        let Some(testbed) = Testbed::new(way, 2) else { continue };
        testbed.switch_interface(1, false);
        let mut tap = begin(&testbed, way);
        tap.await_remark("not ready");
        assert!(tap.remarks().contains(&testbed.side(1)), "{way}: {}", tap.remarks());
        assert!(!tap.remarks().contains(READY), "{way}: {}", tap.remarks());
        testbed.switch_interface(1, true);
        let mut station: Station = testbed.station(0);
        let mut listener = testbed.listen(1);
        tap.await_remark(READY);
        station.send(&[udp(7, 9, 60)]);
        assert_eq!(listener.hear(1).len(), 1, "{way}");
        stop(tap);
    }
}
