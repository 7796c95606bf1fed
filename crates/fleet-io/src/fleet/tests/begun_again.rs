//! A service with a start that reaches some nodes too late.

use super::leading::led;
use super::*;
use crate::fleet::{ControlledFleet, NodeRetention, RunResultStore};
use crate::operator::RunOperator;
use crate::served::{FleetRuns, ServedTerms};
use packetrig_fleet::served::{OpenFailure, RunSource as _};
use packetrig_stats::caveat::CaveatKind;
use packetrig_store::{RunCatalogue, UnlistedRun};
use std::fmt;
use std::sync::atomic::AtomicU64;

/// Stops the loss of confirmations when a start was too late, if the test wants that.
struct MendingOperator {
    loses_confirmations: Arc<AtomicBool>,
    mends: bool,
    fabric: LocalFabric,
    heard: Mutex<Vec<String>>,
}

impl RunOperator for MendingOperator {
    fn remark(&self, text: fmt::Arguments<'_>) {
        // Each remark here comes between two starts.
        assert_eq!(led_nodes(&self.fabric), 2, "other controllers may take the nodes: {text}");
        if self.mends {
            self.loses_confirmations.store(false, Ordering::Relaxed);
        }
        self.heard.lock().unwrap().push(text.to_string());
    }

    fn on_kept_files(&self, kept: &UnlistedRun) {
        panic!("nothing was captured: {kept:?}");
    }

    fn is_interrupted(&self) -> bool {
        false
    }
}

fn led_nodes(fabric: &LocalFabric) -> usize {
    led(&mut fabric.open_records().unwrap()).len()
}

/// Starts two nodes of which the second one receives no confirmations as long as the flag is set.
fn start_nodes(
    fabric: &LocalFabric,
    place: &Path,
    loses_confirmations: &Arc<AtomicBool>,
    endless: bool,
) -> [TestNode; 2] {
    [("north", Arc::default()), ("south", Arc::clone(loses_confirmations))].map(
        |(name, loses_confirmations)| {
            let half = HalfPlane { node: name.into(), endless, ..HalfPlane::default() };
            let request = NodeRequest { loses_confirmations, ..NodeRequest::default() };
            TestNode::with(fabric, name, place, (half.clone(), half), request)
        },
    )
}

/// A service on two nodes, of which one does not receive confirmations for now.
struct LateService {
    runs: FleetRuns<LocalFabric>,
    operator: Arc<MendingOperator>,
    catalogue: RunCatalogue,
    fabric: LocalFabric,
    _nodes: [TestNode; 2],
    _place: tempfile::TempDir,
}

impl LateService {
    fn start(mends: bool) -> Self {
        let (fabric, place) = (LocalFabric::default(), tempfile::tempdir().unwrap());
        let loses_confirmations = Arc::new(AtomicBool::new(true));
        let nodes = start_nodes(&fabric, place.path(), &loses_confirmations, true);
        let catalogue = || RunCatalogue::open_or_create(&place.path().join("store")).unwrap();
        let heard = Mutex::default();
        let operator =
            Arc::new(MendingOperator { loses_confirmations, mends, fabric: fabric.clone(), heard });
        let charged = ControlledFleet {
            fleet: FleetExecutor::become_controller(&fabric, charge("c", MemoryShelf::default())).unwrap(),
            store: RunResultStore::new(catalogue()),
            operator: operator.clone(),
        };
        let number = AtomicU64::new(0);
        let options = Box::new(move || RunOptions {
            run: RunId(format!("r{}", number.fetch_add(1, Ordering::Relaxed) + 1)),
            ..options()
        });
        let reopen = Box::new(|| panic!("it stays the controller"));
        let runs = FleetRuns::new(charged, reopen, ServedTerms { options, seed: 5 });
        Self { runs, operator, catalogue: catalogue(), fabric, _nodes: nodes, _place: place }
    }
}

#[test]
fn served_run_restarts_after_late_start_with_caveat() {
    let service = LateService::start(true);
    let states = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&states);
    let sink = Box::new(move |event: &RunEvent| {
        if let RunEventKind::Ended(_) = event.kind {
            seen.lock().unwrap().push(event.run.0.clone());
        }
    });
    let mut session = service.runs.open_steered_run(read(DOCUMENT), sink).unwrap();
    session.make_change(PlanChange::Start(vec![0])).unwrap();
    session.close_run(true);
    let heard = service.operator.heard.lock().unwrap().clone();
    assert!(heard.len() == 1 && heard[0].contains("beginning again (start 2 of 3"), "{heard:?}");
    assert_eq!(*states.lock().unwrap(), ["r1", "r2"]);
    let (_, report) = service.catalogue.load_report("r2").unwrap();
    let caveat = report.caveats.iter().find(|caveat| caveat.doubt == CaveatKind::BegunAgain).unwrap();
    assert!(caveat.text.contains("the start of run r1 came too late") && !caveat.matters, "{caveat:?}");
    assert!(service.catalogue.load_report("r1").is_err(), "nothing was sent in it");
}

#[test]
fn unstarted_node_is_named_after_three_starts() {
    let service = LateService::start(false);
    let Err(OpenFailure::Fault(fault)) = service.runs.open_steered_run(read(DOCUMENT), Box::new(|_| {}))
    else {
        panic!("it cannot start")
    };
    assert_eq!(fault.text, "node south: did not confirm the start (split_start)");
    assert_eq!(service.operator.heard.lock().unwrap().len(), 2);
    assert_eq!(led_nodes(&service.fabric), 0, "nothing is begun again");
}

#[test]
fn nodes_stay_led_between_two_starts() {
    let (fabric, place) = (LocalFabric::default(), tempfile::tempdir().unwrap());
    let loses_confirmations = Arc::new(AtomicBool::new(true));
    let _nodes = start_nodes(&fabric, place.path(), &loses_confirmations, false);
    let mut fleet = FleetExecutor::become_controller(&fabric, charge("c", MemoryShelf::default())).unwrap();
    let make_run = |fleet: &mut FleetExecutor<LocalFabric>, run: &str| {
        let options = RunOptions { run: RunId(run.into()), ..options() };
        fleet.lead_run_nodes(&plan_of(DOCUMENT), &options.run, &mut |held| panic!("{held:?}")).unwrap();
        run_document(fleet, DOCUMENT, options, (&|| false, &mut |_| {})).unwrap().outcome
    };
    fleet.set_retention(NodeRetention::KeepAfterLateStart);
    let outcome = make_run(&mut fleet, "r1");
    assert!(outcome.is_split_start() && led_nodes(&fabric) == 2, "{outcome:?}");
    fleet.set_retention(NodeRetention::GiveBack);
    let outcome = make_run(&mut fleet, "r2");
    assert!(outcome.is_split_start() && led_nodes(&fabric) == 0, "{outcome:?}");
    loses_confirmations.store(false, Ordering::Relaxed);
    fleet.set_retention(NodeRetention::KeepAfterLateStart);
    assert_eq!(make_run(&mut fleet, "r3"), RunOutcome::Complete { stopped: false });
    assert_eq!(led_nodes(&fabric), 0, "the run is over");
}
