//! Tests of taking nodes: conflicts with other controllers, and the loss of a term.

use super::*;
use crate::RunUser;
use crate::fleet::{HeldNodes, HeldNodesDecision, LeftoverRun};
use packetrig_fleet::controller::{RunRecord, StartPolicy};
use packetrig_fleet::fabric::{Error as FabricError, RecordStore, StoredRecord};
use packetrig_fleet::labels::OperatorLabels;
use packetrig_fleet::lead::{
    ClaimProgress, LeadClaim, OwnLead, WantedNodes, read_unreleased_leads, release_leads,
};
use packetrig_fleet::local::{LocalEndpoint, LocalIncoming, LocalOutgoing, LocalRecords};
use packetrig_fleet::term::{ControllerTerm, ControllerTermWatch, TermRecord, TermState};
use packetrig_report::outcome::RunState;
use std::panic::{AssertUnwindSafe, catch_unwind};

fn name(node: &str) -> NodeName {
    NodeName(node.into())
}

pub(super) fn start_nodes(fabric: &LocalFabric, place: &Path, is_endless: bool) -> [TestNode; 2] {
    NODES.map(|node| TestNode::start(fabric, node, place, is_endless, false))
}

/// Nodes with senders that stop soon without a controller. They keep the run for longer than any test takes.
fn start_nodes_with_short_leases(fabric: &LocalFabric, place: &Path) -> [TestNode; 2] {
    let terms = LeaseTerms { orphaned: Nanos::from_secs(300), ..LeaseTerms::FLEET_TERMS };
    NODES.map(|node| {
        let half = HalfPlane { node: node.into(), endless: true, ..HalfPlane::default() };
        let request = NodeRequest { terms, ..NodeRequest::default() };
        TestNode::with(fabric, node, place, (half.clone(), half), request)
    })
}

fn user() -> RunUser<'static> {
    RunUser {
        requests: Box::leak(Box::new(|| None)),
        turn: Nanos::from_millis(5),
        on_event: Box::leak(Box::new(|_: &RunEvent| {})),
    }
}

/// Another controller of this host has this node.
fn hold_node(records: &mut LocalRecords, controller: &str, node: &str) -> Vec<OwnLead> {
    // It stays to the end of the test.
    Box::leak(Box::new(presences().announce_controller(controller)));
    let me = ControllerIdentity {
        controller: controller.into(),
        ..charge("nobody", MemoryShelf::default()).identity
    };
    records
        .create_record(
            &TermRecord::record_key(controller),
            &StoredRecord::encode_value(&ControllerTerm::first_record(me.clone(), 0)),
        )
        .unwrap();
    let wanted =
        WantedNodes { run: RunId(controller.into()), nodes: [name(node)].into(), heard: 0, wall_ns: 0 };
    let mut claim =
        LeadClaim::new(me.clone(), wanted, ControllerTermWatch::new(ControllerTermTimes::default()));
    for _ in 0..100 {
        if let ClaimProgress::Taken(_, leads) =
            claim.advance_claim(records, &|_| Some(true), MonoTime::default()).unwrap()
        {
            return leads;
        }
    }
    panic!("nobody else wants it");
}

pub(super) fn led(records: &mut impl RecordStore) -> Vec<NodeName> {
    let nodes = NODES.map(name);
    read_unreleased_leads(records, &nodes).unwrap().into_keys().collect()
}

#[test]
fn busy_node_names_leader_until_released() {
    let (fabric, place) = (LocalFabric::default(), tempfile::tempdir().unwrap());
    let _nodes = start_nodes(&fabric, place.path(), false);
    let plan = plan_of(DOCUMENT);
    let mut one = FleetExecutor::become_controller(&fabric, charge("one", MemoryShelf::default())).unwrap();
    let mut two = FleetExecutor::become_controller(&fabric, charge("two", MemoryShelf::default())).unwrap();
    lead(&mut one, DOCUMENT).unwrap();
    let mut asked = 0;
    let refused = two.lead_run_nodes(&plan, &RunId("r2".into()), &mut |held| {
        asked += 1;
        assert_eq!(held.len(), 2);
        HeldNodesDecision::GoWithout
    });
    let Err(error @ Error::NodesTaken(_)) = refused else { panic!("{refused:?}") };
    let text = error.to_string();
    for node in NODES {
        let words = format!("node {node} belongs to run r1 of alice@here since ");
        assert!(text.contains(&words), "{text}");
    }
    assert_eq!(asked, 1);
    // It begins when the first one gives them back, also by ending.
    let mut first = Some(one);
    let led = two.lead_run_nodes(&plan, &RunId("r2".into()), &mut |_| {
        drop(first.take());
        HeldNodesDecision::Wait
    });
    assert!(led.unwrap().is_empty(), "nothing was left");
    assert_eq!(two.led_epoch_or_zero(), 2);
    let mut records = fabric.open_records().unwrap();
    assert_eq!(records.list_keys("term.").unwrap(), ["term.two"], "who has ended leaves no record");
    drop(two);
    assert_eq!(records.list_keys("term.").unwrap(), [""; 0]);
}

/// A run on both nodes with a controller that does nothing more: the nodes get no stop, and nothing is given back.
fn leave_run(fabric: &LocalFabric, dead: ControllerConfig) {
    let mut one = FleetExecutor::become_controller(fabric, dead).unwrap();
    lead(&mut one, DOCUMENT).unwrap();
    let ended = catch_unwind(AssertUnwindSafe(|| {
        let mut note = |event: &RunEvent| {
            assert!(!matches!(event.kind, RunEventKind::Counters { .. }), "killed");
        };
        drop(run_document(&mut one, DOCUMENT, options(), (&|| false, &mut note)));
    }));
    assert!(ended.is_err());
    Box::leak(Box::new(one));
}

fn busy(fleet: &mut FleetExecutor<LocalFabric>) -> usize {
    let rows = fleet.refresh_member_rows().unwrap();
    rows.iter().filter(|row| row.hello.busy.is_some()).count()
}

fn take_over(
    two: &mut FleetExecutor<LocalFabric>,
    while_blocked: impl FnMut(&HeldNodes) -> HeldNodesDecision,
) -> Vec<LeftoverRun> {
    let mut while_blocked = while_blocked;
    two.lead_run_nodes(&plan_of(DOCUMENT), &RunId("r2".into()), &mut while_blocked).unwrap()
}

fn release_whole(fabric: &LocalFabric, two: &mut FleetExecutor<LocalFabric>, leftovers: &[LeftoverRun]) {
    let [left] = leftovers else { panic!("{leftovers:?}") };
    assert!(left.is_unfinished() && left.covers_whole_run() && left.record.head.run.0 == "r1", "{left:?}");
    assert!(two.release_nodes(left, user()).unwrap());
    assert_eq!(busy(two), 0, "they have let go");
    let record = fabric.open_records().unwrap().get_record("run.r1").unwrap().unwrap();
    assert!(!record.decode_value::<RunRecord>().unwrap().is_unfinished());
}

/// Its process is gone from this host: it is dead at once.
#[test]
fn run_of_dead_local_controller_ends_immediately() {
    let (fabric, place) = (LocalFabric::default(), tempfile::tempdir().unwrap());
    let _nodes = start_nodes(&fabric, place.path(), true);
    let mut dead = charge("dead", MemoryShelf::default());
    dead.presence = None;
    leave_run(&fabric, dead);
    let mut two = FleetExecutor::become_controller(&fabric, charge("two", MemoryShelf::default())).unwrap();
    let leftovers = take_over(&mut two, |_| panic!("a dead one is not waited for"));
    release_whole(&fabric, &mut two, &leftovers);
}

/// Its host is another: nothing is known of its process, only that its record does not change.
#[test]
fn run_of_stale_remote_controller_is_ended() {
    let (fabric, place) = (LocalFabric::default(), tempfile::tempdir().unwrap());
    let _nodes = start_nodes_with_short_leases(&fabric, place.path());
    // By then the leases of the dead one have ended.
    let stale = LeaseTerms::FLEET_TERMS.ttl + Nanos::from_secs(1);
    let mut dead = charge("dead", MemoryShelf::default());
    dead.identity.place = ELSEWHERE.into();
    // It leaves its run before it would refresh anything.
    dead.times = ControllerTermTimes { refresh: Nanos::from_secs(3600), ..ControllerTermTimes::default() };
    leave_run(&fabric, dead);
    let times = ControllerTermTimes { refresh: Nanos::from_millis(100), stale };
    let mut two = FleetExecutor::become_controller(
        &fabric,
        ControllerConfig { times, ..charge("two", MemoryShelf::default()) },
    )
    .unwrap();
    let mut asked = 0;
    let leftovers = take_over(&mut two, |held| {
        asked += 1;
        let is_unclear = held.values().all(|held| matches!(held.state, TermState::Unclear(_)));
        assert!(is_unclear && held.len() == 2, "{held:?}");
        HeldNodesDecision::Wait
    });
    assert!(asked > 0, "it was taken for dead at once");
    release_whole(&fabric, &mut two, &leftovers);
}

/// The end of the run is written, and a node has missed it.
#[test]
fn ended_run_record_is_never_overwritten() {
    let (fabric, place) = (LocalFabric::default(), tempfile::tempdir().unwrap());
    let _nodes = start_nodes(&fabric, place.path(), true);
    let mut dead = charge("dead", MemoryShelf::default());
    dead.presence = None;
    leave_run(&fabric, dead);
    let mut records = fabric.open_records().unwrap();
    let found = records.get_record("run.r1").unwrap().unwrap();
    let record = RunRecord { state: RunState::Partial, ..found.decode_value().unwrap() };
    let revision =
        records.replace_record("run.r1", found.revision, &StoredRecord::encode_value(&record)).unwrap();
    let mut two = FleetExecutor::become_controller(&fabric, charge("two", MemoryShelf::default())).unwrap();
    let leftovers = take_over(&mut two, |_| panic!("a dead one is not waited for"));
    assert_eq!(leftovers.len(), 2);
    for left in &leftovers {
        assert!(!left.is_unfinished());
        assert!(two.release_nodes(left, user()).unwrap());
    }
    assert_eq!(busy(&mut two), 0, "they have let go");
    assert_eq!(records.get_record("run.r1").unwrap().unwrap().revision, revision);
}

/// A label is any of its nodes: whichever is given back first will do.
#[test]
fn label_wait_takes_first_free_node() {
    let (fabric, place) = (LocalFabric::default(), tempfile::tempdir().unwrap());
    let _nodes = start_nodes(&fabric, place.path(), false);
    let mut labels = OperatorLabels::default();
    labels.apply_changes(&["x".parse().unwrap()]).unwrap();
    for freed in NODES {
        let mut records = fabric.open_records().unwrap();
        let mut held: BTreeMap<&str, Vec<OwnLead>> =
            NODES.map(|node| (node, hold_node(&mut records, &format!("{node}-by-{freed}"), node))).into();
        let mut charge = charge("two", MemoryShelf::default());
        charge.roster.labels = NODES.map(|node| (name(node), labels.clone())).into();
        let mut two = FleetExecutor::become_controller(&fabric, charge).unwrap();
        let mut looks = 0;
        let plan = plan_of("ports: [{name: a, location: any-x}]\n");
        two.lead_run_nodes(&plan, &RunId("r2".into()), &mut |in_the_way| {
            assert_eq!(in_the_way.len(), 1, "one is named: {in_the_way:?}");
            looks += 1;
            assert!(looks < 40, "{freed} is free and nobody takes it");
            let leads = held.remove(freed).unwrap_or_default();
            assert_eq!(release_leads(&mut records, leads), (Vec::new(), None));
            HeldNodesDecision::Wait
        })
        .unwrap();
        drop(two);
        for leads in held.into_values() {
            release_leads(&mut records, leads);
        }
    }
}

#[test]
fn quorum_start_can_wait_for_busy_nodes() {
    let (fabric, place) = (LocalFabric::default(), tempfile::tempdir().unwrap());
    let _nodes = start_nodes(&fabric, place.path(), false);
    let mut records = fabric.open_records().unwrap();
    let mut leads = hold_node(&mut records, "other", "south");
    let mut charge = charge("two", MemoryShelf::default());
    charge.policies.start = StartPolicy::Quorum(1);
    let mut two = FleetExecutor::become_controller(&fabric, charge).unwrap();
    let plan = plan_of(DOCUMENT);
    let run = RunId("r2".into());
    let absent = |two: &FleetExecutor<LocalFabric>| {
        let led = two.led.as_ref().unwrap();
        led.settlement.unavailable.keys().cloned().collect::<Vec<_>>()
    };
    two.lead_run_nodes(&plan, &run, &mut |_| HeldNodesDecision::GoWithout).unwrap();
    assert_eq!(absent(&two), [name("south")]);
    let ended = two.lead_run_nodes(&plan, &run, &mut |_| HeldNodesDecision::GiveUp);
    assert!(matches!(&ended, Err(Error::NodesTaken(taken)) if taken.len() == 1), "{ended:?}");
    assert_eq!(led(&mut records), [name("south")], "who gives up has none");
    two.lead_run_nodes(&plan, &run, &mut |held| {
        assert_eq!(held.keys().collect::<Vec<_>>(), [&name("south")]);
        release_leads(&mut records, std::mem::take(&mut leads));
        HeldNodesDecision::Wait
    })
    .unwrap();
    assert_eq!(absent(&two), []);
}

#[test]
fn ended_controller_refuses_new_runs() {
    let (fabric, place) = (LocalFabric::default(), tempfile::tempdir().unwrap());
    let _nodes = start_nodes(&fabric, place.path(), false);
    let times = ControllerTermTimes { refresh: Nanos::from_millis(20), ..ControllerTermTimes::default() };
    let mut one = FleetExecutor::become_controller(
        &fabric,
        ControllerConfig { times, ..charge("one", MemoryShelf::default()) },
    )
    .unwrap();
    lead(&mut one, DOCUMENT).unwrap();
    let mut records = fabric.open_records().unwrap();
    let is_lost = (0..500).any(|_| {
        let found = records.get_record("term.one").unwrap().unwrap();
        // Its own refresh may come in between.
        found.decode_value::<TermRecord>().unwrap().end_term_if_unchanged(&mut records, found.revision).ok();
        std::thread::sleep(std::time::Duration::from_millis(20));
        one.leadership.is_lost()
    });
    assert!(is_lost);
    let (mut events, stop) = (vec![], || false);
    let mut note = |event: &RunEvent| events.push(event.clone());
    let ran = run_document(&mut one, DOCUMENT, options(), (&stop, &mut note));
    assert!(matches!(ran, Err(Error::LeadershipLost)), "{ran:?}");
    assert!(events.is_empty(), "{events:?}");
    let again =
        one.lead_run_nodes(&plan_of(DOCUMENT), &RunId("r2".into()), &mut |_| HeldNodesDecision::GiveUp);
    assert!(matches!(again, Err(Error::LeadershipLost)), "{again:?}");
    // No node got a message, and another controller has them.
    let mut two = FleetExecutor::become_controller(&fabric, charge("two", MemoryShelf::default())).unwrap();
    let heard = two.refresh_member_rows().unwrap();
    assert!(heard.iter().all(|row| row.hello.epoch == 0), "{heard:?}");
    two.lead_run_nodes(&plan_of(DOCUMENT), &RunId("r2".into()), &mut |held| panic!("{held:?}")).unwrap();
}

/// Prefixes of record keys that do not answer writes. The writes are done all the same.
type SilentRecords = Arc<Mutex<Vec<&'static str>>>;

#[derive(Clone, Default)]
struct Silent(LocalFabric, SilentRecords);

struct SilentStore(LocalRecords, SilentRecords);

impl SilentStore {
    fn answer<T>(&self, key: &str, done: Result<T, FabricError>) -> Result<T, FabricError> {
        let is_silent = self.1.lock().unwrap().iter().any(|prefix| key.starts_with(prefix));
        if is_silent { Err(FabricError::Unanswered(key.into())) } else { done }
    }
}

impl RecordStore for SilentStore {
    fn get_record(&mut self, key: &str) -> Result<Option<StoredRecord>, FabricError> {
        let found = self.0.get_record(key);
        // Of leads only the writing fails here.
        if key.starts_with("lead.") { found } else { self.answer(key, found) }
    }
    fn create_record(&mut self, key: &str, value: &[u8]) -> Result<u64, FabricError> {
        let done = self.0.create_record(key, value);
        self.answer(key, done)
    }
    fn replace_record(&mut self, key: &str, revision: u64, value: &[u8]) -> Result<u64, FabricError> {
        let done = self.0.replace_record(key, revision, value);
        self.answer(key, done)
    }
    fn remove_record(&mut self, key: &str) -> Result<(), FabricError> {
        self.0.remove_record(key)
    }
    fn list_keys(&mut self, prefix: &str) -> Result<Vec<String>, FabricError> {
        self.0.list_keys(prefix)
    }
}

impl Fabric for Silent {
    type Endpoint = LocalEndpoint;
    type Records = SilentStore;
    type Outgoing = LocalOutgoing;
    type Incoming = LocalIncoming;
    fn open_endpoint(&self, name: NodeName) -> Result<LocalEndpoint, FabricError> {
        self.0.open_endpoint(name)
    }
    fn open_records(&self) -> Result<SilentStore, FabricError> {
        Ok(SilentStore(self.0.open_records()?, Arc::clone(&self.1)))
    }
    fn open_result_outlet(&self, node: &NodeName) -> Result<LocalOutgoing, FabricError> {
        self.0.open_result_outlet(node)
    }
    fn open_result_inlet(&self, reader: &str) -> Result<LocalIncoming, FabricError> {
        self.0.open_result_inlet(reader)
    }
}

/// The process continues, as a service does. Nodes that it took in vain are free for others all the same.
#[test]
fn failed_claim_releases_its_nodes() {
    // Either what was left on a node cannot be read, or a lead is written and no answer comes.
    for silent in ["run.", "lead.south"] {
        let (fabric, place) = (Silent::default(), tempfile::tempdir().unwrap());
        let _nodes = start_nodes(&fabric.0, place.path(), false);
        let mut records = fabric.0.open_records().unwrap();
        // Another controller led them before.
        for node in NODES {
            let leads = hold_node(&mut records, node, node);
            release_leads(&mut records, leads);
        }
        let times = ControllerTermTimes { refresh: Nanos::from_millis(20), ..ControllerTermTimes::default() };
        let mut one = FleetExecutor::become_controller(
            &fabric,
            ControllerConfig { times, ..charge("one", MemoryShelf::default()) },
        )
        .unwrap();
        fabric.1.lock().unwrap().push(silent);
        let plan = plan_of(DOCUMENT);
        let failed =
            one.lead_run_nodes(&plan, &RunId("r2".into()), &mut |held| panic!("nobody has them: {held:?}"));
        assert!(matches!(failed, Err(Error::Fabric(FabricError::Unanswered(_)))), "{silent}: {failed:?}");
        fabric.1.lock().unwrap().clear();
        let is_free = (0..500).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            led(&mut records).is_empty()
        });
        assert!(is_free, "{silent}: nobody leads {:?} for anything", led(&mut records));
        one.lead_run_nodes(&plan, &RunId("r3".into()), &mut |held| panic!("{held:?}")).unwrap();
        assert_eq!(led(&mut records).len(), 2);
    }
}
