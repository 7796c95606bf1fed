//! Runs on several nodes in one process, on a data plane without frames.

use super::{
    ControllerConfig, FleetExecutor, PartContents, PresenceDirectory, ReceivedSegment, ResultStore,
    ResultStoreError, StoredBatch, StoredPart,
};
use crate::supervisor::SendDeadlineFile;
use crate::uplink::{ResultUplink, UplinkSource};
use crate::{
    Error, NodeMembership, NodeSite, PlaneSource, PreparedPlane, RunOptions, run_document, serve_fleet_agent,
};
use packetrig_engine::Error as EngineError;
use packetrig_engine::gate::SendGate;
use packetrig_engine::rig::{DataPlane, OwnerPermit, PermitQuestion, SteeredPlane};
use packetrig_fleet::agent::{AgentMachine, PersistentAgentState};
use packetrig_fleet::controller::RunPolicies;
use packetrig_fleet::fabric::{Fabric, ResultSender, SegmentId};
use packetrig_fleet::hello::{ClockFacts, FLEET_PROTOCOL_VERSION, NodeHello, OfferedPort};
use packetrig_fleet::lease::LeaseTerms;
use packetrig_fleet::local::LocalFabric;
use packetrig_fleet::message::{ClockKey, Nonce, RunPreparation, SentTotal, StoredWatermark};
use packetrig_fleet::term::{ControllerIdentity, ControllerTermTimes};
use packetrig_plan::{Plan, PlanChange, PlanDocument, PlanGrowth, PlanParseOptions, StreamResumePoint};
use packetrig_report::event::{RunEvent, RunEventKind};
use packetrig_report::outcome::RunOutcome;
use packetrig_report::{AcceptanceCriteria, NodeName, RunId, RunReport};
use packetrig_stats::counts::{StreamRxCounts, StreamTxCounts};
use packetrig_stats::latency::Latency;
use packetrig_stats::result::{CountSample, NodeResult, ReceiveResult, SendResult};
use packetrig_stats::sequence::SequenceCounts;
use packetrig_stats::series::RateSeries;
use packetrig_stats::terms::SharedRunOptions;
use packetrig_store::spool::segment::{ResultSegment, SegmentKind};
use packetrig_store::spool::{self, ResultSpool, SegmentKey, value};
use packetrig_units::{MonoTime, Nanos};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

mod begun_again;
mod leading;
mod others;
mod slow;
mod steered;
mod watched;

const DOCUMENT: &str = "
ports: [{name: a, location: north/a0}, {name: b, location: south/b0}]
flows:
- name: s
  tx_rx: {choice: port, port: {tx_name: a, rx_names: [b]}}
  packet: [{choice: ethernet, ethernet: {}}]
  size: {choice: fixed, fixed: 128}
  rate: {choice: pps, pps: 1000}
  duration: {choice: fixed_packets, fixed_packets: {packets: 100}}
  metrics: {enable: true}
";

const NODES: [&str; 2] = ["north", "south"];

/// Counts 100 frames as sent or received without any, or sends until it is stopped.
#[derive(Clone, Debug, Default)]
struct HalfPlane {
    node: String,
    endless: bool,
    started: Arc<Mutex<Vec<MonoTime>>>,
    stopped: Arc<AtomicBool>,
    /// Changes that were ordered.
    asked: Arc<Mutex<Vec<String>>>,
}

impl HalfPlane {
    fn note(&self, what: String) {
        self.asked.lock().unwrap().push(what);
    }
    fn sends(&self) -> bool {
        self.node == "north"
    }
}

impl PlaneSource for HalfPlane {
    fn prepare_plane(
        &mut self,
        preparation: &RunPreparation,
        _: Arc<Plan>,
    ) -> Result<PreparedPlane, EngineError> {
        assert_eq!(preparation.places.len(), 2);
        Ok((Box::new(self.clone()), vec![]))
    }
}

impl DataPlane for HalfPlane {
    fn arm_ports(&mut self) -> Result<(), EngineError> {
        Ok(())
    }
    fn start_at(&mut self, at: MonoTime) {
        self.started.lock().unwrap().push(at);
    }
    fn sample_counts(&mut self) -> Result<CountSample, EngineError> {
        Ok(CountSample { at: crate::agent::now(), ..CountSample::default() })
    }
    fn senders_done(&mut self) -> bool {
        !self.endless || self.stopped.load(Ordering::Relaxed)
    }
    fn sent_totals(&mut self) -> Result<Vec<SentTotal>, EngineError> {
        Ok(if self.sends() { vec![SentTotal { stream: 0, frames: 100 }] } else { vec![] })
    }
    fn stop_senders(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
    fn finish_run(&mut self, node: &str, sent: &[SentTotal]) -> Result<NodeResult, EngineError> {
        assert_eq!(node, self.node);
        // A node whose start came too late has sent nothing, and has a result all the same.
        let started = self.started.lock().unwrap().last().copied().unwrap_or_default();
        let mut result = NodeResult { node: node.into(), started, ..NodeResult::default() };
        if self.sends() {
            result.send = vec![sent_hundred()];
        } else {
            // A controller that ends the run of another one may do so on this node only.
            let is_told = self.endless || sent == [SentTotal { stream: 0, frames: 100 }];
            assert!(is_told, "receivers are told what was sent: {sent:?}");
            result.receive = vec![received_hundred()];
        }
        Ok(result)
    }
}

impl SteeredPlane for HalfPlane {
    fn apply_change(&mut self, steer: &PlanChange<PlanGrowth>) -> Result<(), EngineError> {
        self.note(format!("{steer:?}"));
        Ok(())
    }
    fn hold_for_change(
        &mut self,
        steer: &PlanChange<PlanGrowth>,
    ) -> Result<Vec<StreamResumePoint>, EngineError> {
        self.note(format!("hold {steer:?}"));
        if !self.sends() && matches!(steer, PlanChange::Resume(_)) {
            return Err(EngineError::Bug("made to fail"));
        }
        let held = StreamResumePoint { stream: 0, number: 7, index: 0, mac: None };
        Ok(if self.sends() { vec![held] } else { vec![] })
    }
    fn announce_change(
        &mut self,
        held: &[StreamResumePoint],
        at: Option<MonoTime>,
    ) -> Result<(), EngineError> {
        let numbers: Vec<_> = held.iter().map(|held| (held.stream, held.number)).collect();
        self.note(format!("announce {numbers:?}{}", if at.is_some() { " at" } else { "" }));
        Ok(())
    }
    fn begin_change(&mut self, at: Option<MonoTime>) -> Result<(), EngineError> {
        self.note(format!("begin{}", if at.is_some() { " at" } else { "" }));
        Ok(())
    }
    fn undo_change(&mut self) -> Result<(), EngineError> {
        self.note("undo".into());
        Ok(())
    }
}

fn sent_hundred() -> SendResult {
    SendResult {
        untagged_contents: packetrig_stats::content::ContentCounts::default(),
        stream: 0,
        counts: StreamTxCounts { frames: 100, ..StreamTxCounts::default() },
        planned: 100,
        send_error: Latency::with_digits(2),
        stamp_bound: Latency::with_digits(2),
        series: RateSeries::default(),
    }
}

fn received_hundred() -> ReceiveResult {
    let sequence = SequenceCounts { unique: 100, ..SequenceCounts::default() };
    ReceiveResult {
        outages: packetrig_stats::outage::OutageList::default(),
        quality: packetrig_stats::series::QualitySeries::default(),
        stream: 0,
        port: 1,
        counts: StreamRxCounts { frames: 100, sequence, ..StreamRxCounts::default() },
        latency: None,
        jitter: None,
        series: RateSeries::default(),
    }
}

/// Keeps segments in memory and reads them as the store does.
#[derive(Clone, Debug, Default)]
struct MemoryShelf(Arc<Mutex<BTreeMap<SegmentId, ResultSegment>>>);

impl ResultStore for MemoryShelf {
    fn knows_run(&self, _: &RunId) -> bool {
        true
    }

    fn store_segments(&mut self, segments: &[ReceivedSegment]) -> StoredBatch {
        let mut batch = StoredBatch::default();
        for ReceivedSegment { id, body } in segments {
            let stored = self.store_segment(id, body);
            batch.outcomes.push(stored.map(|part| batch.parts.push(part)));
        }
        batch
    }
}

impl MemoryShelf {
    fn store_segment(&self, id: &SegmentId, body: &[u8]) -> Result<StoredPart, ResultStoreError> {
        let key = SegmentKey { run: id.run.clone(), attempt: id.attempt, number: id.number };
        let segment = ResultSegment::from_bytes(&key, body);
        let segment = segment.map_err(|error| ResultStoreError::Unreadable(error.to_string()))?;
        let mut all = self.0.lock().unwrap();
        all.insert(id.clone(), segment);
        let of_node = |number| SegmentId { number, ..id.clone() };
        let below = (0..10_000).find(|number| !all.contains_key(&of_node(*number))).unwrap();
        let whole = below > 0 && all[&of_node(below - 1)].kind == SegmentKind::End;
        let pieces = (0..below).map(|number| &all[&of_node(number)]);
        let result = pieces.filter(|segment| segment.kind == SegmentKind::Result);
        let bytes: Vec<u8> = result.flat_map(|segment| segment.payload.clone()).collect();
        let result = (whole && !bytes.is_empty())
            .then(|| value::unpack_value::<NodeResult>(&bytes).map(Arc::new))
            .transpose()
            .map_err(|error| ResultStoreError::ForNow(error.to_string()))?;
        let mark = StoredWatermark { run: id.run.clone(), attempt: id.attempt, below };
        let contents = PartContents { result, ..PartContents::default() };
        Ok(StoredPart { node: id.node.clone(), mark, contents, completed: None })
    }
}

/// Allows everything.
#[derive(Debug)]
struct GenerousPermit;

impl OwnerPermit for GenerousPermit {
    fn list_objections(&self, _: &PermitQuestion<'_>) -> Vec<String> {
        Vec::new()
    }
    fn allows_address(&self, _: std::net::IpAddr) -> bool {
        true
    }
}

/// Properties of a test node.
#[derive(Clone)]
struct NodeRequest {
    compare: bool,
    /// Delay of every message to it.
    delay: Nanos,
    terms: LeaseTerms,
    /// Confirmations of starts do not reach it as long as this is set.
    loses_confirmations: Arc<AtomicBool>,
    /// Asked for the free space of its disk before a sample is written.
    disk: fn(),
}

impl Default for NodeRequest {
    fn default() -> Self {
        // Longer than any test takes: a node on a busy machine does not give its run up.
        let terms =
            LeaseTerms { orphaned: Nanos::from_secs(300), ..LeaseTerms::with_ttl(Nanos::from_secs(60)) };
        Self { compare: false, delay: Nanos::ZERO, terms, loses_confirmations: Arc::default(), disk: || () }
    }
}

struct TestNode {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    half: HalfPlane,
    spool: ResultSpool,
}

impl TestNode {
    fn start(fabric: &LocalFabric, name: &str, place: &Path, endless: bool, compare: bool) -> Self {
        let half = HalfPlane { node: name.into(), endless, ..HalfPlane::default() };
        Self::with(
            fabric,
            name,
            place,
            (half.clone(), half),
            NodeRequest { compare, ..NodeRequest::default() },
        )
    }

    /// One with the data planes of `planes`.
    fn with(
        fabric: &LocalFabric,
        name: &str,
        place: &Path,
        (half, mut planes): (HalfPlane, impl PlaneSource + Send + 'static),
        request: NodeRequest,
    ) -> Self {
        let place = place.join(name);
        std::fs::create_dir_all(&place).unwrap();
        let node = NodeName(name.into());
        let limits = spool::SpoolLimits { bytes: 1 << 24, keep_free: 0 };
        let free = Box::new(move |_: &Path| {
            (request.disk)();
            None
        });
        let spool = ResultSpool::open_or_create(&place.join("spool"), limits, free).unwrap();
        let way = fabric.clone();
        let of = node.clone();
        let open = Box::new(move || Ok(Box::new(way.open_result_outlet(&of)?) as Box<dyn ResultSender>));
        let captures = place.join("captures");
        let source =
            UplinkSource { spool: spool.clone(), captures, capture_bytes: 1 << 20, node: node.clone() };
        let uplink = ResultUplink::start_sending(source, open).unwrap();
        let interface = format!("{}0", if name == "north" { "a" } else { "b" });
        let site = NodeSite {
            node: node.clone(),
            describe: Box::new(move || hello(&interface)),
            always_compare: request.compare,
            epoch_file: place.join("epoch"),
            watch: Some(SendDeadlineFile::open_file(&place.join("watch")).unwrap()),
        };
        let membership = NodeMembership::new(site, SendGate::under_lease(), uplink);
        let past = PersistentAgentState { epoch: 0, nonce: Nonce(1), longest: None };
        let agent = AgentMachine::new_leased(request.terms, past);
        let over = Arc::new(AtomicBool::new(false));
        let endpoint = slow::SlowEndpoint::new(
            fabric.open_endpoint(node).unwrap(),
            request.delay,
            request.loses_confirmations,
        );
        let thread = {
            let over = Arc::clone(&over);
            std::thread::spawn(move || {
                let failure = serve_fleet_agent(endpoint, &mut planes, agent, membership, &over);
                assert!(failure.is_none(), "{failure:?}");
            })
        };
        Self { over, thread: Some(thread), half, spool }
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        self.thread.take().unwrap().join().unwrap();
    }
}

fn hello(interface: &str) -> NodeHello {
    let port = OfferedPort {
        interface: interface.into(),
        labels: vec![],
        driver: "none".into(),
        speed: None,
        up: true,
        back_ends: vec![],
        addresses: Vec::new(),
    };
    let clock = ClockFacts { identity: "one machine".into(), ..ClockFacts::default() };
    let protocol = FLEET_PROTOCOL_VERSION;
    NodeHello { incarnation: 1, protocol, ports: vec![port], clock, ..NodeHello::default() }
}

/// A place on another host.
const ELSEWHERE: &str = "another machine";

/// Clock key of all controllers of a test.
fn presences() -> PresenceDirectory {
    std::thread_local! {
        static PLACE: tempfile::TempDir = tempfile::tempdir().unwrap();
    }
    PLACE.with(|place| PresenceDirectory::open_directory(&place.path().join("controllers")).unwrap())
}

fn charge(name: &str, shelf: MemoryShelf) -> ControllerConfig {
    let presence = presences().announce_controller(name).unwrap();
    let identity = ControllerIdentity {
        controller: name.into(),
        user: "alice".into(),
        host: "here".into(),
        place: presence.place().into(),
        pid: std::process::id(),
    };
    ControllerConfig {
        identity,
        presence: Some(presence),
        times: ControllerTermTimes::default(),
        clock: "one machine".into(),
        key: ClockKey([7; 32]),
        store: Box::new(shelf),
        note: Box::new(|_| Ok(())),
        policies: RunPolicies::default(),
        roster: super::FleetRoster {
            enrolled: NODES.map(|name| NodeName(name.into())).into(),
            ..super::FleetRoster::default()
        },
        reads_all_runs: false,
    }
}

fn options() -> RunOptions {
    RunOptions {
        run: RunId("r1".into()),
        name: "test".into(),
        started_wall_ns: 1,
        terms: SharedRunOptions { tag_key: 77, seed: 5, ..SharedRunOptions::default() },
        confirmed: vec![],
        capture_dir: None,
        drain: Nanos::from_millis(1),
        criteria: AcceptanceCriteria::default(),
    }
}

fn read(document: &str) -> PlanDocument {
    let reading = PlanParseOptions { seed: 5, fleet: true, ..PlanParseOptions::default() };
    PlanDocument::read_text(document, reading).unwrap()
}

fn plan_of(document: &str) -> Arc<Plan> {
    Arc::clone(read(document).plan())
}

/// Takes the nodes of the plan for the run of [`options`]; no other controller leads them.
fn lead(fleet: &mut FleetExecutor<LocalFabric>, document: &str) -> Result<(), Error> {
    let run = options().run;
    let leftovers =
        fleet.lead_run_nodes(&plan_of(document), &run, &mut |held| panic!("nobody has them: {held:?}"))?;
    assert!(leftovers.is_empty(), "{leftovers:?}");
    Ok(())
}

fn run(
    fleet: &mut FleetExecutor<LocalFabric>,
    stop: &dyn Fn() -> bool,
) -> (Result<RunReport, Error>, Vec<RunEvent>) {
    let mut events = vec![];
    if let Err(error) = lead(fleet, DOCUMENT) {
        return (Err(error), events);
    }
    let mut note = |event: &RunEvent| events.push(event.clone());
    let report = run_document(fleet, DOCUMENT, options(), (stop, &mut note));
    (report, events)
}

#[test]
fn two_node_run_starts_together_and_delivers_results() {
    for compare in [false, true] {
        let (fabric, place) = (LocalFabric::default(), tempfile::tempdir().unwrap());
        let nodes =
            ["north", "south"].map(|name| TestNode::start(&fabric, name, place.path(), false, compare));
        let mut fleet =
            FleetExecutor::become_controller(&fabric, charge("c", MemoryShelf::default())).unwrap();
        let (report, events) = run(&mut fleet, &|| false);
        let report = report.unwrap_or_else(|error| panic!("{error}: {events:?}"));
        assert_eq!(report.outcome, RunOutcome::Complete { stopped: false }, "{events:?}");
        assert_eq!((report.coverage.reported, report.coverage.expected), (2, 2));
        let loss = report.streams[0].loss.unwrap();
        assert_eq!((loss.expected, loss.lost), (100, 0));
        let starts = nodes.each_ref().map(|node| node.half.started.lock().unwrap()[0].as_nanos());
        let apart = starts[0].abs_diff(starts[1]);
        assert!(apart < if compare { 20_000_000 } else { 1 }, "{starts:?}");
        drop(fleet);
        // Results that are stored at the controller are gone from the nodes.
        let waits = || nodes.iter().any(|node| !node.spool.pending_segments(1).is_empty());
        let soon = (0..500).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            !waits()
        });
        assert!(soon, "segments are left on the nodes");
    }
}

#[test]
fn user_stop_ends_fleet_run() {
    let (fabric, place) = (LocalFabric::default(), tempfile::tempdir().unwrap());
    let _nodes = ["north", "south"].map(|name| TestNode::start(&fabric, name, place.path(), true, false));
    let mut fleet = FleetExecutor::become_controller(&fabric, charge("c", MemoryShelf::default())).unwrap();
    let sampled = AtomicBool::new(false);
    let mut note = |event: &RunEvent| {
        sampled.fetch_or(matches!(event.kind, RunEventKind::Counters { .. }), Ordering::Relaxed);
    };
    let stop = || sampled.load(Ordering::Relaxed);
    lead(&mut fleet, DOCUMENT).unwrap();
    let report = run_document(&mut fleet, DOCUMENT, options(), (&stop, &mut note)).unwrap();
    assert_eq!(report.outcome, RunOutcome::Complete { stopped: true });
}

#[test]
fn missing_node_is_plan_problem() {
    let (fabric, place) = (LocalFabric::default(), tempfile::tempdir().unwrap());
    let _node = TestNode::start(&fabric, "north", place.path(), false, false);
    let mut fleet = FleetExecutor::become_controller(&fabric, charge("c", MemoryShelf::default())).unwrap();
    let Err(Error::NotPlaced(problems)) = run(&mut fleet, &|| false).0 else { panic!("it cannot run") };
    assert!(problems.0[0].to_string().contains("south"), "{problems:?}");
}

#[test]
fn sample_interval_grows_with_node_count() {
    let drain = Nanos::from_secs(1);
    let every = |nodes| super::telemetry_interval(nodes, drain).as_u64() / 1_000_000;
    assert_eq!([2, 500, 1000, 2000, 50_000].map(every), [0, 100, 200, 400, 500], "milliseconds");
}
