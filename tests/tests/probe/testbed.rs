//! Labs for probes: two hosts with addresses, what stands between them, and what runs there until the test ends.

use packetrig_sys::netns::NetNs;
use packetrig_testkit::Lab;
use packetrig_tests::hosts;
use packetrig_tests::permit::OWNERS;
use packetrig_tests::program::Finished;
use packetrig_tests::skip::{self, OwnLab};
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

pub(crate) struct Testbed {
    pub(crate) lab: OwnLab,
    pub(crate) directory: TempDir,
    children: Vec<Child>,
}

/// Two hosts on one link, 198.18.0.1 and .2, with the ends of both cables in a namespace between them.
pub(crate) fn apart() -> Option<Testbed> {
    Testbed::new(hosts::on_one_link)
}

/// Two hosts, 198.18.1.2 and 198.18.2.2, and a router.
pub(crate) fn routed() -> Option<Testbed> {
    Testbed::new(hosts::routed)
}

impl Testbed {
    fn new(address: fn(&Lab) -> anyhow::Result<()>) -> Option<Self> {
        let lab = skip::lab(|| Lab::with_unconnected_ports(2))?;
        address(&lab).unwrap();
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("owner.toml"), OWNERS).unwrap();
        Some(Self { lab, directory, children: Vec::new() })
    }

    /// The namespace of a host.
    pub(crate) fn host(&self, index: usize) -> NetNs {
        NetNs::open_named_namespace(self.lab.ports()[index].namespace()).unwrap()
    }

    /// `tc` between the hosts.
    pub(crate) fn tc(&self, arguments: &str) {
        hosts::tool(hosts::between(&self.lab).unwrap(), "tc", arguments).unwrap();
    }

    /// A program at a host, until the test ends.
    pub(crate) fn serve(&mut self, index: usize, words: &[&str]) {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).current_dir(self.directory.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = self.host(index).run_in_namespace(move || command.spawn()).unwrap().unwrap();
        self.children.push(child);
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// `packetrig probe …` at the first host.
    pub(crate) fn probe(&self, words: &[&str]) -> Finished {
        hosts::probe(&self.lab, &self.file("owner.toml"), words)
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Whoever has gone already needs no end.
            drop(child.kill());
            drop(child.wait());
        }
    }
}

pub(crate) fn said(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}{}", finished.stdout, finished.stderr))
}
