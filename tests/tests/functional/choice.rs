//! The back end that a run gets when nobody insists on one.

use super::document;
use packetrig_stats::limit::RigLimit;
use packetrig_stats::port::BackEnd;
use packetrig_store::RunCatalogue;
use packetrig_sys::{kernel, xdp};
use packetrig_testkit::Lab;
use packetrig_tests::document::Flow;
use packetrig_tests::program::{Report, Running};
use packetrig_tests::skip;
use packetrig_units::Nanos;
use serde_json::json;
use std::path::Path;

fn run(lab: &Lab, flow: Flow, store: &Path, more: &[&str]) -> Report {
    let speed = json!([{"name": "any", "port_names": ["port 0", "port 1"], "speed": "speed_400_gbps"}]);
    let document = document(lab).flow(flow).with("layer1", speed);
    let usual = ["run", "{plan}", "--quiet", "--out", "{out}", "--store", store.to_str().unwrap()];
    Running::start(&[&usual[..], more].concat(), &document.text()).finish().report()
}

fn slow() -> Flow {
    Flow::new("f", 1).size(64).pps(5000).packets(1000)
}

fn fast() -> Flow {
    Flow::new("f", 1).size(64).pps(400_000).packets(40_000)
}

fn chosen(report: &Report) -> [(String, String); 2] {
    [0, 1].map(|port| {
        let info = &report.0["ports"][port]["info"];
        let text = |field: &str| info[field].as_str().unwrap().to_owned();
        (text("back_end"), text("why"))
    })
}

fn assert_chosen(report: &Report, back_end: &str, words: &str) {
    for (found, why) in chosen(report) {
        assert_eq!(found, back_end, "{why}");
        assert!(why.contains(words), "no `{words}` in: {why}");
    }
}

fn limit(back_end: BackEnd, frames_per_second: u64) -> RigLimit {
    RigLimit {
        back_end,
        driver: "veth".into(),
        size: 64,
        frames_per_second,
        latency_floor: None,
        send_error_p99: None,
        clock_reading: Nanos::new(20),
        kernel: kernel::kernel_release_name(),
        measured_wall_ns: 1,
    }
}

#[test]
fn without_a_calibration_load_and_rights_decide() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let store = tempfile::tempdir().unwrap();
    assert_chosen(&run(&lab, slow(), store.path(), &[]), "packet", "the default");
    let report = run(&lab, fast(), store.path(), &[]);
    match xdp::bpf_obstacle() {
        None => assert_chosen(&report, "xdp", "the plan asks for 400000 frames/s, more than the 200000"),
        Some(_) => assert_chosen(&report, "packet", "back end xdp would be faster, but"),
    }
    assert_eq!(report.number("f", "/received/sequence/unique"), 40_000);
}

#[test]
fn a_calibration_decides_where_there_is_one() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let may_use_bpf = skip::may_use_bpf(xdp::bpf_obstacle().map_or(Ok(()), Err));
    let with = |limits: &[RigLimit], more: &[&str]| {
        let store = tempfile::tempdir().unwrap();
        let catalogue = RunCatalogue::open_or_create(store.path()).unwrap();
        for limit in limits {
            catalogue.store_limit(limit).unwrap();
        }
        drop(catalogue);
        let report = run(&lab, slow(), store.path(), more);
        report.assert_clean();
        report
    };
    let rings_win = [limit(BackEnd::Packet, 900_000), limit(BackEnd::Xdp, 800_000)];
    assert_chosen(&with(&rings_win, &[]), "packet", "as calibrated, 900000 frames/s of 64 B");
    let xdp_wins = [limit(BackEnd::Packet, 700_000), limit(BackEnd::Xdp, 800_000)];
    if may_use_bpf {
        assert_chosen(&with(&xdp_wins, &[]), "xdp", "as calibrated, 800000 frames/s of 64 B");
        let socket_wins = [limit(BackEnd::Packet, 700_000), limit(BackEnd::AfXdp, 900_000)];
        assert_chosen(&with(&socket_wins, &[]), "af-xdp", "as calibrated, 900000 frames/s of 64 B");
    } else {
        assert_chosen(&with(&xdp_wins, &[]), "packet", "back end xdp 800000, but");
    }
    // Whoever insists gets it.
    assert_chosen(&with(&xdp_wins, &["--back-end", "packet"]), "packet", "requested");
}

#[test]
fn calibration_result_decides_back_end() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    if !skip::may_use_bpf(xdp::bpf_obstacle().map_or(Ok(()), Err)) {
        return;
    }
    let store = tempfile::tempdir().unwrap();
    let (tx, rx) = (lab.location(0), lab.location(1));
    let calibrate = ["test", "calibrate", "--tx", &tx, "--rx", &rx, "--size", "64"];
    let short = ["--time", "100ms", "--repeats", "1", "--store", store.path().to_str().unwrap()];
    let calibrated = Running::start(&[&calibrate[..], &short].concat(), "").finish();
    assert_eq!(calibrated.code, Some(0), "{}", calibrated.stderr);
    let limits = RunCatalogue::open_or_create(store.path())
        .unwrap()
        .read_rig_limits_of_kernel(&kernel::kernel_release_name())
        .unwrap();
    let mut back_ends: Vec<_> = limits.iter().map(|limit| limit.back_end).collect();
    back_ends.sort_unstable();
    assert_eq!(back_ends, [BackEnd::Packet, BackEnd::Xdp, BackEnd::AfXdp]);
    let best = limits.iter().max_by_key(|limit| limit.frames_per_second).unwrap();
    let words = format!("as calibrated, {} frames/s", best.frames_per_second);
    let report = run(&lab, slow(), store.path(), &[]);
    assert_chosen(&report, best.back_end.name(), &words);
}
