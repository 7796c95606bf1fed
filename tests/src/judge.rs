//! The judge: a forwarder with deliberate faults, and its exact log.
//!
//! It is written in C and shares no code with the product (`tests/judge/forwarder.c`). It runs in a lab's device namespace, between
//! `port0` and `port1`; further ports receive only what its rules send there.

mod account;
mod log;

pub use account::{differences, has_result, is_whole};
pub use log::{JudgeLog, JudgedFrame, JudgedStream};

use crate::skip;
use packetrig_sys::{child, clock};
use packetrig_testkit::Lab;
use rustix::process::{Pid, Signal, kill_process};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use tempfile::TempDir;

/// Longer than a busy machine holds the forwarder up, by far.
const PATIENCE_NS: u64 = 60_000_000_000;
const LOOK_NS: u64 = 2_000_000;
/// Of `/proc/net/packet`: bytes that wait to be read.
const QUEUE_COLUMN: usize = 6;
const SOURCE: &str = include_str!("../judge/forwarder.c");

/// A running forwarder.
#[derive(Debug)]
pub struct Judge {
    child: Child,
    stdout: BufReader<ChildStdout>,
    directory: TempDir,
}

impl Judge {
    /// Starts a forwarder with these rules between all ports of the lab; `None` without a C compiler, which is said.
    pub fn start(lab: &Lab, rules: &str) -> Option<Self> {
        let program = forwarder()?;
        let directory = tempfile::tempdir().expect("there is room for temporary files");
        std::fs::write(directory.path().join("rules"), rules).expect("there is room for rules");
        let mut command = Command::new(program);
        command.arg(directory.path().join("rules")).arg(directory.path().join("log"));
        command.args((0..lab.ports().len()).map(|port| format!("port{port}")));
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let namespace = lab.device_netns().expect("a lab with something between its ports");
        let started = namespace.run_in_namespace(|| command.spawn()).expect("the namespace can be entered");
        let mut child = started.expect("the forwarder starts");
        let stdout = BufReader::new(child.stdout.take().expect("its output is a pipe"));
        let mut judge = Self { child, stdout, directory };
        judge.await_line("ready");
        Some(judge)
    }

    /// Stops it and reads its log. Panics if the log is not the whole truth.
    pub fn stop(mut self) -> JudgeLog {
        child::terminate_child(&self.child).expect("the forwarder still runs");
        self.await_line("done");
        self.child.wait().expect("a child can be waited for");
        let text = std::fs::read_to_string(self.directory.path().join("log"));
        let log = JudgeLog::parse(&text.expect("the forwarder has written its log"));
        assert_eq!(log.problems, Vec::<String>::new(), "the log of the judge is not the whole truth");
        log
    }

    /// Waits until it has read every frame that has come to it.
    pub fn await_read(&self, lab: &Lab) {
        let namespace = lab.device_netns().expect("a lab with something between its ports");
        let deadline = clock::monotonic_ns() + PATIENCE_NS;
        while namespace.run_in_namespace(has_unread_frames).expect("the namespace can be entered") {
            assert!(clock::monotonic_ns() < deadline, "the forwarder does not read");
            clock::sleep_until_ns(clock::monotonic_ns() + LOOK_NS);
        }
    }

    /// Has it stand still. What comes meanwhile waits for it.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Has it go on.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a child has a number");
        kill_process(pid, signal).expect("a child may be sent a signal");
    }

    fn await_line(&mut self, wanted: &str) {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("the forwarder's output can be read");
        assert_eq!(line.trim_end(), wanted, "the forwarder has ended");
    }
}

impl Drop for Judge {
    fn drop(&mut self) {
        // A test that fails must not leave its forwarder behind.
        if matches!(self.child.try_wait(), Ok(None)) {
            drop(self.child.kill());
            drop(self.child.wait());
        }
    }
}

/// Whether a raw socket of this thread's network namespace has something in its queue.
fn has_unread_frames() -> bool {
    let table =
        std::fs::read_to_string("/proc/thread-self/net/packet").expect("the kernel lists its sockets");
    let queues = table.lines().skip(1).map(|row| row.split_whitespace().nth(QUEUE_COLUMN));
    queues.into_iter().any(|bytes| bytes != Some("0"))
}

/// The compiled forwarder, beside the test programs. Its name depends on its source, so it is compiled once.
fn forwarder() -> Option<PathBuf> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    PROGRAM.get_or_init(find_or_compile).clone()
}

fn find_or_compile() -> Option<PathBuf> {
    let mut hasher = DefaultHasher::new();
    SOURCE.hash(&mut hasher);
    let this = std::env::current_exe().expect("a running test has a path");
    let program = this.with_file_name(format!("forwarder-{:016x}", hasher.finish()));
    if !program.exists() {
        skip::has_tool("cc").then(|| compile(&program))?;
    }
    Some(program)
}

fn compile(program: &Path) {
    // Processes run side by side: each compiles to a name of its own, and the last one stays.
    let own = program.with_extension(std::process::id().to_string());
    let mut command = Command::new("cc");
    command.args(["-std=gnu11", "-O2", "-x", "c", "-", "-o"]).arg(&own).stdin(Stdio::piped());
    let mut compiler = command.spawn().expect("the C compiler starts");
    let mut source = compiler.stdin.take().expect("its input is a pipe");
    source.write_all(SOURCE.as_bytes()).expect("the C compiler reads the source");
    drop(source);
    assert!(compiler.wait().expect("a child can be waited for").success(), "the forwarder does not compile");
    std::fs::rename(&own, program).expect("the program can be given its name");
}
