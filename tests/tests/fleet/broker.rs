//! A message server that dies, and one whose disk is full.

use crate::lab::{Fleet, FleetOptions, await_that};
use crate::run::Judged;

#[test]
fn killed_message_server_loses_no_result() {
    let Some(fleet) = Fleet::up(FleetOptions::default()) else { return };
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
    assert!(fleet.said("up").contains("starting it again"), "{}", fleet.said("up"));
    fleet.await_collected();
    let next = fleet.begin(&["--packets", "500"]).finish();
    next.report().assert_nothing_lost();
}

/// The line about the server in `fleet status`.
fn server_line(fleet: &Fleet) -> String {
    let (_, printed, complaints) = fleet.ask(&["fleet", "status"]);
    let line = printed.lines().find(|line| line.starts_with("Message server:"));
    line.map_or_else(|| format!("{printed} {complaints}"), str::to_owned)
}

#[test]
fn message_server_recovers_from_full_disk() {
    let request = FleetOptions { server_disk: Some(c"size=96m"), ..FleetOptions::default() };
    let Some(fleet) = Fleet::up(request) else { return };
    let shows = |what: &str| {
        await_that(what, || server_line(&fleet).contains(what), || server_line(&fleet) + &fleet.said("up"));
    };
    shows("works");
    let mut run = fleet.begin(&["--packets", "6000"]);
    run.await_frames();
    fleet.server_disk().fill();
    shows("cannot store messages");
    fleet.server_disk().empty();
    shows("works");
    assert!(fleet.said("up").contains("the server is restarted"), "{}", fleet.said("up"));
    // How the run ends depends on when the disk was full; what its nodes found out is not lost in any case.
    run.finish();
    // The server may be on its way down and up again: its store already worked while it was told to restart.
    let collect = || fleet.ask(&["fleet", "collect"]);
    await_that("the server is back", || collect().0 == Some(0), || format!("{:?}", collect()));
    fleet.await_collected();
    fleet.begin(&["--packets", "500"]).finish().report().assert_nothing_lost();
}
