//! The network of a campaign.
//!
//! ```text
//!   namespace ctl             the lab's namespace       namespace n1 … n4
//!   bridge ctl 10.9.0.1 -- cN ===== wN  ControlLink  xN ===== ctl0 10.9.0.1N
//!                                                             eth1 ---- test network: n1 to n3, n2 to n4
//!                      -- j ============================== ctl0 of namespace extra, for machines that join in a burst
//! ```
//! A [`ControlLink`] forwards frames in user space, so that it can be cut in one direction, delayed and made to lose frames on
//! kernels without netem. The test network is plain cables: nothing on it can lose a frame.

use crate::control_link::{ControlLink, LinkConditions};
use anyhow::{Context, ensure};
use packetrig_sys::netns::NetNs;
use std::process::Command;

/// Machines of the fleet. The first half sends, each to the machine that is [`SENDERS`] further on.
pub(crate) const NODES: usize = 4;
/// Machines that send.
pub(crate) const SENDERS: usize = NODES / 2;
/// Namespace of the controller and the message server.
pub(crate) const CONTROLLER: &str = "ctl";
/// Namespace of machines that join in a burst.
pub(crate) const EXTRA: &str = "extra";
/// The port that a node lends.
pub(crate) const PORT: &str = "eth1";

/// Name of a node, and of its namespace. Nodes are counted from 0, names from 1.
pub(crate) fn node_name(node: usize) -> String {
    format!("n{}", node + 1)
}

/// Its number.
pub(crate) fn node_number(name: &str) -> Option<usize> {
    (0..NODES).find(|node| node_name(*node) == name)
}

/// Whether a node sends.
pub(crate) const fn is_sender(node: usize) -> bool {
    node < SENDERS
}

/// The node at the other end of a node's cable.
pub(crate) const fn facing(node: usize) -> usize {
    if is_sender(node) { node + SENDERS } else { node - SENDERS }
}

/// Namespaces, cables and control links. Namespaces go with the lab.
#[derive(Debug)]
pub(crate) struct Network {
    links: Vec<ControlLink>,
}

impl Network {
    pub(crate) fn build(seed: u64) -> anyhow::Result<Self> {
        make_control_network()?;
        for sender in 0..SENDERS {
            let names = [node_name(sender), node_name(facing(sender))];
            ip(&format!("link add {PORT} netns {} type veth peer name {PORT} netns {}", names[0], names[1]))?;
        }
        for node in 0..NODES {
            ip(&format!("-n {} link set {PORT} up", node_name(node)))?;
        }
        let here = NetNs::current()?;
        let mut links = Vec::new();
        for node in 0..NODES {
            let ends = [format!("w{}", node + 1), format!("x{}", node + 1)];
            links.push(ControlLink::open(&here, ends, seed.wrapping_add(node as u64))?);
        }
        Ok(Self { links })
    }

    /// Sets what happens to a node's control messages from now on.
    pub(crate) fn set_conditions(&self, node: usize, conditions: LinkConditions) {
        self.links[node].set_conditions(conditions);
    }

    /// All control links are as good as new.
    pub(crate) fn mend(&self) {
        for link in &self.links {
            link.set_conditions(LinkConditions::default());
        }
    }
}

fn make_control_network() -> anyhow::Result<()> {
    add_namespace(CONTROLLER)?;
    ip("-n ctl link add ctl type bridge")?;
    ip("-n ctl addr add 10.9.0.1/24 dev ctl")?;
    ip("-n ctl link set ctl up")?;
    for node in 0..NODES {
        let number = node + 1;
        let name = node_name(node);
        add_namespace(&name)?;
        ip(&format!("-n ctl link add c{number} type veth peer name w{number} netns {}", std::process::id()))?;
        ip(&format!("link add x{number} type veth peer name ctl0 netns {name}"))?;
        ip(&format!("-n ctl link set c{number} master ctl up"))?;
        ip(&format!("link set w{number} up"))?;
        ip(&format!("link set x{number} up"))?;
        bring_up_control_port(&name, 11 + node)?;
        leave_no_work_to_the_card(CONTROLLER, &format!("c{number}"))?;
        leave_no_work_to_the_card(&name, "ctl0")?;
    }
    add_namespace(EXTRA)?;
    ip("-n ctl link add j type veth peer name ctl0 netns extra")?;
    ip("-n ctl link set j master ctl up")?;
    bring_up_control_port(EXTRA, 100)
}

fn add_namespace(name: &str) -> anyhow::Result<()> {
    ip(&format!("netns add {name}"))?;
    ip(&format!("-n {name} link set lo up"))?;
    // The kernel's own IPv6 messages would be counted as frames of the test.
    let keys = ["all", "default"].map(|which| format!("net.ipv6.conf.{which}.disable_ipv6=1"));
    run(&format!("ip netns exec {name} sysctl -q -e -w {} {}", keys[0], keys[1]))
}

fn bring_up_control_port(namespace: &str, last_byte: usize) -> anyhow::Result<()> {
    ip(&format!("-n {namespace} addr add 10.9.0.{last_byte}/24 dev ctl0"))?;
    ip(&format!("-n {namespace} link set ctl0 up"))
}

/// A forwarder in user space sees what a card would be given: frames must be complete when they leave the stack.
fn leave_no_work_to_the_card(namespace: &str, interface: &str) -> anyhow::Result<()> {
    run(&format!("ip netns exec {namespace} ethtool -K {interface} tx off tso off gso off gro off"))
}

fn ip(words: &str) -> anyhow::Result<()> {
    run(&format!("ip {words}"))
}

fn run(line: &str) -> anyhow::Result<()> {
    let mut words = line.split(' ');
    let program = words.next().unwrap_or_default();
    let output = Command::new(program).args(words).output().with_context(|| line.to_owned())?;
    ensure!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
