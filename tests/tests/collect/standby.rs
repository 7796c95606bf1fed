//! One meter of a group exports and the others stand by: whatever happens to the one, nothing is missing.

use super::group::{MeteredLink, REST, differences, kill, of_group};
use super::{Collected, Collector, Sums};
use packetrig_sys::private_files;
use packetrig_testkit::Lab;
use packetrig_tests::own_place::own_place;
use packetrig_tests::program::Running;
use packetrig_tests::relay::Relay;
use packetrig_tests::skip;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// So long at most for what comes in a few seconds.
const PATIENCE: Duration = Duration::from_secs(100);
/// How long to look at one of two meters.
const LOOK: Duration = Duration::from_millis(5);

/// Two meters with copies of one link. All ways between them and to the collector can be cut.
pub(super) struct Pair {
    pub(super) link: MeteredLink,
    collector: Collector,
    /// From meter 1 to meter 2, and back.
    controls: [Relay; 2],
    exports: [Relay; 2],
    places: [SocketAddr; 2],
    _directory: tempfile::TempDir,
    key: PathBuf,
    /// What both meters are told beside this.
    pub(super) flags: Vec<String>,
}

/// One of the two meters.
pub(super) struct PairMeter {
    number: usize,
    pub(super) running: Running,
}

impl PairMeter {
    /// Whether it is the active one, by what it said last.
    pub(super) fn is_active(&self) -> bool {
        is_active_in(self.number, &self.running.remarks())
    }

    pub(super) fn is_ready(&self) -> bool {
        is_ready_in(self.number, &self.running.remarks())
    }

    fn is_active_within(&mut self, limit: Duration) -> bool {
        let number = self.number;
        self.running.await_remarks_within(limit, |said| is_active_in(number, said))
    }

    fn await_active(&mut self) {
        assert!(self.is_active_within(PATIENCE), "it is never active: {}", self.running.remarks());
    }

    fn await_standby(&mut self) {
        let number = self.number;
        let is_standby = self.running.await_remarks_within(PATIENCE, |said| !is_active_in(number, said));
        assert!(is_standby, "it is never a standby: {}", self.running.remarks());
    }
}

/// Whether what a meter said last of its role is that it is the active one.
fn is_active_in(number: usize, said: &str) -> bool {
    let [active, standby] = ["active", "a standby"].map(|role| format!("meter {number} is {role}"));
    let last = said.lines().rfind(|line| line.contains(&active) || line.contains(&standby));
    last.is_some_and(|line| line.contains(&active))
}

fn is_ready_in(number: usize, said: &str) -> bool {
    said.contains(&format!("meter {number} is ready"))
}

/// What the two meters said at their end, and the collector.
pub(super) struct Outcome {
    pub(super) meters: Vec<Value>,
    pub(super) collected: Collected,
    sent: Sums,
}

impl Pair {
    pub(super) fn new() -> Option<Self> {
        let lab = skip::lab(|| Lab::with_bridge(3))?;
        let collector = Collector::start("tcp", &[]);
        let directory = tempfile::tempdir().unwrap();
        let key = directory.path().join("group.key");
        private_files::write_file(&key, "00112233445566778899aabbccddeeff\n").unwrap();
        let places = [(); 2].map(|()| own_place());
        let collects = collector.address().parse().unwrap();
        Some(Self {
            link: MeteredLink::new(lab, String::new()),
            collector,
            controls: [Relay::udp(places[1]), Relay::udp(places[0])],
            exports: [(); 2].map(|()| Relay::tcp(collects)),
            places,
            _directory: directory,
            key,
            flags: Vec::new(),
        })
    }

    /// Starts meter 1 or 2 at its copy of the link.
    fn start(&mut self, number: usize) -> PairMeter {
        let [own, peer] =
            [self.places[number - 1], self.controls[number - 1].place()].map(|place| place.to_string());
        self.link.target = format!("tcp://{}", self.exports[number - 1].place());
        let key = self.key.to_str().unwrap();
        let mut flags =
            vec!["--peer", &peer, "--peer-listen", &own, "--peer-key", key, "--advertise", "30ms"];
        flags.extend(self.flags.iter().map(String::as_str));
        PairMeter { number, running: self.link.start_at(number, &number.to_string(), &flags) }
    }

    /// Both meters, the active one first. They start at the same time and decide themselves which one that is; until then something
    /// else is done again and again.
    pub(super) fn start_both(&mut self, mut meanwhile: impl FnMut()) -> [PairMeter; 2] {
        let [mut one, mut two] = [1, 2].map(|number| self.start(number));
        loop {
            if one.is_active_within(LOOK) {
                return [one, two];
            }
            if two.is_active_within(LOOK) {
                return [two, one];
            }
            meanwhile();
        }
    }

    /// Both meters, the active one first, and the other one can take over.
    fn start_settled(&mut self) -> [PairMeter; 2] {
        let [mut one, mut two] = self.start_both(|| {});
        loop {
            self.settle(&mut one);
            self.settle(&mut two);
            match (one.is_active(), two.is_active()) {
                (true, false) => return [one, two],
                (false, true) => return [two, one],
                // A meter that stood still has given up its role.
                _ => self.link.send(1),
            }
        }
    }

    /// Brings the port at which a meter listens down, or up again.
    fn cut_copy(&self, meter: usize, is_cut: bool) {
        let port = &self.link.lab.ports()[meter];
        let state = if is_cut { "down" } else { "up" };
        let set = ["-n", port.namespace(), "link", "set", port.link.name.as_str(), state];
        assert!(Command::new("ip").args(set).status().unwrap().success());
    }

    /// Sends until a meter knows every running flow: flows are quiet while their parts are cut.
    fn settle(&mut self, meter: &mut PairMeter) {
        let number = meter.number;
        while !meter.is_ready() {
            self.link.send(5);
            meter.running.await_remarks_within(REST, |said| is_ready_in(number, said));
        }
    }

    pub(super) fn finish(self, meters: impl IntoIterator<Item = PairMeter>) -> Outcome {
        let meters = meters.into_iter().map(|meter| report(meter.running)).collect();
        // What the meters have sent is at the collector before that ends.
        self.exports.into_iter().for_each(Relay::drain);
        Outcome { meters, collected: self.collector.finish(), sent: self.link.sent }
    }
}

fn report(mut meter: Running) -> Value {
    meter.signal(Signal::TERM);
    let finished = meter.finish();
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    serde_json::from_str(&finished.stdout).unwrap()
}

impl Outcome {
    /// Everything that was sent is stored once.
    fn assert_whole(&self) {
        let meters: Vec<_> = self.meters.iter().map(|meter| &meter["group"]).collect();
        let report = &self.collected.report;
        assert_eq!(differences(&self.collected.kept(), &self.sent), [], "{report:#}{meters:#?}");
        assert_eq!(of_group(&self.collected, "packets"), self.packets(), "{report:#}");
    }

    fn packets(&self) -> u64 {
        self.sent.values().map(|sum| sum.0).sum()
    }
}

#[test]
fn standby_exports_only_after_takeover_without_loss() {
    let Some(mut pair) = Pair::new() else { return };
    let [one, mut two] = pair.start_both(|| {});
    // Its first role, and the number by which collectors know the group.
    for said in ["starts as a standby", " at collectors"] {
        assert!(two.running.remarks().contains(said), "{}", two.running.remarks());
    }
    pair.link.send(8);
    let [first, second] = [one.number, two.number];
    kill(one.running);
    two.await_active();
    pair.link.send(8);
    let mut one = pair.start(first);
    pair.settle(&mut one);
    pair.link.send(5);
    two.running.signal(Signal::STOP);
    one.await_active();
    pair.link.send(5);
    two.running.signal(Signal::CONT);
    two.await_standby();
    pair.link.send(5);
    let outcome = pair.finish([one, two]);
    outcome.assert_whole();
    let changes = outcome.collected.report["groups"][0]["switches"].as_array().unwrap();
    // A meter that gets no processor for a moment may give up its role and take it again, so there may be more changes than faults.
    let mut meters = changes.iter().map(|change| &change["meter"]);
    assert!([second, first].iter().all(|meter| meters.any(|found| *found == *meter)), "{changes:#?}");
    // No meter was active before the first one, which had waited for others. It may be killed before collectors hear of it.
    if let Some(begun) = changes.iter().find(|change| change["term"] == 1) {
        assert_eq!((&begun["meter"], &begun["silent_ns"]), (&json!(first), &json!(0)), "{changes:#?}");
    }
    let takeover = changes.iter().find(|change| change["meter"] == second).unwrap();
    assert!(takeover["silent_ns"].as_u64().unwrap() >= 60_000_000, "{changes:#?}");
    assert!(of_group(&outcome.collected, "known_packets") < outcome.packets());
}

/// Neither hears the other, so both are active: everything is exported twice and stored once.
#[test]
fn partitioned_meters_lose_nothing() {
    let Some(mut pair) = Pair::new() else { return };
    let [mut one, mut two] = pair.start_settled();
    pair.controls.iter().for_each(|way| way.cut(true));
    two.await_active();
    pair.link.send(8);
    pair.controls.iter().for_each(|way| way.cut(false));
    // The one that took over later stays.
    one.await_standby();
    pair.link.send(8);
    pair.finish([one, two]).assert_whole();
}

#[test]
fn one_way_cut_between_meters_loses_nothing() {
    let Some(mut pair) = Pair::new() else { return };
    let [mut one, mut two] = pair.start_settled();
    // The second does not hear the first and takes over; the first hears that.
    pair.controls[one.number - 1].cut(true);
    two.await_active();
    one.await_standby();
    pair.link.send(8);
    pair.controls[one.number - 1].cut(false);
    pair.link.send(8);
    pair.finish([one, two]).assert_whole();
}

#[test]
fn meter_with_cut_link_copy_hands_over() {
    let Some(mut pair) = Pair::new() else { return };
    let [mut one, mut two] = pair.start_settled();
    pair.link.send(5);
    pair.cut_copy(one.number, true);
    while !two.is_active() {
        pair.link.send(1);
        assert!(!two.running.has_ended());
    }
    one.await_standby();
    pair.link.send(8);
    pair.cut_copy(one.number, false);
    pair.link.send(8);
    pair.finish([one, two]).assert_whole();
}

#[test]
fn meter_without_collector_hands_over() {
    let Some(mut pair) = Pair::new() else { return };
    let [mut one, mut two] = pair.start_settled();
    pair.exports[one.number - 1].cut(true);
    // What was under way before the cut may still arrive: only what comes later is missed.
    while !two.is_active() {
        pair.link.send(1);
        assert!(!two.running.has_ended());
    }
    one.await_standby();
    pair.link.send(8);
    pair.exports[one.number - 1].cut(false);
    pair.link.send(8);
    pair.finish([one, two]).assert_whole();
}
