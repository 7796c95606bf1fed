//! What probes need of the lab: addresses in the test network, and a cable that is slow in one direction.

use super::control::ip;
use super::state::is_empty;
use super::{Fleet, await_that, number, pid};
use packetrig_sys::ethtool::{EthtoolCalls, Offload};
use packetrig_sys::netns::NetNs;
use packetrig_testkit::lab::INTERFACE;
use rustix::process::{Signal, kill_process};
use serde_json::Value;
use std::process::Child;

impl Fleet {
    /// Gives the test port of each node an IP address, and waits until all nodes have told theirs.
    pub(crate) fn give_addresses(&self) {
        for (index, port) in self.lab.ports().iter().enumerate() {
            let address = format!("198.18.0.{}/24", index + 1);
            ip(&["-n", port.namespace(), "addr", "add", &address, "dev", INTERFACE]);
        }
        let has_address = |row: &Value| !is_empty(&row["hello"]["ports"][0]["addresses"]);
        self.await_status("all have addresses", |rows| rows.iter().all(has_address));
    }

    /// Puts a tap into the cable of a node: the bridge is at its end B. It impairs until it is dropped.
    pub(crate) fn impair(&self, node: &str, spec: [&str; 2]) -> ImpairedCable {
        // A tap forwards frames as it gets them. Those of a cable within one kernel lack checksums that no card will write.
        for port in self.lab.ports() {
            let netns = NetNs::open_named_namespace(port.namespace()).expect("the namespace is ours");
            let calls = EthtoolCalls::open_in(&netns).expect("the kernel has ethtool");
            calls.set_offload(INTERFACE, Offload::TxCsum, false).expect("a veth can write checksums");
        }
        let bridge = self.bridge_namespace();
        let port = format!("port{}", number(node));
        ip(&["-n", &bridge, "link", "set", &port, "nomaster"]);
        let cable = ["link", "add", "tap-b", "type", "veth", "peer", "name", "tap-c"];
        ip(&[&["-n", &bridge][..], &cable].concat());
        ip(&["-n", &bridge, "link", "set", "tap-c", "master", "br0", "up"]);
        ip(&["-n", &bridge, "link", "set", "tap-b", "up"]);
        let ends = [format!("{bridge}/{port}"), format!("{bridge}/tap-b")];
        let [option, spec] = spec;
        let command = self.command(
            &self.control.name,
            "tap",
            &["tap", &ends[0], &ends[1], option, spec, "--back-end", "packet"],
        );
        let child = self.start(command, "tap");
        await_that("the tap forwards", || self.said("tap").contains("forwarding"), || self.said("tap"));
        ImpairedCable(child)
    }
}

impl Fleet {
    /// Everything that goes to a node passes a link of this rate, as `tc` understands it.
    pub(crate) fn narrow(&self, node: &str, rate: &str) {
        let port = format!("port{}", number(node));
        let tbf = ["root", "tbf", "rate", rate, "burst", "5000", "limit", "200000"];
        let bridge = self.bridge_namespace();
        let words = [&["-n", &bridge, "qdisc", "add", "dev", &port][..], &tbf].concat();
        let status = std::process::Command::new("tc").args(&words).status().expect("tc is installed");
        assert!(status.success(), "tc {words:?}");
    }
}

/// A tap in a cable, until this is dropped.
pub(crate) struct ImpairedCable(Child);

impl Drop for ImpairedCable {
    fn drop(&mut self) {
        kill_process(pid(self.0.id()), Signal::TERM).ok();
        drop(self.0.wait());
    }
}
