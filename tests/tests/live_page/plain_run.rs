//! A run of one command is watched without `packetrig serve`.

use crate::screen::WatchedTerminal;
use packetrig_testkit::Lab;
use packetrig_tests::program::{Running, binary};
use packetrig_tests::skip;
use rustix::process::Signal;
use serde_json::Value;
use std::process::Command;

/// Arguments of `env` for a run whose announcements no other test sees, and one of its programs.
fn with_own_runtime_directory(directory: &std::path::Path, program: &[&str]) -> Vec<String> {
    let place = format!("PACKETRIG_RUN_DIR={}", directory.join("runtime").display());
    let program = program.iter().map(ToString::to_string);
    [place, binary().display().to_string()].into_iter().chain(program).collect()
}

fn start(arguments: &[String]) -> Running {
    Running::start_program("env", &arguments.iter().map(String::as_str).collect::<Vec<_>>(), "")
}

/// Exit codes of a run that lost nothing: on a busy machine it may be INCONCLUSIVE.
const ENDS: [i32; 2] = [0, 7];

#[test]
fn watch_finds_plain_run_and_ends_with_it() {
    let Some(lab) = skip::lab(|| Lab::with_bridge(2)) else { return };
    let directory = tempfile::tempdir().expect("there is room for temporary files");
    let (tx, rx) = (lab.location(0), lab.location(1));
    let run = ["run", "--tx", &tx, "--rx", &rx, "--rate", "500pps", "--time", "4s"];
    let mut run = start(&with_own_runtime_directory(directory.path(), &run));
    run.await_remark("sending");
    let mut lines = start(&with_own_runtime_directory(directory.path(), &["watch", "--lines"]));
    lines.await_printed("1 of 1 streams send");
    let events = start(&with_own_runtime_directory(directory.path(), &["watch", "--json"]));
    let lines = lines.finish();
    assert_eq!(lines.code, Some(0), "{}", lines.stderr);
    assert!(lines.stderr.contains("the run has ended"), "{}", lines.stderr);
    let last = lines.stdout.lines().last().unwrap_or_default();
    assert!(last.contains("ended: it is complete"), "the last state is shown: {last}");
    let events = events.finish();
    let events: Vec<Value> =
        events.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let live = events.iter().rfind(|event| event["event"] == "live").expect("a state");
    assert_eq!(live["data"]["run"]["state"], "complete", "{live}");
    assert!(live["data"]["run"]["totals"]["frames_rx"].as_u64() > Some(1000), "{live}");
    // On a busy machine frames may leave late: that is the other good end.
    let run = run.finish();
    assert!(matches!(run.code, Some(0 | 7)), "{:?} {} {}", run.code, run.stdout, run.stderr);

    // Nothing is left to be watched, so the default address of a server is tried.
    let nobody = start(&with_own_runtime_directory(directory.path(), &["watch", "--lines"])).finish();
    assert!(nobody.stderr.contains("127.0.0.1:8443"), "{}", nobody.stderr);
}

#[test]
fn watch_shows_plain_probes_and_ends_with_them() {
    let directory = tempfile::tempdir().expect("there is room for temporary files");
    let ping = ["probe", "ping", "127.0.0.1", "--allow", "127.0.0.1/32", "-i", "100ms", "-c", "40"];
    let mut ping = start(&with_own_runtime_directory(directory.path(), &ping));
    ping.await_printed("seq=0");
    let events = start(&with_own_runtime_directory(directory.path(), &["watch", "--json"])).finish();
    assert_eq!(events.code, Some(0), "{}", events.stderr);
    let events: Vec<Value> =
        events.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let live = events.iter().rfind(|event| event["event"] == "live").expect("a state");
    let totals = &live["data"]["run"]["totals"];
    assert!(totals["frames_tx"].as_u64() > Some(3) && totals["latency_ns"]["mean"].is_number(), "{live}");
    assert!(live["data"]["run"]["streams"].to_string().contains("round trip to 127.0.0.1"), "{live}");
    assert_eq!(ping.finish().code, Some(0));
}

/// The status with which the server of a run answers `curl` with these options, run by these words.
fn status(by: &[&str], options: &[&str]) -> String {
    let curl = ["curl", "--silent", "--output", "/dev/null", "--write-out", "%{http_code}"];
    let words = [by, &curl, options].concat();
    let output = Command::new(words[0]).args(&words[1..]).output().expect("there is curl");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn plain_run_is_seen_by_its_user_and_steered_by_nobody() {
    let Some(lab) = skip::lab(|| Lab::with_bridge(2)) else { return };
    let directory = tempfile::tempdir().expect("there is room for temporary files");
    let (tx, rx) = (lab.location(0), lab.location(1));
    let run = ["run", "--tx", &tx, "--rx", &rx, "--rate", "100pps", "--time", "60s"];
    let mut run = start(&with_own_runtime_directory(directory.path(), &run));
    run.await_remark("sending");
    let announced = std::fs::read_dir(directory.path().join("runtime/runs")).expect("it is announced");
    let file =
        announced.flatten().map(|entry| entry.path()).find(|path| path.extension() == Some("json".as_ref()));
    let text = std::fs::read(file.expect("a file names the run")).expect("it belongs to this user");
    let announced: Value = serde_json::from_slice(&text).expect("JSON");
    let origin = format!("http://{}", announced["address"].as_str().expect("an address"));
    let state = format!("{origin}/api/v1/state");
    assert_eq!(status(&[], &[&state]), "200");
    for path in ["/config", "/api/v1/streams"] {
        let status = status(&[], &["--data", "{\"change\":\"stop\"}", &format!("{origin}{path}")]);
        assert!(status.starts_with('4'), "{path}: {status}");
    }
    // A page of the web that has made its own name point to this machine.
    assert_eq!(status(&[], &["--header", "Host: evil.example", &state]), "421");
    if skip::has_tool("setpriv") && skip::has_other_users() {
        let stranger = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];
        assert_eq!(status(&stranger, &[&state]), "401");
    }
    run.signal(Signal::INT);
    assert_eq!(run.finish().code, Some(130), "it was interrupted, and nothing else stopped it");
}

#[test]
fn trials_of_a_method_are_watched_one_after_the_other() {
    let Some(lab) = skip::lab(|| Lab::with_bridge(2)) else { return };
    let directory = tempfile::tempdir().expect("there is room for temporary files");
    let (tx, rx) = (lab.location(0), lab.location(1));
    let method = ["test", "bisect", "--tx", &tx, "--rx", &rx, "--max-rate", "2kpps", "--time", "1s"];
    let mut method = start(&with_own_runtime_directory(directory.path(), &method));
    method.await_remark("trial 1:");
    let mut lines = start(&with_own_runtime_directory(directory.path(), &["watch", "--lines"]));
    lines.await_printed("1 of 1 streams send");
    let method = method.finish();
    assert!(matches!(method.code, Some(0 | 7)), "{:?} {}", method.code, method.stderr);
    let lines = lines.finish();
    assert_eq!(lines.code, Some(0), "{}", lines.stderr);
}

#[test]
fn run_shows_screen_of_watch_and_then_result() {
    let Some(lab) = skip::lab(|| Lab::with_bridge(2)) else { return };
    let (tx, rx) = (lab.location(0), lab.location(1));
    let run = |time: &'static str| {
        ["run", "--watch", "--max-late", "20s", "--tx", &tx, "--rx", &rx, "--rate", "500pps", "--time", time]
    };
    let Some(mut terminal) = WatchedTerminal::start(&run("3s")) else { return };
    terminal.await_screen("frames", |screen| screen.contains("1 of 1 streams send"));
    let result = terminal.finish_with(&ENDS);
    assert!(result.contains("Latency and jitter"), "{result}");

    // `q` closes the screen, and the run goes on.
    let Some(mut terminal) = WatchedTerminal::start(&run("3s")) else { return };
    terminal.await_screen("frames", |screen| screen.contains("1 of 1 streams send"));
    terminal.press("q");
    let result = terminal.finish_with(&ENDS);
    assert!(result.starts_with("run: the run goes on") && result.contains("Latency and jitter"), "{result}");

    // Without a terminal nothing is sent.
    let refused = Running::start(&run("3s"), "").finish();
    refused.assert_refused(2, &["--watch needs a terminal"]);
}

#[test]
fn method_shows_screen_of_watch_and_then_result() {
    let Some(lab) = skip::lab(|| Lab::with_bridge(2)) else { return };
    let directory = tempfile::tempdir().expect("there is room for temporary files");
    let store = directory.path().display().to_string();
    let (tx, rx) = (lab.location(0), lab.location(1));
    let method =
        ["test", "bisect", "--watch", "--tx", &tx, "--rx", &rx, "--max-rate", "500pps", "--time", "3s"];
    // The highest rate, and one below it if the machine is too busy for that.
    let method = [&method[..], &["--resolution", "60%", "--store", &store]].concat();
    let Some(mut terminal) = WatchedTerminal::start(&method) else { return };
    terminal.await_screen("frames", |screen| screen.contains("1 of 1 streams send"));
    let result = terminal.finish_with(&ENDS);
    assert!(result.contains("Throughput (binary search)"), "{result}");
    let refused = Running::start(&method, "").finish();
    refused.assert_refused(2, &["--watch needs a terminal"]);
}
