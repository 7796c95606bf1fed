//! The OTG API in front of a fleet: the same calls, ports that are nodes.

use crate::lab::{Fleet, FleetOptions, await_that};
use crate::run::Judged;
use packetrig_testkit::lab::INTERFACE;
use packetrig_tests::skip;
use rustix::process::Signal;
use serde_json::{Value, json};

pub(crate) const FRAMES: u64 = 2000;

pub(crate) fn configuration() -> Value {
    configuration_between(["s1", "r1"])
}

fn configuration_between([sender, receiver]: [&str; 2]) -> Value {
    let value = |value: &str| json!({ "choice": "value", "value": value });
    let ethernet = json!({ "src": value("02:00:00:00:00:01"), "dst": value("02:00:00:00:00:02") });
    json!({
        "ports": [
            { "name": "a", "location": format!("{sender}/{INTERFACE}") },
            { "name": "b", "location": format!("{receiver}/{INTERFACE}") },
        ],
        "flows": [{
            "name": "f",
            "tx_rx": { "choice": "port", "port": { "tx_name": "a", "rx_names": ["b"] } },
            "packet": [
                { "choice": "ethernet", "ethernet": ethernet },
                { "choice": "ipv4", "ipv4": { "src": value("198.18.0.1"), "dst": value("198.18.0.2") } },
                { "choice": "udp", "udp": {} },
            ],
            "size": { "choice": "fixed", "fixed": 128 },
            "rate": { "choice": "pps", "pps": 1000 },
            "duration": { "choice": "fixed_packets", "fixed_packets": { "packets": FRAMES } },
            "metrics": { "enable": true },
        }],
    })
}

#[test]
fn served_run_sums_counts_of_all_nodes() {
    if !skip::has_tool("curl") {
        return;
    }
    let Some(fleet) = Fleet::up(FleetOptions::default()) else { return };
    let _served = fleet.serve();
    fleet.post("config", &configuration());
    let start =
        json!({ "choice": "flow_transmit", "flow_transmit": { "state": "start", "flow_names": ["f"] } });
    fleet.post("control/state", &json!({ "choice": "traffic", "traffic": start }));
    let metrics = || {
        let wanted = json!({ "choice": "flow", "flow": { "flow_names": ["f"] } });
        fleet.post("monitor/metrics", &wanted)["flow_metrics"][0].clone()
    };
    // The API has 64-bit counts as text.
    let count = |key: &str| metrics()[key].as_str().and_then(|text| text.parse::<u64>().ok());
    await_that(
        "all was sent and received",
        || count("frames_tx") == Some(FRAMES) && count("frames_rx") == Some(FRAMES),
        || metrics().to_string(),
    );
    await_that("it has stopped", || metrics()["transmit"] == "stopped", || metrics().to_string());
}

fn led(fleet: &Fleet) -> Vec<String> {
    fleet.leads().into_keys().collect()
}

#[test]
fn served_configuration_holds_nodes_until_replaced() {
    if !skip::has_tool("curl") {
        return;
    }
    let Some(fleet) = Fleet::up(FleetOptions::default()) else { return };
    let served = fleet.serve();
    assert_eq!(led(&fleet), [""; 0]);
    for nodes in [["s1", "r1"], ["s2", "r1"]] {
        fleet.post("config", &configuration_between(nodes));
        let [sender, receiver] = nodes;
        assert_eq!(led(&fleet), [receiver, sender]);
    }
    // What it does not have is free for others.
    fleet
        .begin_between(["s1/eth0", "r2/eth0"], &["--packets", "300"])
        .finish()
        .report()
        .assert_nothing_lost();
    fleet.post("config", &json!({}));
    assert_eq!(led(&fleet), [""; 0]);
    fleet.post("config", &configuration());
    drop(served);
    assert_eq!(led(&fleet), [""; 0], "it has ended");
}

/// It looks at their records in threads that its sandbox lets send no signal.
#[test]
fn serve_survives_concurrent_and_killed_controllers() {
    if !skip::has_tool("curl") {
        return;
    }
    let Some(fleet) = Fleet::up(FleetOptions::default()) else { return };
    let served = fleet.serve();
    let beside = fleet.begin_between(["s2/eth0", "r2/eth0"], &["--packets", "2000"]);
    let killed = fleet.begin_between(["s1/eth0", "r1/eth0"], &["--packets", "20000"]);
    fleet.post("config", &configuration_between(["s3", "r3"]));
    drop(killed.kill());
    // Its nodes are free at once, whatever process has its number next.
    fleet.post("config", &configuration());
    beside.finish().report().assert_nothing_lost();
    fleet.post("config", &json!({}));
    drop(served);
}

/// As a machine does that sleeps: somebody else needs its nodes meanwhile.
#[test]
fn stalled_server_accepts_configuration_after_node_loss() {
    if !skip::has_tool("curl") {
        return;
    }
    let Some(fleet) = Fleet::up(FleetOptions::default()) else { return };
    let served = fleet.serve();
    fleet.post("config", &configuration());
    served.stop_between_writes();
    let ports = ["s1/eth0", "r1/eth0"];
    let next = fleet.begin_between(ports, &["--packets", "500", "--wait-for-nodes"]).finish();
    next.report().assert_nothing_lost();
    served.signal(Signal::CONT);
    fleet.post("config", &configuration());
    assert_eq!(led(&fleet), ["r1", "s1"]);
    let start =
        json!({ "choice": "flow_transmit", "flow_transmit": { "state": "start", "flow_names": ["f"] } });
    fleet.post("control/state", &json!({ "choice": "traffic", "traffic": start }));
    let wanted = json!({ "choice": "flow", "flow": { "flow_names": ["f"] } });
    let metrics = || fleet.post("monitor/metrics", &wanted)["flow_metrics"][0].clone();
    let received = || metrics()["frames_rx"].as_str().and_then(|text| text.parse::<u64>().ok());
    await_that("all was sent", || received() == Some(FRAMES), || metrics().to_string());
}
