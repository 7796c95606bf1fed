//! Two hosts with addresses and something between them, for what finds out about paths: frames of an Ethernet's size, no offloads.
//!
//! Both functions that give addresses take a lab whose cables end in a namespace between its hosts ([`Lab::with_unconnected_ports`]).

use crate::program::{Finished, Running};
use anyhow::{Context, ensure};
use packetrig_sys::kernel;
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::netns::NetNs;
use packetrig_testkit::Lab;
use packetrig_testkit::lab::INTERFACE;
use std::path::Path;
use std::process::Command;

const MTU: u32 = 1500;

/// Hosts 198.18.0.1 and .2 on one link. Whoever calls puts something between the ends of their cables.
pub fn on_one_link(lab: &Lab) -> anyhow::Result<()> {
    give(lab, 0, "198.18.0.1")?;
    give(lab, 1, "198.18.0.2")
}

/// Hosts 198.18.1.2 and 198.18.2.2, and a router, whose `port1` can be shaped.
pub fn routed(lab: &Lab) -> anyhow::Result<()> {
    let router = between(lab)?;
    kernel::write_setting(router, "net/ipv4/ip_forward", "1")?;
    for (host, network, other) in [(0, 1, 2), (1, 2, 1)] {
        give(lab, host, &format!("198.18.{network}.2"))?;
        let mut links = NamespaceLinks::open_in(router)?;
        let link = links.find_link_by_name(&format!("port{host}"))?.index;
        links.add_address(link, format!("198.18.{network}.1").parse()?, 24)?;
        let route = format!("route add 198.18.{other}.0/24 via 198.18.{network}.1");
        tool(lab.ports()[host].netns(), "ip", &route)?;
    }
    Ok(())
}

fn give(lab: &Lab, host: usize, address: &str) -> anyhow::Result<()> {
    let port = &lab.ports()[host];
    tool(port.netns(), "ethtool", &format!("-K {INTERFACE} tso off gso off gro off tx off"))?;
    let mut links = NamespaceLinks::open_in(port.netns())?;
    links.set_mtu(port.link.index, MTU)?;
    let loopback = links.find_link_by_name("lo")?.index;
    links.switch_interface(loopback, true)?;
    Ok(links.add_address(port.link.index, address.parse()?, 24)?)
}

/// What is between the hosts.
pub fn between(lab: &Lab) -> anyhow::Result<&NetNs> {
    lab.device_netns().context("a lab with something between its hosts")
}

/// Runs a tool inside a namespace.
pub fn tool(netns: &NetNs, program: &str, arguments: &str) -> anyhow::Result<()> {
    let mut command = Command::new(program);
    command.args(arguments.split(' '));
    let output = netns.run_in_namespace(|| command.output())?.with_context(|| program.to_owned())?;
    ensure!(output.status.success(), "{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// `packetrig probe …` at the first host, by this owner's file.
pub fn probe(lab: &Lab, permit: &Path, words: &[&str]) -> Finished {
    let (permit, through) = (permit.display().to_string(), lab.location(0));
    let usual = ["--through", &through, "--permit", &permit, "--json"];
    Running::start(&[&["probe"], words, &usual].concat(), "").finish()
}
