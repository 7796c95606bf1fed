//! Capacity of links that the kernel shapes, next to what a saturated link lets through.

use crate::shaped::{HEADERS, OTHERS_PAYLOAD, others, shape};
use crate::testbed::{Testbed, routed, said};
use packetrig_sys::packet::{RxOptions, RxRing};
use serde_json::Value;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const TOLERANCE: f64 = 0.05;
/// Bytes of UDP payload in a packet of the flood that fills the link.
const PAYLOAD: usize = 1472;
/// More packets than the bucket of a link holds: they show another rate than the link's.
const IN_THE_BUCKET: usize = 20;
/// The flood goes to port 9000.
const FLOOD_PORT: [u8; 2] = [0x23, 0x28];
/// The flood is over when its sender has ended and none of its packets came for this many looks of 50 ms.
const SILENT_LOOKS: u32 = 10;
const LOOK_NS: u64 = 50_000_000;

/// Bits of frames per second that come out of the link when more goes in. Of the times between packets, by the kernel's stamps, the middle
/// one counts: the link is in the kernel of a machine that may be away for a moment.
fn oracle(testbed: &Testbed, frames: usize) -> f64 {
    let arrivals = flood_arrivals(testbed, frames);
    // The link has room for a part of the flood only.
    assert!(arrivals.len() >= 2 * IN_THE_BUCKET, "{} of {frames} packets came", arrivals.len());
    let steady = &arrivals[IN_THE_BUCKET..];
    let mut gaps: Vec<u64> = steady.windows(2).map(|two| two[1].abs_diff(two[0])).collect();
    gaps.sort_unstable();
    (PAYLOAD + HEADERS) as f64 * 8e9 / gaps[gaps.len() / 2] as f64
}

/// When the packets of a flood arrive behind the link, in nanoseconds since 1970.
fn flood_arrivals(testbed: &Testbed, frames: usize) -> Vec<u64> {
    // Nobody reads it: with a socket there are no errors on the way back.
    let _taker = testbed.host(1).run_in_namespace(|| UdpSocket::bind("198.18.2.2:9000").unwrap()).unwrap();
    let near = testbed.host(0).run_in_namespace(|| UdpSocket::bind("198.18.1.2:0").unwrap()).unwrap();
    let port = &testbed.lab.ports()[1];
    let mut far =
        RxRing::open_on_interface(port.netns(), port.link.index, "flood", RxOptions::default()).unwrap();
    let flood = std::thread::spawn(move || {
        for _ in 0..frames {
            near.send_to(&[0; PAYLOAD], "198.18.2.2:9000").unwrap();
        }
    });
    let (mut arrivals, mut silent) = (Vec::new(), 0);
    while silent < SILENT_LOOKS {
        // Before the ring is read: what the sender sent last may still come.
        let is_over = flood.is_finished();
        let before = arrivals.len();
        far.wait_for_frames(LOOK_NS).unwrap();
        far.receive_frames(usize::MAX, &mut |frame| {
            let is_flood = frame.bytes.len() == PAYLOAD + HEADERS && frame.bytes[36..38] == FLOOD_PORT;
            arrivals.extend(is_flood.then_some(frame.realtime_ns));
        });
        silent = if is_over && arrivals.len() == before { silent + 1 } else { 0 };
    }
    flood.join().unwrap();
    arrivals
}

/// How often a busy machine may keep pairs of packets from agreeing.
const TRIES: usize = 5;

/// `None` only where least delays may never come: other programs on this machine delay probes, too.
fn measured(testbed: &Testbed, method: &str) -> Option<Value> {
    let said = answered(testbed, &["--method", method]);
    let is_excused = method == "capprobe" && reason(&said) == "not_converged";
    (!is_excused).then_some(said)
}

/// What is said of the link, asked again while pairs disagree: other programs part what the link put together.
fn answered(testbed: &Testbed, how: &[&str]) -> Value {
    let words = [&["capacity", "198.18.2.2", "--count", "60", "--pause", "10ms"], how].concat();
    let mut tries = (0..TRIES).map(|_| testbed.probe(&words));
    let said = tries.find_map(|finished| {
        let said = said(&finished);
        let expected = if said["estimate"].is_null() { 7 } else { 0 };
        assert_eq!(finished.code, Some(expected), "{said}{}", finished.stderr);
        (reason(&said) != "no_mode").then_some(said)
    });
    said.expect("pairs agree at least once")
}

/// Why there is no estimate.
fn reason(said: &Value) -> &Value {
    &said["no_answer"]["detail"]["reason"]
}

fn agrees(said: &Value, oracle: f64) {
    let found = said["estimate"]["bits_per_s"].as_f64().unwrap();
    assert!((found / oracle - 1.0).abs() < TOLERANCE, "{found} is not {oracle}: {said}");
    let packets = said["packet_bits_per_s"].as_f64().unwrap();
    assert!((packets / found - 1500.0 / 1514.0).abs() < 1e-6, "{said}");
}

/// Faster links are the evaluation's: a busy machine delays packets by more than 1514 bytes take at 100 Mbit/s.
#[test]
fn idle_links_are_measured_by_every_method() {
    let slow = ("tbf rate 1mbit burst 1600 limit 100000", 60);
    let usual = ("tbf rate 10mbit burst 5000 limit 200000", 300);
    let cases = [(slow, "pair"), (usual, "pair"), (usual, "capprobe"), (usual, "train")];
    // Each on a link of its own, side by side: trains mostly wait for the link.
    std::thread::scope(|scope| {
        for (link, method) in cases {
            scope.spawn(move || is_measured(link, method));
        }
    });
}

/// An idle link, and how many frames fill it.
fn is_measured((words, frames): (&str, usize), method: &str) {
    let Some(testbed) = routed() else { return };
    shape(&testbed, words);
    let oracle = oracle(&testbed, frames);
    if let Some(said) = measured(&testbed, method) {
        agrees(&said, oracle);
    }
}

/// A timer of the kernel is late by more than a frame takes on this link: pairs and trains may not agree, but nothing that is said is wrong.
#[test]
fn late_timers_give_true_capacity_or_none() {
    const RATE: f64 = 5e8;
    let Some(testbed) = routed() else { return };
    shape(&testbed, "tbf rate 500mbit burst 15000 limit 800000");
    for method in ["pair", "train"] {
        let words = ["capacity", "198.18.2.2", "--method", method, "--count", "60", "--pause", "5ms"];
        let finished = testbed.probe(&words);
        let said = said(&finished);
        let detail = &said["no_answer"]["detail"];
        if let (Some(low), Some(high)) = (said["estimate"]["low"].as_f64(), said["estimate"]["high"].as_f64())
        {
            assert!(low <= RATE && RATE <= high, "{method}: {said}");
        } else if let Some(rate) = detail["at_least"].as_f64() {
            let is_in_bucket = detail["bucket_bytes"].as_f64() < Some(15_000.0);
            assert!(rate <= RATE || is_in_bucket, "{method}: {said}");
        } else {
            assert_eq!(finished.code, Some(7), "{method}: {said}");
        }
    }
}

/// Echoes datagrams at the second host until it is told to end.
fn echo(testbed: &Testbed) -> (Arc<AtomicBool>, JoinHandle<()>) {
    let socket = testbed.host(1).run_in_namespace(|| UdpSocket::bind("198.18.2.2:7").unwrap()).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let end = is_over.clone();
    let thread = std::thread::spawn(move || {
        let mut buffer = [0; 2000];
        while !end.load(Ordering::Relaxed) {
            if let Ok((length, from)) = socket.recv_from(&mut buffer) {
                socket.send_to(&buffer[..length], from).unwrap();
            }
        }
    });
    (is_over, thread)
}

#[test]
fn udp_echo_capacity_matches_the_oracle() {
    let Some(testbed) = routed() else { return };
    shape(&testbed, "tbf rate 10mbit burst 5000 limit 200000");
    let oracle = oracle(&testbed, 300);
    let (is_over, thread) = echo(&testbed);
    let said = answered(&testbed, &["--udp", "7"]);
    is_over.store(true, Ordering::Relaxed);
    thread.join().unwrap();
    assert_eq!(said["way"], "there_and_back", "{said}");
    agrees(&said, oracle);
}

#[test]
fn capacity_of_busy_htb_link_matches_idle() {
    let Some(testbed) = routed() else { return };
    shape(&testbed, "handle 1: htb default 1");
    testbed.tc("class add dev port1 parent 1: classid 1:1 htb rate 10mbit burst 2000 cburst 2000");
    let oracle = oracle(&testbed, 300);
    let (is_over, thread) = others(&testbed, OTHERS_PAYLOAD, 0.4 * oracle);
    let said = measured(&testbed, "pair");
    is_over.store(true, Ordering::Relaxed);
    thread.join().unwrap();
    agrees(&said.unwrap(), oracle);
}

#[test]
fn a_link_without_a_bound_has_no_number() {
    let Some(testbed) = routed() else { return };
    let file = testbed.file("probes.jsonl");
    let words = ["capacity", "198.18.2.2", "--count", "20", "--pause", "1ms", "--longest", "12"];
    let finished = testbed.probe(&[&words[..], &["--write", &file.display().to_string()]].concat());
    let said = said(&finished);
    let written = std::fs::read_to_string(file).unwrap();
    let lines: Vec<Value> = written.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let header = &lines[0]["header"];
    assert_eq!((&header["probes"], &header["mechanism"]), (&said["probes"], &said["mechanism"]));
    assert_eq!(Some(lines.len() as u64 - 1), said["probes"].as_u64(), "a line for each probe");
    assert!(lines[1..].iter().all(|probe| !probe["departures"].is_null()), "{}", lines[1]);
    // A cable is as fast as the processors: it may look like a rate of its own, but of no less than 100 Mbit/s.
    match said["estimate"]["low"].as_f64() {
        Some(low) => assert!(low > 1e8, "{said}"),
        None => assert_eq!(finished.code, Some(7), "{said}"),
    }
}

#[test]
fn available_bandwidth_needs_a_reflector() {
    let Some(testbed) = routed() else { return };
    testbed.probe(&["available", "198.18.2.2"]).assert_refused(2, &["probe reflect", "--reflector"]);
}
