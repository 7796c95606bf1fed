//! Two hosts with something between them, for what finds out about paths: addresses, no offloads, tools, and our own program.

use crate::lab::tool;
use anyhow::{Context, ensure};
use packetrig_sys::kernel;
use packetrig_sys::link::Links;
use packetrig_sys::netns::NetNs;
use packetrig_testkit::Lab;
use packetrig_testkit::lab::INTERFACE;
use packetrig_tests::permit::OWNERS;
use packetrig_tests::program::Running;
use serde_json::Value;
use std::net::IpAddr;
use std::path::PathBuf;
use tempfile::TempDir;

#[derive(Debug)]
pub(crate) struct Way {
    pub(crate) lab: Lab,
    directory: TempDir,
    /// Of the second host.
    pub(crate) far: IpAddr,
}

impl Way {
    /// Both hosts on one link, 198.18.0.1 and .2, with nobody between the ends of their cables yet.
    pub(crate) fn apart() -> anyhow::Result<Self> {
        let way = Self::new("198.18.0.2")?;
        way.give(0, "198.18.0.1")?;
        way.give(1, "198.18.0.2")?;
        Ok(way)
    }

    /// Hosts in two networks, 198.18.1.2 and 198.18.2.2, and a router, whose `port1` can be shaped.
    pub(crate) fn routed() -> anyhow::Result<Self> {
        let way = Self::new("198.18.2.2")?;
        let router = way.middle()?;
        kernel::write_setting(router, "net/ipv4/ip_forward", "1")?;
        for (host, network, other) in [(0, 1, 2), (1, 2, 1)] {
            way.give(host, &format!("198.18.{network}.2"))?;
            let mut links = Links::open(router)?;
            let link = links.by_name(&format!("port{host}"))?.index;
            links.add_address(link, format!("198.18.{network}.1").parse()?, 24)?;
            let route = format!("route add 198.18.{other}.0/24 via 198.18.{network}.1");
            tool(way.lab.ports()[host].netns(), "ip", &route)?;
        }
        Ok(way)
    }

    fn new(far: &str) -> anyhow::Result<Self> {
        let (lab, directory) = (Lab::apart(2)?, tempfile::tempdir()?);
        std::fs::write(directory.path().join("owner.toml"), OWNERS)?;
        Ok(Self { lab, directory, far: far.parse()? })
    }

    fn give(&self, host: usize, address: &str) -> anyhow::Result<()> {
        let port = &self.lab.ports()[host];
        tool(port.netns(), "ethtool", &format!("-K {INTERFACE} tso off gso off gro off tx off"))?;
        let mut links = Links::open(port.netns())?;
        links.set_mtu(port.link.index, 1500)?;
        let loopback = links.by_name("lo")?.index;
        links.set_up(loopback, true)?;
        Ok(links.add_address(port.link.index, address.parse()?, 24)?)
    }

    pub(crate) fn middle(&self) -> anyhow::Result<&NetNs> {
        self.lab.device_netns().context("a lab with something between its hosts")
    }

    /// A file of this way's own.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// `packetrig probe …` at the first host; what it says as JSON.
    pub(crate) fn probe(&self, words: &[&str]) -> anyhow::Result<Value> {
        let permit = self.file("owner.toml").display().to_string();
        let through = self.lab.location(0);
        let usual = ["--through", &through, "--permit", &permit, "--json"];
        let ended = Running::start(&[&["probe"], words, &usual].concat(), "").finish();
        ensure!(ended.code == Some(0) || ended.code == Some(7), "{words:?}: {}", ended.stderr);
        serde_json::from_str(&ended.stdout).with_context(|| format!("{words:?}: {}", ended.stdout))
    }
}
