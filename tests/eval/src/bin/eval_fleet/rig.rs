//! A fleet of real agents in network namespaces: `n1` to `n6`, a control network of its own (`ctl`), and a test network of
//! cables: `n1` to `n4`, `n2` to `n5`, `n3` to `n6`.

use anyhow::{Context, bail, ensure};
use packetrig_eval::fleet::{fleet_up, packetrig, wait_for_join_line};
use packetrig_eval::process::{child_of, end, line_of_state, pause, wait};
use packetrig_sys::clock;
use packetrig_tests::program::binary;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{File, read_to_string};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;

/// Rigs come one after another and use the same cables.
static CABLED: AtomicBool = AtomicBool::new(false);

/// Nodes of a rig.
pub(crate) const NODES: usize = 6;

/// The other end of a node's cable.
pub(crate) const fn facing(node: usize) -> usize {
    if node > NODES / 2 { node - NODES / 2 } else { node + NODES / 2 }
}

/// Does it up to three times: on a machine that others load, too, a start can come too late for a node.
pub(crate) fn again<T>(mut what: impl FnMut() -> anyhow::Result<T>) -> anyhow::Result<T> {
    what().or_else(|_| what()).or_else(|_| what())
}

/// Namespaces and cables; they go with the lab.
fn cable() -> anyhow::Result<()> {
    let mut lines = vec![
        "link set lo up".to_owned(),
        "link add ctl type bridge".to_owned(),
        "addr add 10.9.0.1/24 dev ctl".to_owned(),
        "link set ctl up".to_owned(),
    ];
    for node in 1..=NODES {
        ip(&["netns", "add", &format!("n{node}")])?;
        lines.push(format!("link add c{node} type veth peer name ctl0 netns n{node}"));
        lines.push(format!("link set c{node} master ctl up"));
    }
    for node in 1..=NODES / 2 {
        lines.push(format!("link add eth1 netns n{node} type veth peer name eth1 netns n{}", facing(node)));
    }
    batch(None, &lines)?;
    for node in 1..=NODES {
        let own = [
            format!("addr add 10.9.0.{}/24 dev ctl0", 10 + node),
            "link set ctl0 up".to_owned(),
            "link set lo up".to_owned(),
            "link set eth1 up".to_owned(),
        ];
        batch(Some(node), &own)?;
    }
    Ok(())
}

fn batch(node: Option<usize>, lines: &[String]) -> anyhow::Result<()> {
    for line in lines {
        let inside = node.map(|node| format!("n{node}"));
        let mut words: Vec<&str> = inside.as_deref().map_or_else(Vec::new, |name| vec!["-n", name]);
        words.extend(line.split(' '));
        ip(&words)?;
    }
    Ok(())
}

/// Takes a node's control link away, or gives it back.
pub(crate) fn control_link(node: usize, state: &str) -> anyhow::Result<()> {
    ip(&["link", "set", &format!("c{node}"), state])
}

fn ip(words: &[&str]) -> anyhow::Result<()> {
    let output = Command::new("ip").args(words).output().context("ip")?;
    ensure!(output.status.success(), "ip {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// A fleet at work.
pub(crate) struct Rig {
    up: Child,
    agents: BTreeMap<usize, Child>,
    plans: u32,
    directory: TempDir,
}

impl Rig {
    /// Agents with these further arguments.
    pub(crate) fn start(arguments: &[&str]) -> anyhow::Result<Self> {
        if !CABLED.swap(true, Ordering::Relaxed) {
            cable()?;
        }
        let directory = tempfile::tempdir()?;
        let up = fleet_up(directory.path(), &["--address", "10.9.0.1", "--uses", "100"])?;
        let mut rig = Self { up, agents: BTreeMap::new(), plans: 0, directory };
        let line = wait_for_join_line(rig.directory.path(), &mut rig.up)?;
        for node in 1..=NODES {
            let agent = rig.agent(node, &line, arguments)?;
            rig.agents.insert(node, agent);
        }
        rig.wait_for_nodes()?;
        Ok(rig)
    }

    fn agent(&self, node: usize, line: &str, arguments: &[&str]) -> anyhow::Result<Child> {
        let owner = self.path(&format!("owner{node}.toml"));
        std::fs::write(&owner, "[[port]]\ninterface = \"eth1\"\n")?;
        let mut agent = Command::new("ip");
        agent.args(["netns", "exec", &format!("n{node}")]).arg(binary());
        let file = self.path(&format!("line{node}"));
        std::fs::write(&file, line)?;
        agent
            .args(["agent", "--join"])
            .arg(&file)
            .args(["--name", &format!("n{node}"), "--owner"])
            .arg(&owner);
        agent.args(arguments).env("XDG_DATA_HOME", self.path(&format!("n{node}")));
        logged(&mut agent, self.directory.path(), &format!("agent{node}"))
    }

    fn wait_for_nodes(&self) -> anyhow::Result<()> {
        for _ in 0..30 {
            let output = packetrig(self.directory.path()).args(["fleet", "status", "--json"]).output()?;
            let rows: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            let fit = |row: &Value| {
                let hello = &row["hello"];
                hello["busy"].is_null() && hello["ports"].as_array().is_some_and(|ports| !ports.is_empty())
            };
            if rows.as_array().is_some_and(|rows| rows.iter().filter(|row| fit(row)).count() == NODES) {
                return Ok(());
            }
            pause(200);
        }
        bail!(
            "not all nodes came: {}",
            (1..=NODES).map(|n| self.said(&format!("agent{n}"))).collect::<String>()
        )
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn said(&self, name: &str) -> String {
        read_to_string(self.path(&format!("{name}.log"))).unwrap_or_default()
    }

    /// Where the controller keeps runs.
    pub(crate) fn runs(&self) -> PathBuf {
        self.path("ctl/packetrig")
    }

    /// Where a node keeps results until they are collected.
    pub(crate) fn spool(&self, node: usize) -> PathBuf {
        self.path(&format!("n{node}/packetrig/agent/spool"))
    }

    /// The process of the message server.
    pub(crate) fn broker(&self) -> anyhow::Result<u32> {
        child_of(self.up.id(), "nats-server").context("no nats-server")
    }

    /// The worker of a node's agent.
    pub(crate) fn worker(&self, node: usize) -> anyhow::Result<u32> {
        let agent = self.agents.get(&node).context("no such node")?;
        child_of(agent.id(), "packetrig").context("an agent has no worker")
    }

    /// Starts a run.
    pub(crate) fn run(&mut self, plan: &str, arguments: &[&str]) -> anyhow::Result<Run> {
        self.plans += 1;
        let file = self.path(&format!("plan{}.json", self.plans));
        std::fs::write(&file, plan)?;
        let (stdout, stderr) = (self.path("run.json"), self.path("run.log"));
        let child = packetrig(self.directory.path())
            .arg("run")
            .arg(&file)
            .arg("--json")
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(File::create(&stdout)?)
            .stderr(File::create(&stderr)?)
            .spawn()?;
        Ok(Run { child, stdout, stderr })
    }

    /// Waits until all nodes are there and at rest.
    pub(crate) fn settle(&self) -> anyhow::Result<()> {
        self.wait_for_nodes()
    }

    /// Ends what a controller left and collects what there is.
    pub(crate) fn collect(&self) -> anyhow::Result<()> {
        let output = packetrig(self.directory.path()).args(["fleet", "collect"]).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "fleet collect: {said}");
        Ok(())
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        for agent in self.agents.values_mut() {
            end(agent);
        }
        end(&mut self.up);
    }
}

fn logged(command: &mut Command, directory: &Path, name: &str) -> anyhow::Result<Child> {
    let log = File::create(directory.join(format!("{name}.log")))?;
    let child = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn();
    child.context(name.to_owned())
}

/// A run under way.
pub(crate) struct Run {
    pub(crate) child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
}

impl Run {
    /// Waits until it says that it is in this state; `false` if it ended without.
    pub(crate) fn wait_for(&mut self, state: &str) -> anyhow::Result<bool> {
        let until = clock::monotonic_ns() + 60_000_000_000;
        let line = line_of_state(state);
        while clock::monotonic_ns() < until {
            let ended = self.child.try_wait()?.is_some();
            if self.complaints().lines().any(|said| said.trim() == line) {
                return Ok(true);
            }
            if ended {
                return Ok(false);
            }
            pause(1);
        }
        bail!("no state {state} within a minute: {}", self.complaints())
    }

    pub(crate) fn complaints(&self) -> String {
        read_to_string(&self.stderr).unwrap_or_default()
    }

    /// Its report, once it has ended.
    pub(crate) fn report(mut self) -> anyhow::Result<Value> {
        wait(&mut self.child, 90)?;
        let text = read_to_string(&self.stdout)?;
        serde_json::from_str(&text).with_context(|| format!("no report: {}", self.complaints()))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.child.kill().unwrap_or(());
            drop(self.child.wait());
        }
    }
}
