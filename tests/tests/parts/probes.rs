//! Two nodes that probe each other over a cable, each with its own plane of reflector and senders; and a lease that has ended.

use crate::halves::{Generous, NODES, places, wait_ms};
use packetrig_engine::gate::SendGate;
use packetrig_engine::rig::DataPlane;
use packetrig_fleet::message::RunPreparation;
use packetrig_fleet_io::{EnginePlaneSource, LentMachine, PlaneSource, ProbePolicy};
use packetrig_plan::{Plan, PlanParseOptions};
use packetrig_probe::ProbePermit;
use packetrig_report::NodeName;
use packetrig_stats::probe::{ProbeLineEndReason, ProbeNodeResult};
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::netns::NetNs;
use packetrig_sys::{clock, kernel};
use packetrig_testkit::Lab;
use packetrig_testkit::lab::INTERFACE;
use packetrig_tests::skip;
use packetrig_units::{MonoTime, Nanos};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

/// Two ports with a cable between them, 198.18.0.1 and 198.18.0.2.
fn cable() -> Option<skip::OwnLab> {
    let lab = skip::lab(Lab::cabled_pair)?;
    for (port, address) in lab.ports().iter().zip(["198.18.0.1", "198.18.0.2"]) {
        let netns = NetNs::open_named_namespace(port.namespace()).unwrap();
        let mut links = NamespaceLinks::open_in(&netns).unwrap();
        let index = links.find_link_by_name(INTERFACE).unwrap().index;
        links.add_address(index, address.parse().unwrap(), 24).unwrap();
    }
    Some(lab)
}

fn preparation(lab: &Lab, more: &str) -> RunPreparation {
    let port = |n: usize| format!("{{name: {0}, location: {0}/{1}}}", NODES[n], lab.location(n));
    let address = |n: usize| format!("{{port: {}, address: 198.18.0.{}}}", NODES[n], n + 1);
    let (one, other) = (NODES[0], NODES[1]);
    let text = format!(
        "{{ports: [{}, {}], x_probes: {{from: [{one}, {other}], to: [{one}, {other}], mechanism: sleep, {more}, \
        addresses: [{}, {}]}}}}",
        port(0),
        port(1),
        address(0),
        address(1)
    );
    RunPreparation { document: text.into(), places: places(lab), ..RunPreparation::default() }
}

/// The plane of a node whose senders look at this gate.
fn prepared(preparation: &RunPreparation, node: &str, gate: &SendGate) -> Box<dyn DataPlane> {
    let permit = ProbePermit::from_text(
        "[[target]]\nnetwork = \"198.18.0.0/24\"\nprobes_per_s = 1000\nloss_percent = 100\n",
    )
    .unwrap();
    let mut planes = EnginePlaneSource::for_lent_machine(LentMachine {
        node: NodeName(node.into()),
        gate: gate.clone(),
        permit: Arc::new(Generous),
        confirmed: BTreeSet::new(),
        captures: PathBuf::new(),
        limits: Vec::new(),
        back_end: None,
        probes: ProbePolicy { permit, ..ProbePolicy::default() },
    });
    let reading = PlanParseOptions { fleet: true, ..PlanParseOptions::default() };
    let plan: Arc<Plan> = Arc::clone(preparation.document.read_document(reading).unwrap().plan());
    planes.prepare_plane(preparation, plan).unwrap().0
}

/// Both planes from arming to their results; `meanwhile` happens when they have begun.
fn run(
    preparation: &RunPreparation,
    gates: [&SendGate; 2],
    meanwhile: impl FnOnce(),
) -> Vec<ProbeNodeResult> {
    let mut planes: Vec<Box<dyn DataPlane>> =
        NODES.iter().zip(gates).map(|(node, gate)| prepared(preparation, node, gate)).collect();
    for plane in &mut planes {
        plane.arm_ports().unwrap();
    }
    let start = MonoTime::from_nanos(clock::monotonic_ns()) + Nanos::from_millis(50);
    for plane in &mut planes {
        plane.start_at(start);
    }
    meanwhile();
    let give_up = clock::monotonic_ns() + 60_000_000_000;
    while !planes.iter_mut().all(|plane| plane.senders_done()) {
        assert!(clock::monotonic_ns() < give_up, "the probes are stuck");
        wait_ms(5);
    }
    let finished =
        planes.into_iter().zip(NODES).map(|(mut plane, node)| plane.finish_run(node, &[]).unwrap());
    finished.map(|result| result.probes.unwrap()).collect()
}

#[test]
fn two_planes_probe_each_other_over_a_cable() {
    let Some(lab) = cable() else { return };
    let open = SendGate::without_lease();
    for method in ["oneway", "stamp", "ping", "send"] {
        let preparation = preparation(&lab, &format!("method: {method}, count: 5, interval: 20ms"));
        for result in run(&preparation, [&open, &open], || ()) {
            let [line] = &result.lines[..] else { panic!("{method}: {result:?}") };
            assert_eq!((&line.end, line.counts.sent), (&ProbeLineEndReason::Done, 5), "{method}: {line:?}");
            assert!(result.first.is_some() && line.mechanism == "sleep");
            let answered = if method == "send" { 0 } else { 5 };
            assert_eq!(line.counts.answered, answered, "{method}: {line:?}");
            let has_sessions = ["oneway", "stamp"].contains(&method);
            assert_eq!(result.reflected.len(), usize::from(has_sessions));
            assert!(result.reflected.iter().all(|row| (row.requests, row.reflected) == (5, Some(5))));
            let there = line.there.by_wall_clocks;
            assert_eq!(there.is_some(), has_sessions, "{method}: {line:?}");
            // One kernel: the wall clocks of both ends are the same, so this is the delay.
            assert!(there.is_none_or(|times| times.max_ns + times.bound_ns.cast_signed() > 0), "{line:?}");
            assert_eq!(line.there.by_exchanges.is_some(), method == "oneway");
        }
    }
}

#[test]
fn expired_lease_stops_probes_and_answers() {
    let Some(lab) = cable() else { return };
    let preparation = preparation(&lab, "method: oneway, count: 260, interval: 5ms, wait: 100ms");
    let leased = SendGate::under_lease();
    // However long a busy machine takes to begin, the lease ends when the probes have begun.
    let renew = |nanos: u64| leased.set_deadline(clock::boottime_ns() + nanos);
    renew(3_600_000_000_000);
    let results = run(&preparation, [&leased, &SendGate::without_lease()], || renew(300_000_000));
    let (stopped, other) = (&results[0].lines[0], &results[1].lines[0]);
    assert_eq!(stopped.end, ProbeLineEndReason::LeaseEnded, "{stopped:?}");
    assert!(stopped.counts.sent < 260, "{stopped:?}");
    assert_eq!((&other.end, other.counts.sent), (&ProbeLineEndReason::Done, 260), "{other:?}");
    assert!(other.counts.answered < 260, "nobody answered any more: {other:?}");
    // What arrived when the lease had ended was not answered, so nobody knows whose answers are missing.
    assert_eq!(results[0].reflected[0].reflected, None);
}

#[test]
fn a_target_that_is_not_there_fails_alone() {
    let Some(lab) = cable() else { return };
    for port in lab.ports() {
        // The kernel asks three times; a second each is its default.
        kernel::write_setting(port.netns(), "net/ipv4/neigh/eth0/retrans_time_ms", "200").unwrap();
    }
    let open = SendGate::without_lease();
    let preparation = preparation(&lab, "method: ping, count: 3, interval: 20ms, targets: [198.18.0.77]");
    for result in run(&preparation, [&open, &open], || ()) {
        let (there, nowhere): (Vec<_>, Vec<_>) = result.lines.iter().partition(|line| line.counts.sent > 0);
        let (&[there], &[nowhere]) = (&there[..], &nowhere[..]) else { panic!("{result:?}") };
        assert_eq!((&there.end, there.counts.answered), (&ProbeLineEndReason::Done, 3));
        let ProbeLineEndReason::Failed(why) = &nowhere.end else { panic!("{nowhere:?}") };
        assert!(why.contains("198.18.0.77 does not answer ARP"), "{why}");
    }
}
