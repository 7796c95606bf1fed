//! Disks that are full, and logs that are told how much to keep.

use super::{check, lab, number, send, start, told};
use packetrig_tests::program::Running;
use packetrig_tests::small_disk::SmallDisk;
use rustix::process::Signal;

const FRAMES: u64 = 12_000;

/// What a log of twelve megabytes on a disk of four came to, and what a check of it finds.
fn on_a_small_disk(flags: &[&str]) -> Option<(i32, serde_json::Value, (i32, serde_json::Value))> {
    let lab = lab()?;
    let disk = SmallDisk::mount(c"size=4m")?;
    let directory = disk.path().join("log");
    let mut running = start(&lab, &directory, &[&["--rotate-size", "1MB"], flags].concat());
    send(&lab.ports()[0], 1..=FRAMES);
    if !flags.contains(&"refuse") {
        running.signal(Signal::TERM);
    }
    let finished = running.finish();
    Some((finished.code.unwrap(), told(&finished), check(&directory, &[])))
}

#[test]
fn log_on_full_disk_removes_oldest_files() {
    let Some((code, result, (checked_code, checked))) = on_a_small_disk(&[]) else { return };
    assert_eq!((code, number(&result, "/written")), (0, FRAMES), "{result}");
    assert_eq!(number(&result, "/dropped/disk"), 0);
    assert_eq!((checked_code, number(&checked, "/log/written")), (0, FRAMES), "{checked}");
    let (there, removed) = (number(&checked, "/log/frames"), number(&checked, "/log/removed_frames"));
    assert_eq!(there + removed, FRAMES);
    assert!(there >= 1_500 && removed >= 7_000, "{checked}");
    assert_eq!(number(&checked, "/log/numbers/0/missing"), 0);
}

#[test]
fn log_with_stop_policy_keeps_oldest_files() {
    let Some((code, result, (checked_code, checked))) = on_a_small_disk(&["--when-full", "stop"]) else {
        return;
    };
    let (written, lost) = (number(&result, "/written"), number(&result, "/dropped/disk"));
    assert_eq!((code, written + lost), (0, FRAMES), "{result}");
    assert!(written >= 2_000 && lost >= 7_000, "{result}");
    assert_eq!(checked_code, 1, "what is missing is not hidden");
    assert_eq!(number(&checked, "/log/frames"), written, "{checked}");
    assert_eq!(
        (number(&checked, "/log/dropped_disk"), number(&checked, "/log/removed_files")),
        (lost, 0),
        "{checked}"
    );
}

#[test]
fn log_with_refuse_policy_ends_when_full() {
    let Some((code, result, (checked_code, checked))) = on_a_small_disk(&["--when-full", "refuse"]) else {
        return;
    };
    assert_eq!((code, checked_code), (4, 1), "{result}");
    let (written, lost) = (number(&result, "/written"), number(&result, "/dropped/disk"));
    assert!(written > 0 && lost > 0, "{result}");
    let counters = ["/log/written", "/log/frames", "/log/dropped_disk"].map(|path| number(&checked, path));
    assert_eq!(counters, [written, written, lost], "the index says the same: {checked}");
    assert_eq!(checked["log"]["findings"], serde_json::json!([]), "{checked}");
    let Some(lab) = lab() else { return };
    let Some(disk) = SmallDisk::mount(c"size=4m") else { return };
    let (location, into) = (lab.location(1), disk.path().join("log").display().to_string());
    let refused = Running::start(&["log", &location, "--into", &into, "--when-full", "refuse"], "").finish();
    refused.assert_refused(4, &["bytes free", "100000000"]);
}

#[test]
fn retention_keeps_the_newest_within_its_size() {
    let Some(lab) = lab() else { return };
    let directory = tempfile::tempdir().unwrap();
    let mut running = start(&lab, directory.path(), &["--rotate-size", "1MB", "--keep", "3MB"]);
    send(&lab.ports()[0], 1..=FRAMES);
    running.signal(Signal::TERM);
    assert_eq!(number(&told(&running.finish()), "/written"), FRAMES);
    let sizes =
        std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
    assert!(sizes.sum::<u64>() <= 3_000_000);
    let (code, checked) = check(directory.path(), &[]);
    assert_eq!((code, number(&checked, "/log/written")), (0, FRAMES), "{checked}");
    assert_eq!(number(&checked, "/log/frames") + number(&checked, "/log/removed_frames"), FRAMES);
}

#[test]
fn second_log_and_too_small_keep_are_refused() {
    let Some(lab) = lab() else { return };
    let directory = tempfile::tempdir().unwrap();
    let running = start(&lab, directory.path(), &[]);
    let (location, into) = (lab.location(1), directory.path().display().to_string());
    let refused = Running::start(&["log", &location, "--into", &into], "").finish();
    refused.assert_refused(6, &["a running log"]);
    let refused = Running::start(&["log", &location, "--into", &into, "--keep", "150MB"], "").finish();
    refused.assert_refused(2, &["room for two files"]);
    drop(running);
}
