//! Running the built program and reading what it wrote.

use crate::document::Document;
use packetrig_sys::clock;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;
use tempfile::TempDir;

/// No run of these tests takes longer than this, by far.
const LIMIT_NS: u64 = 120_000_000_000;
/// Ticks of `/proc/PID/stat` in a second, on every Linux that we know.
const TICKS: f64 = 100.0;
const LOOK_NS: u64 = 5_000_000;

/// The built program, built if need be; `PACKETRIG_BIN` names another.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| std::env::var_os("PACKETRIG_BIN").map_or_else(build, PathBuf::from))
}

fn build() -> PathBuf {
    // target/PROFILE/deps/THIS_TEST
    let this = std::env::current_exe().expect("a running test has a path");
    let profile = this.ancestors().find(|path| path.ends_with("debug") || path.ends_with("release"));
    let directory = profile.expect("cargo puts tests below target/debug or target/release");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(["build", "--quiet", "--offline", "--package", "packetrig"])
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    if directory.ends_with("release") {
        command.arg("--release");
    }
    let built = command.status().expect("cargo runs where it has started this test");
    assert!(built.success(), "packetrig does not build");
    directory.join("packetrig")
}

/// A finished run of the program.
#[derive(Debug)]
pub struct Finished {
    /// Exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// What it printed.
    pub stdout: String,
    /// What it complained about.
    pub stderr: String,
    /// Where it ran, and where its files are.
    pub directory: TempDir,
}

impl Finished {
    /// The report it wrote. Panics with its complaints if there is none.
    pub fn report(&self) -> Report {
        let path = self.out().join("report.json");
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| {
            panic!("no report ({error}); exit code {:?}\n{}\n{}", self.code, self.stdout, self.stderr)
        });
        Report(serde_json::from_str(&text).expect("the report is JSON"))
    }

    /// The directory of the run's files.
    pub fn out(&self) -> PathBuf {
        self.directory.path().join("out")
    }

    /// The only capture file.
    pub fn capture(&self) -> PathBuf {
        let report = self.report();
        let file =
            report.0["captures"][0]["file"].as_str().unwrap_or_else(|| panic!("no capture in {}", report.0));
        let path = PathBuf::from(file);
        if path.is_absolute() { path } else { self.out().join(path) }
    }

    /// Asserts an exit code and that the complaint has these words; and that it is no panic.
    pub fn assert_refused(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{}", self.stderr);
        for word in words {
            assert!(self.stderr.contains(word), "no `{word}` in: {}", self.stderr);
        }
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
    }
}

/// A running program.
#[derive(Debug)]
pub struct Running {
    child: Option<Child>,
    directory: Option<TempDir>,
}

impl Running {
    /// Starts `packetrig` with these arguments in a directory of its own. `{out}` in them is the run's directory.
    pub fn start(arguments: &[&str], input: &str) -> Self {
        Self::start_program(binary(), arguments, input)
    }

    /// Starts another program in the same way, one that starts `packetrig`.
    pub fn start_program(program: impl AsRef<OsStr>, arguments: &[&str], input: &str) -> Self {
        let directory = tempfile::tempdir().expect("there is room for temporary files");
        let out = directory.path().join("out").display().to_string();
        let plan = directory.path().join("plan.yaml");
        std::fs::write(&plan, input).expect("there is room for a plan");
        let plan = plan.display().to_string();
        let arguments = arguments.iter().map(|a| a.replace("{out}", &out).replace("{plan}", &plan));
        let open =
            |name| std::fs::File::create(directory.path().join(name)).expect("there is room for its output");
        let child = Command::new(program)
            .args(arguments)
            .env("HOME", directory.path())
            .env("XDG_STATE_HOME", directory.path())
            .env("XDG_DATA_HOME", directory.path())
            .current_dir(directory.path())
            .stdin(Stdio::piped())
            .stdout(open("stdout"))
            .stderr(open("stderr"))
            .spawn()
            .expect("the program starts");
        let mut running = Self { child: Some(child), directory: Some(directory) };
        // A program that refuses before reading closes its end: no error of ours.
        drop(running.child().stdin.take().map(|mut stdin| stdin.write_all(input.as_bytes())));
        running
    }

    /// Starts a run of a document.
    pub fn run(document: &Document, more: &[&str]) -> Self {
        let mut arguments = vec!["run", "{plan}", "--out", "{out}", "--store", "{out}-store"];
        arguments.extend(more);
        Self::start(&arguments, &document.text())
    }

    /// Starts the replay of a capture file. A busy machine may hold the sender up.
    pub fn replay(file: &Path, more: &[&str]) -> Self {
        let file = file.display().to_string();
        let mut arguments = vec!["replay", file.as_str(), "--quiet", "--max-late", "20s"];
        arguments.extend(["--out", "{out}", "--store", "{out}-store"]);
        arguments.extend(more);
        Self::start(&arguments, "")
    }

    fn child(&mut self) -> &mut Child {
        self.child.as_mut().expect("the child is taken only by `finish`, which ends this value")
    }

    /// The most that its process ever held in memory, in KiB.
    pub fn peak_kib(&mut self) -> u64 {
        let status = self.proc("status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a process has a peak");
        line.trim().trim_end_matches("kB").trim().parse().expect("the kernel writes a number")
    }

    /// Processor time that it took so far, the program's and the kernel's on its behalf.
    pub fn processor_seconds(&mut self) -> f64 {
        let text = self.proc("stat");
        let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |at: usize| fields[at].parse::<f64>().expect("the kernel writes a number");
        (ticks(11) + ticks(12)) / TICKS
    }

    fn proc(&mut self, entry: &str) -> String {
        let path = format!("/proc/{}/{entry}", self.child().id());
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// Sends a signal.
    pub fn signal(&mut self, signal: Signal) {
        let pid =
            i32::try_from(self.child().id()).ok().and_then(Pid::from_raw).expect("a child has a number");
        kill_process(pid, signal).expect("a child may be sent a signal");
    }

    /// Its number.
    pub fn process(&mut self) -> u32 {
        self.child().id()
    }

    /// Waits until it has complained or remarked `text`. Panics if it ends without.
    pub fn await_remark(&mut self, text: &str) {
        self.await_in("stderr", text);
    }

    /// The same for what it prints.
    pub fn await_printed(&mut self, text: &str) {
        self.await_in("stdout", text);
    }

    fn await_in(&mut self, stream: &str, text: &str) {
        let is_said = self.await_within(LIMIT_NS, stream, |said| said.contains(text));
        assert!(is_said, "it never said `{text}`: {}", self.said_in(stream));
    }

    /// Waits until its remarks are as wanted, but not longer than this; returns whether they are. Panics if it ends without.
    pub fn await_remarks_within(&mut self, limit: Duration, is_wanted: impl Fn(&str) -> bool) -> bool {
        let limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        let is_so = self.await_within(limit_ns, "stderr", is_wanted);
        assert!(is_so || !self.has_ended(), "it has ended: {}", self.remarks());
        is_so
    }

    fn await_within(&mut self, limit_ns: u64, stream: &str, is_wanted: impl Fn(&str) -> bool) -> bool {
        let deadline = clock::monotonic_ns().saturating_add(limit_ns);
        loop {
            let ended = self.has_ended();
            if is_wanted(&self.said_in(stream)) {
                return true;
            }
            if ended || clock::monotonic_ns() >= deadline {
                return false;
            }
            clock::sleep_until_ns(clock::monotonic_ns() + LOOK_NS);
        }
    }

    fn said_in(&self, stream: &str) -> String {
        let said = std::fs::read(self.directory().join(stream)).unwrap_or_default();
        String::from_utf8_lossy(&said).into_owned()
    }

    /// What it has complained about or remarked so far.
    pub fn remarks(&self) -> String {
        self.said_in("stderr")
    }

    /// Where it runs.
    pub fn directory(&self) -> &Path {
        self.directory.as_ref().expect("taken only by `finish`, which ends this value").path()
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child().try_wait().expect("a child can be waited for").is_some()
    }

    /// Waits for its end.
    pub fn finish(mut self) -> Finished {
        let deadline = clock::monotonic_ns() + LIMIT_NS;
        while !self.has_ended() {
            assert!(clock::monotonic_ns() < deadline, "the program does not end: {}", self.remarks());
            clock::sleep_until_ns(clock::monotonic_ns() + LOOK_NS);
        }
        let code = self.child().wait().expect("a child can be waited for").code();
        let directory = self.directory.take().expect("taken only here");
        let read = |name| {
            String::from_utf8_lossy(&std::fs::read(directory.path().join(name)).unwrap_or_default())
                .into_owned()
        };
        Finished { code, stdout: read("stdout"), stderr: read("stderr"), directory }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A test that fails must not leave its program behind.
        if let Some(mut child) = self.child.take()
            && matches!(child.try_wait(), Ok(None))
        {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// Runs a document to its end.
pub fn run(document: &Document) -> Finished {
    Running::run(document, &["--quiet"]).finish()
}

/// True if frames of this outage may have been sent during this event.
fn overlaps(outage: &Value, event: &Value) -> bool {
    /// An event of a sender reaches a receiver later by the delay of the path.
    const LONGEST_DELAY: u64 = 1_000_000_000;
    let [begin, from] = [&outage["begin"], &event["from"]].map(|time| time.as_u64().unwrap_or(0));
    let [end, until] = [&outage["end"], &event["until"]].map(|time| time.as_u64().unwrap_or(u64::MAX));
    from < end && begin < until.saturating_add(LONGEST_DELAY)
}

/// A report, read as a stranger reads it.
#[derive(Clone, Debug)]
pub struct Report(pub Value);

impl Report {
    /// The row of a stream.
    pub fn stream(&self, name: &str) -> &Value {
        let rows = self.0["streams"].as_array().expect("a report has streams");
        rows.iter()
            .find(|row| row["name"] == name)
            .unwrap_or_else(|| panic!("no stream {name} in {}", self.0))
    }

    /// Frames that left closer together than planned, because this machine held a sender up: as many losses may be in doubt.
    pub fn sent_ahead(&self) -> u64 {
        let ports = self.0["ports"].as_array().expect("a report has ports");
        ports.iter().filter_map(|port| port["sent_ahead"].as_u64()).sum()
    }

    /// What was lost between the ports. A part of it may be in doubt, but only for reasons that the report states.
    pub fn lost_between(&self) -> u64 {
        let [path, in_doubt] = ["path", "in_doubt"].map(|place| self.0["lost"][place].as_u64().unwrap_or(0));
        let explained = self.sent_ahead() + self.lost_during_events();
        assert!(
            in_doubt <= explained,
            "{in_doubt} in doubt, {explained} explained: {} {} {}",
            self.0["lost"],
            self.0["ports"],
            self.0["streams"]
        );
        path + in_doubt
    }

    /// Frames of the listed outages that overlap a doubtful event of a port, or after which a receiver may have stopped too early.
    fn lost_during_events(&self) -> u64 {
        let rows =
            |value: &Value, path| value.pointer(path).and_then(Value::as_array).cloned().unwrap_or_default();
        let tolerated = self.0["criteria"]["max_late"].as_u64().unwrap_or(0);
        let mut events: Vec<_> =
            rows(&self.0, "/ports").iter().flat_map(|port| rows(port, "/events")).collect();
        // What belongs to the measurement puts nothing in doubt, and neither does a sender that was late within the limit.
        events.retain(|event| event["cause"] == "rig" || event["cause"] == "unknown");
        events.retain(|event| event["most_late"].as_u64().is_none_or(|late| late > tolerated));
        let stopped_early =
            rows(&self.0, "/caveats").iter().any(|caveat| caveat["doubt"] == "stopped_listening");
        let outages =
            rows(&self.0, "/streams").into_iter().flat_map(|stream| rows(&stream, "/outages/listed"));
        let explained = outages.filter(|outage| {
            stopped_early && outage["end"].is_null() || events.iter().any(|event| overlaps(outage, event))
        });
        explained.filter_map(|outage| outage["frames"].as_u64()).sum()
    }

    /// The verdict is FAIL; or it is open, if what left too close together explains all losses.
    pub fn assert_lossy(&self) {
        let explained = self.0["lost"]["path"] == 0 && self.sent_ahead() > 0;
        assert_eq!(self.verdict(), if explained { "INCONCLUSIVE" } else { "FAIL" }, "{}", self.0["judged"]);
    }

    /// A number of a stream, by its path: `/sent/frames`.
    pub fn number(&self, stream: &str, path: &str) -> u64 {
        let row = self.stream(stream);
        let found = row.pointer(path).and_then(Value::as_u64);
        found.unwrap_or_else(|| panic!("no number at {path} in {row}"))
    }

    /// The verdict's word.
    pub fn verdict(&self) -> &str {
        self.0["verdict"]["verdict"].as_str().expect("a report has a verdict")
    }

    /// Asserts that every frame of every stream was sent, arrived once, whole and in order, and that the accounts
    /// balance.
    pub fn assert_clean(&self) {
        assert_eq!(self.verdict(), "PASS", "{} {}", self.0["verdict"], self.0["caveats"]);
        assert_eq!(self.0["imbalances"], serde_json::json!([]));
    }
}
