//! A service with a start that reaches some nodes too late.

use super::*;
use crate::fleet::{ControlledFleet, RunResultStore};
use crate::operator::RunOperator;
use crate::served::{FleetRuns, ServedTerms};
use packetrig_fleet::served::{OpenFailure, RunSource as _};
use packetrig_stats::caveat::CaveatKind;
use packetrig_store::{KeptRun, RunCatalogue};
use std::fmt;
use std::sync::atomic::AtomicU64;

/// Stops the loss of confirmations when a start was too late, if the test wants that.
struct MendingOperator {
    loses_confirmations: Arc<AtomicBool>,
    mends: bool,
    heard: Mutex<Vec<String>>,
}

impl RunOperator for MendingOperator {
    fn remark(&self, text: fmt::Arguments<'_>) {
        if self.mends {
            self.loses_confirmations.store(false, Ordering::Relaxed);
        }
        self.heard.lock().unwrap().push(text.to_string());
    }

    fn on_left_files(&self, kept: &KeptRun) {
        panic!("nothing was captured: {kept:?}");
    }

    fn is_interrupted(&self) -> bool {
        false
    }
}

/// A service on two nodes, of which one does not receive confirmations for now.
struct LateService {
    runs: FleetRuns<LocalFabric>,
    operator: Arc<MendingOperator>,
    catalogue: RunCatalogue,
    _nodes: [TestNode; 2],
    _place: tempfile::TempDir,
}

impl LateService {
    fn start(mends: bool) -> Self {
        let (fabric, place) = (LocalFabric::default(), tempfile::tempdir().unwrap());
        let loses_confirmations = Arc::new(AtomicBool::new(true));
        let nodes = [("north", Arc::default()), ("south", Arc::clone(&loses_confirmations))].map(
            |(name, loses_confirmations)| {
                let half = HalfPlane { node: name.into(), endless: true, ..HalfPlane::default() };
                let wish = NodeWish { loses_confirmations, ..NodeWish::default() };
                TestNode::with(&fabric, name, place.path(), (half.clone(), half), wish)
            },
        );
        let catalogue = || RunCatalogue::open_or_create(&place.path().join("store")).unwrap();
        let operator = Arc::new(MendingOperator { loses_confirmations, mends, heard: Mutex::default() });
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
        Self { runs, operator, catalogue: catalogue(), _nodes: nodes, _place: place }
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
    assert!(caveat.text.contains("the start of r1 came too late") && !caveat.matters, "{caveat:?}");
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
}
