//! Two hosts with something between them, a place for files, and our own program.

use anyhow::{Context, ensure};
use packetrig_sys::netns::NetNs;
use packetrig_testkit::Lab;
use packetrig_tests::hosts;
use packetrig_tests::permit::OWNERS;
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
    /// Both hosts on one link, with nobody between the ends of their cables yet.
    pub(crate) fn apart() -> anyhow::Result<Self> {
        Self::new(hosts::on_one_link, "198.18.0.2")
    }

    /// Hosts in two networks, and a router, whose `port1` can be shaped.
    pub(crate) fn routed() -> anyhow::Result<Self> {
        Self::new(hosts::routed, "198.18.2.2")
    }

    fn new(address: fn(&Lab) -> anyhow::Result<()>, far: &str) -> anyhow::Result<Self> {
        let (lab, directory) = (Lab::with_unconnected_ports(2)?, tempfile::tempdir()?);
        address(&lab)?;
        std::fs::write(directory.path().join("owner.toml"), OWNERS)?;
        Ok(Self { lab, directory, far: far.parse()? })
    }

    pub(crate) fn middle(&self) -> anyhow::Result<&NetNs> {
        hosts::between(&self.lab)
    }

    /// A file of this way's own.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// `packetrig probe …` at the first host; what it says as JSON.
    pub(crate) fn probe(&self, words: &[&str]) -> anyhow::Result<Value> {
        let ended = hosts::probe(&self.lab, &self.file("owner.toml"), words);
        ensure!(ended.code == Some(0) || ended.code == Some(7), "{words:?}: {}", ended.stderr);
        serde_json::from_str(&ended.stdout).with_context(|| format!("{words:?}: {}", ended.stdout))
    }
}
