//! The whole life of a run on a data plane without frames.

use crate::{
    Error, LocalExecutor, PlaneSource, PreparedPlane, RunOptions, RunSession, run_document, serve_agent,
};
use packetrig_engine::Error as EngineError;
use packetrig_engine::rig::{DataPlane, SteeredPlane};
use packetrig_fleet::agent::AgentMachine;
use packetrig_fleet::fabric::{Endpoint, Fabric};
use packetrig_fleet::local::LocalFabric;
use packetrig_fleet::message::{MessageBody, MessageHead, NodeCommand, NodeReply, RunPreparation, SentTotal};
use packetrig_fleet::served::SteeredRun as _;
use packetrig_plan::{Plan, PlanChange, PlanDocument, PlanGrowth, PlanParseOptions, StreamResumePoint};
use packetrig_report::event::{RunEvent, RunEventKind};
use packetrig_report::outcome::{RunOutcome, RunState};
use packetrig_report::{AcceptanceCriteria, NodeName, PlanHash, RunId, RunReport};
use packetrig_stats::counts::{StreamRxCounts, StreamTxCounts};
use packetrig_stats::latency::Latency;
use packetrig_stats::result::{CountSample, NodeResult, ReceiveResult, SendResult};
use packetrig_stats::sequence::SequenceCounts;
use packetrig_stats::series::RateSeries;
use packetrig_stats::terms::SharedRunOptions;
use packetrig_units::{MonoTime, Nanos};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

const DOCUMENT: &str = "
ports: [{name: a, location: a0}, {name: b, location: b0}]
flows:
- name: s
  tx_rx: {choice: port, port: {tx_name: a, rx_names: [b]}}
  packet: [{choice: ethernet, ethernet: {}}]
  size: {choice: fixed, fixed: 128}
  rate: {choice: pps, pps: 1000}
  duration: {choice: fixed_packets, fixed_packets: {packets: 100}}
  metrics: {enable: true}
";

/// Orders to the data plane, in order.
type PlaneLog = Arc<Mutex<Vec<&'static str>>>;

/// Sends until stopped, or is done at once.
#[derive(Clone, Default)]
struct FakePlane {
    log: PlaneLog,
    endless: bool,
    fails_at: &'static str,
    stopped: Arc<AtomicBool>,
    /// The plans that it was given.
    plans: Arc<Mutex<Vec<Arc<Plan>>>>,
}

/// A fake that was prepared.
struct OpenFake {
    fake: FakePlane,
    start: MonoTime,
}

impl FakePlane {
    fn note(&self, what: &'static str) -> Result<(), EngineError> {
        self.log.lock().unwrap().push(what);
        if self.fails_at == what { Err(EngineError::Bug("made to fail")) } else { Ok(()) }
    }
}

impl PlaneSource for FakePlane {
    fn prepare_plane(
        &mut self,
        preparation: &RunPreparation,
        plan: Arc<Plan>,
    ) -> Result<PreparedPlane, EngineError> {
        self.plans.lock().unwrap().push(plan);
        assert_eq!((preparation.terms.tag_key, preparation.terms.seed), (77, 5));
        self.note("prepare")?;
        Ok((Box::new(OpenFake { fake: self.clone(), start: MonoTime::default() }), vec![]))
    }
}

impl DataPlane for OpenFake {
    fn arm_ports(&mut self) -> Result<(), EngineError> {
        self.fake.note("arm")
    }
    fn start_at(&mut self, at: MonoTime) {
        self.start = at;
        self.fake.note("start").unwrap();
    }
    fn sample_counts(&mut self) -> Result<CountSample, EngineError> {
        if self.fake.fails_at == "sample" {
            return Err(EngineError::Panicked("tx".into()));
        }
        Ok(CountSample { at: self.start, ..CountSample::default() })
    }
    fn senders_done(&mut self) -> bool {
        !self.fake.endless || self.fake.stopped.load(Ordering::Relaxed)
    }
    fn sent_totals(&mut self) -> Result<Vec<SentTotal>, EngineError> {
        Ok(vec![SentTotal { stream: 0, frames: 100 }])
    }
    fn stop_senders(&mut self) {
        self.fake.stopped.store(true, Ordering::Relaxed);
        self.fake.note("stop").unwrap();
    }
    fn finish_run(&mut self, node: &str, sent: &[SentTotal]) -> Result<NodeResult, EngineError> {
        self.fake.note("finish")?;
        assert_eq!(sent, [SentTotal { stream: 0, frames: 100 }], "receivers are told what was sent");
        Ok(result(node, self.start))
    }
}

impl SteeredPlane for OpenFake {
    fn apply_change(&mut self, steer: &PlanChange<PlanGrowth>) -> Result<(), EngineError> {
        self.fake.note(match steer {
            PlanChange::Start(_) => "steer: start",
            PlanChange::Stop(_) => "steer: stop",
            PlanChange::Replan(growth) => {
                self.fake.plans.lock().unwrap().push(Arc::clone(growth.newer()));
                "steer: replan"
            }
            _ => "steer: another",
        })
    }
    fn hold_for_change(&mut self, _: &PlanChange<PlanGrowth>) -> Result<Vec<StreamResumePoint>, EngineError> {
        panic!("one node makes a change at once")
    }
    fn announce_change(&mut self, _: &[StreamResumePoint], _: Option<MonoTime>) -> Result<(), EngineError> {
        panic!("one node makes a change at once")
    }
    fn begin_change(&mut self, _: Option<MonoTime>) -> Result<(), EngineError> {
        panic!("one node makes a change at once")
    }
    fn undo_change(&mut self) -> Result<(), EngineError> {
        panic!("one node makes a change at once")
    }
}

impl Drop for OpenFake {
    fn drop(&mut self) {
        self.fake.note("closed").unwrap();
    }
}

fn result(node: &str, start: MonoTime) -> NodeResult {
    let sequence = SequenceCounts { unique: 100, ..SequenceCounts::default() };
    NodeResult {
        node: node.into(),
        started: start,
        send: vec![SendResult {
            untagged_contents: packetrig_stats::content::ContentCounts::default(),
            stream: 0,
            counts: StreamTxCounts { frames: 100, ..StreamTxCounts::default() },
            planned: 100,
            send_error: Latency::with_digits(2),
            stamp_bound: Latency::with_digits(2),
            series: RateSeries::default(),
        }],
        receive: vec![ReceiveResult {
            outages: packetrig_stats::outage::OutageList::default(),
            quality: packetrig_stats::series::QualitySeries::default(),
            stream: 0,
            port: 1,
            counts: StreamRxCounts { frames: 100, sequence, ..StreamRxCounts::default() },
            latency: None,
            jitter: None,
            series: RateSeries::default(),
        }],
        ..NodeResult::default()
    }
}

fn terms() -> SharedRunOptions {
    SharedRunOptions { tag_key: 77, seed: 5, ..SharedRunOptions::default() }
}

fn options() -> RunOptions {
    RunOptions {
        run: RunId("r".into()),
        name: "test".into(),
        started_wall_ns: 1,
        terms: terms(),
        confirmed: vec![],
        capture_dir: None,
        drain: Nanos::from_millis(1),
        criteria: AcceptanceCriteria::default(),
    }
}

fn run(fake: &mut FakePlane, stop: &dyn Fn() -> bool) -> (Result<RunReport, Error>, Vec<RunEvent>) {
    let mut events = vec![];
    let report = run_document(
        &mut LocalExecutor(fake.clone()),
        DOCUMENT,
        options(),
        (stop, &mut |event| events.push(event.clone())),
    );
    (report, events)
}

fn states(events: &[RunEvent]) -> Vec<RunState> {
    let state = |event: &RunEvent| {
        if let RunEventKind::StateChanged(state) = event.kind { Some(state) } else { None }
    };
    events.iter().filter_map(state).collect()
}

#[test]
fn local_run_completes_with_report() {
    let mut fake = FakePlane::default();
    let (report, events) = run(&mut fake, &|| false);
    let report = report.unwrap();
    assert_eq!(report.outcome, RunOutcome::Complete { stopped: false });
    assert_eq!(report.streams[0].loss.unwrap().lost, 0);
    assert_eq!(*fake.log.lock().unwrap(), ["prepare", "arm", "start", "finish", "closed"]);
    assert_eq!(states(&events).first(), Some(&RunState::Preparing));
    assert_eq!(states(&events).last(), Some(&RunState::Complete));
    assert!(matches!(events.last().unwrap().kind, RunEventKind::Ended(_)), "nothing follows the end");
}

#[test]
fn user_stop_ends_endless_run_with_results() {
    let fake = FakePlane { endless: true, ..FakePlane::default() };
    let sampled = AtomicBool::new(false);
    let mut note = |event: &RunEvent| {
        sampled.fetch_or(matches!(event.kind, RunEventKind::Counters { .. }), Ordering::Relaxed);
    };
    let stop = || sampled.load(Ordering::Relaxed);
    let report =
        run_document(&mut LocalExecutor(fake.clone()), DOCUMENT, options(), (&stop, &mut note)).unwrap();
    assert_eq!(report.outcome, RunOutcome::Complete { stopped: true });
    assert_eq!(*fake.log.lock().unwrap(), ["prepare", "arm", "start", "stop", "finish", "closed"]);
}

#[test]
fn a_stop_before_the_start_sends_nothing() {
    let mut fake = FakePlane::default();
    let (report, events) = run(&mut fake, &|| true);
    assert_eq!(report.unwrap().outcome, RunOutcome::Aborted);
    assert!(!fake.log.lock().unwrap().contains(&"start"));
    assert_eq!(states(&events).last(), Some(&RunState::Aborted));
}

#[test]
fn data_plane_refusal_returns_engine_error() {
    for step in ["prepare", "arm"] {
        let mut fake = FakePlane { fails_at: step, ..FakePlane::default() };
        let (report, events) = run(&mut fake, &|| false);
        assert!(matches!(report, Err(Error::Engine(EngineError::Bug("made to fail")))), "{report:?}");
        assert_eq!(states(&events).last(), Some(&RunState::Failed));
    }
}

#[test]
fn dead_worker_makes_run_partial() {
    let mut fake = FakePlane { endless: true, fails_at: "sample", ..FakePlane::default() };
    let report = run(&mut fake, &|| false).0.unwrap();
    let RunOutcome::Partial { reasons, .. } = &report.outcome else { panic!("{:?}", report.outcome) };
    assert!(reasons[0].contains("worker `tx` panicked"), "{reasons:?}");
    assert_eq!(report.streams[0].loss, None, "missing is not zero");
    assert!(fake.log.lock().unwrap().contains(&"closed"));
}

#[test]
fn second_attempt_reuses_armed_ports() {
    let (fabric, fake, over) = (LocalFabric::default(), FakePlane::default(), AtomicBool::new(false));
    let mut controller = fabric.open_endpoint(NodeName::controller()).unwrap();
    let endpoint = fabric.open_endpoint(NodeName::local()).unwrap();
    let preparation =
        RunPreparation { document: DOCUMENT.into(), terms: terms(), ..RunPreparation::default() };
    std::thread::scope(|scope| {
        let mut planes = fake.clone();
        let over = &over;
        scope
            .spawn(move || serve_agent(endpoint, &mut planes, AgentMachine::new(Nanos::from_secs(60)), over));
        let mut say = |attempt, command| {
            let head = MessageHead {
                run: RunId("r".into()),
                attempt,
                epoch: 1,
                plan: PlanHash::from_document(DOCUMENT),
            };
            controller.post_message(&NodeName::local(), MessageBody::Command(head, command)).unwrap();
            let letter = controller.receive_message(Nanos::from_secs(30)).map(|letter| letter.body);
            let Some(MessageBody::Reply(head, reply)) = letter else { panic!("{letter:?}") };
            assert_eq!(head.attempt, attempt);
            reply
        };
        for attempt in [1, 2] {
            let prepared = say(attempt, NodeCommand::Prepare(Box::new(preparation.clone())));
            assert!(matches!(prepared, NodeReply::Prepared { .. }), "{prepared:?}");
            assert_eq!(say(attempt, NodeCommand::Arm), NodeReply::Armed);
        }
        over.store(true, Ordering::Release);
    });
    assert_eq!(*fake.log.lock().unwrap(), ["prepare", "arm", "closed"]);
}

#[test]
fn panicking_agent_is_reported_as_error() {
    struct PanickingPlane;
    impl PlaneSource for PanickingPlane {
        fn prepare_plane(&mut self, _: &RunPreparation, _: Arc<Plan>) -> Result<PreparedPlane, EngineError> {
            panic!("on purpose")
        }
    }
    let result =
        run_document(&mut LocalExecutor(PanickingPlane), DOCUMENT, options(), (&|| false, &mut |_| ()));
    assert!(matches!(result, Err(Error::AgentDied(_))), "{result:?}");
}

#[test]
fn a_reader_that_panics_still_closes_the_ports() {
    let fake = FakePlane { endless: true, ..FakePlane::default() };
    let log = Arc::clone(&fake.log);
    let panicked = std::panic::catch_unwind(move || {
        let mut note =
            |event: &RunEvent| assert!(!matches!(event.kind, RunEventKind::Counters { .. }), "on purpose");
        run_document(&mut LocalExecutor(fake.clone()), DOCUMENT, options(), (&|| false, &mut note)).map(drop)
    });
    assert!(panicked.is_err());
    assert_eq!(log.lock().unwrap().last(), Some(&"closed"));
}

#[test]
fn a_document_that_is_no_plan_opens_nothing() {
    let fake = FakePlane::default();
    let result =
        run_document(&mut LocalExecutor(fake.clone()), "ports: 5", options(), (&|| false, &mut |_| ()));
    assert!(matches!(result, Err(Error::Plan(_))));
    assert!(fake.log.lock().unwrap().is_empty());
}

fn read(document: &str) -> PlanDocument {
    PlanDocument::read_text(document, PlanParseOptions { seed: terms().seed, ..PlanParseOptions::default() })
        .unwrap()
}

/// [`DOCUMENT`] with another flow instead of its own.
fn another() -> PlanDocument {
    read(&DOCUMENT.replace("name: s", "name: t"))
}

#[test]
fn steered_session_closes_with_report() {
    let fake = FakePlane { endless: true, ..FakePlane::default() };
    let log = Arc::clone(&fake.log);
    let mut session =
        RunSession::open_session(LocalExecutor(fake), read(DOCUMENT), options(), |_| {}).unwrap();
    assert_eq!(session.make_change(PlanChange::Start(vec![0])), Ok(()));
    assert_eq!(session.make_change(PlanChange::Stop(vec![0])), Ok(()));
    let report = session.end_run().unwrap();
    assert_eq!(report.outcome, RunOutcome::Complete { stopped: false });
    let done = ["prepare", "arm", "start", "steer: start", "steer: stop", "stop", "finish", "closed"];
    assert_eq!(*log.lock().unwrap(), done);
}

#[test]
fn failed_change_leaves_session_running() {
    let fake = FakePlane { endless: true, fails_at: "steer: start", ..FakePlane::default() };
    let mut session =
        RunSession::open_session(LocalExecutor(fake), read(DOCUMENT), options(), |_| {}).unwrap();
    let fault = session.make_change(PlanChange::Start(vec![0])).unwrap_err();
    assert_eq!(fault.text, "internal error: made to fail; this is a bug in packetrig");
    assert_eq!(session.make_change(PlanChange::Stop(vec![0])), Ok(()));
    assert!(!session.has_ended());
    assert!(session.end_run().is_ok());
}

#[test]
fn a_session_that_cannot_be_opened_says_why() {
    let fake = FakePlane { fails_at: "prepare", ..FakePlane::default() };
    let opened = RunSession::open_session(LocalExecutor(fake), read(DOCUMENT), options(), |_| {});
    assert!(matches!(opened, Err(Error::Engine(EngineError::Bug("made to fail")))), "{opened:?}");
}

#[test]
fn a_session_that_is_dropped_closes_its_ports() {
    let fake = FakePlane { endless: true, ..FakePlane::default() };
    let log = Arc::clone(&fake.log);
    drop(RunSession::open_session(LocalExecutor(fake), read(DOCUMENT), options(), |_| {}).unwrap());
    assert_eq!(log.lock().unwrap().last(), Some(&"closed"));
}

#[test]
fn session_plan_is_parsed_only_once() {
    let fake = FakePlane { endless: true, ..FakePlane::default() };
    let plans = Arc::clone(&fake.plans);
    let (first, newer) = (read(DOCUMENT), another());
    let mut session =
        RunSession::open_session(LocalExecutor(fake), first.clone(), options(), |_| {}).unwrap();
    session.make_change(PlanChange::Replan(newer.clone())).unwrap();
    // Not plans that are alike, but the same ones.
    let plans = plans.lock().unwrap();
    assert_eq!(plans.len(), 2);
    assert!(Arc::ptr_eq(&plans[0], first.plan()) && Arc::ptr_eq(&plans[1], newer.plan()));
}

#[test]
fn session_plan_grows_only_by_applied_changes() {
    let fake = FakePlane { endless: true, fails_at: "steer: replan", ..FakePlane::default() };
    let mut session =
        RunSession::open_session(LocalExecutor(fake), read(DOCUMENT), options(), |_| {}).unwrap();
    assert!(session.make_change(PlanChange::Replan(another())).is_err());
    assert_eq!(session.plan().streams.len(), 1);
    assert_eq!(session.end_run().unwrap().streams.len(), 1);
    let fake = FakePlane { endless: true, ..FakePlane::default() };
    let mut session =
        RunSession::open_session(LocalExecutor(fake), read(DOCUMENT), options(), |_| {}).unwrap();
    session.make_change(PlanChange::Replan(another())).unwrap();
    assert_eq!(session.plan().streams.len(), 2);
    let names: Vec<String> = session.end_run().unwrap().streams.into_iter().map(|row| row.name).collect();
    assert_eq!(names, ["s", "t"]);
}
