//! `probe send`, `caps`, `calibrate` between two stations; the far station's ring says what arrived, and when.

use packetrig_sys::clock;
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::packet::{RxOptions, RxRing};
use packetrig_testkit::Lab;
use packetrig_tests::program::{Finished, Running};
use packetrig_tests::skip::{self, OwnLab};
use packetrig_wire::pcap::{CaptureDecoder, DecodedElement};
use serde_json::Value;

const NEAR: &str = "192.0.2.1";
const FAR: &str = "192.0.2.2";
const ABOUT: &str = "https://lab.example/probes";
const PERMIT: &str = "about = \"https://lab.example/probes\"\n[[target]]\nnetwork = \"192.0.2.0/24\"\n\
                      probes_per_s = 200000\nbits_per_s = \"1Gbps\"\nburst = 1000\n";

struct Testbed {
    lab: OwnLab,
    far: RxRing,
}

impl Testbed {
    /// `None` without the rights it takes.
    fn new() -> Option<Self> {
        let lab = skip::lab(Lab::cabled_pair)?;
        for (port, ip) in lab.ports().iter().zip([NEAR, FAR]) {
            NamespaceLinks::open_in(port.netns())
                .unwrap()
                .add_address(port.link.index, ip.parse().unwrap(), 24)
                .unwrap();
        }
        let port = &lab.ports()[1];
        let options = RxOptions { blocks: 256, retire_ms: 1, ..RxOptions::default() };
        let far = RxRing::open_on_interface(port.netns(), port.link.index, "far", options).unwrap();
        Some(Self { lab, far })
    }

    /// Sends with a permit that allows much.
    fn send(&self, more: &[&str]) -> Finished {
        let near = self.lab.location(0);
        let permit = ["probe", "send", near.as_str(), "--to", FAR, "--permit", "{plan}"];
        Running::start(&[&permit[..], more].concat(), PERMIT).finish()
    }

    /// Probes that arrived: their payloads, with when on this machine's monotonic clock.
    fn arrived(&mut self) -> Vec<(Vec<u8>, u64)> {
        let offset = clock::measure_realtime_offset();
        let mut found = Vec::new();
        for _ in 0..5 {
            self.far.wait_for_frames(20_000_000).unwrap();
            self.far.receive_frames(usize::MAX, &mut |frame| {
                let is_probe = frame.bytes.get(12..14) == Some(&[8, 0]) && frame.bytes[23] == 17;
                if is_probe {
                    let at = offset.to_monotonic(frame.realtime_ns) + offset.bound_ns;
                    found.push((frame.bytes[42..].to_vec(), at));
                }
            });
        }
        found
    }
}

fn lines(finished: &Finished, name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(finished.directory.path().join(name)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// 0, or 7 where the machine was too busy for it to be in time, which is said.
fn assert_done(finished: &Finished) {
    assert!(
        matches!(finished.code, Some(0 | 7)),
        "{:?} {} {}",
        finished.code,
        finished.stdout,
        finished.stderr
    );
}

#[test]
fn sent_probes_are_numbered_and_recorded() {
    let Some(mut testbed) = Testbed::new() else { return };
    for mechanism in ["sleep", "spin", "ring"] {
        let schedule = ["--train", "10", "--gap", "20us", "--count", "5", "--every", "20ms"];
        let files = ["--write", "p.jsonl", "--write", "p.parquet", "--write", "p.pcapng"];
        let finished = testbed.send(&[&schedule[..], &files, &["--mechanism", mechanism]].concat());
        assert_done(&finished);
        let arrived = testbed.arrived();
        assert_eq!(arrived.len(), 50, "{mechanism}");
        for (number, (payload, _)) in (0_u32..).zip(&arrived) {
            assert_eq!(payload[..4], number.to_be_bytes());
            assert!(payload[4..].starts_with(ABOUT.as_bytes()), "{payload:?}");
        }
        let lines = lines(&finished, "p.jsonl");
        let header = &lines[0]["header"];
        assert_eq!((header["mechanism"].as_str(), header["probes"].as_u64()), (Some(mechanism), Some(50)));
        assert_eq!((header["about"].as_str(), header["qdiscs"][0].as_str()), (Some(ABOUT), Some("noqueue")));
        assert_eq!(lines.len(), 51);
        for (record, (_, arrived)) in lines[1..].iter().zip(&arrived) {
            let driver = record["departures"].as_array().unwrap().iter().find(|d| d["stage"] == "driver");
            let driver = driver.unwrap_or_else(|| panic!("{record}"))["stamp"]["lo"].as_u64().unwrap();
            assert!(driver <= *arrived, "{record} {arrived}");
            let planned = record["planned"].as_u64().unwrap();
            assert!(mechanism == "ring" || record["released"]["lo"].as_u64().unwrap() >= planned, "{record}");
        }
        let parquet = std::fs::read(finished.directory.path().join("p.parquet")).unwrap();
        assert!(parquet.starts_with(b"PAR1") && parquet.ends_with(b"PAR1"));
        let pcapng = std::fs::read(finished.directory.path().join("p.pcapng")).unwrap();
        let sent = packets(&pcapng);
        assert!(
            sent.iter().map(|frame| &frame[42..]).eq(arrived.iter().map(|(payload, _)| payload.as_slice()))
        );
    }
}

fn packets(mut file: &[u8]) -> Vec<Vec<u8>> {
    let (mut decoder, mut found) = (CaptureDecoder::new(), Vec::new());
    loop {
        match decoder.next_step(file).unwrap() {
            DecodedElement::Record { record, used } => {
                assert!(record.at_ns.is_some());
                found.push(record.bytes.to_vec());
                file = &file[used..];
            }
            DecodedElement::Skip(used) => file = &file[usize::try_from(used).unwrap()..],
            DecodedElement::More(_) => return found,
        }
    }
}

#[test]
fn probe_send_enforces_permission_and_limits() {
    let Some(mut testbed) = Testbed::new() else { return };
    let near = testbed.lab.location(0);
    let send = |more: &[&str]| {
        let command = ["probe", "send", near.as_str(), "--to", FAR, "--mechanism", "sleep"];
        Running::start(&[&command[..], more].concat(), "").finish()
    };
    send(&[]).assert_refused(8, &[FAR]);
    send(&["--to", FAR, "--allow", "192.0.2.0/24"]).assert_refused(2, &["given twice"]);
    assert_eq!(testbed.arrived().len(), 0);
    // The usual limits: bursts of 50.
    let finished =
        send(&["--allow", "192.0.2.0/24", "--count", "80", "--every", "1us", "--write", "p.jsonl"]);
    finished.assert_refused(2, &["20 probes/s"]);
    assert_eq!(testbed.arrived().len(), 50);
    let unsent = lines(&finished, "p.jsonl")[1..].iter().filter(|r| r["flags"][0] == "unsent").count();
    assert_eq!(unsent, 30);
}

#[test]
fn probe_send_refuses_foreign_source_and_missing_qdisc() {
    let Some(mut testbed) = Testbed::new() else { return };
    let foreign =
        "020000000002020000000001 0800 45000020 00004000 4011 0000 c0000263 c0000202 0007000900040000";
    testbed.send(&["--frame", foreign]).assert_refused(2, &[NEAR, FAR]);
    for mechanism in ["fq", "etf", "launch"] {
        testbed.send(&["--mechanism", mechanism]).assert_refused(4, &[mechanism, "found noqueue"]);
    }
    testbed.send(&["--write", "p.txt"]).assert_refused(2, &[".jsonl"]);
    assert_eq!(testbed.arrived().len(), 0);
}

#[test]
fn a_schedule_of_a_file_is_kept() {
    let Some(mut testbed) = Testbed::new() else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("schedule.csv");
    std::fs::write(&file, "0,60,0,pair\n30000,60,0,pair\n5000000,200,1,single\n").unwrap();
    let file = file.to_str().unwrap();
    let finished = testbed.send(&["--schedule", file, "--mechanism", "spin", "--write", "p.jsonl", "--json"]);
    assert_done(&finished);
    let planned: Vec<u64> =
        lines(&finished, "p.jsonl")[1..].iter().map(|r| r["planned"].as_u64().unwrap()).collect();
    assert_eq!((planned[1] - planned[0], planned[2] - planned[0]), (30_000, 5_000_000));
    let lengths: Vec<usize> = testbed.arrived().iter().map(|(payload, _)| payload.len() + 42).collect();
    assert_eq!(lengths, [60, 60, 200]);
    let summary: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(summary["summary"]["sent"], 3);
    // The same again, from the times of what was written.
    let again = finished.directory.path().join("p.jsonl");
    assert!(again.exists());
}

#[test]
fn release_mechanisms_are_listed_and_calibrated() {
    let Some(testbed) = Testbed::new() else { return };
    let near = testbed.lab.location(0);
    let caps = Running::start(&["probe", "caps", &near, "--json"], "").finish();
    assert_eq!(caps.code, Some(0), "{}", caps.stderr);
    let caps: Value = serde_json::from_str(&caps.stdout).unwrap();
    let mechanisms = caps["interfaces"][0]["mechanisms"].as_array().unwrap();
    let can = |name: &str| mechanisms.iter().find(|m| m["mechanism"] == name).unwrap()["can"] == true;
    assert_eq!(mechanisms.len(), 8);
    assert!(can("sleep") && can("spin") && can("ring") && !can("fq"), "{caps}");
    let calibrate = ["probe", "calibrate", "--count", "100", "--write", "kept.json", "--json"];
    let found = Running::start(&calibrate, "").finish();
    assert!(matches!(found.code, Some(0 | 7)), "{:?} {}", found.code, found.stderr);
    let kept = std::fs::read_to_string(found.directory.path().join("kept.json")).unwrap();
    let kept: Value = serde_json::from_str(&kept).unwrap();
    assert_eq!(kept["driver"], "veth");
    let found: Value = serde_json::from_str(&found.stdout).unwrap();
    for found in found["found"].as_array().unwrap().iter().filter(|found| found["obstacle"].is_null()) {
        assert_eq!((&found["sent"], &found["arrived"]), (&100.into(), &100.into()), "{found}");
    }
}

#[test]
fn sender_warms_up_on_loopback_unless_disabled() {
    let Some(mut testbed) = Testbed::new() else { return };
    let port = &testbed.lab.ports()[0];
    let mut links = NamespaceLinks::open_in(port.netns()).unwrap();
    let loopback = links.find_link_by_name("lo").unwrap().index;
    links.switch_interface(loopback, true).unwrap();
    let options = RxOptions { retire_ms: 1, ..RxOptions::default() };
    let mut ring = RxRing::open_on_interface(port.netns(), loopback, "lo", options).unwrap();
    let schedule = ["--count", "5", "--every", "50ms", "--mechanism", "spin"];
    for (more, warms) in [(&[][..], true), (&["--no-warm-up"], false)] {
        assert_done(&testbed.send(&[&schedule[..], more].concat()));
        ring.wait_for_frames(20_000_000).unwrap();
        let mut seen = 0;
        ring.receive_frames(usize::MAX, &mut |frame| {
            assert_eq!(&frame.bytes[12..32], b"\x88\xb5packetrig warms up");
            seen += 1;
        });
        // A machine that wakes it too late has no time for it.
        assert_eq!(seen > 0, warms, "{seen} frames");
        assert_eq!(testbed.arrived().len(), 5, "nothing but probes leaves");
    }
}
