//! `packetrig serve` on two ports around a bridge, its configuration, and the events of its API.

use crate::page_client::PageClient;
use crate::program::Running;
use crate::{hosts, skip};
use packetrig_sys::clock;
use packetrig_testkit::Lab;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::Path;

const PATIENCE_NS: u64 = 60_000_000_000;
const LOOK_NS: u64 = 20_000_000;

#[derive(Debug)]
pub struct ServedLab {
    lab: skip::OwnLab,
    pub server: Running,
    client: PageClient,
    store: tempfile::TempDir,
}

impl ServedLab {
    /// A server at this port; `None` without rights for a lab.
    pub fn start(port: u16) -> Option<Self> {
        let lab = skip::lab(|| Lab::with_bridge(2))?;
        let store = tempfile::tempdir().expect("there is room for a store");
        let server = serve(port, store.path());
        Some(Self { lab, server, client: PageClient { port }, store })
    }

    /// Ends the server in good order and starts another one at the same address.
    pub fn restart(&mut self) {
        self.server.signal(Signal::TERM);
        while !self.server.has_ended() {
            clock::sleep_until_ns(clock::monotonic_ns() + LOOK_NS);
        }
        self.server = serve(self.port, self.store.path());
    }

    /// A configuration with one stream of 500 frames per second that does not end, and one that is quiet.
    pub fn configuration(&self) -> Value {
        let flow = |name: &str| {
            json!({
                "name": name,
                "tx_rx": {"port": {"tx_name": "left", "rx_names": ["right"]}},
                "rate": {"pps": "500"},
                "size": {"fixed": 200},
                "duration": {"continuous": {}},
                "packet": [
                    {"ethernet": {"src": {"value": "02:00:00:00:00:01"}, "dst": {"value": "ff:ff:ff:ff:ff:ff"}}},
                    {"ipv4": {"src": {"value": "198.18.0.1"}, "dst": {"value": "198.18.0.2"}}},
                    {"udp": {}},
                ],
                "metrics": {"enable": true, "latency": {"enable": true}},
            })
        };
        json!({
            "ports": [
                {"name": "left", "location": self.lab.location(0)},
                {"name": "right", "location": self.lab.location(1)},
            ],
            "flows": [flow("<b>video</b>"), flow("voice")],
        })
    }

    /// Disconnects the second port from the bridge: frames are sent and do not arrive.
    pub fn cut_the_path(&self) {
        let device = self.lab.device_netns().expect("a bridge has a namespace");
        hosts::tool(device, "ip", "link set port1 nomaster").expect("the bridge lets a port go");
    }

    /// Follows the events of the run.
    pub fn follow(&self, query: &str) -> Events {
        Events(BufReader::new(self.client.send("GET", &format!("/api/v1/events{query}"), "")))
    }
}

impl std::ops::Deref for ServedLab {
    type Target = PageClient;

    fn deref(&self) -> &PageClient {
        &self.client
    }
}

/// The events that a client follows.
#[derive(Debug)]
pub struct Events(BufReader<TcpStream>);

impl Events {
    /// Reads until an event has ended. `false`: the server has closed the connection.
    pub fn skip_event(&mut self) -> bool {
        let mut line = String::new();
        while self.0.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
            if line.starts_with("data: ") {
                return true;
            }
            line.clear();
        }
        false
    }

    /// The next `live` event for which `condition` holds.
    pub fn await_live(&mut self, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
        let deadline = clock::monotonic_ns() + PATIENCE_NS;
        let mut event = String::new();
        let mut latest = Value::Null;
        while clock::monotonic_ns() < deadline {
            let mut line = String::new();
            assert!(
                self.0.read_line(&mut line).expect("the events go on") > 0,
                "the events ended before {what}"
            );
            if let Some(name) = line.strip_prefix("event: ") {
                name.trim().clone_into(&mut event);
            } else if let Some(data) = line.strip_prefix("data: ").filter(|_| event == "live") {
                latest = serde_json::from_str(data).expect("events are JSON");
                if condition(&latest) {
                    return latest;
                }
            }
        }
        panic!("never: {what}; at last {latest}");
    }
}

fn serve(port: u16, store: &Path) -> Running {
    let http = format!("127.0.0.1:{port}");
    let store = store.display().to_string();
    let arguments =
        ["serve", "--plain-http", "--http", &http, "--no-grpc", "--store", &store, "--back-end", "packet"];
    let mut server = Running::start(&arguments, "");
    server.await_printed("Live page");
    server
}
