//! The user's command that changes the device during a trial: resets it, cuts a link, moves a route.

use crate::error::Error;
use packetrig_sys::clock;
use packetrig_units::{MonoTime, Nanos};
use serde::{Deserialize, Serialize};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

/// Commands of the user that change the device.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct ShellCommands {
    /// During a trial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) event: Option<String>,
    /// After a trial with an event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) undo: Option<String>,
    /// Before each trial, by the device that it is for.
    #[serde(default)]
    pub(super) before: [Option<String>; 2],
}

impl ShellCommands {
    /// Prepares the device for a trial.
    pub(super) fn prepare(&self, device: u8) -> Result<(), Error> {
        let command = self.before.get(usize::from(device)).and_then(Option::as_ref);
        command.map_or(Ok(()), |command| run(command).map_err(Error::Usage))
    }

    /// Undoes the event of a trial.
    pub(super) fn undo_event(&self) -> Result<(), Error> {
        self.undo.as_ref().map_or(Ok(()), |command| run(command).map_err(Error::Usage))
    }
}

/// A command for the shell, which has the rights of the user of packetrig.
#[derive(Clone, Debug)]
pub(super) struct EventHook {
    command: String,
}

impl EventHook {
    pub(super) const fn new(command: String) -> Self {
        Self { command }
    }

    /// A thread that starts the command this long after the first frame.
    pub(super) fn armed(&self, after: Nanos) -> ArmedHook {
        let (start, started) = channel();
        let command = self.command.clone();
        let thread = thread::spawn(move || run_at(&command, &started, after));
        ArmedHook { start, thread }
    }
}

/// A hook that waits for the start of its trial.
pub(super) struct ArmedHook {
    start: Sender<MonoTime>,
    thread: JoinHandle<Result<Nanos, String>>,
}

impl ArmedHook {
    /// The first frame is due then. A later call moves a start that has not come yet.
    pub(super) fn start(&self, at: MonoTime) {
        // The thread is gone only if it has run the command.
        self.start.send(at).unwrap_or_default();
    }

    /// When the command was started, after the first frame.
    pub(super) fn finish(self) -> Result<Nanos, Error> {
        drop(self.start);
        match self.thread.join() {
            Ok(ran) => ran.map_err(Error::Usage),
            Err(_) => Err(Error::Usage("the thread of the event command died".to_owned())),
        }
    }
}

fn run_at(command: &str, started: &Receiver<MonoTime>, after: Nanos) -> Result<Nanos, String> {
    let never = || "the event did not happen: the trial did not start".to_owned();
    let mut first = started.recv().map_err(|_| never())?;
    loop {
        let left = (first + after).since(MonoTime::from_nanos(clock::monotonic_ns()));
        match started.recv_timeout(left.to_std()) {
            // The controller has put the start off.
            Ok(later) => first = later,
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => break,
            // The trial is over before the event.
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return Err(never()),
        }
    }
    let begun = MonoTime::from_nanos(clock::monotonic_ns());
    run(command)?;
    Ok(begun.since(first))
}

fn run(command: &str) -> Result<(), String> {
    let mut shell = Command::new("/bin/sh");
    let ended = shell.args(["-c", command]).stdin(Stdio::null()).stdout(Stdio::null()).output();
    match ended {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.lines().last().unwrap_or_default().trim().to_owned();
            Err(format!("the event command `{command}` failed ({}): {said}", output.status))
        }
        Err(error) => Err(format!("cannot start /bin/sh for the event command: {error}")),
    }
}
