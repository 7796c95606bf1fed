//! The dashboard for Grafana asks only for metrics that exist.

use packetrig_tests::program::Running;
use packetrig_tests::served_lab::ServedLab;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

const DASHBOARD: &str = "examples/grafana/packetrig.json";

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

/// Words of a query that begin with `packetrig_`; a label's value is none.
fn asked(dashboard: &Value) -> BTreeSet<String> {
    let mut asked = BTreeSet::new();
    for panel in dashboard["panels"].as_array().into_iter().flatten() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = target["expr"].as_str().expect("a target has a query");
            let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            asked.extend(words.filter(|word| word.starts_with("packetrig_")).map(str::to_owned));
        }
    }
    asked
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
    let missing: Vec<String> = asked(&dashboard).difference(&served).cloned().collect();
    assert_eq!(missing, Vec::<String>::new(), "served are {served:?}");
    assert!(asked(&dashboard).len() > 30);
    // One that was made for another Grafana names its data source.
    assert!(dashboard["id"].is_null() && text.contains("${datasource}"));
}
