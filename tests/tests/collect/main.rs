//! `packetrig collect` as its user runs it: exporters that others made and our own send to it, and what it keeps is what was
//! in the capture file.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod again;
mod alerts;
mod event_log;
mod foreign;
mod group;
mod hostile;
mod killed;
mod ours;
mod packets;
mod relay;
mod restart;
mod sflow;
mod standby;
mod whole;

use packetrig_tests::listening::await_place;
use packetrig_tests::program::Running;
use packetrig_tests::recording::Recorded;
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

const FLOWS: u16 = 60;
/// When the first packet was captured: 2026-09-21 10:00:00 UTC.
const BEGAN_NS: u64 = 1_789_984_800_000_000_000;
/// From packet to packet.
const STEP_NS: u64 = 10_000_000;

/// One direction of a flow.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Way {
    source: (Ipv6Addr, u16),
    destination: (Ipv6Addr, u16),
    protocol: u8,
}

/// Packets and IP bytes.
type Sums = BTreeMap<Way, (u64, u64)>;

impl Way {
    /// Of a stored record.
    fn of(row: &Value) -> Self {
        let number = |name: &str| row[name].as_u64().unwrap();
        let port = |name: &str| u16::try_from(number(name)).unwrap();
        let address = |name: &str| match row[name].as_str().unwrap().parse().unwrap() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        Self {
            source: (address("sourceIPv6Address"), port("sourceTransportPort")),
            destination: (address("destinationIPv6Address"), port("destinationTransportPort")),
            protocol: u8::try_from(number("protocolIdentifier")).unwrap(),
        }
    }
}

/// Every fourth flow is IPv6, every second TCP.
const fn is_v6(n: u16) -> bool {
    n % 4 == 3
}

/// Flow `n` has `n % 5 + 1` packets there, and every third flow one back.
fn packets(n: u16) -> impl Iterator<Item = bool> {
    (0..=n % 5).map(|_| false).chain(n.is_multiple_of(3).then_some(true))
}

fn way(n: u16, is_back: bool) -> Way {
    let hosts = if is_v6(n) {
        ["2001:2::1", "2001:2::2"].map(|text| text.parse().unwrap())
    } else {
        [Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 19, 0, 2)].map(|host| host.to_ipv6_mapped())
    };
    let mut ends = [(hosts[0], 10_000 + n), (hosts[1], 53)];
    if is_back {
        ends.reverse();
    }
    Way { source: ends[0], destination: ends[1], protocol: if n.is_multiple_of(2) { 6 } else { 17 } }
}

fn frame(n: u16, is_back: bool) -> Vec<u8> {
    numbered_frame(n, is_back, 7)
}

/// The same with a number at the beginning of its data, or as that of TCP.
fn numbered_frame(n: u16, is_back: bool, number: u32) -> Vec<u8> {
    let Way { source, destination, protocol } = way(n, is_back);
    let length = |bytes: usize| u16::try_from(bytes).unwrap().to_be_bytes();
    let payload = [&number.to_be_bytes()[..], &vec![7; 46 + usize::from(n) * 3]].concat();
    let ports = [source.1.to_be_bytes(), destination.1.to_be_bytes()].concat();
    let segment = if protocol == 6 {
        [&ports[..], &number.to_be_bytes(), &[0, 0, 0, 1, 0x50, 0x10, 0x10, 0, 0, 0, 0, 0], &payload].concat()
    } else {
        [&ports[..], &length(8 + payload.len()), &[0, 0], &payload].concat()
    };
    let addresses = [source.0.octets(), destination.0.octets()];
    let (kind, head) = if is_v6(n) {
        let head = [&[0x60, 0, 0, 0][..], &length(segment.len()), &[protocol, 64], addresses.as_flattened()];
        ([0x86, 0xdd], head.concat())
    } else {
        let mut head =
            [&[0x45, 0][..], &length(20 + segment.len()), &[0, 0, 0, 0, 64, protocol, 0, 0]].concat();
        head.extend(addresses.iter().flat_map(|address| &address[12..]));
        let sum = head.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum::<u32>();
        let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
        head[10..12].copy_from_slice(&sum.to_be_bytes());
        ([8, 0], head)
    };
    [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2][..], &kind, &head, &segment].concat()
}

/// All flows, one after the other.
fn recorded() -> Vec<Recorded> {
    let frames = (0..FLOWS).flat_map(|n| packets(n).map(move |is_back| frame(n, is_back)));
    (0..).zip(frames).map(|(at, bytes)| Recorded { at: BEGAN_NS + at * STEP_NS, bytes }).collect()
}

/// What is in [`recorded`].
fn known(wanted: impl Fn(u16) -> bool) -> Sums {
    let mut sums = Sums::new();
    for n in (0..FLOWS).filter(|n| wanted(*n)) {
        for is_back in packets(n) {
            let sum = sums.entry(way(n, is_back)).or_default();
            *sum = (sum.0 + 1, sum.1 + frame(n, is_back).len() as u64 - 14);
        }
    }
    sums
}

/// When the first packet of every direction was captured.
fn begun() -> BTreeMap<Way, u64> {
    let ways = (0..FLOWS).flat_map(|n| packets(n).map(move |is_back| way(n, is_back)));
    let mut begun = BTreeMap::new();
    for (at, way) in (0..).zip(ways) {
        begun.entry(way).or_insert(BEGAN_NS + at * STEP_NS);
    }
    begun
}

fn total(sums: &Sums) -> (u64, u64) {
    sums.values().fold((0, 0), |(packets, bytes), sum| (packets + sum.0, bytes + sum.1))
}

/// A collector at work, and where it listens.
struct Collector {
    running: Running,
    place: String,
}

/// What a collector said at its end, and what is in its directory.
struct Collected {
    report: Value,
    directory: tempfile::TempDir,
}

impl Collector {
    fn start(transport: &str, more: &[&str]) -> Self {
        let place = format!("{transport}://127.0.0.1:0");
        let flags = ["collect", "--json", "--quiet", "--time", "100s", "--directory", "records"];
        let mut running = Running::start(&[&flags[..], &["--listen", &place], more].concat(), "");
        let place = await_place(&mut running);
        Self { running, place }
    }

    fn address(&self) -> &str {
        self.place.rsplit('/').next().unwrap()
    }

    /// Ends it as a user does. What was sent to it before is in its socket, and is taken before it ends.
    fn finish(mut self) -> Collected {
        self.running.signal(Signal::INT);
        let finished = self.running.finish();
        let report: Value = serde_json::from_str(&finished.stdout).unwrap();
        let is_whole = report["missing"] == serde_json::json!([]);
        assert_eq!(finished.code, Some(if is_whole { 0 } else { 7 }), "{report:#}{}", finished.stderr);
        Collected { report, directory: finished.directory }
    }
}

impl Collected {
    fn number(&self, path: &str) -> u64 {
        let number = self.report.pointer(path).and_then(Value::as_u64);
        number.unwrap_or_else(|| panic!("no number at {path} in {:#}", self.report))
    }

    /// By the exporter's numbers nothing was lost.
    fn assert_in_order(&self) {
        for what in ["lost", "gaps", "restarts", "untold", "timeless"] {
            assert_eq!(self.number(&format!("/total/{what}")), 0, "{what}: {:#}", self.report);
        }
    }

    /// Everything was understood, every packet stored.
    fn assert_stored(&self, sums: &Sums) {
        for what in ["malformed", "duplicates", "early", "old", "undecoded_bytes", "pending_bytes"] {
            assert_eq!(self.number(&format!("/total/{what}")), 0, "{what}: {:#}", self.report);
        }
        for place in ["/total", "/sinks/0/stored"] {
            let found = ["packets", "bytes"].map(|what| self.number(&format!("{place}/{what}")));
            assert_eq!((found[0], found[1]), total(sums), "{place}: {:#}", self.report);
        }
        assert_eq!(
            self.report["refused"],
            serde_json::json!({"unknown_protocol": 0, "not_allowed": 0, "address_full": 0})
        );
        assert_eq!(self.number("/intake/0/dropped"), 0);
    }

    fn flows(&self, verb: &str) -> String {
        flows(verb, &self.directory.path().join("records"))
    }

    /// Every direction of the flows that were kept.
    fn kept(&self) -> Sums {
        sums_of(self.rows())
    }

    /// Every record of these ways begins when its first packet was captured, or at most so much before or after.
    fn assert_times(&self, most_ns: u64, ways: impl Fn(&Way) -> bool) {
        let begun = begun();
        for row in self.rows() {
            let way = Way::of(&row);
            if !ways(&way) {
                continue;
            }
            let wanted = begun[&way];
            let found = row["flowStartNanoseconds"].as_u64().unwrap();
            assert!(found.abs_diff(wanted) <= most_ns, "{wanted}: {row:#}");
        }
    }

    fn rows(&self) -> Vec<Value> {
        self.flows("show").lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Every direction of the flows of these records.
fn sums_of(rows: impl IntoIterator<Item = Value>) -> Sums {
    let mut sums = Sums::new();
    for row in rows {
        let number = |name: &str| row[name].as_u64().unwrap_or(0);
        let there = Way::of(&row);
        let back = Way { source: there.destination, destination: there.source, ..there };
        for (way, packets, bytes) in [
            (there, "packetDeltaCount", "octetDeltaCount"),
            (back, "reversePacketDeltaCount", "reverseOctetDeltaCount"),
        ] {
            if number(packets) > 0 {
                let sum = sums.entry(way).or_default();
                *sum = (sum.0 + number(packets), sum.1 + number(bytes));
            }
        }
    }
    sums
}

/// What `packetrig flows` says of a directory, as JSON.
fn flows(verb: &str, directory: &Path) -> String {
    let directory = directory.display().to_string();
    let finished = Running::start(&["flows", verb, "--json", &directory], "").finish();
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    finished.stdout
}
