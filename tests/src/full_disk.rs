//! Runs with a capture whose disk becomes full, or whose process is killed, at one point or another; and what is left of
//! the capture. Tests judge each, the evaluation counts them.

use crate::program::{Finished, Running};
use crate::recording::captured;
use crate::small_disk::SmallDisk;
use packetrig_sys::clock;
use packetrig_testkit::Lab;
use rustix::process::Signal;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Frames of a run, and their size.
pub const FRAMES: u64 = 6000;
const SIZE: &str = "1000";
const LOOK_NS: u64 = 5_000_000;
const LIMIT_NS: u64 = 30_000_000_000;

/// When the disk becomes full, or the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// The capture itself fills the disk.
    Capture,
    /// Others fill the disk while the run goes on; the capture is on another one.
    Report,
    /// No file can be made any more when the report is to be written.
    Names,
    /// The catalogue's disk is full, and the runs' is not.
    Catalogue,
    /// SIGKILL while frames are captured.
    Killed,
}

impl Point {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Capture, Self::Report, Self::Names, Self::Catalogue, Self::Killed];
}

/// What such a run came to.
#[derive(Debug)]
pub struct Outcome {
    /// Its end.
    pub finished: Finished,
    /// Whether `packetrig report list` has it.
    pub is_listed: bool,
    /// What `packetrig report unfinished --json` says afterwards.
    pub unfinished: Value,
    /// Capture files that were found by what the commands say, and the frames in each.
    pub captures: Vec<(PathBuf, usize)>,
    /// Keeps them.
    pub disks: Vec<SmallDisk>,
    /// The catalogue.
    pub store: PathBuf,
}

impl Outcome {
    /// Whether there is a capture file, named by a command, with frames in it.
    pub fn is_kept(&self) -> bool {
        self.captures.iter().any(|(_, frames)| *frames > 0)
    }
}

/// Runs it; `None` where no file system may be mounted, which is said.
pub fn run(lab: &Lab, point: Point) -> Option<Outcome> {
    let disk = SmallDisk::mount(match point {
        Point::Capture => c"size=6m",
        Point::Names => c"size=64m,nr_inodes=120",
        Point::Catalogue => c"size=4m",
        Point::Report | Point::Killed => c"size=64m",
    })?;
    let store = disk.path().join("store");
    let mut disks = Vec::new();
    if point == Point::Catalogue {
        std::fs::create_dir_all(store.join("runs")).expect("an empty disk takes a directory");
        disks.push(SmallDisk::mount_over(&store.join("runs"), c"size=64m")?);
    }
    let mut running = start(lab, &store, point);
    running.await_remark("run: sending");
    match point {
        Point::Capture => {}
        Point::Report | Point::Catalogue => while_stopped(&mut running, || disk.fill()),
        Point::Names => while_stopped(&mut running, || disk.fill_names()),
        Point::Killed => {
            await_capture(&store);
            running.signal(Signal::KILL);
        }
    }
    let finished = running.finish();
    disks.push(disk);
    let (is_listed, unfinished) = listed(&store);
    let captures = captures(&store, is_listed, &unfinished, &finished);
    Some(Outcome { finished, is_listed, unfinished, captures, disks, store })
}

/// Does something in the middle of a run, however long it takes.
fn while_stopped(running: &mut Running, work: impl FnOnce()) {
    running.signal(Signal::STOP);
    work();
    running.signal(Signal::CONT);
}

/// Starts the run. Where others fill the disk its capture is not on it: they would fill it for the capture, too.
fn start(lab: &Lab, store: &Path, point: Point) -> Running {
    let (from, to) = (lab.location(0), lab.location(1));
    let store = store.display().to_string();
    let packets = FRAMES.to_string();
    let mut arguments = vec!["run", "--tx", &from, "--rx", &to, "--size", SIZE, "--rate", "6kpps"];
    arguments.extend(["--packets", &packets, "--capture", "--store", &store, "--max-late", "20s"]);
    if point == Point::Report {
        arguments.extend(["--out", "{out}"]);
    }
    Running::start(&arguments, "")
}

/// Waits until something of the capture is on the disk.
fn await_capture(store: &Path) {
    let deadline = clock::monotonic_ns() + LIMIT_NS;
    let some = || {
        let unfinished = listed(store).1;
        unfinished
            .pointer("/0/captures/0/bytes")
            .and_then(Value::as_u64)
            .is_some_and(|bytes| bytes > 2_000_000)
    };
    while !some() {
        assert!(clock::monotonic_ns() < deadline, "nothing was captured");
        clock::sleep_until_ns(clock::monotonic_ns() + LOOK_NS);
    }
}

/// `packetrig report ACTION` of a catalogue.
pub fn report(store: &Path, action: &[&str]) -> Finished {
    let store = store.display().to_string();
    Running::start(&[&["report"], action, &["--store", &store]].concat(), "").finish()
}

fn listed(store: &Path) -> (bool, Value) {
    let read = |action: &[&str]| -> Value {
        let finished = report(store, action);
        serde_json::from_str(&finished.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}{}", finished.stdout, finished.stderr))
    };
    let runs = read(&["list", "--json"]);
    (runs.as_array().is_some_and(|runs| !runs.is_empty()), read(&["unfinished", "--json"]))
}

/// Every capture file that a user finds by what is printed.
fn captures(store: &Path, is_listed: bool, unfinished: &Value, finished: &Finished) -> Vec<(PathBuf, usize)> {
    let shown = if is_listed { report(store, &["show", "last", "--json"]).stdout } else { String::new() };
    let shown: Value = serde_json::from_str(&shown).unwrap_or_default();
    let kept = unfinished.as_array().into_iter().flatten().flat_map(|run| files(&run["captures"]));
    let mut found: Vec<PathBuf> = files(&shown["captures"]).into_iter().chain(kept).collect();
    if found.is_empty() && finished.out().join("captures").is_dir() {
        let entries = std::fs::read_dir(finished.out().join("captures")).expect("it can be read");
        found.extend(entries.map(|entry| entry.expect("it can be read").path()));
    }
    found.dedup();
    found
        .into_iter()
        .filter(|file| file.is_file())
        .map(|file| (file.clone(), captured(&file).len()))
        .collect()
}

fn files(captures: &Value) -> Vec<PathBuf> {
    let file = |capture: &Value| capture["file"].as_str().map(PathBuf::from);
    captures.as_array().into_iter().flatten().filter_map(file).collect()
}
