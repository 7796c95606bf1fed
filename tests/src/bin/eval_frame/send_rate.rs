//! Frames per second beside trafgen and tcpreplay, at the smallest and the largest ordinary size.
//!
//! All send from the same interface of the same lab to a peer where nobody listens, in turn, several times; the kernel's
//! count at the peer says how many frames came, not what a tool claims. Medians are compared. Ours sends with tag,
//! checksums and schedule on.

use crate::Effort;
use crate::output::{Goal, Output, Table};
use crate::plot::{self, Titles};
use anyhow::Context;
use packetrig_sys::clock;
use packetrig_sys::link::Links;
use packetrig_testkit::Lab;
use packetrig_testkit::lab::INTERFACE;
use packetrig_tests::document::{Document, Flow};
use packetrig_tests::program::{Running, binary};
use serde_json::json;
use std::process::{Child, Command, Stdio};

const SIZES: [u32; 2] = [64, 1518];
const TOOLS: [&str; 3] = ["packetrig", "trafgen", "tcpreplay"];
/// A tool that sends nothing within this time does not work here.
const PATIENCE_NS: u64 = 15_000_000_000;
const WARM_UP_NS: u64 = 300_000_000;

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let (rounds, window) = if effort.quick { (3, 700_000_000) } else { (7, 2_000_000_000) };
    output.say(&format!(
        "## Send rate\n\nFrames per second by the peer interface's counter over {} ms, median of {rounds} rounds, the tools in turn.\n",
        window / 1_000_000
    ))?;
    let mut table = Table::new(&[
        "size",
        "packetrig",
        "trafgen",
        "tcpreplay",
        "ratio to the best peer",
        "min..max of ours",
    ]);
    let mut groups = Vec::new();
    for size in SIZES {
        let mut rates: [Vec<f64>; 3] = Default::default();
        for _ in 0..rounds {
            for (tool, rates) in TOOLS.iter().zip(&mut rates) {
                rates.extend(measure(tool, size, window)?);
            }
        }
        let medians = rates.each_ref().map(|rates| median(rates));
        judge(output, size, medians);
        let (low, high) =
            rates[0].iter().fold((f64::MAX, 0.0f64), |(low, high), r| (low.min(*r), high.max(*r)));
        let [ours, trafgen, tcpreplay] = medians.map(Option::unwrap_or_default);
        table.rows.push(vec![
            size.to_string(),
            format!("{ours:.0}"),
            format!("{trafgen:.0}"),
            format!("{tcpreplay:.0}"),
            format!("{:.2}", ours / trafgen.max(tcpreplay).max(1.0)),
            format!("{low:.0}..{high:.0}"),
        ]);
        groups.push((format!("{size} B"), vec![ours, trafgen, tcpreplay]));
    }
    output.table("send_rate", &table)?;
    let titles =
        Titles { plot: "Send rate on a virtual cable", x: "frame size with FCS", y: "frames per second" };
    output.plot("send_rate", titles.plot, &plot::bars(titles, &TOOLS, &groups))
}

fn judge(output: &mut Output, size: u32, [ours, trafgen, tcpreplay]: [Option<f64>; 3]) {
    let what = format!("send_rate_{size}");
    let best = [trafgen, tcpreplay].into_iter().flatten().reduce(f64::max);
    let (Some(ours), Some(best)) = (ours, best) else {
        let goal =
            Goal::Unsupported("neither trafgen nor tcpreplay is installed: scripts/setup.sh eval".to_owned());
        return output.goal(&what, "nothing", ">= 1.0x", &goal);
    };
    let ratio = ours / best;
    output.goal(&what, &format!("{ratio:.2}x of the best peer"), ">= 1.0x", &(ratio >= 1.0).into());
}

fn median(rates: &[f64]) -> Option<f64> {
    let mut sorted = rates.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

/// Frames per second of one tool; `None` if it is not installed.
fn measure(tool: &str, size: u32, window: u64) -> anyhow::Result<Option<f64>> {
    let lab = Lab::pair()?;
    let files = tempfile::tempdir()?;
    let mut sender = match tool {
        "packetrig" => Sender::Ours(ours(&lab, size)),
        "trafgen" => {
            let config = files.path().join("frames.cfg");
            std::fs::write(&config, trafgen_config(size))?;
            let arguments = ["--cpus", "1", "--out", INTERFACE, "--conf"];
            match peer(&lab, Command::new("trafgen").args(arguments).arg(&config))? {
                Some(child) => Sender::Peer(child),
                None => return Ok(None),
            }
        }
        _ => {
            let capture = files.path().join("frames.pcap");
            std::fs::write(&capture, pcap(size))?;
            let arguments = ["--intf1", INTERFACE, "--preload-pcap", "--topspeed", "--loop=0", "--quiet"];
            match peer(&lab, Command::new("tcpreplay").args(arguments).arg(&capture))? {
                Some(child) => Sender::Peer(child),
                None => return Ok(None),
            }
        }
    };
    let rate = count(&lab, window);
    sender.stop()?;
    rate.with_context(|| tool.to_owned()).map(Some)
}

enum Sender {
    Ours(Running),
    Peer(Child),
}

impl Sender {
    fn stop(&mut self) -> anyhow::Result<()> {
        match self {
            Self::Ours(running) => running.signal(rustix::process::Signal::INT),
            Self::Peer(child) => {
                child.kill()?;
                child.wait()?;
            }
        }
        Ok(())
    }
}

fn ours(lab: &Lab, size: u32) -> Running {
    binary();
    // More than any of them reaches: as fast as it goes.
    let flow = Flow::new("fast", 1)
        .size(size)
        .pps(8_000_000)
        .between(0, &[])
        .with("duration", json!({"choice": "continuous"}));
    let speed = json!([{"name": "layer 1", "port_names": ["port 0"], "speed": "speed_400_gbps"}]);
    Running::run(&Document::new(&[lab.location(0)]).flow(flow).with("layer1", speed), &["--quiet"])
}

/// Starts a peer in the sender's namespace; `None` if it is not installed.
fn peer(lab: &Lab, command: &mut Command) -> anyhow::Result<Option<Child>> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match lab.ports()[0].netns().run_in(|| command.spawn())? {
        Ok(child) => Ok(Some(child)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Frames per second that arrive at the second port, once they do.
fn count(lab: &Lab, window: u64) -> anyhow::Result<f64> {
    let port = &lab.ports()[1];
    let mut links = Links::open(port.netns())?;
    let deadline = clock::monotonic_ns() + PATIENCE_NS;
    while links.counters(port.link.index)?.rx_frames < 1000 {
        anyhow::ensure!(clock::monotonic_ns() < deadline, "sends nothing");
        clock::sleep_until_ns(clock::monotonic_ns() + 10_000_000);
    }
    clock::sleep_until_ns(clock::monotonic_ns() + WARM_UP_NS);
    let (before, start) = (links.counters(port.link.index)?.rx_frames, clock::monotonic_ns());
    clock::sleep_until_ns(start + window);
    let (after, end) = (links.counters(port.link.index)?.rx_frames, clock::monotonic_ns());
    Ok((after - before) as f64 * 1e9 / (end - start) as f64)
}

/// The frame that all peers send: an IPv4 and UDP header and zeros, without FCS.
fn frame(size: u32) -> Vec<u8> {
    let length = size as usize - 4;
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    let total = u16::try_from(length - 14).unwrap_or(u16::MAX).to_be_bytes();
    frame.extend([0x45, 0, total[0], total[1], 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 0, 1, 198, 19, 0, 1]);
    frame.resize(length, 0);
    frame
}

fn trafgen_config(size: u32) -> String {
    let bytes: Vec<String> = frame(size).iter().map(|byte| format!("0x{byte:02x}")).collect();
    format!("{{ {} }}\n", bytes.join(", "))
}

/// A capture file of 1000 such frames, for tcpreplay to keep in memory.
fn pcap(size: u32) -> Vec<u8> {
    let frame = frame(size);
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 1] {
        file.extend(word.to_le_bytes());
    }
    for n in 0..1000u32 {
        for word in [1, n, size - 4, size - 4] {
            file.extend(word.to_le_bytes());
        }
        file.extend(&frame);
    }
    file
}
