//! One meter at the far end of a cable, one sender at the near end, and what each thread of the meter needed meanwhile.
//!
//! What arrived is the kernel's count of the far interface, not what the sender or the meter says. A veth pair counts frames for which the
//! far side's ring had no room as dropped and not as received, and the meter counts them as dropped by the driver: what came
//! to the interface is both. Without that, the account came out too large by just those frames.

use crate::machine::kib;
use anyhow::Context;
use packetrig_sys::clock;
use packetrig_sys::ethtool::{EthtoolCalls, Offload};
use packetrig_sys::link::NamespaceLinks;
use packetrig_testkit::Lab;
use packetrig_testkit::lab::INTERFACE;
use packetrig_tests::document::{Document, Flow};
use packetrig_tests::program::{Running, binary};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

/// What the meter has for getting ready, and for what is still in its rings.
const SETTLE_NS: u64 = 1_200_000_000;
const PATIENCE_NS: u64 = 30_000_000_000;
const SAMPLE_NS: u64 = 1_000_000_000;
const WATCH_NS: u64 = 10_000_000;

/// What is sent to whom.
pub(crate) struct Load {
    pub(crate) source: &'static str,
    /// Flows that the meter has room for.
    pub(crate) room: u32,
    pub(crate) flow: Flow,
    /// The sender's back end.
    pub(crate) back_end: &'static str,
}

/// What came of it.
pub(crate) struct Metered {
    /// By the kernel's count.
    pub(crate) arrived: u64,
    pub(crate) seconds: f64,
    /// The meter's own words.
    pub(crate) report: Value,
    /// Every second: share of a processor by thread, and memory in MiB.
    pub(crate) samples: Vec<Sample>,
}

#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) threads: BTreeMap<String, f64>,
    pub(crate) memory_mib: f64,
}

impl Metered {
    fn count(&self, path: &str) -> u64 {
        self.report.pointer(path).and_then(Value::as_u64).unwrap_or_default()
    }

    /// In flows.
    pub(crate) fn metered(&self) -> u64 {
        self.count("/ledger/packets/metered")
    }

    pub(crate) fn flows(&self) -> u64 {
        self.count("/ledger/packets/flows")
    }

    /// Lost, as the meter's ledger says: in the driver, in its ring, in its table.
    pub(crate) fn known_losses(&self) -> u64 {
        self.count("/ledger/capture/ring_dropped")
            + self.count("/ledger/capture/driver_dropped")
            + self.count("/ledger/packets/untracked")
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

    /// Its share of what arrived.
    pub(crate) fn loss(&self) -> f64 {
        self.missing() as f64 / self.arrived.max(1) as f64
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
    let lab = Lab::pair()?;
    EthtoolCalls::open(lab.ports()[1].netns())?.set_offload(INTERFACE, Offload::Gro, true)?;
    let mut links = NamespaceLinks::open(lab.ports()[1].netns())?;
    let index = lab.ports()[1].link.index;
    let files = tempfile::tempdir()?;
    let mut child = start(&load, &lab, files.path())?;
    ready(child.id())?;
    // What came before the meter was ready is nobody's: the cable is quiet then.
    let before = came(&mut links, index)?;
    let over = AtomicBool::new(false);
    let pid = child.id();
    let (samples, seconds, complaint) = std::thread::scope(|scope| {
        let sampler = scope.spawn(|| sample(pid, &over));
        let watch = scope.spawn(|| sending_time(&mut links, index, &over));
        let complaint = send(&lab, load.flow, load.back_end);
        over.store(true, Ordering::Release);
        let samples = sampler.join().map_err(|_| anyhow::anyhow!("the sampler panicked"))?;
        let seconds = watch.join().map_err(|_| anyhow::anyhow!("the watcher panicked"))?;
        anyhow::Ok((samples?, seconds?, complaint))
    })?;
    clock::sleep_until_ns(clock::monotonic_ns() + SETTLE_NS);
    let arrived = came(&mut links, index)? - before;
    interrupt(&child)?;
    child.wait()?;
    anyhow::ensure!(arrived > 0, "nothing was sent: {complaint}");
    let text = std::fs::read_to_string(files.path().join("stdout"))?;
    let complaints = std::fs::read_to_string(files.path().join("stderr"))?;
    let report =
        serde_json::from_str(&text).with_context(|| format!("the meter said: {text}{complaints}"))?;
    Ok(Metered { arrived, seconds, report, samples })
}

/// Frames that came to an interface, whether its ring had room for them or not.
fn came(links: &mut NamespaceLinks, index: u32) -> anyhow::Result<u64> {
    let counters = links.counters(index)?;
    Ok(counters.rx_frames + counters.rx_dropped)
}

/// Seconds from the first to the last time that frames arrived.
fn sending_time(links: &mut NamespaceLinks, index: u32, over: &AtomicBool) -> anyhow::Result<f64> {
    let mut known = links.counters(index)?.rx_frames;
    let (mut first, mut last) = (None, 0);
    while !over.load(Ordering::Acquire) {
        clock::sleep_until_ns(clock::monotonic_ns() + WATCH_NS);
        let (count, now) = (links.counters(index)?.rx_frames, clock::monotonic_ns());
        if count > known {
            (known, last) = (count, now);
            first.get_or_insert(now - WATCH_NS);
        }
    }
    Ok(first.map_or(0.0, |first| (last - first) as f64 / 1e9))
}

fn start(load: &Load, lab: &Lab, files: &std::path::Path) -> anyhow::Result<Child> {
    let room = load.room.to_string();
    let mut command = Command::new(binary());
    command.args(["meter", INTERFACE, "--quiet", "--json", "--source", load.source, "--flows", &room]);
    command.args(["--direction", "in", "--idle", "5s"]);
    command.env("HOME", files).stdin(Stdio::null());
    command.stdout(std::fs::File::create(files.join("stdout"))?);
    command.stderr(std::fs::File::create(files.join("stderr"))?);
    Ok(lab.ports()[1].netns().run_in(|| command.spawn())??)
}

/// Waits until the meter has taken its memory: a table of millions of flows takes a while.
fn ready(pid: u32) -> anyhow::Result<()> {
    let status = format!("/proc/{pid}/status");
    let (mut known, give_up) = (0, clock::monotonic_ns() + PATIENCE_NS);
    loop {
        clock::sleep_until_ns(clock::monotonic_ns() + SETTLE_NS);
        let memory = kib(&status, "VmRSS:")?;
        if memory == known || clock::monotonic_ns() > give_up {
            return Ok(());
        }
        known = memory;
    }
}

/// Sends; returns what the sender complained about.
fn send(lab: &Lab, flow: Flow, back_end: &str) -> String {
    let speed = json!([{"name": "layer 1", "port_names": ["port 0"], "speed": "speed_400_gbps"}]);
    let document = Document::new(&[lab.location(0)]).flow(flow.between(0, &[])).with("layer1", speed);
    Running::run(&document, &["--quiet", "--back-end", back_end]).finish().stderr
}

fn interrupt(child: &Child) -> anyhow::Result<()> {
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id())?).context("a child has a number")?;
    Ok(rustix::process::kill_process(pid, rustix::process::Signal::INT)?)
}

/// Looks at a process every second until it is over.
fn sample(pid: u32, over: &AtomicBool) -> anyhow::Result<Vec<Sample>> {
    let mut samples = Vec::new();
    let (mut before, mut at) = (threads(pid)?, clock::monotonic_ns());
    while !over.load(Ordering::Acquire) {
        clock::sleep_until_ns(at + SAMPLE_NS);
        let (now, now_ns) = (threads(pid)?, clock::monotonic_ns());
        let spent = |name: &String, time: u64| time - before.get(name).copied().unwrap_or_default();
        let share = |time: u64| time as f64 / (now_ns - at) as f64;
        let shares = now.iter().map(|(name, &time)| (name.clone(), share(spent(name, time)))).collect();
        let memory = kib(&format!("/proc/{pid}/status"), "VmRSS:")? as f64 / 1024.0;
        samples.push(Sample { threads: shares, memory_mib: memory });
        (before, at) = (now, now_ns);
    }
    Ok(samples)
}

/// Processor time so far by thread, ns.
fn threads(pid: u32) -> anyhow::Result<BTreeMap<String, u64>> {
    let mut times = BTreeMap::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?.path();
        let name = std::fs::read_to_string(task.join("comm"))?.trim().to_owned();
        let text = std::fs::read_to_string(task.join("schedstat"))?;
        let time: u64 = text.split_whitespace().next().context("schedstat")?.parse()?;
        *times.entry(name).or_default() += time;
    }
    Ok(times)
}
