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

/// Sends frames without a trailer as programs of this machine do: through the queueing discipline, where captures see them.
fn send_through_stack(port: &LabPort, frames: u64) {
    let options = TxOptions { bypass_queue: false, ..TxOptions::default() };
    let mut ring = TxRing::open_on_interface(port.netns(), port.link.index, "test", options).unwrap();
    for _ in 0..frames {
        let frame = [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9, 0x88, 0xb5][..], &[7; 86]].concat();
        ring.next_slot().unwrap()[..100].copy_from_slice(&frame);
        ring.commit_frame(100);
    }
    while ring.pending_frames() > 0 {
        ring.kick_kernel().unwrap();
    }
}

/// `log check` in words.
fn check_words(directory: &Path) -> String {
    Running::start(&["log", "check", &directory.display().to_string()], "").finish().stdout
}

#[test]
fn log_says_which_direction_it_has() {
    let Some(lab) = lab() else { return };
    for (flags, expected, words) in [
        (&[][..], 5, "logged: frames that arrived; frames that this machine sent are in no file"),
        (&["--direction", "in"], 5, "logged: frames that arrived"),
        (&["--direction", "both"], 12, "logged: frames in both directions"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let mut log = start(&lab, directory.path(), flags);
        let [arriving, sent] = [&lab.ports()[0], &lab.ports()[1]];
        send(arriving, 1..=5);
        send_through_stack(sent, 7);
        log.signal(rustix::process::Signal::INT);
        let result = told(&log.finish());
        assert_eq!(number(&result, "/frames"), expected, "{flags:?}: {result}");
        let said = check_words(directory.path());
        assert!(said.contains(words) && said.contains("the log is complete"), "{said}");
    }
    let refused = Running::start(
        &["log", &lab.location(1), "--into", "{out}", "--back-end", "xdp", "--direction", "both"],
        "",
    );
    refused.finish().assert_refused(2, &["--direction both needs --back-end packet"]);
}
