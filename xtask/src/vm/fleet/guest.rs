//! A guest that is a node: its console, and its end.
//!
//! Invariant: a dropped guest gets a request to switch off, and the caller waits for it; a guest that does
//! not end is ended by its own limit.

use super::judge::GuestClockReading;
use anyhow::{Context, Result, ensure};
use packetrig_sys::clock::monotonic_ns;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

const NODE_SCRIPT: &str = include_str!("node.sh");
/// Seconds until a guest switches itself off.
const GUEST_TIME_LIMIT_S: &str = "420";
/// Number of questions; the quickest answer counts.
const CLOCK_QUESTIONS: u64 = 8;
const GUEST_ANSWER_TIMEOUT: Duration = Duration::from_mins(2);
const GUEST_END_TIMEOUT: Duration = Duration::from_secs(30);

/// A line of the console, and when it came.
type ConsoleLine = (u64, String);

pub(super) struct Guest {
    pub(super) name: &'static str,
    child: Child,
    console: ChildStdin,
    lines: Receiver<ConsoleLine>,
    asked: u64,
}

impl Guest {
    /// Boots node `number`; `end` plugs in its end of the cable.
    pub(super) fn boot(name: &'static str, number: u8, end: [&str; 2], program: &Path) -> Result<Self> {
        let own = std::env::current_exe().context("we have no path")?;
        let number = number.to_string();
        let mut command = Command::new(own);
        command.args(["vm", "--limit", GUEST_TIME_LIMIT_S]).args(end).args([
            "--",
            "/bin/sh",
            "-c",
            NODE_SCRIPT,
            "node",
            name,
            &number,
        ]);
        command.arg(program).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("a guest does not start")?;
        let console = child.stdin.take().context("the guest has no console")?;
        let out = child.stdout.take().context("the guest has no console")?;
        let (sender, lines) = channel();
        std::thread::Builder::new().name(format!("console {name}")).spawn(move || read(out, &sender))?;
        Ok(Self { name, child, console, lines, asked: 0 })
    }

    pub(super) fn wait_until_ready(&self) -> Result<()> {
        self.read_console_answer(|line| (line == "ready").then_some(())).map(drop)
    }

    pub(super) fn send_line(&mut self, line: &str) -> Result<()> {
        writeln!(self.console, "{line}").and_then(|()| self.console.flush()).context("the guest is gone")
    }

    /// Asks for its clock a few times and returns the narrowest look.
    pub(super) fn sample_clock(&mut self) -> Result<GuestClockReading> {
        let mut best: Option<GuestClockReading> = None;
        for _ in 0..CLOCK_QUESTIONS {
            self.asked += 1;
            let start = format!("clock {} ", self.asked);
            let asked = monotonic_ns();
            self.send_line(start.trim_end())?;
            let (heard, said) = self.read_console_answer(|line| line.strip_prefix(&start)?.parse().ok())?;
            let look = GuestClockReading { asked, said, heard };
            best = best.into_iter().chain([look]).min_by_key(|look| look.width_ns());
        }
        best.context("nothing was asked")
    }

    /// Waits for the next line that `means` accepts, and returns when it came; other lines are shown.
    fn read_console_answer<T>(&self, means: impl Fn(&str) -> Option<T>) -> Result<(u64, T)> {
        loop {
            let (at, line) = match self.lines.recv_timeout(GUEST_ANSWER_TIMEOUT) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => anyhow::bail!("node {} says nothing", self.name),
                Err(RecvTimeoutError::Disconnected) => anyhow::bail!("node {} has ended", self.name),
            };
            match means(&line) {
                Some(meant) => return Ok((at, meant)),
                None => crate::report(&format!("{}: {line}", self.name)),
            }
        }
    }

    /// Switches it off.
    pub(super) fn shut_down(mut self) -> Result<()> {
        self.send_line("end")?;
        let status = self.child.wait()?;
        ensure!(status.success(), "node {} ended with {status}", self.name);
        Ok(())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // The guest still runs only after a failure: then it gets the request to end.
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) && self.send_line("end").is_ok() {
            while self.lines.recv_timeout(GUEST_END_TIMEOUT).is_ok() {}
        }
    }
}

fn read(out: ChildStdout, lines: &Sender<ConsoleLine>) {
    for line in BufReader::new(out).lines() {
        let Ok(line) = line else { return };
        let line = line.trim_end_matches('\r').to_owned();
        if lines.send((monotonic_ns(), line)).is_err() {
            return;
        }
    }
}
