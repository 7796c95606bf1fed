//! A mesh of twenty nodes: one-way delay between all pairs in one command, with one direction that is known to be slow.
//!
//! ```text
//!  ctl: a bridge, the controller, 10.9.0.1          test: a bridge, 198.18.0.0/24
//!  m1 .. m20, each an agent in its namespace, with a cable to both; in the cable of m7 to the test network there is a tap
//! ```

use anyhow::{Context, bail, ensure};
use packetrig_eval::Effort;
use packetrig_eval::output::{Goal, Output, Table};
use packetrig_eval::process::{end, pause};
use packetrig_sys::clock;
use packetrig_sys::ethtool::{EthtoolCalls, Offload};
use packetrig_sys::netns::NetNs;
use packetrig_tests::program::binary;
use serde_json::Value;
use std::fs::{File, read_to_string};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

const NODES: usize = 20;
/// What goes to this node is late.
const SLOW: usize = 7;
const SLOW_MS: u64 = 20;
/// Runs of the mesh: on a machine that others load, too, a start can come too late for a node.
const TRIES: usize = 5;

const OWNER: &str = "[probe]\n[[probe.target]]\nnetwork = \"198.18.0.0/24\"\nprobes_per_s = 1000\n\
    bits_per_s = \"10Mbps\"\nloss_percent = 100\n[[port]]\ninterface = \"eth1\"\n";

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    output.say("## A mesh of twenty nodes\n")?;
    if let Err(missing) = packetrig_nats::broker::find_program(None) {
        for what in ["mesh", "mesh_direction"] {
            output.goal(what, "nothing", "all pairs", &Goal::Unsupported(missing.to_string()));
        }
        return Ok(());
    }
    let fleet = MeshFleet::start()?;
    let count = if effort.quick { 10 } else { 100 };
    let begun = clock::monotonic_ns();
    let report = fleet.mesh(count)?;
    let took = (clock::monotonic_ns() - begun) as f64 / 1e9;
    judge(&report, count, took, output)
}

/// What the report says, beside what the lab is known to do.
fn judge(report: &Value, count: u64, took: f64, output: &mut Output) -> anyhow::Result<()> {
    let lines = report["probes"]["lines"].as_array().context("no lines")?;
    let pairs = NODES * (NODES - 1);
    let mut rows =
        Table::new(&["pairs", "of", "median ms", "largest p99 ms", "largest bound ms", "lost there"]);
    let mut whole = 0;
    let mut right = 0;
    for (name, is_slow) in [("to the slow node", true), ("others", false)] {
        let of_kind = lines.iter().filter(|line| (line["to"] == format!("m{SLOW}")) == is_slow);
        let mut medians = Vec::new();
        let (mut p99, mut bound, mut lost, mut all) = (0.0_f64, 0.0_f64, 0, 0);
        for line in of_kind {
            all += 1;
            let found = &line["found"];
            let delay = &found["delay_there"];
            let Some((median, most)) = delay["p50_ns"].as_i64().zip(delay["bound_ns"].as_u64()) else {
                continue;
            };
            let is_whole =
                found["counts"]["answered"] == count && found["lost_there"] == 0 && found["lost_back"] == 0;
            whole += usize::from(is_whole);
            let least = i64::try_from(SLOW_MS * 1_000_000)?;
            right += usize::from((median.saturating_add_unsigned(most) >= least) == is_slow);
            medians.push(median as f64 / 1e6);
            p99 = p99
                .max(delay["p99_ns"].as_i64().or_else(|| delay["max_ns"].as_i64()).unwrap_or(0) as f64 / 1e6);
            bound = bound.max(most as f64 / 1e6);
            lost += found["lost_there"].as_u64().unwrap_or(0);
        }
        let median = packetrig_eval::median(&medians).unwrap_or(f64::NAN);
        rows.rows.push(vec![
            name.into(),
            format!("{} of {all}", medians.len()),
            format!("{median:.3}"),
            format!("{p99:.3}"),
            format!("{bound:.3}"),
            lost.to_string(),
        ]);
    }
    output.table("mesh", &rows)?;
    let spread = report["skew"]["spread"].as_u64().map_or(f64::NAN, |ns| ns as f64 / 1e6);
    output.say(&format!(
        "{NODES} nodes, {pairs} pairs, {count} probes each: the command took {took:.1} s. The first probes of all nodes left \
        {spread:.3} ms apart. Verdict: {}.\n",
        report["verdict"]["verdict"].as_str().unwrap_or("none")
    ))?;
    let goal = |found: usize| if found == pairs { Goal::Met } else { Goal::Missed };
    let measured = format!("{whole} of {pairs} pairs whole in one command");
    output.goal("mesh", &measured, &format!("{pairs} pairs"), &goal(whole));
    let measured = format!("{right} of {pairs} pairs with the delay of their direction");
    output.goal("mesh_direction", &measured, &format!("{pairs} pairs"), &goal(right));
    Ok(())
}

fn ip(line: &str) -> anyhow::Result<()> {
    let output = Command::new("ip").args(line.split(' ')).output().context("ip")?;
    ensure!(output.status.success(), "ip {line}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Namespaces, bridges and cables; they go with the lab.
fn lay_cables() -> anyhow::Result<()> {
    for line in [
        "link set lo up",
        "link add ctl type bridge",
        "addr add 10.9.0.1/24 dev ctl",
        "link set ctl up",
        "link add test type bridge",
        "link set test up",
    ] {
        ip(line)?;
    }
    for node in 1..=NODES {
        for line in [
            format!("netns add m{node}"),
            format!("link add c{node} type veth peer name ctl0 netns m{node}"),
            format!("link set c{node} master ctl up"),
            format!("link add t{node} type veth peer name eth1 netns m{node}"),
            format!("link set t{node} up"),
            format!("-n m{node} addr add 10.9.0.{}/24 dev ctl0", 10 + node),
            format!("-n m{node} addr add 198.18.0.{node}/24 dev eth1"),
            format!("-n m{node} link set lo up"),
            format!("-n m{node} link set ctl0 up"),
            format!("-n m{node} link set eth1 up"),
        ] {
            ip(&line)?;
        }
        // A tap forwards frames as it gets them. Those of a cable within one kernel lack checksums that no card will write.
        let netns = NetNs::open_named_namespace(&format!("m{node}"))?;
        EthtoolCalls::open_in(&netns)?.set_offload("eth1", Offload::TxCsum, false)?;
        if node != SLOW {
            ip(&format!("link set t{node} master test"))?;
        }
    }
    ip("link add tap-b type veth peer name tap-c")?;
    ip("link set tap-b up")?;
    ip("link set tap-c master test up")
}

/// A fleet of twenty agents; everything ends with it.
struct MeshFleet {
    children: Vec<Child>,
    directory: TempDir,
}

impl MeshFleet {
    fn start() -> anyhow::Result<Self> {
        lay_cables()?;
        let mut fleet = Self { children: Vec::new(), directory: tempfile::tempdir()? };
        let mut up = fleet.packetrig();
        up.args(["fleet", "up", "--address", "10.9.0.1", "--uses", "100"]);
        fleet.begin(up, "up")?;
        let mut tap = fleet.packetrig();
        let spec = format!("delay={SLOW_MS}ms");
        tap.args(["tap", &format!("t{SLOW}"), "tap-b", "--impair-ba", &spec, "--back-end", "packet"]);
        fleet.begin(tap, "tap")?;
        fleet.wait_for("the tap", |fleet| fleet.said("tap").contains("forwarding"))?;
        fleet.wait_for("a join line", |fleet| fleet.said("up").contains("prig1:"))?;
        let said = fleet.said("up");
        let line = said.split_whitespace().find(|word| word.starts_with("prig1:")).context("no join line")?;
        std::fs::write(fleet.path("line"), line)?;
        std::fs::write(fleet.path("owner.toml"), OWNER)?;
        for node in 1..=NODES {
            fleet.begin_agent(node)?;
        }
        fleet.wait_for("all nodes", |fleet| fleet.nodes_with_address() == NODES)?;
        Ok(fleet)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn said(&self, name: &str) -> String {
        read_to_string(self.path(&format!("{name}.log"))).unwrap_or_default()
    }

    fn packetrig(&self) -> Command {
        let mut command = Command::new(binary());
        command.env("XDG_DATA_HOME", self.path("ctl")).env("PACKETRIG_FLEET", self.path("fleet"));
        command
    }

    fn begin(&mut self, mut command: Command, name: &str) -> anyhow::Result<()> {
        let log = File::create(self.path(&format!("{name}.log")))?;
        let child = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn();
        self.children.push(child.with_context(|| name.to_owned())?);
        Ok(())
    }

    fn begin_agent(&mut self, node: usize) -> anyhow::Result<()> {
        let mut agent = Command::new("ip");
        agent.args(["netns", "exec", &format!("m{node}")]).arg(binary()).args(["agent", "--join"]);
        agent
            .arg(self.path("line"))
            .args(["--name", &format!("m{node}"), "--owner"])
            .arg(self.path("owner.toml"));
        agent.env("XDG_DATA_HOME", self.path(&format!("m{node}")));
        self.begin(agent, &format!("agent{node}"))
    }

    fn nodes_with_address(&self) -> usize {
        let asked = self.packetrig().args(["fleet", "status", "--json"]).output();
        let rows: Value =
            asked.ok().and_then(|asked| serde_json::from_slice(&asked.stdout).ok()).unwrap_or_default();
        let has_address = |row: &&Value| row["hello"]["ports"][0]["addresses"][0].is_string();
        rows.as_array().map_or(0, |rows| rows.iter().filter(has_address).count())
    }

    fn wait_for(&self, what: &str, is_so: impl Fn(&Self) -> bool) -> anyhow::Result<()> {
        for _ in 0..600 {
            if is_so(self) {
                return Ok(());
            }
            pause(100);
        }
        let agents: String = (1..=NODES).map(|node| self.said(&format!("agent{node}"))).collect();
        bail!("{what} did not come: {} {} {agents}", self.said("up"), self.said("tap"))
    }

    /// All pairs, in one command.
    fn mesh(&self, count: u64) -> anyhow::Result<Value> {
        let mut said = String::new();
        for _ in 0..TRIES {
            let mut command = self.packetrig();
            command.args([
                "fleet",
                "probe",
                "oneway",
                "--json",
                "--mechanism",
                "sleep",
                "--interval",
                "200ms",
            ]);
            let ended = command.args(["--count", &count.to_string()]).output()?;
            said = String::from_utf8_lossy(&ended.stderr).into_owned();
            if !said.contains("split_start")
                && let Ok(report) = serde_json::from_slice(&ended.stdout)
            {
                return Ok(report);
            }
        }
        bail!("no mesh was measured: {said}")
    }
}

impl Drop for MeshFleet {
    fn drop(&mut self) {
        // The agents first, so that they can take their leave.
        self.children.iter_mut().rev().for_each(end);
    }
}
