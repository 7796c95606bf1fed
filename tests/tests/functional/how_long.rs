//! Durations of every kind, and runs that are stopped.

use super::{await_traffic, document};
use packetrig_testkit::Lab;
use packetrig_tests::document::Flow;
use packetrig_tests::program::{Finished, Running, run};
use packetrig_tests::skip;
use rustix::process::Signal;
use serde_json::json;

#[test]
fn duration_kinds_send_their_frame_counts() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let between =
        |gap| json!({"choice": "burst", "burst": {"bursts": 5, "packets": 40, "inter_burst_gap": gap}});
    let durations = [
        ("packets", json!({"choice": "fixed_packets", "fixed_packets": {"packets": 321}}), 321),
        ("seconds", json!({"choice": "fixed_seconds", "fixed_seconds": {"seconds": 1}}), 1000),
        ("bursts, ns", between(json!({"choice": "nanoseconds", "nanoseconds": 1_000_000})), 200),
        ("bursts, us", between(json!({"choice": "microseconds", "microseconds": 2_000})), 200),
        ("bursts, bytes", between(json!({"choice": "bytes", "bytes": 10_000})), 200),
        (
            "after a delay",
            json!({"choice": "fixed_packets", "fixed_packets": {"packets": 10, "delay": {"choice": "microseconds", "microseconds": 300_000}}}),
            10,
        ),
    ];
    let flows = (1u16..)
        .zip(&durations)
        .map(|(key, (name, duration, _))| Flow::new(*name, key).with("duration", duration.clone()));
    let speed = json!([{"name": "l1", "port_names": ["port 0", "port 1"], "speed": "speed_1_gbps"}]);
    let report = run(&document(&lab).flows(flows).with("layer1", speed)).report();
    for (name, _, frames) in &durations {
        assert_eq!(report.number(name, "/sent/planned"), *frames, "{name}");
        assert_eq!(
            report.number(name, "/received/sequence/unique"),
            report.number(name, "/sent/frames"),
            "{name}"
        );
    }
    // Never early: the delay holds whatever the machine is doing.
    assert!(report.number("after a delay", "/sent/first") >= 300_000_000);
}

#[test]
fn a_slow_stream_keeps_its_schedule() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let flow = Flow::new("slow", 1).with("rate", json!({"choice": "pps", "pps": 2})).packets(4);
    let report = run(&document(&lab).flow(flow)).report();
    report.assert_clean();
    let span = report.number("slow", "/sent/last") - report.number("slow", "/sent/first");
    // Three intervals of half a second, less what the first frame itself was late.
    assert!(span > 1_000_000_000, "{span} ns");
}

/// An endless plan, ended by Ctrl-C once traffic flows.
fn interrupted(lab: &Lab) -> Finished {
    let flow = Flow::new("endless", 1).with("duration", json!({"choice": "continuous"}));
    let mut running = Running::run(&document(lab).flow(flow), &["--quiet"]);
    await_traffic(lab);
    running.signal(Signal::INT);
    running.finish()
}

/// Whether the sender was behind when it was stopped, so that frames that were due are missing: the machine was busy,
/// and the program is right to say so.
fn was_behind(finished: &Finished) -> bool {
    let report = finished.report();
    let caveats = report.0["caveats"].as_array().unwrap();
    let doubts: Vec<_> = caveats.iter().filter(|caveat| caveat["matters"] == true).collect();
    let only_behind = !doubts.is_empty() && doubts.iter().all(|caveat| caveat["doubt"] == "sender_short");
    finished.code == Some(7) && only_behind
}

#[test]
fn endless_plan_is_reported_after_ctrl_c() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let finished = (0..10).map(|_| interrupted(&lab)).find(|finished| !was_behind(finished));
    let finished = finished.expect("a machine that is in time once in ten runs");
    let report = finished.report();
    report.assert_clean();
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert!(report.number("endless", "/sent/frames") >= 100);
    assert_eq!(
        report.number("endless", "/sent/frames"),
        report.number("endless", "/received/sequence/unique")
    );
}

#[test]
fn interrupted_run_is_reported_and_does_not_pass() {
    for signal in [Signal::INT, Signal::TERM] {
        let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
        let flow = Flow::new("long", 1).packets(1_000_000);
        let mut running = Running::run(&document(&lab).flow(flow), &["--quiet"]);
        await_traffic(&lab);
        running.signal(signal);
        let finished = running.finish();
        assert_eq!(finished.code, Some(130), "{}", finished.stderr);
        let report = finished.report();
        let (sent, planned) = (report.number("long", "/sent/frames"), report.number("long", "/sent/planned"));
        assert!((100..1_000_000).contains(&sent) && sent <= planned);
        assert_eq!(report.number("long", "/received/sequence/unique"), sent);
        assert_ne!(report.verdict(), "PASS");
    }
}
