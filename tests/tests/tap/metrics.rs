//! What a tap tells Prometheus while it runs.

use crate::testbed::{Testbed, many, stop};
use packetrig_tests::scraping;

fn check_metrics(way: &str) {
    let Some(testbed) = Testbed::new(way, 2) else { return };
    let mut tap = testbed.tap(way, &["--metrics", "127.0.0.1:0"]);
    let address = scraping::await_metrics(&mut tap);
    testbed.send(0, &many(30, 100));
    let side = testbed.side(0);
    let line = format!("packetrig_tap_received_frames_total{{from=\"{side}\"}} 30");
    let text = scraping::await_line(&address, &line);
    for line in [
        format!("packetrig_tap_forwarded_frames_total{{from=\"{side}\"}} 30"),
        format!("packetrig_tap_dropped_frames_total{{from=\"{side}\",cause=\"ring\"}} 0"),
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    stop(tap);
}

#[test]
fn tap_in_kernel_serves_metrics() {
    check_metrics("xdp");
}

#[test]
fn tap_in_process_serves_metrics() {
    check_metrics("packet");
}
