//! What the reference tester R3 measured, measured the same way: how rates of several senders add up (E3.1), the highest
//! rate that loses nothing (E3.2), asked against real rates (E3.3), and the rate of short series (E3.4).

use packetrig_eval::Effort;
use packetrig_eval::output::{Output, Table};
use packetrig_eval::plot::{self, Titles};
use packetrig_testkit::Lab;
use packetrig_tests::document::{Document, Flow};
use packetrig_tests::program::{Report, Running};
use serde_json::{Value, json};

/// The thesis' sizes and rates.
const SIZES: [u32; 3] = [64, 512, 1500];
const RATES: [u64; 3] = [30_000, 60_000, 110_000];
const SENDERS: usize = 3;
/// A sum of rates this near to all of them is called all of them.
const WHOLE: f64 = 0.999;

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    adding_up(effort, output)?;
    zero_loss(effort, output)?;
    asked_and_real(effort, output)?;
    short_series(output)
}

fn fast_link(lab: &Lab) -> Value {
    let names: Vec<String> = (0..lab.ports().len()).map(|n| format!("port {n}")).collect();
    json!([{"name": "layer 1", "port_names": names, "speed": "speed_400_gbps"}])
}

fn seconds(seconds: u64) -> Value {
    json!({"choice": "fixed_seconds", "fixed_seconds": {"seconds": seconds}})
}

fn run(lab: &Lab, flows: Vec<Flow>, back_end: &str) -> Report {
    let locations: Vec<String> = (0..lab.ports().len()).map(|n| lab.location(n)).collect();
    let document = Document::new(&locations).flows(flows).with("layer1", fast_link(lab));
    Running::run(&document, &["--quiet", "--back-end", back_end]).finish().report()
}

/// E3.1: k in `total = k * sum of the senders' rates`, three senders to three receivers through a kernel bridge.
fn adding_up(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let time = if effort.quick { 1 } else { 10 };
    output.say(&format!(
        "## E3.1: do rates add up?\n\nThree senders to three receivers through a kernel bridge, {time} s each; k is what \
         arrived of the sum asked for. (The thesis: 1, except 0.54, 0.87 and 0.30.)\n"
    ))?;
    let mut table = Table::new(&["size", "30 000 frames/s each", "60 000", "110 000"]);
    let mut worst = f64::MAX;
    for size in SIZES {
        let mut row = vec![format!("{size} B")];
        for rate in RATES {
            let lab = Lab::with_bridge(2 * SENDERS)?;
            let flow = |n: usize| {
                Flow::new(format!("{n}"), u16::try_from(n).unwrap_or(0) + 1)
                    .size(size)
                    .pps(rate)
                    .between(n, &[n + SENDERS])
                    .with("duration", seconds(time))
            };
            // Frames to addresses a bridge has not learnt are flooded: warm it with what the receivers send.
            let back = |n: usize| flow(n + SENDERS).pps(10).packets(2).between(n + SENDERS, &[n]);
            let flows: Vec<Flow> = (0..SENDERS).map(flow).chain((0..SENDERS).map(back)).collect();
            let report = run(&lab, addressed(flows), "packet");
            let arrived: u64 =
                (0..SENDERS).map(|n| report.number(&n.to_string(), "/received/sequence/unique")).sum();
            let k = arrived as f64 / (rate * time * SENDERS as u64) as f64;
            worst = worst.min(k);
            row.push(format!("{k:.4}"));
        }
        table.rows.push(row);
    }
    output.table("adding_up", &table)?;
    output.goal("adding_up", &format!("k {worst:.4} at worst"), ">= 0.999", &(worst >= WHOLE).into());
    Ok(())
}

/// Sends each flow to the address its receiver sends from, so that a bridge can learn where it is.
fn addressed(flows: Vec<Flow>) -> Vec<Flow> {
    use packetrig_tests::document::{ethernet, ipv4, udp};
    let count = flows.len();
    let key = |n: usize| u16::try_from(n).unwrap_or(0) + 1;
    let flows = flows.into_iter().enumerate();
    flows
        .map(|(n, flow)| {
            let mut header = ethernet(key(n));
            header["ethernet"]["dst"] = ethernet(key((n + count / 2) % count))["ethernet"]["src"].clone();
            flow.packet([header, ipv4(), udp()])
        })
        .collect()
}

/// E3.2: the share of runs with any loss, against the rate.
fn zero_loss(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    output.say("## E3.2: the highest rate that loses nothing\n\nThe rig's own limit on a cable, each rate tried again and again; what a trial loses or cannot send counts against its rate.\n")?;
    let store = tempfile::tempdir()?;
    let trials = store.path().join("trials.csv").display().to_string();
    let store = store.path().display().to_string();
    let (time, repeats, sizes) = if effort.quick { ("100ms", "2", "64") } else { ("500ms", "10", "64,1500") };
    let arguments = ["test", "calibrate", "--size", sizes, "--time", time, "--repeats", repeats];
    let more = ["--store", &store, "--trials", &trials];
    let finished = Running::start(&[&arguments[..], &more].concat(), "").finish();
    anyhow::ensure!(finished.code == Some(0), "calibrate: {}", finished.stderr);
    output.say(&format!("```\n{}```\n", finished.stdout))?;
    output.save("zero_loss.csv", &std::fs::read_to_string(trials)?)
}

/// E3.3: the rate asked for against the real one.
fn asked_and_real(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let time = if effort.quick { 1 } else { 3 };
    output.say("## E3.3: asked and real rates\n\n64 B, by the receiver's stamps.\n")?;
    let mut table = Table::new(&["asked, frames/s", "packet", "xdp"]);
    let mut points = Vec::new();
    for asked in [1_000u64, 10_000, 50_000, 100_000, 200_000, 400_000, 1_000_000] {
        let mut row = vec![asked.to_string()];
        for back_end in ["packet", "xdp"] {
            let lab = Lab::cabled_pair()?;
            let flow = Flow::new("paced", 1).size(64).pps(asked).with("duration", seconds(time));
            let report = run(&lab, vec![flow], back_end);
            let span = report.number("paced", "/received/last") - report.number("paced", "/received/first");
            let frames = report.number("paced", "/received/sequence/unique").saturating_sub(1);
            let real = frames as f64 * 1e9 / span.max(1) as f64;
            row.push(format!("{real:.1}"));
            if back_end == "xdp" {
                points.push((asked as f64, real));
            }
        }
        table.rows.push(row);
    }
    output.table("asked_and_real", &table)?;
    let worst = points.iter().map(|(asked, real)| (real / asked - 1.0).abs() * 1e6).fold(0.0, f64::max);
    output.goal(
        "asked_and_real",
        &format!("xdp off by {worst:.0} ppm at worst"),
        "<= 1000 ppm up to 1 000 000 frames/s",
        &(worst <= 1000.0).into(),
    );
    let titles = Titles {
        plot: "Asked and real rate, back end xdp",
        x: "frames per second asked for",
        y: "frames per second",
    };
    output.plot("asked_and_real", titles.plot, &plot::points(titles, &points))
}

/// E3.4: the rate of one node by size and number of frames.
fn short_series(output: &mut Output) -> anyhow::Result<()> {
    output.say(
        "## E3.4: short series at top speed\n\nFrames per second from the first arrival to the last.\n",
    )?;
    let mut table = Table::new(&["size", "back end", "1000 frames", "10 000", "100 000"]);
    for size in [64, 1500] {
        for back_end in ["packet", "xdp"] {
            let mut row = vec![format!("{size} B"), back_end.to_owned()];
            for frames in [1_000, 10_000, 100_000] {
                let lab = Lab::cabled_pair()?;
                let report = run(
                    &lab,
                    vec![Flow::new("short", 1).size(size).pps(20_000_000).packets(frames)],
                    back_end,
                );
                let span =
                    report.number("short", "/received/last") - report.number("short", "/received/first");
                let arrived = report.number("short", "/received/sequence/unique");
                row.push(format!("{:.0}", arrived as f64 * 1e9 / span.max(1) as f64));
            }
            table.rows.push(row);
        }
    }
    output.table("short_series", &table)
}
