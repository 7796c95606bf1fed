//! Fleets that grow, with plans that grow with them: every second node sends a stream to the next one. What joining takes, what
//! the whole of `packetrig run` takes beside its traffic, and what the controller and the server cost.

use crate::frameless::{FRAMES, FRAMES_PER_SECOND, INTERFACE};
use crate::hosted;
use anyhow::{Context, ensure};
use packetrig_eval::fleet::{fleet_up, packetrig, wait_for_join_line};
use packetrig_eval::output::{Goal, Output, Table};
use packetrig_eval::process::{child_of, end, pause, processor_time, resident_mib};
use packetrig_eval::{Effort, plot};
use packetrig_sys::clock;
use packetrig_tests::document::{Document, Flow};
use serde_json::Value;
use std::fs::{File, read_to_string};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

/// Nodes that a fleet is wanted to carry.
const WANTED: usize = 5000;
const QUICK: [usize; 3] = [10, 100, 300];
const FULL: [usize; 9] = [10, 100, 300, 500, 1000, 2000, 3000, 5000, 10_000];
/// Fleets of one size that are tried, one after another, until one is complete: the machine that carries them all has other
/// work too. Each is a row.
const TRIALS: usize = 3;
/// Memory that a node takes here, at most; a fleet that does not fit is not tried.
const NODE_MIB: f64 = 2.0;
/// For the nodes to join and for a run to end, in seconds.
const PATIENCE: u64 = 600;

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let traffic = FRAMES / FRAMES_PER_SECOND;
    output.say(&format!(
        "## Fleets that grow\n\nN nodes, N/2 streams of {traffic} s, each from one node to the next; every node a shell of a real \
         agent with its own certificate, connection and spool, all in one process, over a data plane without frames. They \
         join through the door of `packetrig fleet up`; the run is `packetrig run`. Leases, seals and permissions are on. \
         *Armed* is from the beginning of the run until the controller knows that every node is armed; *result* from the \
         last frame until the controller has all results; *command* is the whole command less the traffic. A size is \
         tried up to {TRIALS} times, until a run is complete.\n"
    ))?;
    let sizes = match std::env::var("EVAL_NODES") {
        Ok(asked) => {
            asked.split(',').map(str::parse).collect::<Result<Vec<usize>, _>>().context("EVAL_NODES")?
        }
        Err(_) if effort.quick => QUICK.to_vec(),
        Err(_) => FULL.to_vec(),
    };
    let mut trials = Vec::new();
    let limit = sizes.into_iter().find_map(|nodes| grow(nodes, &mut trials).err());
    show(output, &trials, limit.map(|error| format!("{error:#}")).as_deref())
}

/// Tries fleets of one size until one is complete; an error if none is.
fn grow(nodes: usize, trials: &mut Vec<FleetTrial>) -> anyhow::Result<()> {
    let mut failure = format!("no run on {nodes} nodes was complete");
    for _ in 0..TRIALS {
        match fits(nodes).and_then(|()| FleetTrial::perform(nodes)) {
            Ok(trial) => {
                let is_complete = trial.is_complete();
                trials.push(trial);
                if is_complete {
                    return Ok(());
                }
            }
            Err(error) => failure = format!("{nodes} nodes: {error:#}"),
        }
    }
    anyhow::bail!(failure)
}

/// Whether there is memory for so many.
fn fits(nodes: usize) -> anyhow::Result<()> {
    let text = read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")).context("MemAvailable")?;
    let free = line.trim().trim_end_matches("kB").trim().parse::<f64>()? / 1024.0;
    let needed = nodes as f64 * NODE_MIB;
    ensure!(free > needed, "they need about {needed:.0} MiB, {free:.0} MiB are free");
    Ok(())
}

/// What was measured on one fleet.
#[derive(Debug, Default)]
struct FleetTrial {
    nodes: usize,
    plan_kib: f64,
    join_s: f64,
    armed_s: f64,
    result_s: f64,
    command_s: f64,
    /// Processor time in seconds and the most memory in MiB.
    controller: ProcessCost,
    server: ProcessCost,
    node_mib: f64,
    state: String,
    reported: u64,
    started: usize,
    reasons: String,
}

/// What a process took.
#[derive(Clone, Copy, Debug, Default)]
struct ProcessCost {
    seconds: f64,
    mib: f64,
}

impl FleetTrial {
    fn perform(nodes: usize) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        let begun = clock::monotonic_ns();
        let fleet = GrownFleet::start(directory.path(), nodes)?;
        let join_s = seconds_since(begun);
        let plan = plan(nodes);
        let file = directory.path().join("plan.json");
        std::fs::write(&file, &plan)?;
        let server_before = processor_time(fleet.server)?;
        let run = MeasuredRun::perform(directory.path(), &file)?;
        let server = ProcessCost {
            seconds: processor_time(fleet.server)? - server_before,
            mib: resident_mib(fleet.server)?,
        };
        let node_mib = fleet.memory_of_nodes()? / nodes as f64;
        let trial =
            Self { nodes, plan_kib: plan.len() as f64 / 1024.0, join_s, server, node_mib, ..run.trial()? };
        Ok(trial)
    }

    fn is_complete(&self) -> bool {
        self.state == "complete"
            && usize::try_from(self.reported).is_ok_and(|reported| reported == self.nodes)
    }

    fn cells(&self) -> Vec<String> {
        vec![
            self.nodes.to_string(),
            format!("{:.0}", self.plan_kib),
            format!("{:.1}", self.join_s),
            format!("{:.2}", self.armed_s),
            format!("{:.2}", self.result_s),
            format!("{:.2}", self.command_s),
            format!("{:.2}", self.controller.seconds),
            format!("{:.0}", self.controller.mib),
            format!("{:.2}", self.server.seconds),
            format!("{:.0}", self.server.mib),
            format!("{:.2}", self.node_mib),
            format!("{} {}/{}", self.state, self.reported, self.nodes),
        ]
    }
}

fn seconds_since(ns: u64) -> f64 {
    (clock::monotonic_ns() - ns) as f64 / 1e9
}

/// Every second node sends to the next.
pub(crate) fn plan(nodes: usize) -> String {
    let locations: Vec<String> =
        (0..nodes).map(|node| format!("{}/{INTERFACE}", hosted::name(node))).collect();
    let flow = |pair: usize| {
        Flow::new(format!("pair {pair}"), 1)
            .between(2 * pair, &[2 * pair + 1])
            .pps(FRAMES_PER_SECOND)
            .packets(FRAMES)
    };
    Document::new(&locations).flows((0..nodes / 2).map(flow)).text()
}

/// A server with its door, and nodes.
struct GrownFleet {
    up: Child,
    server: u32,
    nodes: Option<Child>,
    /// The nodes work until this is closed.
    wish_to_go_on: Option<ChildStdin>,
}

impl GrownFleet {
    fn start(directory: &Path, count: usize) -> anyhow::Result<Self> {
        let uses = count.to_string();
        let up = fleet_up(directory, &["--address", "127.0.0.1", "--valid", "3h", "--uses", &uses])?;
        let mut fleet = Self { up, server: 0, nodes: None, wish_to_go_on: None };
        let file = directory.join("line");
        std::fs::write(&file, wait_for_join_line(directory, &mut fleet.up)?)?;
        fleet.server = child_of(fleet.up.id(), "nats-server").context("no server")?;
        let nodes = Command::new(std::env::current_exe()?)
            .arg(hosted::WORD)
            .args([hosted::homes(directory), file])
            .arg(count.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let nodes = fleet.nodes.insert(nodes);
        fleet.wish_to_go_on = nodes.stdin.take();
        let mut ready = String::new();
        BufReader::new(nodes.stdout.take().context("its output")?).read_line(&mut ready)?;
        let said = || read_to_string(directory.join("up.log")).unwrap_or_default();
        ensure!(ready.trim() == "ready", "the nodes did not come: {}", said());
        Ok(fleet)
    }

    fn memory_of_nodes(&self) -> anyhow::Result<f64> {
        resident_mib(self.nodes.as_ref().context("no nodes")?.id())
    }
}

impl Drop for GrownFleet {
    fn drop(&mut self) {
        drop(self.wish_to_go_on.take());
        for child in self.nodes.iter_mut().chain([&mut self.up]) {
            end(child);
        }
    }
}

/// `packetrig run`, looked at while it runs.
struct MeasuredRun {
    report: Value,
    complaints: String,
    took_s: f64,
    cost: ProcessCost,
}

impl MeasuredRun {
    fn perform(directory: &Path, plan: &Path) -> anyhow::Result<Self> {
        let (out, err) = (directory.join("run.json"), directory.join("run.log"));
        let begun = clock::monotonic_ns();
        let mut child = packetrig(directory)
            .arg("run")
            .arg(plan)
            .arg("--json")
            .stdin(Stdio::null())
            .stdout(File::create(&out)?)
            .stderr(File::create(&err)?)
            .spawn()?;
        let mut cost = ProcessCost::default();
        while child.try_wait()?.is_none() {
            // One that has just ended says nothing any more.
            cost.seconds = processor_time(child.id()).unwrap_or(cost.seconds);
            cost.mib = cost.mib.max(resident_mib(child.id()).unwrap_or(0.0));
            if seconds_since(begun) > PATIENCE as f64 {
                end(&mut child);
            }
            pause(10);
        }
        let took_s = seconds_since(begun);
        let complaints = read_to_string(&err)?;
        let report = serde_json::from_str(&read_to_string(&out)?);
        let report =
            report.with_context(|| format!("no report after {took_s:.0} s: {}", last_lines(&complaints)))?;
        Ok(Self { report, complaints, took_s, cost })
    }

    fn trial(&self) -> anyhow::Result<FleetTrial> {
        let states = self.report["times"]["states"].as_array().context("no times")?;
        let entered = |wanted: &str| {
            let state = states.iter().rfind(|state| state["state"] == wanted)?;
            Some(state["at"].as_f64()? / 1e9)
        };
        let traffic = (FRAMES / FRAMES_PER_SECOND) as f64;
        let start = self.report["times"]["start"].as_f64().unwrap_or_default() / 1e9;
        let ended = states.last().and_then(|state| state["at"].as_f64()).unwrap_or_default() / 1e9;
        let drain =
            (entered("collecting").unwrap_or_default() - entered("draining").unwrap_or_default()).max(0.0);
        Ok(FleetTrial {
            armed_s: entered("armed").unwrap_or_default(),
            result_s: ended - start - traffic - drain,
            command_s: self.took_s - traffic - drain,
            controller: self.cost,
            state: self.report["outcome"]["state"].as_str().unwrap_or("?").to_owned(),
            reported: self.report["coverage"]["reported"].as_u64().unwrap_or_default(),
            started: states.iter().filter(|state| state["state"] == "preparing").count(),
            reasons: self.reasons(),
            ..FleetTrial::default()
        })
    }

    /// Why it was not complete, by its report; or the last that it said.
    fn reasons(&self) -> String {
        let listed = self.report["outcome"]["reasons"].as_array();
        let texts: Vec<&str> = listed.into_iter().flatten().filter_map(Value::as_str).collect();
        if texts.is_empty() {
            return last_lines(&self.complaints);
        }
        format!("{} reasons, of which {}", texts.len(), texts[..texts.len().min(8)].join("; "))
    }
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().rev().take(5).collect();
    lines
        .into_iter()
        .rev()
        .map(|line| line.chars().take(300).collect::<String>())
        .collect::<Vec<_>>()
        .join("; ")
}

fn show(output: &mut Output, trials: &[FleetTrial], limit: Option<&str>) -> anyhow::Result<()> {
    let head = [
        "nodes",
        "plan, KiB",
        "join, s",
        "armed, s",
        "result, s",
        "command, s",
        "controller, processor s",
        "controller, MiB",
        "server, processor s",
        "server, MiB",
        "MiB a node",
        "outcome",
    ];
    let mut table = Table::new(&head);
    table.rows.extend(trials.iter().map(FleetTrial::cells));
    output.table("growth", &table)?;
    for trial in trials.iter().filter(|trial| !trial.is_complete() || trial.started > 1) {
        output.say(&format!("{} nodes, {} attempts: {}\n", trial.nodes, trial.started, trial.reasons))?;
    }
    if let Some(limit) = limit {
        output.say(&format!("No larger fleet was tried: {limit}.\n"))?;
    }
    let points: Vec<(f64, f64)> = trials.iter().map(|trial| (trial.nodes as f64, trial.command_s)).collect();
    if points.len() > 1 {
        let titles = plot::Titles { plot: "A run beside its traffic", x: "nodes", y: "s" };
        output.plot("growth", titles.plot, &plot::points(titles, &points))?;
    }
    let largest =
        trials.iter().filter(|trial| trial.is_complete()).map(|trial| trial.nodes).max().unwrap_or(0);
    let most = trials.last().map_or(0, |trial| trial.nodes);
    let measured = format!("{largest} nodes whole, with {} streams; {most} tried last", largest / 2);
    output.goal("growth", &measured, &format!(">= {WANTED}"), &Goal::from(largest >= WANTED));
    Ok(())
}
