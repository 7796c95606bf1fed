//! Full disks and killed processes take no capture away, and no result that can still be told.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use packetrig_sys::link::NamespaceLinks;
use packetrig_testkit::Lab;
use packetrig_tests::full_disk::{FRAMES, Outcome, Point, report, run};
use packetrig_tests::program::Running;
use packetrig_tests::recording::captured;
use packetrig_tests::skip;
use packetrig_tests::small_disk::SmallDisk;
use std::path::Path;

const WORLD: i32 = 4;
const BUSY: i32 = 6;

fn outcome(point: Point) -> Option<Outcome> {
    let lab = skip::lab(Lab::cabled_pair)?;
    run(&lab, point)
}

/// Asserts that the run is not listed, and that list and complaint name its directory with the capture.
fn assert_kept_without_report(outcome: &Outcome) {
    let Outcome { finished, unfinished, store, .. } = outcome;
    assert!(!outcome.is_listed && outcome.is_kept(), "{unfinished} {}", finished.stderr);
    let directory = unfinished[0]["directory"].as_str().unwrap();
    let shown = report(store, &["list"]).stdout;
    let id = unfinished[0]["run"].as_str().unwrap();
    assert!(shown.contains(id) && shown.contains(".pcapng"), "{shown}");
    assert_eq!(report(store, &["path", id]).stdout.trim(), directory);
}

/// Asserts that the captures go when the user says so, and not before.
fn assert_discarded(outcome: &Outcome) {
    for disk in &outcome.disks {
        disk.empty();
    }
    let id = outcome.unfinished[0]["run"].as_str().unwrap();
    let discarded = report(&outcome.store, &["discard", id]);
    assert_eq!(discarded.code, Some(0), "{}", discarded.stderr);
    assert!(outcome.captures.iter().all(|(file, _)| !file.exists()));
    assert_eq!(report(&outcome.store, &["unfinished", "--json"]).stdout.trim(), "[]");
}

#[test]
fn full_disk_capture_leaves_room_for_report() {
    let Some(outcome) = outcome(Point::Capture) else { return };
    let Outcome { finished, captures, .. } = &outcome;
    assert!(outcome.is_listed && outcome.is_kept(), "{} {}", outcome.unfinished, finished.stderr);
    assert_eq!(finished.code, Some(7), "a capture that lacks frames is in doubt: {}", finished.stderr);
    let frames = captures[0].1 as u64;
    assert!((1000..FRAMES).contains(&frames), "{frames}");
    let shown: serde_json::Value =
        serde_json::from_str(&report(&outcome.store, &["show", "last", "--json"]).stdout).unwrap();
    assert_eq!(shown["captures"][0]["written"], frames);
    assert_eq!(outcome.unfinished, serde_json::json!([]));
}

#[test]
fn report_space_is_reserved_on_full_disk() {
    let Some(outcome) = outcome(Point::Report) else { return };
    // A machine that held the run up puts it in doubt.
    let in_doubt = outcome.finished.stderr.contains("did not run for").then_some(7);
    let code = outcome.finished.code;
    assert!(code == Some(0) || code == in_doubt, "{code:?}: {}", outcome.finished.stderr);
    assert!(outcome.is_listed);
    assert_eq!(outcome.captures[0].1 as u64, FRAMES);
}

#[test]
fn unwritable_report_is_shown_and_capture_kept() {
    let Some(outcome) = outcome(Point::Names) else { return };
    let finished = &outcome.finished;
    finished.assert_refused(WORLD, &["the report could not be stored", "were kept in", "No space left"]);
    assert!(finished.stdout.contains("PASS"), "the result is told: {}", finished.stdout);
    assert_kept_without_report(&outcome);
    assert_eq!(outcome.captures[0].1 as u64, FRAMES);
    assert_discarded(&outcome);
}

#[test]
fn failed_catalogue_row_keeps_report_and_capture() {
    let Some(outcome) = outcome(Point::Catalogue) else { return };
    outcome.finished.assert_refused(WORLD, &["were kept in", "catalogue.sqlite"]);
    assert_kept_without_report(&outcome);
    assert_eq!(outcome.unfinished[0]["has_report"], true);
    assert_eq!(outcome.captures[0].1 as u64, FRAMES);
    assert_discarded(&outcome);
}

#[test]
fn killed_run_leaves_capture_listed_as_unfinished() {
    let Some(outcome) = outcome(Point::Killed) else { return };
    assert_eq!(outcome.finished.code, None);
    assert_kept_without_report(&outcome);
    assert_eq!(outcome.unfinished[0]["process"], serde_json::Value::Null);
    assert_discarded(&outcome);
}

#[test]
fn data_plane_error_keeps_capture_and_names_file() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let place = tempfile::tempdir().unwrap();
    let store = place.path().join("store");
    let shown = store.display().to_string();
    let (from, to) = (lab.location(0), lab.location(1));
    let flags = ["--size", "1000", "--rate", "3kpps", "--time", "60s", "--json"];
    let arguments = [&["run", "--tx", &from, "--rx", &to, "--capture", "--store", &shown], &flags[..]];
    let mut running = Running::start(&arguments.concat(), "");
    running.await_remark("lost 0");
    let port = &lab.ports()[0];
    let mut links = NamespaceLinks::open_in(port.netns()).unwrap();
    links.delete_link(port.link.index).unwrap();
    let finished = running.finish();
    let report: serde_json::Value = serde_json::from_str(&finished.stdout).unwrap();
    let named = report["captures"][0]["file"].as_str().unwrap_or_else(|| panic!("{}", finished.stderr));
    let file = Path::new(named);
    assert_eq!(file.file_name().unwrap(), "rx.pcapng", "it is complete: {named}");
    assert!(captured(file).len() > 1000, "{named}");
}

#[test]
fn active_run_is_listed_and_cannot_be_discarded() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let place = tempfile::tempdir().unwrap();
    let store = place.path().join("store");
    let shown = store.display().to_string();
    let (from, to) = (lab.location(0), lab.location(1));
    let arguments = ["run", "--tx", &from, "--rx", &to, "--time", "20s", "--capture", "--store", &shown];
    let mut running = Running::start(&arguments, "");
    running.await_remark("run: sending");
    let listed = report(&store, &["unfinished"]).stdout;
    assert!(listed.contains("alive"), "{listed}");
    let unfinished: serde_json::Value =
        serde_json::from_str(&report(&store, &["unfinished", "--json"]).stdout).unwrap();
    assert!(unfinished[0]["process"].as_u64().is_some_and(|number| number > 1), "{unfinished}");
    let id = unfinished[0]["run"].as_str().unwrap();
    report(&store, &["discard", id]).assert_refused(BUSY, &["under way"]);
    assert!(Path::new(unfinished[0]["directory"].as_str().unwrap()).is_dir());
    running.signal(rustix::process::Signal::TERM);
    running.finish();
    assert_eq!(report(&store, &["unfinished", "--json"]).stdout.trim(), "[]");
}

#[test]
fn run_without_report_space_is_not_started() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let Some(disk) = SmallDisk::mount(c"size=1m") else { return };
    let store = disk.path().join("store");
    let shown = store.display().to_string();
    let (from, to) = (lab.location(0), lab.location(1));
    let arguments = ["run", "--tx", &from, "--rx", &to, "--time", "20s", "--store", &shown];
    let refused = Running::start(&arguments, "").finish();
    refused.assert_refused(WORLD, &["not enough disk space for the report", "--store", "bytes free"]);
    assert_eq!(std::fs::read_dir(store.join("runs")).unwrap().count(), 0);
}
