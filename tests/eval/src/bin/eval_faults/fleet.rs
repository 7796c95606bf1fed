//! The programs of a fleet: `fleet up` with its message server, four agents, and the commands of a user beside the controller.

use crate::network::{CONTROLLER, EXTRA, NODES, PORT, is_sender, node_name};
use anyhow::{Context, bail};
use packetrig_eval::process::{child_of, pause, signal, wait};
use packetrig_sys::clock;
use packetrig_tests::program::binary;
use packetrig_tests::small_disk::SmallDisk;
use rustix::mount::{MountFlags, mount_remount};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

/// Large enough for what a node or a controller keeps free.
const DISK: &CStr = c"size=640m";
/// As a user's own directories are.
const NEW_DISK: &CStr = c"size=640m,mode=0700";
/// The fleet and its nodes are up by then, or never.
const PATIENCE_NS: u64 = 60_000_000_000;

/// Which disk: a node's, the message server's, the controller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskName {
    Node(usize),
    Fleet,
    Controller,
}

/// A fleet at work. Its processes end when it is dropped.
#[derive(Debug)]
pub(crate) struct Fleet {
    up: Option<Child>,
    agents: Vec<Option<Child>>,
    joining: Vec<Child>,
    /// They stay mounted as long as this value.
    disks: Vec<SmallDisk>,
    directory: TempDir,
}

/// A program that was started, and the group of processes that it leads.
fn spawn(command: &mut Command, log: &Path) -> anyhow::Result<Child> {
    let log = File::options().create(true).append(true).open(log)?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
    command.spawn().context("a program cannot be started")
}

fn signal_group(child: &Child, signal: Signal) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // A group that has ended needs no signal.
        kill_process_group(group, signal).unwrap_or(());
    }
}

fn kill_group(child: &mut Child) {
    signal_group(child, Signal::KILL);
    drop(child.wait());
}

impl Fleet {
    /// Starts all of it and waits until each node is there.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        let mut fleet = Self {
            up: None,
            agents: (0..NODES).map(|_| None).collect(),
            joining: Vec::new(),
            disks: Vec::new(),
            directory,
        };
        let nodes = (0..NODES).map(DiskName::Node);
        for name in nodes.chain([DiskName::Fleet, DiskName::Controller]) {
            let place = fleet.place_of(name);
            fs::create_dir_all(&place)?;
            let disk =
                SmallDisk::mount_over(&place, NEW_DISK).context("a disk in memory cannot be mounted")?;
            fleet.disks.push(disk);
        }
        fleet.start_up()?;
        let line = fleet.join_line()?;
        for node in 0..NODES {
            fs::write(fleet.path(&format!("{}.line", node_name(node))), &line)?;
            fleet.start_agent(node)?;
        }
        fleet.await_nodes()?;
        Ok(fleet)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn place_of(&self, name: DiskName) -> PathBuf {
        match name {
            DiskName::Node(node) => self.path(&node_name(node)),
            DiskName::Fleet => self.path("fleet"),
            DiskName::Controller => self.path(CONTROLLER),
        }
    }

    /// Makes a disk full from one moment to the next: it becomes as small as what is on it.
    pub(crate) fn fill_disk(&self, name: DiskName) -> anyhow::Result<()> {
        let place = self.place_of(name);
        let disk = rustix::fs::statvfs(&place)?;
        let used_bytes = (disk.f_blocks - disk.f_bfree) * disk.f_frsize;
        let size = CString::new(format!("size={used_bytes}"))?;
        Ok(mount_remount(&place, MountFlags::empty(), size.as_c_str())?)
    }

    /// Gives it back its size.
    pub(crate) fn free_disk(&self, name: DiskName) -> anyhow::Result<()> {
        Ok(mount_remount(self.place_of(name), MountFlags::empty(), DISK)?)
    }

    /// What a program has said.
    pub(crate) fn log_of(&self, name: &str) -> String {
        fs::read_to_string(self.path(&format!("{name}.log"))).unwrap_or_default()
    }

    /// A command of the program in a namespace, with a directory of its own for everything it keeps.
    fn command(&self, namespace: &str, home: &str) -> Command {
        // A campaign that is killed leaves no agents behind.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "ip", "netns", "exec", namespace]).arg(binary());
        let home_directory = self.path(home);
        command
            .env("XDG_DATA_HOME", &home_directory)
            .env("HOME", &home_directory)
            .env("PACKETRIG_RUN_DIR", self.run_directory(home))
            .env("PACKETRIG_FLEET", self.path("fleet"));
        command
    }

    /// What is lost when a machine starts again.
    fn run_directory(&self, home: &str) -> PathBuf {
        self.path(&format!("run-{home}"))
    }

    pub(crate) fn lose_run_directory(&self, node: usize) {
        // It may never have been made.
        fs::remove_dir_all(self.run_directory(&node_name(node))).unwrap_or(());
    }

    /// A command as the user of the controller types it.
    pub(crate) fn controller_command(&self, words: &[&str]) -> Command {
        let mut command = self.command(CONTROLLER, CONTROLLER);
        command.args(words);
        command
    }

    /// Runs such a command to its end, which comes within so many seconds or is made.
    pub(crate) fn ask(&self, words: &[&str], seconds: u64) -> anyhow::Result<Output> {
        let out = self.path("asked.out");
        let err = self.path("asked.err");
        let mut command = self.controller_command(words);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(File::create(&out)?)
            .stderr(File::create(&err)?)
            .process_group(0)
            .spawn()?;
        let Ok(status) = wait(&mut child, seconds) else {
            kill_group(&mut child);
            bail!("`packetrig {}` did not end within {seconds} s", words.join(" "));
        };
        Ok(Output { status, stdout: fs::read(out)?, stderr: fs::read(err)? })
    }

    /// Starts `fleet up` and waits until it has printed its line.
    pub(crate) fn start_up(&mut self) -> anyhow::Result<()> {
        let log = self.path("up.log");
        // What an earlier one printed is not what is waited for.
        fs::remove_file(&log).unwrap_or(());
        let mut command =
            self.controller_command(&["fleet", "up", "--address", "10.9.0.1", "--uses", "1000"]);
        self.up = Some(spawn(&mut command, &log)?);
        self.join_line().map(drop)
    }

    fn join_line(&self) -> anyhow::Result<String> {
        let deadline_ns = clock::monotonic_ns() + PATIENCE_NS;
        while clock::monotonic_ns() < deadline_ns {
            let said = self.log_of("up");
            if let Some(line) = said.split_whitespace().find(|word| word.starts_with("prig1:")) {
                return Ok(line.to_owned());
            }
            pause(20);
        }
        bail!("`fleet up` prints no line: {}", self.log_of("up"))
    }

    pub(crate) fn start_agent(&mut self, node: usize) -> anyhow::Result<()> {
        let name = node_name(node);
        let owner = self.path(&format!("{name}.toml"));
        let label = if is_sender(node) { "tx" } else { "rx" };
        fs::write(&owner, format!("[[port]]\ninterface = \"{PORT}\"\nlabels = [\"{label}\"]\n"))?;
        let mut command = self.command(&name, &name);
        command.args(["agent", "--name", &name, "--join"]).arg(self.path(&format!("{name}.line")));
        command.arg("--owner").arg(&owner);
        self.agents[node] = Some(spawn(&mut command, &self.path(&format!("{name}.log")))?);
        Ok(())
    }

    /// Starts agents of machines that have not joined yet, all at once.
    pub(crate) fn start_joining(&mut self, names: &[String]) -> anyhow::Result<()> {
        let line = self.join_line()?;
        for name in names {
            let file = self.path(&format!("{name}.line"));
            fs::create_dir_all(self.path(name))?;
            fs::write(&file, &line)?;
            let mut command = self.command(EXTRA, name);
            command.args(["agent", "--name", name, "--join"]).arg(&file);
            let log = self.path(&format!("{name}.log"));
            self.joining.push(spawn(&mut command, &log)?);
        }
        Ok(())
    }

    /// The last words of a program.
    pub(crate) fn last_words(&self, name: &str) -> String {
        self.log_of(name).lines().last().unwrap_or("it said nothing").trim().to_owned()
    }

    /// Ends them, and has the fleet forget them.
    pub(crate) fn end_joining(&mut self, names: &[String]) -> anyhow::Result<()> {
        for mut child in self.joining.drain(..) {
            kill_group(&mut child);
        }
        for name in names {
            // One that never joined cannot be removed.
            self.ask(&["fleet", "remove", name], 10)?;
        }
        Ok(())
    }

    /// The nodes as `fleet status` shows them.
    pub(crate) fn status(&self) -> Vec<Value> {
        let output = self.ask(&["fleet", "status", "--json"], 20);
        let printed = output.map(|output| output.stdout).unwrap_or_default();
        let value: Value = serde_json::from_slice(&printed).unwrap_or_default();
        value.as_array().or_else(|| value["nodes"].as_array()).cloned().unwrap_or_default()
    }

    fn await_nodes(&self) -> anyhow::Result<()> {
        let deadline_ns = clock::monotonic_ns() + PATIENCE_NS;
        while clock::monotonic_ns() < deadline_ns {
            if self.status().into_iter().filter(has_ports).count() == NODES {
                return Ok(());
            }
            pause(200);
        }
        let said: String = (0..NODES).map(|node| self.log_of(&node_name(node))).collect();
        bail!("not all nodes came: {said}{}", self.log_of("up"))
    }

    fn agent(&self, node: usize) -> anyhow::Result<&Child> {
        self.agents[node].as_ref().context("the agent is not running")
    }

    pub(crate) fn supervisor(&self, node: usize) -> anyhow::Result<u32> {
        Ok(self.agent(node)?.id())
    }

    pub(crate) fn worker(&self, node: usize) -> anyhow::Result<u32> {
        child_of(self.supervisor(node)?, "packetrig").context("the agent has no worker")
    }

    pub(crate) fn up_process(&self) -> anyhow::Result<u32> {
        Ok(self.up.as_ref().context("`fleet up` is not running")?.id())
    }

    pub(crate) fn server(&self) -> anyhow::Result<u32> {
        child_of(self.up_process()?, "nats-server").context("no nats-server")
    }

    /// Sends a signal to supervisor and worker of a node.
    pub(crate) fn signal_node(&self, node: usize, signal: Signal) -> anyhow::Result<()> {
        signal_group(self.agent(node)?, signal);
        Ok(())
    }

    /// Kills the supervisor alone.
    pub(crate) fn kill_supervisor(&mut self, node: usize) -> anyhow::Result<()> {
        let mut agent = self.agents[node].take().context("the agent is not running")?;
        signal(agent.id(), Signal::KILL)?;
        drop(agent.wait());
        Ok(())
    }

    /// Kills supervisor and worker.
    pub(crate) fn kill_node(&mut self, node: usize) {
        if let Some(mut agent) = self.agents[node].take() {
            kill_group(&mut agent);
        }
    }

    /// Kills `fleet up`, and the message server with it.
    pub(crate) fn kill_up(&mut self) {
        if let Some(mut up) = self.up.take() {
            kill_group(&mut up);
        }
    }

    /// Starts an agent that has ended by itself or was killed.
    pub(crate) fn revive(&mut self, node: usize) -> anyhow::Result<()> {
        let is_running = self.agents[node].as_mut().is_some_and(|agent| matches!(agent.try_wait(), Ok(None)));
        if is_running { Ok(()) } else { self.start_agent(node) }
    }

    /// Segments of results that wait at a node.
    pub(crate) fn waiting_at(&self, node: usize) -> usize {
        let spool = self.path(&node_name(node)).join("packetrig/agent/spool");
        let files = entries(&spool).into_iter().flat_map(|run| entries(&run));
        files.filter(|path| path.extension().is_some_and(|ending| ending == "seg")).count()
    }
}

/// Paths in a directory; none if it is not there.
fn entries(directory: &Path) -> Vec<PathBuf> {
    let found = fs::read_dir(directory).into_iter().flatten().flatten();
    found.map(|entry| entry.path()).collect()
}

fn has_ports(row: &Value) -> bool {
    row["hello"]["ports"].as_array().is_some_and(|ports| !ports.is_empty())
}

impl Drop for Fleet {
    fn drop(&mut self) {
        let all = self.agents.drain(..).flatten().chain(self.joining.drain(..)).chain(self.up.take());
        for mut child in all.collect::<Vec<_>>() {
            signal_group(&child, Signal::CONT);
            kill_group(&mut child);
        }
    }
}
