//! Test methods that a client of `packetrig serve` starts.

use crate::lab::{limited, limited_alone};
use packetrig_sys::clock;
use packetrig_testkit::Lab;
use packetrig_tests::program::Running;
use packetrig_tests::skip;
use serde_json::{Value, json};
use std::process::Command;

/// Each test has a server of its own: they run side by side.
const PORTS: [u16; 4] = [18_982, 18_983, 18_984, 18_985];
/// Nothing here takes longer, by far.
const LIMIT_NS: u64 = 90_000_000_000;

/// A server on the machine of the test, which has started nothing yet.
fn serve(port: u16) -> Running {
    let address = format!("127.0.0.1:{port}");
    let server = ["serve", "--plain-http", "--http", &address, "--no-grpc", "--store", "{out}-store"];
    let mut running = Running::start(&server, "");
    running.await_printed("OTG over HTTP");
    running
}

/// Calls the API at a port; its answer, and the status of it.
fn call(port: u16, method: &str, path: &str, body: Option<&Value>) -> (Value, String) {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--request", method, "--write-out", "\n%{http_code}"]);
    if let Some(body) = body {
        curl.args(["--json", &body.to_string()]);
    }
    let output = curl.arg(format!("http://127.0.0.1:{port}/api/v1/{path}")).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (answer, status) = text.rsplit_once('\n').unwrap_or_else(|| panic!("{output:?}"));
    let answer = serde_json::from_str(answer).unwrap_or_else(|error| panic!("{error}: {answer}"));
    (answer, status.to_owned())
}

fn bisection(lab: &Lab, trial_ns: u64) -> Value {
    let options = json!({
        "method": "bisect",
        "min_frames_per_second": 0.0, "max_frames_per_second": 20_000.0,
        "resolution": {"share_of_range": 0.02}, "tries": 2, "accepted_loss_ratio": 0.0,
        "hopeless_loss_ratio": 1.0, "trial_ns": trial_ns, "frame_size_bytes": null,
        "waits": {"before_ns": 0, "late_frames_ns": 200_000_000, "settle_ns": 0},
        "required_frames_per_second": null,
    });
    request(lab, &options)
}

/// The loss at twice the rate that the device forwards, and at half of that. A device that a busy machine holds up for a moment delivers
/// what it has within the wait for late frames.
fn loss_curve(lab: &Lab) -> Value {
    const SECOND: u64 = 1_000_000_000;
    let options = json!({
        "method": "rfc2544",
        "line_bits_per_second": 1_000_000_000, "frame_sizes_bytes": [128], "tests": ["frame-loss"],
        "durations": {
            "search_trial_ns": SECOND, "final_trial_ns": SECOND, "latency_trial_ns": SECOND,
            "loss_trial_ns": SECOND, "longest_burst_ns": SECOND, "recovery_overload_ns": SECOND,
            "recovery_after_ns": SECOND, "reset_trial_ns": SECOND, "reset_at_ns": SECOND,
            "waits": {"before_ns": 0, "late_frames_ns": 2 * SECOND, "settle_ns": 0},
        },
        "repetitions": {"latency": 1, "back_to_back": 1, "recovery": 1},
        "maximum_frames_per_second": 20_000.0,
        "resolution_percent": 1.0, "loss_step_percent": 50.0, "burst_step_frames": 1,
        "latency_definition": "bit-forwarding",
    });
    request(lab, &options)
}

/// The request for a test with these options, between the ports of a lab.
fn request(lab: &Lab, options: &Value) -> Value {
    let [tx, rx] = [lab.location(0), lab.location(1)];
    json!({
        "name": "from a client",
        "options": options,
        "plans": [{
            "ports": [{"name": "tx", "location": tx}, {"name": "rx", "location": rx}],
            "flows": [{
                "name": "f",
                "tx_rx": {"choice": "port", "port": {"tx_name": "tx", "rx_names": ["rx"]}},
                "size": {"choice": "fixed", "fixed": 128},
                "rate": {"choice": "pps", "pps": 1000},
                "metrics": {"enable": true, "latency": {"enable": true}},
            }],
        }],
    })
}

/// Asks for a test until it is in one of these states.
fn await_state(port: u16, id: &str, states: &[&str]) -> Value {
    let deadline = clock::monotonic_ns() + LIMIT_NS;
    loop {
        let (state, _) = call(port, "GET", &format!("methods/{id}"), None);
        if states.iter().any(|wanted| state["state"] == *wanted) {
            return state;
        }
        assert!(clock::monotonic_ns() < deadline, "never {states:?}: {state}");
        clock::sleep_until_ns(clock::monotonic_ns() + 50_000_000);
    }
}

#[test]
fn api_client_runs_search_and_reads_result() {
    let port = PORTS[0];
    if !skip::has_tool("curl") {
        return;
    }
    let Some(lab) = limited_alone(10_000, 128) else { return };
    let _server = serve(port);
    let (started, status) = call(port, "POST", "methods", Some(&bisection(&lab, 300_000_000)));
    assert_eq!((status.as_str(), &started["state"]), ("200", &json!("running")), "{started}");
    let id = started["id"].as_str().unwrap().to_owned();
    let (refused, status) = call(port, "POST", "methods", Some(&bisection(&lab, 300_000_000)));
    assert_eq!(status, "409", "{refused}");
    let ended = await_state(port, &id, &["complete", "failed", "stopped"]);
    assert_eq!(ended["state"], "complete", "{ended}");
    let (stored, status) = call(port, "GET", &format!("runs/{id}"), None);
    assert_eq!((status.as_str(), &stored["result"]), ("200", &ended["result"]), "{stored}");
    // No criterion was asked for.
    if ended["verdict"] == "NOT JUDGED" {
        let found = ended["result"]["lower_bound_frames_per_second"].as_f64().unwrap();
        assert!((9_600.0..=10_900.0).contains(&found), "{found}");
    } else {
        // A busy rig may not have held a trial: then the result is only "at least".
        assert_eq!(ended["verdict"], "INCONCLUSIVE", "{ended}");
        assert_eq!(ended["result"]["limited_by"], "rig", "{ended}");
    }
    let (listed, _) = call(port, "GET", "methods", None);
    assert_eq!(listed["methods"].as_array().map(Vec::len), Some(1), "{listed}");
}

#[test]
fn trial_losses_match_the_device_truth() {
    let port = PORTS[1];
    if !skip::has_tool("curl") {
        return;
    }
    let Some(mut lab) = limited(10_000, 128) else { return };
    let server = serve(port);
    let (started, _) = call(port, "POST", "methods", Some(&loss_curve(&lab)));
    let id = started["id"].as_str().unwrap_or_else(|| panic!("{started}")).to_owned();
    let ended = await_state(port, &id, &["complete", "failed", "stopped"]);
    assert_eq!(ended["state"], "complete", "{ended}");
    let device = lab.stop_device().unwrap();
    assert_eq!(device.own_losses, 0, "the device lost frames by itself: its truth is not the whole truth");
    let truth = device.truth(0, 0);
    // Also those that the rig could not sustain: they were made again and are in no result.
    let journal = server.directory().join("out-store/methods").join(&id).join("journal.jsonl");
    let journal = std::fs::read_to_string(journal).unwrap();
    let trials: Vec<Value> =
        journal.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect();
    let sum = |path: &str| -> u64 {
        trials.iter().map(|trial| trial.pointer(path).and_then(Value::as_u64).unwrap()).sum()
    };
    assert_eq!(sum("/result/sent"), truth.received, "{journal}");
    let lost = truth.dropped.len() as u64;
    let told = sum("/result/lost/least")..=sum("/result/lost/most");
    assert!(lost > 0 && told.contains(&lost), "{lost} lost by the device\n{journal}");
}

#[test]
fn stopped_search_reports_findings_so_far() {
    let port = PORTS[2];
    if !skip::has_tool("curl") {
        return;
    }
    let Some(lab) = limited(10_000, 128) else { return };
    let _server = serve(port);
    let (started, _) = call(port, "POST", "methods", Some(&bisection(&lab, 60_000_000_000)));
    let id = started["id"].as_str().unwrap_or_else(|| panic!("{started}")).to_owned();
    let (unknown, status) = call(port, "DELETE", "methods/no-such-test", None);
    assert_eq!(status, "404", "{unknown}");
    let (stopping, status) = call(port, "DELETE", &format!("methods/{id}"), None);
    assert_eq!((status.as_str(), &stopping["state"]), ("200", &json!("stopping")), "{stopping}");
    assert_eq!(stopping["id"], id, "{stopping}");
    let ended = await_state(port, &id, &["complete", "failed", "stopped"]);
    assert_eq!(ended["state"], "stopped", "{ended}");
    // It was in its first trial, which says nothing once it is stopped.
    assert_eq!(ended["trials"], 0, "{ended}");
    assert_eq!(ended["known"], "throughput: nothing known yet", "{ended}");
    for absent in ["trial", "to_go", "verdict", "error"] {
        assert!(ended[absent].is_null(), "{absent}: {ended}");
    }
    let result = &ended["result"];
    assert_eq!((&result["method"], &result["is_over"]), (&json!("bisect"), &json!(false)), "{ended}");
    for bound in ["lower_bound_frames_per_second", "upper_bound_frames_per_second"] {
        assert!(result[bound].is_null(), "{bound}: {ended}");
    }
    // A test without trials is not kept: there is nothing to resume.
    let (stored, status) = call(port, "GET", &format!("runs/{id}"), None);
    assert_eq!(status, "404", "{stored}");
}

#[test]
fn unknown_request_member_is_refused_by_name() {
    let port = PORTS[3];
    if !skip::has_tool("curl") {
        return;
    }
    let Some(lab) = limited(10_000, 128) else { return };
    let _server = serve(port);
    let mut request = bisection(&lab, 300_000_000);
    request["options"]["colour"] = json!("red");
    let (refused, status) = call(port, "POST", "methods", Some(&request));
    assert_eq!(status, "400", "{refused}");
    assert!(refused.to_string().contains("no option `colour`"), "{refused}");
}
