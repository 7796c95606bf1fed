//! Frames that are late, by the device or by the rig.

use super::account::wrong_verdict;
use super::table::{PASS, UNKNOWN};
use super::{check_on_all, differs};
use packetrig_testkit::Lab;
use packetrig_tests::document::Flow;
use packetrig_tests::judge::{Judge, differences};
use packetrig_tests::judged_run::{Judged, JudgedRun, document, flow, lab};
use packetrig_tests::program::{Finished, Report, Running};
use packetrig_tests::rig_fault::RigFault;
use std::path::Path;

const KEY: u16 = 32_000;
/// A busy machine must not make the verdict.
const ANY_LATENESS: [&str; 2] = ["--max-late", "20s"];

/// The bucket of the policer holds frames for longer.
const JUDGE_LATE_NS: u64 = 300_000_000;
const MOST_TRIES: usize = 10;

fn stream(pps: u64, packets: u64) -> Flow {
    flow("stream", KEY).pps(pps).packets(packets)
}

/// The drain is shorter than the delay, and goes on while late frames come. Both are longer than a busy machine holds the judge up.
#[test]
fn frames_that_take_longer_than_the_drain_are_waited_for() {
    check_on_all(|back_end| {
        let run = JudgedRun {
            back_end,
            flows: vec![stream(2000, 6000)],
            rules: "delay ms=1500",
            rig_fault: RigFault::None,
            fault_after: 0,
            fault_ns: 0,
            flags: &["--max-late", "20s", "--drain", "1200ms"],
        };
        let Some(Judged { finished, log, .. }) = run.run() else { return Vec::new() };
        let report = finished.report();
        let mut found = differences(&report, "stream", &log.stream(KEY), RigFault::None);
        found.extend(wrong_verdict(finished.code, &report, PASS, false));
        found
    });
}

/// A run through a device that delays. Runs with one catalogue know each other.
fn run_into(lab: &Lab, store: &Path, packets: u64, flags: &[&str]) -> Finished {
    let store = store.display().to_string();
    let usual = ["run", "{plan}", "--out", "{out}", "--store", &store, "--quiet"];
    let document = document(lab, vec![stream(1000, packets)]);
    Running::start(&[&usual, &ANY_LATENESS[..], flags].concat(), &document.text()).finish()
}

/// The frames of the last 1.4 s are on their way when the rig stops listening, and it has measured how long that takes.
#[test]
fn frames_on_their_way_at_the_end_are_no_loss_of_the_device() {
    check_on_all(|back_end| {
        let Some(lab) = lab(back_end) else { return Vec::new() };
        let Some(judge) = Judge::start(&lab, "delay ms=1500") else { return Vec::new() };
        let store = tempfile::tempdir().unwrap();
        let finished = run_into(&lab, store.path(), 3500, &["--back-end", back_end, "--drain", "10ms"]);
        let report = finished.report();
        // The judge sends what it holds back before it ends.
        let found = differs("lost by the judge", judge.stop().stream(KEY).lost_by_device(), 0);
        found.into_iter().chain(wrong_verdict(finished.code, &report, UNKNOWN, false)).collect()
    });
}

#[test]
fn frames_of_an_earlier_run_are_named_and_damage_nothing() {
    check_on_all(|back_end| {
        let Some(lab) = lab(back_end) else { return Vec::new() };
        // The device keeps frames for longer than it takes to start the second run, also on a busy machine.
        let Some(judge) = Judge::start(&lab, "delay ms=5000") else { return Vec::new() };
        let store = tempfile::tempdir().unwrap();
        let with_drain = |packets, drain| {
            run_into(&lab, store.path(), packets, &["--back-end", back_end, "--drain", drain])
        };
        let (first, second) = (with_drain(2500, "10ms"), with_drain(1000, "8s"));
        let delivered = judge.stop().stream(KEY).delivered();
        second_of_two(&first.report(), &second, delivered)
    });
}

/// `delivered`: frames of both runs that the judge sent on.
fn second_of_two(first: &Report, finished: &Finished, delivered: u64) -> Vec<String> {
    let report = finished.report();
    let number = |path: &str| report.number("stream", path);
    let mut found: Vec<String> = wrong_verdict(finished.code, &report, PASS, false).into_iter().collect();
    found.extend(differs("unique", number("/received/sequence/unique"), 1000));
    for path in ["/received/corrupt", "/received/unnumbered", "/received/sequence/reordered"] {
        found.extend(differs(path, number(path), 0));
    }
    let others = &report.0["ports"][1]["other_runs"];
    found.extend(differs("frames of other runs", &others[0]["run"], &first.0["run"]));
    // Between the two runs nobody listens.
    let most = delivered - 1000 - first.number("stream", "/received/frames");
    let named = others[0]["frames"].as_u64().unwrap_or(0);
    if named == 0 || named > most {
        found.push(format!("{named} frames of the first run, wanted 1 to {most}"));
    }
    found
}

/// A sender that was stopped must not catch up in a burst that a device with room for twice the rate cannot take.
#[test]
fn a_sender_that_catches_up_stays_below_a_policer_of_twice_the_rate() {
    check_on_all(|back_end| {
        let Some(Judged { finished, log, .. }) = policed(back_end) else { return Vec::new() };
        let (report, truth) = (finished.report(), log.stream(KEY));
        let mut found = differences(&report, "stream", &truth, RigFault::Stalled);
        found.extend(differs("dropped by the policer", truth.lost_by_device(), 0));
        found.extend(wrong_verdict(finished.code, &report, UNKNOWN, false));
        found
    });
}

/// A run that is stopped for a while. The policer goes by the time at which the judge reads frames, so a run during which the
/// machine did not let the judge read is made again: its frames took long, without a rule that delays them.
fn policed(back_end: &str) -> Option<Judged> {
    let run = || JudgedRun {
        back_end,
        flows: vec![stream(5000, 15_000)],
        rules: "police rate=10000 bucket=4000",
        rig_fault: RigFault::Stalled,
        fault_after: 5000,
        fault_ns: 1_500_000_000,
        flags: &["--max-late", "200ms", "--drain", "2s"],
    };
    let is_in_time = |judged: &Judged| {
        let report = judged.finished.report();
        report.stream("stream")["latency"]["max"].as_u64().is_some_and(|latency| latency < JUDGE_LATE_NS)
    };
    let mut runs = (0..MOST_TRIES).map(|_| run().run());
    let found = runs.find(|judged| judged.as_ref().is_none_or(is_in_time));
    found.expect("a machine that lets the judge read in time once in ten runs")
}
