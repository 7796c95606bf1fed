//! RFC 2544 in the lab against known truths: the reference device with a rate and a queue, and a kernel bridge with a token
//! bucket filter whose rate the kernel's own counters tell.

use anyhow::{Context, bail, ensure};
use packetrig_eval::output::{Goal, Output, Table};
use packetrig_eval::{Effort, median};
use packetrig_testkit::Lab;
use packetrig_testkit::device::{FaultPlan, QueueLimit, RateQueue};
use packetrig_tests::program::binary;
use packetrig_units::BitRate;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Frames per second that the devices forward; twice as many are the highest load.
const LIMIT: u32 = 20_000;
const SIZE: u64 = 512;
/// Frames that the queue of the reference device holds.
const QUEUE: u64 = 200;
/// The queue of the token bucket filter in bytes, as the kernel counts them: without FCS.
const TBF_LIMIT: u64 = QUEUE * (SIZE - 4);

/// What is true of a device.
struct DeviceTruth {
    name: &'static str,
    frames_per_second: f64,
    /// The longest burst at the highest load; `None` if it is not known.
    burst: Option<f64>,
}

pub(super) fn evaluate(effort: Effort, _seed: u64, output: &mut Output) -> anyhow::Result<()> {
    output.say(
        "## In the lab\n\nOne frame size (512 B), highest load 40 000 frames/s, back end chosen by packetrig. The truth of the \
         bridge is what the kernel counts at the receiver's interface while more is sent than the filter forwards.\n",
    )?;
    let mut table = Table::new(&["device", "what", "truth", "measured", "error"]);
    let reference = Lab::with_device(2, limited())?;
    let truth = DeviceTruth {
        name: "reference device",
        frames_per_second: f64::from(LIMIT),
        burst: Some(QUEUE as f64 * 2.0),
    };
    let result = benchmark(effort, &reference)?;
    judge(&truth, &result, effort, &mut table, output)?;
    drop(reference);
    let bridge = Lab::with_bridge(2)?;
    limit_bridge(&bridge)?;
    let rate = forwarded_rate(&bridge)?;
    let truth = DeviceTruth { name: "kernel bridge with tbf", frames_per_second: rate, burst: None };
    let result = benchmark(effort, &bridge)?;
    judge(&truth, &result, effort, &mut table, output)?;
    output.table("lab", &table)?;
    overhead(&bridge, output)
}

fn limited() -> FaultPlan {
    let rate = BitRate::new(u64::from(LIMIT) * SIZE * 8);
    FaultPlan {
        queue: Some(RateQueue { rate, room: QueueLimit::Frames(QUEUE) }),
        ..FaultPlan::without_faults()
    }
}

/// Makes the bridge forward at most so much to the receiver.
fn limit_bridge(lab: &Lab) -> anyhow::Result<()> {
    let location = lab.device_location(1);
    let (space, interface) = location.split_once('/').context("a location")?;
    // The kernel counts frames without FCS. A burst of one frame, so that the queue is all that holds a burst.
    let rate = u64::from(LIMIT) * (SIZE - 4) * 8;
    let words = format!(
        "-n {space} qdisc replace dev {interface} root tbf rate {rate}bit burst 2k limit {TBF_LIMIT}"
    );
    let status = Command::new("tc").args(words.split_whitespace()).status().context("tc")?;
    ensure!(status.success(), "tc {words}: {status}");
    Ok(())
}

/// Frames per second that arrive while too many are sent, by the kernel's counter of the receiver's interface.
fn forwarded_rate(lab: &Lab) -> anyhow::Result<f64> {
    let [tx, rx] = [lab.location(0), lab.location(1)];
    let mut sender = Command::new(binary())
        .args([
            "run", "--tx", &tx, "--rx", &rx, "--size", "512", "--rate", "40kpps", "--time", "4s", "--quiet",
            "--store",
        ])
        .arg(std::env::temp_dir().join("packetrig-eval-methods"))
        .stdout(std::process::Stdio::null())
        .spawn()?;
    packetrig_eval::process::pause(1500);
    let first = received(&rx)?;
    packetrig_eval::process::pause(2000);
    let second = received(&rx)?;
    packetrig_eval::process::wait(&mut sender, 30)?;
    Ok((second.frames - first.frames) as f64 * 1e9 / (second.at_ns - first.at_ns) as f64)
}

struct Received {
    frames: u64,
    at_ns: u64,
}

fn received(location: &str) -> anyhow::Result<Received> {
    let (space, interface) = location.split_once('/').context("a location")?;
    let path = format!("/sys/class/net/{interface}/statistics/rx_packets");
    let output = Command::new("ip").args(["netns", "exec", space, "cat", &path]).output()?;
    let at_ns = packetrig_sys::clock::monotonic_ns();
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(Received { frames: text.trim().parse().with_context(|| format!("{path}: {text:?}"))?, at_ns })
}

/// RFC 2544 as a user calls it; its `result.json`.
fn benchmark(effort: Effort, lab: &Lab) -> anyhow::Result<Value> {
    let (time, searches) = if effort.quick { ("2s", "1") } else { ("10s", "5") };
    let more = [
        "--quick",
        "--only",
        "throughput,latency,frame-loss,back-to-back",
        "--size",
        "512",
        "--link",
        "1Gbit/s",
        "--max-rate",
        "40kpps",
        "--trial-time",
        time,
        "--resolution",
        "0.2%",
        "--burst-searches",
        searches,
    ];
    test(lab, "rfc2544", &more)
}

pub(super) fn test(lab: &Lab, method: &str, more: &[&str]) -> anyhow::Result<Value> {
    let out = std::env::temp_dir().join("packetrig-eval-methods");
    let [tx, rx] = [lab.location(0), lab.location(1)];
    let output = Command::new(binary())
        .args(["test", method, "--tx", &tx, "--rx", &rx, "--json"])
        .args(more)
        .arg("--store")
        .arg(&out)
        .output()?;
    if output.stdout.is_empty() {
        bail!("test {method}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn judge(
    truth: &DeviceTruth,
    result: &Value,
    effort: Effort,
    table: &mut Table,
    output: &mut Output,
) -> anyhow::Result<()> {
    let size = &result["result"]["sizes"][0];
    let name = truth.name;
    let throughput = size["throughput"]["frames_per_second"].as_f64().context("no throughput")?;
    // What fits into the queue is carried besides, once in a trial.
    let seconds = if effort.quick { 2.0 } else { 10.0 };
    let carried = truth.frames_per_second + QUEUE as f64 / seconds;
    let error = (throughput - carried) / carried;
    row(table, name, "throughput, frames/s", carried, throughput);
    output.goal(
        &format!("throughput of the {name}"),
        &format!("{:.2} % from the truth", error * 100.0),
        "within 1 %",
        &Goal::from(error.abs() <= 0.01),
    );
    if let (Some(burst), Some(measured)) =
        (truth.burst, size["back_to_back"]["burst_frames"]["mean"].as_f64())
    {
        row(table, name, "longest burst, frames", burst, measured);
        let met = Goal::from((measured - burst).abs() <= 2.0);
        output.goal(
            &format!("burst of the {name}"),
            &format!("{:.1} frames from the truth", measured - burst),
            "within 2",
            &met,
        );
    }
    let worst = loss_error(size, truth.frames_per_second, seconds)?;
    row(table, name, "frame loss, worst point, percentage points", 0.0, worst);
    output.goal(
        &format!("loss curve of the {name}"),
        &format!("{worst:.3} points from the truth"),
        "within 0.1",
        &Goal::from(worst <= 0.1),
    );
    Ok(())
}

pub(super) fn row(table: &mut Table, device: &str, what: &str, truth: f64, measured: f64) {
    let cells = [
        device.to_owned(),
        what.to_owned(),
        format!("{truth:.1}"),
        format!("{measured:.3}"),
        format!("{:.3}", measured - truth),
    ];
    table.rows.push(cells.to_vec());
}

/// The greatest difference of a point of the loss curve from what the device must lose, in percentage points.
fn loss_error(size: &Value, limit: f64, seconds: f64) -> anyhow::Result<f64> {
    let points = size["frame_loss"]["points"].as_array().context("no loss curve")?;
    let mut worst: f64 = 0.0;
    for point in points {
        let load = point["frames_per_second"].as_f64().context("load")?;
        let measured = point["most_loss_percent"].as_f64().context("loss")?;
        let sent = load * seconds;
        let carried = (limit * seconds + QUEUE as f64).min(sent);
        worst = worst.max(((sent - carried) / sent * 100.0 - measured).abs());
    }
    Ok(worst)
}

/// What a trial takes beyond its own times, from the journal of a test with many short trials.
fn overhead(lab: &Lab, output: &mut Output) -> anyhow::Result<()> {
    let more = ["--size", "512", "--rates", "5kpps,10kpps", "--packets", "1000", "--repetitions", "15"];
    let result = test(lab, "loss-share", &more)?;
    let id = result["id"].as_str().context("an id")?;
    let journal = std::env::temp_dir().join("packetrig-eval-methods/methods").join(id).join("journal.jsonl");
    let times = overheads(&journal)?;
    let middle = median(&times).context("no trials")?;
    let most = times.iter().copied().fold(0.0, f64::max);
    output.goal(
        "overhead per trial",
        &format!("{middle:.0} ms in the middle, {most:.0} ms at most, of {} trials", times.len()),
        "under 50 ms on one machine",
        &Goal::from(middle < 50.0),
    );
    Ok(())
}

pub(super) fn overheads(journal: &Path) -> anyhow::Result<Vec<f64>> {
    let text = std::fs::read_to_string(journal).with_context(|| journal.display().to_string())?;
    let mut times = Vec::new();
    for line in text.lines().skip(1) {
        let entry: Value = serde_json::from_str(line)?;
        times.push(entry["result"]["overhead"].as_f64().context("overhead")? / 1e6);
    }
    Ok(times)
}
