//! Two meters with copies of one link, a collector, and ways between them that can be cut.

use crate::decider::{Decider, DeciderRig, DecidingProcess};
use crate::echo::{EchoTraffic, FIRST_PORT, FlowPackets, RunningEcho, flow_of};
use anyhow::{Context, bail};
use packetrig_eval::process;
use packetrig_sys::{clock, private_files};
use packetrig_testkit::Lab;
use packetrig_tests::program::Running;
use packetrig_tests::relay::Relay;
use rustix::process::Signal;
use serde_json::Value;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Short, so that records leave all the time and a meter that came back is soon ready.
const TIMEOUTS: [&str; 4] = ["--active", "2s", "--idle", "10s"];
/// For 2^18 flows, whose records the collector must remember to know which ones come twice.
const MEMORY: &str = "4GiB";
/// Longest wait for anything to happen.
const PATIENCE_NS: u64 = 60_000_000_000;

pub(crate) struct FailoverRig {
    pub(crate) lab: Lab,
    collector: Running,
    records: PathBuf,
    /// From meter 1 to meter 2, and back.
    pub(crate) controls: [Relay; 2],
    pub(crate) exports: [Relay; 2],
    places: [SocketAddr; 2],
    advertise: String,
    deciders: DeciderRig,
    directory: tempfile::TempDir,
}

/// A meter, and the program that decides its role if there is one.
pub(crate) struct PlacedMeter {
    pub(crate) number: usize,
    pub(crate) running: Running,
    pub(crate) decider: Option<DecidingProcess>,
}

/// How a trial ended.
pub(crate) struct TrialEnd {
    pub(crate) collected: Value,
    pub(crate) sent: u64,
    /// Of meters that were not killed.
    pub(crate) meters: Vec<Value>,
    /// Packets that were sent and are not stored.
    pub(crate) missing: u64,
    /// Packets that are stored and were not sent, or twice.
    pub(crate) surplus: u64,
}

impl FailoverRig {
    pub(crate) fn new(decider: Decider) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir_in("/var/tmp")?;
        let records = directory.path().join("records");
        let mut collector = start_collector(&records);
        let collects = collector_address(&mut collector)?;
        private_files::write_file(&directory.path().join("key"), "00112233445566778899aabbccddeeff\n")?;
        let sockets = [UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?];
        let places = [sockets[0].local_addr()?, sockets[1].local_addr()?];
        let deciders = DeciderRig::new(decider, directory.path())?;
        Ok(Self {
            lab: Lab::with_bridge(3)?,
            collector,
            records,
            controls: [Relay::udp(places[1]), Relay::udp(places[0])],
            exports: [Relay::tcp(collects), Relay::tcp(collects)],
            places,
            advertise: format!("{}ms", decider.advertise_ms()),
            deciders,
            directory,
        })
    }

    /// Starts meter 1 or 2 at its copy of the link.
    pub(crate) fn start(&self, number: usize) -> anyhow::Result<PlacedMeter> {
        self.deciders.prepare(number)?;
        let location = self.lab.location(number);
        let target = format!("tcp://{}", self.exports[number - 1].place());
        let key = self.directory.path().join("key").display().to_string();
        let (own, peer) =
            (self.places[number - 1].to_string(), self.controls[number - 1].place().to_string());
        let member = number.to_string();
        let flags =
            ["meter", &location, "--direction", "in", "--json", "--export", &target, "--group", "link"];
        let of_group =
            ["--member", &member, "--peer", &peer, "--peer-listen", &own, "--peer-key", &key, "--advertise"];
        let more = self.deciders.flags(number);
        let mut all = [&flags[..], &of_group, &[&self.advertise], &TIMEOUTS].concat();
        all.extend(more.iter().map(String::as_str));
        let mut running = Running::start(&all, "");
        running.await_remark("listening");
        Ok(PlacedMeter { number, running, decider: self.deciders.start(number)? })
    }

    /// Both meters, and traffic as soon as one of them listens; the first one is active and the second one ready.
    pub(crate) fn start_both(&self, traffic: EchoTraffic) -> anyhow::Result<(RunningEcho, [PlacedMeter; 2])> {
        let mut one = self.start(1)?;
        let echo = traffic.start(&self.lab.ports()[0])?;
        one.await_said(&one.active())?;
        let mut two = self.start(2)?;
        two.await_said("meter 2 is ready")?;
        Ok((echo, [one, two]))
    }

    /// Brings the port at which a meter listens down, or up again.
    pub(crate) fn cut_copy(&self, meter: usize, is_cut: bool) -> anyhow::Result<()> {
        let port = &self.lab.ports()[meter];
        let state = if is_cut { "down" } else { "up" };
        let set = ["-n", port.namespace(), "link", "set", port.link.name.as_str(), state];
        if !Command::new("ip").args(set).status()?.success() {
            bail!("ip link set failed");
        }
        Ok(())
    }

    /// Ends everything and compares what is stored with what was sent.
    pub(crate) fn finish(
        mut self,
        meters: impl IntoIterator<Item = PlacedMeter>,
        sent: &FlowPackets,
    ) -> anyhow::Result<TrialEnd> {
        let meters = meters.into_iter().map(PlacedMeter::finish).collect::<anyhow::Result<_>>()?;
        self.collector.signal(Signal::INT);
        let finished = self.collector.finish();
        let collected = serde_json::from_str(&finished.stdout).with_context(|| finished.stderr.clone())?;
        // Read by another command than the one that stored it.
        let stored = stored(&self.records)?;
        let packets = |all: &FlowPackets, flow: u32| all.get(&flow).copied().unwrap_or_default();
        let flows = || sent.keys().chain(stored.keys().filter(|flow| !sent.contains_key(flow)));
        let missing = flows().map(|flow| packets(sent, *flow).saturating_sub(packets(&stored, *flow))).sum();
        let surplus = flows().map(|flow| packets(&stored, *flow).saturating_sub(packets(sent, *flow))).sum();
        Ok(TrialEnd { collected, sent: sent.values().sum(), meters, missing, surplus })
    }
}

impl PlacedMeter {
    pub(crate) fn active(&self) -> String {
        format!("meter {} is active", self.number)
    }

    pub(crate) fn standby(&self) -> String {
        format!("meter {} is a standby", self.number)
    }

    /// Waits until it has said this once more than before.
    pub(crate) fn await_said(&mut self, words: &str) -> anyhow::Result<()> {
        let until = clock::monotonic_ns() + PATIENCE_NS;
        while !self.running.remarks().contains(words) {
            if self.running.has_ended() || clock::monotonic_ns() > until {
                bail!("meter {} did not say `{words}`:\n{}", self.number, self.running.remarks());
            }
            process::pause(2);
        }
        Ok(())
    }

    /// As if its machine were switched off.
    pub(crate) fn kill(mut self) {
        self.running.signal(Signal::KILL);
        if let Some(decider) = &mut self.decider {
            decider.kill();
        }
        drop(self.running.finish());
    }

    pub(crate) fn finish(mut self) -> anyhow::Result<Value> {
        self.running.signal(Signal::TERM);
        let finished = self.running.finish();
        serde_json::from_str(&finished.stdout).with_context(|| finished.stderr.clone())
    }
}

fn start_collector(records: &Path) -> Running {
    let records = records.display().to_string();
    let flags = ["collect", "--json", "--quiet", "--directory", &records, "--listen", "tcp://127.0.0.1:0"];
    let flags = [&flags[..], &["--memory", MEMORY]].concat();
    let mut running = Running::start(&flags, "");
    running.await_remark("listening at ");
    running.await_remark("\n");
    running
}

fn collector_address(collector: &mut Running) -> anyhow::Result<SocketAddr> {
    let said = collector.remarks();
    let place = said.split("listening at tcp://").nth(1).and_then(|rest| rest.lines().next());
    Ok(place.context("where it listens")?.parse()?)
}

/// Packets of each flow in the files of a directory.
fn stored(records: &Path) -> anyhow::Result<FlowPackets> {
    let records = records.display().to_string();
    let finished = Running::start(&["flows", "show", &records, "--json"], "").finish();
    let mut sums = FlowPackets::new();
    for line in finished.stdout.lines() {
        let row: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        let number = |name: &str| row[name].as_u64().unwrap_or_default();
        // Machines at the ends of the link also say something themselves, over IPv6.
        let Some(flow) = flow_in(&row) else { continue };
        *sums.entry(flow).or_default() += number("packetDeltaCount") + number("reversePacketDeltaCount");
    }
    Ok(sums)
}

fn flow_in(row: &Value) -> Option<u32> {
    let ends = [
        ("sourceIPv6Address", "sourceTransportPort"),
        ("destinationIPv6Address", "destinationTransportPort"),
    ];
    let ends = ends
        .map(|(address, port)| Some((row[address].as_str()?.parse::<IpAddr>().ok()?, row[port].as_u64()?)));
    let near = ends.into_iter().flatten().find(|(_, port)| *port >= FIRST_PORT.into())?;
    let IpAddr::V4(address) = near.0.to_canonical() else { return None };
    flow_of(address, near.1)
}
