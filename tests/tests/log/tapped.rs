//! A tap, a log behind its mirror, and both their books: what one sent the other has, or it is known what is missing.

use super::{check, number, told};
use packetrig_sys::{clock, xdp};
use packetrig_testkit::Lab;
use packetrig_tests::document::{Document, Flow};
use packetrig_tests::program::{self, Running};
use packetrig_tests::skip;
use rustix::process::Signal;
use serde_json::Value;
use std::path::Path;

const FRAMES: u64 = 3000;
const PATIENCE_NS: u64 = 30_000_000_000;

/// Sends frames both ways through a tap with a log behind its mirror, which may begin late. What a check of the log finds.
fn tapped(way: &str, directory: &Path, flags: &[&str], is_late: bool) -> Option<(i32, Value)> {
    if way == "xdp" && !skip::may_use_bpf(xdp::bpf_obstacle().map_or(Ok(()), Err)) {
        return None;
    }
    let lab = skip::lab(|| Lab::with_unconnected_ports(3))?;
    let _passes: Vec<_> = lab
        .ports()
        .iter()
        .map(|port| xdp::attach_xdp_pass_program(port.netns(), port.link.index, &port.location()))
        .filter_map(Result::ok)
        .collect();
    let (a, b, mirror) = (lab.device_location(0), lab.device_location(1), lab.device_location(2));
    let name = format!("tapped-{}", std::process::id());
    let usual = ["tap", &a, &b, "--back-end", way, "--json", "--no-link-state", "--name", &name];
    let usual = [&usual[..], &["--mirror", &mirror, "--to", "02:00:00:00:00:09"], flags].concat();
    let mut tap = Running::start(&usual, "");
    tap.await_remark("forwarding with back end");
    let run = || {
        let back = Flow::new("back", 2).between(1, &[0]).pps(5000).packets(FRAMES);
        let document = Document::new(&[lab.location(0), lab.location(1)])
            .flows([Flow::new("there", 1).pps(5000).packets(FRAMES), back]);
        let report = program::run(&document).report();
        assert_eq!((report.number("there", "/loss/lost"), report.number("back", "/loss/lost")), (0, 0));
    };
    if is_late {
        run();
    }
    let (location, into) = (lab.location(2), directory.join("log").display().to_string());
    let mut log = Running::start(&["log", &location, "--into", &into, "--json"], "");
    log.await_remark("listening");
    run();
    let status = status(&name, if is_late { 2 * FRAMES } else { FRAMES });
    tap.signal(Signal::TERM);
    let ended = tap.finish();
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    log.signal(Signal::TERM);
    let logged = told(&log.finish());
    assert_eq!(number(&logged, "/written"), 2 * FRAMES, "{logged}");
    let checked = |told: &str| {
        let file = directory.join("tap.json");
        std::fs::write(&file, told).unwrap();
        check(&directory.join("log"), &["--tap", &file.display().to_string()])
    };
    let by_end = checked(&ended.stdout);
    assert_eq!(checked(&status), by_end, "by `tap status` as by what the tap said at its end");
    Some(by_end)
}

/// What `packetrig tap status` prints when so many frames of each direction have been accounted for.
fn status(name: &str, frames: u64) -> String {
    let end = clock::monotonic_ns() + PATIENCE_NS;
    loop {
        let text = Running::start(&["tap", "status", name, "--json"], "").finish().stdout;
        let taps: Value = serde_json::from_str(&text).unwrap();
        let mirrored = |way: usize| {
            let path = format!("/0/accounts/directions/{way}/mirrors/0/mirrored");
            taps.pointer(&path).and_then(Value::as_u64)
        };
        if (mirrored(0), mirrored(1)) == (Some(frames), Some(frames)) {
            return text;
        }
        assert!(clock::monotonic_ns() < end, "{frames} frames never: {text}");
    }
}

fn assert_all_there(way: &str) {
    let directory = tempfile::tempdir().unwrap();
    let Some((code, checked)) = tapped(way, directory.path(), &["--trailer"], false) else { return };
    assert_eq!((code, &checked["lost"]), (0, &serde_json::json!([0, 0])), "{checked}");
    for direction in 0..2 {
        assert_eq!(number(&checked, &format!("/log/numbers/{direction}/seen")), FRAMES);
        assert_eq!(number(&checked, &format!("/log/tap/{direction}/wanted")), FRAMES);
    }
}

#[test]
fn log_contains_every_copy_of_process_tap() {
    assert_all_there("packet");
}

#[test]
fn log_contains_every_copy_of_kernel_tap() {
    assert_all_there("xdp");
}

#[test]
fn copies_before_log_start_count_as_missing() {
    let directory = tempfile::tempdir().unwrap();
    let Some((code, checked)) = tapped("packet", directory.path(), &["--trailer"], true) else { return };
    let lost = FRAMES.cast_signed();
    assert_eq!((code, &checked["lost"]), (1, &serde_json::json!([lost, lost])), "{checked}");
    assert_eq!(number(&checked, "/log/numbers/0/missing"), 0, "none is missing of those since then");
}

#[test]
fn without_trailers_the_sum_is_known() {
    let directory = tempfile::tempdir().unwrap();
    let Some((code, checked)) = tapped("packet", directory.path(), &[], false) else { return };
    assert_eq!((code, &checked["lost_in_all"]), (0, &0.into()), "{checked}");
    assert_eq!(checked["lost"], serde_json::json!([null, null]));
}
