//! Two rigs, each with half of a plan's ports: together they make the run that one rig would have made.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use packetrig_engine::Error;
use packetrig_engine::clock::RealClock;
use packetrig_engine::gate::SendGate;
use packetrig_engine::port::WorkerClock;
use packetrig_engine::rig::{
    DataPlane as _, OwnerPermit, PermitQuestion, PlanPortLocations, RigOptions, SteeredPlane as _, TestRig,
};
use packetrig_engine::sim::{LinkSpec, SimPorts};
use packetrig_engine::stream::ClockShift;
use packetrig_plan::{
    GrowingPlan, Plan, PlanChange, PlanGrowth, PlanParseOptions, PlanProblems, PortLocation,
    StreamResumePoint,
};
use packetrig_report::outcome::RunOutcome;
use packetrig_report::{
    AcceptanceCriteria, NodeName, PlanHash, RunFacts, RunId, RunReport, RunVerdict, assemble_report,
};
use packetrig_stats::caveat::CaveatKind;
use packetrig_stats::result::{NodeResult, ReceiveResult, SentTotal};
use packetrig_stats::terms::SharedRunOptions;
use packetrig_units::{BitRate, Nanos};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A flow there with a share of a link of unknown speed, one back with a rate, and one that stays on its node.
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
    Plan::from_text(DOCUMENT).unwrap()
}

/// Allows everything.
#[derive(Debug)]
struct Generous;

impl OwnerPermit for Generous {
    fn list_objections(&self, _: &PermitQuestion<'_>) -> Vec<String> {
        Vec::new()
    }
    fn allows_address(&self, _: std::net::IpAddr) -> bool {
        true
    }
}

fn options(places: [Option<&str>; 3], steered: bool) -> RigOptions {
    let place = |place: Option<&str>| place.map(|text| text.parse::<PortLocation>().unwrap());
    RigOptions {
        engine: None,
        run: String::new(),
        terms: SharedRunOptions { tag_key: 5, steered, ..SharedRunOptions::default() },
        confirmed: BTreeSet::new(),
        capture_dir: None,
        site: PlanPortLocations::PartOfFleet {
            places: places.map(place).to_vec(),
            permit: Arc::new(Generous),
        },
        gate: SendGate::without_lease(),
    }
}

const EAST: [Option<&str>; 3] = [Some("veth0"), None, Some("veth2")];
const WEST: [Option<&str>; 3] = [None, Some("veth0"), None];

/// The links of both: a tenth of a gigabit where a share is asked for.
fn links() -> SimPorts {
    let tenth = LinkSpec { rate: Some(BitRate::new(100_000_000)), ..LinkSpec::default() };
    let there = SimPorts::default().add_wire("a", "b", tenth);
    there.add_wire("b", "a", LinkSpec::default()).add_wire("c", "a", LinkSpec::default())
}

/// A run on both, started together.
fn run(shifts: &[(usize, ClockShift)]) -> Vec<NodeResult> {
    let links = links();
    let open = |places| TestRig::prepare_with(plan(), &options(places, false), &links).unwrap();
    let (mut east, mut west) = (open(EAST), open(WEST));
    let names =
        |rig: &TestRig| rig.ports().into_iter().map(|(port, info)| (port, info.location)).collect::<Vec<_>>();
    assert_eq!(names(&east), [(0, "veth0".to_owned()), (2, "veth2".to_owned())]);
    assert_eq!(names(&west), [(1, "veth0".to_owned())]);
    let clock = RealClock::new();
    for rig in [&mut east, &mut west] {
        rig.arm_ports().unwrap();
        rig.set_clock_shifts(shifts).unwrap();
    }
    let start = clock.now() + Nanos::from_millis(20);
    east.start_at(start);
    west.start_at(start);
    let give_up = clock.now() + Nanos::from_secs(20);
    while !(east.senders_done() && west.senders_done()) {
        assert!(clock.now() < give_up, "the run is stuck");
        clock.wait_until(clock.now() + Nanos::from_millis(5));
    }
    clock.wait_until(clock.now() + Nanos::from_millis(50));
    let sent: Vec<_> =
        [&mut east, &mut west].into_iter().flat_map(|rig| rig.sent_totals().unwrap()).collect();
    let total = |stream, frames| SentTotal { stream, frames };
    assert_eq!(sent, [total(0, 3000), total(2, 1000), total(1, 1000)]);
    vec![east.finish_run("east", &sent).unwrap(), west.finish_run("west", &sent).unwrap()]
}

fn report(results: Vec<NodeResult>) -> RunReport {
    let facts = RunFacts {
        run: RunId("r".into()),
        name: "two halves".into(),
        plan: PlanHash::from_document(DOCUMENT),
        started_wall_ns: 0,
        seed: 0,
        nodes: vec![NodeName("east".into()), NodeName("west".into())],
        places: Vec::new(),
        // A machine that stands still makes frames late, which is not what is judged here.
        criteria: AcceptanceCriteria { max_late: Nanos::from_secs(20), ..AcceptanceCriteria::default() },
        limits: Vec::new(),
        steered: false,
    };
    assemble_report(&facts, &plan(), results, RunOutcome::Complete { stopped: false })
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
        let of = node.caveats.iter().filter(|caveat| caveat.doubt == CaveatKind::NoSendTime);
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
    assert_eq!(report.verdict, RunVerdict::Pass);
}

#[test]
fn clock_shift_enables_latency_across_nodes() {
    // Both rigs are on one clock, so a shift of a known length shows in full; the sender's clock lags by a second.
    let at = RealClock::new().now();
    let second = 1_000_000_000;
    let exact = ClockShift { at, offset_ns: 0, rate_ppb: 0 };
    let results = run(&[
        (0, ClockShift { offset_ns: -second, ..exact }),
        (1, ClockShift { offset_ns: second, ..exact }),
    ]);
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
        caveats.iter().any(|caveat| caveat.doubt == CaveatKind::Clock && caveat.subject == "back"),
        "{caveats:?}"
    );
}

/// Two flows from east to west and one back, with numbered frames of a pattern; `more` is added.
fn endless(pps: [u32; 2], more: &str) -> String {
    let flow = |name: &str, tx: &str, rx: &str, rate: String| {
        format!(
            "- {{name: {name}, tx_rx: {{choice: port, port: {{tx_name: {tx}, rx_names: [{rx}]}}}},
   packet: [{{choice: ethernet, ethernet: {{}}}}, {{choice: ipv4, ipv4: {{}}}}, {{choice: udp, udp:
     {{src_port: {{choice: increment, increment: {{start: 1, step: 1, count: 50000}}}}}}}}],
   size: {{choice: fixed, fixed: 128}}, rate: {rate}, metrics: {{enable: true, latency: {{enable: true}}}}}}
"
        )
    };
    let pps = pps.map(|pps| format!("{{choice: pps, pps: {pps}}}"));
    let [there, back] = pps;
    format!(
        "ports: [{{name: a, location: east/veth0}}, {{name: b, location: west/veth0}}, {{name: c, location: east/veth2}}]
flows:
{}{}{}{}",
        flow("there", "a", "b", there),
        flow("back", "b", "a", back),
        flow("share", "a", "b", "{choice: percentage, percentage: 1}".into()),
        if more.is_empty() { String::new() } else { flow(more, "a", "b", "{choice: pps, pps: 3000}".into()) },
    )
}

/// Both halves of a steered run, or all of it.
struct Pair {
    rigs: Vec<TestRig>,
    plan: GrowingPlan,
    clock: RealClock,
}

const READING: PlanParseOptions = PlanParseOptions { seed: 0, fleet: true, part: false };

impl Pair {
    fn open(links: &SimPorts) -> Self {
        Self::of(&[EAST, WEST], links)
    }

    fn of(places: &[[Option<&str>; 3]], links: &SimPorts) -> Self {
        let plan = Plan::from_text_with(&endless([4000, 2000], ""), READING).unwrap();
        let open = |places| TestRig::prepare_with(plan.clone(), &options(places, true), links).unwrap();
        let rigs = places.iter().map(|places| open(*places)).collect();
        let mut pair = Self { rigs, plan: GrowingPlan::new(Arc::new(plan)), clock: RealClock::new() };
        for rig in &mut pair.rigs {
            rig.arm_ports().unwrap();
        }
        let start = pair.clock.now();
        for rig in &mut pair.rigs {
            rig.start_at(start);
        }
        pair
    }

    fn wait(&self, ms: u64) {
        self.clock.wait_until(self.clock.now() + Nanos::from_millis(ms));
    }

    /// The change as a node reads it, before its rig gets it.
    fn read(&mut self, change: &PlanChange) -> PlanChange<PlanGrowth> {
        let read = change.clone().try_map_document(|document| {
            let newer = document.read_document(READING)?;
            Ok::<_, PlanProblems>(self.plan.propose_plan(newer.plan()))
        });
        read.unwrap()
    }

    /// Makes them perform the controller's steps.
    fn change(&mut self, change: &PlanChange) -> Vec<StreamResumePoint> {
        let steer = &self.read(change);
        let held: Vec<StreamResumePoint> =
            self.rigs.iter_mut().flat_map(|rig| rig.hold_for_change(steer).unwrap()).collect();
        let at = steer.starts_streams().then(|| self.clock.now() + Nanos::from_millis(20));
        for rig in &mut self.rigs {
            rig.announce_change(&held, at).unwrap();
        }
        for rig in &mut self.rigs {
            rig.begin_change(at).unwrap();
        }
        self.plan.accept_proposal();
        held
    }

    fn each(&mut self, change: &PlanChange) {
        let steer = self.read(change);
        for rig in &mut self.rigs {
            rig.apply_change(&steer).unwrap();
        }
        self.plan.accept_proposal();
    }

    /// (frames, of them since the start, being sent) of each stream.
    fn sent(&mut self) -> BTreeMap<usize, (u64, u64, bool)> {
        let samples = self.rigs.iter_mut().map(|rig| rig.sample_counts().unwrap());
        samples
            .flat_map(|sample| sample.tx)
            .map(|(stream, counts)| (stream, (counts.frames, counts.since_start.frames, counts.is_sending)))
            .collect()
    }

    /// Waits until each of these streams has sent something since its start.
    fn flow(&mut self, streams: &[usize]) {
        let give_up = self.clock.now() + Nanos::from_secs(20);
        while !streams.iter().all(|stream| self.sent().get(stream).is_some_and(|sent| sent.1 > 50)) {
            assert!(self.clock.now() < give_up, "{:?}", self.sent());
            self.wait(10);
        }
    }

    /// Returns whether a stream sends so many frames before long.
    fn reaches(&mut self, stream: usize, frames: u64) -> bool {
        (0..1_000).any(|_| {
            self.wait(10);
            self.sent()[&stream].0 >= frames
        })
    }

    /// (frames sent, received once, lost, altered, received since the start) of each stream.
    fn close(mut self) -> BTreeMap<usize, (u64, u64, u64, u64, u64)> {
        for rig in &mut self.rigs {
            rig.stop_senders();
        }
        let give_up = self.clock.now() + Nanos::from_secs(20);
        while !self.rigs.iter_mut().all(TestRig::senders_done) {
            assert!(self.clock.now() < give_up, "the run is stuck");
            self.wait(5);
        }
        self.wait(150);
        let samples: Vec<_> = self.rigs.iter_mut().map(|rig| rig.sample_counts().unwrap()).collect();
        let sent: Vec<_> = self.rigs.iter_mut().flat_map(|rig| rig.sent_totals().unwrap()).collect();
        let results: Vec<_> =
            self.rigs.into_iter().map(|mut rig| rig.finish_run("node", &sent).unwrap()).collect();
        let fresh = |stream: usize| {
            let mut rx = samples.iter().flat_map(|sample| &sample.rx);
            rx.find(|(of, ..)| *of == stream).unwrap().2.since_start.frames
        };
        let received = results.iter().flat_map(|node| &node.receive);
        let row = |received: &ReceiveResult| {
            let SentTotal { frames, .. } = sent.iter().find(|total| total.stream == received.stream).unwrap();
            let counts = &received.counts;
            let (unique, lost) = (counts.sequence.unique, counts.sequence.lost);
            (received.stream, (*frames, unique, lost, counts.altered, fresh(received.stream)))
        };
        received.map(row).collect()
    }
}

fn demand_all(rows: &BTreeMap<usize, (u64, u64, u64, u64, u64)>) {
    for (stream, (sent, unique, lost, altered, _)) in rows {
        assert_eq!((*unique, *lost, *altered), (*sent, 0, 0), "stream {stream}: {rows:?}");
    }
}

#[test]
fn cross_node_flows_are_steered_without_loss() {
    let mut pair = Pair::open(&links());
    pair.wait(30);
    assert!(pair.sent().values().all(|sent| *sent == (0, 0, false)), "nothing begins by itself");
    let held = pair.change(&PlanChange::Start(vec![0, 1, 2]));
    assert_eq!(
        held.iter().map(|held| (held.stream, held.number, held.index)).collect::<Vec<_>>(),
        [(0, 0, 0), (2, 0, 0), (1, 0, 0)]
    );
    pair.flow(&[0, 1, 2]);
    pair.each(&PlanChange::Pause(vec![0, 1]));
    let paused = pair.sent();
    assert_eq!([paused[&0].2, paused[&1].2, paused[&2].2], [false, false, true]);
    let held = pair.change(&PlanChange::Resume(vec![0, 1, 2]));
    // Running streams continue undisturbed; the others continue where they were stopped.
    let goes_on: Vec<_> = [0, 1].iter().map(|stream| (*stream, paused[stream].0, paused[stream].0)).collect();
    assert_eq!(held.iter().map(|held| (held.stream, held.number, held.index)).collect::<Vec<_>>(), goes_on);
    assert!([0, 1].iter().all(|stream| pair.reaches(*stream, paused[stream].0 + 1)));
    let held = pair.change(&PlanChange::Replan(endless([1000, 6000], "more").into()));
    assert_eq!(held.iter().map(|held| held.stream).collect::<Vec<_>>(), [0, 1], "those whose rate changes");
    assert!(held.iter().all(|held| held.index == held.number && held.number > paused[&held.stream].0));
    pair.change(&PlanChange::Start(vec![3]));
    pair.flow(&[3]);
    pair.each(&PlanChange::Stop(vec![0]));
    let stopped = pair.sent()[&0].0;
    let held = pair.change(&PlanChange::Start(vec![0, 3]));
    assert_eq!(held, [StreamResumePoint { stream: 0, number: stopped, index: 0, mac: None }]);
    pair.flow(&[0]);
    let rows = pair.close();
    assert_eq!(rows.len(), 4);
    demand_all(&rows);
    assert_eq!(rows[&0].4, rows[&0].0 - stopped, "counts since the start begin with it on both sides");
}

#[test]
fn undone_change_restores_streams_on_every_node() {
    let mut pair = Pair::open(&links());
    pair.change(&PlanChange::Start(vec![0, 1]));
    pair.flow(&[0, 1]);
    let slower = pair.read(&PlanChange::Replan(endless([100, 100], "more").into()));
    let held: Vec<_> = pair.rigs.iter_mut().flat_map(|rig| rig.hold_for_change(&slower).unwrap()).collect();
    assert_eq!(held.iter().map(|held| held.stream).collect::<Vec<_>>(), [0, 1]);
    assert!(pair.sent().values().all(|sent| !sent.2), "all are held");
    for rig in &mut pair.rigs {
        rig.undo_change().unwrap();
    }
    let before = pair.sent();
    assert!(before[&0].2 && before[&1].2 && !before[&2].2, "{before:?}");
    assert_eq!(pair.rigs[0].plan().streams.len(), 3, "the plan is what it was");
    // At the rate that was given up it would take 20 s.
    assert!(pair.reaches(0, before[&0].0 + 2_000), "{before:?} {:?}", pair.sent());
    // What could not be done is found before anything is held.
    let elsewhere = endless([1, 1], "").replace("west/veth0", "far/veth0");
    let elsewhere = pair.read(&PlanChange::Replan(elsewhere.into()));
    assert!(pair.rigs[0].hold_for_change(&elsewhere).is_err());
    assert!(pair.sent()[&0].2);
    // Held and forgotten: whatever comes next undoes it first.
    let held = pair.read(&PlanChange::Replan(endless([50, 50], "").into()));
    pair.rigs[0].hold_for_change(&held).unwrap();
    assert!(!pair.sent()[&0].2);
    pair.each(&PlanChange::Pause(vec![2]));
    assert!(pair.sent()[&0].2);
    for out_of_order in [pair.rigs[0].begin_change(None), pair.rigs[1].announce_change(&[], None)] {
        assert!(matches!(out_of_order, Err(Error::Bug(_))));
    }
    demand_all(&pair.close());
}

#[test]
fn change_to_remote_port_is_ignored_locally() {
    let mut pair = Pair::open(&links());
    let east = &mut pair.rigs[0];
    east.apply_change(&PlanChange::Link { ports: vec![1], up: true }).unwrap();
    east.apply_change(&PlanChange::Capture { ports: vec![1], on: true }).unwrap();
    assert!(east.apply_change(&PlanChange::Capture { ports: vec![0], on: true }).is_err());
}

#[test]
fn one_rig_makes_the_same_changes_at_once() {
    let all = [Some("veth0"), Some("veth1"), Some("veth2")];
    let mut whole = Pair::of(&[all], &links());
    whole.each(&PlanChange::Start(vec![0, 1, 2]));
    whole.flow(&[0, 1, 2]);
    whole.each(&PlanChange::Pause(vec![0, 1]));
    let paused = whole.sent();
    assert_eq!([paused[&0].2, paused[&1].2, paused[&2].2], [false, false, true]);
    whole.each(&PlanChange::Resume(vec![0, 1]));
    whole.each(&PlanChange::Replan(endless([1000, 6000], "more").into()));
    whole.each(&PlanChange::Start(vec![3]));
    whole.flow(&[3]);
    whole.each(&PlanChange::Stop(vec![0]));
    let stopped = whole.sent()[&0].0;
    whole.each(&PlanChange::Start(vec![0]));
    whole.flow(&[0]);
    let rows = whole.close();
    assert_eq!(rows.len(), 4);
    demand_all(&rows);
    assert_eq!(rows[&0].4, rows[&0].0 - stopped);
}

#[test]
fn removed_stream_is_not_started_again() {
    let mut pair = Pair::open(&links());
    pair.change(&PlanChange::Replan(endless([4000, 2000], "more").into()));
    pair.change(&PlanChange::Replan(endless([4000, 2000], "").into()));
    pair.change(&PlanChange::Start(vec![0, 3]));
    pair.flow(&[0]);
    assert_eq!(pair.sent()[&3], (0, 0, false));
    // It is when the plan has it again.
    pair.change(&PlanChange::Replan(endless([4000, 2000], "more").into()));
    pair.change(&PlanChange::Start(vec![3]));
    pair.flow(&[3]);
}

#[test]
fn foreign_announcement_of_own_stream_is_refused() {
    let mut pair = Pair::open(&links());
    let east = &mut pair.rigs[0];
    east.hold_for_change(&PlanChange::Start(vec![])).unwrap();
    let held = StreamResumePoint { stream: 0, number: 0, index: 0, mac: Some([2, 0, 0, 0, 0x66, 0x66]) };
    let error = east.announce_change(&[held], None).unwrap_err();
    assert!(matches!(error, Error::NotPermitted(_)), "{error}");
}
