//! Captures that are too large for the spool stay on their nodes and are fetched from there.

use crate::lab::{Fleet, FleetOptions, RECEIVERS, await_that};
use crate::run::Judged;
use packetrig_tests::program::Report;
use rustix::process::{Signal, kill_process};
use std::fs;
use std::path::{Path, PathBuf};

/// The capture of a node: where it is there, and as what it is fetched.
struct Capture {
    there: PathBuf,
    here: PathBuf,
}

/// Captures that a report says are on nodes.
fn captures_there(report: &Report, directory: &Path) -> Vec<Capture> {
    let captures = report.0["captures"].as_array().expect("captures were asked for");
    let of = |capture: &serde_json::Value| {
        let (node, path) = capture["file"].as_str()?.split_once(':')?;
        let name = path.rsplit('/').next()?;
        let here = directory.join("captures").join(format!("{node}-{name}"));
        Some(Capture { there: path.into(), here })
    };
    captures.iter().filter_map(of).collect()
}

/// The most memory that a process has had, in bytes.
fn peak_memory(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kilobytes.expect("the kernel says so") * 1024
}

#[test]
fn capture_fetch_resumes_in_ranges_during_run() {
    let Some(fleet) = Fleet::up(FleetOptions { arguments: &["--spool", "1"], ..FleetOptions::default() })
    else {
        return;
    };
    // What three senders send reaches each receiver: tens of megabytes, far beyond the spool.
    let first =
        fleet.begin(&["--rate", "3kpps", "--packets", "9000", "--size", "1400", "--capture"]).finish();
    first.report().assert_nothing_lost();
    let (_, directory, _) = fleet.ask(&["report", "path", "last"]);
    let run = fleet.catalogue()[0]["run"].as_str().expect("a run has a name").to_owned();
    let captures = captures_there(&first.report(), Path::new(directory.trim()));
    assert_eq!(captures.len(), RECEIVERS.len(), "{}", first.report().0["captures"]);
    let size = |path: &Path| fs::metadata(path).map_or(0, |known| known.len());
    assert!(captures.iter().all(|capture| size(&capture.there) > 10 << 20), "they are large");
    let before = peak_memory(fleet.worker("r1"));
    // Broken off in the middle of one of them, whatever was done by then stays.
    let mut fetch = fleet.begin_command(&["fleet", "fetch", &run], "fetch");
    let part = |capture: &Capture| PathBuf::from(format!("{}.part", capture.here.display()));
    let is_midway = || captures.iter().any(|capture| size(&part(capture)) > 1 << 20);
    await_that("it is under way", is_midway, || fleet.said("fetch"));
    kill_process(crate::lab::pid(fetch.id()), Signal::KILL).expect("it may be killed");
    fetch.wait().expect("a child can be waited for");
    // It goes on there, while another run needs its leases.
    let mut second = fleet.begin(&["--packets", "8000"]);
    second.await_frames();
    let (code, printed, complaints) = fleet.ask(&["fleet", "fetch", &run]);
    assert_eq!(code, Some(0), "{printed}{complaints}");
    assert!(complaints.contains("resumes at"), "{complaints}");
    let second = second.finish();
    second.report().assert_nothing_lost();
    assert!(second.report().reasons().to_lowercase().contains("complete"), "{}", second.report().reasons());
    for capture in &captures {
        assert!(fs::read(&capture.there).ok() == fs::read(&capture.here).ok(), "{}", capture.here.display());
        assert!(!part(capture).exists());
    }
    let grown = peak_memory(fleet.worker("r1")) - before;
    assert!(grown < size(&captures[0].there) / 2, "{grown} B more memory on the node");
    let (_, shown, _) = fleet.ask(&["report", "show", &run, "--json"]);
    let report = Report(serde_json::from_str(&shown).expect("a report"));
    assert!(captures_there(&report, Path::new("")).is_empty(), "{}", report.0["captures"]);
    let (code, printed, _) = fleet.ask(&["fleet", "fetch", &run]);
    assert!(code == Some(0) && printed.contains("No node has a capture of run"), "{printed}");
}

#[test]
fn capture_fetch_respects_owner_limit() {
    let request = FleetOptions {
        arguments: &["--spool", "1"],
        owner: "max_capture = \"1MB\"",
        ..FleetOptions::default()
    };
    let Some(fleet) = Fleet::up(request) else { return };
    let ended = fleet.begin(&["--rate", "4kpps", "--packets", "12000", "--capture"]).finish();
    ended.report().assert_nothing_lost();
    let (code, printed, complaints) = fleet.ask(&["fleet", "fetch"]);
    assert_eq!(code, Some(4), "{printed}{complaints}");
    assert!(complaints.contains("the captures of the run exceed the limit of 1000000 B"), "{complaints}");
}
