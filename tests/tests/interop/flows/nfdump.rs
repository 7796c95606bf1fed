//! nfcapd receives, nfdump prints. What Debian's 1.7.1 does in its own way:
//!
//! * Options records do not count in its idea of IPFIX sequence numbers, so it reports one error where they stand.
//! * It takes reverse elements for forward ones, but for counts, and the last of them wins: our templates have them first.
//! * In NetFlow 9 it takes elements 148 and 153 for those of firewall events: its JSON calls such flows `EVENT`.

use super::{Line, PROFILES, Profile, export, wanted};
use packetrig_tests::skip;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A running nfcapd, killed if the test panics.
struct Nfcapd(Child);

impl Drop for Nfcapd {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl Nfcapd {
    fn start(directory: &Path, port: u16) -> Self {
        let child = Command::new("nfcapd")
            .args(["-4", "-b", "127.0.0.1", "-t", "3600", "-p", &port.to_string(), "-w"])
            .arg(directory)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut nfcapd = Self(child);
        nfcapd.await_socket(|queue| queue.is_some(), port);
        nfcapd
    }

    /// Waits for what the kernel says of its socket: how many bytes are in it.
    fn await_socket(&mut self, is_there: impl Fn(Option<u64>) -> bool, port: u16) {
        while !is_there(queued(port)) {
            assert!(self.0.try_wait().unwrap().is_none(), "nfcapd has ended");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Lets it take what was sent, and ends it, which writes its file.
    fn finish(mut self, port: u16) {
        self.await_socket(|queue| queue == Some(0), port);
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw).unwrap();
        kill_process(pid, Signal::INT).unwrap();
        assert!(self.0.wait().unwrap().success());
    }
}

/// Bytes in the queue of the UDP socket of a port.
fn queued(port: u16) -> Option<u64> {
    let table = std::fs::read_to_string("/proc/net/udp").unwrap();
    let rows = table.lines().skip(1).map(|row| row.split_whitespace().collect::<Vec<_>>());
    let mut found = rows.filter(|row| row[1].ends_with(&format!(":{port:04X}")));
    found.next().map(|row| u64::from_str_radix(row[4].split(':').nth(1).unwrap(), 16).unwrap())
}

fn line(flow: &Value) -> Line {
    let number = |name: &str| flow[name].as_u64().unwrap_or(0);
    let small = |name: &str| u16::try_from(number(name)).unwrap();
    let text = |names: [&str; 2]| names.iter().find_map(|name| flow[*name].as_str()).unwrap().to_owned();
    let flags = flow["tcp_flags"].as_str().unwrap_or("");
    Line {
        source: text(["src4_addr", "src6_addr"]),
        destination: text(["dst4_addr", "dst6_addr"]),
        ports: (small("src_port"), small("dst_port")),
        protocol: u8::try_from(number("proto")).unwrap(),
        packets: number("in_packets"),
        bytes: number("in_bytes"),
        times: (millis(&flow["first"]), millis(&flow["last"])),
        flags: flags.bytes().fold(0, |bits, flag| bits << 1 | u8::from(flag != b'.')),
        vlan: small("src_vlan"),
        icmp: small("icmp_type") << 8 | small("icmp_code"),
        back: (number("out_packets"), number("out_bytes")),
    }
}

/// `2026-09-21T14:13:15.123`.
fn millis(time: &Value) -> u64 {
    let clock = time.as_str().unwrap().strip_prefix("2026-09-21T").unwrap();
    let number = |range: std::ops::Range<usize>| clock[range].parse::<u64>().unwrap();
    (super::DAY + number(0..2) * 3600 + number(3..5) * 60 + number(6..8)) * 1000 + number(9..12)
}

/// What nfdump prints of what nfcapd received.
fn dumped(profile: Profile) -> Vec<Line> {
    let directory = tempfile::tempdir().unwrap();
    let port = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let nfcapd = Nfcapd::start(directory.path(), port);
    export(profile, &format!("udp://127.0.0.1:{port}"));
    nfcapd.finish(port);
    let mut nfdump = Command::new("nfdump");
    let output =
        nfdump.env("TZ", "UTC").arg("-R").arg(directory.path()).args(["-o", "json"]).output().unwrap();
    assert!(output.status.success(), "nfdump: {}", String::from_utf8_lossy(&output.stderr));
    let flows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    flows.iter().map(line).collect()
}

#[test]
fn nfdump_agrees_on_every_flow_of_every_format() {
    if !skip::has_tool("nfcapd") || !skip::has_tool("nfdump") {
        return;
    }
    for profile in PROFILES {
        assert_eq!(dumped(profile), wanted(profile), "{profile:?}");
    }
}
