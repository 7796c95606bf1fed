//! Two nodes, each with its own data plane and one end of a cable: together they make one run.

use packetrig_engine::gate::SendGate;
use packetrig_engine::packet::interface_lock_name;
use packetrig_engine::rig::{DataPlane, OwnerPermit, PermitQuestion};
use packetrig_fleet::message::{RunPreparation, SentTotal};
use packetrig_fleet_io::{EnginePlaneSource, LentMachine, PlaneSource, ProbePolicy};
use packetrig_plan::{Plan, PlanParseOptions};
use packetrig_report::outcome::RunOutcome;
use packetrig_report::{AcceptanceCriteria, NodeName, PlanHash, PortPlace, RunFacts, RunId, assemble_report};
use packetrig_stats::result::NodeResult;
use packetrig_stats::terms::SharedRunOptions;
use packetrig_sys::{clock, lock};
use packetrig_testkit::Lab;
use packetrig_tests::document::{Document, Flow};
use packetrig_tests::skip;
use packetrig_units::{MonoTime, Nanos};
use serde_json::json;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

pub(crate) const NODES: [&str; 2] = ["east", "west"];

pub(crate) fn wait_ms(ms: u64) {
    clock::sleep_until_ns(clock::monotonic_ns() + ms * 1_000_000);
}

/// A share of a link of a known speed there, a rate back, both captured at the other end.
fn document(lab: &Lab) -> String {
    let locations: Vec<String> = (0..2).map(|n| format!("{}/{}", NODES[n], lab.location(n))).collect();
    let back = json!({"choice": "port", "port": {"tx_name": "port 1", "rx_names": ["port 0"]}});
    let packets = |packets: u64| json!({"choice": "fixed_packets", "fixed_packets": {"packets": packets}});
    let there = Flow::new("there", 1)
        .with("rate", json!({"choice": "percentage", "percentage": 0.1}))
        .with("duration", packets(3000));
    let back = Flow::new("back", 2)
        .with("tx_rx", back)
        .with("rate", json!({"choice": "pps", "pps": 4000}))
        .with("duration", packets(2000));
    Document::new(&locations).flow(there).flow(back).capture(1, "pcap").text()
}

pub(crate) fn places(lab: &Lab) -> Vec<PortPlace> {
    let place = |n: usize| PortPlace { node: NodeName(NODES[n].into()), interface: lab.location(n) };
    (0..2).map(place).collect()
}

/// Allows everything.
#[derive(Debug)]
pub(crate) struct Generous;

impl OwnerPermit for Generous {
    fn list_objections(&self, _: &PermitQuestion<'_>) -> Vec<String> {
        Vec::new()
    }
    fn allows_address(&self, _: IpAddr) -> bool {
        true
    }
}

/// A machine that lends everything.
fn lent(node: &str, captures: &Path) -> EnginePlaneSource {
    EnginePlaneSource::for_lent_machine(LentMachine {
        node: NodeName(node.into()),
        gate: SendGate::without_lease(),
        permit: Arc::new(Generous),
        confirmed: BTreeSet::new(),
        captures: captures.into(),
        limits: Vec::new(),
        back_end: None,
        probes: ProbePolicy::default(),
    })
}

fn plan(preparation: &RunPreparation) -> Arc<Plan> {
    let reading = PlanParseOptions { fleet: true, ..PlanParseOptions::default() };
    Arc::clone(preparation.document.read_document(reading).unwrap().plan())
}

/// Both halves from preparing to their accounts.
fn run(preparation: &RunPreparation, captures: &Path) -> Vec<NodeResult> {
    let prepare = |node: &str| {
        let mut planes = lent(node, captures);
        let (plane, ports) = planes.prepare_plane(preparation, plan(preparation)).unwrap();
        assert_eq!(ports.len(), 1, "one of the two ports is here");
        plane
    };
    let mut rigs: Vec<Box<dyn DataPlane>> = NODES.into_iter().map(prepare).collect();
    for rig in &mut rigs {
        rig.arm_ports().unwrap();
    }
    let start = MonoTime::from_nanos(clock::monotonic_ns() + 50_000_000);
    for rig in &mut rigs {
        rig.start_at(start);
    }
    let give_up = clock::monotonic_ns() + 60_000_000_000;
    while !rigs.iter_mut().all(|rig| rig.senders_done()) {
        assert!(clock::monotonic_ns() < give_up, "the run is stuck");
        wait_ms(5);
    }
    let sent: Vec<SentTotal> = rigs.iter_mut().flat_map(|rig| rig.sent_totals().unwrap()).collect();
    wait_ms(100);
    rigs.into_iter().zip(NODES).map(|(mut rig, node)| rig.finish_run(node, &sent).unwrap()).collect()
}

#[test]
fn two_planes_make_one_run_over_a_cable() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let captures = tempfile::tempdir().unwrap();
    let document = document(&lab);
    let preparation = RunPreparation {
        document: document.clone().into(),
        terms: SharedRunOptions { tag_key: 77, ..SharedRunOptions::default() },
        run: "halves".into(),
        places: places(&lab),
        ..RunPreparation::default()
    };
    let results = run(&preparation, captures.path());
    let captured: Vec<_> = results.iter().map(|node| node.captures.len()).collect();
    assert_eq!(captured, [0, 1], "a port is captured where it is");
    assert_eq!(results[1].captures[0].written, 3000);
    let facts = RunFacts {
        run: RunId("r".into()),
        name: "two planes".into(),
        plan: PlanHash::from_document(&document),
        started_wall_ns: 0,
        seed: 0,
        nodes: NODES.map(|node| NodeName(node.into())).to_vec(),
        places: Vec::new(),
        criteria: AcceptanceCriteria::default(),
        limits: Vec::new(),
        steered: false,
    };
    let plan =
        Plan::from_text_with(&document, PlanParseOptions { fleet: true, ..PlanParseOptions::default() })
            .unwrap();
    let report = assemble_report(&facts, &plan, results, RunOutcome::Complete { stopped: false });
    assert_eq!((report.imbalances.as_slice(), report.unchecked.as_slice()), (&[][..], &[][..]));
    for (stream, frames) in report.streams.iter().zip([3000, 2000]) {
        let (sent, received) = (stream.sent.as_ref().unwrap(), stream.received.as_ref().unwrap());
        assert_eq!((sent.frames, received.sequence.unique, received.altered), (frames, frames, 0));
        assert_eq!(stream.loss.unwrap().lost, 0);
        assert!(stream.latency.is_none(), "nobody related the clocks of the two nodes");
    }
}

fn is_locked(lab: &Lab) -> bool {
    let port = &lab.ports()[0];
    lock::is_name_held(port.netns(), &interface_lock_name(port.link.index)).unwrap()
}

/// A run that is prepared and goes no further.
fn prepare_and_drop(planes: &mut EnginePlaneSource, wanted: &RunPreparation) {
    drop(planes.prepare_plane(wanted, plan(wanted)).unwrap());
}

#[test]
fn node_keeps_ports_for_requested_time() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let captures = tempfile::tempdir().unwrap();
    let (document, run) = (document(&lab).into(), "halves".to_owned());
    let plain = RunPreparation { document, places: places(&lab), run, ..RunPreparation::default() };
    let keeping = RunPreparation { keep_ports_ns: Nanos::from_secs(3), ..plain.clone() };
    let mut planes = lent("east", captures.path());
    prepare_and_drop(&mut planes, &keeping);
    let ended = MonoTime::from_nanos(1);
    planes.close_unused_ports(ended);
    assert!(is_locked(&lab), "for the next run");
    prepare_and_drop(&mut planes, &keeping);
    planes.close_unused_ports(ended);
    planes.close_unused_ports(ended + Nanos::from_millis(2_999));
    assert!(is_locked(&lab), "it may still come");
    planes.close_unused_ports(ended + Nanos::from_secs(3));
    assert!(!is_locked(&lab), "it did not come in time");
    prepare_and_drop(&mut planes, &keeping);
    prepare_and_drop(&mut planes, &plain);
    assert!(!is_locked(&lab), "nobody asked for it");
    let far_too_long = RunPreparation { keep_ports_ns: Nanos::from_secs(3600), ..plain };
    prepare_and_drop(&mut planes, &far_too_long);
    planes.close_unused_ports(ended);
    planes.close_unused_ports(ended + Nanos::from_secs(10));
    assert!(!is_locked(&lab), "a controller cannot keep an owner's interface for long");
}

#[test]
fn interface_used_for_two_ports_is_refused() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let mut places = places(&lab);
    places[1] = places[0].clone();
    let (document, run) = (document(&lab).into(), "halves".to_owned());
    let preparation = RunPreparation { document, places, run, ..RunPreparation::default() };
    let place = tempfile::tempdir().unwrap();
    let refused = lent("east", place.path()).prepare_plane(&preparation, plan(&preparation));
    let error = refused.err().unwrap().to_string();
    assert!(error.contains("port `port 0` already"), "{error}");
}
