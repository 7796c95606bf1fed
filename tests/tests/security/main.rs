//! Bad input of every kind: an error that says what, where and what to do, the documented exit code, and no panic.

mod guard;
mod units;
mod walls;

use packetrig_testkit::Lab;
use packetrig_testkit::lab::LabPort;
use packetrig_tests::document::{Document, Flow, ethernet, ipv6, tcp};
use packetrig_tests::program::{Finished, Running, run};
use packetrig_tests::skip;
use serde_json::json;

const PLAN: i32 = 3;
const WORLD: i32 = 4;
const USAGE: i32 = 2;

fn nowhere() -> Document {
    Document::new(&["no-such-0".to_owned(), "no-such-1".to_owned()])
}

fn check(text: &str) -> Finished {
    Running::start(&["plan", "check", "{plan}"], text).finish()
}

#[test]
fn invalid_document_errors_name_their_location() {
    let flow = || Flow::new("f", 1);
    let cases = [
        ("an unknown field", flow().with("colour", json!("red")), "flows[0].colour"),
        (
            "a size its headers do not fit in",
            flow().size(64).packet([ethernet(1), ipv6(), tcp()]),
            "flows[0]",
        ),
        ("a size beyond all frames", flow().size(1_000_000), "flows[0].size"),
        ("an unknown port", flow().between(0, &[7]), "port 7"),
        ("an unknown choice", flow().with("rate", json!({"choice": "warp", "warp": 9})), "flows[0].rate"),
        ("a negative rate", flow().with("rate", json!({"choice": "pps", "pps": -5})), "flows[0].rate"),
        (
            "a header we do not know",
            flow().packet([json!({"choice": "token_ring", "token_ring": {}})]),
            "flows[0].packet[0]",
        ),
        (
            "text where a number belongs",
            flow().with("size", json!({"choice": "fixed", "fixed": "big"})),
            "flows[0].size",
        ),
    ];
    for (what, flow, place) in cases {
        let finished = check(&nowhere().flow(flow).text());
        assert_eq!(finished.code, Some(PLAN), "{what}: {}{}", finished.stdout, finished.stderr);
        assert!(
            format!("{}{}", finished.stdout, finished.stderr).contains(place),
            "{what}: {}{}",
            finished.stdout,
            finished.stderr
        );
        assert!(!finished.stderr.contains("panicked"), "{what}");
    }
}

#[test]
fn all_problems_are_reported_at_once() {
    let flows = [Flow::new("a", 1).size(1_000_000), Flow::new("b", 2).with("colour", json!(1))];
    let finished = check(&nowhere().flows(flows).text());
    let said = format!("{}{}", finished.stdout, finished.stderr);
    assert_eq!(finished.code, Some(PLAN), "{said}");
    assert!(said.contains("flows[0].size") && said.contains("flows[1].colour"), "{said}");
}

#[test]
fn rates_above_port_speed_are_refused() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let speed = json!([{"name": "l1", "port_names": ["port 0", "port 1"], "speed": "speed_10_fd_mbps"}]);
    let locations: Vec<String> = lab.ports().iter().map(LabPort::location).collect();
    let halves = ["a", "b"]
        .map(|name| Flow::new(name, 1).with("rate", json!({"choice": "percentage", "percentage": 60})));
    run(&Document::new(&locations).flows(halves).with("layer1", speed)).assert_refused(PLAN, &["port 0"]);
}

#[test]
fn frame_above_port_maximum_is_refused() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let locations: Vec<String> = lab.ports().iter().map(LabPort::location).collect();
    let finished = run(&Document::new(&locations).flow(Flow::new("f", 1).size(13_000)));
    assert!(matches!(finished.code, Some(PLAN | WORLD)), "{:?} {}", finished.code, finished.stderr);
    assert!(
        finished.stderr.contains("13000") && !finished.stderr.contains("panicked"),
        "{}",
        finished.stderr
    );
}

#[test]
fn missing_interfaces_and_namespaces_are_named() {
    run(&nowhere().flow(Flow::new("f", 1))).assert_refused(WORLD, &["no-such-"]);
    let elsewhere = Document::new(&["no-such-ns/eth0".to_owned(), "no-such-ns/eth1".to_owned()]);
    run(&elsewhere.flow(Flow::new("f", 1))).assert_refused(WORLD, &["no-such-ns"]);
}

#[test]
fn nonsense_is_no_plan() {
    let long_line = "x".repeat(10_000_000);
    let deep = "[".repeat(200_000);
    let numbers = (0..700_000).map(|n| format!("k{n}: {n}")).collect::<Vec<_>>().join("\n");
    let cases: [(&str, &str); 9] = [
        ("empty", ""),
        ("not YAML", "{{{: - ]"),
        ("a list", "[1, 2, 3]"),
        ("a word", "hello"),
        ("binary", "\u{0}\u{1}\u{2}\u{7f}"),
        ("a tab", "ports:\n\t- name: a"),
        ("10 MB in one line", &long_line),
        ("200 000 open brackets", &deep),
        ("700 000 unknown keys", &numbers),
    ];
    for (what, text) in cases {
        let finished = check(text);
        assert_eq!(finished.code, Some(PLAN), "{what}: {:.2000}", finished.stderr);
        let said = finished.stderr.len() + finished.stdout.len();
        assert!((1..1_000_000).contains(&said), "{what}: {said} bytes of complaint");
    }
}

#[test]
fn a_billion_laughs_are_not_laughed() {
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..12 {
        let before = level - 1;
        let list = vec![format!("*a{before}"); 10].join(", ");
        bomb = format!("{bomb}a{level}: &a{level} [{list}]\n");
    }
    bomb.push_str("ports: *a11\n");
    check(&bomb).assert_refused(PLAN, &[]);
}

#[test]
fn missing_plan_file_and_bad_arguments_are_refused() {
    Running::start(&["run", "/no/such/plan.yaml"], "").finish().assert_refused(PLAN, &["/no/such/plan.yaml"]);
    for arguments in [
        &["run"][..],
        &["dance"],
        &["run", "--tx", "a", "--rate", "fast"],
        &["run", "--tx", "a", "--size", "-1"],
    ] {
        let finished = Running::start(arguments, "").finish();
        assert_eq!(finished.code, Some(USAGE), "{arguments:?}: {}", finished.stderr);
    }
}

#[test]
fn a_reader_that_goes_away_is_no_panic() {
    use std::process::{Command, Stdio};
    let mut child = Command::new(packetrig_tests::program::binary())
        .args(["run", "--help"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"));
}

#[test]
fn without_rights_a_run_says_which() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    if !skip::has_tool("setpriv") {
        return;
    }
    // The lab's own interfaces, asked for by a process whose capabilities are gone.
    let plan = tempfile::NamedTempFile::new().unwrap();
    let locations: Vec<String> = lab.ports().iter().map(LabPort::location).collect();
    std::fs::write(plan.path(), Document::new(&locations).flow(Flow::new("f", 1)).text()).unwrap();
    let output = std::process::Command::new("setpriv")
        .args(["--bounding-set=-all", "--inh-caps=-all", "--"])
        .arg(packetrig_tests::program::binary())
        .args(["run", "--quiet", "--store"])
        .arg(plan.path().with_extension("store"))
        .arg(plan.path())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{stderr}");
    assert!(stderr.contains("CAP_") && !stderr.contains("panicked"), "{stderr}");
}
