//! Programs in C and Python, and unmodified programs with the preload library, hand packets over to `probe serve`: each packet is reported
//! once, and leaves once.

use crate::stations::{FAR, Stations};
use packetrig_sys::packet::{RxOptions, RxRing};
use packetrig_tests::program::Running;
use packetrig_tests::skip;
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

const PERMIT: &str =
    "[[target]]\nnetwork = \"198.18.0.0/24\"\nprobes_per_s = 200000\nbits_per_s = \"1Gbps\"\nburst = 1000\n";
/// Packets a millisecond apart must not take a block of the ring each.
const RETIRE_MS: u32 = 20;
/// IPv4 header of a frame: the protocol is at 23, the target's port at 36.
const UDP_TO_DISCARD: (u8, [u8; 2]) = (17, [0, 9]);

fn clients() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().expect("the tests are a folder of the project").join("clients")
}

/// Where the built clients are, for all tests: each build takes a second of a processor.
fn built() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients")
}

/// Builds the clients in C without a warning, or finds them built. Each test is a process of its own: one of them builds, the others wait.
fn build_clients() {
    std::fs::create_dir_all(built()).unwrap();
    let lock = File::create(built().join("lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let out = format!("OUT={}", built().display());
    let mut make = Command::new("make");
    make.args(["-s", "WARNINGS=-Wall -Wextra -Werror", &out]).arg("-C").arg(clients());
    let made = make.env_remove("MAKEFLAGS").output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

/// A service at the first of two stations, the built clients, and a ring at the second station.
pub(crate) struct Released {
    stations: Stations,
    service: Running,
    far: RxRing,
    files: TempDir,
}

impl Released {
    /// `None` without a compiler or the rights it takes.
    pub(crate) fn new() -> Option<Self> {
        if !skip::has_tool("cc") || !skip::has_tool("make") {
            return None;
        }
        let stations = Stations::cabled()?;
        let files = tempfile::tempdir().unwrap();
        build_clients();
        let [socket, permit] =
            ["release.sock", "permit.toml"].map(|name| files.path().join(name).display().to_string());
        std::fs::write(&permit, PERMIT).unwrap();
        let at = stations.lab.location(0);
        let serve = ["probe", "serve", &at, "--socket", &socket, "--permit", &permit, "--mechanism", "spin"];
        let mut service = Running::start(&serve, "");
        service.await_remark("listening on");
        let port = &stations.lab.ports()[1];
        let options = RxOptions { blocks: 256, retire_ms: RETIRE_MS, ..RxOptions::default() };
        let far = RxRing::open_on_interface(port.netns(), port.link.index, "far", options).unwrap();
        Some(Self { stations, service, far, files })
    }

    fn path(&self, name: &str) -> String {
        self.files.path().join(name).display().to_string()
    }

    /// A client in C.
    fn client(name: &str) -> String {
        built().join(name).display().to_string()
    }

    /// A program at the first station, with the socket of the service.
    fn run(&self, program: &str, words: &[&str], variables: &[(&str, &str)]) -> Output {
        let mut command = Command::new(program);
        command.args(words).env("PACKETRIG_RELEASE_SOCKET", self.path("release.sock"));
        command.env("PYTHONDONTWRITEBYTECODE", "1").envs(variables.iter().copied());
        self.stations.netns(0).run_in_namespace(move || command.output().unwrap()).unwrap()
    }

    /// An unmodified program, with the library before libc.
    pub(crate) fn preload(&self, program: &str, words: &[&str], variables: &[(&str, &str)]) -> Output {
        let (library, reports) = (Self::client("libpacketrig_sendto.so"), self.path("reports.csv"));
        let usual = [("LD_PRELOAD", library.as_str()), ("PACKETRIG_REPORTS", &reports)];
        self.run(program, words, &[&usual, variables].concat())
    }

    /// The rows of the reports so far, in the order of their packets.
    pub(crate) fn reports(&self) -> Vec<Row> {
        let text = std::fs::read_to_string(self.path("reports.csv")).unwrap_or_default();
        let mut rows: Vec<Row> = text.lines().skip(1).map(Row::read).collect();
        rows.sort_by_key(|row| row.number);
        rows
    }

    /// Has a program hand packets over until so many were sent in time: on a busy machine a packet can come too late for its slot, and the
    /// program then sends it without the service. What the program said, and the reports.
    pub(crate) fn send_in_time(
        &mut self,
        packets: usize,
        mut hand_over: impl FnMut(&mut Self) -> Output,
    ) -> (Output, Vec<Row>) {
        let mut missed = String::new();
        for _ in 0..MAX_TRIES {
            // Absent before the first try.
            drop(std::fs::remove_file(self.path("reports.csv")));
            let output = hand_over(self);
            let reports = self.reports();
            if reports.len() == packets && reports.iter().all(|row| row.outcome == "sent") {
                return (output, reports);
            }
            missed = format!("{reports:?} {}", complaints(&output));
        }
        panic!("not {packets} packets were sent in time, in each of {MAX_TRIES} tries: {missed}");
    }

    /// How many datagrams to port 9 arrived since last time.
    fn datagrams(&mut self) -> usize {
        let (mut found, mut quiet) = (0, 0);
        while quiet < 5 {
            self.far.wait_for_frames(u64::from(RETIRE_MS) * 1_000_000).unwrap();
            let taken = self.far.receive_frames(usize::MAX, &mut |frame| {
                let bytes = frame.bytes;
                let is_ip = bytes.len() >= 42 && bytes[12..14] == [8, 0];
                found += usize::from(is_ip && (bytes[23], [bytes[36], bytes[37]]) == UDP_TO_DISCARD);
            });
            // A frame that has come may be in a block that the kernel still fills.
            let is_quiet = taken == 0 && self.far.read_progress().unwrap().is_read();
            quiet = if is_quiet { quiet + 1 } else { 0 };
        }
        found
    }
}

/// How often a busy machine may be too late.
const MAX_TRIES: usize = 5;

/// A row of `PACKETRIG_REPORTS`.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) number: u64,
    pub(crate) target: String,
    pub(crate) called: u64,
    pub(crate) planned: u64,
    pub(crate) outcome: String,
}

impl Row {
    fn read(line: &str) -> Self {
        let fields: Vec<&str> = line.split(',').collect();
        let [number, target, called, planned, .., outcome] = fields[..] else { panic!("{line}") };
        assert_eq!(fields.len(), 9, "{line}");
        Self {
            number: number.parse().unwrap(),
            target: target.to_owned(),
            called: called.parse().unwrap(),
            planned: planned.parse().unwrap(),
            outcome: outcome.to_owned(),
        }
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn complaints(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Numbers of packets are used once.
pub(crate) fn assert_numbered_once(rows: &[Row]) {
    assert!(rows.windows(2).all(|pair| pair[0].number < pair[1].number), "{rows:?}");
}

/// The same as `clients/tests/refusals.c`.
const REFUSALS: &str = r#"
import sys
from packetrig_release import *
target = sys.argv[1]
with ReleaseClient(name="refusals") as client:
    print("welcome burst", client.welcome.limits.burst, "train", client.welcome.train_packets)
    client.ask_limits(target)
    told = client.next_event(5)
    print("limits permitted", int(told.limits is not None), "packets_per_s", told.limits.packets_per_s)
    data = udp_packet(source_for(target), 40002, target, 9, b"wrong")
    wrong = data[:10] + bytes([data[10] ^ 1]) + data[11:]
    client.submit([Packet(data, now()), Packet(wrong, now(), cookie=1)])
    refused = next(report for report in client.reports(2, timeout=5) if report.cookie == 1)
    print(refused.outcome.name.lower(), "packet", refused.packet, "byte", refused.byte)
    client.submit([Packet(data, now(), clock=99)])
    told = next(event for event in client.events(5) if isinstance(event, ServiceError))
    print(told.text, "packet", told.packet, "byte", told.byte)
"#;

#[test]
fn release_clients_report_limits_and_errors() {
    let Some(released) = Released::new() else { return };
    let wanted = "welcome burst 1000 train 256\nlimits permitted 1 packets_per_s 200000\n\
        malformed packet 1 byte 42\n\
        `clock` of packet 0 (byte 55 of the message) is missing or wrong packet 0 byte 55\n";
    let c = Released::client("refusals");
    let modules = clients().join("python").display().to_string();
    for (program, words) in [(c.as_str(), vec![FAR]), ("python3", vec!["-c", REFUSALS, FAR])] {
        let output = released.run(program, &words, &[("PYTHONPATH", &modules)]);
        assert_eq!(said(&output), wanted, "{program}: {}", complaints(&output));
    }
}

#[test]
fn release_client_examples_send_a_pair() {
    let Some(mut released) = Released::new() else { return };
    let c = Released::client("example");
    let python = clients().join("python/example.py").display().to_string();
    for (program, words) in [(c.as_str(), vec![FAR]), ("python3", vec![python.as_str(), FAR])] {
        let output = released.run(program, &words, &[]);
        let text = said(&output);
        assert!(output.status.success(), "{text}{}", complaints(&output));
        let words: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
        assert_eq!(words.len(), 2, "{text}");
        assert_eq!(
            (words[0][..3].join(" "), words[1][..3].join(" ")),
            ("0 sent planned".to_owned(), "1 sent planned".to_owned())
        );
        let planned: Vec<u64> = words.iter().map(|words| words[3].parse().unwrap()).collect();
        assert_eq!(planned[1] - planned[0], 50_000, "{text}");
        assert_eq!(released.datagrams(), 2, "{text}");
    }
    released.service.signal(rustix::process::Signal::INT);
    let counts = released.service.finish();
    assert_eq!(counts.code, Some(0), "{}{}", counts.stdout, counts.stderr);
    assert!(counts.stdout.contains("example ("), "{}", counts.stdout);
}

#[test]
fn libc_returns_the_same_with_the_preload_library() {
    let Some(mut released) = Released::new() else { return };
    let calls = Released::client("calls");
    let without = released.run(&calls, &[FAR], &[]);
    let expected = released.datagrams();
    assert!(without.status.success(), "{}", complaints(&without));
    assert!(said(&without).ends_with(&format!("datagrams: {expected} \n")), "{}", said(&without));
    let schedule = ("PACKETRIG_SCHEDULE", "every=1ms,ahead=3ms,per=program");
    let mut arrived = 0;
    // Each datagram is reported once.
    let (with, reports) = released.send_in_time(expected, |released| {
        let with = released.preload(&calls, &[FAR], &[schedule, ("PACKETRIG_WAIT", "1")]);
        assert_eq!(said(&with), said(&without), "{}", complaints(&with));
        arrived = released.datagrams();
        with
    });
    assert_eq!((arrived, complaints(&with).as_str()), (expected, ""));
    assert!(reports.iter().all(|row| row.target == FAR), "{reports:?}");
}

#[test]
fn preload_library_is_transparent_without_service() {
    let Some(mut released) = Released::new() else { return };
    let calls = Released::client("calls");
    let without = released.run(&calls, &[FAR], &[]);
    let expected = released.datagrams();
    let schedule = ("PACKETRIG_SCHEDULE", "every=1ms,ahead=3ms,per=program");
    let nowhere = ("PACKETRIG_RELEASE_SOCKET", "/nowhere/release.sock");
    let absent = released.preload(&calls, &[FAR], &[schedule, nowhere]);
    assert_eq!(said(&absent), said(&without));
    assert_eq!(complaints(&absent).lines().count(), 1, "{}", complaints(&absent));
    assert!(complaints(&absent).contains("does `packetrig probe serve` run?"), "{}", complaints(&absent));
    let quiet = released.preload(&calls, &[FAR], &[schedule, nowhere, ("PACKETRIG_QUIET", "1")]);
    assert_eq!((said(&quiet), complaints(&quiet)), (said(&without), String::new()));
    assert_eq!(released.datagrams(), 2 * expected);
    // A schedule that cannot be read changes nothing: only the packet with a time of its own is handed over.
    let wrong = [("PACKETRIG_SCHEDULE", "every=10"), ("PACKETRIG_WAIT", "1")];
    let mut arrived = 0;
    let (output, _) = released.send_in_time(1, |released| {
        let output = released.preload(&calls, &[FAR], &wrong);
        assert_eq!(said(&output), said(&without));
        arrived = released.datagrams();
        output
    });
    assert_eq!(arrived, expected);
    assert!(complaints(&output).contains("PACKETRIG_SCHEDULE is not"), "{}", complaints(&output));
}

#[test]
fn fping_sends_on_a_schedule_without_knowing() {
    let Some(mut released) = Released::new() else { return };
    if !skip::has_tool("fping") {
        return;
    }
    let words = ["-q", "-c", "20", "-i", "1", "-p", "9", "-t", "2000", FAR];
    let schedule = ("PACKETRIG_SCHEDULE", "every=10ms,ahead=100ms");
    let (output, reports) =
        released.send_in_time(20, |released| released.preload("fping", &words, &[schedule]));
    assert!(complaints(&output).contains("xmt/rcv/%loss = 20/20/0%"), "{}", complaints(&output));
    assert_numbered_once(&reports);
    for pair in reports.windows(2) {
        let apart = pair[1].planned - pair[0].planned;
        assert!(apart > 0 && apart.is_multiple_of(10_000_000), "{pair:?}");
        assert!(pair[1].called < pair[1].planned, "{pair:?}");
    }
}
