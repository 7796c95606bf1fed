use super::*;
use packetrig_sys::caps::ThreadRights;
use packetrig_sys::clock;
use packetrig_testkit::Lab;
use serde_json::json;

/// Nothing here takes longer, by far.
const LIMIT_NS: u64 = 60_000_000_000;

/// Searches a load up to 2000 frames/s in trials of 0.2 s.
fn bisection() -> Value {
    json!({
        "method": "bisect",
        "min_frames_per_second": 0.0,
        "max_frames_per_second": 2000.0,
        "resolution": {"share_of_range": 0.1},
        "tries": 2,
        "accepted_loss_ratio": 0.0,
        "hopeless_loss_ratio": 1.0,
        "trial_ns": 200_000_000,
        "frame_size_bytes": null,
        "waits": {"before_ns": 0, "late_frames_ns": 50_000_000, "settle_ns": 0},
        "required_frames_per_second": 1000.0,
    })
}

fn plan([tx, rx]: [String; 2]) -> Value {
    json!({
        "ports": [{"name": "tx", "location": tx}, {"name": "rx", "location": rx}],
        "flows": [{
            "name": "f",
            "tx_rx": {"choice": "port", "port": {"tx_name": "tx", "rx_names": ["rx"]}},
            "size": {"choice": "fixed", "fixed": 128},
            "rate": {"choice": "pps", "pps": 2000},
            "duration": {"choice": "continuous"},
            "metrics": {"enable": true, "latency": {"enable": true}},
        }],
    })
}

fn runner(store: &tempfile::TempDir) -> MethodRunner {
    let store = Some(store.path().to_owned());
    let rights = Arc::new(ResidentThread::start_thread_here("rigs").unwrap());
    MethodRunner::new(ServedTestTerms { store, ..ServedTestTerms::default() }, rights)
}

fn missing_interfaces() -> [String; 2] {
    ["no-such-space/eth0".to_owned(), "no-such-space/eth1".to_owned()]
}

fn refusal(request: Value) -> String {
    let store = tempfile::tempdir().unwrap();
    runner(&store).launch_test(request).unwrap_err().to_string()
}

/// A lab, or `None` for a caller without rights.
fn pair() -> Option<Lab> {
    match Lab::cabled_pair() {
        Ok(lab) => Some(lab),
        Err(_) if !ThreadRights::current().has_capability("CAP_NET_ADMIN") => None,
        Err(error) => panic!("a lab cannot be made: {error}"),
    }
}

fn await_meter_end(runner: &MethodRunner, id: &str) -> TestProgress {
    let deadline = clock::monotonic_ns() + LIMIT_NS;
    loop {
        let progress = runner.find_test(id).unwrap().lock_progress().clone();
        if progress.state.is_final() {
            return progress;
        }
        assert!(clock::monotonic_ns() < deadline, "{progress:?}");
        clock::sleep_until_ns(clock::monotonic_ns() + 5_000_000);
    }
}

#[test]
fn served_plan_with_file_path_is_refused() {
    let store = tempfile::tempdir().unwrap();
    let mut replaying = plan(missing_interfaces());
    replaying["flows"][0]["x_replay"] = json!({"file": "/etc/shadow"});
    let request = json!({"name": "", "plans": [replaying], "options": bisection()});
    let refused = runner(&store).launch_test(request).unwrap_err();
    assert!(matches!(refused, TestRefusal::Invalid(_)), "{refused:?}");
    assert!(refused.to_string().contains("plans[0].flows[0].x_replay"), "{refused}");
    assert_eq!(store.path().read_dir().unwrap().count(), 0);
}

#[test]
fn unknown_request_members_are_refused_by_name() {
    let mut options = bisection();
    options["waits"]["colour"] = json!("red");
    let text = refusal(json!({"options": options, "plans": [plan(missing_interfaces())]}));
    assert_eq!(text, "options: the method has no option `waits.colour`");
    let text = refusal(json!({"options": bisection(), "plans": [], "color": 1}));
    assert!(text.contains("color"), "{text}");
    let text = refusal(json!({"options": bisection(), "plans": []}));
    assert!(text.contains("bisect needs 1 plan, not 0"), "{text}");
}

#[test]
fn options_that_cannot_be_run_are_refused() {
    let mut options = bisection();
    options["trial_ns"] = json!(0);
    let text = refusal(json!({"options": options, "plans": [plan(missing_interfaces())]}));
    assert!(text.contains("the length of a trial must be above 0"), "{text}");
}

#[test]
fn method_needing_shell_command_is_refused() {
    let options = json!({
        "method": "convergence",
        "frame_size_bytes": null,
        "frames_per_second": 1000.0,
        "trial_ns": 1_000_000_000,
        "event_at_ns": 500_000_000,
        "repetitions": 1,
        "waits": {"before_ns": 0, "late_frames_ns": 0, "settle_ns": 0},
        "maximum_convergence_ns": null,
    });
    let text = refusal(json!({"options": options, "plans": [plan(missing_interfaces())]}));
    assert!(text.contains("shell command"), "{text}");
}

#[test]
fn served_test_completes_and_stores_result() {
    let Some(lab) = pair() else { return };
    let store = tempfile::tempdir().unwrap();
    let runner = runner(&store);
    let locations = [lab.location(0), lab.location(1)];
    let request = json!({"name": "nightly", "options": bisection(), "plans": [plan(locations)]});
    let started = runner.launch_test(request.clone()).unwrap();
    assert_eq!((started.method, started.state), ("bisect", TestState::Running));
    let busy = runner.launch_test(request).unwrap_err().to_string();
    assert!(busy.contains(&started.id), "{busy}");
    let ended = await_meter_end(&runner, &started.id);
    assert_eq!(ended.state, TestState::Complete, "{ended:?}");
    assert!(ended.trials >= 1 && ended.error.is_none(), "{ended:?}");
    assert!(matches!(ended.result, Some(MethodResult::Bisect(_))), "{ended:?}");
    assert!(store.path().join("methods").join(&started.id).join("result.json").exists());
    assert_eq!(runner.list_methods().len(), 1);
    runner.stop_test_and_wait();
}

#[test]
fn test_stopped_in_first_trial_stores_nothing() {
    let Some(lab) = pair() else { return };
    let store = tempfile::tempdir().unwrap();
    let runner = runner(&store);
    let mut options = bisection();
    options["trial_ns"] = json!(60_000_000_000_u64);
    let locations = [lab.location(0), lab.location(1)];
    let started = runner.launch_test(json!({"options": options, "plans": [plan(locations)]})).unwrap();
    assert!(runner.stop_method("another").is_none());
    runner.stop_method(&started.id).unwrap();
    let ended = await_meter_end(&runner, &started.id);
    assert_eq!((ended.state, ended.trials), (TestState::Stopped, 0), "{ended:?}");
    assert!(!store.path().join("methods").join(&started.id).exists());
}

#[test]
fn a_test_that_panics_fails_and_says_why() {
    let options = read_options(bisection()).unwrap();
    let test = ServedTest::new(&MethodHead::new("nightly".to_owned(), options, TestSetup::default()));
    run_and_record_end(&test, || panic!("on purpose"));
    let ended = test.lock_progress().clone();
    assert_eq!(ended.state, TestState::Failed, "{ended:?}");
    assert!(ended.error.as_ref().is_some_and(|error| error.contains("on purpose")), "{ended:?}");
}

#[test]
fn failed_trial_fails_test_with_error() {
    let Some(lab) = pair() else { return };
    let store = tempfile::tempdir().unwrap();
    let runner = runner(&store);
    let request = json!({"options": bisection(), "plans": [plan([lab.location(0), lab.location(1)])]});
    drop(lab);
    match runner.launch_test(request) {
        // The interfaces are looked at already when the plan is read.
        Err(refusal) => assert!(!refusal.to_string().is_empty()),
        Ok(started) => {
            let ended = await_meter_end(&runner, &started.id);
            assert_eq!(ended.state, TestState::Failed);
            assert!(ended.error.is_some());
        }
    }
}
