//! The machines of a fleet, its programs, and what can go wrong with them.
//!
//! ```text
//!   control network 10.9.0.0/24             test network: a bridge
//!   controller 10.9.0.1 (server, runs)      s1 s2 s3 r1 r2 r3, each its eth0
//!   s1..s3, r1..r3 10.9.0.11.. (agents)
//! ```
//! Invariant: whatever a test leaves running ends with this value.

mod control;
mod faults;
mod probing;
mod starting;
mod state;

pub(crate) use starting::begin_again;

use control::{Control, ip};
use packetrig_sys::clock;
use packetrig_sys::netns::NetNs;
use packetrig_testkit::Lab;
use packetrig_testkit::lab::INTERFACE;
use packetrig_tests::program;
use packetrig_tests::skip::{self, OwnLab};
use packetrig_tests::small_disk::SmallDisk;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use tempfile::TempDir;

pub(crate) const SENDERS: [&str; 3] = ["s1", "s2", "s3"];
pub(crate) const RECEIVERS: [&str; 3] = ["r1", "r2", "r3"];
/// Nothing here takes longer, by far.
const LIMIT_NS: u64 = 90_000_000_000;
/// Where the API is, within the controller's namespace.
const HTTP: &str = "127.0.0.1:8080";
const LOOK_NS: u64 = 20_000_000;

/// A fleet that is up, with all its nodes.
pub(crate) struct Fleet {
    controller: Option<Child>,
    agents: BTreeMap<&'static str, Child>,
    control: Control,
    lab: OwnLab,
    server: PathBuf,
    line: String,
    server_disk: Option<SmallDisk>,
    place: TempDir,
}

/// How the agents are started.
#[derive(Clone, Copy, Default)]
pub(crate) struct FleetOptions {
    /// More arguments of each.
    pub(crate) arguments: &'static [&'static str],
    /// More of each owner's file, before its port.
    pub(crate) owner: &'static str,
    /// More about each port.
    pub(crate) port: &'static str,
    /// The message server keeps its files on a disk of its own, made with these options.
    pub(crate) server_disk: Option<&'static CStr>,
}

impl Fleet {
    /// All of it; `None` where there are no rights or no server, which is said.
    pub(crate) fn up(request: FleetOptions) -> Option<Self> {
        let server = skip::client("nats")?;
        if !skip::has_tool("ip") {
            return None;
        }
        let lab = skip::lab(|| Lab::with_bridge(SENDERS.len() + RECEIVERS.len()))?;
        let control = Control::lay(&lab);
        let place = tempfile::tempdir().expect("there is room for temporary files");
        let server_disk = match request.server_disk {
            Some(options) => {
                let directory = place.path().join("fleet/broker");
                fs::create_dir_all(&directory).expect("there is room for a directory");
                Some(SmallDisk::mount_over(&directory, options)?)
            }
            None => None,
        };
        let mut fleet = Self {
            controller: None,
            agents: BTreeMap::new(),
            control,
            lab,
            server,
            line: String::new(),
            server_disk,
            place,
        };
        fleet.start_server();
        for node in SENDERS.into_iter().chain(RECEIVERS) {
            fleet.start_agent(node, request);
        }
        fleet.await_status("all nodes", |rows| rows.len() == SENDERS.len() + RECEIVERS.len());
        Some(fleet)
    }

    /// That of the message server, if it has one of its own.
    pub(crate) fn server_disk(&self) -> &SmallDisk {
        self.server_disk.as_ref().expect("it was wished for")
    }

    /// Below which everything of this fleet is kept.
    pub(crate) fn place(&self) -> &Path {
        self.place.path()
    }

    /// A program of the controller's namespace.
    pub(crate) fn beside_the_controller(&self, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.control.name]).arg(program);
        command
    }

    /// A program of a node's namespace.
    pub(crate) fn beside_node(&self, node: &str, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.namespace_of(node)]).arg(program);
        command
    }

    /// The namespace of a node.
    pub(crate) fn namespace_of(&self, node: &str) -> &str {
        self.lab.ports()[number(node)].namespace()
    }

    fn command(&self, namespace: &str, home: &str, arguments: &[&str]) -> Command {
        self.command_on(&[], namespace, home, arguments)
    }

    /// The same started by the program `host` names with its arguments.
    fn command_on(&self, host: &[&str], namespace: &str, home: &str, arguments: &[&str]) -> Command {
        let home = self.place().join(home);
        fs::create_dir_all(&home).expect("there is room for a directory");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace]).args(host).arg(program::binary()).args(arguments);
        command
            .env("XDG_DATA_HOME", &home)
            .env("HOME", &home)
            .env("PACKETRIG_FLEET", self.place().join("fleet"));
        // A group of its own: a fault hits the program with all it has started.
        command.current_dir(&home).process_group(0);
        command
    }

    fn start(&self, mut command: Command, log: &str) -> Child {
        let open = |name: String| {
            let path = self.place().join(name);
            File::options().create(true).append(true).open(path).expect("there is room for its output")
        };
        command.stdout(open(format!("{log}.out"))).stderr(open(format!("{log}.err")));
        command.spawn().expect("the program starts")
    }

    /// What a program has said.
    pub(crate) fn said(&self, log: &str) -> String {
        let read = |name: String| fs::read(self.place().join(name)).unwrap_or_default();
        let all = [read(format!("{log}.out")), read(format!("{log}.err"))].concat();
        String::from_utf8_lossy(&all).into_owned()
    }

    /// `fleet up`, until nodes can join.
    pub(crate) fn start_server(&mut self) {
        let server = self.server.display().to_string();
        let arguments = ["fleet", "up", "--address", "10.9.0.1", "--server", &server, "--uses", "100"];
        fs::remove_file(self.place().join("up.out")).ok();
        self.controller = Some(self.start(self.command(&self.control.name, "ctl", &arguments), "up"));
        await_that("the fleet is up", || self.said("up").contains("prig1:"), || self.said("up"));
        let said = self.said("up");
        let line = said.split_whitespace().find(|word| word.starts_with("prig1:"));
        self.line = line.expect("it was just seen").into();
    }

    /// Ends `fleet up` with its server and starts it again.
    pub(crate) fn restart_server(&mut self) {
        if let Some(mut controller) = self.controller.take() {
            kill_process(pid(controller.id()), Signal::TERM).expect("it is there");
            controller.wait().expect("a child can be waited for");
        }
        self.start_server();
    }

    /// The process of `fleet up`.
    pub(crate) fn server_process(&self) -> u32 {
        self.controller.as_ref().expect("it was started").id()
    }

    /// Waits until `fleet up` has ended, for which somebody has asked it.
    pub(crate) fn await_server_end(&mut self) {
        let mut server = self.controller.take().expect("it was started");
        server.wait().expect("a child can be waited for");
    }

    /// The line that lets nodes in.
    pub(crate) fn line(&self) -> &str {
        &self.line
    }

    /// The bridge knows where each port is, as a switch does that has heard them. Of runs side by side none hears another, whose
    /// frames it would take for its own by chance once in 65 536.
    pub(crate) fn teach_the_bridge(&self) {
        let bridge = self.lab.device_netns().expect("the ports have a bridge");
        for (index, port) in self.lab.ports().iter().enumerate() {
            let shown = ip(&["-n", port.namespace(), "-brief", "link", "show", INTERFACE]);
            let address = shown.split_whitespace().nth(2).expect("a link has an address").to_owned();
            let device_port = format!("port{index}");
            let arguments = ["fdb", "replace", &address, "dev", &device_port, "master", "static"];
            let taught = bridge.run_in_namespace(|| Command::new("bridge").args(arguments).status());
            assert!(taught.is_ok_and(|ended| ended.is_ok_and(|status| status.success())), "{arguments:?}");
        }
    }

    /// The namespace of the test network's bridge.
    fn bridge_namespace(&self) -> String {
        let first = self.lab.ports()[0].namespace();
        format!("{}dut", first.strip_suffix("p0").expect("the first port is p0"))
    }

    /// Does it where the controller is.
    pub(crate) fn beside_controller<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        NetNs::open_named_namespace(&self.control.name)
            .and_then(|netns| netns.run_in_namespace(work))
            .expect("the namespace is ours")
    }

    pub(crate) fn start_agent(&mut self, node: &'static str, request: FleetOptions) {
        let label = if SENDERS.contains(&node) { "tx" } else { "rx" };
        let owner = self.place().join(format!("{node}.toml"));
        let FleetOptions { arguments, owner: more, port, .. } = request;
        let text = format!("{more}\n[[port]]\ninterface = \"{INTERFACE}\"\nlabels = [\"{label}\"]\n{port}\n");
        fs::write(&owner, text).expect("there is room for an owner's file");
        let owner = owner.display().to_string();
        let line = self.place().join(format!("{node}.line"));
        fs::write(&line, &self.line).expect("there is room for a line");
        let line = line.display().to_string();
        let all = [&["agent", "--join", &line, "--name", node, "--owner", &owner], arguments].concat();
        let command = self.command(self.lab.ports()[number(node)].namespace(), node, &all);
        let child = self.start(command, node);
        self.agents.insert(node, child);
    }

    /// Ends an agent and starts it again, as its unit file does, with another line in its file.
    pub(crate) fn restart_agent(&mut self, node: &'static str, line: String) {
        let mut agent = self.agents.remove(node).expect("it was started");
        // It may have been killed before.
        kill_process_group(pid(agent.id()), Signal::KILL).ok();
        agent.wait().expect("a child can be waited for");
        let usual = std::mem::replace(&mut self.line, line);
        self.start_agent(node, FleetOptions::default());
        self.line = usual;
    }

    /// Waits until an agent has ended by itself; its exit code.
    pub(crate) fn await_agent_end(&mut self, node: &'static str) -> Option<i32> {
        let mut agent = self.agents.remove(node).expect("it was started");
        let mut ended = None;
        let has_ended = || {
            ended = agent.try_wait().expect("a child can be waited for");
            ended.is_some()
        };
        await_that("the agent ends", has_ended, || self.said(node));
        ended.and_then(|status| status.code())
    }

    /// Runs a command of the controller to its end: its exit code, what it printed, what it complained about.
    pub(crate) fn ask(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        self.ask_on(&[], arguments)
    }

    /// The same as the controller's host is when it was started again.
    pub(crate) fn ask_after_reboot(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let boot_id = self.place().join("boot_id");
        fs::write(&boot_id, "00000000-0000-4000-8000-000000000000\n").expect("there is room for a name");
        let script = "mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec \"$@\"";
        self.ask_on(&["unshare", "--mount", "sh", "-c", script, &boot_id.display().to_string()], arguments)
    }

    /// The same in a container of the controller's host, which sees no process of others.
    pub(crate) fn ask_in_container(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        self.ask_on(&["unshare", "--pid", "--fork", "--mount-proc"], arguments)
    }

    fn ask_on(&self, host: &[&str], arguments: &[&str]) -> (Option<i32>, String, String) {
        let mut command = self.command_on(host, &self.control.name, "ctl", arguments);
        let output = command.output().expect("the program runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }

    /// Starts a command of the controller; what it says is under `log`.
    pub(crate) fn begin_command(&self, arguments: &[&str], log: &str) -> Child {
        self.start(self.command(&self.control.name, "ctl", arguments), log)
    }

    /// Starts the OTG API and waits until it answers.
    pub(crate) fn serve(&self) -> Serving {
        let arguments = ["serve", "--on-fleet", "--plain-http", "--http", HTTP, "--no-grpc"];
        let child = self.start(self.command(&self.control.name, "ctl", &arguments), "serve");
        await_that("the API is there", || self.said("serve").contains(HTTP), || self.said("serve"));
        Serving(child)
    }

    /// Posts a document to the API; what it answers.
    pub(crate) fn post(&self, path: &str, document: &Value) -> Value {
        let url = format!("http://{HTTP}/{path}");
        let client =
            ["netns", "exec", &self.control.name, "curl", "--silent", "--show-error", "--fail-with-body"];
        let document = document.to_string();
        let arguments = [&client[..], &["--json", &document, &url]].concat();
        let answer = control::output_of_ip(&arguments)
            .unwrap_or_else(|error| panic!("{error}; the server said: {}", self.said("serve")));
        serde_json::from_str(&answer).unwrap_or_default()
    }
}

/// The OTG API, until this is dropped.
pub(crate) struct Serving(Child);

impl Serving {
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(pid(self.0.id()), signal).expect("a child may be sent a signal");
    }

    /// Stops it where it does not write to the catalogue: stopped within a write, it would keep every other controller from writing.
    pub(crate) fn stop_between_writes(&self) {
        await_that(
            "it is stopped and writes nothing",
            || self.stops_idle(),
            || format!("process {}", self.0.id()),
        );
    }

    /// Stops it, or lets it go on if that was within a write.
    fn stops_idle(&self) -> bool {
        self.signal(Signal::STOP);
        let read = |path: &str| fs::read_to_string(path).expect("the kernel tells");
        let stat = format!("/proc/{}/stat", self.0.id());
        await_that("it is stopped", || read(&stat).contains(") T "), || read(&stat));
        let owner = format!(" WRITE {} ", self.0.id());
        // SQLite's lock for the one who writes.
        let is_writing =
            read("/proc/locks").lines().any(|line| line.contains(&owner) && line.ends_with(" 120 120"));
        if is_writing {
            self.signal(Signal::CONT);
        }
        !is_writing
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        kill_process(pid(self.0.id()), Signal::CONT).ok();
        kill_process(pid(self.0.id()), Signal::TERM).ok();
        drop(self.0.wait());
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        let children = std::mem::take(&mut self.agents).into_values().chain(self.controller.take());
        for mut child in children {
            // It may have ended; whatever happens here, the namespaces go next.
            kill_process_group(pid(child.id()), Signal::CONT).ok();
            kill_process_group(pid(child.id()), Signal::KILL).ok();
            drop(child.wait());
        }
    }
}

fn number(node: &str) -> usize {
    SENDERS.iter().chain(&RECEIVERS).position(|name| *name == node).expect("a node of the lab")
}

pub(crate) fn pid(raw: u32) -> Pid {
    i32::try_from(raw).ok().and_then(Pid::from_raw).expect("a child has a number")
}

/// Waits until something is so; it takes as long as the machine is slow.
pub(crate) fn await_that(what: &str, mut is_so: impl FnMut() -> bool, about: impl Fn() -> String) {
    let deadline = clock::monotonic_ns() + LIMIT_NS;
    while !is_so() {
        assert!(clock::monotonic_ns() < deadline, "never so: {what}; {}", about());
        clock::sleep_until_ns(clock::monotonic_ns() + LOOK_NS);
    }
}
