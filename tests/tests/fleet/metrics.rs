//! What a node tells Prometheus, inside its sandbox.

use crate::lab::{Fleet, FleetOptions, SENDERS, await_that, pid};
use crate::run::Judged;
use packetrig_tests::walls::{Holding, RIG};
use rustix::process::{Signal, kill_process};
use std::collections::BTreeSet;
use std::path::Path;

/// All nodes may have the same port: each has its own namespace.
const PORT: &str = "9100";

/// The metrics of a node; no text if it does not answer.
fn scrape_node(fleet: &Fleet, node: &str) -> String {
    let mut client = fleet.beside_node(node, Path::new("curl"));
    client.args(["--silent", "--fail", &format!("http://127.0.0.1:{PORT}/metrics")]);
    String::from_utf8(client.output().expect("there is curl").stdout).expect("metrics are text")
}

fn await_metric(fleet: &Fleet, node: &str, line: &str) -> String {
    let has_line = || scrape_node(fleet, node).lines().any(|found| found == line);
    await_that(line, has_line, || scrape_node(fleet, node));
    scrape_node(fleet, node)
}

/// Waits until the node has finished a run attempt. A busy machine may need several attempts for a run.
fn await_finished_attempt(fleet: &Fleet, node: &str) {
    let name = "packetrig_agent_runs_finished_total ";
    let is_finished =
        |text: String| text.lines().filter_map(|line| line.strip_prefix(name)).any(|count| count != "0");
    await_that(name, || is_finished(scrape_node(fleet, node)), || scrape_node(fleet, node));
}

/// Metrics of nodes that the alert rules ask for.
fn asked_by_rules() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests are a folder of the project");
    let rules = std::fs::read_to_string(root.join("examples/prometheus/packetrig.rules.yml"));
    let rules = rules.expect("the rules are there");
    let words = rules.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("packetrig_agent_")).map(str::to_owned).collect()
}

#[test]
fn node_serves_metrics_without_rights_of_runs() {
    if !packetrig_tests::skip::has_tool("curl") {
        return;
    }
    let Some(mut fleet) =
        Fleet::up(FleetOptions { arguments: &["--metrics", PORT], ..FleetOptions::default() })
    else {
        return;
    };
    let node = SENDERS[0];
    let before = await_metric(&fleet, node, "packetrig_agent_connected 1");
    assert!(before.contains(&format!("packetrig_agent_info{{node=\"{node}\"}} 1\n")), "{before}");
    assert!(before.contains("packetrig_agent_certificate_expiry_timestamp_seconds "), "{before}");
    fleet.run(&["--packets", "300"]).finish().report().assert_nothing_lost();
    await_finished_attempt(&fleet, node);
    await_metric(&fleet, node, "packetrig_agent_spool_waiting_segments 0");
    let held = Holding::of("agent", fleet.worker(node), &fleet.said(node));
    held.assert_at_most(RIG);
    held.assert_confined("metrics");
    let served = scrape_node(&fleet, node);
    let asked = asked_by_rules();
    assert!(asked.len() > 3, "{asked:?}");
    for name in asked {
        assert!(served.contains(&format!("# TYPE {name} ")), "{name}: {served}");
    }
    // The node says so itself when its fleet cannot be reached.
    kill_process(pid(fleet.server_process()), Signal::TERM).expect("it is there");
    fleet.await_server_end();
    await_metric(&fleet, node, "packetrig_agent_connected 0");
}
