//! Two stations with addresses: 198.18.0.1 asks, 198.18.0.2 is asked.

use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::netns::NetNs;
use packetrig_testkit::Lab;
use packetrig_testkit::device::FaultPlan;
use packetrig_tests::program::{Finished, Running};
use packetrig_tests::skip::{self, OwnLab};
use serde_json::Value;
use std::process::Command;

pub(crate) const NEAR: &str = "198.18.0.1";
pub(crate) const FAR: &str = "198.18.0.2";
/// What lets the stations be probed.
pub(crate) const ALLOW: [&str; 2] = ["--allow", "198.18.0.0/24"];

pub(crate) struct Stations {
    pub(crate) lab: OwnLab,
}

impl Stations {
    /// On one cable.
    pub(crate) fn cabled() -> Option<Self> {
        skip::lab(Lab::cabled_pair).map(Self::with)
    }

    /// Around the reference device.
    pub(crate) fn around(plan: FaultPlan) -> Option<Self> {
        skip::lab(|| Lab::with_device(2, plan)).map(Self::with)
    }

    fn with(lab: OwnLab) -> Self {
        let stations = Self { lab };
        for (index, ip) in [(0, NEAR), (1, FAR)] {
            let netns = stations.netns(index);
            let mut links = NamespaceLinks::open_in(&netns).unwrap();
            let link = links.find_link_by_name("eth0").unwrap().index;
            links.add_address(link, ip.parse().unwrap(), 24).unwrap();
            let loopback = links.find_link_by_name("lo").unwrap().index;
            links.switch_interface(loopback, true).unwrap();
        }
        // Nothing but probes and answers is to pass between them.
        stations.know(0, 1, FAR);
        stations.know(1, 0, NEAR);
        stations
    }

    fn know(&self, index: usize, other: usize, ip: &str) {
        let mac = self.lab.ports()[other].link.mac.unwrap();
        let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
        let words = ["neigh", "replace", ip, "lladdr", &mac, "dev", "eth0", "nud", "permanent"];
        let done =
            self.netns(index).run_in_namespace(|| Command::new("ip").args(words).status().unwrap()).unwrap();
        assert!(done.success());
    }

    pub(crate) fn netns(&self, index: usize) -> NetNs {
        NetNs::open_named_namespace(self.lab.ports()[index].namespace()).unwrap()
    }

    /// `packetrig probe …` at the first station, as JSON.
    pub(crate) fn start(&self, words: &[&str]) -> Running {
        let through = self.lab.location(0);
        let usual = ["--through", &through, "--json"];
        Running::start(&[&["probe"], words, &usual, &ALLOW].concat(), "")
    }

    pub(crate) fn probe(&self, words: &[&str]) -> (Finished, Value) {
        let finished = self.start(words).finish();
        let said = serde_json::from_str(&finished.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}{}", finished.stdout, finished.stderr));
        (finished, said)
    }
}
