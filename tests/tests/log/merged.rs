//! `packetrig merge`: what any capture of a link has is in the result once, and the result says which of them had it.

use super::{lab, number, start, told};
use packetrig_sys::packet::{TxOptions, TxRing};
use packetrig_testkit::lab::LabPort;
use packetrig_tests::program::Running;
use packetrig_tests::skip;
use packetrig_tests::tools::tshark;
use packetrig_wire::pattern::keyed_mix;
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Frames that differ in their number only, which stands behind the Ethernet header.
fn send_numbered(port: &LabPort, numbers: impl IntoIterator<Item = u64>) {
    let options = TxOptions { longest: 2000, ..TxOptions::default() };
    let mut ring = TxRing::open_on_interface(port.netns(), port.link.index, "test", options).unwrap();
    for number in numbers {
        let header = [2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1, 0x88, 0xb5];
        let frame = [&header[..], &number.to_be_bytes(), &[7; 78]].concat();
        while ring.next_slot().is_none() {
            ring.kick_kernel().unwrap();
        }
        ring.next_slot().unwrap()[..frame.len()].copy_from_slice(&frame);
        ring.commit_frame(frame.len());
        ring.kick_kernel().unwrap();
    }
    while ring.pending_frames() > 0 {
        ring.kick_kernel().unwrap();
    }
}

/// Merges these into a file: the exit code and what was printed.
fn merge(captures: &[&Path], into: &Path, more: &[&str]) -> (Option<i32>, Value) {
    let paths: Vec<&str> = captures.iter().map(|path| path.to_str().unwrap()).collect();
    let words = [&["merge", "--json", "--write", into.to_str().unwrap()], &paths[..], more].concat();
    let finished = Running::start(&words, "").finish();
    (finished.code, told(&finished))
}

/// The numbers in a merged file in order, and how many packets each interface has, as tshark reads them.
fn read(file: &Path) -> (Vec<u64>, BTreeMap<String, usize>) {
    let mut numbers = Vec::new();
    let mut interfaces = BTreeMap::new();
    let mut last = 0.0;
    for row in tshark(file, &["frame.interface_name", "frame.time_epoch", "data.data"]) {
        let [interface, time, data] = &row[..] else { panic!("{row:?}") };
        *interfaces.entry(interface.clone()).or_insert(0) += 1;
        numbers.push(u64::from_str_radix(&data.replace(':', "")[..16], 16).unwrap());
        let time: f64 = time.parse().unwrap();
        assert!(time >= last, "{row:?}");
        last = time;
    }
    (numbers, interfaces)
}

fn end(mut log: Running, signal: Signal) {
    log.signal(signal);
    log.finish();
}

#[test]
fn merged_logs_contain_each_frame_once() {
    let Some(lab) = lab().filter(|_| skip::has_tool("tshark")) else { return };
    let directory = tempfile::tempdir().unwrap();
    let (left, right) = (directory.path().join("left"), directory.path().join("right"));
    let port = &lab.ports()[0];
    let (left_log, right_log) = (start(&lab, &left, &[]), start(&lab, &right, &[]));
    send_numbered(port, 1..=1000);
    // The first log is ended by force and loses what it had not written; the other one sees all of the next frames.
    end(left_log, Signal::KILL);
    send_numbered(port, 1001..=2000);
    let left_log = start(&lab, &left, &[]);
    send_numbered(port, 2001..=3000);
    end(right_log, Signal::TERM);
    send_numbered(port, 3001..=4000);
    end(left_log, Signal::TERM);
    let into = directory.path().join("both.pcapng");
    let (code, result) = merge(&[&left, &right], &into, &[]);
    assert_eq!((code, number(&result, "/packets")), (Some(0), 4000), "{result}");
    let (numbers, interfaces) = read(&into);
    assert_eq!(numbers, (1..=4000).collect::<Vec<u64>>(), "{result}");
    let of = |name: &str| interfaces.get(name).copied().unwrap_or_default() as u64;
    assert_eq!(of("left+right"), number(&result, "/in_all"), "{result}");
    assert_eq!((of("left"), number(&result, "/captures/0/only_here")), (1000, 1000), "{result}");
    assert_eq!(number(&result, "/captures/1/only_here"), of("right"), "{result}");
    // What the killed log had not written is missing, or from before its first packet if it had written nothing.
    let lacking = ["/captures/0/missing", "/captures/0/before_or_after"].map(|path| number(&result, path));
    assert_eq!(lacking.iter().sum::<u64>(), of("right"), "{result}");
    assert_eq!(number(&result, "/captures/1/before_or_after"), 1000, "it had ended: {result}");
}

/// Files by another program, one of which has another clock, lacks packets and keeps less of each.
#[test]
fn merge_aligns_clocks_of_foreign_captures() {
    let tools = ["tshark", "editcap"].into_iter().all(skip::has_tool);
    let Some(lab) = lab().filter(|_| tools) else { return };
    let directory = tempfile::tempdir().unwrap();
    let log = start(&lab, &directory.path().join("log"), &[]);
    send_numbered(&lab.ports()[0], 1..=2000);
    end(log, Signal::TERM);
    let whole = directory.path().join("log/log-00001.pcapng");
    let other = directory.path().join("other.pcap");
    let edit = |words: &[&str]| {
        let edited = Command::new("editcap").args(words).output().unwrap();
        assert!(edited.status.success(), "{}", String::from_utf8_lossy(&edited.stderr));
    };
    // Its clock is 12.5 s ahead; of its packets 101 to 200 are deleted, and 64 bytes are kept of each.
    let (from, to) = (whole.to_str().unwrap(), other.to_str().unwrap());
    edit(&["-F", "nsecpcap", "-t", "12.5", "-s", "64", from, to, "101-200"]);
    let one = directory.path().join("one.pcap");
    edit(&["-F", "nsecpcap", from, one.to_str().unwrap(), "1901-2000"]);
    let into = directory.path().join("both.pcapng");
    let (code, result) = merge(&[&one, &other], &into, &[]);
    assert_eq!(
        (code, number(&result, "/packets"), number(&result, "/in_all")),
        (Some(0), 2000, 1800),
        "{result}"
    );
    assert_eq!(result["captures"][1]["clock"]["ahead_ns"], -12_500_000_000_i64, "{result}");
    assert_eq!(result["captures"][1]["clock"]["jitter_ns"], 0, "{result}");
    let missing = ["/captures/0/before_or_after", "/captures/1/missing"].map(|path| number(&result, path));
    assert_eq!(missing, [100, 100], "{result}");
    let (numbers, interfaces) = read(&into);
    assert_eq!(numbers, (1..=2000).collect::<Vec<u64>>());
    let wanted = [("one.pcap", 100), ("one.pcap+other.pcap", 1800), ("other.pcap", 100)];
    assert_eq!(interfaces, BTreeMap::from(wanted.map(|(name, packets)| (name.to_owned(), packets))));
    // With too little memory packets do not wait for the other capture, but none is lost.
    let (code, result) = merge(&[&one, &other], &directory.path().join("hasty.pcapng"), &["--memory", "1KB"]);
    let of_each = [0, 1].map(|capture| number(&result, &format!("/captures/{capture}/packets")));
    assert_eq!((code, of_each), (Some(0), [1900, 1900]), "{result}");
    assert!(number(&result, "/early") > 0, "{result}");
    // With the first clock in the lead, the packet that the first capture lacks has its time, too.
    let times = tshark(&into, &["frame.time_epoch"]);
    let as_logged = tshark(&whole, &["frame.time_epoch"]);
    assert_eq!(times, as_logged);
}

#[test]
fn merge_refuses_unusable_captures_without_output() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let capture = |name: &str, first: u8| {
        // Classic pcap with nanoseconds: three packets of 60 bytes.
        let words = [0xa1b2_3c4d_u32, 0x0004_0002, 0, 0, 262_144, 1];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        for number in 0..3 {
            bytes.extend(
                [1_790_000_000_u32, 1000 * u32::from(number), 60, 60]
                    .iter()
                    .flat_map(|word| word.to_le_bytes()),
            );
            bytes.extend([first + number; 60]);
        }
        std::fs::write(path(name), bytes).unwrap();
    };
    capture("a.pcap", 1);
    capture("b.pcap", 100);
    std::fs::write(path("text"), "no capture at all, but a text").unwrap();
    std::fs::create_dir(path("empty")).unwrap();
    let text = |name: &str| path(name).display().to_string();
    let into = text("both.pcapng");
    let refused = |captures: [&str; 2], into: &str, code: i32, words: &[&str]| {
        let arguments = ["merge", &text(captures[0]), &text(captures[1]), "--write", into];
        Running::start(&arguments, "").finish().assert_refused(code, words);
    };
    refused(["a.pcap", "b.pcap"], &into, 2, &["a.pcap", "b.pcap", "no packet in common"]);
    refused(["a.pcap", "missing.pcap"], &into, 2, &["missing.pcap"]);
    refused(["a.pcap", "text"], &into, 2, &["text", "neither a pcap nor a pcapng"]);
    refused(["a.pcap", "empty"], &into, 2, &["empty", "no files of a log"]);
    Running::start(&["merge", &text("a.pcap"), "/dev/null", "--write", &into], "")
        .finish()
        .assert_refused(2, &["/dev/null", "not a regular file"]);
    refused(["a.pcap", "a.pcap"], &text("a.pcap"), 2, &["is one of the captures"]);
    refused(["a.pcap", "a.pcap"], "/no/such/directory/both.pcapng", 4, &["/no/such/directory"]);
    assert!(!path("both.pcapng").exists() && !path("both.pcapng.part").exists());
    // A capture that ends within a packet is merged as far as it goes.
    let bytes = std::fs::read(path("a.pcap")).unwrap();
    std::fs::write(path("cut.pcap"), &bytes[..bytes.len() - 5]).unwrap();
    let (code, result) = merge(&[&path("a.pcap"), &path("cut.pcap")], &path("both.pcapng"), &[]);
    assert_eq!((code, number(&result, "/packets"), number(&result, "/in_all")), (Some(0), 3, 2), "{result}");
    assert_eq!(result["captures"][1]["remarks"].as_array().unwrap().len(), 1, "{result}");
}

/// Classic pcap with nanoseconds, of packets with these numbers and times.
fn write_pcap(path: &Path, packets: impl IntoIterator<Item = (u64, u64)>) {
    let words = [0xa1b2_3c4d_u32, 0x0004_0002, 0, 0, 262_144, 1];
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    for (number, at_ns) in packets {
        let [seconds, nanoseconds] =
            [at_ns / 1_000_000_000, at_ns % 1_000_000_000].map(|part| u32::try_from(part).unwrap());
        bytes.extend([seconds, nanoseconds, 60, 60].iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend([&number.to_be_bytes()[..], &[7; 52]].concat());
    }
    std::fs::write(path, bytes).unwrap();
}

/// Captures before and after a device with 1 ms of jitter: one clock, which was not set and does not drift.
#[test]
fn path_jitter_is_no_clock_step_or_drift() {
    const BEGIN: u64 = 1_790_000_000_000_000_000;
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let delay = |number: u64| 200_000 + keyed_mix(number, 5) % 1_000_000;
    let before = |number: u64| BEGIN + 2_000_000 * number;
    write_pcap(&path("before.pcap"), (0..5000).map(|number| (number, before(number))));
    write_pcap(&path("after.pcap"), (0..5000).map(|number| (number, before(number) + delay(number))));
    // The second clock is set back by 5 ms within the capture.
    let set = |number: u64| if number < 2500 { 0 } else { 5_000_000 };
    let stamps = (0..5000).map(|number| (number, before(number) + delay(number) - set(number)));
    write_pcap(&path("set.pcap"), stamps);
    let into = path("both.pcapng");
    let (code, result) = merge(&[&path("before.pcap"), &path("after.pcap")], &into, &[]);
    let clock = &result["captures"][1]["clock"];
    assert_eq!(
        (code, number(&result, "/packets"), number(&result, "/in_all")),
        (Some(0), 5000, 5000),
        "{result}"
    );
    assert_eq!((&clock["steps"], &clock["drift_ppm"]), (&serde_json::json!([]), &Value::Null), "{result}");
    let [least, most] = ["drift_least_ppm", "drift_most_ppm"].map(|end| clock[end].as_f64().unwrap());
    assert!(-50.0 < least && least < 0.0 && 0.0 < most && most < 50.0, "{result}");
    let text = |name: &str| path(name).display().to_string();
    let words = ["merge", &text("before.pcap"), &text("after.pcap"), "--write", &text("both.pcapng")];
    let shown = Running::start(&words, "").finish().stdout;
    assert!(shown.contains("none seen (") && !shown.contains("was set"), "{shown}");
    let (_, result) = merge(&[&path("before.pcap"), &path("set.pcap")], &into, &[]);
    let steps = result["captures"][1]["clock"]["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 1, "{result}");
    assert!((steps[0]["by_ns"].as_i64().unwrap() - 5_000_000).abs() < 1_000_000, "{result}");
}
