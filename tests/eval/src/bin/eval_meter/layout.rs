//! R2's layout of threads: N that read packets and keep tables, one that exports. With N of 1 and 2, on processors of two speeds; and
//! sixteen interfaces at once.

use crate::metered::{self, Load, Metered};
use crate::sampler::{self, Threads};
use crate::slow::SlowProcessor;
use anyhow::Context;
use packetrig_eval::output::{Goal, Output, Table};
use packetrig_eval::{Effort, process};
use packetrig_sys::clock;
use packetrig_testkit::Lab;
use packetrig_tests::document::Flow;
use packetrig_tests::program::Running;
use packetrig_tests::station;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

/// What a worker has of a processor: so little that what the sender makes is too much for it.
const SPEEDS: [f64; 2] = [0.02, 0.01];
const WORKERS: [usize; 2] = [1, 2];
const FLAGS: [&[&str]; 2] = [
    &["--workers", "1", "--ring", "16MiB", "--metrics", "127.0.0.1:0"],
    &["--workers", "2", "--ring", "16MiB", "--metrics", "127.0.0.1:0"],
];
/// Until rings are full and workers work all the time that they have.
const WARM_NS: u64 = 1_000_000_000;
/// Two workers should carry twice as much as one, and a worker twice as much at twice the speed: no less and no more than this. The kernel
/// gives quotas out in steps of its own tick, so they are true in the long run only.
const DOUBLE: [f64; 2] = [1.5, 2.67];
const INTERFACES: usize = 16;

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    threads(effort, output)?;
    interfaces(effort, output)
}

/// One layout at one speed.
struct Laid {
    workers: usize,
    speed: f64,
    run: Metered,
    rate: f64,
    worker_ns: f64,
    exporter_ns: f64,
    threads: usize,
}

fn threads(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let wanted = "1.5 to 2.67 times as much with two workers, and at twice the speed; 0 unaccounted";
    if let Some(why) = SlowProcessor::obstacle() {
        output.goal("layout", "nothing", wanted, &Goal::Unsupported(why));
        return Ok(());
    }
    let seconds = if effort.quick { 4 } else { 5 };
    let runs = if effort.quick { 1 } else { 3 };
    output.say(&format!(
        "## Threads (R2)\n\nR2 had N threads that read, N with flow caches and one that exports; here a worker reads and keeps a table, so N + 1. \
         2^11 flows of 64 B for {seconds} s as fast as the sender goes, the middle one of {runs} runs, records over UDP. Each worker has a processor of its own that is slow (a quota \
         of {:.0} % and {:.0} %), so that it is the worker and not the sender that says how much is carried.\n",
        SPEEDS[0] * 100.0,
        SPEEDS[1] * 100.0
    ))?;
    let mut table = Table::new(&[
        "workers",
        "speed",
        "arrived/s",
        "metered/s",
        "lost, in the ledger",
        "unaccounted",
        "worker, ns/packet",
        "exporter, ns/packet",
        "threads",
    ]);
    let mut all = Vec::new();
    for (workers, flags) in WORKERS.into_iter().zip(FLAGS) {
        for speed in SPEEDS {
            let laid = middle_between(runs, || lay(workers, flags, speed, seconds))?;
            table.rows.push(vec![
                laid.workers.to_string(),
                format!("{:.0} %", laid.speed * 100.0),
                format!("{:.0}", laid.run.rate()),
                format!("{:.0}", laid.rate),
                format!("{:.1} %", laid.run.share(laid.run.known_losses()) * 100.0),
                laid.run.unaccounted().to_string(),
                format!("{:.0}", laid.worker_ns),
                format!("{:.1}", laid.exporter_ns),
                laid.threads.to_string(),
            ]);
            all.push(laid);
        }
    }
    output.table("layout", &table)?;
    judge(output, &all, wanted);
    Ok(())
}

/// The run with the middle rate.
fn middle_between(runs: usize, lay: impl Fn() -> anyhow::Result<Laid>) -> anyhow::Result<Laid> {
    let mut laid: Vec<Laid> = (0..runs).map(|_| lay()).collect::<Result<_, _>>()?;
    laid.sort_by(|one, other| one.rate.total_cmp(&other.rate));
    Ok(laid.swap_remove(runs / 2))
}

fn judge(output: &mut Output, all: &[Laid], wanted: &str) {
    let rate = |workers, speed| {
        let found = all.iter().find(|laid| laid.workers == workers && laid.speed.total_cmp(&speed).is_eq());
        found.map_or(f64::NAN, |laid| laid.rate)
    };
    let by_workers = SPEEDS.map(|speed| rate(2, speed) / rate(1, speed));
    let by_speed = WORKERS.map(|workers| rate(workers, SPEEDS[0]) / rate(workers, SPEEDS[1]));
    let is_double = |ratio: &f64| (DOUBLE[0]..=DOUBLE[1]).contains(ratio);
    let unaccounted: u64 = all.iter().map(|laid| laid.run.unaccounted().unsigned_abs()).sum();
    let measured = format!(
        "two workers carry {:.2} and {:.2} times what one does at the two speeds; at twice the speed one carries {:.2}, two {:.2} times as much; \
         {unaccounted} unaccounted",
        by_workers[0], by_workers[1], by_speed[0], by_speed[1]
    );
    let is_met = by_workers.iter().chain(&by_speed).all(is_double) && unaccounted == 0;
    output.goal("layout", &measured, wanted, &is_met.into());
}

fn lay(workers: usize, flags: &'static [&'static str], speed: f64, seconds: u64) -> anyhow::Result<Laid> {
    let held = RefCell::new(Vec::new());
    let load = Load { flags, is_exported: true, ..Load::of("packet", 1 << 16, flow(seconds)) };
    let mut counting = None;
    let run = metered::meter_with(load, |meter| {
        for thread in worker_threads(meter.process())? {
            held.borrow_mut().push(SlowProcessor::hold(thread, speed)?);
        }
        let said = meter.remarks();
        let address =
            said.split("http://").nth(1).and_then(|rest| rest.split('/').next()).context(said.clone())?;
        let address = address.to_owned();
        counting = Some(std::thread::spawn(move || count(&address)));
        Ok(())
    })?;
    let counts = counting.context("a count")?.join().map_err(|_| anyhow::anyhow!("the counter panicked"))?;
    let took = |is_wanted: fn(&str) -> bool| -> f64 {
        let share = |sample: &sampler::Sample| -> f64 {
            sample.threads.iter().filter(|(name, _)| is_wanted(name)).map(|(_, share)| share).sum()
        };
        run.samples.iter().map(share).sum::<f64>() / run.samples.len().max(1) as f64
    };
    let rate = steady_rate(&counts, run.seconds).context("too few counts")?;
    let threads = run.samples.first().map_or(0, |sample| sample.threads.len());
    let (worker_ns, exporter_ns) =
        (took(sampler::is_worker) * 1e9 / rate, took(sampler::is_exporter) * 1e9 / rate);
    Ok(Laid { workers, speed, run, rate, worker_ns, exporter_ns, threads })
}

/// Packets metered so far, every tenth of a second until the meter has gone, with the time.
fn count(address: &str) -> Vec<(u64, u64)> {
    let mut counts = Vec::new();
    while let Some(metered) = scrape(address) {
        counts.push((clock::monotonic_ns(), metered));
        process::pause(100);
    }
    counts
}

fn scrape(address: &str) -> Option<u64> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("packetrig_meter_metered_packets_total "))?;
    line.trim().parse().ok()
}

/// Packets per second while more came than was metered: what is taken from rings after the sender's end counts for nothing.
fn steady_rate(counts: &[(u64, u64)], seconds: f64) -> Option<f64> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some seconds")]
    let lasts_ns = (seconds * 1e9) as u64;
    let (began_ns, _) = counts.iter().find(|(_, metered)| *metered > 0)?;
    let first = counts.iter().find(|(at_ns, _)| *at_ns >= began_ns + WARM_NS)?;
    let last = counts.iter().rev().find(|(at_ns, _)| *at_ns <= began_ns + lasts_ns)?;
    let passed_ns = last.0.checked_sub(first.0).filter(|passed| *passed > 0)?;
    Some((last.1 - first.1) as f64 * 1e9 / passed_ns as f64)
}

fn worker_threads(pid: u32) -> anyhow::Result<Vec<u32>> {
    let mut threads = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?;
        let name = std::fs::read_to_string(task.path().join("comm"))?;
        if sampler::is_worker(name.trim()) {
            threads.push(task.file_name().to_str().context("a task")?.parse()?);
        }
    }
    Ok(threads)
}

fn flow(seconds: u64) -> Flow {
    metered::many_hosts(2048)
        .pps(20_000_000)
        .with("duration", json!({"choice": "fixed_seconds", "fixed_seconds": {"seconds": seconds}}))
}

/// What a meter of some interfaces did.
struct Wide {
    arrived: u64,
    metered: u64,
    recorded_by_interface: Vec<u64>,
    ns_per_packet: f64,
}

fn interfaces(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let packets = if effort.quick { 320_000 } else { 1_600_000 };
    output.say(&format!(
        "## Sixteen interfaces\n\nThe same {packets} frames of 64 B, all to one interface, and shared by {INTERFACES}, each with a worker and a ring. Processor time of \
         the meter's workers per packet.\n"
    ))?;
    let mut table = Table::new(&[
        "interfaces",
        "sent",
        "arrived",
        "metered",
        "least and most of an interface",
        "ns/packet",
    ]);
    let mut wides = Vec::new();
    for count in [1, INTERFACES] {
        let wide = meter_wide(count, packets)?;
        let (least, most) =
            (wide.recorded_by_interface.iter().min(), wide.recorded_by_interface.iter().max());
        table.rows.push(vec![
            count.to_string(),
            packets.to_string(),
            wide.arrived.to_string(),
            wide.metered.to_string(),
            format!("{}, {}", least.unwrap_or(&0), most.unwrap_or(&0)),
            format!("{:.0}", wide.ns_per_packet),
        ]);
        wides.push(wide);
    }
    output.table("interfaces", &table)?;
    let [one, many] = wides.as_slice() else { anyhow::bail!("two runs") };
    let each = (packets / INTERFACES) as u64;
    let is_exact = many.metered == packets as u64
        && many.recorded_by_interface.len() == INTERFACES
        && many.recorded_by_interface.iter().all(|count| *count == each);
    let ratio = many.ns_per_packet / one.ns_per_packet;
    let measured =
        format!("every interface exact: {is_exact}; a packet costs {ratio:.2}x that of one interface");
    output.goal("interfaces", &measured, "exact; <= 2x", &(is_exact && ratio <= 2.0).into());
    Ok(())
}

/// The device's side of a lab whose ports nothing connects is one namespace with all interfaces.
fn meter_wide(count: usize, packets: usize) -> anyhow::Result<Wide> {
    let lab = Lab::with_unconnected_ports(count)?;
    let locations: Vec<String> = (0..count).map(|port| lab.device_location(port)).collect();
    let mut arguments = vec!["meter"];
    arguments.extend(locations.iter().map(String::as_str));
    arguments.extend([
        "--json",
        "--direction",
        "in",
        "--ring",
        "32MiB",
        "--flows",
        "65536",
        "--directory",
        "flows",
    ]);
    let mut meter = Running::start(&arguments, "");
    meter.await_remark("listening");
    let before = worker_ns(meter.process())?;
    let frames: Vec<Vec<u8>> = (0..64).map(|flow| packetrig_eval::traffic::frame(flow, 60)).collect();
    // A part at a time: what comes in between is taken from the rings meanwhile.
    let part = packets / count / 10;
    for _ in 0..10 {
        for port in lab.ports() {
            station::send(port, frames.iter().cycle().take(part));
        }
    }
    process::pause(300);
    let spent_ns = worker_ns(meter.process())? - before;
    meter.signal(Signal::INT);
    let finished = meter.finish();
    let said = || format!("the meter said: {}{}", finished.stdout, finished.stderr);
    let report: Value = serde_json::from_str(&finished.stdout).with_context(said)?;
    let number = |path: &str| report.pointer(path).and_then(Value::as_u64).with_context(said);
    let metered = number("/ledger/packets/metered")?;
    let flows = finished.directory.path().join("flows");
    Ok(Wide {
        arrived: number("/ledger/capture/arrived")?,
        metered,
        recorded_by_interface: by_interface(&flows)?,
        ns_per_packet: spent_ns as f64 / metered.max(1) as f64,
    })
}

fn worker_ns(pid: u32) -> anyhow::Result<u64> {
    let threads = Threads::of(pid)?;
    Ok(threads.times.iter().filter(|(name, _)| sampler::is_worker(name)).map(|(_, time)| time).sum())
}

/// Packets in the stored records of each interface.
fn by_interface(directory: &std::path::Path) -> anyhow::Result<Vec<u64>> {
    let directory = directory.display().to_string();
    let asked = ["flows", "top", "--by", "in-if", "-n", "64", "--json", &directory];
    let finished = Running::start(&asked, "").finish();
    let lines = finished.stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let counts: Option<Vec<u64>> = lines.map(|line| line["packets"].as_u64()).collect();
    counts.with_context(|| format!("flows top said: {}{}", finished.stdout, finished.stderr))
}
