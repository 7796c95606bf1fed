//! A sender's control link is cut: when the last of its frames reaches the receiver, by the kernel's stamps there.

use crate::plans::{Load, from_each};
use crate::rig::{Rig, again, control_link, facing};
use anyhow::{Context, ensure};
use packetrig_eval::output::{Output, Table};
use packetrig_eval::process::{end, pause};
use packetrig_eval::{Effort, plot};
use packetrig_sys::clock;
use std::process::{Child, Command, Stdio};

const SENDER: usize = 1;
const LOAD: Load = Load { size: 128, pps: 1000, frames: 30_000 };
/// The term of a fleet's leases.
const LEASE_MS: f64 = 2000.0;
const SLACK_MS: f64 = 50.0;

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let tries = if effort.quick { 2 } else { 6 };
    output.say(&format!(
        "## Lease\n\nA sender of {} frames/s for {} s loses its control link (`ip link set … down` at its switch) at different \
         moments of its renewal, {tries} times. Milliseconds from just before the cut to its last frame, as the kernel stamped \
         it at the receiver (tcpdump), which has the same clock.\n",
        LOAD.pps,
        LOAD.frames / LOAD.pps
    ))?;
    let mut rig = Rig::start(&[])?;
    let mut table = Table::new(&["try", "last frame after the cut, ms", "frames", "outcome"]);
    let (mut figures, mut groups) = (Vec::new(), Vec::new());
    for number in 0..tries {
        let cut = again(|| cut(&mut rig, 1500 + 130 * number))?;
        let name = format!("{}", number + 1);
        table.rows.push(vec![
            name.clone(),
            format!("{:.1}", cut.last_ms),
            cut.frames.to_string(),
            cut.outcome,
        ]);
        groups.push((name, vec![cut.last_ms]));
        figures.push(cut.last_ms);
    }
    output.table("lease", &table)?;
    let titles = plot::Titles { plot: "Last frame after a cut of the control link", x: "try", y: "ms" };
    output.plot("lease", titles.plot, &plot::bars(titles, &["last frame"], &groups))?;
    let worst = figures.iter().copied().fold(0.0, f64::max);
    output.goal(
        "lease",
        &format!("{worst:.1} ms after the cut (worst of {tries})"),
        &format!("<= lease {LEASE_MS} ms + {SLACK_MS} ms"),
        &(!figures.is_empty() && worst <= LEASE_MS + SLACK_MS).into(),
    );
    Ok(())
}

struct Cut {
    last_ms: f64,
    frames: usize,
    outcome: String,
}

fn cut(rig: &mut Rig, after_ms: u64) -> anyhow::Result<Cut> {
    let file = rig.path("lease.txt");
    let mut tap = tap(&file)?;
    let mut run = rig.run(&from_each(&[SENDER], LOAD), &[])?;
    let running = run.wait_for("running")?;
    ensure!(running, "the run never ran: {}", run.complaints());
    pause(after_ms);
    let cut_at = clock::monotonic_ns();
    control_link(SENDER, "down")?;
    // More than lease, supervisor's grace and slack together.
    pause(4000);
    control_link(SENDER, "up")?;
    let offset = clock::measure_realtime_offset();
    end(&mut tap);
    let report = run.report()?;
    let text = std::fs::read_to_string(&file)?;
    let stamps: Vec<u64> = text.lines().filter_map(stamp).map(|at| offset.to_monotonic(at)).collect();
    let last = stamps.iter().max().context("no frame was seen")?;
    ensure!(*last > cut_at, "the sender had ended before the cut");
    Ok(Cut {
        last_ms: (last - cut_at) as f64 / 1e6,
        frames: stamps.len(),
        outcome: report["outcome"]["state"].as_str().unwrap_or("?").to_owned(),
    })
}

/// Prints a line for each frame that arrives where the sender's cable ends.
fn tap(file: &std::path::Path) -> anyhow::Result<Child> {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &format!("n{}", facing(SENDER)), "tcpdump"]);
    command.args([
        "-i",
        "eth1",
        "-n",
        "-tt",
        "-l",
        "--time-stamp-precision",
        "nano",
        "-Q",
        "in",
        "udp",
        "port",
        "20000",
    ]);
    let child =
        command.stdin(Stdio::null()).stdout(std::fs::File::create(file)?).stderr(Stdio::null()).spawn()?;
    pause(500);
    Ok(child)
}

/// `1763752034.123456789 IP …` as nanoseconds.
fn stamp(line: &str) -> Option<u64> {
    let (seconds, rest) = line.split_once('.')?;
    let nanos = rest.split(' ').next().filter(|digits| digits.len() == 9)?;
    Some(seconds.parse::<u64>().ok()? * 1_000_000_000 + nanos.parse::<u64>().ok()?)
}
