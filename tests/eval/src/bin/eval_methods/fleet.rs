//! What a trial takes beyond its own times on a fleet of three: two nodes that send and one that receives, each an agent in a
//! namespace of its own, around a kernel bridge.

use crate::lab::overheads;
use anyhow::{Context, bail, ensure};
use packetrig_eval::fleet::{fleet_up, packetrig, wait_for_join_line};
use packetrig_eval::output::{Goal, Output, Table};
use packetrig_eval::process::{end, pause};
use packetrig_eval::{Effort, median};
use packetrig_sys::link::NamespaceLinks;
use packetrig_testkit::Lab;
use packetrig_testkit::lab::INTERFACE;
use packetrig_tests::program::binary;
use serde_json::Value;
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

const NODES: [&str; 3] = ["n1", "n2", "n3"];
const WANTED_MS: f64 = 150.0;

pub(super) fn evaluate(effort: Effort, _seed: u64, output: &mut Output) -> anyhow::Result<()> {
    let repetitions = if effort.quick { 15 } else { 50 };
    output.say(&format!(
        "## On a fleet of three\n\nTwo nodes send to a third one, 1000 frames each per trial, {} trials of `test loss-share`. A trial \
         begins before its nodes are led and ends when its report is stored. Its own times are those of sending and of waiting for \
         late frames.\n",
        repetitions * 2
    ))?;
    if let Err(missing) = packetrig_nats::broker::find_program(None) {
        output.goal(
            "overhead per trial on a fleet",
            "nothing",
            "a measurement",
            &Goal::Unsupported(missing.to_string()),
        );
        return Ok(());
    }
    let fleet = ThreeNodes::start()?;
    let result = fleet.loss_share(repetitions)?;
    let id = result["id"].as_str().context("an id")?;
    let store = fleet.directory.path().join("ctl/packetrig");
    let whole = overheads(&store.join("methods").join(id).join("journal.jsonl"))?;
    show_parts(&parts_of_runs(&store)?, &whole, output)?;
    let middle = median(&whole).context("no trials")?;
    let most = whole.iter().copied().fold(0.0, f64::max);
    output.goal(
        "overhead per trial on a fleet",
        &format!("{middle:.0} ms in the middle, {most:.0} ms at most, of {} trials", whole.len()),
        &format!("under {WANTED_MS:.0} ms on a fleet of three"),
        &Goal::from(middle < WANTED_MS),
    );
    Ok(())
}

/// What one run took beyond its own times; milliseconds.
struct RunParts {
    prepare_and_arm: f64,
    armed_to_start: f64,
    last_frame_to_drain: f64,
    collect: f64,
}

/// Of every run in the store.
fn parts_of_runs(store: &Path) -> anyhow::Result<Vec<RunParts>> {
    let mut parts = Vec::new();
    for run in std::fs::read_dir(store.join("runs"))? {
        let text = std::fs::read(run?.path().join("report.json"))?;
        parts.push(parts_of_run(&serde_json::from_slice(&text)?)?);
    }
    Ok(parts)
}

fn parts_of_run(report: &Value) -> anyhow::Result<RunParts> {
    let times = report["times"]["states"].as_array().context("no times in the report")?;
    let entered = |state: &str| {
        let last = times.iter().rev().find(|time| time["state"] == state);
        let at = last.and_then(|time| time["at"].as_f64());
        at.map(|at| at / 1e6).with_context(|| format!("never {state}: {}", report["outcome"]))
    };
    let start = report["times"]["start"].as_f64().context("no start")? / 1e6;
    let sending = report["sending"].as_f64().context("no sending time")? / 1e6;
    Ok(RunParts {
        prepare_and_arm: entered("armed")?,
        armed_to_start: start - entered("armed")?,
        last_frame_to_drain: entered("draining")? - start - sending,
        collect: entered("complete")? - entered("collecting")?,
    })
}

fn show_parts(runs: &[RunParts], whole: &[f64], output: &mut Output) -> anyhow::Result<()> {
    let column = |of: fn(&RunParts) -> f64| runs.iter().map(of).collect::<Vec<f64>>();
    let named = [
        ("prepare and arm", column(|run| run.prepare_and_arm)),
        ("armed to start", column(|run| run.armed_to_start)),
        ("last frame to the wait for late frames", column(|run| run.last_frame_to_drain)),
        ("collect", column(|run| run.collect)),
        ("all, with what is before and after the run", whole.to_vec()),
    ];
    let mut table = Table::new(&["part", "median, ms", "most, ms"]);
    for (name, times) in named {
        let most = times.iter().copied().fold(0.0, f64::max);
        let middle = median(&times).context("no runs")?;
        table.rows.push(vec![name.to_owned(), format!("{middle:.1}"), format!("{most:.1}")]);
    }
    output.table("fleet", &table)
}

/// A fleet of three agents. Whatever it started ends with it.
struct ThreeNodes {
    up: Child,
    agents: Vec<Child>,
    directory: TempDir,
    lab: Lab,
}

impl ThreeNodes {
    fn start() -> anyhow::Result<Self> {
        let lab = Lab::with_bridge(NODES.len())?;
        connect_to_controller(&lab)?;
        teach_bridge(&lab)?;
        let directory = tempfile::tempdir()?;
        let up = fleet_up(directory.path(), &["--address", "10.9.0.1", "--uses", "10"])?;
        let mut fleet = Self { up, agents: Vec::new(), directory, lab };
        let line = wait_for_join_line(fleet.directory.path(), &mut fleet.up)?;
        for (node, port) in NODES.into_iter().zip(fleet.lab.ports()) {
            let agent = start_agent(fleet.directory.path(), node, port.namespace(), &line)?;
            fleet.agents.push(agent);
        }
        fleet.wait_for_nodes()?;
        Ok(fleet)
    }

    fn wait_for_nodes(&self) -> anyhow::Result<()> {
        let mut said = String::new();
        for _ in 0..60 {
            let output = packetrig(self.directory.path()).args(["fleet", "status", "--json"]).output()?;
            said = String::from_utf8_lossy(&output.stdout).into_owned();
            let rows: Value = serde_json::from_str(&said).unwrap_or_default();
            let has_ports =
                |row: &Value| row["hello"]["ports"].as_array().is_some_and(|ports| !ports.is_empty());
            if rows
                .as_array()
                .is_some_and(|rows| rows.iter().filter(|row| has_ports(row)).count() == NODES.len())
            {
                return Ok(());
            }
            pause(200);
        }
        bail!("not all nodes joined: {said}")
    }

    /// Many short trials as a user orders them; `result.json`.
    fn loss_share(&self, repetitions: u32) -> anyhow::Result<Value> {
        let output = packetrig(self.directory.path())
            .args(["test", "loss-share", "--tx", "n1/eth0,n2/eth0", "--rx", "n3/eth0", "--size", "512"])
            .args(["--rates", "5kpps,10kpps", "--packets", "1000", "--json", "--quiet"])
            .args(["--repetitions", &repetitions.to_string()])
            .output()?;
        let complaints = String::from_utf8_lossy(&output.stderr);
        serde_json::from_slice(&output.stdout).with_context(|| format!("test loss-share: {complaints}"))
    }
}

impl Drop for ThreeNodes {
    fn drop(&mut self) {
        for agent in &mut self.agents {
            end(agent);
        }
        end(&mut self.up);
    }
}

fn start_agent(directory: &Path, node: &str, namespace: &str, line: &str) -> anyhow::Result<Child> {
    let owner = directory.join(format!("{node}.toml"));
    std::fs::write(&owner, format!("[[port]]\ninterface = \"{INTERFACE}\"\n"))?;
    let line_file = directory.join(format!("{node}.line"));
    std::fs::write(&line_file, line)?;
    let log = File::create(directory.join(format!("{node}.log")))?;
    let mut agent = Command::new("ip");
    agent.args(["netns", "exec", namespace]).arg(binary()).args(["agent", "--join"]).arg(&line_file);
    agent.args(["--name", node, "--owner"]).arg(&owner).env("XDG_DATA_HOME", directory.join(node));
    agent.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn().context("an agent")
}

/// The control network: a bridge beside the controller, with a cable to each node.
fn connect_to_controller(lab: &Lab) -> anyhow::Result<()> {
    ip("link set lo up")?;
    ip("link add ctl type bridge")?;
    ip("addr add 10.9.0.1/24 dev ctl")?;
    ip("link set ctl up")?;
    for (number, port) in lab.ports().iter().enumerate() {
        let node = port.namespace();
        ip(&format!("link add c{number} type veth peer name ctl0 netns {node}"))?;
        ip(&format!("link set c{number} master ctl up"))?;
        ip(&format!("-n {node} addr add 10.9.0.{}/24 dev ctl0", 11 + number))?;
        ip(&format!("-n {node} link set ctl0 up"))?;
        ip(&format!("-n {node} link set lo up"))?;
    }
    Ok(())
}

/// The bridge knows where each port is, so that no node hears frames for another one.
fn teach_bridge(lab: &Lab) -> anyhow::Result<()> {
    for (number, port) in lab.ports().iter().enumerate() {
        let link = NamespaceLinks::open_in(port.netns())?.find_link_by_name(INTERFACE)?;
        let address = link.mac.context("a hardware address")?.map(|byte| format!("{byte:02x}")).join(":");
        let location = lab.device_location(number);
        let (space, interface) = location.split_once('/').context("a location")?;
        let words = format!("-n {space} fdb replace {address} dev {interface} master static");
        let status = Command::new("bridge").args(words.split(' ')).status().context("bridge")?;
        ensure!(status.success(), "bridge {words}: {status}");
    }
    Ok(())
}

fn ip(words: &str) -> anyhow::Result<()> {
    let output = Command::new("ip").args(words.split(' ')).output().context("ip")?;
    ensure!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
