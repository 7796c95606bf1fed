//! Frames that are late, by the device or by the rig.

use super::account::wrong_verdict;
use super::table::{PASS, UNKNOWN};
use super::{check_on_all, differs};
use packetrig_testkit::Lab;
use packetrig_tests::document::Flow;
use packetrig_tests::judge::{Judge, differences};
use packetrig_tests::judged_run::{Judged, JudgedRun, LONG_DRAIN, document, flow, lab};
use packetrig_tests::program::{Finished, Report, Running, binary};
use packetrig_tests::rig_fault::{RigFault, await_frames};
use std::path::Path;

const KEY: u16 = 32_000;
/// A busy machine must not make the verdict.
const ANY_LATENESS: [&str; 2] = ["--max-late", "20s"];

/// The bucket of the policer holds frames for longer.
const JUDGE_LATE_NS: u64 = 300_000_000;
const MAX_TRIES: usize = 10;
/// Frames of two runs, one after another.
const OF_FIRST: u64 = 500;
const OF_SECOND: u64 = 1000;

fn stream(pps: u64, packets: u64) -> Flow {
    flow("stream", KEY).pps(pps).packets(packets)
}

/// The drain is shorter than the delay, and goes on while late frames come. Both are longer than a busy machine holds the judge up.
#[test]
fn frames_later_than_drain_are_awaited() {
    check_on_all(|back_end| {
        let run = JudgedRun {
            back_end,
            flows: vec![stream(2000, 3000)],
            rules: "delay ms=1200",
            rig_fault: RigFault::None,
            fault_after: 0,
            fault_ns: 0,
            flags: &["--max-late", "20s", "--drain", "1s"],
        };
        let Some(Judged { finished, log, .. }) = run.run() else { return Vec::new() };
        let report = finished.report();
        let mut found = differences(&report, "stream", &log.stream(KEY), RigFault::None);
        found.extend(wrong_verdict(finished.code, &report, PASS, false));
        found
    });
}

/// A run through a device that keeps frames for a while. Runs with one directory know each other, and no runs of other tests.
fn start_into(lab: &Lab, directory: &Path, packets: u64, flags: &[&str]) -> Running {
    let store = directory.display().to_string();
    let runtime = format!("PACKETRIG_RUN_DIR={}", directory.join("runtime").display());
    let program = binary().display().to_string();
    let usual = [&runtime, &program, "run", "{plan}", "--out", "{out}", "--store", &store, "--quiet"];
    let document = document(lab, vec![stream(1000, packets)]);
    Running::start_program("env", &[&usual, &ANY_LATENESS[..], flags].concat(), &document.text())
}

/// The frames of the last 0.7 s are on their way when the rig stops listening, and it has measured how long that takes.
#[test]
fn frames_in_flight_at_end_are_inconclusive() {
    check_on_all(|back_end| {
        let Some(lab) = lab(back_end) else { return Vec::new() };
        // If the rig stands still at its end, they arrive in time, and it is asked again.
        let found = (0..6).find_map(|_| run_that_ends_early(&lab, back_end));
        found.unwrap_or_else(|| vec!["all frames arrived before the end in six runs".to_owned()])
    });
}

/// Returns what is wrong with a run whose last frames arrive after its end; `None` if they arrived before.
fn run_that_ends_early(lab: &Lab, back_end: &str) -> Option<Vec<String>> {
    let Some(judge) = Judge::start(lab, "delay ms=800") else { return Some(Vec::new()) };
    let store = tempfile::tempdir().unwrap();
    let flags = ["--back-end", back_end, "--drain", "10ms"];
    let finished = start_into(lab, store.path(), 2200, &flags).finish();
    let report = finished.report();
    // The judge sends what it holds back before it ends.
    let found = differs("lost by the judge", judge.stop().stream(KEY).lost_by_device(), 0);
    let has_all =
        report.number("stream", "/received/sequence/unique") == report.number("stream", "/sent/frames");
    let wrong = found.into_iter().chain(wrong_verdict(finished.code, &report, UNKNOWN, false)).collect();
    (!has_all).then_some(wrong)
}

#[test]
fn earlier_run_frames_are_recognized_and_ignored() {
    check_on_all(|back_end| {
        let Some(lab) = lab(back_end) else { return Vec::new() };
        let Some(judge) = Judge::start(&lab, "") else { return Vec::new() };
        let store = tempfile::tempdir().unwrap();
        let start = |packets, drain| {
            start_into(&lab, store.path(), packets, &["--back-end", back_end, "--drain", drain])
        };
        // The device keeps all frames of the first run until the second one listens, which it does before it sends.
        judge.pause();
        let first = start(OF_FIRST, "10ms").finish();
        let mut second = start(OF_SECOND, LONG_DRAIN);
        await_frames(&lab, &mut second, OF_FIRST + 1);
        judge.resume();
        let second = second.finish();
        let delivered = judge.stop().stream(KEY).delivered();
        let found = differs("sent on by the judge", delivered, OF_FIRST + OF_SECOND).into_iter();
        found.chain(second_of_two(&first.report(), &second)).collect()
    });
}

fn second_of_two(first: &Report, finished: &Finished) -> Vec<String> {
    let report = finished.report();
    let number = |path: &str| report.number("stream", path);
    let mut found: Vec<String> = wrong_verdict(finished.code, &report, PASS, false).into_iter().collect();
    found.extend(differs("unique", number("/received/sequence/unique"), OF_SECOND));
    for path in ["/received/corrupt", "/received/unnumbered", "/received/sequence/reordered"] {
        found.extend(differs(path, number(path), 0));
    }
    let others = &report.0["ports"][1]["other_runs"];
    found.extend(differs("frames of other runs", &others[0]["run"], &first.0["run"]));
    found.extend(differs("frames of the first run", others[0]["frames"].as_u64(), Some(OF_FIRST)));
    found
}

/// A sender that was stopped must not catch up in a burst that a device with room for twice the rate cannot take.
#[test]
fn catching_up_sender_stays_below_policer_rate() {
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
        flows: vec![stream(5000, 10_000)],
        rules: "police rate=10000 bucket=4000",
        rig_fault: RigFault::Stalled,
        fault_after: 2500,
        fault_ns: 1_500_000_000,
        flags: &["--max-late", "200ms", "--drain", LONG_DRAIN],
    };
    let is_in_time = |judged: &Judged| {
        let report = judged.finished.report();
        report.stream("stream")["latency"]["max"].as_u64().is_some_and(|latency| latency < JUDGE_LATE_NS)
    };
    let mut runs = (0..MAX_TRIES).map(|_| run().run());
    let found = runs.find(|judged| judged.as_ref().is_none_or(is_in_time));
    found.expect("a machine that lets the judge read in time once in ten runs")
}
