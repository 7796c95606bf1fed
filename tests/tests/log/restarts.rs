//! Numbers that go on, and what a log that was ended by force still knows.

use super::{check, lab, number, send, start, told};
use packetrig_sys::{clock, xdp};
use packetrig_tests::program::Running;
use packetrig_tests::skip;
use packetrig_tests::tools::tcpdump_count;
use rustix::process::Signal;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The log's files, in order.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|end| end == "pcapng")).collect();
    files.sort();
    files
}

fn names(directory: &Path) -> Vec<String> {
    files(directory).iter().map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect()
}

#[test]
fn log_restart_continues_file_and_frame_numbers() {
    let Some(lab) = lab() else { return };
    let directory = tempfile::tempdir().unwrap();
    for run in 0..2u64 {
        let mut running = start(&lab, directory.path(), &["--rotate-size", "1MB"]);
        send(&lab.ports()[0], run * 2500 + 1..=run * 2500 + 2500);
        running.signal(Signal::TERM);
        let finished = running.finish();
        let result = told(&finished);
        assert_eq!(finished.code, Some(0), "{}", finished.stderr);
        assert_eq!((number(&result, "/frames"), number(&result, "/written")), (2500, 2500));
        assert_eq!(number(&result, "/first_frame"), run * 2500);
        assert_eq!(number(&result, "/first_file"), run * 3 + 1);
    }
    let wanted: Vec<String> = (1..=6).map(|n| format!("log-{n:05}.pcapng")).collect();
    assert_eq!(names(directory.path()), wanted);
    if skip::has_tool("tcpdump") {
        assert_eq!(files(directory.path()).iter().map(|file| tcpdump_count(file)).sum::<usize>(), 5000);
    }
    let (code, checked) = check(directory.path(), &[]);
    assert_eq!((code, &checked["complete"]), (0, &true.into()), "{checked}");
    assert_eq!((number(&checked, "/log/written"), number(&checked, "/log/numbers/0/last")), (5000, 5000));
}

#[test]
fn a_hangup_begins_another_file_and_ends_nothing() {
    let Some(lab) = lab() else { return };
    let directory = tempfile::tempdir().unwrap();
    let mut running = start(&lab, directory.path(), &[]);
    for round in 1..=3u64 {
        send(&lab.ports()[0], (round - 1) * 10 + 1..=round * 10);
        await_files(directory.path(), usize::try_from(round).unwrap());
        // The hangup is heard only when the frames are in: an empty file is not rotated.
        for _ in 0..1000 {
            running.signal(Signal::HUP);
            clock::sleep_until_ns(clock::monotonic_ns() + 20_000_000);
            if files(directory.path()).len() > usize::try_from(round).unwrap() {
                break;
            }
        }
        await_files(directory.path(), usize::try_from(round).unwrap() + 1);
    }
    running.signal(Signal::TERM);
    let finished = running.finish();
    assert_eq!((finished.code, number(&told(&finished), "/written")), (Some(0), 30));
    let (code, checked) = check(directory.path(), &[]);
    assert_eq!((code, number(&checked, "/log/frames")), (0, 30), "{checked}");
}

fn await_files(directory: &Path, count: usize) {
    for _ in 0..2000 {
        if files(directory).len() >= count {
            return;
        }
        clock::sleep_until_ns(clock::monotonic_ns() + 5_000_000);
    }
    panic!("{count} files never came: {:?}", names(directory));
}

#[test]
fn killed_log_is_repaired_with_known_gaps() {
    let Some(lab) = lab() else { return };
    let directory = tempfile::tempdir().unwrap();
    let mut running = start(&lab, directory.path(), &["--rotate-size", "1MB"]);
    send(&lab.ports()[0], 1..=3500);
    await_files(directory.path(), 4);
    running.signal(Signal::KILL);
    assert_eq!(running.finish().code, None);
    send(&lab.ports()[0], 3501..=3600);
    let mut running = start(&lab, directory.path(), &["--rotate-size", "1MB"]);
    running.await_remark("the previous `packetrig log` was killed");
    send(&lab.ports()[0], 3601..=3700);
    running.signal(Signal::TERM);
    assert_eq!(running.finish().code, Some(0));
    let (code, checked) = check(directory.path(), &[]);
    assert_eq!(code, 1, "{checked}");
    // Each number that the tap gave was logged, or is known to be missing.
    let (seen, absent) = (number(&checked, "/log/numbers/0/seen"), number(&checked, "/log/numbers/0/absent"));
    assert_eq!((seen + absent, number(&checked, "/log/numbers/0/missing")), (3700, 0), "{checked}");
    assert!(absent >= 100 && seen >= 2500, "{checked}");
    assert_eq!(number(&checked, "/log/frames"), number(&checked, "/log/written"));
    assert_eq!(number(&checked, "/log/written"), seen);
    assert!(checked["log"]["findings"].to_string().contains("mended"), "{checked}");
}

#[test]
fn frames_mirrored_but_not_logged_are_counted() {
    let Some(lab) = lab() else { return };
    let directory = tempfile::tempdir().unwrap();
    let mut running = start(&lab, directory.path(), &[]);
    send(&lab.ports()[0], (1..=1000).filter(|number| number % 100 != 0));
    running.signal(Signal::TERM);
    let finished = running.finish();
    assert_eq!(number(&told(&finished), "/numbers/0/missing"), 9, "the last one is not missed yet");
    let tap = directory.path().join("tap.json");
    let counters = |there: u64| {
        format!(
            r#"{{"directions":[{{"wanted":1000,"mirrors":[{{"to":"m","mirrored":{there}}}]}},
            {{"wanted":0,"mirrors":[{{"to":"m","mirrored":0}}]}}]}}"#
        )
    };
    std::fs::write(&tap, counters(1000)).unwrap();
    let path = tap.display().to_string();
    let (code, checked) = check(directory.path(), &["--tap", &path]);
    assert_eq!((code, &checked["lost"][0]), (1, &10.into()), "{checked}");
    assert_eq!(number(&checked, "/log/numbers/0/missing"), 9);
}

#[test]
fn stale_tap_status_is_doubt_not_loss() {
    let Some(lab) = lab() else { return };
    let directory = tempfile::tempdir().unwrap();
    let mut running = start(&lab, directory.path(), &[]);
    send(&lab.ports()[0], 1..=1000);
    running.signal(Signal::TERM);
    running.finish();
    let tap = directory.path().join("tap.json");
    let counters = r#"{"directions":[{"wanted":900,"mirrors":[{"to":"m","mirrored":900}]},
        {"wanted":0,"mirrors":[{"to":"m","mirrored":0}]}]}"#;
    std::fs::write(&tap, counters).unwrap();
    let path = tap.display().to_string();
    let (code, checked) = check(directory.path(), &["--tap", &path]);
    assert_eq!(
        (code, &checked["lost"], &checked["complete"]),
        (7, &serde_json::json!([null, 0]), &Value::Null)
    );
    assert_eq!(checked["doubt"], serde_json::json!({ "doubt": "older", "frames": 100 }), "{checked}");
    let directory = directory.path().display().to_string();
    let shown = Running::start(&["log", "check", &directory, "--tap", &path], "").finish();
    assert!(shown.stdout.contains("100 frames more than the tap had counted"), "{}", shown.stdout);
    assert!(!shown.stdout.contains(" -"), "nothing negative: {}", shown.stdout);
}

#[test]
fn xdp_log_has_every_frame_or_reports_drops() {
    if !skip::may_use_bpf(xdp::bpf_obstacle().map_or(Ok(()), Err)) {
        return;
    }
    let Some(lab) = lab() else { return };
    let directory = tempfile::tempdir().unwrap();
    let mut running = start(&lab, directory.path(), &["--back-end", "xdp", "--zstd", "--snap", "1000"]);
    send(&lab.ports()[0], 1..=2000);
    running.signal(Signal::TERM);
    let finished = running.finish();
    let result = told(&finished);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert_eq!(number(&result, "/written") + number(&result, "/dropped/kernel_ring"), 2000, "{result}");
    let (_, checked) = check(directory.path(), &[]);
    assert_eq!(number(&checked, "/log/frames"), number(&result, "/written"), "{checked}");
}
