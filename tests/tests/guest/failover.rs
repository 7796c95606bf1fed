//! A pair of meters while the clock of their machine is set: whatever it shows, a takeover loses nothing.

use packetrig_sys::private_files;
use packetrig_testkit::Lab;
use packetrig_tests::listening::await_place;
use packetrig_tests::own_place::own_place;
use packetrig_tests::program::Running;
use packetrig_tests::skip::{self, OwnLab};
use packetrig_tests::station;
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const FLOWS: u16 = 20;
const FIRST_PORT: u16 = 20_000;
/// Between two packets of a flow.
const PAUSE: Duration = Duration::from_millis(100);

/// Longer than the active timeout of these meters, and shorter than their idle timeout.
const REST: Duration = Duration::from_millis(2300);

/// Packets of each flow, by its port.
type FlowPackets = BTreeMap<u64, u64>;

/// Two meters with copies of one link, and their collector.
struct SteppedPair {
    lab: OwnLab,
    directory: tempfile::TempDir,
    collector: Running,
    target: String,
    places: [String; 2],
    sent: FlowPackets,
}

/// Sets the clock of this machine, as `date` understands it. Only in the guest, whose clock is its own.
fn step_clock(by: &str) {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let line = std::fs::read_to_string("/proc/cmdline").unwrap();
    assert!(name.trim() == "guest" && line.contains("LIMIT="), "this is no guest: its clock stays as it is");
    assert!(Command::new("date").args(["--set", by]).status().unwrap().success());
}

/// A UDP packet of a flow.
fn frame(flow: u16) -> Vec<u8> {
    let mut head = vec![0x45, 0, 0, 78, 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 0, 1, 198, 19, 0, 2];
    let sum: u32 = head.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
    head[10..12].copy_from_slice(&sum.to_be_bytes());
    let ports = [(FIRST_PORT + flow).to_be_bytes(), 9_u16.to_be_bytes()].concat();
    let ethernet = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    [&ethernet[..], &head, &ports, &[0, 58, 0, 0], &[7; 50]].concat()
}

impl SteppedPair {
    fn start() -> Option<Self> {
        let lab = skip::quiet_lab(|| Lab::with_bridge(3))?;
        let directory = tempfile::tempdir().unwrap();
        private_files::write_file(&directory.path().join("key"), "00112233445566778899aabbccddeeff\n")
            .unwrap();
        let records = directory.path().join("records").display().to_string();
        let flags =
            ["collect", "--json", "--quiet", "--directory", &records, "--listen", "tcp://127.0.0.1:0"];
        let mut collector = Running::start(&flags, "");
        let target = await_place(&mut collector);
        let places = [(); 2].map(|()| own_place().to_string());
        Some(Self { lab, directory, collector, target, places, sent: FlowPackets::new() })
    }

    fn records(&self) -> PathBuf {
        self.directory.path().join("records")
    }

    /// Starts meter 1 or 2 at its copy of the link.
    fn meter(&self, number: usize) -> Running {
        let location = self.lab.location(number);
        let key = self.directory.path().join("key").display().to_string();
        let member = number.to_string();
        let (own, peer) = (&self.places[number - 1], &self.places[2 - number]);
        let flags = ["meter", &location, "--direction", "in", "--json", "--export", &self.target];
        let of_group = ["--group", "link", "--member", &member, "--peer", peer, "--peer-listen", own];
        // An emulated processor is slow.
        let more = ["--peer-key", &key, "--advertise", "300ms", "--active", "2s", "--idle", "4s"];
        let mut running = Running::start(&[&flags[..], &of_group, &more].concat(), "");
        running.await_remark("listening");
        running
    }

    /// Sends so many packets of each flow.
    fn send(&mut self, rounds: usize) {
        let frames: Vec<_> = (0..FLOWS).map(frame).collect();
        for _ in 0..rounds {
            station::send(&self.lab.ports()[0], frames.iter());
            for flow in 0..FLOWS {
                *self.sent.entry(u64::from(FIRST_PORT + flow)).or_default() += 1;
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn send_until(&mut self, meter: &mut Running, said: &str) {
        while !meter.remarks().contains(said) {
            assert!(!meter.has_ended(), "{}", meter.remarks());
            self.send(1);
        }
    }

    /// Sends until a meter that came late knows every running flow: flows are quiet while their parts are cut.
    fn settle(&mut self, meter: &mut Running, ready: &str) {
        while !meter.remarks().contains(ready) {
            assert!(!meter.has_ended(), "{}", meter.remarks());
            self.send(3);
            std::thread::sleep(REST);
        }
    }
}

fn report(mut running: Running, signal: Signal) -> Value {
    running.signal(signal);
    let finished = running.finish();
    serde_json::from_str(&finished.stdout)
        .unwrap_or_else(|_| panic!("{:?}: {}", finished.code, finished.stderr))
}

fn stored(records: &Path) -> FlowPackets {
    let shown = Running::start(&["flows", "show", "--json", &records.display().to_string()], "").finish();
    assert_eq!(shown.code, Some(0), "{}", shown.stderr);
    let mut sums = FlowPackets::new();
    for row in shown.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        let port = row["sourceTransportPort"].as_u64().unwrap_or_default();
        if port >= u64::from(FIRST_PORT) {
            *sums.entry(port).or_default() += row["packetDeltaCount"].as_u64().unwrap_or_default();
        }
    }
    sums
}

/// Sets the clock while flows go on, then the exporting meter is killed and comes back.
fn assert_whole_after(steps: &[&str]) {
    let Some(mut pair) = SteppedPair::start() else { return };
    let mut one = pair.meter(1);
    one.await_remark("meter 1 is active");
    let mut meters = [Some(one), Some(pair.meter(2))];
    pair.settle(meters[1].as_mut().unwrap(), "meter 2 is ready");
    for (active, step) in [0, 1].into_iter().cycle().zip(steps) {
        let standby = 1 - active;
        // For longer than a standby keeps the records of which the flows' places are known.
        pair.send(60);
        step_clock(step);
        pair.send(5);
        let mut killed = meters[active].take().unwrap();
        killed.signal(Signal::KILL);
        drop(killed.finish());
        let heir = meters[standby].as_mut().unwrap();
        pair.send_until(heir, &format!("meter {} is active", standby + 1));
        pair.send(10);
        let mut back = pair.meter(active + 1);
        pair.settle(&mut back, &format!("meter {} is ready", active + 1));
        meters[active] = Some(back);
    }
    pair.send(5);
    let reports: Vec<Value> = meters.into_iter().flatten().map(|meter| report(meter, Signal::TERM)).collect();
    let records = pair.records();
    let collected = report(pair.collector, Signal::INT);
    assert_eq!(stored(&records), pair.sent, "{collected:#} {reports:#?}");
}

#[test]
#[ignore = "runs in the guest: make test-vm"]
fn small_clock_step_loses_nothing_at_takeover() {
    assert_whole_after(&["+2 seconds", "-2 seconds"]);
}

#[test]
#[ignore = "runs in the guest: make test-vm"]
fn one_hour_clock_step_loses_nothing_at_takeover() {
    assert_whole_after(&["-1 hour", "+1 hour"]);
}
