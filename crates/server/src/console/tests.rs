//! The console on runs without frames: the orders it gives them, and the rows it makes from their events.

use super::*;
use crate::tester::{RefusalKind, TransmitState};
use packetrig_fleet::served::{EventSink, OpenFailure};
use packetrig_plan::{GrowingPlan, PlanDocument, PlanParseOptions};
use packetrig_report::event::{RunEvent, RunEventKind};
use packetrig_report::outcome::{NodeFault, RunOutcome};
use packetrig_report::{NodeName, RunId};
use packetrig_stats::counts::{SinceStart, StreamRxCounts, StreamTxCounts};
use packetrig_stats::port::{RxCounters, TxCounters};
use packetrig_stats::result::CountSample;
use packetrig_units::{Blame, MonoTime};
use serde_json::json;

/// Orders to the runs, in order.
type RunLog = Arc<Mutex<Vec<String>>>;

#[derive(Clone, Default)]
struct FakeRun {
    log: RunLog,
    sink: Arc<Mutex<Option<EventSink>>>,
    refuses: Arc<Mutex<bool>>,
    plan: Arc<Mutex<Option<GrowingPlan>>>,
    releases: Arc<AtomicU64>,
}

impl FakeRun {
    fn note(&self, text: String) {
        self.log.lock().unwrap().push(text);
    }

    fn tell(&self, ms: u64, frames: (u64, u64), is_sending: bool, is_paused: bool) {
        let at = MonoTime::from_nanos(ms * 1_000_000);
        let since = |frames: u64| SinceStart {
            frames,
            bytes: frames * 100,
            first: Some(MonoTime::from_nanos(1)),
            last: Some(at),
        };
        let (out, arrived) = frames;
        let tx = StreamTxCounts {
            frames: out,
            bytes: out * 100,
            since_start: since(out),
            is_sending,
            is_paused,
            ..StreamTxCounts::default()
        };
        let rx = StreamRxCounts { frames: arrived, since_start: since(arrived), ..StreamRxCounts::default() };
        let counters = RxCounters { bytes: arrived * 100, link_up: Some(true), ..RxCounters::default() };
        let ports = vec![
            (0, TxCounters::default(), RxCounters { link_up: Some(true), ..RxCounters::default() }),
            (1, TxCounters::default(), counters),
        ];
        let (tx, rx) = (vec![(0, tx)], vec![(0, 1, rx)]);
        let sample = CountSample { at, tx, rx, ports, ..CountSample::default() };
        let kind = RunEventKind::Counters { node: NodeName::local(), sample: Box::new(sample) };
        let event = RunEvent { run: RunId("r".into()), at, kind };
        (self.sink.lock().unwrap().as_mut().unwrap())(&event);
    }
}

impl RunSource for FakeRun {
    fn open_steered_run(
        &self,
        document: PlanDocument,
        sink: EventSink,
    ) -> Result<Box<dyn SteeredRun>, OpenFailure> {
        *self.plan.lock().unwrap() = Some(GrowingPlan::new(Arc::clone(document.plan())));
        let document: Value = serde_json::from_str(document.text()).unwrap();
        self.note(format!("open {}", document["ports"][0]["location"]));
        if document["ports"][0]["location"] == "gone" {
            return Err(OpenFailure::Fault(NodeFault {
                blame: Blame::World,
                text: "no such interface".into(),
            }));
        }
        *self.sink.lock().unwrap() = Some(sink);
        Ok(Box::new(self.clone()))
    }
    fn plan_parse_options(&self) -> PlanParseOptions {
        PlanParseOptions { seed: 1, ..PlanParseOptions::default() }
    }
    fn to_wall_clock_ns(&self, at: MonoTime) -> u64 {
        at.as_nanos() + 1_000_000_000
    }
    fn release_memory(&self) {
        self.releases.fetch_add(1, Ordering::Relaxed);
    }
}

impl SteeredRun for FakeRun {
    fn make_change(&mut self, change: PlanChange<PlanDocument>) -> Result<(), NodeFault> {
        if *self.refuses.lock().unwrap() {
            return Err(NodeFault { blame: Blame::World, text: "nobody answers".into() });
        }
        self.note(match change {
            PlanChange::Replan(document) => {
                let mut plan = self.plan.lock().unwrap();
                let plan = plan.as_mut().unwrap();
                plan.propose_plan(document.plan());
                plan.accept_proposal();
                "replan".into()
            }
            other => format!("{other:?}"),
        });
        Ok(())
    }
    fn plan(&self) -> Arc<Plan> {
        Arc::clone(self.plan.lock().unwrap().as_ref().unwrap().current())
    }
    fn close_run(self: Box<Self>, keep: bool) {
        self.note(format!("close {keep}"));
    }
}

fn flow(name: &str, pps: u32) -> Value {
    json!({
        "name": name,
        "tx_rx": {"choice": "port", "port": {"tx_name": "p1", "rx_names": ["p2"]}},
        "size": {"choice": "fixed", "fixed": 100},
        "rate": {"choice": "pps", "pps": pps.to_string()},
        "metrics": {"enable": true, "loss": true, "timestamps": true}
    })
}

fn config(location: &str) -> Value {
    json!({
        "ports": [{"name": "p1", "location": location}, {"name": "p2", "location": "vb"}],
        "flows": [flow("f", 1000)]
    })
}

fn console() -> (TestConsole<FakeRun>, FakeRun) {
    let fake = FakeRun::default();
    let aliases = BTreeMap::from([("localhost:5555".to_owned(), "va".to_owned())]);
    (TestConsole::new(fake.clone(), aliases), fake)
}

fn set_config(console: &TestConsole<FakeRun>, config: &Value) -> Result<Vec<String>, TesterRefusal> {
    console.set_config(config.to_string())
}

fn traffic(
    console: &TestConsole<FakeRun>,
    change: FlowChange,
    flows: &[&str],
) -> Result<Vec<String>, TesterRefusal> {
    console
        .set_state(RequestedState::Traffic { change, flows: flows.iter().map(|f| (*f).to_owned()).collect() })
}

fn log(fake: &FakeRun) -> Vec<String> {
    std::mem::take(&mut fake.log.lock().unwrap())
}

#[test]
fn config_starts_run_and_empty_config_ends_it() {
    let (console, fake) = console();
    assert_eq!(console.current_config(), json!({}));
    assert_eq!((console.flow_rows(&[]).unwrap().len(), console.port_rows(&[]).unwrap().len()), (0, 0));
    set_config(&console, &config("localhost:5555")).unwrap();
    assert_eq!(console.current_config(), config("localhost:5555"), "as the client wrote it");
    set_config(&console, &config("localhost:5555")).unwrap();
    traffic(&console, FlowChange::Start, &[]).unwrap();
    set_config(&console, &json!({})).unwrap();
    let va = "open \"va\"";
    assert_eq!(log(&fake), [va, "close false", va, "Start([0])", "close true"]);
    assert_eq!(console.current_config(), json!({}));
}

#[test]
fn invalid_config_keeps_run_unless_port_is_missing() {
    let (console, fake) = console();
    set_config(&console, &config("va")).unwrap();
    let mut bad = config("va");
    bad["flows"][0]["rate"] = json!({"choice": "pps", "pps": "0"});
    bad["flows"][0]["egress_packet"] = json!([]);
    let errors = set_config(&console, &bad).unwrap_err().errors;
    assert!(errors.iter().any(|line| line.starts_with("flows[0].rate")), "{errors:?}");
    assert_eq!(console.config_problems(bad.to_string()), errors);
    assert_eq!(fake.releases.load(Ordering::Relaxed), 3, "what refused ones took is given back");
    assert_eq!((log(&fake).len(), console.current_config()), (1, config("va")));
    assert_eq!(set_config(&console, &config("gone")).unwrap_err().kind, RefusalKind::Internal);
    assert_eq!(console.current_config(), json!({}));
}

#[test]
fn flows_are_added_removed_and_updated_during_run() {
    let (console, fake) = console();
    assert!(console.append_config(json!({"config_append_list": []})).is_err(), "nothing to append to");
    set_config(&console, &config("va")).unwrap();
    console.append_config(json!({"config_append_list": [{"flows": [flow("g", 5)]}]})).unwrap();
    traffic(&console, FlowChange::Start, &["g"]).unwrap();
    console.delete_config(json!({"config_delete_list": [{"flows": ["f"]}]})).unwrap();
    traffic(&console, FlowChange::Start, &[]).unwrap();
    let faster = json!({"flows": {"property_names": ["rate"], "flows": [flow("g", 9)]}});
    console.update_config(faster).unwrap();
    assert_eq!(log(&fake)[1..], ["replan", "Start([1])", "replan", "Start([1])", "replan"]);
    assert_eq!(console.current_config()["flows"], json!([flow("g", 9)]));
    let names: Vec<String> = console.flow_rows(&[]).unwrap().into_iter().map(|row| row.name).collect();
    assert_eq!(names, ["g"]);
    assert!(traffic(&console, FlowChange::Stop, &["f"]).unwrap_err().errors[0].contains("`f`"));
    assert!(console.port_rows(&["p9".into()]).is_err());
}

#[test]
fn readded_flow_shows_zero_until_it_starts() {
    let (console, fake) = console();
    set_config(&console, &config("va")).unwrap();
    fake.tell(100, (10, 10), false, false);
    console.delete_config(json!({"config_delete_list": [{"flows": ["f"]}]})).unwrap();
    console.append_config(json!({"config_append_list": [{"flows": [flow("f", 5)]}]})).unwrap();
    let row = || console.flow_rows(&[]).unwrap().remove(0);
    assert_eq!((row().frames_tx, row().frames_rx, row().transmit), (0, 0, TransmitState::Stopped));
    fake.tell(200, (10, 10), false, true);
    assert_eq!((row().frames_tx, row().transmit), (0, TransmitState::Stopped));
    traffic(&console, FlowChange::Start, &[]).unwrap();
    fake.tell(300, (3, 3), true, false);
    assert_eq!((row().frames_tx, row().transmit), (3, TransmitState::Started));
}

#[test]
fn flow_is_stopped_after_full_arrival_or_timeout() {
    let (console, fake) = console();
    set_config(&console, &config("va")).unwrap();
    let row = || console.flow_rows(&[]).unwrap().remove(0);
    assert_eq!((row().transmit, row().frames_tx), (TransmitState::Stopped, 0));
    fake.tell(100, (10, 9), true, false);
    assert_eq!(row().transmit, TransmitState::Started);
    fake.tell(1_000, (100, 99), false, false);
    assert_eq!(row().transmit, TransmitState::Started, "one may still be on its way");
    fake.tell(1_200, (100, 100), false, false);
    assert_eq!((row().transmit, row().loss, row().frames_tx_rate), (TransmitState::Stopped, Some(0.0), 0.0));
    assert_eq!(row().timestamps, Some((1_000_000_001.0, 2_200_000_000.0)));
    fake.tell(2_000, (200, 150), false, false);
    fake.tell(2_500, (200, 150), false, false);
    assert_eq!((row().transmit, row().loss), (TransmitState::Stopped, Some(25.0)));
    fake.tell(3_000, (200, 200), false, true);
    assert_eq!(row().transmit, TransmitState::Paused);
}

#[test]
fn rates_are_those_of_the_last_second() {
    let (console, fake) = console();
    set_config(&console, &config("va")).unwrap();
    for tenth in 0..30 {
        // Twice as fast from the second second on.
        let frames = if tenth < 10 { tenth * 10 } else { 100 + (tenth - 10) * 20 };
        fake.tell(100 + tenth * 100, (frames, frames), true, false);
    }
    let row = console.flow_rows(&[]).unwrap().remove(0);
    let rates = (row.frames_tx_rate, row.frames_rx_rate, row.bytes_tx_rate);
    assert_eq!(rates, (200.0, 200.0, 20_000.0));
    let ports = console.port_rows(&[]).unwrap();
    assert_eq!((ports[0].frames_tx_rate, ports[1].frames_rx_rate), (200.0, 200.0));
    assert!(ports[0].transmitting && !ports[1].transmitting && ports[1].link_up);
}

#[test]
fn port_counters_reset_when_idle_traffic_starts() {
    let (console, fake) = console();
    set_config(&console, &config("va")).unwrap();
    let sent = || console.port_rows(&["p1".into()]).unwrap()[0].frames_tx;
    fake.tell(100, (100, 100), false, false);
    assert_eq!(sent(), 100);
    traffic(&console, FlowChange::Start, &[]).unwrap();
    assert_eq!(sent(), 0);
    fake.tell(200, (130, 130), true, false);
    traffic(&console, FlowChange::Start, &[]).unwrap();
    assert_eq!(sent(), 30, "others are sending");
    fake.tell(300, (150, 150), false, true);
    traffic(&console, FlowChange::Resume, &[]).unwrap();
    assert_eq!(sent(), 50);
}

#[test]
fn self_ended_run_refuses_metrics_until_new_config() {
    let (console, fake) = console();
    set_config(&console, &config("va")).unwrap();
    fake.tell(100, (10, 10), true, false);
    assert!(console.flow_rows(&[]).is_ok());
    let outcome = RunOutcome::Partial { reasons: vec!["worker `tx-0` panicked".into()], stopped: false };
    let at = MonoTime::from_nanos(1);
    let event = RunEvent { run: RunId("r".into()), at, kind: RunEventKind::Ended(outcome) };
    (fake.sink.lock().unwrap().as_mut().unwrap())(&event);
    let refusal = console.flow_rows(&[]).unwrap_err();
    assert_eq!(refusal.kind, RefusalKind::Internal);
    assert!(refusal.errors[0].contains("worker `tx-0` panicked"), "{refusal}");
    assert!(console.port_rows(&[]).is_err());
    set_config(&console, &config("va")).unwrap();
    assert!(console.flow_rows(&[]).is_ok(), "a new configuration is a new run");
}

#[test]
fn failed_start_clears_no_counters() {
    let (console, fake) = console();
    set_config(&console, &config("va")).unwrap();
    fake.tell(100, (100, 100), false, false);
    *fake.refuses.lock().unwrap() = true;
    assert_eq!(traffic(&console, FlowChange::Start, &[]).unwrap_err().kind, RefusalKind::Internal);
    assert_eq!(console.port_rows(&["p1".into()]).unwrap()[0].frames_tx, 100);
}

#[test]
fn config_change_does_not_wait_for_pings() {
    let (console, fake) = console();
    set_config(&console, &config("va")).unwrap();
    std::thread::scope(|scope| {
        let request = PingTask { source: "i".into(), destination: "198.18.0.1".parse().unwrap() };
        let pinging = scope.spawn(|| console.send_pings(vec![request]));
        while !fake.log.lock().unwrap().iter().any(|line| line.starts_with("Ping")) {
            std::thread::yield_now();
        }
        console.set_state(RequestedState::Protocols { on: true }).unwrap();
        assert!(!pinging.is_finished(), "nobody has answered yet");
        // No answer comes from a run that has gone.
        set_config(&console, &json!({})).unwrap();
        assert!(!pinging.join().unwrap().unwrap()[0].succeeded);
    });
}
