use super::super::{ReceivedSegment, StoredBatch};
use super::*;
use crossbeam_channel::{Sender, unbounded};
use packetrig_fleet::fabric::{Fabric, ResultSender, SegmentDelivery, SegmentId};
use packetrig_fleet::local::{LocalFabric, LocalIncoming, LocalRecords};
use packetrig_fleet::term::{ControllerIdentity, ControllerTermTimes};
use packetrig_report::NodeName;
use std::sync::{Mutex, MutexGuard};

/// Requests to a fabric.
#[derive(Debug, Default)]
struct Asked {
    opened: Vec<RunId>,
    discarded: BTreeSet<RunId>,
}

/// The results of a fabric in memory, with a look at what is asked of it.
struct WatchedIncoming {
    inside: LocalIncoming,
    asked: Arc<Mutex<Asked>>,
    /// Cannot be opened.
    broken: Option<RunId>,
    is_nearly_full: bool,
}

impl ResultReceiver for WatchedIncoming {
    type Token = SegmentId;

    fn read_run(&mut self, run: &RunId, instead_of: &BTreeSet<String>) -> Result<(), fabric::Error> {
        self.asked.lock().unwrap().opened.push(run.clone());
        if self.broken.as_ref() == Some(run) {
            return Err(fabric::Error::Unanswered("a consumer".into()));
        }
        self.inside.read_run(run, instead_of)
    }

    fn leave_run(&mut self, run: &RunId) {
        self.inside.leave_run(run);
    }

    fn list_runs_with_waiting_segments(
        &mut self,
    ) -> Result<BTreeMap<RunId, BTreeSet<String>>, fabric::Error> {
        self.inside.list_runs_with_waiting_segments()
    }

    fn receive_segment(&mut self, within: Nanos) -> Option<SegmentDelivery<SegmentId>> {
        self.inside.receive_segment(within)
    }

    fn confirm_segment(&mut self, token: SegmentId) -> Result<(), fabric::Error> {
        self.inside.confirm_segment(token)
    }

    fn is_nearly_full(&self) -> bool {
        self.is_nearly_full
    }

    fn discard_runs(&mut self, runs: &BTreeSet<RunId>) -> Result<u64, fabric::Error> {
        self.asked.lock().unwrap().discarded.extend(runs.iter().cloned());
        Ok(1)
    }
}

/// Knows these runs.
#[derive(Debug, Default)]
struct Known(BTreeSet<RunId>);

impl ResultStore for Known {
    fn store_segments(&mut self, _: &[ReceivedSegment]) -> StoredBatch {
        StoredBatch::default()
    }

    fn knows_run(&self, run: &RunId) -> bool {
        self.0.contains(run)
    }
}

/// A controller that reads, and a fabric that others use as well.
struct Bench {
    fabric: LocalFabric,
    reading: RunReadingState<WatchedIncoming, LocalRecords>,
    wanted_runs: (Sender<RunId>, Receiver<RunId>),
    store: Known,
}

fn run(name: &str) -> RunId {
    RunId(name.into())
}

fn identity(controller: &str) -> ControllerIdentity {
    let [user, host, place] = [""; 3].map(str::to_owned);
    ControllerIdentity { controller: controller.into(), user, host, place, pid: std::process::id() }
}

impl Bench {
    fn new() -> Self {
        let fabric = LocalFabric::default();
        let incoming = WatchedIncoming {
            inside: fabric.open_result_inlet("me").unwrap(),
            asked: Arc::default(),
            broken: None,
            is_nearly_full: false,
        };
        let watch = ControllerTermWatch::new(ControllerTermTimes::default());
        let others =
            OtherRuns { records: fabric.open_records().unwrap(), watch, presences: None, reads_all: false };
        let reading = RunReadingState::new(incoming, others, Arc::default());
        Self { fabric, reading, wanted_runs: unbounded(), store: Known::default() }
    }

    /// Makes a segment of each of these runs wait.
    fn append<'a>(&self, runs: impl IntoIterator<Item = &'a RunId>) {
        let mut outgoing = self.fabric.open_result_outlet(&NodeName("a".into())).unwrap();
        for run in runs {
            let id = SegmentId { run: run.clone(), attempt: 1, node: NodeName("a".into()), number: 0 };
            outgoing.append_segment(&id, b"x").unwrap();
        }
    }

    fn begin(&self, run: &RunId, state: &str) {
        let head = serde_json::json!({"run": run, "attempt": 1, "epoch": 1, "plan": "0".repeat(64)});
        let record = serde_json::json!({
            "head": head, "state": state, "nodes": ["a"], "left_out": [], "start": null
        });
        let value = serde_json::to_vec(&record).unwrap();
        serde_json::from_slice::<RunRecord>(&value).unwrap();
        self.fabric.open_records().unwrap().create_record(&RunRecord::record_key(run), &value).unwrap();
    }

    fn turn(&mut self) {
        self.reading.update_run_reading(&self.wanted_runs.1, &self.store);
    }

    /// A turn in which it looks what waits, and one in which it does not for each place of a late run.
    fn look(&mut self) {
        self.reading.look_at = None;
        for _ in 0..=MAX_LATE_RUNS_READ {
            self.turn();
        }
    }

    /// Takes in all that comes.
    fn take(&mut self) -> BTreeSet<RunId> {
        let incoming = &mut self.reading.incoming;
        let mut taken = BTreeSet::new();
        while let Some(delivery) = incoming.receive_segment(Nanos::ZERO) {
            incoming.confirm_segment(delivery.token).unwrap();
            taken.insert(delivery.id.run);
        }
        taken
    }

    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.reading.incoming.asked.lock().unwrap()
    }

    fn is_drained(&self) -> bool {
        self.reading.is_drained.load(Ordering::Acquire)
    }
}

#[test]
fn late_runs_are_read_few_at_a_time() {
    let mut bench = Bench::new();
    let runs: BTreeSet<RunId> = (0..50).map(|number| run(&format!("late-{number}"))).collect();
    bench.store.0.clone_from(&runs);
    bench.append(&runs);
    let mut taken = BTreeSet::new();
    for _ in 0..50 {
        bench.look();
        assert!(bench.reading.late.len() <= MAX_LATE_RUNS_READ);
        assert!(!bench.is_drained() || taken == runs);
        taken.extend(bench.take());
    }
    assert_eq!(taken, runs);
    assert!(bench.reading.late.is_empty() && bench.is_drained());
    assert_eq!(bench.asked().opened.len(), runs.len(), "each is opened once");
}

#[test]
fn collector_opens_one_late_run_per_turn() {
    let mut bench = Bench::new();
    let own = run("own");
    let late: BTreeSet<RunId> = (0..20).map(|number| run(&format!("late-{number}"))).collect();
    bench.store.0.clone_from(&late);
    bench.append(&late);
    bench.wanted_runs.0.send(own.clone()).unwrap();
    bench.turn();
    assert_eq!(bench.asked().opened, [own], "its own comes first");
    for opened in 2..6 {
        bench.turn();
        assert_eq!(bench.asked().opened.len(), opened);
    }
}

#[test]
fn unreadable_run_delays_no_other() {
    let mut bench = Bench::new();
    let runs: BTreeSet<RunId> = ["a", "b", "c"].map(run).into();
    bench.store.0.clone_from(&runs);
    bench.append(&runs);
    bench.reading.incoming.broken = Some(run("a"));
    bench.look();
    assert_eq!(bench.take(), ["b", "c"].map(run).into());
    bench.look();
    assert!(!bench.is_drained(), "one still waits");
    bench.reading.incoming.broken = None;
    bench.look();
    assert_eq!(bench.take(), [run("a")].into());
}

#[test]
fn endless_late_run_yields_its_slot() {
    let mut bench = Bench::new();
    let endless: BTreeSet<RunId> =
        (0..MAX_LATE_RUNS_READ).map(|number| run(&format!("endless-{number}"))).collect();
    bench.store.0.clone_from(&endless);
    bench.append(&endless);
    bench.look();
    assert_eq!(bench.reading.late.len(), MAX_LATE_RUNS_READ);
    bench.store.0.insert(run("waits"));
    bench.append(&[run("waits")]);
    bench.look();
    assert!(!bench.reading.late.contains_key(&run("waits")), "their turn is not over");
    for since in bench.reading.late.values_mut() {
        *since = MonoTime::from_nanos(since.as_nanos().saturating_sub(LATE_RUN_READ_TIME.as_u64()));
    }
    bench.look();
    assert!(bench.reading.late.contains_key(&run("waits")));
}

#[test]
fn run_read_by_other_controller_is_skipped() {
    let mut bench = Bench::new();
    let record = TermRecord { holder: identity("other"), since_wall_ns: 0, is_over: false };
    let value = serde_json::to_vec(&record).unwrap();
    bench.fabric.open_records().unwrap().create_record(&TermRecord::record_key("other"), &value).unwrap();
    let mut other = bench.fabric.open_result_inlet("other").unwrap();
    for (name, reader) in [("theirs", Some(&mut other)), ("mine", None)] {
        bench.store.0.insert(run(name));
        bench.append(&[run(name)]);
        if let Some(reader) = reader {
            reader.read_run(&run(name), &BTreeSet::new()).unwrap();
        }
    }
    bench.reading.incoming.is_nearly_full = true;
    bench.look();
    assert_eq!(bench.asked().opened, [run("mine")], "the other one is not even asked for");
    assert!(bench.asked().discarded.is_empty());
    bench.take();
    bench.look();
    assert!(bench.is_drained(), "what waits is read by somebody");
}

/// One node must not fill the store of all teams with results without a reader.
#[test]
fn full_fabric_discards_only_runs_without_reader() {
    let mut bench = Bench::new();
    for (name, state) in [("ended-elsewhere", "complete"), ("left-unfinished", "running")] {
        bench.begin(&run(name), state);
    }
    bench.begin(&run("known"), "complete");
    bench.store.0.insert(run("known"));
    bench.append(&["ended-elsewhere", "left-unfinished", "known", "never-begun", "own"].map(run));
    bench.wanted_runs.0.send(run("own")).unwrap();
    bench.look();
    assert!(bench.asked().discarded.is_empty(), "there is room");
    assert!(bench.reading.take_events().is_empty());
    bench.reading.incoming.is_nearly_full = true;
    bench.look();
    assert_eq!(bench.asked().discarded, ["ended-elsewhere", "left-unfinished"].map(run).into());
    let told = format!("{:?}", bench.reading.take_events());
    assert!(told.contains("the nodes still have these results"), "{told}");
    assert_eq!(bench.take(), ["known", "never-begun", "own"].map(run).into());
}
