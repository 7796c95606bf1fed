//! The OTG API in front of a fleet: the same calls, ports that are nodes.

use crate::lab::{Fleet, Wish, await_that};
use packetrig_testkit::lab::INTERFACE;
use packetrig_tests::skip;
use serde_json::{Value, json};

const FRAMES: u64 = 2000;

fn configuration() -> Value {
    let value = |value: &str| json!({ "choice": "value", "value": value });
    let ethernet = json!({ "src": value("02:00:00:00:00:01"), "dst": value("02:00:00:00:00:02") });
    json!({
        "ports": [
            { "name": "a", "location": format!("s1/{INTERFACE}") },
            { "name": "b", "location": format!("r1/{INTERFACE}") },
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
fn a_served_run_counts_what_all_its_nodes_count() {
    if !skip::has_tool("curl") {
        return;
    }
    let Some(fleet) = Fleet::up(Wish::default()) else { return };
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
