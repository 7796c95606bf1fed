//! Capturing to disk: the highest rate without loss, and processor time per frame, beside tcpdump, dumpcap and netsniff-ng with
//! buffers of the same size.
//!
//! A capture costs more than its process shows: the kernel's part of it runs in interrupts, which are charged to whoever
//! is interrupted. Here that is the sender, which sends in bursts and sleeps in between, or the kernel's thread for
//! interrupts. So what is compared is the processor time of all three, less that of the same sending into a program that
//! drops. The least of several rounds counts: what else happens on the machine only adds. What the kernel's threads do to
//! write files out of the page cache is in no figure; ours are written past it, so that is to the good of the others.

use crate::cost;
use crate::send::dropping_lab;
use anyhow::Context;
use packetrig_eval::Effort;
use packetrig_eval::output::{Output, Table};
use packetrig_sys::clock;
use packetrig_sys::ethtool::{EthtoolCalls, Offload};
use packetrig_sys::link::NamespaceLinks;
use packetrig_testkit::Lab;
use packetrig_testkit::lab::INTERFACE;
use packetrig_tests::document::{Document, Flow};
use packetrig_tests::program::{Running, binary};
use serde_json::json;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const TOOLS: [&str; 5] = ["packetrig xdp", "packetrig packet", "tcpdump", "dumpcap", "netsniff-ng"];
/// Frames per second asked for. What the sender reaches beside a receiver on the same processor may be less, and counts.
const RATES: [u64; 8] = [400_000, 600_000, 800_000, 1_000_000, 1_300_000, 1_700_000, 2_200_000, 2_800_000];
const BUFFER_MIB: u64 = 64;
/// For the comparison of processor time.
const ROUNDS: usize = 3;
/// What a tool has for getting ready, and for writing what it still holds.
const SETTLE_NS: u64 = 1_200_000_000;

/// What a tool did at a rate.
struct Caught {
    written: u64,
    sent: u64,
}

/// Processor time per frame, in ns.
struct Cost {
    /// Of the tool's process.
    process: f64,
    /// And what the kernel does, less what the same sending takes without a capture.
    whole: f64,
}

/// What a tool came to.
struct Found {
    tool: &'static str,
    rate: u64,
    cost: Cost,
}

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let (seconds, sizes) = if effort.quick { (1, &[64u32][..]) } else { (3, &[64, 1518][..]) };
    let rates = if effort.quick { vec![2_800_000] } else { RATES.to_vec() };
    output.say(&format!(
        "## Capture to disk\n\nHighest rate of which {seconds} s are written whole, rates upwards until one is not; buffers of \
         {BUFFER_MIB} MiB; files under /var/tmp. Rates are those the sender reached. Processor time per frame at {} \
         frames/s in bursts, the least of {ROUNDS} rounds: of the process alone, and with the kernel's part on the sender's side, less that of the \
         same sending into a program that drops.\n",
        cost::RATE
    ))?;
    let mut table =
        Table::new(&["size", "tool", "zero-loss frames/s", "process ns per frame", "with the kernel's part"]);
    for size in sizes {
        let found = compare(*size, &rates, seconds)?;
        for Found { tool, rate, cost } in &found {
            let [process, machine] = [cost.process, cost.whole].map(|cost| format!("{cost:.0}"));
            table.rows.push(vec![format!("{size} B"), (*tool).into(), rate.to_string(), process, machine]);
        }
        if *size == 64 {
            judge(output, &found);
        }
    }
    output.table("capture", &table)
}

fn compare(size: u32, rates: &[u64], seconds: u64) -> anyhow::Result<Vec<Found>> {
    let mut found: Vec<Found> = Vec::new();
    for tool in TOOLS {
        if let Some(rate) = limit(tool, size, rates, seconds)? {
            found.push(Found { tool, rate, cost: Cost { process: f64::MAX, whole: f64::MAX } });
        }
    }
    let mut sending = f64::MAX;
    for _ in 0..ROUNDS {
        let (_drops, lab) = dropping_lab()?;
        let (sent, time) = cost::send(&lab, size, seconds)?;
        sending = sending.min(time / sent as f64);
        for Found { tool, cost, .. } in &mut found {
            let next = costs(tool, size, seconds)?;
            cost.process = cost.process.min(next.process);
            cost.whole = cost.whole.min(next.whole);
        }
    }
    for found in &mut found {
        found.cost.whole -= sending;
    }
    Ok(found)
}

/// What a tool and the sending to it take per frame.
fn costs(tool: &str, size: u32, seconds: u64) -> anyhow::Result<Cost> {
    let (lab, files) = (lab()?, tempfile::tempdir_in("/var/tmp")?);
    let mut child = start(tool, &lab, &files.path().join("frames.pcap"))?.context("was there before")?;
    let before = cpu(&child)?;
    let (sent, sending) = cost::send(&lab, size, seconds)?;
    clock::sleep_until_ns(clock::monotonic_ns() + SETTLE_NS);
    let process = cpu(&child)? - before;
    stop(&mut child)?;
    let written = frames_in(&files.path().join("frames.pcap"))?;
    anyhow::ensure!(written == sent, "{tool} lost frames at {} frames/s: {written} of {sent}", cost::RATE);
    let frames = sent as f64;
    Ok(Cost { process: process / frames, whole: (process + sending) / frames })
}

fn judge(output: &mut Output, found: &[Found]) {
    let peers = || found.iter().filter(|found| !found.tool.starts_with("packetrig"));
    let best = peers().map(|found| found.rate).max().unwrap_or(0);
    let least = |cost: fn(&Found) -> f64| peers().map(cost).fold(f64::MAX, f64::min).max(1e-9);
    let Some(ours) = found.iter().find(|found| found.tool == "packetrig xdp") else { return };
    let ratio = ours.rate as f64 / best.max(1) as f64;
    output.goal("capture_64", &format!("{ratio:.2}x of the best peer"), ">= 1.3x", &(ratio >= 1.3).into());
    let share = ours.cost.whole / least(|found| found.cost.whole);
    let process = ours.cost.process / least(|found| found.cost.process);
    output.goal(
        "capture_cpu",
        &format!("{share:.2}x of the cheapest peer's time per frame with the kernel's part (process alone: {process:.2}x)"),
        "<= 0.5x",
        &(share <= 0.5).into(),
    );
}

/// The highest rate without loss; `None` if the tool is not installed.
fn limit(tool: &str, size: u32, rates: &[u64], seconds: u64) -> anyhow::Result<Option<u64>> {
    let mut best = 0;
    for rate in rates {
        let Some(caught) = attempt(tool, size, *rate, seconds)? else { return Ok(None) };
        if caught.written < caught.sent {
            break;
        }
        best = best.max(caught.sent / seconds);
    }
    Ok(Some(best))
}

/// Two ports; the second takes live frames: a virtual cable's end does when it merges frames, or has a program.
fn lab() -> anyhow::Result<Lab> {
    let lab = Lab::cabled_pair()?;
    EthtoolCalls::open_in(lab.ports()[1].netns())?.set_offload(INTERFACE, Offload::Gro, true)?;
    Ok(lab)
}

/// Starts a tool and gives it time to get ready; `None` if it is not installed.
fn start(tool: &str, lab: &Lab, file: &Path) -> anyhow::Result<Option<Child>> {
    let command = &mut command(tool, file);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match lab.ports()[1].netns().run_in_namespace(|| command.spawn())? {
        Ok(child) => {
            clock::sleep_until_ns(clock::monotonic_ns() + SETTLE_NS);
            Ok(Some(child))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn attempt(tool: &str, size: u32, rate: u64, seconds: u64) -> anyhow::Result<Option<Caught>> {
    let (lab, files) = (lab()?, tempfile::tempdir_in("/var/tmp")?);
    let file = files.path().join("frames.pcap");
    let Some(mut child) = start(tool, &lab, &file)? else { return Ok(None) };
    let sent = send(&lab, size, rate, seconds)?;
    clock::sleep_until_ns(clock::monotonic_ns() + SETTLE_NS);
    stop(&mut child)?;
    Ok(Some(Caught { written: frames_in(&file)?, sent }))
}

fn command(tool: &str, file: &Path) -> Command {
    let buffer = BUFFER_MIB.to_string();
    let kib = (BUFFER_MIB * 1024).to_string();
    let mut command = Command::new(if tool.starts_with("packetrig") { binary() } else { Path::new(tool) });
    match tool {
        "packetrig xdp" => command.args(["capture", INTERFACE, "--back-end", "xdp", "-q", "-w"]),
        "packetrig packet" => command.args(["capture", INTERFACE, "-q", "-w"]),
        "tcpdump" => command.args(["-i", INTERFACE, "-n", "-B", &kib, "-Z", "root", "-w"]),
        "dumpcap" => command.args(["-i", INTERFACE, "-q", "-P", "-B", &buffer, "-w"]),
        _ => command.args(["--in", INTERFACE, "--silent", "--ring-size", &format!("{buffer}MiB"), "--out"]),
    };
    command.arg(file);
    command
}

/// Sends for some seconds; returns what arrived at the other interface.
fn send(lab: &Lab, size: u32, rate: u64, seconds: u64) -> anyhow::Result<u64> {
    let flow = Flow::new("frames", 1)
        .size(size)
        .pps(rate)
        .between(0, &[])
        .with("duration", json!({"choice": "fixed_seconds", "fixed_seconds": {"seconds": seconds}}));
    let speed = json!([{"name": "layer 1", "port_names": ["port 0"], "speed": "speed_400_gbps"}]);
    let mut links = NamespaceLinks::open_in(lab.ports()[1].netns())?;
    let index = lab.ports()[1].link.index;
    let before = links.read_counters(index)?.rx_frames;
    let document = Document::new(&[lab.location(0)]).flow(flow).with("layer1", speed);
    Running::run(&document, &["--quiet", "--back-end", "xdp"]).finish();
    Ok(links.read_counters(index)?.rx_frames - before)
}

/// Processor time of a process so far, in ns. The kernel's work in interrupts is not in it.
fn cpu(child: &Child) -> anyhow::Result<f64> {
    let mut total = 0.0;
    for task in std::fs::read_dir(format!("/proc/{}/task", child.id()))? {
        total += cost::time_of(&task?.path())?;
    }
    Ok(total)
}

fn stop(child: &mut Child) -> anyhow::Result<()> {
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id())?).context("a child has a number")?;
    rustix::process::kill_process(pid, rustix::process::Signal::INT)?;
    child.wait()?;
    Ok(())
}

/// Frames in a capture file, by the program of another project.
fn frames_in(file: &Path) -> anyhow::Result<u64> {
    let output =
        Command::new("capinfos").args(["-c", "-M", "-T", "-r"]).arg(file).output().context("capinfos")?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.split_whitespace().next_back().and_then(|count| count.parse().ok()).context("capinfos")
}
