//! `packetrig serve` as a user starts it, what the kernel says of its process, and the configurations it gets.

use crate::http::Http;
use anyhow::{Context, ensure};
use packetrig_sys::clock;
use packetrig_testkit::Lab;
use packetrig_tests::document::{Document, Flow, ipv4, udp, value};
use packetrig_tests::program::binary;
use serde_json::json;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use tempfile::TempDir;

/// Ticks of `/proc/PID/stat` in a second, on every Linux that we know.
const TICKS: f64 = 100.0;

/// A server at work on the ports of a lab. Fields drop in order: the ports go last.
pub(crate) struct Server {
    child: Child,
    // Kept open: the server may still have something to say.
    _said: BufReader<ChildStdout>,
    _store: TempDir,
    pub(crate) http: String,
    pub(crate) grpc: String,
    pub(crate) lab: Lab,
}

/// What the kernel says of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holds {
    pub(crate) resident_kib: u64,
    pub(crate) descriptors: usize,
    pub(crate) threads: usize,
}

impl Server {
    pub(crate) fn start() -> anyhow::Result<Self> {
        let lab = Lab::cabled_pair()?;
        let store = tempfile::tempdir()?;
        let mut child = Command::new(binary())
            .args(["serve", "--plain-http", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--store"])
            .arg(store.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut said = BufReader::new(child.stdout.take().context("its output")?);
        let http = address(&mut said, "OTG over HTTP: http://")?;
        let grpc = address(&mut said, "OTG over gRPC: ")?;
        Ok(Self { child, _said: said, _store: store, http, grpc, lab })
    }

    pub(crate) fn client(&self) -> anyhow::Result<Http> {
        Http::connect(&self.http)
    }

    /// A configuration of that many flows from the first port to the second, of `pps` frames per second each until they
    /// are stopped. The destination address of its frames ends with `mark`.
    pub(crate) fn config(&self, flows: u16, pps: u64, mark: u16) -> String {
        let [high, low] = mark.to_be_bytes();
        let header = |n: u16| {
            let [a, b] = n.to_be_bytes();
            json!({"choice": "ethernet", "ethernet": {"src": value(format!("02:00:00:00:{a:02x}:{b:02x}")),
                "dst": value(format!("02:00:00:01:{high:02x}:{low:02x}"))}})
        };
        let flow = |n: u16| {
            let continuous = json!({"choice": "continuous"});
            let flow = Flow::new(format!("flow-{n:04}"), n).packet([header(n), ipv4(), udp()]);
            flow.pps(pps).with("duration", continuous)
        };
        Document::new(&[self.lab.location(0), self.lab.location(1)]).flows((0..flows).map(flow)).text()
    }

    /// Processor time so far, user's and kernel's, seconds.
    pub(crate) fn processor_time(&self) -> anyhow::Result<f64> {
        let text = self.proc("stat")?;
        let rest = text.rsplit(')').next().context("stat")?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok()).context("stat");
        Ok((ticks(11)? + ticks(12)?) / TICKS)
    }

    pub(crate) fn holds(&self) -> anyhow::Result<Holds> {
        let status = self.proc("status")?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
        let resident_kib = resident.trim().trim_end_matches("kB").trim().parse()?;
        let entries = |of: &str| -> anyhow::Result<usize> {
            Ok(std::fs::read_dir(format!("/proc/{}/{of}", self.child.id()))?.count())
        };
        Ok(Holds { resident_kib, descriptors: entries("fd")?, threads: entries("task")? })
    }

    fn proc(&self, entry: &str) -> anyhow::Result<String> {
        let path = format!("/proc/{}/{entry}", self.child.id());
        std::fs::read_to_string(&path).context(path)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It restores its ports when it is asked to end.
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw) {
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap_or(());
        }
        let deadline = clock::monotonic_ns() + 10_000_000_000;
        while matches!(self.child.try_wait(), Ok(None)) {
            if clock::monotonic_ns() > deadline {
                self.child.kill().unwrap_or(());
            }
            pause(10);
        }
    }
}

fn address(said: &mut impl BufRead, before: &str) -> anyhow::Result<String> {
    let mut line = String::new();
    ensure!(said.read_line(&mut line)? > 0, "the server said nothing");
    Ok(line.trim().strip_prefix(before).with_context(|| line.clone())?.to_owned())
}

/// Waits some milliseconds.
pub(crate) fn pause(ms: u64) {
    clock::sleep_until_ns(clock::monotonic_ns() + ms * 1_000_000);
}
