//! `packetrig tap --impair`: what a run finds behind it is what its truth log says it did, frame by frame.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use packetrig_sys::clock;
use packetrig_sys::packet::{RxOptions, RxRing};
use packetrig_testkit::Lab;
use packetrig_tests::at_once::for_all;
use packetrig_tests::document::{Document, Flow};
use packetrig_tests::judged_run::LONG_DRAIN;
use packetrig_tests::program::{Finished, Report, Running};
use packetrig_tests::skip::{self, OwnLab};
use packetrig_tests::station::Station;
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeSet;

const FRAMES: u64 = 4000;
const FULL: &str = "loss=2%,duplicate=2%,reorder=1%,reorder-by=3,corrupt=1%,corrupt-at=20";

/// Two ports and, between them, a namespace with the two ends of their cables and nothing in it.
struct Testbed {
    lab: OwnLab,
    sides: [String; 2],
}

fn testbed() -> Option<Testbed> {
    let lab = skip::lab(|| Lab::with_unconnected_ports(2))?;
    let sides = [lab.device_location(0), lab.device_location(1)];
    Some(Testbed { lab, sides })
}

/// What a run through an impaired tap found, what the tap says of itself, and its truth log without the first line.
struct Passed {
    report: Report,
    tap: Value,
    truth: Vec<Value>,
    header: Value,
}

fn through(testbed: &Testbed, flags: &[&str], flows: Vec<Flow>) -> Passed {
    let directory = tempfile::tempdir().unwrap();
    let truth = directory.path().join("truth.jsonl");
    let file = truth.display().to_string();
    let [a, b] = &testbed.sides;
    let usual = ["tap", a, b, "--json", "--no-link-state", "--truth", &file];
    let mut tap = Running::start(&[&usual[..], flags].concat(), "");
    tap.await_remark("forwarding");
    let locations = [testbed.lab.location(0), testbed.lab.location(1)];
    // A tap that stands still for a moment, on a busy machine, loses nothing by that.
    let flags = ["--quiet", "--drain", LONG_DRAIN];
    let report = Running::run(&Document::new(&locations).flows(flows), &flags).finish().report();
    tap.signal(Signal::TERM);
    let ended = tap.finish();
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    let said: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(said["imbalances"], serde_json::json!([]), "{said}");
    let text = std::fs::read_to_string(&truth).unwrap();
    let mut lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let header = lines.remove(0);
    Passed { report, tap: said, truth: lines, header }
}

impl Passed {
    /// Frames of the direction from A to B that have something of the sort in the log.
    fn frames(&self, deed: &str) -> BTreeSet<u64> {
        let of = |line: &&Value| line["direction"] == "a->b" && !line[deed].is_null();
        self.truth.iter().filter(of).map(|line| line["frame"].as_u64().unwrap()).collect()
    }

    /// A count of that direction as the tap tells it in the end.
    fn count(&self, name: &str) -> u64 {
        let path = format!("/impairments/a->b/counts/{name}");
        self.tap.pointer(&path).and_then(Value::as_u64).unwrap_or_else(|| panic!("no {path} in {}", self.tap))
    }

    fn found(&self, path: &str) -> u64 {
        self.report.number("flow", path)
    }
}

fn flow() -> Flow {
    Flow::new("flow", 1).pps(5000).packets(FRAMES)
}

#[test]
fn run_findings_match_impairment_truth_log() {
    let Some(testbed) = testbed() else { return };
    let passed = through(&testbed, &["--impair", FULL, "--seed", "7"], vec![flow()]);
    let (dropped, copied, held) =
        (passed.frames("dropped"), passed.frames("copies"), passed.frames("held_for"));
    let corrupted = passed.frames("corrupted");
    assert!(dropped.len() > 40 && copied.len() > 40 && held.len() > 15 && corrupted.len() > 15);
    assert_eq!(passed.count("arrived"), FRAMES);
    assert_eq!(passed.count("dropped"), dropped.len() as u64);
    assert_eq!((passed.count("copies"), passed.count("held")), (copied.len() as u64, held.len() as u64));
    // Now what a stranger to all of this has found.
    assert_eq!(passed.found("/loss/lost"), dropped.len() as u64);
    assert_eq!(passed.found("/received/sequence/duplicates"), copied.len() as u64);
    let damaged = corrupted.iter().map(|frame| 1 + u64::from(copied.contains(frame))).sum::<u64>();
    assert_eq!(passed.found("/received/corrupt"), damaged);
    // Held back behind later ones, if there are any left.
    let last = (0..FRAMES).rev().find(|frame| !dropped.contains(frame) && !held.contains(frame)).unwrap();
    assert_eq!(passed.found("/received/sequence/reordered"), held.range(..last).count() as u64);
    assert_eq!((&passed.header["seed"], passed.frames("delay_ns").len()), (&7.into(), 0));
}

#[test]
fn impairments_repeat_only_with_the_same_seed() {
    let spec = "loss=gilbert:1%/25%,duplicate=burst:0.3%x4,corrupt=1%,reorder=every:300";
    let deeds = for_all(&["3", "3", "4"], |seed| {
        let passed = through(&testbed()?, &["--impair", spec, "--seed", seed], vec![flow()]);
        Some(["dropped", "copies", "corrupted", "held_for"].map(|deed| passed.frames(deed)))
    });
    let Some(deeds) = deeds.into_iter().collect::<Option<Vec<_>>>() else { return };
    let [first, same, other] = &deeds[..] else { panic!("three runs") };
    assert!(first.iter().all(|frames| frames.len() > 10), "{first:?}");
    assert_eq!(same, first);
    assert_ne!(other[0], first[0]);
}

#[test]
fn impairment_delay_affects_one_direction_only() {
    let Some(testbed) = testbed() else { return };
    const DELAY: u64 = 20_000_000;
    let back = Flow::new("back", 2).between(1, &[0]).pps(1000).packets(500);
    let flags = ["--impair-ab", "delay=20ms"];
    let passed = through(&testbed, &flags, vec![Flow::new("flow", 1).pps(1000).packets(500), back]);
    assert_eq!((passed.found("/loss/lost"), passed.report.number("back", "/loss/lost")), (0, 0));
    // No frame is forwarded earlier than told; how much later is the machine's business.
    assert!(passed.found("/latency/min") >= DELAY);
    assert!(passed.found("/latency/min") >= passed.report.number("back", "/latency/min") + DELAY / 2);
    let delays: BTreeSet<u64> = passed.truth.iter().filter_map(|line| line["delay_ns"].as_u64()).collect();
    assert_eq!((delays, passed.frames("delay_ns").len(), passed.truth.len()), ([DELAY].into(), 500, 500));
}

/// How late a frame leaves is measured for that frame, however many others were read from the ring together with it.
#[test]
fn frame_lateness_includes_time_in_ring() {
    const WAITING: u64 = 400;
    const EVERY_NS: u64 = 1_000_000;
    const PATIENCE_NS: u64 = 30_000_000_000;
    let Some(testbed) = testbed() else { return };
    let [a, b] = &testbed.sides;
    let usual = ["tap", a, b, "--json", "--no-link-state", "--impair-ab", "delay=3ms"];
    let mut tap = Running::start(&usual, "");
    tap.await_remark("forwarding");
    let mut frame = vec![0x5a; 300];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
    let mut station = Station::open(&testbed.lab.ports()[0]);
    let far = &testbed.lab.ports()[1];
    let mut receiver =
        RxRing::open_on_interface(far.netns(), far.link.index, "test", RxOptions::default()).unwrap();
    tap.signal(Signal::STOP);
    station.send(std::iter::once(&frame));
    let sent_ns = clock::wall_clock_ns();
    // One by one, so that the newest frame of each batch that is read has waited almost as long as the oldest one.
    for _ in 1..WAITING {
        station.send(std::iter::once(&frame));
        clock::sleep_until_ns(clock::monotonic_ns() + EVERY_NS);
    }
    tap.signal(Signal::CONT);
    let mut arrivals = Vec::new();
    let give_up_ns = clock::monotonic_ns() + PATIENCE_NS;
    while (arrivals.len() as u64) < WAITING && clock::monotonic_ns() < give_up_ns {
        receiver.wait_for_frames(5_000_000).unwrap();
        receiver.receive_frames(usize::MAX, &mut |frame| arrivals.push(frame.realtime_ns));
    }
    assert_eq!(arrivals.len() as u64, WAITING, "the tap's ring has room for all of them");
    tap.signal(Signal::TERM);
    let ended: Value = serde_json::from_str(&tap.finish().stdout).unwrap();
    // The first frame had arrived at the tap by then, and was to leave 3 ms later.
    let late_ns = arrivals[0] - sent_ns - 3_000_000;
    let told_ns = ended.pointer("/impairments/a->b/counts/late_most_ns").and_then(Value::as_u64).unwrap();
    assert!(told_ns >= late_ns, "{told_ns} < {late_ns}: {ended}");
}

#[test]
fn rate_limit_queue_drops_overflow_and_logs_it() {
    let Some(testbed) = testbed() else { return };
    // 40 Mbit/s into 10: three of four frames are too many.
    let flows = vec![flow().size(1000)];
    let passed = through(&testbed, &["--impair-ab", "rate=10Mbit/s,queue=20"], flows);
    let overflowed = passed.frames("overflowed");
    assert_eq!(passed.found("/loss/lost"), overflowed.len() as u64);
    assert!(overflowed.len() as u64 > FRAMES / 2, "{}", overflowed.len());
    assert_eq!(passed.found("/received/sequence/reordered"), 0);
    assert_eq!(passed.count("left"), FRAMES - overflowed.len() as u64);
}

#[test]
fn jitter_keeps_the_order_unless_frames_may_overtake() {
    let specs = ["delay=10ms,jitter=5ms", "delay=10ms,jitter=5ms:normal,overtake"];
    let reordered = for_all(&specs, |spec| {
        let passed = through(&testbed()?, &["--impair-ab", spec], vec![flow()]);
        assert_eq!(passed.found("/loss/lost"), 0);
        Some(passed.found("/received/sequence/reordered"))
    });
    let Some(reordered) = reordered.into_iter().collect::<Option<Vec<_>>>() else { return };
    assert_eq!(reordered[0], 0);
    assert!(reordered[1] > FRAMES / 4, "{}", reordered[1]);
}

#[test]
fn a_document_impairs_each_direction_in_its_way() {
    let Some(testbed) = testbed() else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("line.yaml");
    std::fs::write(&file, "seed: 9\na->b:\n  loss: every:50\nb->a: duplicate=every:40\n").unwrap();
    let back = Flow::new("back", 2).between(1, &[0]).packets(400);
    let file = file.display().to_string();
    let passed = through(&testbed, &["--impair", &file], vec![flow(), back]);
    assert_eq!(passed.found("/loss/lost"), FRAMES / 50);
    assert_eq!(passed.report.number("back", "/received/sequence/duplicates"), 10);
    assert_eq!((&passed.header["seed"], &passed.header["a->b"]), (&9.into(), &"loss=every:50".into()));
}

#[test]
fn impossible_impairments_are_refused_with_reason() {
    let refused =
        |flags: &[&str]| -> Finished { Running::start(&[&["tap", "a0", "b0"], flags].concat(), "").finish() };
    refused(&["--impair", "burn=1%"]).assert_refused(2, &["`burn`", "use one of delay"]);
    refused(&["--impair", "no/such.yaml"]).assert_refused(2, &["no/such.yaml"]);
    refused(&["--seed", "3"]).assert_refused(2, &["need --impair"]);
    let Some(testbed) = testbed() else { return };
    let [a, b] = &testbed.sides;
    let with = |flags: &[&str]| {
        Running::start(&[&["tap", a, b, "--impair", "loss=1%"], flags].concat(), "").finish()
    };
    with(&["--back-end", "xdp"]).assert_refused(2, &["impairments run in this process"]);
    with(&["--detach"]).assert_refused(2, &["--detach needs back end `xdp`"]);
}
