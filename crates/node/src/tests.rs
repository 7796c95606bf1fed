//! The whole life of a run on a data plane without frames.

use crate::{DataPlane, Error, Here, Planes, Prepared, RunOptions, Session, run_on, serve};
use packetrig_engine::Error as EngineError;
use packetrig_fleet::agent::Agent;
use packetrig_fleet::event::{RunEvent, RunEventKind};
use packetrig_fleet::fabric::{Endpoint, Fabric};
use packetrig_fleet::local::Local;
use packetrig_fleet::message::{Body, Command, Head, Preparation, Reply, SentTotal};
use packetrig_fleet::outcome::{Outcome, RunState};
use packetrig_fleet::report::{AcceptanceCriteria, RunReport};
use packetrig_fleet::{NodeName, PlanHash, RunId};
use packetrig_plan::{HeldStream, Plan, PlanChange, ReadOptions};
use packetrig_stats::counts::{StreamRxCounts, StreamTxCounts};
use packetrig_stats::latency::Latency;
use packetrig_stats::result::{CountSample, NodeResult, ReceiveResult, SendResult};
use packetrig_stats::sequence::SequenceCounts;
use packetrig_stats::series::RateSeries;
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

/// What was asked of the data plane, in order.
type Log = Arc<Mutex<Vec<&'static str>>>;

/// Sends until stopped, or is done at once.
#[derive(Clone, Default)]
struct Fake {
    log: Log,
    endless: bool,
    fails_at: &'static str,
    stopped: Arc<AtomicBool>,
}

/// A fake that was prepared.
struct Open {
    fake: Fake,
    start: MonoTime,
}

impl Fake {
    fn note(&self, what: &'static str) -> Result<(), EngineError> {
        self.log.lock().unwrap().push(what);
        if self.fails_at == what { Err(EngineError::Bug("made to fail")) } else { Ok(()) }
    }
}

impl Planes for Fake {
    fn prepare(&mut self, preparation: &Preparation) -> Result<Prepared, EngineError> {
        assert_eq!((preparation.tag_key, preparation.seed), (77, 5));
        self.note("prepare")?;
        Ok((Box::new(Open { fake: self.clone(), start: MonoTime::default() }), vec![]))
    }
}

impl DataPlane for Open {
    fn arm(&mut self) -> Result<(), EngineError> {
        self.fake.note("arm")
    }
    fn start_at(&mut self, at: MonoTime) {
        self.start = at;
        self.fake.note("start").unwrap();
    }
    fn sample(&mut self) -> Result<CountSample, EngineError> {
        if self.fake.fails_at == "sample" {
            return Err(EngineError::Panicked("tx".into()));
        }
        Ok(CountSample { at: self.start, ..CountSample::default() })
    }
    fn steer(&mut self, steer: &PlanChange) -> Result<(), EngineError> {
        self.fake.note(match steer {
            PlanChange::Start(_) => "steer: start",
            PlanChange::Stop(_) => "steer: stop",
            _ => "steer: another",
        })
    }
    fn hold(&mut self, _: &PlanChange) -> Result<Vec<HeldStream>, EngineError> {
        panic!("one node makes a change at once")
    }
    fn announce(&mut self, _: &[HeldStream], _: Option<MonoTime>) -> Result<(), EngineError> {
        panic!("one node makes a change at once")
    }
    fn begin(&mut self, _: Option<MonoTime>) -> Result<(), EngineError> {
        panic!("one node makes a change at once")
    }
    fn undo(&mut self) -> Result<(), EngineError> {
        panic!("one node makes a change at once")
    }
    fn senders_done(&mut self) -> bool {
        !self.fake.endless || self.fake.stopped.load(Ordering::Relaxed)
    }
    fn sent(&mut self) -> Result<Vec<SentTotal>, EngineError> {
        Ok(vec![SentTotal { stream: 0, frames: 100 }])
    }
    fn stop_senders(&mut self) {
        self.fake.stopped.store(true, Ordering::Relaxed);
        self.fake.note("stop").unwrap();
    }
    fn finish(&mut self, node: &str, sent: &[SentTotal]) -> Result<NodeResult, EngineError> {
        self.fake.note("finish")?;
        assert_eq!(sent, [SentTotal { stream: 0, frames: 100 }], "receivers are told what was sent");
        Ok(result(node, self.start))
    }
}

impl Drop for Open {
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

fn options() -> RunOptions {
    RunOptions {
        run: RunId("r".into()),
        name: "test".into(),
        started_wall_ns: 1,
        tag_key: 77,
        seed: 5,
        confirmed: vec![],
        capture_dir: None,
        capture_all: false,
        back_end: None,
        steered: false,
        drain: Nanos::from_millis(1),
        criteria: AcceptanceCriteria::default(),
        limits: Vec::new(),
    }
}

fn run(fake: &mut Fake, stop: &dyn Fn() -> bool) -> (Result<RunReport, Error>, Vec<RunEvent>) {
    let mut events = vec![];
    let report =
        run_on(&mut Here(fake.clone()), DOCUMENT, options(), (stop, &mut |event| events.push(event.clone())));
    (report, events)
}

fn states(events: &[RunEvent]) -> Vec<RunState> {
    let state = |event: &RunEvent| {
        if let RunEventKind::StateChanged(state) = event.kind { Some(state) } else { None }
    };
    events.iter().filter_map(state).collect()
}

#[test]
fn a_run_goes_through_the_machines_and_gives_a_report() {
    let mut fake = Fake::default();
    let (report, events) = run(&mut fake, &|| false);
    let report = report.unwrap();
    assert_eq!(report.outcome, Outcome::Complete { stopped: false });
    assert_eq!(report.streams[0].loss.unwrap().lost, 0);
    assert_eq!(*fake.log.lock().unwrap(), ["prepare", "arm", "start", "finish", "closed"]);
    assert_eq!(states(&events).first(), Some(&RunState::Preparing));
    assert_eq!(states(&events).last(), Some(&RunState::Complete));
    assert!(matches!(events.last().unwrap().kind, RunEventKind::Ended(_)), "nothing follows the end");
}

#[test]
fn the_users_stop_ends_an_endless_run_with_its_results() {
    let fake = Fake { endless: true, ..Fake::default() };
    let sampled = AtomicBool::new(false);
    let mut note = |event: &RunEvent| {
        sampled.fetch_or(matches!(event.kind, RunEventKind::Counters { .. }), Ordering::Relaxed);
    };
    let stop = || sampled.load(Ordering::Relaxed);
    let report = run_on(&mut Here(fake.clone()), DOCUMENT, options(), (&stop, &mut note)).unwrap();
    assert_eq!(report.outcome, Outcome::Complete { stopped: true });
    assert_eq!(*fake.log.lock().unwrap(), ["prepare", "arm", "start", "stop", "finish", "closed"]);
}

#[test]
fn a_stop_before_the_start_sends_nothing() {
    let mut fake = Fake::default();
    let (report, events) = run(&mut fake, &|| true);
    assert_eq!(report.unwrap().outcome, Outcome::Aborted);
    assert!(!fake.log.lock().unwrap().contains(&"start"));
    assert_eq!(states(&events).last(), Some(&RunState::Aborted));
}

#[test]
fn what_the_data_plane_refuses_comes_back_as_its_own_error() {
    for step in ["prepare", "arm"] {
        let mut fake = Fake { fails_at: step, ..Fake::default() };
        let (report, events) = run(&mut fake, &|| false);
        assert!(matches!(report, Err(Error::Engine(EngineError::Bug("made to fail")))), "{report:?}");
        assert_eq!(states(&events).last(), Some(&RunState::Failed));
    }
}

#[test]
fn a_worker_that_dies_while_sending_makes_the_run_partial() {
    let mut fake = Fake { endless: true, fails_at: "sample", ..Fake::default() };
    let report = run(&mut fake, &|| false).0.unwrap();
    let Outcome::Partial { reasons, .. } = &report.outcome else { panic!("{:?}", report.outcome) };
    assert!(reasons[0].contains("worker `tx` panicked"), "{reasons:?}");
    assert_eq!(report.streams[0].loss, None, "missing is not zero");
    assert!(fake.log.lock().unwrap().contains(&"closed"));
}

#[test]
fn a_further_attempt_takes_ports_that_are_armed_as_they_are() {
    let (fabric, fake, over) = (Local::default(), Fake::default(), AtomicBool::new(false));
    let mut controller = fabric.join(NodeName::controller()).unwrap();
    let endpoint = fabric.join(NodeName::local()).unwrap();
    let preparation =
        Preparation { document: DOCUMENT.into(), tag_key: 77, seed: 5, ..Preparation::default() };
    std::thread::scope(|scope| {
        let mut planes = fake.clone();
        let over = &over;
        scope.spawn(move || serve(endpoint, &mut planes, Agent::new(Nanos::from_secs(60)), over));
        let mut say = |attempt, command| {
            let head = Head { run: RunId("r".into()), attempt, epoch: 1, plan: PlanHash::of(DOCUMENT) };
            controller.post(&NodeName::local(), Body::Command(head, command)).unwrap();
            let letter = controller.receive(Nanos::from_secs(30)).map(|letter| letter.body);
            let Some(Body::Reply(head, reply)) = letter else { panic!("{letter:?}") };
            assert_eq!(head.attempt, attempt);
            reply
        };
        for attempt in [1, 2] {
            let prepared = say(attempt, Command::Prepare(Box::new(preparation.clone())));
            assert!(matches!(prepared, Reply::Prepared { .. }), "{prepared:?}");
            assert_eq!(say(attempt, Command::Arm), Reply::Armed);
        }
        over.store(true, Ordering::Release);
    });
    assert_eq!(*fake.log.lock().unwrap(), ["prepare", "arm", "closed"]);
}

#[test]
fn an_agent_that_panics_is_an_error_and_not_a_hang() {
    struct Bomb;
    impl Planes for Bomb {
        fn prepare(&mut self, _: &Preparation) -> Result<Prepared, EngineError> {
            panic!("on purpose")
        }
    }
    let result = run_on(&mut Here(Bomb), DOCUMENT, options(), (&|| false, &mut |_| ()));
    assert!(matches!(result, Err(Error::AgentDied(_))), "{result:?}");
}

#[test]
fn a_reader_that_panics_still_closes_the_ports() {
    let fake = Fake { endless: true, ..Fake::default() };
    let log = Arc::clone(&fake.log);
    let panicked = std::panic::catch_unwind(move || {
        let mut note =
            |event: &RunEvent| assert!(!matches!(event.kind, RunEventKind::Counters { .. }), "on purpose");
        run_on(&mut Here(fake.clone()), DOCUMENT, options(), (&|| false, &mut note)).map(drop)
    });
    assert!(panicked.is_err());
    assert_eq!(log.lock().unwrap().last(), Some(&"closed"));
}

#[test]
fn a_document_that_is_no_plan_opens_nothing() {
    let fake = Fake::default();
    let result = run_on(&mut Here(fake.clone()), "ports: 5", options(), (&|| false, &mut |_| ()));
    assert!(matches!(result, Err(Error::Plan(_))));
    assert!(fake.log.lock().unwrap().is_empty());
}

fn plan() -> Plan {
    Plan::read_with(DOCUMENT, ReadOptions { seed: options().seed, ..ReadOptions::default() }).unwrap()
}

#[test]
fn a_session_is_steered_and_closed_with_its_report() {
    let fake = Fake { endless: true, ..Fake::default() };
    let log = Arc::clone(&fake.log);
    let session = Session::open(Here(fake), DOCUMENT.into(), plan(), options(), |_| {}).unwrap();
    assert_eq!(session.steer(PlanChange::Start(vec![0])), Ok(()));
    assert_eq!(session.steer(PlanChange::Stop(vec![0])), Ok(()));
    let report = session.close().unwrap();
    assert_eq!(report.outcome, Outcome::Complete { stopped: false });
    let done = ["prepare", "arm", "start", "steer: start", "steer: stop", "stop", "finish", "closed"];
    assert_eq!(*log.lock().unwrap(), done);
}

#[test]
fn a_change_that_fails_says_why_and_the_session_goes_on() {
    let fake = Fake { endless: true, fails_at: "steer: start", ..Fake::default() };
    let session = Session::open(Here(fake), DOCUMENT.into(), plan(), options(), |_| {}).unwrap();
    assert_eq!(session.steer(PlanChange::Start(vec![0])).unwrap_err().text, "made to fail");
    assert_eq!(session.steer(PlanChange::Stop(vec![0])), Ok(()));
    assert!(!session.has_ended());
    assert!(session.close().is_ok());
}

#[test]
fn a_session_that_cannot_be_opened_says_why() {
    let fake = Fake { fails_at: "prepare", ..Fake::default() };
    let opened = Session::open(Here(fake), DOCUMENT.into(), plan(), options(), |_| {});
    assert!(matches!(opened, Err(Error::Engine(EngineError::Bug("made to fail")))), "{opened:?}");
}

#[test]
fn a_session_that_is_dropped_closes_its_ports() {
    let fake = Fake { endless: true, ..Fake::default() };
    let log = Arc::clone(&fake.log);
    drop(Session::open(Here(fake), DOCUMENT.into(), plan(), options(), |_| {}).unwrap());
    assert_eq!(log.lock().unwrap().last(), Some(&"closed"));
}
