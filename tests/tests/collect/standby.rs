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

/// What the two meters said at their end, and the collector.
pub(super) struct Outcome {
    pub(super) meters: Vec<Value>,
    pub(super) collected: Collected,
    sent: Sums,
}

impl Pair {
    pub(super) fn new() -> Option<Self> {
        let lab = skip::lab(|| Lab::bridged(3))?;
        let collector = Collector::start("tcp", &[]);
        let directory = tempfile::tempdir().unwrap();
        let key = directory.path().join("group.key");
        private_files::write(&key, "00112233445566778899aabbccddeeff\n").unwrap();
        let places = [(); 2].map(|()| own_place());
        let collects = collector.address().parse().unwrap();
        Some(Self {
            link: MeteredLink { lab, target: String::new(), sent: Sums::new() },
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
    fn start(&mut self, meter: usize) -> Running {
        let [own, peer] =
            [self.places[meter - 1], self.controls[meter - 1].place()].map(|place| place.to_string());
        self.link.target = format!("tcp://{}", self.exports[meter - 1].place());
        let key = self.key.to_str().unwrap();
        let mut flags =
            vec!["--peer", &peer, "--peer-listen", &own, "--peer-key", key, "--advertise", "30ms"];
        flags.extend(self.flags.iter().map(String::as_str));
        self.link.start_at(meter, &meter.to_string(), &flags)
    }

    /// Both meters; the first one is active.
    pub(super) fn start_both(&mut self) -> [Running; 2] {
        let mut one = self.start(1);
        one.await_remark("meter 1 is active");
        [one, self.start(2)]
    }

    /// Brings the port at which a meter listens down, or up again.
    fn cut_copy(&self, meter: usize, is_cut: bool) {
        let port = &self.link.lab.ports()[meter];
        let state = if is_cut { "down" } else { "up" };
        let set = ["-n", port.namespace(), "link", "set", port.link.name.as_str(), state];
        assert!(Command::new("ip").args(set).status().unwrap().success());
    }

    /// Sends until a meter knows every running flow: flows are quiet while their parts are cut.
    fn settle(&mut self, meter: &mut Running, ready: &str) {
        while !meter.remarks().contains(ready) {
            assert!(!meter.has_ended());
            self.link.send(5);
            std::thread::sleep(REST);
        }
    }

    pub(super) fn finish(self, meters: impl IntoIterator<Item = Running>) -> Outcome {
        let meters = meters.into_iter().map(report).collect();
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
fn a_standby_that_takes_over_loses_nothing_and_exports_nothing_before() {
    let Some(mut pair) = Pair::new() else { return };
    let [one, mut two] = pair.start_both();
    pair.link.send(8);
    kill(one);
    two.await_remark("meter 2 is active");
    pair.link.send(8);
    let mut one = pair.start(1);
    pair.settle(&mut one, "meter 1 is ready");
    pair.link.send(5);
    two.signal(Signal::STOP);
    one.await_remark("meter 1 is active");
    pair.link.send(5);
    two.signal(Signal::CONT);
    two.await_remark("meter 2 is a standby");
    pair.link.send(5);
    let outcome = pair.finish([one, two]);
    outcome.assert_whole();
    let changes = outcome.collected.report["groups"][0]["switches"].as_array().unwrap();
    let meters: Vec<&Value> = changes.iter().map(|change| &change["meter"]).collect();
    assert!(meters.starts_with(&[&json!(1), &json!(2), &json!(1)]), "{changes:#?}");
    assert!(changes[1]["silent_ns"].as_u64().unwrap() >= 60_000_000, "{changes:#?}");
    assert!(of_group(&outcome.collected, "known_packets") < outcome.packets());
}

/// Neither hears the other, so both are active: everything is exported twice and stored once.
#[test]
fn two_meters_that_are_cut_off_from_each_other_lose_nothing() {
    let Some(mut pair) = Pair::new() else { return };
    let [mut one, mut two] = pair.start_both();
    pair.settle(&mut two, "meter 2 is ready");
    pair.controls.iter().for_each(|way| way.cut(true));
    two.await_remark("meter 2 is active");
    pair.link.send(8);
    pair.controls.iter().for_each(|way| way.cut(false));
    // The one that took over later stays.
    one.await_remark("meter 1 is a standby");
    pair.link.send(8);
    pair.finish([one, two]).assert_whole();
}

#[test]
fn a_way_that_is_cut_in_one_direction_loses_nothing() {
    let Some(mut pair) = Pair::new() else { return };
    let [mut one, mut two] = pair.start_both();
    pair.settle(&mut two, "meter 2 is ready");
    // The second does not hear the first and takes over; the first hears that.
    pair.controls[0].cut(true);
    two.await_remark("meter 2 is active");
    one.await_remark("meter 1 is a standby");
    pair.link.send(8);
    pair.controls[0].cut(false);
    pair.link.send(8);
    pair.finish([one, two]).assert_whole();
}

#[test]
fn a_meter_whose_copy_of_the_link_is_cut_hands_over() {
    let Some(mut pair) = Pair::new() else { return };
    let [mut one, mut two] = pair.start_both();
    pair.settle(&mut two, "meter 2 is ready");
    pair.link.send(5);
    pair.cut_copy(1, true);
    while !two.remarks().contains("meter 2 is active") {
        pair.link.send(1);
        assert!(!two.has_ended());
    }
    one.await_remark("meter 1 is a standby");
    pair.link.send(8);
    pair.cut_copy(1, false);
    pair.link.send(8);
    pair.finish([one, two]).assert_whole();
}

#[test]
fn a_meter_that_cannot_reach_the_collector_hands_over() {
    let Some(mut pair) = Pair::new() else { return };
    let [mut one, mut two] = pair.start_both();
    pair.settle(&mut two, "meter 2 is ready");
    pair.exports[0].cut(true);
    // What was under way before the cut may still arrive: only what comes later is missed.
    while !two.remarks().contains("meter 2 is active") {
        pair.link.send(1);
        assert!(!two.has_ended());
    }
    one.await_remark("meter 1 is a standby");
    pair.link.send(8);
    pair.exports[0].cut(false);
    pair.link.send(8);
    pair.finish([one, two]).assert_whole();
}
