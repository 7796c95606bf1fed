//! The rig's own limits, and runs that come near them.

use super::document;
use packetrig_testkit::Lab;
use packetrig_tests::document::Flow;
use packetrig_tests::program::Running;
use packetrig_tests::skip;
use serde_json::json;

#[test]
fn a_run_above_the_calibrated_limit_names_it() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let store = tempfile::tempdir().unwrap();
    let store = store.path().to_str().unwrap();
    let (tx, rx) = (lab.location(0), lab.location(1));
    let calibrate = ["test", "calibrate", "--tx", &tx, "--rx", &rx, "--back-end", "packet", "--size", "64"];
    let short = ["--time", "100ms", "--repeats", "1", "--store", store];
    let calibrated = Running::start(&[&calibrate[..], &short].concat(), "").finish();
    assert_eq!(calibrated.code, Some(0), "{}", calibrated.stderr);
    assert!(calibrated.stdout.contains("zero-loss frames/s"), "{}", calibrated.stdout);

    let run = |pps| {
        let duration = json!({"choice": "fixed_seconds", "fixed_seconds": {"seconds": 0.3}});
        let flow = Flow::new("f", 1).size(64).pps(pps).with("duration", duration);
        let speed = json!([{"name": "any", "port_names": ["port 0", "port 1"], "speed": "speed_400_gbps"}]);
        let document = document(&lab).flow(flow).with("layer1", speed);
        let arguments = ["run", "{plan}", "--quiet", "--out", "{out}", "--store", store];
        Running::start(&arguments, &document.text()).finish().report()
    };
    let near = |report: &packetrig_tests::program::Report| {
        let caveats = report.0["caveats"].as_array().unwrap().clone();
        caveats.into_iter().find(|caveat| caveat["doubt"] == "near_limit")
    };
    let report = run(30_000_000);
    let caveat = near(&report).unwrap();
    assert!(caveat["text"].as_str().unwrap().contains("this rig's own limit is"), "{caveat}");
    assert_eq!(near(&run(1_000)), None);
}
