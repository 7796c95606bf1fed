//! Labs for probes: two hosts with addresses, and what stands between them.

use packetrig_sys::link::Links;
use packetrig_sys::netns::NetNs;
use packetrig_testkit::Lab;
use packetrig_tests::permit::OWNERS;
use packetrig_tests::program::{Finished, Running};
use packetrig_tests::skip::{self, OwnLab};
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

pub(crate) struct Bench {
    pub(crate) lab: OwnLab,
    pub(crate) directory: TempDir,
    children: Vec<Child>,
}

/// Two hosts on one link, 198.18.0.1 and .2, with the ends of both cables in a namespace between them.
pub(crate) fn apart() -> Option<Bench> {
    let bench = Bench::new()?;
    bench.give(0, "198.18.0.1/24");
    bench.give(1, "198.18.0.2/24");
    Some(bench)
}

/// Two hosts, 198.18.1.2 and 198.18.2.2, and a router.
pub(crate) fn routed() -> Option<Bench> {
    let bench = Bench::new()?;
    bench.give(0, "198.18.1.2/24");
    bench.give(1, "198.18.2.2/24");
    for (index, network) in [(0, 1), (1, 2)] {
        let device = bench.device(index);
        bench.between(&["ip", "addr", "add", &format!("198.18.{network}.1/24"), "dev", &device]);
        bench.between(&["ip", "link", "set", &device, "up"]);
        let other = format!("198.18.{}.0/24", 3 - network);
        let via = format!("198.18.{network}.1");
        let name = bench.lab.ports()[index].namespace().to_owned();
        tool(&NetNs::open(&name).unwrap(), &["ip", "route", "add", &other, "via", &via]);
    }
    packetrig_sys::kernel::write_setting(bench.lab.device_netns().unwrap(), "net/ipv4/ip_forward", "1")
        .unwrap();
    Some(bench)
}

impl Bench {
    fn new() -> Option<Self> {
        let lab = skip::lab(|| Lab::apart(2))?;
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("owner.toml"), OWNERS).unwrap();
        let bench = Self { lab, directory, children: Vec::new() };
        for index in 0..2 {
            for feature in ["tso", "gso", "gro", "tx", "rx"] {
                // What is not there need not be switched off.
                bench.in_host(index, |netns| try_tool(netns, &["ethtool", "-K", "eth0", feature, "off"]));
            }
        }
        Some(bench)
    }

    fn in_host<T>(&self, index: usize, work: impl FnOnce(&NetNs) -> T) -> T {
        work(&NetNs::open(self.lab.ports()[index].namespace()).unwrap())
    }

    fn give(&self, index: usize, address: &str) {
        self.in_host(index, |netns| {
            let (ip, bits) = address.split_once('/').unwrap();
            let mut links = Links::open(netns).unwrap();
            let link = links.by_name("eth0").unwrap().index;
            links.add_address(link, ip.parse().unwrap(), bits.parse().unwrap()).unwrap();
            links.set_up(link, true).unwrap();
            let loopback = links.by_name("lo").unwrap().index;
            links.set_up(loopback, true).unwrap();
        });
    }

    /// The namespace of a host.
    pub(crate) fn host(&self, index: usize) -> NetNs {
        NetNs::open(self.lab.ports()[index].namespace()).unwrap()
    }

    /// The interface between the hosts that is the neighbour of one.
    pub(crate) fn device(&self, index: usize) -> String {
        self.lab.device_location(index).split_once('/').unwrap().1.to_owned()
    }

    /// A tool between the hosts.
    pub(crate) fn between(&self, words: &[&str]) {
        tool(self.lab.device_netns().unwrap(), words);
    }

    /// A program at a host, until the test ends.
    pub(crate) fn serve(&mut self, index: usize, words: &[&str]) {
        let mut command = command(words);
        command.current_dir(self.directory.path());
        let child = self.host(index).run_in(move || command.spawn()).unwrap().unwrap();
        self.children.push(child);
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// `packetrig probe …` at the first host.
    pub(crate) fn probe(&self, words: &[&str]) -> Finished {
        let permit = self.file("owner.toml").display().to_string();
        let through = self.lab.location(0);
        let usual = ["--through", &through, "--permit", &permit, "--json"];
        Running::start(&[&["probe"], words, &usual].concat(), "").finish()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Whoever has gone already needs no end.
            drop(child.kill());
            drop(child.wait());
        }
    }
}

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn try_tool(netns: &NetNs, words: &[&str]) -> bool {
    let mut command = command(words);
    netns.run_in(move || command.status().is_ok_and(|status| status.success())).unwrap()
}

fn tool(netns: &NetNs, words: &[&str]) {
    assert!(try_tool(netns, words), "{words:?}");
}

pub(crate) fn said(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}{}", finished.stdout, finished.stderr))
}
