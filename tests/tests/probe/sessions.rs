//! STAMP sessions between our two ends.

use crate::stations::{ALLOW, FAR, Stations};
use packetrig_sys::clock;
use packetrig_tests::program::Running;
use rustix::process::Signal;
use serde_json::Value;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

pub(crate) const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

pub(crate) struct Files(tempfile::TempDir);

impl Files {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn key(&self, text: &str) -> String {
        let file = self.0.path().join(&text[..8]);
        std::fs::write(&file, text).unwrap();
        file.display().to_string()
    }
}

pub(crate) fn reflect(stations: &Stations, port: u16, more: &[&str]) -> Running {
    let address = format!("{FAR}:{port}");
    let netns = stations.lab.ports()[1].namespace().to_owned();
    let usual = ["probe", "reflect", &address, "--netns", &netns, "--json"];
    let mut running = Running::start(&[&usual[..], &ALLOW, more].concat(), "");
    running.await_remark("listening");
    running
}

/// Ends a reflector; gives what it counted.
pub(crate) fn counted(mut reflector: Running) -> Value {
    reflector.signal(Signal::TERM);
    let finished = reflector.finish();
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {}", finished.stderr))
}

/// Answers each datagram with the first bytes of it, as a reflector of another protocol does, until it is told to end.
fn answer_shortly(stations: &Stations, bytes: usize) -> (Arc<AtomicBool>, JoinHandle<()>) {
    let socket = stations.netns(1).run_in_namespace(|| UdpSocket::bind((FAR, 8622)).unwrap()).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let end = Arc::clone(&is_over);
    let thread = std::thread::spawn(move || {
        let mut buffer = [0; 2000];
        while !end.load(Ordering::Relaxed) {
            if let Ok((_, from)) = socket.recv_from(&mut buffer) {
                socket.send_to(&buffer[..bytes], from).unwrap();
            }
        }
    });
    (is_over, thread)
}

#[test]
fn foreign_protocol_reflections_are_lost_with_reason() {
    let Some(stations) = Stations::cabled() else { return };
    let (is_over, thread) = answer_shortly(&stations, 38);
    let target = format!("{FAR}:8622");
    let (_, said) = stations.probe(&["stamp", &target, "-c", "5", "-i", "50ms", "--wait", "200ms"]);
    is_over.store(true, Ordering::Relaxed);
    thread.join().unwrap();
    assert_eq!(said["counts"]["answered"], 0, "{said}");
    let invalid = &said["directions"]["invalid"];
    assert!(invalid["too_short"].as_u64() > Some(0), "{said}");
    assert_eq!((&invalid["shortest_bytes"], &invalid["needed_bytes"]), (&38.into(), &44.into()), "{said}");
    assert!(said["rtt"].is_null(), "{said}");
}

#[test]
fn stamp_session_accounts_for_both_directions() {
    let Some(stations) = Stations::cabled() else { return };
    let files = Files::new();
    let key = files.key(KEY);
    for (port, auth) in [(8620, &[][..]), (8621, &["--auth", &key][..])] {
        let reflector = reflect(&stations, port, &[auth, &["--clock-bound", "50us"]].concat());
        let target = format!("{FAR}:{port}");
        let asked = ["stamp", &target, "-c", "10", "-i", "50ms", "--size", "300", "--clock-bound", "1us"];
        let (finished, said) = stations.probe(&[&asked[..], auth].concat());
        assert_eq!(finished.code, Some(0), "{}", finished.stderr);
        assert_eq!(said["counts"]["answered"], 10, "{said}");
        assert_eq!(said["directions"]["invalid"]["too_short"], 0);
        assert!(said["directions"]["follow_ups"].as_u64().unwrap() >= 8, "{said}");
        // One machine, one clock: both delays are above nothing, within their bound, and no longer than the whole.
        let ns = |path: &str| {
            said.pointer(path).and_then(Value::as_i64).unwrap_or_else(|| panic!("{path}: {said}"))
        };
        for way in ["there", "back"] {
            let (least, bound) =
                (ns(&format!("/one_way/{way}/delay/min_ns")), ns(&format!("/one_way/{way}/delay/bound_ns")));
            assert!(least + bound > 0 && least < ns("/rtt/max_ns") + bound, "{said}");
        }
        assert!(ns("/one_way/path/min_ns") <= ns("/rtt/max_ns"));
        let counts = counted(reflector);
        assert_eq!((&counts["requests"], &counts["reflected"]), (&10.into(), &10.into()));
    }
}

#[test]
fn stamp_without_reflector_counts_refused_requests() {
    let Some(stations) = Stations::cabled() else { return };
    let target = format!("{FAR}:8629");
    let (finished, said) = stations.probe(&["stamp", &target, "-c", "3", "-i", "50ms"]);
    let counts = &said["counts"];
    assert_eq!((&counts["sent"], &counts["answered"]), (&3.into(), &0.into()), "{said}");
    // Linux sends the first error at once, and may keep back the others.
    assert!(counts["refused"].as_u64() >= Some(1), "{said}");
    assert_ne!(finished.code, Some(0), "{}", finished.stderr);
}

#[test]
fn one_way_delay_needs_clock_bounds() {
    let Some(stations) = Stations::cabled() else { return };
    let reflector = reflect(&stations, 8622, &[]);
    let target = format!("{FAR}:8622");
    for (more, why) in [(&[][..], "this_clock"), (&["--clock-bound", "1ms"][..], "far_clock")] {
        let asked = ["stamp", &target, "-c", "4", "-i", "50ms"];
        let (_, said) = stations.probe(&[&asked[..], more].concat());
        assert_eq!(said["one_way"]["no_delay"], why);
        assert!(said["one_way"]["there"]["delay"].is_null());
        assert_eq!(said["one_way"]["there"]["variation"]["min_ns"], 0);
    }
    counted(reflector);
}

#[test]
fn reflector_ignores_wrong_key_and_unpermitted_sender() {
    let Some(stations) = Stations::cabled() else { return };
    let files = Files::new();
    let (key, wrong) = (files.key(KEY), files.key(&KEY.replace('0', "f")));
    let reflector = reflect(&stations, 8623, &["--auth", &key]);
    let target = format!("{FAR}:8623");
    let asked = ["stamp", &target, "-c", "3", "-i", "50ms", "--wait", "200ms", "--auth", &wrong];
    let (finished, said) = stations.probe(&asked);
    assert_eq!((finished.code, &said["counts"]["answered"]), (Some(1), &0.into()));
    await_datagrams(&stations, 3);
    let counts = counted(reflector);
    assert_eq!((&counts["reflected"], &counts["refused"]["unreadable"]), (&0.into(), &3.into()));
    // The same reflector, to which nobody is allowed but this machine's own addresses.
    let netns = stations.lab.ports()[1].namespace().to_owned();
    let mut closed = Running::start(&["probe", "reflect", &target, "--netns", &netns, "--json"], "");
    closed.await_remark("listening");
    let (finished, _) = stations.probe(&["stamp", &target, "-c", "3", "-i", "50ms", "--wait", "200ms"]);
    assert_eq!(finished.code, Some(1));
    await_datagrams(&stations, 6);
    assert_eq!(counted(closed)["foreign"], 3);
}

/// Waits until programs at the second station have read so many datagrams in all.
fn await_datagrams(stations: &Stations, count: u64) {
    let read = || {
        let table = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
        // A line with the names of the counters, and one with their values; the first of UDP is InDatagrams.
        let values = table.lines().filter_map(|line| line.strip_prefix("Udp: ")).nth(1).unwrap();
        values.split(' ').next().unwrap().parse::<u64>().unwrap()
    };
    let deadline = clock::monotonic_ns() + 20_000_000_000;
    while stations.netns(1).run_in_namespace(read).unwrap() < count {
        assert!(clock::monotonic_ns() < deadline, "{count} datagrams are not read");
        clock::sleep_until_ns(clock::monotonic_ns() + 5_000_000);
    }
}

#[test]
fn reflector_refuses_wildcard_address() {
    for address in ["0.0.0.0:862", "[::]:862"] {
        Running::start(&["probe", "reflect", address], "")
            .finish()
            .assert_refused(2, &[address, "name one address"]);
    }
}

#[test]
fn reflector_reads_permit_file_from_any_path() {
    let Some(stations) = Stations::cabled() else { return };
    let files = Files::new();
    let permit = files.0.path().join("permit.toml");
    std::fs::write(&permit, "[[target]]\nnetwork = \"198.18.0.1/32\"\n").unwrap();
    let netns = stations.lab.ports()[1].namespace().to_owned();
    let (address, permit) = (format!("{FAR}:8629"), permit.display().to_string());
    let mut reflector =
        Running::start(&["probe", "reflect", &address, "--netns", &netns, "--permit", &permit, "--json"], "");
    reflector.await_remark("listening");
    let (finished, said) = stations.probe(&["stamp", &address, "-c", "3", "-i", "50ms"]);
    assert_eq!((finished.code, &said["counts"]["answered"]), (Some(0), &3.into()), "{}", finished.stderr);
    assert_eq!(counted(reflector)["reflected"], 3);
}
