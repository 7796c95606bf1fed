//! `packetrig log`: every frame in a file, or in an account of why not; over restarts, by force or not, and full disks.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bytes;
mod disks;
mod merged;
mod restarts;
mod tapped;

use packetrig_sys::packet::{TxOptions, TxRing};
use packetrig_testkit::Lab;
use packetrig_testkit::lab::LabPort;
use packetrig_tests::program::{Finished, Running};
use packetrig_tests::scraping;
use packetrig_tests::skip::{self, OwnLab};
use packetrig_wire::trailer::TapTrailer;
use serde_json::Value;
use std::path::Path;

/// Bytes of a copy, trailer included.
const COPY: usize = 1000;

fn lab() -> Option<OwnLab> {
    skip::lab(Lab::cabled_pair)
}

/// Starts a log at the second port.
fn start(lab: &Lab, directory: &Path, flags: &[&str]) -> Running {
    let location = lab.location(1);
    let directory = directory.display().to_string();
    let mut arguments = vec!["log", &location, "--into", &directory, "--json"];
    arguments.extend(flags);
    let mut running = Running::start(&arguments, "");
    running.await_remark("listening");
    running
}

/// What a command printed as JSON.
fn told(finished: &Finished) -> Value {
    let text = &finished.stdout;
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}{}", finished.stderr))
}

/// A number of the result by its path.
fn number(result: &Value, path: &str) -> u64 {
    result.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("no number at {path} in {result}"))
}

/// `packetrig log check`: its exit code and what it printed.
fn check(directory: &Path, more: &[&str]) -> (i32, Value) {
    let directory = directory.display().to_string();
    let mut arguments = vec!["log", "check", &directory, "--json"];
    arguments.extend(more);
    let finished = Running::start(&arguments, "").finish();
    (finished.code.unwrap(), told(&finished))
}

/// Sends copies as a tap does, of the direction from A to B, with these numbers.
fn send(port: &LabPort, numbers: impl IntoIterator<Item = u64>) {
    let options = TxOptions { longest: 2000, ..TxOptions::default() };
    let mut ring = TxRing::open_on_interface(port.netns(), port.link.index, "test", options).unwrap();
    for number in numbers {
        let trailer =
            TapTrailer { direction: 0, full_len: 976, number, at_ns: 1_700_000_000_000_000_000 + number };
        let copy = [
            &[2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1, 0x88, 0xb5][..],
            &[7; COPY - 14 - 24],
            &trailer.to_bytes(),
        ]
        .concat();
        while ring.next_slot().is_none() {
            ring.kick_kernel().unwrap();
        }
        ring.next_slot().unwrap()[..COPY].copy_from_slice(&copy);
        ring.commit_frame(COPY);
    }
    while ring.pending_frames() > 0 {
        ring.kick_kernel().unwrap();
    }
}

#[test]
fn log_serves_metrics() {
    let Some(lab) = lab() else { return };
    let directory = tempfile::tempdir().unwrap();
    let mut log = start(&lab, directory.path(), &["--metrics", "127.0.0.1:0"]);
    let address = scraping::await_metrics(&mut log);
    send(&lab.ports()[0], 1..=50);
    let text = scraping::await_line(&address, "packetrig_log_frames_total 50");
    assert!(text.contains("packetrig_log_dropped_frames_total{place=\"disk\"} 0\n"), "{text}");
    log.signal(rustix::process::Signal::INT);
    assert_eq!(number(&told(&log.finish()), "/frames"), 50);
}
