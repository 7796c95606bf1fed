//! Exporters that others made send to `packetrig collect`: what it stores adds up to the packets of the capture file.

use packetrig_tests::{program, skip};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

const FLOWS: u16 = 40;
/// When the first packet was captured: 2026-11-21 10:00:00 UTC.
const BEGAN_S: u32 = 1_795_255_200;
const PAYLOAD: usize = 100;

/// Flow `n` has `n % 5 + 1` packets of UDP there, and every third flow one back.
fn packets_of(n: u16) -> (u16, u16) {
    (n % 5 + 1, u16::from(n.is_multiple_of(3)))
}

fn all_packets() -> u64 {
    (0..FLOWS).map(|n| u64::from(packets_of(n).0 + packets_of(n).1)).sum()
}

fn frame(n: u16, back: bool) -> Vec<u8> {
    let length = |bytes: usize| u16::try_from(bytes).expect("short").to_be_bytes();
    let hosts = [[198, 18, 0, 1], [198, 19, 0, 2]];
    let ports = [(10_000 + n).to_be_bytes(), 53_u16.to_be_bytes()];
    let (from, to) = if back { (1, 0) } else { (0, 1) };
    let mut ip = [0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0].to_vec();
    ip[2..4].copy_from_slice(&length(28 + PAYLOAD));
    ip.extend([hosts[from], hosts[to]].concat());
    let sum = ip.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum::<u32>();
    let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).expect("folded");
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let ethernet = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    let udp = [&ports[from][..], &ports[to], &length(8 + PAYLOAD), &[0, 0]].concat();
    [&ethernet[..], &ip, &udp, &[7; PAYLOAD]].concat()
}

/// Packets 10 ms apart, the flows one after the other.
fn recording(directory: &Path) -> PathBuf {
    let mut file: Vec<u8> =
        [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1].into_iter().flat_map(u32::to_le_bytes).collect();
    let mut at_us = 0;
    for n in 0..FLOWS {
        let (there, back) = packets_of(n);
        for is_back in (0..there).map(|_| false).chain((0..back).map(|_| true)) {
            let frame = frame(n, is_back);
            let length = u32::try_from(frame.len()).expect("short");
            let head = [BEGAN_S + at_us / 1_000_000, at_us % 1_000_000, length, length];
            file.extend(head.into_iter().flat_map(u32::to_le_bytes));
            file.extend(frame);
            at_us += 10_000;
        }
    }
    let path = directory.join("a.pcap");
    std::fs::write(&path, file).expect("the disk has room");
    path
}

/// A collector at work; it is told to stop, and waited for.
struct Collector {
    child: Child,
    place: String,
    stderr: BufReader<std::process::ChildStderr>,
    directory: PathBuf,
}

fn start(directory: &Path, transport: &str) -> Collector {
    let records = directory.join("records");
    let mut command = Command::new(program::binary());
    command.args([
        "collect",
        "--json",
        "--quiet",
        "--time",
        "60s",
        "--listen",
        &format!("{transport}://127.0.0.1:0"),
    ]);
    command.arg("--directory").arg(&records).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
    let mut line = String::new();
    stderr.read_line(&mut line).expect("it says where it listens");
    let place = line.trim().rsplit("//").next().expect("an address").to_owned();
    assert!(place.starts_with("127.0.0.1:"), "{line}");
    Collector { child, place, stderr, directory: records }
}

impl Collector {
    fn stop(mut self) -> Value {
        let pid = rustix::process::Pid::from_child(&self.child);
        // What was sent before is in the socket, and is read before it ends.
        rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
        let mut text = String::new();
        self.child.stdout.take().expect("piped").read_to_string(&mut text).expect("text");
        let mut remarks = String::new();
        self.stderr.read_to_string(&mut remarks).expect("text");
        let status = self.child.wait().expect("it ends");
        assert!(status.success(), "{status}: {remarks}");
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}\n{remarks}"))
    }
}

/// Nothing lost, nothing malformed, every record stored.
fn assert_whole(found: &Value, packets: u64) {
    let total = &found["total"];
    for what in [
        "lost",
        "gaps",
        "malformed",
        "restarts",
        "duplicates",
        "undecoded_bytes",
        "pending_bytes",
        "timeless",
    ] {
        assert_eq!(total[what], 0, "{what}: {found:#}");
    }
    assert_eq!(found["refused"], 0, "{found:#}");
    assert_eq!(total["packets"], packets, "{found:#}");
    assert_eq!(total["bytes"], packets * (28 + PAYLOAD as u64), "{found:#}");
    assert_eq!(found["sinks"][0]["stored"]["packets"], packets, "{found:#}");
}

/// Softflowd reads the recording and exports all at its end.
fn softflowd(recording: &Path, directory: &Path, place: &str, options: &[&str]) {
    let mut command = Command::new("softflowd");
    command.arg("-r").arg(recording).args(["-n", place, "-d", "-a"]).args(options);
    command.arg("-p").arg(directory.join("pid")).arg("-c").arg(directory.join("ctl"));
    let output = command.output().expect("softflowd runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn of_softflowd(transport: &str, options: &[&str]) -> (TempDir, Value, PathBuf) {
    let directory = tempfile::tempdir().expect("a directory");
    let recording = recording(directory.path());
    let collector = start(directory.path(), transport);
    softflowd(&recording, directory.path(), &collector.place, options);
    let records = collector.directory.clone();
    let found = collector.stop();
    (directory, found, records)
}

#[test]
fn softflowd_is_understood_in_every_version() {
    if !skip::has_tool("softflowd") {
        return;
    }
    for (options, protocol) in [
        (&["-v", "5"][..], "netflow5"),
        (&["-v", "9"], "netflow9"),
        (&["-v", "10"], "ipfix"),
        (&["-v", "10", "-b"], "ipfix"),
        (&["-v", "10", "-A", "sec"], "ipfix"),
        (&["-v", "10", "-A", "milli"], "ipfix"),
        (&["-v", "10", "-A", "micro"], "ipfix"),
        (&["-v", "10", "-A", "nano"], "ipfix"),
    ] {
        let (_directory, found, records) = of_softflowd("udp", options);
        assert_eq!(found["exporters"][0]["protocol"], protocol, "{options:?}");
        assert_whole(&found, all_packets());
        let biflows = u64::from(FLOWS);
        let uniflows = biflows + u64::from(FLOWS.div_ceil(3));
        let expected = if options.contains(&"-b") { biflows } else { uniflows };
        assert_eq!(found["total"]["records"], expected, "{options:?}");
        assert!(records.join("flows").is_dir(), "{options:?}");
    }
}

#[test]
fn nfreplay_is_understood() {
    if !skip::has_tool("nfpcapd") || !skip::has_tool("nfreplay") {
        return;
    }
    for version in ["5", "9"] {
        let directory = tempfile::tempdir().expect("a directory");
        let recording = recording(directory.path());
        let flows = directory.path().join("nf");
        std::fs::create_dir(&flows).expect("the disk has room");
        let read = Command::new("nfpcapd").arg("-r").arg(&recording).arg("-l").arg(&flows).output();
        assert!(read.expect("nfpcapd runs").status.success());
        let mut files: Vec<PathBuf> = std::fs::read_dir(&flows)
            .expect("it is there")
            .map(|entry| entry.expect("readable").path())
            .filter(|path| {
                path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("nfcapd.2"))
            })
            .collect();
        files.sort();
        assert!(!files.is_empty(), "nfpcapd wrote nothing");
        let collector = start(directory.path(), "udp");
        let port = collector.place.rsplit(':').next().expect("a port").to_owned();
        for file in &files {
            let sent = Command::new("nfreplay").args(["-v", version, "-p", &port, "-r"]).arg(file).output();
            assert!(sent.expect("nfreplay runs").status.success());
        }
        let found = collector.stop();
        assert_whole(&found, all_packets());
    }
}
