//! Runs in which nothing goes wrong: what reference R3 did by hand.

use crate::lab::{Fleet, FleetOptions, RECEIVERS, SENDERS};
use crate::run::Judged;
use packetrig_tests::private_files::open_to_others;
use packetrig_tests::recording::captured;
use std::path::{Path, PathBuf};

/// Frames of a sender in these tests.
const EACH: u64 = 3000;

#[test]
fn three_to_three_run_starts_together_and_completes() {
    let Some(fleet) = Fleet::up(FleetOptions::default()) else { return };
    let ended = fleet.begin(&["--packets", "3000", "--capture"]).finish();
    assert_eq!(ended.code, Some(0), "{}", ended.complaints);
    let report = ended.report();
    report.assert_clean();
    assert!(report.reasons().to_lowercase().contains("complete"), "{}", report.reasons());
    assert_eq!(
        (report.0["coverage"]["reported"].as_u64(), report.0["coverage"]["expected"].as_u64()),
        (Some(6), Some(6))
    );
    // Trans_tot = Cap_tot, in total and for each.
    assert_eq!(report.totals(), (3 * EACH, 3 * EACH));
    for (node, key) in
        SENDERS.map(|node| (node, "sent")).into_iter().chain(RECEIVERS.map(|node| (node, "received")))
    {
        assert_eq!(report.node(node)[key], EACH, "{node}");
    }
    // One clock: the bound is there, and it is nothing.
    assert_eq!(report.0["skew"]["bound"], 0, "{}", report.0["skew"]);
    for node in SENDERS {
        assert_eq!(report.node(node)["start"]["bound"], 0, "{}", report.node(node));
    }
    let captures = report.0["captures"].as_array().expect("captures were asked for");
    assert_eq!(captures.len(), RECEIVERS.len());
    let catalogue = fleet.place().join("ctl");
    for capture in captures {
        let file = Path::new(capture["file"].as_str().expect("a capture has a file"));
        assert!(file.starts_with(&catalogue), "{} is not with the controller", file.display());
        let frames = captured(file).len() as u64;
        assert!(frames >= EACH, "{frames} frames in {}", file.display());
    }
    assert_eq!(fleet.catalogue()[0]["sent"], 3 * EACH);
    fleet.await_collected();
    // Keys, certificates, spools, JetStream's files and results: of the controller and of every node.
    for place in ["fleet", "ctl"].into_iter().chain(SENDERS).chain(RECEIVERS) {
        assert_eq!(open_to_others(&fleet.place().join(place)), Vec::<PathBuf>::new());
    }
}

/// All nodes have one clock here, so the true offset is nothing.
#[test]
fn compared_clocks_agree_within_their_bound() {
    let Some(fleet) = Fleet::up(FleetOptions { arguments: &["--compare-clocks"], ..FleetOptions::default() })
    else {
        return;
    };
    let ended = fleet.begin(&["--packets", "2000", "--max-skew", "1ns"]).finish();
    let report = ended.report();
    assert!(report.reasons().to_lowercase().contains("complete"), "{}", report.reasons());
    for node in SENDERS.into_iter().chain(RECEIVERS) {
        let clock = &report.node(node)["clock"];
        let number = |key: &str| clock[key].as_i64().unwrap_or_else(|| panic!("no {key} in {clock}"));
        assert!(number("bound") > 0, "{clock}");
        assert!(number("offset_ns").abs() <= number("bound"), "{clock}");
    }
    for stream in report.0["streams"].as_array().expect("a report has streams") {
        let bound = stream.pointer("/latency/error/clock");
        assert!(bound.is_some_and(|bound| bound.as_u64() > Some(0)), "{}", stream["latency"]);
    }
    // No comparison of clocks over a network is good to a nanosecond: what is not known is not MET.
    let skew = &report.0["skew"];
    let number = |key: &str| skew[key].as_u64().unwrap_or_else(|| panic!("no {key} in {skew}"));
    let is_certain = number("least") > number("wanted");
    assert_eq!(skew["verdict"], if is_certain { "NOT_MET" } else { "UNKNOWN" }, "{skew}");
    assert_eq!(report.verdict(), "INCONCLUSIVE", "{}", report.0["verdict"]);
    assert_eq!(ended.code, Some(7), "{}", report.0["verdict"]);
}

/// More than fits into one message of the server as it is written.
#[test]
fn plan_over_one_megabyte_runs_normally() {
    let Some(fleet) = Fleet::up(FleetOptions::default()) else { return };
    let all = ["run", "--tx", "any-tx*3", "--rx", "any-rx*3", "--pattern", "n-to-n", "--streams", "500"];
    let (code, document, complaints) = fleet.ask(&[&all[..], &["--packets", "2", "--print-plan"]].concat());
    assert_eq!(code, Some(0), "{complaints}");
    assert!(document.len() > 1 << 20, "{} bytes", document.len());
    let ended = fleet.begin(&["--streams", "500", "--packets", "2", "--rate", "1kpps"]).finish();
    let report = ended.report();
    report.assert_nothing_lost();
    assert_eq!(report.0["streams"].as_array().map(Vec::len), Some(1500));
    assert_eq!(report.totals().0, 3000);
    fleet.await_collected();
}
