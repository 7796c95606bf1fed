//! Capturing to disk: the highest rate without loss, and processor time per frame, beside tcpdump, dumpcap and netsniff-ng with
//! buffers of the same size.

use anyhow::Context;
use packetrig_sys::clock;
use packetrig_sys::ethtool::{Ethtool, Offload};
use packetrig_sys::link::Links;
use packetrig_testkit::Lab;
use packetrig_testkit::lab::INTERFACE;
use packetrig_tests::document::{Document, Flow};
use packetrig_tests::eval::Effort;
use packetrig_tests::eval::output::{Output, Table};
use packetrig_tests::program::{Running, binary};
use serde_json::json;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const TOOLS: [&str; 5] = ["packetrig xdp", "packetrig packet", "tcpdump", "dumpcap", "netsniff-ng"];
/// Frames per second asked for. What the sender reaches beside a receiver on the same processor may be less, and counts.
const RATES: [u64; 8] = [COSTS, 600_000, 800_000, 1_000_000, 1_300_000, 1_700_000, 2_200_000, 2_800_000];
/// The rate at which processor time is compared.
const COSTS: u64 = 400_000;
const BUFFER_MIB: u64 = 64;

/// What a tool did at a rate.
struct Caught {
    written: u64,
    sent: u64,
    cpu_ns: f64,
}

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let (seconds, sizes) = if effort.quick { (1, &[64u32][..]) } else { (3, &[64, 1518][..]) };
    let rates = if effort.quick { vec![COSTS, 2_800_000] } else { RATES.to_vec() };
    output.say(&format!(
        "## Capture to disk\n\nHighest rate of which {seconds} s are written whole, rates upwards until one is not; buffers of \
         {BUFFER_MIB} MiB; files under /var/tmp. Rates are those the sender reached. Processor time of the process per frame at {COSTS} frames/s.\n"
    ))?;
    let mut table = Table::new(&["size", "tool", "zero-loss frames/s", "processor ns per frame"]);
    for size in sizes {
        let mut found = Vec::new();
        for tool in TOOLS {
            let Some((rate, cost)) = limit(tool, *size, &rates, seconds)? else { continue };
            table.rows.push(vec![format!("{size} B"), tool.into(), rate.to_string(), format!("{cost:.0}")]);
            found.push((tool, rate, cost));
        }
        if *size == 64 {
            judge(output, &found);
        }
    }
    output.table("capture", &table)
}

fn judge(output: &mut Output, found: &[(&str, u64, f64)]) {
    let peers = || found.iter().filter(|(tool, ..)| !tool.starts_with("packetrig"));
    let best = peers().map(|(_, rate, _)| *rate).max().unwrap_or(0);
    let cheapest = peers().map(|(.., cost)| *cost).fold(f64::MAX, f64::min);
    let Some((_, rate, cost)) = found.iter().find(|(tool, ..)| *tool == "packetrig xdp") else { return };
    let ratio = *rate as f64 / best.max(1) as f64;
    output.goal("capture_64", &format!("{ratio:.2}x of the best peer"), ">= 1.3x", &(ratio >= 1.3).into());
    let share = cost / cheapest.max(1e-9);
    output.goal(
        "capture_cpu",
        &format!("{share:.2}x of the cheapest peer's time per frame"),
        "<= 0.5x",
        &(share <= 0.5).into(),
    );
}

/// The highest rate without loss, and the processor time per frame; `None` if the tool is not installed.
fn limit(tool: &str, size: u32, rates: &[u64], seconds: u64) -> anyhow::Result<Option<(u64, f64)>> {
    let (mut best, mut cost) = (0, 0.0);
    for rate in rates {
        let Some(caught) = attempt(tool, size, *rate, seconds)? else { return Ok(None) };
        if *rate == COSTS {
            cost = caught.cpu_ns / caught.written.max(1) as f64;
        }
        if caught.written < caught.sent {
            break;
        }
        best = best.max(caught.sent / seconds);
    }
    Ok(Some((best, cost)))
}

fn attempt(tool: &str, size: u32, rate: u64, seconds: u64) -> anyhow::Result<Option<Caught>> {
    let lab = Lab::pair()?;
    let port = &lab.ports()[1];
    // A virtual cable's end takes live frames when it merges frames, or has a program.
    Ethtool::open(port.netns())?.set_offload(INTERFACE, Offload::Gro, true)?;
    let files = tempfile::tempdir_in("/var/tmp")?;
    let file = files.path().join("frames.pcap");
    let command = &mut command(tool, &file);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = match port.netns().run_in(|| command.spawn())? {
        Ok(child) => child,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    clock::sleep_until_ns(clock::monotonic_ns() + 1_500_000_000);
    let sent = send(&lab, size, rate, seconds)?;
    clock::sleep_until_ns(clock::monotonic_ns() + 1_000_000_000);
    let cpu_ns = cpu(&child)?;
    stop(&mut child)?;
    Ok(Some(Caught { written: frames_in(&file)?, sent, cpu_ns }))
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
    let mut links = Links::open(lab.ports()[1].netns())?;
    let index = lab.ports()[1].link.index;
    let before = links.counters(index)?.rx_frames;
    let document = Document::new(&[lab.location(0)]).flow(flow).with("layer1", speed);
    Running::run(&document, &["--quiet", "--back-end", "xdp"]).finish();
    Ok(links.counters(index)?.rx_frames - before)
}

/// Processor time of a process so far, in ns; the kernel's work in interrupts is not in it, for no tool.
fn cpu(child: &Child) -> anyhow::Result<f64> {
    let mut total = 0.0;
    for task in std::fs::read_dir(format!("/proc/{}/task", child.id()))? {
        let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
        total += text.split_whitespace().next().context("schedstat")?.parse::<f64>()?;
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
