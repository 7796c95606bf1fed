//! Probes between the nodes of a fleet: all pairs, and what becomes of the others when one node forbids, is slow or dies.

use crate::lab::{Fleet, FleetOptions, RECEIVERS, SENDERS};
use packetrig_tests::program::Report;
use rustix::process::Signal;
use serde_json::Value;

/// Each owner allows probes in the test network.
const PERMITTED: &str = "[probe]\n[[probe.target]]\nnetwork = \"198.18.0.0/24\"\nprobes_per_s = 1000\n\
    bits_per_s = \"10Mbps\"\nloss_percent = 100\n";

fn permitted() -> Option<Fleet> {
    let fleet = Fleet::up(FleetOptions { owner: PERMITTED, ..FleetOptions::default() })?;
    fleet.give_addresses();
    Some(fleet)
}

/// How a command ended.
struct Mesh {
    code: Option<i32>,
    said: String,
    report: Report,
}

impl Mesh {
    fn of(fleet: &Fleet, more: &[&str]) -> Self {
        let all =
            [&["fleet", "probe", "oneway", "--json", "--interval", "50ms", "--mechanism", "sleep"], more]
                .concat();
        let (code, printed, said) = fleet.ask_begun(&all);
        let report = serde_json::from_str(&printed).unwrap_or_else(|_| panic!("{code:?} {printed}{said}"));
        Self { code, said, report: Report(report) }
    }

    fn line(&self, from: &str, to: &str) -> &Value {
        let lines = self.report.0["probes"]["lines"].as_array().expect("a report of probes has lines");
        let found = lines.iter().find(|line| line["from"] == from && line["to"] == to);
        found.unwrap_or_else(|| panic!("no line {from} -> {to}"))
    }

    fn median_ns(&self, from: &str, to: &str) -> i64 {
        let delay = &self.line(from, to)["found"]["delay_there"];
        delay["p50_ns"].as_i64().unwrap_or_else(|| panic!("{from} -> {to}: {}", self.line(from, to)))
    }

    fn count(&self, from: &str, to: &str, name: &str) -> u64 {
        let found = &self.line(from, to)["found"];
        let value = if found[name].is_null() { &found["counts"][name] } else { &found[name] };
        value.as_u64().unwrap_or_else(|| panic!("{from} -> {to}: no {name} in {found}"))
    }

    fn assert_pair_is_whole(&self, from: &str, to: &str, count: u64) {
        for (name, wanted) in [("sent", count), ("answered", count), ("lost_there", 0), ("lost_back", 0)] {
            assert_eq!(self.count(from, to, name), wanted, "{from} -> {to}: {name}: {}", self.line(from, to));
        }
        assert_eq!(self.line(from, to)["found"]["end"]["why"], "done");
    }
}

fn pairs() -> impl Iterator<Item = (&'static str, &'static str)> {
    let all = || SENDERS.into_iter().chain(RECEIVERS);
    all().flat_map(move |from| all().map(move |to| (from, to))).filter(|(from, to)| from != to)
}

#[test]
fn mesh_probe_measures_pairs_and_slow_direction() {
    let Some(fleet) = permitted() else { return };
    let mesh = Mesh::of(&fleet, &["--count", "10"]);
    assert_eq!(mesh.code, Some(0), "{} {}", mesh.said, mesh.report.0["verdict"]);
    assert_eq!(mesh.report.0["probes"]["lines"].as_array().map(Vec::len), Some(30));
    for (from, to) in pairs() {
        mesh.assert_pair_is_whole(from, to, 10);
        assert_eq!(mesh.line(from, to)["found"]["clocks"], "one", "one kernel has one clock");
    }
    let skew = &mesh.report.0["skew"]["spread"];
    assert!(skew.is_u64(), "all begin at T: {}", mesh.report.0["skew"]);
    // Everything that goes to r1 is late by 30 ms, and a part of it is lost. What comes from it is not.
    let _cable = fleet.impair("r1", ["--impair-ba", "delay=30ms,loss=every:3"]);
    let mesh = Mesh::of(&fleet, &["--count", "30"]);
    assert!(mesh.said.contains(" probes  ") && mesh.said.contains(" answered"), "progress: {}", mesh.said);
    for (from, to) in pairs() {
        let is_slow = mesh.median_ns(from, to) >= 30_000_000;
        assert_eq!(is_slow, to == "r1", "{from} -> {to}: {}", mesh.line(from, to));
        assert_eq!(
            mesh.count(from, to, "lost_there") > 0,
            to == "r1",
            "{from} -> {to}: {}",
            mesh.line(from, to)
        );
        assert_eq!(
            mesh.count(from, to, "lost_back") > 0,
            from == "r1",
            "{from} -> {to}: {}",
            mesh.line(from, to)
        );
    }
}

/// A node of another machine has a clock of its own. Here all have one, and do not take that for granted.
#[test]
fn compared_clocks_reveal_the_slow_direction() {
    let request =
        FleetOptions { owner: PERMITTED, arguments: &["--compare-clocks"], ..FleetOptions::default() };
    let Some(fleet) = Fleet::up(request) else { return };
    fleet.give_addresses();
    let _cable = fleet.impair("r1", ["--impair-ba", "delay=200ms"]);
    let mesh = Mesh::of(&fleet, &["--count", "10", "--from", "s1,r1"]);
    assert_eq!(mesh.code, Some(0), "{} {}", mesh.said, mesh.report.0["verdict"]);
    for (from, to, truth_ns) in [("s1", "r1", 200_000_000), ("r1", "s1", 0)] {
        // The probes themselves see the round trip only, and would halve it.
        assert_eq!(mesh.line(from, to)["found"]["clocks"], "fleet", "{}", mesh.line(from, to));
        let delay = &mesh.line(from, to)["found"]["delay_there"];
        let (least, bound) = (delay["min_ns"].as_i64(), delay["bound_ns"].as_i64());
        let (least, bound) = least.zip(bound).expect("there is a delay");
        assert!(bound < 100_000_000, "{delay}");
        assert!(least + bound >= truth_ns, "{from} -> {to}: {delay}");
        assert!((least - bound > 100_000_000) == (to == "r1"), "{from} -> {to}: {delay}");
    }
}

#[test]
fn fleet_probe_prints_matrix_and_reaches_other_hosts() {
    let Some(fleet) = permitted() else { return };
    let quick = ["--count", "3", "--interval", "50ms"];
    let ask = |command: &[&str]| fleet.ask_begun(&[&["fleet", "probe"], command, &quick].concat());
    let out = fleet.place().join("out");
    let (code, printed, said) = ask(&["oneway", "--from", "s1,s2,r1", "--out", &out.display().to_string()]);
    assert_eq!(code, Some(0), "{printed}{said}");
    let table = std::fs::read_to_string(out.join("probes.csv")).unwrap_or_default();
    assert_eq!(table.lines().count(), 1 + 6, "a row for each pair: {table}");
    for words in [
        "One-way delay from row to column",
        "Lost on the way",
        "time error with one clock: ±",
        "0 of 3",
        "Verdict: PASS",
    ] {
        assert!(printed.contains(words), "no `{words}` in {printed}");
    }
    // The address of r3, which takes no part: its kernel answers.
    let (code, printed, said) = ask(&["ping", "198.18.0.6", "--from", "s1,s2"]);
    assert_eq!(code, Some(0), "{printed}{said}");
    assert!(printed.contains("s2 -> 198.18.0.6"), "{printed}");
    let (code, printed, said) = ask(&["send", "--from", "s1", "--to", "any-rx", "--train", "2"]);
    assert_eq!(code, Some(0), "{printed}{said}");
    assert!(printed.contains("s1 -> r2") && printed.contains("6 of 6"), "{printed}");
    let (code, printed, said) = ask(&["ping", "198.18.0.99", "--from", "s1"]);
    assert_eq!(code, Some(7), "{printed}{said}");
    assert!(printed.contains("198.18.0.99 does not answer ARP"), "{printed}");
    let (code, _, said) = fleet.ask(&["fleet", "probe", "available", "198.18.0.6"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("available"), "{said}");
}

/// An owner who lets trains through.
const TRAINS_PERMITTED: &str = "[probe]\n[[probe.target]]\nnetwork = \"198.18.0.0/24\"\nprobes_per_s = 10000\n\
    bits_per_s = \"200Mbps\"\nburst = 50\nloss_percent = 100\n";
/// To r1, in bits of frames per second.
const NARROW: u64 = 5_000_000;

/// What all pairs of three nodes say of their capacity.
fn capacities(fleet: &Fleet) -> (Mesh, String) {
    let out = fleet.place().join("out").display().to_string();
    let flags = ["--from", "s1,s2,r1", "--count", "30", "--interval", "10ms", "--slot", "4s", "--out", &out];
    let (code, printed, said) = fleet.ask_begun(&[&["fleet", "probe", "capacity"], &flags[..]].concat());
    (Mesh { code, said, report: fleet.latest() }, printed)
}

#[test]
fn mesh_capacity_finds_narrowest_links() {
    let request = FleetOptions { owner: TRAINS_PERMITTED, ..FleetOptions::default() };
    let Some(fleet) = Fleet::up(request) else { return };
    fleet.give_addresses();
    fleet.narrow("r1", "5mbit");
    let (mesh, printed) = capacities(&fleet);
    let rate = |from: &str, to: &str| {
        let found = &mesh.line(from, to)["found"];
        assert!(found["counts"]["answered"].as_u64() > Some(0), "{from} -> {to}: {found}");
        found["capacity"]["rate"]["bits_per_s"].as_u64()
    };
    for from in ["s1", "s2"] {
        let near = rate(from, "r1").is_some_and(|bits| bits.abs_diff(NARROW) < NARROW / 5);
        assert!(near, "{}", mesh.line(from, "r1"));
        let back = rate("r1", from);
        assert!(back.is_none_or(|bits| bits > 3 * NARROW), "{}", mesh.line("r1", from));
    }
    assert!(printed.contains("Rate of the narrowest link from row to column"), "{printed}");
    // A path without a narrow link has no rate, and says why.
    let is_whole = mesh.report.0["probes"]["lines"].as_array().unwrap().iter().all(|line| {
        let capacity = &line["found"]["capacity"];
        capacity["rate"].is_object() || capacity["why_not"].is_string()
    });
    assert!(is_whole, "{}", mesh.report.0["probes"]);
    assert!(matches!(mesh.code, Some(0 | 7)), "{}", mesh.said);
}

#[test]
fn node_without_probe_permit_sends_no_probes() {
    let Some(mut fleet) = permitted() else { return };
    // This owner says nothing of probes, so they go to the node itself only.
    fleet.restart_agent("r3", fleet.line().to_owned());
    fleet.await_status("r3 is back", |rows| rows.len() == 6);
    let (code, printed, said) = fleet.ask(&["fleet", "probe", "oneway", "--json"]);
    assert_eq!(code, Some(8), "{printed}{said}");
    assert!(
        said.contains("r3") && said.contains("198.18.0.1 is not allowed by the permit for probes"),
        "{said}"
    );
    let mesh = Mesh::of(&fleet, &["--count", "5", "--start-with", "5"]);
    assert_eq!(mesh.code, Some(7), "{}", mesh.said);
    for (from, to) in pairs() {
        if from == "r3" {
            assert!(mesh.line(from, to)["found"].is_null(), "{}", mesh.line(from, to));
            assert_eq!(mesh.line(from, to)["missing"], "node r3 did not report");
        } else if to == "r3" {
            assert_eq!(mesh.count(from, to, "answered"), 0, "its reflector was never there");
        } else {
            mesh.assert_pair_is_whole(from, to, 5);
        }
    }
    // Owners allow addresses, whatever a plan says.
    let (code, printed, said) = fleet.ask(&["fleet", "probe", "ping", "192.0.2.7", "--from", "s1"]);
    assert_eq!(code, Some(8), "{printed}{said}");
    assert!(said.contains("192.0.2.7"), "{said}");
}

#[test]
fn dead_node_leaves_other_probe_pairs_intact() {
    let Some(fleet) = permitted() else { return };
    let mesh = long_mesh(&fleet, |fleet| fleet.signal("s3", Signal::KILL));
    assert_eq!(mesh.code, Some(7), "{}", mesh.said);
    for (from, to) in pairs() {
        match (from, to) {
            ("s3", _) => assert_eq!(mesh.line(from, to)["missing"], "node s3 did not report"),
            (_, "s3") => {
                let (sent, answered) = (mesh.count(from, to, "sent"), mesh.count(from, to, "answered"));
                assert!(answered < sent, "{}", mesh.line(from, to));
            }
            _ => mesh.assert_pair_is_whole(from, to, LONG),
        }
    }
}

#[test]
fn expired_lease_stops_probes_and_reflector() {
    let Some(fleet) = permitted() else { return };
    let mesh = long_mesh(&fleet, |fleet| {
        fleet.cable("s1", false);
        fleet.await_quiet("s1");
    });
    assert_eq!(mesh.code, Some(7), "{}", mesh.said);
    mesh.assert_pair_is_whole("s2", "r1", LONG);
    for line in collected(&fleet).iter().filter(|line| line["from"] == "s1") {
        assert_eq!(line["found"]["end"]["why"], "lease_ended", "{line}");
        assert!(line["found"]["counts"]["sent"].as_u64() < Some(LONG), "{line}");
    }
}

/// The estimate takes longer than the lease, whose end is no end of its time.
#[test]
fn expired_lease_stops_capacity_estimate() {
    let request = FleetOptions { owner: TRAINS_PERMITTED, ..FleetOptions::default() };
    let Some(fleet) = Fleet::up(request) else { return };
    fleet.give_addresses();
    fleet.narrow("r1", "2mbit");
    let flags = ["--from", "s1", "--to", "r1", "--count", "500", "--interval", "1s", "--slot", "60s"];
    let all = [&["fleet", "probe", "capacity", "--json"], &flags[..]].concat();
    let mesh = disturbed(&fleet, &all, |fleet| {
        fleet.cable("s1", false);
        fleet.await_quiet("s1");
    });
    assert_eq!(mesh.code, Some(7), "{}", mesh.said);
    let lines = collected(&fleet);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(lines[0]["found"]["end"]["why"], "lease_ended", "{}", lines[0]);
}

/// The lines of the last run once the results that waited on `s1` have been collected.
fn collected(fleet: &Fleet) -> Vec<Value> {
    fleet.cable("s1", true);
    let lines = || fleet.latest().0["probes"]["lines"].as_array().cloned().unwrap_or_default();
    crate::lab::await_that(
        "the report is complete",
        || {
            fleet.ask(&["fleet", "collect"]);
            lines().iter().all(|line| line["missing"].is_null())
        },
        || format!("{:?}", fleet.latest().0["coverage"]),
    );
    lines()
}

/// Probes of each pair in a run that something happens to.
const LONG: u64 = 300;

/// A run of 15 s, to which `fault` happens when it has begun.
fn long_mesh(fleet: &Fleet, fault: impl FnOnce(&Fleet)) -> Mesh {
    let count = LONG.to_string();
    let all = [
        "fleet",
        "probe",
        "oneway",
        "--json",
        "--interval",
        "50ms",
        "--mechanism",
        "sleep",
        "--count",
        &count,
    ];
    disturbed(fleet, &all, fault)
}

/// A run to which `fault` happens when it has begun.
fn disturbed(fleet: &Fleet, all: &[&str], fault: impl FnOnce(&Fleet)) -> Mesh {
    let run = fleet.begin_by(all);
    fault(fleet);
    let ended = run.finish();
    Mesh { code: ended.code, report: ended.report(), said: ended.complaints }
}
