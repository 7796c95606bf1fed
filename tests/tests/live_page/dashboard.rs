//! The dashboard for Grafana and the alert rules for Prometheus ask only for metrics that exist.

use packetrig_testkit::Lab;
use packetrig_tests::program::Running;
use packetrig_tests::served_lab::ServedLab;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

const DASHBOARD: &str = "examples/grafana/packetrig.json";
const RULES: &str = "examples/prometheus/packetrig.rules.yml";

/// Names in the lines `# TYPE NAME KIND`.
fn names(metrics: &str) -> BTreeSet<String> {
    let types = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    types.filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

fn fetch(address: &str) -> String {
    let output = Command::new("curl").args(["--silent", "--fail", address]).output().expect("there is curl");
    String::from_utf8(output.stdout).expect("metrics are text")
}

/// Metrics of another program of packetrig, which answers at this port when it has printed or remarked that.
fn metrics_of(arguments: &[&str], port: u16) -> BTreeSet<String> {
    let program = Running::start(arguments, "");
    let address = format!("http://127.0.0.1:{port}/metrics");
    for _ in 0..200 {
        let found = names(&fetch(&address));
        if !found.is_empty() {
            return found;
        }
        packetrig_sys::clock::sleep_until_ns(packetrig_sys::clock::monotonic_ns() + 50_000_000);
    }
    panic!("no metrics at {address}: {}", program.remarks());
}

/// Metrics of a tap between two cables.
fn metrics_of_tap() -> BTreeSet<String> {
    let lab = Lab::with_unconnected_ports(2).expect("the lab of the server could be made, too");
    let (a, b) = (lab.device_location(0), lab.device_location(1));
    metrics_of(&["tap", &a, &b, "--back-end", "packet", "--metrics", "18942"], 18_942)
}

/// Metrics of a service that releases packets of other programs, with no program.
fn metrics_of_release_service() -> BTreeSet<String> {
    let directory = tempfile::tempdir().expect("there is room for temporary files");
    let socket = directory.path().join("release.sock").display().to_string();
    metrics_of(
        &["probe", "serve", "lo", "--allow", "127.0.0.1", "--socket", &socket, "--metrics", "18943"],
        18_943,
    )
}

/// Metrics that the panels ask for.
fn asked(dashboard: &Value) -> BTreeSet<String> {
    let mut asked = BTreeSet::new();
    for panel in dashboard["panels"].as_array().into_iter().flatten() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            asked.extend(metrics_in(target["expr"].as_str().expect("a target has a query")));
        }
    }
    asked
}

/// Words of a text that begin with `packetrig_`.
fn metrics_in(text: &str) -> impl Iterator<Item = String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("packetrig_")).map(str::to_owned)
}

/// Metrics that the alert rules ask for.
fn asked_by_rules(rules: &str) -> BTreeSet<String> {
    let queries = rules.lines().filter_map(|line| line.trim_start().strip_prefix("expr: "));
    queries.flat_map(metrics_in).collect()
}

#[test]
fn dashboard_queries_name_served_metrics() {
    let Some(rig) = ServedLab::start(18_916) else { return };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests are a folder of the project");
    let text = std::fs::read_to_string(root.join(DASHBOARD)).expect("the dashboard is there");
    let dashboard: Value = serde_json::from_str(&text).expect("the dashboard is JSON");
    rig.post("/config", &rig.configuration());
    rig.post("/api/v1/streams", &json!({ "change": "start" }));
    rig.follow("").await_live("frames", |live| live["run"]["totals"]["frames_rx"].as_u64() > Some(10));
    let metrics = rig.request("GET", "/metrics", "");
    assert!(
        metrics.contains("packetrig_port_received_frames_total{port=\"right\",node=\"local\"}"),
        "{metrics}"
    );
    let mut served = names(&metrics);
    served.extend(metrics_of(&["meter", "lo", "--metrics", "18917", "--export", "file:{out}"], 18_917));
    served
        .extend(metrics_of(&["collect", "--listen", "udp://127.0.0.1:18918", "--metrics", "18919"], 18_919));
    served.extend(metrics_of(&["capture", "lo", "--count-only", "--metrics", "18940"], 18_940));
    served.extend(metrics_of(&["log", "lo", "--into", "{out}", "--metrics", "18941"], 18_941));
    served.extend(metrics_of_tap());
    served.extend(metrics_of_release_service());
    let rules = std::fs::read_to_string(root.join(RULES)).expect("the rules are there");
    let asked_by_rules = asked_by_rules(&rules);
    assert!(asked_by_rules.len() > 8, "{asked_by_rules:?}");
    let all = asked(&dashboard).union(&asked_by_rules).cloned().collect::<BTreeSet<_>>();
    // Nodes need a fleet: `tests/tests/fleet/metrics.rs` compares theirs.
    let missing: Vec<String> =
        all.difference(&served).filter(|name| !name.starts_with("packetrig_agent_")).cloned().collect();
    assert_eq!(missing, Vec::<String>::new(), "served are {served:?}");
    assert!(asked(&dashboard).len() > 30);
    // One that was made for another Grafana names its data source.
    assert!(dashboard["id"].is_null() && text.contains("${datasource}"));
}
