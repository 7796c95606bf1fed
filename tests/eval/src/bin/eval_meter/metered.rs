//! One meter at the far end of a cable, one sender at the near end, and what each thread of the meter needed meanwhile.
//!
//! What arrived is the kernel's count of the far interface, not what the sender or the meter says. A veth pair counts frames for which the
//! far side's ring had no room as dropped and not as received, and the meter counts them as dropped by the driver: what came
//! to the interface is both. Without that, the account came out too large by just those frames.

use crate::sampler::{self, Sample};
use anyhow::Context;
use packetrig_eval::process;
use packetrig_sys::ethtool::{EthtoolCalls, Offload};
use packetrig_sys::link::NamespaceLinks;
use packetrig_testkit::Lab;
use packetrig_testkit::lab::{INTERFACE, LabPort};
use packetrig_tests::document::{Document, Flow, ethernet};
use packetrig_tests::program::Running;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};

/// Nothing more comes when this many looks in a row have seen nothing.
const QUIET_LOOKS: u32 = 5;
const LOOK_MS: u64 = 40;

/// What is sent to whom.
pub(crate) struct Load {
    pub(crate) source: &'static str,
    /// Flows that the meter has room for.
    pub(crate) room: u32,
    pub(crate) flow: Flow,
    /// The sender's back end.
    pub(crate) back_end: &'static str,
    /// More flags of the meter.
    pub(crate) flags: &'static [&'static str],
    /// Whether its records go to somebody over UDP.
    pub(crate) is_exported: bool,
}

impl Load {
    /// Of a source, at whose other end frames are made by programs in the kernel.
    pub(crate) const fn of(source: &'static str, room: u32, flow: Flow) -> Self {
        Self { source, room, flow, back_end: "xdp", flags: &[], is_exported: false }
    }
}

/// What came of it.
pub(crate) struct Metered {
    /// By the kernel's count.
    pub(crate) arrived: u64,
    pub(crate) seconds: f64,
    /// The meter's own words.
    pub(crate) report: Value,
    /// Every second while frames arrived.
    pub(crate) samples: Vec<Sample>,
}

impl Metered {
    pub(crate) fn count(&self, path: &str) -> u64 {
        self.report.pointer(path).and_then(Value::as_u64).unwrap_or_default()
    }

    /// In flows.
    pub(crate) fn metered(&self) -> u64 {
        self.count("/ledger/packets/metered")
    }

    pub(crate) fn flows(&self) -> u64 {
        self.count("/ledger/packets/flows")
    }

    /// R1's first step: lost in the driver or in the ring.
    pub(crate) fn lost_in_capture(&self) -> u64 {
        self.count("/ledger/capture/ring_dropped") + self.count("/ledger/capture/driver_dropped")
    }

    /// R1's second step: no place in the table.
    pub(crate) fn lost_in_table(&self) -> u64 {
        self.count("/ledger/packets/untracked")
    }

    /// R1's third step: packets of records that found no room in the queue or were not taken by the transport.
    pub(crate) fn lost_in_export(&self) -> u64 {
        self.count("/ledger/export/queue_dropped/packets") + self.count("/ledger/export/refused/packets")
    }

    /// Lost before the records, as the meter's ledger says.
    pub(crate) fn known_losses(&self) -> u64 {
        self.lost_in_capture() + self.lost_in_table()
    }

    pub(crate) fn ignored(&self) -> u64 {
        let causes = self.report.pointer("/ledger/packets/ignored").and_then(Value::as_object);
        causes.into_iter().flat_map(|causes| causes.values()).filter_map(Value::as_u64).sum()
    }

    /// Arrived, and in no account. Below zero: in more than one, or never arrived. Either is a defect.
    pub(crate) fn unaccounted(&self) -> i64 {
        let accounted = self.metered() + self.ignored() + self.known_losses();
        self.arrived.cast_signed() - accounted.cast_signed()
    }

    /// Arrived, and in no flow.
    pub(crate) fn missing(&self) -> i64 {
        self.arrived.cast_signed() - (self.metered() + self.ignored()).cast_signed()
    }

    /// A part of what arrived.
    pub(crate) fn share(&self, packets: u64) -> f64 {
        packets as f64 / self.arrived.max(1) as f64
    }

    pub(crate) fn rate(&self) -> f64 {
        self.arrived as f64 / self.seconds.max(1e-3)
    }

    pub(crate) fn is_balanced(&self) -> bool {
        self.report["imbalances"] == json!([])
    }
}

/// Meters a load on a cable of its own.
pub(crate) fn meter(load: Load) -> anyhow::Result<Metered> {
    meter_with(load, |_| Ok(()))
}

/// The same; the meter is shown to somebody before anything is sent.
pub(crate) fn meter_with(
    load: Load,
    prepare: impl FnOnce(&mut Running) -> anyhow::Result<()>,
) -> anyhow::Result<Metered> {
    let lab = Lab::cabled_pair()?;
    let port = &lab.ports()[1];
    EthtoolCalls::open_in(port.netns())?.set_offload(INTERFACE, Offload::Gro, true)?;
    let mut links = NamespaceLinks::open_in(port.netns())?;
    // Nobody reads what comes to it: what the meter hands over is what matters.
    let collector = UdpSocket::bind("127.0.0.1:0")?;
    let mut running = start(&load, port, load.is_exported.then_some(&collector))?;
    prepare(&mut running)?;
    let pid = running.process();
    // What came before the meter was ready is nobody's: the cable is quiet then.
    let before = came(&mut links, port.link.index)?;
    let over = AtomicBool::new(false);
    let (watched, complaint) = std::thread::scope(|scope| {
        let watch = scope.spawn(|| sampler::watch(pid, &mut links, port.link.index, &over));
        let complaint = send(&lab, load.flow, load.back_end);
        over.store(true, Ordering::Release);
        let watched = watch.join().map_err(|_| anyhow::anyhow!("the watcher panicked"))?;
        anyhow::Ok((watched?, complaint))
    })?;
    let arrived = settled(port)? - before;
    running.signal(Signal::INT);
    let finished = running.finish();
    anyhow::ensure!(arrived > 0, "nothing was sent: {complaint}");
    let said = || format!("the meter said: {}{}", finished.stdout, finished.stderr);
    let report = serde_json::from_str(&finished.stdout).with_context(said)?;
    Ok(Metered { arrived, seconds: watched.seconds, report, samples: watched.samples })
}

/// Frames that came to an interface, whether its ring had room for them or not.
fn came(links: &mut NamespaceLinks, index: u32) -> anyhow::Result<u64> {
    let counters = links.read_counters(index)?;
    Ok(counters.rx_frames + counters.rx_dropped)
}

/// What came to a port, once nothing more comes.
pub(crate) fn settled(port: &LabPort) -> anyhow::Result<u64> {
    let mut links = NamespaceLinks::open_in(port.netns())?;
    let mut known = came(&mut links, port.link.index)?;
    let mut quiet = 0;
    while quiet < QUIET_LOOKS {
        process::pause(LOOK_MS);
        let now = came(&mut links, port.link.index)?;
        quiet = if now == known { quiet + 1 } else { 0 };
        known = now;
    }
    Ok(known)
}

fn start(load: &Load, port: &LabPort, collector: Option<&UdpSocket>) -> anyhow::Result<Running> {
    let (location, room) = (port.location(), load.room.to_string());
    let mut arguments = vec!["meter", &location, "--json", "--source", load.source, "--flows", &room];
    arguments.extend(["--direction", "in", "--idle", "5s"]);
    arguments.extend(load.flags);
    let target = collector.map(UdpSocket::local_addr).transpose()?.map(|address| format!("udp://{address}"));
    if let Some(target) = &target {
        arguments.extend(["--export", target]);
    }
    let mut running = Running::start(&arguments, "");
    running.await_remark("listening");
    Ok(running)
}

/// Sends; returns what the sender complained about.
pub(crate) fn send(lab: &Lab, flow: Flow, back_end: &str) -> String {
    let speed = json!([{"name": "layer 1", "port_names": ["port 0"], "speed": "speed_400_gbps"}]);
    let document = Document::new(&[lab.location(0)]).flow(flow.between(0, &[])).with("layer1", speed);
    Running::run(&document, &["--quiet", "--back-end", back_end]).finish().stderr
}

/// Smallest frames of so many senders, in turn: a flow each.
pub(crate) fn many_hosts(count: u64) -> Flow {
    let sources = json!({"choice": "increment", "increment": {"start": "198.18.0.1", "step": "0.0.0.1", "count": count}});
    let packet = [
        ethernet(1),
        json!({"choice": "ipv4", "ipv4": {"src": sources, "dst": {"choice": "value", "value": "198.19.0.1"}}}),
        json!({"choice": "udp", "udp": {"src_port": {"choice": "value", "value": 4000}}}),
    ];
    Flow::new("many", 1).packet(packet).size(64)
}
