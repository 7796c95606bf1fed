//! Controllers that die, and controllers that meet.

use crate::lab::{Fleet, FleetOptions, SENDERS, pid};
use crate::run::{Judged, is_split};
use packetrig_sys::clock;
use rustix::process::{Signal, kill_process};

#[test]
fn orphaned_run_is_stopped_and_collected_once() {
    let Some(fleet) = Fleet::up(FleetOptions::default()) else { return };
    fleet.leave_run(&[]);
    let ended = fleet.catalogue().len();
    // Nobody tells the nodes to stop: their leases run out.
    for node in SENDERS {
        fleet.await_quiet(node);
    }
    let (code, printed, complaints) = fleet.ask(&["fleet", "collect"]);
    assert_eq!(code, Some(0), "{complaints}");
    assert!(printed.contains("6 of 6 nodes"), "{printed} {complaints}");
    let report = fleet.latest();
    report.assert_partial(&["the controller of this run was lost"]);
    let (sent, received) = report.totals();
    assert_eq!(sent, received, "{}", report.0["nodes"]);
    assert!(0 < sent && sent < 180_000, "{sent}");
    fleet.await_collected();
    // Collecting again finds nothing, and counts nothing twice.
    let (code, printed, _) = fleet.ask(&["fleet", "collect"]);
    assert_eq!((code, printed.trim()), (Some(0), "Nothing was left unfinished."));
    assert_eq!(fleet.catalogue().len(), ended + 1);
    assert_eq!(fleet.latest().totals(), (sent, received));
}

#[test]
fn next_run_ends_orphaned_run() {
    let Some(fleet) = Fleet::up(FleetOptions::default()) else { return };
    fleet.leave_run(&[]);
    let next = fleet.begin(&["--packets", "500"]).finish();
    next.report().assert_nothing_lost();
    let runs = fleet.catalogue();
    assert!(runs.len() >= 2, "{runs:?}");
    fleet.await_collected();
}

/// Whatever the run was doing: the ports of its nodes belong to the next one, all of them, as soon as that has the fleet.
#[test]
fn next_run_takes_orphaned_nodes_without_waiting() {
    let Some(fleet) = Fleet::up(FleetOptions::default()) else { return };
    let all = ["--tx", "any-tx*all", "--rx", "any-rx*all", "--pattern", "n-to-n", "--json"];
    let accepted = ["--max-misdelivered", "100%", "--max-late", "5s", "--packets", "300"];
    for state in ["opening ports", "ports are ready", "sending", "waiting for late", "collecting"] {
        fleet.run_until(&format!("run: {state}"), &["--packets", "1000", "--drain", "1s"]).kill();
        let (_, printed, complaints) = fleet.ask_begun(&[&["run"], &all[..], &accepted].concat());
        let report: serde_json::Value =
            serde_json::from_str(&printed).unwrap_or_else(|_| panic!("{state}: {complaints}"));
        assert_eq!(report["coverage"]["expected"], 6, "{state}: {complaints}");
        assert!(!complaints.contains("busy"), "{state}: {complaints}");
    }
}

/// Somebody else's results are somewhere else. The nodes are needed here all the same.
#[test]
fn next_run_stops_run_of_another_catalogue() {
    let Some(fleet) = Fleet::up(FleetOptions::default()) else { return };
    let other = fleet.place().join("other").display().to_string();
    fleet.leave_run(&["--store", &other]);
    let next = fleet.begin(&["--packets", "500"]).finish();
    next.report().assert_nothing_lost();
    let sent = |run: &serde_json::Value| run["sent"].as_u64();
    assert!(fleet.catalogue().iter().all(|run| sent(run) <= Some(1500)), "the other team's run is not here");
    let (_, late, _) = fleet.ask(&["report", "late"]);
    assert!(!late.contains("r1"), "what the other team counted is not taken in here: {late}");
    // It is all there for whoever began it.
    let (code, printed, complaints) = fleet.ask(&["fleet", "collect", "--store", &other]);
    assert_eq!(code, Some(0), "{complaints}");
    assert!(printed.contains("6 of 6 nodes"), "{printed} {complaints}");
    let (sent, received) = fleet.latest_in(&["--store", &other]).totals();
    assert!(0 < sent && sent == received, "{sent} {received}");
    fleet.await_collected();
}

#[test]
fn run_on_busy_node_is_refused_or_waits() {
    let Some(fleet) = Fleet::up(FleetOptions::default()) else { return };
    // Until the user stops it, it is longer than everything here takes.
    let mut first = fleet.begin(&["--packets", "60000"]);
    first.await_frames();
    let refused = fleet.run(&["--packets", "500"]).finish();
    if refused.code != Some(6) {
        first.signal(Signal::INT);
        panic!("it ran: {}\nbeside: {}", refused.complaints, first.finish().complaints);
    }
    let run = fleet.status()[0]["hello"]["busy"]["run"].as_str().expect("it is busy").to_owned();
    for words in [format!("node r1 belongs to run {run} of "), " since ".to_owned(), " UTC".to_owned()] {
        assert!(refused.complaints.contains(&words), "no `{words}`: {}", refused.complaints);
    }
    let mut second = fleet.run(&["--packets", "500", "--wait-for-nodes"]);
    second.await_remark(&format!("waiting: node r1 belongs to run {run}"));
    second.signal(Signal::INT);
    let second = second.finish();
    assert_eq!(second.code, Some(6));
    assert!(refused.complaints.contains("`--wait-for-nodes` waits"), "{}", refused.complaints);
    assert!(!second.complaints.contains("`--wait-for-nodes` waits"), "it did: {}", second.complaints);
    let mut third = fleet.run(&["--packets", "500", "--wait-for-nodes"]);
    third.await_remark("waiting: node");
    first.signal(Signal::INT);
    let first = first.finish();
    first.report().assert_nothing_lost();
    let third = third.finish();
    // It had its turn; a busy machine may have been too late for its start, which it says.
    if !is_split(&third.complaints) {
        third.report().assert_nothing_lost();
    }
}

/// Nothing is known of the process of a controller that had its host under another boot: only in time is it clear that it is dead.
#[test]
fn orphaned_run_is_collected_after_host_reboot() {
    let Some(fleet) = Fleet::up(FleetOptions::default()) else { return };
    fleet.leave_run(&[]);
    let ended = fleet.catalogue().len();
    let (code, printed, complaints) = fleet.ask_after_reboot(&["fleet", "collect"]);
    assert_eq!(code, Some(0), "{complaints}");
    assert!(!complaints.contains("is still in progress"), "{complaints}");
    assert!(printed.contains("6 of 6 nodes"), "{printed} {complaints}");
    assert_eq!(fleet.catalogue().len(), ended + 1);
    fleet.latest().assert_partial(&["the controller of this run was lost"]);
    fleet.await_collected();
}

/// They share the boot of a kernel and not the numbers of processes.
#[test]
fn controller_in_another_container_counts_as_alive() {
    let Some(fleet) = Fleet::up(FleetOptions::default()) else { return };
    let mut first = fleet.begin(&["--packets", "600000"]);
    first.await_frames();
    let all = ["run", "--tx", "any-tx*3", "--rx", "any-rx*3", "--pattern", "n-to-n", "--packets=300"];
    let (code, printed, complaints) = fleet.ask_in_container(&all);
    assert_eq!(code, Some(6), "{printed} {complaints}; {}", fleet.everything());
    assert!(complaints.contains("node r1 belongs to run "), "{complaints}");
    let (_, printed, complaints) = fleet.ask_in_container(&["fleet", "collect"]);
    assert!(complaints.contains("is still in progress"), "{printed} {complaints}; {}", fleet.everything());
    first.signal(Signal::INT);
    first.finish().report().assert_nothing_lost();
}

/// Stopped for longer than a lease, the controller and the message server are what the nodes have in common.
#[test]
fn stalled_controller_or_server_blames_no_node() {
    let Some(fleet) = Fleet::up(FleetOptions::default()) else { return };
    let hold = |stop: &dyn Fn(Signal)| {
        stop(Signal::STOP);
        clock::sleep_until_ns(clock::monotonic_ns() + 5_000_000_000);
        stop(Signal::CONT);
    };
    let mut run = fleet.begin(&["--packets", "60000"]);
    run.await_frames();
    hold(&|signal| run.signal(signal));
    let reasons = run.finish().report().reasons();
    assert!(reasons.contains("the controller's own process did not run for"), "{reasons}");
    assert!(!reasons.contains("silent"), "{reasons}");

    let mut run = fleet.begin(&["--packets", "60000"]);
    run.await_frames();
    let [_, server] = fleet.broker();
    hold(&|signal| kill_process(pid(server), signal).expect("a server may be stopped"));
    let reasons = run.finish().report().reasons();
    assert!(reasons.contains("the message server or the path to it failed"), "{reasons}");
    assert!(!reasons.contains("silent"), "{reasons}");
    fleet.await_collected();
}
