//! How far apart six nodes begin, with its bound, and what a trial takes beside its traffic.

use crate::plans::{Load, from_each};
use crate::rig::{NODES, Rig};
use anyhow::{Context, ensure};
use packetrig_eval::output::{Goal, Output, Table};
use packetrig_eval::{Effort, median, plot};
use packetrig_sys::clock;
use serde_json::Value;

const LOAD: Load = Load { size: 128, pps: 100, frames: 50 };
/// Milliseconds, as asked for and as taken off.
const DRAIN: u64 = 200;
/// The issue names none; a sender here wakes within this.
const WANTED_SKEW_MS: f64 = 1.0;
const WANTED_TRIAL_MS: f64 = 100.0;

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let tries = if effort.quick { 3 } else { 10 };
    output.say(&format!(
        "## Start\n\nSix nodes, all sending {} frames at {}/s to the node they face, {tries} trials, once with the clock that \
         these nodes share, once with clocks compared in band as if they did not (the true offset is then 0). Skew is from the \
         earliest first frame to the latest, by the senders' stamps on the controller's clock.\n",
        LOAD.frames, LOAD.pps
    ))?;
    let shared = trials("shared", &[], tries)?;
    let compared = trials("compared in band", &["--compare-clocks"], tries)?;
    for of in [&shared, &compared] {
        for why in &of.failed {
            output.say(&format!("A trial with clocks {} did not begin: {}\n", of.name, why.trim()))?;
        }
    }
    skews(output, &shared, &compared)?;
    overhead(output, &shared.begun)
}

/// Of one trial; milliseconds, microseconds for clocks.
#[derive(Clone, Debug)]
struct Trial {
    skew_ms: Option<f64>,
    bound_ms: Option<f64>,
    /// Of each node's clock: |offset| and its bound, microseconds.
    offsets: Vec<(f64, f64)>,
    prepared: f64,
    before: f64,
    after: f64,
    whole: f64,
    complete: bool,
}

fn trials(name: &'static str, arguments: &[&str], tries: usize) -> anyhow::Result<Trials> {
    let mut rig = Rig::start(arguments)?;
    let all: Vec<usize> = (1..=NODES).collect();
    let plan = from_each(&all, LOAD);
    let drain = format!("{DRAIN}ms");
    let mut trials = Trials { name, begun: Vec::new(), failed: Vec::new() };
    while trials.begun.len() < tries && trials.failed.len() < tries {
        // One that did not begin says nothing of how it began; it is counted.
        let called = clock::monotonic_ns();
        let report = rig.run(&plan, &["--drain", &drain])?.report();
        let took = (clock::monotonic_ns() - called) as f64 / 1e6;
        let tried = report.and_then(|report| trial(&report, took));
        match tried {
            Ok(trial) => trials.begun.push(trial),
            Err(error) => trials.failed.push(format!("{error:#}")),
        }
    }
    ensure!(!trials.begun.is_empty(), "no trial began: {:?}", trials.failed);
    Ok(trials)
}

/// Trials with one kind of clocks.
struct Trials {
    name: &'static str,
    begun: Vec<Trial>,
    /// Why others did not begin, or came to no report.
    failed: Vec<String>,
}

fn ms(value: &Value) -> Option<f64> {
    Some(value.as_f64()? / 1e6)
}

/// `took`: the whole command, milliseconds.
fn trial(report: &Value, took: f64) -> anyhow::Result<Trial> {
    let times = report["times"]["states"].as_array().context("no times in the report")?;
    let entered = |state: &str| {
        let last = times.iter().rev().find(|time| time["state"] == state);
        last.and_then(|time| ms(&time["at"])).with_context(|| format!("never {state}: {}", report["outcome"]))
    };
    let begun = ms(&report["times"]["start"]).context("no start")?;
    let nodes = report["nodes"].as_array().context("no nodes")?;
    let starts = nodes.iter().filter_map(|node| ms(&node["start"]["skew_ns"]));
    let first = starts.fold(f64::MAX, f64::min);
    ensure!(first < f64::MAX, "no node began: {}", report["outcome"]);
    let streams = report["streams"].as_array().context("no streams")?;
    let last = streams.iter().filter_map(|row| ms(&row["received"]["last"])).fold(0.0, f64::max);
    let offset = |node: &Value| {
        let clock = &node["clock"];
        Some((clock["offset_ns"].as_f64()?.abs() / 1e3, clock["bound"].as_f64()? / 1e3))
    };
    let end = times.last().and_then(|time| ms(&time["at"])).context("no end")?;
    Ok(Trial {
        skew_ms: ms(&report["skew"]["spread"]),
        bound_ms: ms(&report["skew"]["bound"]),
        offsets: nodes.iter().filter_map(offset).collect(),
        prepared: entered("armed")?,
        before: begun + first - entered("armed")?,
        after: end - (begun + last) - DRAIN as f64,
        whole: took - (last - first) - DRAIN as f64,
        complete: report["outcome"]["state"] == "complete",
    })
}

fn column(trials: &[Trial], of: impl Fn(&Trial) -> Option<f64>) -> Vec<f64> {
    trials.iter().filter_map(of).collect()
}

fn worst(figures: &[f64]) -> f64 {
    figures.iter().copied().fold(0.0, f64::max)
}

fn skews(output: &mut Output, shared: &Trials, compared: &Trials) -> anyhow::Result<()> {
    let head = [
        "clocks",
        "skew, median ms",
        "worst ms",
        "bound, worst ms",
        "|offset|, worst us",
        "its bound, worst us",
    ];
    let mut table = Table::new(&head);
    for (goal, of) in [("start_skew_shared", shared), ("start_skew_compared", compared)] {
        let (name, trials) = (of.name, of.begun.as_slice());
        let skew = column(trials, |trial| trial.skew_ms);
        let bound = column(trials, |trial| trial.bound_ms);
        let offsets: Vec<(f64, f64)> = trials.iter().flat_map(|trial| trial.offsets.clone()).collect();
        let error = worst(&offsets.iter().map(|of| of.0).collect::<Vec<_>>());
        let error_bound = worst(&offsets.iter().map(|of| of.1).collect::<Vec<_>>());
        table.rows.push(vec![
            name.to_owned(),
            format!("{:.4}", median(&skew).unwrap_or_default()),
            format!("{:.4}", worst(&skew)),
            format!("{:.4}", worst(&bound)),
            format!("{error:.1}"),
            format!("{error_bound:.1}"),
        ]);
        let known = skew.len() == trials.len();
        output.goal(
            goal,
            &format!(
                "{:.4} ms +- {:.4} ms (worst of {}, {} did not begin)",
                worst(&skew),
                worst(&bound),
                trials.len(),
                of.failed.len()
            ),
            &format!("<= {WANTED_SKEW_MS} ms, of 6 nodes in every trial"),
            &(known && worst(&skew) <= WANTED_SKEW_MS).into(),
        );
        if name == "shared" {
            continue;
        }
        let inside = offsets.iter().filter(|(error, bound)| error <= bound).count();
        output.goal(
            "clock_bound",
            &format!(
                "{inside} of {} errors inside their bound (worst {error:.1} us, bound {error_bound:.1} us)",
                offsets.len()
            ),
            "all",
            &(!offsets.is_empty() && inside == offsets.len()).into(),
        );
    }
    output.table("skew", &table)
}

/// A part of a trial's time.
type Part = fn(&Trial) -> f64;

fn overhead(output: &mut Output, trials: &[Trial]) -> anyhow::Result<()> {
    let named: [(&str, Part); 4] = [
        ("begun to armed", |trial| trial.prepared),
        ("armed to first frame", |trial| trial.before),
        ("last frame to result", |trial| trial.after),
        ("whole command", |trial| trial.whole),
    ];
    output.say(&format!(
        "## What a trial takes beside its traffic\n\nMilliseconds, from `times` and the streams' first and last frames in the \
         reports of the trials with shared clocks; the drain asked for ({DRAIN} ms) is taken off. {} of {} trials complete. A run is armed \
         when its controller knows that every node is; it has its result when all results are stored and taken in. The whole command is \
         less traffic and drain, too.\n",
        trials.iter().filter(|trial| trial.complete).count(),
        trials.len()
    ))?;
    let mut table = Table::new(&["part", "median", "worst"]);
    let mut groups = Vec::new();
    for (name, of) in named {
        let figures = column(trials, |trial| Some(of(trial)));
        let middle = median(&figures).unwrap_or_default();
        table.rows.push(vec![name.to_owned(), format!("{middle:.1}"), format!("{:.1}", worst(&figures))]);
        groups.push((name.to_owned(), vec![middle, worst(&figures)]));
    }
    for (goal, (_, figures)) in ["trial_before", "trial_after"].into_iter().zip(&groups[1..]) {
        let met = figures[0] < WANTED_TRIAL_MS;
        output.goal(
            goal,
            &format!("{:.1} ms (worst {:.1} ms)", figures[0], figures[1]),
            &format!("< {WANTED_TRIAL_MS} ms"),
            &Goal::from(met),
        );
    }
    let titles = plot::Titles { plot: "What a trial takes beside its traffic", x: "", y: "ms" };
    output.plot("trial", titles.plot, &plot::bars(titles, &["median", "worst"], &groups))?;
    output.table("trial", &table)
}
