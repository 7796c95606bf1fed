//! Round-trip times as `ping` and three programs of others find them on the same way in the same minute.

use crate::way::Way;
use anyhow::{Context, ensure};
use packetrig_eval::output::{Goal, Output, Table};
use packetrig_eval::{Effort, median};
use packetrig_sys::clock;
use packetrig_tests::program::Running;
use rustix::process::Signal;
use std::process::{Child, Command, Stdio};

/// Each direction; two of them make the round trip.
const DELAY: &str = "delay=5ms";
const ROUND_TRIP_MS: f64 = 10.0;
/// Medians may be so far from each other.
const WITHIN: f64 = 0.05;

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let count = if effort.quick { 20 } else { 100 };
    output.say(&format!(
        "## Round trips\n\nThrough `packetrig tap --impair {DELAY}`, one program after the other, {count} probes each, 100 ms apart (scamper: 10); \
         milliseconds. The first probe of packetrig often finds the path asleep and is not in its times.\n"
    ))?;
    let way = Way::apart()?;
    let [a, b] = [0, 1].map(|side| way.lab.device_location(side));
    let mut tap = Running::start(&["tap", &a, &b, "--no-link-state", "--impair", DELAY, "--json"], "");
    tap.await_remark("forwarding");
    let server = Server::start(&way)?;
    let mut table = Table::new(&["program", "answers", "least", "median", "most"]);
    let mut ours = None;
    let mut medians = Vec::new();
    for program in ["packetrig", "fping", "irtt", "scamper"] {
        let Some(times) = ask(program, &way, count)? else {
            table.rows.push([program, "not installed", "", "", ""].map(str::to_owned).to_vec());
            continue;
        };
        let middle = median(&times).with_context(|| format!("{program} had no answers"))?;
        let least = times.iter().copied().fold(f64::MAX, f64::min);
        let most = times.iter().copied().fold(0.0, f64::max);
        let figures = [least, middle, most].map(|ms| format!("{ms:.3}"));
        table.rows.push([&[program.to_owned(), times.len().to_string()][..], &figures].concat());
        if program == "packetrig" { ours = Some(middle) } else { medians.push((program, middle)) }
    }
    drop(server);
    tap.signal(Signal::TERM);
    tap.finish();
    output.table("answers", &table)?;
    let ours = ours.context("our own figures")?;
    for (program, peer) in medians {
        output.goal(
            &format!("agreement_{program}"),
            &format!("median {ours:.3} ms, {program} {peer:.3} ms"),
            &format!("within {:.0} % of each other, and not below {ROUND_TRIP_MS} ms", WITHIN * 100.0),
            &Goal::from((ours / peer - 1.0).abs() <= WITHIN && ours >= ROUND_TRIP_MS),
        );
    }
    Ok(())
}

/// Round-trip times that a program says; `None` if it is not there.
fn ask(program: &str, way: &Way, count: u32) -> anyhow::Result<Option<Vec<f64>>> {
    let (far, number) = (way.far.to_string(), count.to_string());
    match program {
        "packetrig" => {
            let said = way.probe(&["ping", &far, "-c", &number, "-i", "100ms", "-q"])?;
            let rtt = said.pointer("/targets/0/rtt").context("no round trips")?;
            let ms = |name: &str| rtt[name].as_f64().map(|ns| ns / 1e6);
            let samples = usize::try_from(rtt["samples"].as_u64().unwrap_or(0))?;
            let all = ["min_ns", "p50_ns", "max_ns"].map(ms);
            let [Some(least), Some(middle), Some(most)] = all else {
                anyhow::bail!("no round trips: {said}")
            };
            // Its own median, with least and most around it.
            let mut times = vec![middle; samples.saturating_sub(2).max(1)];
            times.extend([least, most]);
            Ok(Some(times))
        }
        "fping" => {
            let text = run(way, &["fping", "-q", "-C", &number, "-p", "100", &far])?;
            Ok(text.map(|text| words_of(text.split(':').next_back().unwrap_or_default())))
        }
        "irtt" => {
            let length = format!("{}ms", count * 100);
            let words = ["irtt", "client", "-Q", "-i", "100ms", "-d", &length, "-o", "-", &far];
            let Some(text) = run(way, &words)? else { return Ok(None) };
            let start = text.find('{').with_context(|| format!("irtt: {text}"))?;
            let mut all = serde_json::Deserializer::from_str(&text[start..]).into_iter::<serde_json::Value>();
            let said = all.next().context("irtt says nothing")??;
            let trips = said["round_trips"].as_array().context("no round trips")?;
            Ok(Some(
                trips.iter().filter_map(|trip| trip["delay"]["rtt"].as_f64()).map(|ns| ns / 1e6).collect(),
            ))
        }
        _ => {
            let text = run(way, &["scamper", "-I", &format!("ping -c 10 {far}")])?;
            let time = |line: &str| line.split("time=").nth(1)?.split(' ').next()?.parse().ok();
            Ok(text.map(|text| text.lines().filter_map(time).collect()))
        }
    }
}

fn words_of(text: &str) -> Vec<f64> {
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// What a program at the first host says, on both outputs; `None` if it is not installed.
fn run(way: &Way, words: &[&str]) -> anyhow::Result<Option<String>> {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::null());
    match way.lab.ports()[0].netns().run_in_namespace(|| command.output())? {
        Ok(output) => {
            let said = [output.stdout, output.stderr].concat();
            ensure!(!said.is_empty(), "{words:?} says nothing");
            Ok(Some(String::from_utf8_lossy(&said).into_owned()))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// irtt at the second host.
struct Server(Option<Child>);

impl Server {
    fn start(way: &Way) -> anyhow::Result<Self> {
        let mut command = Command::new("irtt");
        command.args(["server", "-b", &format!("{}:2112", way.far)]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = way.lab.ports()[1].netns().run_in_namespace(|| command.spawn())?.ok();
        clock::sleep_until_ns(clock::monotonic_ns() + 500_000_000);
        Ok(Self(child))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            drop(child.kill());
            drop(child.wait());
        }
    }
}
