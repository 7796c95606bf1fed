//! A collector under test, what it said, and what is in its directory, as another reading of the files tells.

use anyhow::Context;
use packetrig_sys::clock;
use packetrig_tests::program::{Finished, Running};
use rustix::process::Signal;
use serde_json::Value;
use std::path::Path;

/// A collector at work.
pub(crate) struct Collector {
    running: Running,
    /// `udp://127.0.0.1:4739`, with the port that was free.
    pub(crate) place: String,
    began_ns: u64,
}

/// What it said at its end.
pub(crate) struct Collected {
    pub(crate) report: Value,
    pub(crate) code: Option<i32>,
    pub(crate) seconds: f64,
}

impl Collector {
    pub(crate) fn start(place: &str, directory: &Path, more: &[&str]) -> anyhow::Result<Self> {
        let directory = directory.display().to_string();
        let flags = ["collect", "--json", "--quiet", "--directory", &directory, "--listen", place];
        let mut running = Running::start(&[&flags[..], more].concat(), "");
        running.await_remark("listening at ");
        running.await_remark("\n");
        let said = running.remarks();
        let place = said.split("listening at ").nth(1).and_then(|rest| rest.lines().next());
        let place = place.context("where it listens")?.to_owned();
        Ok(Self { running, place, began_ns: clock::monotonic_ns() })
    }

    /// Host and port.
    pub(crate) fn address(&self) -> &str {
        self.place.rsplit('/').next().unwrap_or_default()
    }

    /// Ends it as a user does.
    pub(crate) fn finish(mut self) -> anyhow::Result<Collected> {
        self.running.signal(Signal::INT);
        Collected::of(&self.running.finish(), self.began_ns)
    }

    /// Ends it as a crash does: it says nothing.
    pub(crate) fn kill(mut self) {
        self.running.signal(Signal::KILL);
        drop(self.running.finish());
    }
}

impl Collected {
    /// Of a collector that began at an instant.
    pub(crate) fn of(finished: &Finished, began_ns: u64) -> anyhow::Result<Self> {
        let seconds = (clock::monotonic_ns() - began_ns) as f64 / 1e9;
        let report = serde_json::from_str(&finished.stdout).with_context(|| finished.stderr.clone())?;
        Ok(Self { report, code: finished.code, seconds })
    }

    pub(crate) fn number(&self, path: &str) -> anyhow::Result<u64> {
        let number = self.report.pointer(path).and_then(Value::as_u64);
        number.with_context(|| format!("no number at {path} in {:#}", self.report))
    }

    /// How many of its accounts do not add up.
    pub(crate) fn imbalances(&self) -> usize {
        self.report["imbalances"].as_array().map_or(1, Vec::len)
    }
}

/// Records in the files of a directory.
pub(crate) fn records_in(directory: &Path) -> anyhow::Result<u64> {
    let directory = directory.display().to_string();
    let finished = Running::start(&["flows", "stats", "--json", &directory], "").finish();
    let stats: Value = serde_json::from_str(&finished.stdout).with_context(|| finished.stderr.clone())?;
    stats["records"].as_u64().context("records")
}
