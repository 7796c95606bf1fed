//! What the program reports is what the reference device did, frame for frame.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod back_ends;
mod engines;
mod faults;
mod many;
mod replays;
mod rewrites;

use packetrig_testkit::Lab;
use packetrig_testkit::device::{DeviceReport, ExpectedCounts, FaultPlan, FaultRule, FrameClassifier};
use packetrig_tests::document::{Document, Flow};
use packetrig_tests::judged_run::LONG_DRAIN;
use packetrig_tests::program::{Report, Running};
use packetrig_tests::skip;
use serde_json::Value;

/// Runs flows from port 0 to port 1 through a device with these rules; `None` without rights.
fn through(rules: Vec<FaultRule>, flows: Vec<Flow>) -> Option<(Report, DeviceReport)> {
    through_on("packet", rules, flows)
}

/// The same on a back end; `None` also where it cannot run.
fn through_on(back_end: &str, rules: Vec<FaultRule>, flows: Vec<Flow>) -> Option<(Report, DeviceReport)> {
    let plan = FaultPlan {
        seed: 4711,
        classifier: FrameClassifier::SourceMac,
        rules,
        ..FaultPlan::without_faults()
    };
    let mut lab = skip::lab(|| Lab::with_device(2, plan))?;
    let document = Document::new(&[lab.location(0), lab.location(1)]).flows(flows);
    if back_end != "packet" && !skip::may_use_bpf(lab.enable_live_frames()) {
        return None;
    }
    let finished =
        Running::run(&document, &["--quiet", "--back-end", back_end, "--drain", LONG_DRAIN]).finish();
    let device = lab.stop_device().unwrap();
    assert_eq!(device.own_losses, 0, "the device lost frames by itself: its truth is not the whole truth");
    Some((finished.report(), device))
}

/// The accounts as the program reports them.
fn found(report: &Report, stream: &str) -> ExpectedCounts {
    found_in_row(report.stream(stream))
}

/// The same from the row of a stream.
fn found_in_row(row: &Value) -> ExpectedCounts {
    let number = |path: &str| {
        let found = row.pointer(path).and_then(Value::as_u64);
        found.unwrap_or_else(|| panic!("no number at {path} in {row}"))
    };
    ExpectedCounts {
        sent: number("/sent/frames"),
        unique: number("/received/sequence/unique"),
        lost: number("/loss/lost"),
        loss_bursts: number("/received/sequence/loss_bursts"),
        longest_burst: number("/received/sequence/longest_burst"),
        duplicates: number("/received/sequence/duplicates"),
        reordered: number("/received/sequence/reordered"),
        max_extent: number("/received/sequence/max_extent"),
        corrupt: number("/received/corrupt"),
        altered: number("/received/altered"),
    }
}

/// Asserts that the program found what happened to the frames with `key`, and that something did if `faulty`.
fn assert_found(report: &Report, stream: &str, truth: &DeviceReport, key: u32) -> ExpectedCounts {
    let wanted = truth.truth(0, key).expected_counts();
    assert_eq!(found(report, stream), wanted, "stream {stream}");
    assert_eq!(report.0["imbalances"], serde_json::json!([]), "stream {stream}");
    wanted
}
