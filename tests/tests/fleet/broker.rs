//! A message server that dies.

use crate::lab::{Fleet, Wish};
use crate::run::Judged;

#[test]
fn a_server_that_is_killed_and_started_again_loses_no_result() {
    let Some(fleet) = Fleet::up(Wish::default()) else { return };
    let mut run = fleet.begin(&["--packets", "8000"]);
    run.await_frames();
    fleet.kill_server();
    let ended = run.finish();
    let report = ended.report();
    // Whether leases ran out depends on how long it was away; what was sent is accounted for in either case.
    let coverage = &report.0["coverage"];
    assert_eq!(
        (coverage["reported"].as_u64(), coverage["expected"].as_u64()),
        (Some(6), Some(6)),
        "{coverage}"
    );
    let (sent, received) = report.totals();
    assert_eq!(sent, received, "{}", report.0["nodes"]);
    assert_eq!(report.0["imbalances"], serde_json::json!([]));
    if !report.reasons().contains("complete") {
        report.assert_partial(&["node s"]);
    }
    assert!(fleet.said("up").contains("is started again"), "{}", fleet.said("up"));
    fleet.await_collected();
    let next = fleet.begin(&["--packets", "500"]).finish();
    next.report().assert_nothing_lost();
}
