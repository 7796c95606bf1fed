//! Two rigs, each with half of a plan's ports: together they make the run that one rig would have made.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use packetrig_engine::clock::RealClock;
use packetrig_engine::gate::Gate;
use packetrig_engine::port::Clock;
use packetrig_engine::rig::{Rig, RigOptions};
use packetrig_engine::sim::{LinkSpec, SimPorts};
use packetrig_engine::stream::Shift;
use packetrig_fleet::message::{NodeName, PlanHash, RunId};
use packetrig_fleet::outcome::Outcome;
use packetrig_fleet::report::{Criteria, RunFacts, RunReport, Verdict, assemble};
use packetrig_plan::{Location, Plan, Steer};
use packetrig_stats::caveat::Doubt;
use packetrig_stats::result::NodeResult;
use packetrig_units::{BitRate, Nanos};
use packetrig_wire::tag::TagKey;
use std::collections::BTreeSet;

/// There a share of a link whose speed the receiver cannot know, back a rate; and one that stays on its node.
const DOCUMENT: &str = "
ports: [{name: a, location: east}, {name: b, location: west}, {name: c, location: east-2}]
flows:
- {name: there, tx_rx: {choice: port, port: {tx_name: a, rx_names: [b]}}, size: {choice: fixed, fixed: 128},
   rate: {choice: percentage, percentage: 2}, duration: {choice: fixed_packets, fixed_packets: {packets: 3000}},
   metrics: {enable: true, latency: {enable: true}}}
- {name: back, tx_rx: {choice: port, port: {tx_name: b, rx_names: [a]}}, size: {choice: fixed, fixed: 256},
   rate: {choice: pps, pps: 5000}, duration: {choice: fixed_packets, fixed_packets: {packets: 1000}},
   metrics: {enable: true, latency: {enable: true}}}
- {name: aside, tx_rx: {choice: port, port: {tx_name: c, rx_names: [a]}}, size: {choice: fixed, fixed: 200},
   rate: {choice: pps, pps: 5000}, duration: {choice: fixed_packets, fixed_packets: {packets: 1000}},
   metrics: {enable: true, latency: {enable: true}}}
";

fn plan() -> Plan {
    Plan::read(DOCUMENT).unwrap()
}

fn options(places: [Option<&str>; 3], steered: bool) -> RigOptions {
    let place = |place: Option<&str>| place.map(|text| text.parse::<Location>().unwrap());
    RigOptions {
        key: TagKey(5),
        confirmed: BTreeSet::new(),
        capture_dir: None,
        capture_all: false,
        captures_wait: false,
        back_end: None,
        limits: Vec::new(),
        steered,
        seed: 0,
        places: places.map(place).to_vec(),
        gate: Gate::open(),
    }
}

const EAST: [Option<&str>; 3] = [Some("veth0"), None, Some("veth2")];
const WEST: [Option<&str>; 3] = [None, Some("veth0"), None];

/// The links of both: a tenth of a gigabit where a share is asked for.
fn links() -> SimPorts {
    let tenth = LinkSpec { rate: Some(BitRate::new(100_000_000)), ..LinkSpec::default() };
    let there = SimPorts::default().wire("a", "b", tenth);
    there.wire("b", "a", LinkSpec::default()).wire("c", "a", LinkSpec::default())
}

/// A run on both, started together.
fn run(shifts: &[(usize, Shift)]) -> Vec<NodeResult> {
    let links = links();
    let open = |places| Rig::prepare_with(plan(), &options(places, false), &links).unwrap();
    let (mut east, mut west) = (open(EAST), open(WEST));
    let names =
        |rig: &Rig| rig.ports().into_iter().map(|(port, info)| (port, info.location)).collect::<Vec<_>>();
    assert_eq!(names(&east), [(0, "veth0".to_owned()), (2, "veth2".to_owned())]);
    assert_eq!(names(&west), [(1, "veth0".to_owned())]);
    let clock = RealClock::new();
    for rig in [&mut east, &mut west] {
        rig.arm().unwrap();
        rig.shift(shifts).unwrap();
    }
    let start = clock.now() + Nanos::from_millis(20);
    east.start_at(start);
    west.start_at(start);
    let give_up = clock.now() + Nanos::from_secs(20);
    while !(east.senders_done() && west.senders_done()) {
        assert!(clock.now() < give_up, "the run is stuck");
        clock.wait(clock.now() + Nanos::from_millis(5));
    }
    clock.wait(clock.now() + Nanos::from_millis(50));
    let sent: Vec<_> = [&mut east, &mut west].into_iter().flat_map(|rig| rig.sent().unwrap()).collect();
    assert_eq!(sent, [(0, 3000), (2, 1000), (1, 1000)]);
    vec![east.finish("east", &sent).unwrap(), west.finish("west", &sent).unwrap()]
}

fn report(results: Vec<NodeResult>) -> RunReport {
    let facts = RunFacts {
        run: RunId("r".into()),
        name: "two halves".into(),
        plan: PlanHash::of(DOCUMENT),
        started_wall_ns: 0,
        seed: 0,
        nodes: vec![NodeName("east".into()), NodeName("west".into())],
        criteria: Criteria::default(),
        limits: Vec::new(),
        steered: false,
    };
    assemble(&facts, &plan(), results, Outcome::Complete { stopped: false })
}

#[test]
fn two_halves_make_one_run_whose_books_balance() {
    let results = run(&[]);
    let indices: Vec<Vec<usize>> =
        results.iter().map(|node| node.ports.iter().map(|port| port.port).collect()).collect();
    assert_eq!(indices, [vec![0, 2], vec![1]]);
    // Latency is known where both clocks are the node's own, and nowhere else.
    for received in results.iter().flat_map(|node| &node.receive) {
        assert_eq!(received.latency.is_some(), received.stream == 2, "stream {}", received.stream);
        assert_eq!((received.counts.negative, received.counts.delays.count > 0), (0, received.stream == 2));
    }
    let no_latency = |node: &NodeResult| {
        let of = node.caveats.iter().filter(|caveat| caveat.doubt == Doubt::NoSendTime);
        of.map(|caveat| caveat.subject.clone()).collect::<Vec<_>>()
    };
    assert_eq!(results.iter().flat_map(no_latency).collect::<Vec<_>>(), ["back", "there"]);
    let report = report(results);
    assert_eq!((report.imbalances.as_slice(), report.unchecked.as_slice()), (&[][..], &[][..]));
    let frames: Vec<_> = report
        .streams
        .iter()
        .map(|stream| {
            let (sent, received) = (stream.sent.as_ref().unwrap(), stream.received.as_ref().unwrap());
            (sent.frames, received.frames, stream.loss.unwrap().lost, received.altered)
        })
        .collect();
    assert_eq!(frames, [(3000, 3000, 0, 0), (1000, 1000, 0, 0), (1000, 1000, 0, 0)]);
    let nodes: Vec<_> =
        report.ports.iter().map(|port| (port.info.name.as_str(), port.node.as_str())).collect();
    assert_eq!(nodes, [("a", "east"), ("b", "west"), ("c", "east")]);
    assert!(report.coverage.is_full());
    assert_eq!(report.verdict, Verdict::Pass);
}

#[test]
fn with_a_shift_latency_is_measured_across_nodes_too() {
    // Both rigs are on one clock, so a shift of a known length shows in full; the sender's clock lags by a second.
    let at = RealClock::new().now();
    let second = 1_000_000_000;
    let exact = Shift { at, offset_ns: 0, rate_ppb: 0 };
    let results =
        run(&[(0, Shift { offset_ns: -second, ..exact }), (1, Shift { offset_ns: second, ..exact })]);
    let of = |stream: usize| {
        results.iter().flat_map(|node| &node.receive).find(|received| received.stream == stream).unwrap()
    };
    let (there, back) = (of(0), of(1));
    let least = there.latency.as_ref().unwrap().min().unwrap();
    assert!(least >= Nanos::from_millis(999), "{least}");
    assert_eq!(there.counts.negative, 0);
    // The other way every frame seems to arrive before it was sent, which is said and not made up for.
    assert_eq!(back.counts.negative, 1000);
    assert!(back.counts.least_delay_ns < 0 && back.counts.least_delay_ns >= -second, "{back:?}");
    let caveats: Vec<_> = results.iter().flat_map(|node| &node.caveats).collect();
    assert!(
        caveats.iter().any(|caveat| caveat.doubt == Doubt::Clock && caveat.subject == "back"),
        "{caveats:?}"
    );
}

#[test]
fn a_flow_between_nodes_is_not_steered_by_one_of_them() {
    let error = Rig::prepare_with(plan(), &options(EAST, true), &links()).unwrap_err().to_string();
    assert!(error.contains("from one node to another"), "{error}");
    let mut own = plan();
    own.streams.retain(|stream| stream.name == "aside");
    let mut rig = Rig::prepare_with(own, &options(EAST, true), &links()).unwrap();
    rig.arm().unwrap();
    rig.start_at(RealClock::new().now());
    // What concerns another node's port is that node's business.
    rig.steer(&Steer::Link { ports: vec![1], up: true }, None).unwrap();
    rig.steer(&Steer::Capture { ports: vec![1], on: true }, None).unwrap();
    assert!(rig.steer(&Steer::Capture { ports: vec![0], on: true }, None).is_err());
}
