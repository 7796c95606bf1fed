//! Runs on a fleet of which somebody is not there.

use crate::lab::{Fleet, FleetOptions};
use crate::run::Judged;
use packetrig_tests::program::Report;
use rustix::process::Signal;

const ALL: [&str; 8] =
    ["run", "--tx", "any-tx*all", "--rx", "any-rx*all", "--pattern", "n-to-n", "--packets=300"];
/// The bridge of the lab has learnt none of the receivers' addresses. A busy machine may hold a sender up.
const ACCEPTED: [&str; 5] = ["--max-misdelivered", "100%", "--max-late", "5s", "--json"];

#[test]
fn group_selection_includes_absent_nodes() {
    let Some(fleet) = Fleet::up(FleetOptions::default()) else { return };
    let run = |more: &[&str]| fleet.ask_begun(&[&ALL[..], &ACCEPTED, more].concat());
    // A controller has heard all of them once.
    fleet.begin(&["--packets", "100"]).finish();
    fleet.signal("s3", Signal::KILL);
    fleet.await_status("one is missing", |rows| rows.len() == 5);
    let (code, printed, complaints) = run(&[]);
    let said = format!("{printed}{complaints}");
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("node `s3` cannot take part: it does not answer; it was last heard"), "{said}");
    assert!(said.contains("the plan needs 3; usable ports with this label: 2"), "{said}");
    // With five it starts, and says who is not in it.
    let (code, printed, complaints) = run(&["--start-with", "5"]);
    assert_eq!(code, Some(7), "{printed}{complaints}");
    let report = Report(serde_json::from_str(&printed).expect("a report"));
    report.assert_partial(&["node s3 was left out: it does not answer; it was last heard"]);
    let coverage = &report.0["coverage"];
    assert_eq!((&coverage["reported"], &coverage["expected"]), (&5.into(), &6.into()), "{coverage}");
    let (code, _, complaints) = run(&["--start-with", "6"]);
    assert_eq!(code, Some(4), "{complaints}");
    // Its owner has taken it out: nobody misses it.
    let (_, _, complaints) = fleet.ask(&["fleet", "remove", "s3"]);
    assert_eq!(complaints, "");
    let with_two = [&ALL[..4], &["any-rx*2", "--pattern", "n-to-n", "--packets=300"], &ACCEPTED].concat();
    let (_, printed, complaints) = fleet.ask_begun(&with_two);
    let report: Result<serde_json::Value, _> = serde_json::from_str(&printed);
    let report = report.unwrap_or_else(|_| panic!("{printed}{complaints}"));
    assert_eq!(report["coverage"]["expected"], 4, "{report}");
}

#[test]
fn agent_of_removed_node_reports_and_exits() {
    let Some(mut fleet) = Fleet::up(FleetOptions::default()) else { return };
    assert_eq!(fleet.ask(&["fleet", "remove", "s3"]).0, Some(0));
    for _ in ["it runs", "it is started again"] {
        assert_eq!(fleet.await_agent_end("s3"), Some(2), "{}", fleet.said("s3"));
        let said = fleet.said("s3");
        assert!(said.contains("the operator has removed this node from the fleet"), "{said}");
        fleet.start_agent("s3", FleetOptions::default());
    }
}

/// A node that the run was started without has nothing of it: nobody waits until that node is taken.
#[test]
fn next_run_ends_orphan_despite_absent_node() {
    let Some(fleet) = Fleet::up(FleetOptions::default()) else { return };
    fleet.begin(&["--packets", "100"]).finish();
    fleet.signal("s3", Signal::KILL);
    fleet.await_status("one is missing", |rows| rows.len() == 5);
    fleet.leave_run(&["--start-with", "5"]);
    let before = fleet.catalogue().len();
    let next = fleet.begin(&["--packets", "500", "--start-with", "5"]).finish();
    next.report().assert_partial(&["node s3 was left out"]);
    assert!(
        fleet.catalogue().len() >= before + 2,
        "its own report and that of the killed one: {}",
        next.complaints
    );
    let (code, printed, _) = fleet.ask(&["fleet", "collect"]);
    assert_eq!((code, printed.trim()), (Some(0), "Nothing was left unfinished."));
}
