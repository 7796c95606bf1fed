//! What the kernel says of processes, and ends to them; the lines of runs.

use anyhow::{Context, bail};
use packetrig_report::outcome::RunState;
use packetrig_sys::clock;
use rustix::process::{Pid, Signal, kill_process};
use std::process::{Child, ExitStatus};

/// Ticks of `/proc/PID/stat` in a second, on every Linux that we know.
const TICKS: f64 = 100.0;

/// Processor time so far, user's and kernel's, seconds.
pub fn processor_time(pid: u32) -> anyhow::Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path).context(path)?;
    let rest = text.rsplit(')').next().context("stat")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok()).context("stat");
    Ok((ticks(11)? + ticks(12)?) / TICKS)
}

/// Time that children which have been waited for had a processor, in seconds; in steps of 10 ms.
pub fn children_seconds() -> anyhow::Result<f64> {
    let text = std::fs::read_to_string("/proc/self/stat")?;
    let rest = text.rsplit(')').next().context("stat")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok()).context("stat");
    Ok((ticks(13)? + ticks(14)?) / TICKS)
}

/// Resident memory, MiB.
pub fn resident_mib(pid: u32) -> anyhow::Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse::<f64>()? / 1024.0)
}

/// The child of `parent` whose name begins so; the kernel cuts names.
pub fn child_of(parent: u32, name: &str) -> Option<u32> {
    let processes = std::fs::read_dir("/proc").ok()?;
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let mut children = pids.filter(|pid| {
        let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
        let Some((head, rest)) = text.rsplit_once(')') else { return false };
        let of = rest.split_whitespace().nth(1).and_then(|text| text.parse::<u32>().ok());
        of == Some(parent) && head.split_once('(').is_some_and(|(_, called)| called.starts_with(name))
    });
    children.next()
}

/// Sends a signal to a process that was started here, or by one that was.
pub fn signal(pid: u32, signal: Signal) -> anyhow::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("no process")?;
    Ok(kill_process(pid, signal)?)
}

/// Waits until it has ended, at most so long.
pub fn wait(child: &mut Child, seconds: u64) -> anyhow::Result<ExitStatus> {
    let until = clock::monotonic_ns() + seconds * 1_000_000_000;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if clock::monotonic_ns() > until {
            bail!("a process did not end within {seconds} s");
        }
        pause(5);
    }
}

/// Asks it to end, then makes it.
pub fn end(child: &mut Child) {
    signal(child.id(), Signal::TERM).unwrap_or(());
    if wait(child, 10).is_err() {
        child.kill().unwrap_or(());
        drop(child.wait());
    }
}

/// Waits some milliseconds.
pub fn pause(ms: u64) {
    clock::sleep_until_ns(clock::monotonic_ns() + ms * 1_000_000);
}

/// The line that a run prints when it comes into a state, which is given by its name in reports.
pub fn line_of_state(state: &str) -> String {
    match serde_json::from_value::<RunState>(state.into()) {
        // One line for the states in which a run waits for its start.
        Ok(RunState::Armed | RunState::Committed) => line_of_state("confirmed"),
        Ok(known) => format!("run: {}", known.activity()),
        Err(_) => format!("run: {state}"),
    }
}
