//! What can go wrong with the programs and cables of a fleet, and what still sends then.

use super::control::ip;
use super::{Fleet, await_that, number, pid};
use packetrig_sys::clock;
use rustix::process::{Signal, kill_process, kill_process_group};
use serde_json::Value;
use std::fs;

/// A sender at 1000 frames a second that sends nothing for so long sends nothing.
const QUIET_NS: u64 = 300_000_000;

impl Fleet {
    /// Sends a signal to a node's supervisor and worker.
    pub(crate) fn signal(&self, node: &str, signal: Signal) {
        kill_process_group(pid(self.agents[node].id()), signal)
            .expect("a group of ours may be sent a signal");
    }

    /// Kills a node's worker; its supervisor is left.
    pub(crate) fn kill_worker(&self, node: &str) {
        kill_process(pid(child_of(self.agents[node].id())), Signal::KILL).expect("a worker may be killed");
    }

    /// Kills the message server; `fleet up` is left.
    pub(crate) fn kill_server(&self) {
        let up = self.controller.as_ref().expect("the fleet is up").id();
        kill_process(pid(child_of(up)), Signal::KILL).expect("a server may be killed");
    }

    /// Frames that a node has sent into the test network, by the count of the bridge there.
    pub(crate) fn sent_by(&self, node: &str) -> u64 {
        let bridge = self.bridge_namespace();
        let port = format!("port{}", number(node));
        let printed = ip(&["-n", &bridge, "-j", "-s", "link", "show", &port]);
        let links: Value = serde_json::from_str(&printed).expect("ip prints JSON");
        links[0]["stats64"]["rx"]["packets"].as_u64().unwrap_or_else(|| panic!("no count in {links}"))
    }

    /// The number of a node's supervisor.
    pub(crate) fn supervisor(&self, node: &str) -> u32 {
        self.agents[node].id()
    }

    /// The numbers of the middle of the fleet and of its message server.
    pub(crate) fn broker(&self) -> [u32; 2] {
        let middle = self.controller.as_ref().expect("it is up").id();
        [middle, child_of(middle)]
    }

    /// The number of its worker.
    pub(crate) fn worker(&self, node: &str) -> u32 {
        child_of(self.supervisor(node))
    }

    /// Waits until a node sends nothing any more.
    pub(crate) fn await_quiet(&self, node: &str) {
        let is_quiet = || {
            let before = self.sent_by(node);
            clock::sleep_until_ns(clock::monotonic_ns() + QUIET_NS);
            before == self.sent_by(node)
        };
        await_that("it sends nothing", is_quiet, || self.said(node));
    }

    /// Cuts a node's cable of the control network, or mends it.
    pub(crate) fn cable(&self, node: &str, is_whole: bool) {
        let state = if is_whole { "up" } else { "down" };
        ip(&["-n", &self.control.name, "link", "set", &format!("c{}", number(node)), state]);
    }
}

/// The process that this one has started, by whichever of its threads.
fn child_of(parent: u32) -> u32 {
    let tasks = format!("/proc/{parent}/task");
    let found = || {
        let threads = fs::read_dir(&tasks).into_iter().flatten().flatten();
        let children =
            threads.map(|thread| fs::read_to_string(thread.path().join("children")).unwrap_or_default());
        let children: String = children.collect();
        children.split_whitespace().next().and_then(|child| child.parse().ok())
    };
    await_that("it has a child", || found().is_some(), || tasks.clone());
    found().expect("it was just seen")
}
