//! Several runs at once, each on nodes of its own.

use crate::lab::{Fleet, FleetOptions};
use crate::run::Judged;
use rustix::process::Signal;
use serde_json::Value;

const ONE: [&str; 2] = ["s1/eth0", "r1/eth0"];
const TWO: [&str; 2] = ["s2/eth0", "r2/eth0"];
/// Long enough for others to begin and to end meanwhile, on any machine.
const LONG: [&str; 2] = ["--packets", "40000"];

fn store(fleet: &Fleet, name: &str) -> [String; 2] {
    ["--store".to_owned(), fleet.place().join(name).display().to_string()]
}

/// Frames of the runs that are complete.
fn sent(runs: &[Value]) -> Vec<u64> {
    let complete = runs.iter().filter(|run| run["outcome"] == "complete");
    complete.filter_map(|run| run["sent"].as_u64()).collect()
}

#[test]
fn runs_on_disjoint_nodes_overlap_with_separate_results() {
    let Some(fleet) = Fleet::up(FleetOptions::default()) else { return };
    fleet.teach_the_bridge();
    let (of_one, of_two) = (store(&fleet, "one"), store(&fleet, "two"));
    let of_one = of_one.each_ref().map(String::as_str);
    let of_two = of_two.each_ref().map(String::as_str);
    let mut one = fleet.begin_between(ONE, &[&LONG, &of_one[..]].concat());
    one.await_frames();
    let two = fleet.begin_between(TWO, &[&["--packets", "1500"], &of_two[..]].concat()).finish();
    two.report().assert_nothing_lost();
    assert!(one.is_under_way(), "the first one has ended: they did not overlap");
    // Who leads which node is shown, and only those of the run that goes on are led.
    assert_eq!(fleet.leads().into_keys().collect::<Vec<_>>(), ["r1", "s1"]);
    // A label chooses among the nodes that are free.
    let third = fleet.begin_between(["any-tx*2", "any-rx*2"], &["--packets", "500"]).finish();
    let report = third.report();
    report.assert_nothing_lost();
    let ports = report.0["ports"].as_array().expect("a report has ports");
    let mut nodes: Vec<&str> = ports.iter().filter_map(|port| port["node"].as_str()).collect();
    nodes.sort_unstable();
    assert_eq!(nodes, ["r2", "r3", "s2", "s3"], "{}", third.complaints);
    assert!(one.is_under_way());
    let one = one.finish();
    one.report().assert_nothing_lost();
    // Each catalogue has its own and no other. A start that came too late for some nodes of a busy machine is no complete run.
    for (of, frames) in [(&of_one[..], 40_000), (&of_two[..], 1500), (&[][..], 1000)] {
        assert_eq!(sent(&fleet.catalogue_in(of)), [frames]);
    }
    assert_eq!(fleet.leads(), [].into(), "all are given back");
    fleet.await_collected();
}

#[test]
fn killed_controller_blocks_only_its_nodes_briefly() {
    let Some(fleet) = Fleet::up(FleetOptions::default()) else { return };
    fleet.teach_the_bridge();
    let of_two = store(&fleet, "two");
    let of_two = of_two.each_ref().map(String::as_str);
    let mut dead = fleet.begin_between(ONE, &["--packets", "60000"]);
    dead.await_frames();
    let mut other = fleet.begin_between(TWO, &[&["--packets", "15000"], &of_two[..]].concat());
    other.await_frames();
    dead.signal(Signal::KILL);
    dead.finish();
    // The next run on its nodes has them at once, and ends what it left.
    let next = fleet.begin_between(ONE, &["--packets", "500"]).finish();
    next.report().assert_nothing_lost();
    assert!(!next.complaints.contains("waiting: node"), "{}", next.complaints);
    let other = other.finish();
    let report = other.report();
    report.assert_nothing_lost();
    assert_eq!(report.totals(), (15_000, 15_000), "it neither stopped nor lost anything");
    assert_eq!(sent(&fleet.catalogue_in(&of_two)), [15_000]);
    let ended: Vec<Value> = fleet.catalogue();
    let left = ended.iter().filter(|run| run["sent"].as_u64().is_some_and(|sent| sent > 500)).count();
    assert_eq!(left, 1, "the report of the killed one was written once: {ended:?}");
    fleet.await_collected();
}

/// Of three pairs one is needed by the next run. The others are left to whoever needs them, or collects.
#[test]
fn run_takes_needed_nodes_and_collect_ends_rest() {
    let Some(fleet) = Fleet::up(FleetOptions::default()) else { return };
    fleet.teach_the_bridge();
    fleet.leave_run(&[]);
    let before = fleet.catalogue().len();
    let next = fleet.begin_between(ONE, &["--packets", "500"]).finish();
    next.report().assert_nothing_lost();
    assert!(next.complaints.contains("end it with `packetrig fleet collect`"), "{}", next.complaints);
    let after = fleet.catalogue().len();
    assert!(after > before, "its own report");
    let (code, printed, complaints) = fleet.ask(&["fleet", "collect"]);
    assert_eq!(code, Some(0), "{complaints}");
    assert!(printed.contains("6 of 6 nodes"), "{printed} {complaints}");
    assert_eq!(fleet.catalogue().len(), after + 1);
    let (sent, received) = fleet.latest().totals();
    assert!(0 < sent && sent < 180_000 && received > 0, "{sent} {received}");
    let (code, printed, _) = fleet.ask(&["fleet", "collect"]);
    assert_eq!((code, printed.trim()), (Some(0), "Nothing was left unfinished."));
    fleet.await_collected();
}
