//! What an operator does with a fleet beside running plans: look, label, read its history.

use crate::lab::{Fleet, FleetOptions, RECEIVERS, SENDERS, await_that};
use crate::run::Judged;
use packetrig_sys::clock;
use rustix::process::{Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// The lines of a table of CSV, as cells, the header first. No cell here has a comma of its own.
fn csv(directory: &Path, file: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(directory.join(file)).expect("a run has its tables");
    text.lines().map(|line| line.split(',').map(str::to_owned).collect()).collect()
}

/// The cell of a row in the column with this name.
fn cell<'a>(table: &'a [Vec<String>], row: usize, column: &str) -> &'a str {
    let at = table[0].iter().position(|name| name == column);
    &table[row][at.unwrap_or_else(|| panic!("no column {column} in {:?}", table[0]))]
}

#[test]
fn port_tables_name_each_node() {
    let Some(fleet) = Fleet::up(FleetOptions::default()) else { return };
    let ended = fleet.begin(&["--packets", "2500"]).finish();
    assert!(ended.complaints.contains("(s1/eth0): back end"), "{}", ended.complaints);
    let report = ended.report();
    report.assert_nothing_lost();
    let ports = report.0["ports"].as_array().expect("a report has ports");
    let places: Vec<(&str, &str)> = ports
        .iter()
        .filter_map(|port| Some((port["info"]["name"].as_str()?, port["node"].as_str()?)))
        .collect();
    assert_eq!(places.len(), 6, "{places:?}");
    let (_, shown, complaints) = fleet.ask(&["report", "show", "last", "--wide"]);
    let table: Vec<&str> = shown.lines().skip_while(|line| *line != "Ports").collect();
    assert!(table.len() > 6, "{shown}{complaints}");
    assert!(table[1].split_whitespace().take(3).eq(["port", "node", "location"]), "{}", table[1]);
    for (name, node) in &places {
        let row = table[2..].iter().find(|line| line.split_whitespace().next() == Some(name));
        assert_eq!(row.and_then(|row| row.split_whitespace().nth(1)), Some(*node), "{shown}");
    }
    let (_, directory, _) = fleet.ask(&["report", "path", "last"]);
    let directory = Path::new(directory.trim());
    let node_of = |port: &str| places.iter().find(|(name, _)| *name == port).map(|(_, node)| *node);
    for file in ["ports.csv", "receivers.csv"] {
        let table = csv(directory, file);
        assert!(table.len() > 3, "{file}: {table:?}");
        for row in 1..table.len() {
            assert_eq!(Some(cell(&table, row, "node")), node_of(cell(&table, row, "port")), "{file}");
        }
    }
    let series = csv(directory, "series.csv");
    let of_ports: Vec<usize> =
        (1..series.len()).filter(|row| cell(&series, *row, "kind") == "port").collect();
    assert!(!of_ports.is_empty());
    for row in of_ports {
        assert_eq!(Some(cell(&series, row, "node")), node_of(cell(&series, row, "name")));
    }
}

/// Rows of `fleet status` without listening.
fn rows(fleet: &Fleet) -> Vec<Value> {
    let (code, printed, complaints) = fleet.ask(&["fleet", "status", "--json"]);
    assert_eq!(code, Some(0), "{complaints}");
    serde_json::from_str(&printed).unwrap_or_else(|_| panic!("{printed}{complaints}"))
}

/// It needs no round trip: it answers while the message server does not.
#[test]
fn fleet_status_answers_while_server_is_stopped() {
    let Some(fleet) = Fleet::up(FleetOptions::default()) else { return };
    let fresh = |rows: &[Value]| rows.iter().filter(|row| row["presence"] == "fresh").count();
    await_that("all were heard", || fresh(&rows(&fleet)) == 6, || format!("{:?}", rows(&fleet)));
    let [_, server] = fleet.broker();
    kill_process(crate::lab::pid(server), Signal::STOP).expect("a server may be stopped");
    // What was under way has come by then.
    clock::sleep_until_ns(clock::monotonic_ns() + 500_000_000);
    let stopped = clock::monotonic_ns();
    await_that("nobody is fresh", || fresh(&rows(&fleet)) == 0, || format!("{:?}", rows(&fleet)));
    let silent = |row: &Value| row["silent"].as_u64().expect("an age in nanoseconds");
    let least = clock::monotonic_ns() - stopped;
    let now = rows(&fleet);
    assert_eq!(now.len(), 6);
    assert!(now.iter().all(|row| silent(row) >= least), "{least} ns: {now:?}");
    kill_process(crate::lab::pid(server), Signal::CONT).expect("a server may go on");
    await_that("all are heard again", || fresh(&rows(&fleet)) == 6, || format!("{:?}", rows(&fleet)));
    // Who is dead is not there for long, and still belongs to the fleet.
    fleet.signal("s3", Signal::KILL);
    await_that("five are fresh", || fresh(&rows(&fleet)) == 5, || format!("{:?}", rows(&fleet)));
    let (_, printed, _) = fleet.ask(&["fleet", "status", "--wait", "--json"]);
    let heard: Value = serde_json::from_str(&printed).expect("rows");
    assert_eq!(heard.as_array().map(Vec::len), Some(5), "only those that are heard: {heard}");
}

/// Runs between such ports; its exit code, the nodes of its ports, and what it complained about.
fn run_between(fleet: &Fleet, tx: &str, rx: &str) -> (Option<i32>, Vec<String>, String) {
    let fixed = ["--packets", "200", "--json", "--max-misdelivered", "100%", "--max-late", "5s"];
    let arguments = [&["run", "--tx", tx, "--rx", rx][..], &fixed].concat();
    let (code, printed, complaints) = fleet.ask_begun(&arguments);
    let report: Value = serde_json::from_str(&printed).unwrap_or_default();
    let ports = report["ports"].as_array().cloned().unwrap_or_default();
    let nodes = ports.iter().filter_map(|port| port["node"].as_str().map(str::to_owned));
    let mut nodes: Vec<String> = nodes.collect();
    nodes.sort();
    (code, nodes, complaints)
}

#[test]
fn operator_labels_select_ports_within_owner_limits() {
    let Some(fleet) = Fleet::up(FleetOptions::default()) else { return };
    let ask = |arguments: &[&str]| {
        let (code, printed, complaints) = fleet.ask(arguments);
        (code, format!("{printed}{complaints}"))
    };
    let run = |tx: &str, rx: &str| run_between(&fleet, tx, rx);
    await_that("all were heard", || rows(&fleet).len() == 6, || format!("{:?}", rows(&fleet)));
    assert_eq!(ask(&["fleet", "label", "s2", "rack=2", "spare"]).0, Some(0));
    assert_eq!(ask(&["fleet", "label", "r3", "rack=3"]).0, Some(0));
    let (_, nodes, complaints) = run("any-spare", "any-rack=3");
    assert_eq!(nodes, ["r3", "s2"], "{complaints}");
    // All of a group, by what the operator says.
    let (_, nodes, complaints) = run("any-rack=2*all", "any-rack=3*all");
    assert_eq!(nodes, ["r3", "s2"], "{complaints}");
    // The owner of r1 uses the word `rx` for its port; the operator cannot move it, nor take it away.
    let (code, said) = ask(&["fleet", "label", "r1", "rx=9"]);
    assert!(code == Some(0) && said.contains("has no effect on r1"), "{said}");
    let (code, _, complaints) = run("s1/eth0", "any-rx=9");
    assert_eq!(code, Some(4), "{complaints}");
    let (code, said) = ask(&["fleet", "status"]);
    assert!(code == Some(0) && said.contains("rack=2 spare") && said.contains("rx=9"), "{said}");
    // Removed, it chooses nothing any more.
    assert_eq!(ask(&["fleet", "label", "s2", "spare-", "rack-"]).0, Some(0));
    let (code, _, complaints) = run("any-spare", "any-rack=3");
    assert_eq!(code, Some(4), "{complaints}");
    for (node, label) in [("s2", "a b"), ("s2", "a=b=c"), ("nobody", "x")] {
        assert_eq!(ask(&["fleet", "label", node, label]).0, Some(2), "{node} {label}");
    }
}

/// What happened to a node, by kind.
fn events(fleet: &Fleet, node: &str) -> Vec<Value> {
    let (code, printed, complaints) = fleet.ask(&["fleet", "history", node, "--json"]);
    assert_eq!(code, Some(0), "{complaints}");
    let lives: Value = serde_json::from_str(&printed).unwrap_or_else(|_| panic!("{printed}{complaints}"));
    lives[0]["entries"].as_array().cloned().unwrap_or_else(|| panic!("{lives}"))
}

#[test]
fn node_history_lists_starts_losses_and_runs() {
    let Some(mut fleet) = Fleet::up(FleetOptions::default()) else { return };
    let count = |fleet: &Fleet, node: &str, kind: &str| {
        events(fleet, node).iter().filter(|entry| entry["event"] == kind).count()
    };
    let about = |fleet: &Fleet| format!("{:?}", events(fleet, "s1"));
    fleet.begin(&["--packets", "2500"]).finish().report().assert_nothing_lost();
    let mut run = fleet.begin(&["--packets", "30000"]);
    run.await_frames();
    fleet.kill_worker("s1");
    run.finish().report().assert_partial(&["node s1"]);
    await_that("its new start was noted", || count(&fleet, "s1", "started") == 2, || about(&fleet));
    let all = events(&fleet, "s1");
    assert_eq!(all[0]["event"], "joined", "{all:?}");
    let runs: Vec<&Value> = all.iter().filter(|entry| entry["event"] == "run").collect();
    // Before and between these two are the runs that a busy machine did not begin, which are partial: `begin` tries again.
    let first = runs.iter().find(|run| run["ended"] == "complete").unwrap_or_else(|| panic!("{all:?}"));
    let Some(second) = runs.last() else { panic!("{all:?}") };
    assert!(first["reported"] == true && second["reported"] == false, "{runs:?}");
    assert_eq!(second["ended"], "partial");
    assert!(second["reasons"][0].as_str().is_some_and(|why| why.starts_with("node s1")), "{second}");
    let of_another = events(&fleet, "s2").into_iter().rfind(|entry| entry["event"] == "run");
    assert!(
        of_another.is_some_and(|run| run["reported"] == true && run["reasons"].is_null()),
        "s2 is not to blame"
    );
    // Lost, back, and what `fleet up` remembers when it is started again itself.
    fleet.signal("s3", Signal::STOP);
    await_that("it is lost", || count(&fleet, "s3", "lost") == 1, || about(&fleet));
    fleet.signal("s3", Signal::CONT);
    await_that("it is back", || count(&fleet, "s3", "back") == 1, || about(&fleet));
    let before = count(&fleet, "r1", "started");
    fleet.restart_server();
    let fresh = |fleet: &Fleet| rows(fleet).iter().filter(|row| row["presence"] == "fresh").count();
    await_that("all are heard again", || fresh(&fleet) == 6, || fleet.said("up"));
    assert_eq!(count(&fleet, "r1", "started"), before, "only `fleet up` was started again");
    let (_, table, complaints) = fleet.ask(&["fleet", "history"]);
    assert_eq!(table.lines().count(), 7, "{table}{complaints}");
    fleet.ask(&["fleet", "remove", "s3"]);
    let (_, table, _) = fleet.ask(&["fleet", "history"]);
    assert!(table.contains("s3 (removed)"), "{table}");
    assert_eq!(fleet.ask(&["fleet", "history", "nobody"]).0, Some(2));
}

/// Messages of the events of a log that name this run.
fn events_of_run(log: &str, run: &str) -> Vec<String> {
    let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let of_run = events.filter(|event| event["run"] == run);
    of_run.filter_map(|event| event["message"].as_str().map(str::to_owned)).collect()
}

#[test]
fn logs_follow_one_run_through_all_machines() {
    const LOG: [&str; 4] = ["--log-level", "info", "--log-format", "json"];
    let Some(fleet) = Fleet::up(FleetOptions { arguments: &LOG, ..FleetOptions::default() }) else { return };
    let ended = fleet.begin(&[&["--packets", "1000"], &LOG[..]].concat()).finish();
    let report = ended.report();
    report.assert_nothing_lost();
    let run = report.0["run"].as_str().expect("a report names its run");
    let here = events_of_run(&ended.complaints, run);
    assert_eq!(here.last().map(String::as_str), Some("run ended"), "{here:?}: {}", ended.complaints);
    for node in SENDERS.into_iter().chain(RECEIVERS) {
        let there = events_of_run(&fleet.said(node), run);
        for message in ["ports opened", "start time confirmed", "result stored until it is collected"] {
            assert!(there.iter().any(|said| said == message), "{node}: no {message} in {there:?}");
        }
    }
}
