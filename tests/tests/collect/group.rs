//! Meters of a group: each packet of their link is stored once, whichever of them was there to see it.

use super::{Collected, Collector, FLOWS, Sums, Way, known, numbered_frame, packets, recorded, way};
use packetrig_testkit::Lab;
use packetrig_tests::program::Running;
use packetrig_tests::recording::{Recorded, stored};
use packetrig_tests::skip::{self, OwnLab};
use packetrig_tests::station::Station;
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::time::Duration;

/// From burst to burst: a flow is quiet in between.
const PAUSE: Duration = Duration::from_millis(50);
/// Longer than the active timeout of these meters, and shorter than their idle timeout.
pub(super) const REST: Duration = Duration::from_millis(2300);
const TIMEOUTS: [&str; 4] = ["--active", "2s", "--idle", "4s"];

pub(super) fn of_group(collected: &Collected, what: &str) -> u64 {
    collected.number(&format!("/groups/0/{what}"))
}

/// Meters a capture as one of a group.
fn meter_file(target: &str, member: &str, capture: &[Recorded]) {
    let (_directory, file) = stored(capture);
    let flags = ["meter", file.to_str().unwrap(), "--quiet", "--export", target, "--group", "link"];
    let finished = Running::start(&[&flags[..], &["--member", member]].concat(), "").finish();
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
}

#[test]
fn group_stores_copies_once_and_counts_per_meter() {
    let collector = Collector::start("tcp", &[]);
    let whole = recorded();
    // Another clock, which does not run evenly.
    let other = whole.iter().zip(0..).map(|(packet, number)| {
        let at = packet.at + 3_000_000 + number * 7919 % 900_000;
        Recorded { at, bytes: packet.bytes.clone() }
    });
    meter_file(&collector.place, "1", &whole);
    meter_file(&collector.place, "2", &other.collect::<Vec<_>>());
    meter_file(&collector.place, "3", &whole[..whole.len() - 9]);
    let collected = collector.finish();
    assert_eq!(collected.kept(), known(|_| true), "{:#}", collected.report);
    let packets = whole.len() as u64;
    assert_eq!(
        (of_group(&collected, "packets"), of_group(&collected, "known_packets")),
        (packets, 2 * packets - 9)
    );
    assert_eq!(of_group(&collected, "meters/1/new_packets"), packets);
    assert_eq!(of_group(&collected, "meters/3/packets"), packets - 9);
    assert_eq!(
        (collected.number("/balance/stored"), collected.number("/handed/packets")),
        (packets, packets)
    );
}

#[test]
fn group_refuses_incompatible_options() {
    let refused = |flags: &[&str], words: &[&str]| {
        let usual = ["meter", "eth9", "--export", "udp://127.0.0.1:9", "--group", "link", "--member", "1"];
        Running::start(&[&usual[..], flags].concat(), "").finish().assert_refused(2, words);
    };
    refused(&["--format", "v9"], &["--group link", "--format ipfix"]);
    refused(&["--format", "sim"], &["--group link", "--peer"]);
    refused(&["--sample", "10"], &["--sample"]);
    refused(&["--idle", "1s"], &["at least 2s"]);
    refused(&["--uniflow"], &["--uniflow"]);
}

/// A link with meters, and what was sent there.
pub(super) struct MeteredLink {
    station: Station,
    pub(super) lab: OwnLab,
    pub(super) target: String,
    pub(super) sent: Sums,
    /// Packets so far.
    number: u32,
}

impl MeteredLink {
    pub(super) fn new(lab: OwnLab, target: String) -> Self {
        Self { station: Station::open(&lab.ports()[0]), lab, target, sent: Sums::new(), number: 0 }
    }

    fn start(&self, member: &str) -> Running {
        self.start_at(1, member, &[])
    }

    /// Starts a meter at a port of the lab.
    pub(super) fn start_at(&self, port: usize, member: &str, more: &[&str]) -> Running {
        let location = self.lab.location(port);
        let flags = ["meter", &location, "--direction", "in", "--json", "--export", &self.target];
        let flags = [&flags[..], &TIMEOUTS, &["--group", "link", "--member", member], more].concat();
        let mut running = Running::start(&flags, "");
        running.await_remark("listening");
        running
    }

    /// Sends, and waits until parts of all flows have been reported.
    pub(super) fn send_for_a_while(&mut self) {
        self.send(8);
        std::thread::sleep(REST);
    }

    /// Sends every flow's packets so many times, with pauses. No two packets of a flow carry the same.
    pub(super) fn send(&mut self, rounds: usize) {
        for _ in 0..rounds {
            let sent = &mut self.number;
            let mut next = || {
                *sent += 1;
                *sent
            };
            let all = (0..FLOWS).flat_map(|n| packets(n).map(move |is_back| (n, is_back)));
            let all: Vec<(Way, Vec<u8>)> =
                all.map(|(n, is_back)| (way(n, is_back), numbered_frame(n, is_back, next()))).collect();
            self.station.send(all.iter().map(|(_, frame)| frame));
            for (way, frame) in all {
                let sum = self.sent.entry(way).or_default();
                *sum = (sum.0 + 1, sum.1 + frame.len() as u64 - 14);
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// Where two sums differ: the packets of each.
pub(super) fn differences(one: &Sums, other: &Sums) -> Vec<(Way, u64, u64)> {
    let packets = |sums: &Sums, way: &Way| sums.get(way).map_or(0, |sum| sum.0);
    let ways: BTreeSet<&Way> = one.keys().chain(other.keys()).collect();
    let all = ways.into_iter().map(|way| (way.clone(), packets(one, way), packets(other, way)));
    all.filter(|(_, here, there)| here != there).collect()
}

pub(super) fn kill(mut meter: Running) {
    meter.signal(Signal::KILL);
    assert_eq!(meter.finish().code, None);
}

/// One meter is killed, comes back, and takes the place of the other, which was frozen for a while and is killed then: nothing is
/// missing and nothing is there twice, though no meter was there all the time.
#[test]
fn killed_and_restarted_meters_lose_nothing() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let collector = Collector::start("tcp", &[]);
    let mut link = MeteredLink::new(lab, collector.place.clone());
    let (one, mut other) = (link.start("1"), link.start("2"));
    link.send(8);
    kill(one);
    link.send(8);
    let mut one = link.start("1");
    link.send(5);
    // Flows are quiet while their parts are cut: from then on it is known what they had before the meter came back. A flow whose part
    // was cut right after a packet was not quiet; it is at its next cut, so there are two rests.
    for _ in 0..2 {
        std::thread::sleep(REST);
        link.send(5);
    }
    other.signal(Signal::STOP);
    link.send(5);
    other.signal(Signal::CONT);
    link.send(5);
    kill(other);
    link.send(8);
    one.signal(Signal::TERM);
    assert_eq!(one.finish().code, Some(0));
    let collected = collector.finish();
    assert_eq!(differences(&collected.kept(), &link.sent), [], "{:#}", collected.report);
    assert_eq!(of_group(&collected, "packets"), link.sent.values().map(|sum| sum.0).sum::<u64>());
    assert!(of_group(&collected, "known_packets") > 0, "{:#}", collected.report);
}
