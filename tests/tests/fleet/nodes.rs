//! Nodes that die, freeze or cannot be heard.

use crate::lab::{Fleet, FleetOptions, await_that, begin_again, pid};
use crate::run::{Ended, Judged, is_split};
use packetrig_nats::authority::JoinSecret;
use packetrig_nats::enrol::JoinLine;
use packetrig_sys::clock;
use rustix::process::{Signal, kill_process};

/// Term of a lease.
const TTL_NS: u64 = 2_000_000_000;
/// What a sender may be late with its end.
const SLACK_NS: u64 = 50_000_000;
const RATE: u64 = 1000;
/// Frames that a sender hands over at once.
const BATCH: u64 = 64;

/// Of streams whose both ends reported, everything that was sent arrived.
fn assert_others_whole(ended: &Ended, streams: &[&str]) {
    let report = ended.report();
    for stream in streams {
        let (sent, received) =
            (report.number(stream, "/sent/frames"), report.number(stream, "/received/frames"));
        assert!(sent > 0 && sent == received, "{stream}: {sent} sent, {received} received");
    }
}

fn assert_five_of_six(ended: &Ended) {
    assert_eq!(ended.code, Some(7), "{}", ended.complaints);
    let report = ended.report();
    let coverage = &report.0["coverage"];
    assert_eq!(
        (coverage["reported"].as_u64(), coverage["expected"].as_u64()),
        (Some(5), Some(6)),
        "{coverage}"
    );
    let lost = report.node("s1");
    assert!(
        !lost["reported"].as_bool().unwrap_or(true) && lost["sent"].is_null(),
        "missing is not zero: {lost}"
    );
    assert_others_whole(ended, &["tx2 to rx2", "tx3 to rx3"]);
}

#[test]
fn killed_agent_makes_run_partial_and_stops_others() {
    let Some(fleet) = Fleet::up(FleetOptions::default()) else { return };
    let mut run = fleet.begin(&["--packets", "30000"]);
    run.await_frames();
    fleet.kill_worker("s1");
    let ended = run.finish();
    ended.report().assert_partial(&["node s1"]);
    assert_five_of_six(&ended);
    assert!(ended.report().number("tx2 to rx2", "/sent/frames") < 30_000, "the others went on");
    // What it had counted was safe on its disk.
    assert!(ended.complaints.contains("last known frame counts"), "{}", ended.complaints);
    fleet.await_collected();

    let mut run = fleet.begin(&["--packets", "6000", "--go-on"]);
    run.await_frames();
    fleet.kill_worker("s1");
    let ended = run.finish();
    ended.report().assert_partial(&["node s1"]);
    assert_five_of_six(&ended);
    let report = ended.report();
    let planned = report.number("tx2 to rx2", "/sent/frames") + report.number("tx3 to rx3", "/sent/frames");
    assert!(planned > 11_000, "the others were stopped: {planned}");
    fleet.await_collected();
    let ended = fleet.begin(&["--packets", "500"]).finish();
    ended.report().assert_nothing_lost();
}

#[test]
fn node_frozen_beyond_lease_stays_silent() {
    let Some(fleet) = Fleet::up(FleetOptions::default()) else { return };
    let mut run = fleet.begin(&["--packets", "30000", "--capture"]);
    run.await_frames();
    fleet.signal("s1", Signal::STOP);
    // The controller gives it up; whatever it does later, the others have stopped.
    run.await_remark("node s1: silent");
    let frozen = fleet.sent_by("s1");
    fleet.signal("s1", Signal::CONT);
    let ended = run.finish();
    ended.report().assert_partial(&["node s1"]);
    assert_ne!(ended.code, Some(0));
    assert_others_whole(&ended, &["tx2 to rx2", "tx3 to rx3"]);
    fleet.await_collected();
    let thawed = fleet.sent_by("s1") - frozen;
    assert!(thawed <= BATCH, "{thawed} frames after the thaw");
}

#[test]
fn sender_without_control_link_stops_and_reports_later() {
    let Some(fleet) = Fleet::up(FleetOptions::default()) else { return };
    let mut run = fleet.begin(&["--packets", "60000"]);
    run.await_frames();
    fleet.cable("s1", false);
    let [at_the_cut, of_s2] = ["s1", "s2"].map(|node| fleet.sent_by(node));
    // Others send on as long as nobody can know; this one must not. No renewal left it after the cut.
    run.await_remark("node s1: silent");
    fleet.cable("s1", true);
    let [before, before_s2, _] = run.before;
    let ended = run.finish();
    let report = ended.report();
    report.assert_partial(&["node s1"]);
    assert_ne!(ended.code, Some(0));
    fleet.await_collected();
    let after_the_cut = fleet.sent_by("s1") - at_the_cut;
    // At the cut it was behind its schedule: as far as s2 was at most, and by what it had sent less than s2.
    let less = (of_s2 - before_s2).saturating_sub(at_the_cut - before);
    let late = report.number("tx2 to rx2", "/sent/send_error/max") + less * 1_000_000_000 / RATE;
    let allowed = (TTL_NS + SLACK_NS + late) * RATE / 1_000_000_000 + BATCH;
    assert!(after_the_cut <= allowed, "{after_the_cut} frames after the cut, {allowed} allowed");
    // Its result came, by the run itself.
    assert_eq!(report.node("s1")["reported"], true, "{}", ended.complaints);
    let sent_in_split_starts: u64 = ended
        .split_starts()
        .iter()
        .filter_map(|run| fleet.kernel_report_from(run).node("s1")["sent"].as_u64())
        .sum();
    let sent_by_run = report.number("tx1 to rx1", "/sent/frames");
    assert_eq!(sent_by_run + sent_in_split_starts, fleet.sent_by("s1") - before, "{}", ended.complaints);
    assert_others_whole(&ended, &["tx1 to rx1", "tx2 to rx2", "tx3 to rx3"]);
}

#[test]
fn full_spool_drops_captures_but_keeps_counts() {
    let Some(fleet) = Fleet::up(FleetOptions { arguments: &["--spool", "1"], ..FleetOptions::default() })
    else {
        return;
    };
    // Three times 12 000 frames of 128 bytes reach each receiver.
    let ended = fleet.begin(&["--rate", "4kpps", "--packets", "12000", "--capture"]).finish();
    let report = ended.report();
    report.assert_nothing_lost();
    report.assert_partial(&["node r1: disk: captures that did not fit into its spool", "not stored: 1"]);
    for capture in report.0["captures"].as_array().expect("captures were asked for") {
        let file = capture["file"].as_str().expect("a capture has a file");
        assert!(file.starts_with('r') && file.contains(":/"), "it says on which node it is: {file}");
    }
    fleet.await_collected();
}

#[test]
fn a_receiver_that_stood_still_says_so() {
    let Some(fleet) = Fleet::up(FleetOptions::default()) else { return };
    let mut run = fleet.begin(&["--packets", "8000"]);
    run.await_frames();
    fleet.signal("r1", Signal::STOP);
    // Less than what makes the controller give it up.
    clock::sleep_until_ns(clock::monotonic_ns() + 2_000_000_000);
    fleet.signal("r1", Signal::CONT);
    let ended = run.finish();
    assert_eq!(ended.code, Some(7), "{}", ended.complaints);
    let report = ended.report();
    let caveats = report.0["caveats"].as_array().expect("a report has caveats");
    let told = caveats.iter().any(|caveat| {
        caveat["subject"] == "node r1" && caveat["text"].to_string().contains("did not run for")
    });
    assert!(told, "{caveats:?}");
}

#[test]
fn late_results_are_merged_into_report() {
    let Some(fleet) = Fleet::up(FleetOptions::default()) else { return };
    let mut run = fleet.begin(&["--packets", "8000"]);
    run.await_frames();
    fleet.cable("r1", false);
    let ended = run.finish();
    let first = ended.report();
    first.assert_partial(&["node r1"]);
    assert_eq!(first.0["coverage"]["reported"], 5, "{}", first.0["coverage"]);
    fleet.cable("r1", true);
    // By itself it stops receiving half a minute after it was cut off; then its result waits for whoever takes it.
    fleet.await_status("r1 has results", |rows| {
        let r1 = rows.iter().find(|row| row["node"] == "r1");
        r1.is_some_and(|row| row["hello"]["busy"].is_null() && row["hello"]["spooled"][0][0].is_string())
    });
    let (code, printed, complaints) = fleet.ask(&["fleet", "collect"]);
    assert_eq!(code, Some(0), "{complaints}");
    assert!(printed.contains("covers 6 of 6 nodes"), "{printed}{complaints}");
    let report = fleet.latest();
    assert_eq!(report.0["coverage"]["reported"], 6, "{}", report.0["coverage"]);
    let (sent, received) = report.totals();
    assert!(sent > 0 && sent == received, "{sent} sent, {received} received");
    report.assert_partial(&["node r1"]);
    let told = report.0["caveats"].to_string();
    assert!(told.contains("after the report was first written"), "{told}");
    let (_, shown, _) = fleet.ask(&["report", "show", fleet.catalogue()[0]["run"].as_str().expect("a name")]);
    assert!(shown.contains("6 of 6 nodes"), "{shown}");
    fleet.await_collected();
}

#[test]
fn joined_node_restart_ignores_join_line() {
    let Some(mut fleet) = Fleet::up(FleetOptions::default()) else { return };
    let used_up = JoinLine { secret: JoinSecret("00".into()), ..fleet.line().parse().expect("a line") };
    let starts = |fleet: &Fleet| fleet.said("s1").matches("Node s1 of the fleet").count();
    for line in [used_up.to_string(), "no line at all".to_owned(), String::new()] {
        let before = starts(&fleet);
        fleet.restart_agent("s1", line);
        await_that("it works again", || starts(&fleet) > before, || fleet.said("s1"));
    }
    assert_eq!(fleet.said("s1").matches("ignoring the join line").count(), 3, "{}", fleet.said("s1"));
    fleet.begin(&["--packets", "500"]).finish().report().assert_nothing_lost();
}

/// Kills the supervisor of s1 while the run is doing this, and starts it again; how the run ended. A run whose start came too late for
/// another node, on a busy machine, is none.
fn kill_supervisor_at(fleet: &mut Fleet, state: &str) -> Result<Ended, String> {
    let run = fleet.run_until(&format!("run: {state}"), &["--packets", "8000"]);
    kill_process(pid(fleet.supervisor("s1")), Signal::KILL).expect("a supervisor may be killed");
    let ended = run.finish();
    fleet.restart_agent("s1", String::new());
    // What it kept of the run waits for the next controller.
    fleet.await_status("all are idle", |rows| {
        rows.len() == 6 && rows.iter().all(|row| row["hello"]["busy"].is_null())
    });
    let mut lines = ended.complaints.lines();
    let is_none = lines.any(|line| is_split(line) && !line.contains("node s1"));
    if is_none { Err(ended.complaints) } else { Ok(ended) }
}

/// The agent of s1 ends with its supervisor, whatever the run is doing: it is the one that is named, and nobody else.
#[test]
fn killed_supervisor_blames_only_its_own_node() {
    let Some(mut fleet) = Fleet::up(FleetOptions::default()) else { return };
    for state in ["opening ports", "ports are ready", "sending"] {
        let ended = begin_again(|| kill_supervisor_at(&mut fleet, state));
        assert!(ended.code.is_some_and(|code| code != 0 && code != 70), "{state}: {:?}", ended.code);
        let said = &ended.complaints;
        assert!(said.contains("node s1") || said.contains("`s1`"), "{state}: {said}");
        for other in ["s2", "s3", "r1", "r2", "r3"] {
            assert!(!said.contains(&format!("node {other}:")), "{state}: {said}");
        }
    }
    fleet.begin(&["--packets", "500"]).finish().report().assert_nothing_lost();
}
