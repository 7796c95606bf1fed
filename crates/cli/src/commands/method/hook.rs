//! The user's shell commands that change the device under test, for example reset it, cut a link or change a route.

use crate::error::Error;
use packetrig_sys::clock;
use packetrig_units::{MonoTime, Nanos};
use serde::{Deserialize, Serialize};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};

/// The user's shell commands that change the devices.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct ShellCommands {
    /// Causes the event during a trial, such as a reset or a changed route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) event: Option<String>,
    /// Undoes the event after the trial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) undo: Option<String>,
    /// Prepare a device before each of its trials; the index is the number of the device.
    #[serde(default)]
    pub(super) before: [Option<String>; 2],
}

impl ShellCommands {
    /// Runs the user's command that prepares this device for a trial, if there is one, and waits for its end.
    pub(super) fn prepare_device(&self, device: u8) -> Result<(), Error> {
        run_hook_command(self.before.get(usize::from(device)).and_then(Option::as_ref))
    }

    /// Starts a thread that runs the event command `after` the first frame; `None` if there is no event command.
    pub(super) fn start_event_command_thread(&self, after: Nanos) -> Option<EventCommandThread> {
        let command = self.event.clone()?;
        let (start, started) = channel();
        let thread = thread::spawn(move || run_event_command_when_due(&command, &started, after));
        Some(EventCommandThread { start, thread })
    }

    /// Called at the end of a trial with an event, also of a failed trial. Runs the undo command, unless the event
    /// command never ran. Returns the times of the event; `None` if the trial ended before the event.
    pub(super) fn end_event(&self, hook: EventCommandThread) -> Result<Option<EventCommandTimes>, Error> {
        let caused = hook.join_thread();
        // A command that failed may have changed something, so it is undone as well.
        if !matches!(caused, Ok(None)) {
            run_hook_command(self.undo.as_ref())?;
        }
        caused
    }
}

fn run_hook_command(command: Option<&String>) -> Result<(), Error> {
    command.map_or(Ok(()), |command| run_shell(command).map_err(Error::Usage))
}

/// Times at which the command of an event began and ended, since the first frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct EventCommandTimes {
    pub(super) begun: Nanos,
    pub(super) ended: Nanos,
}

/// The thread that runs the event command of one trial. It first waits for the start of the trial.
pub(super) struct EventCommandThread {
    start: Sender<MonoTime>,
    thread: JoinHandle<Result<Option<EventCommandTimes>, String>>,
}

impl EventCommandThread {
    /// Sets the time of the first frame. A later call changes the time, unless the event command has already started.
    pub(super) fn set_start_time(&self, at: MonoTime) {
        // Sending fails only if the thread has ended, that is, after it has run the command.
        self.start.send(at).unwrap_or_default();
    }

    fn join_thread(self) -> Result<Option<EventCommandTimes>, Error> {
        // The closed channel ends the thread's wait: after the end of a trial the event must not happen any more.
        drop(self.start);
        match self.thread.join() {
            Ok(caused) => caused.map_err(Error::Usage),
            Err(_) => Err(Error::Usage(
                "the thread of the event command panicked; this is a bug in packetrig".to_owned(),
            )),
        }
    }
}

/// Waits until the command is due, and runs it. Returns the command's times; `None` if the trial ended before.
fn run_event_command_when_due(
    command: &str,
    started: &Receiver<MonoTime>,
    after: Nanos,
) -> Result<Option<EventCommandTimes>, String> {
    let Ok(mut first) = started.recv() else { return Ok(None) };
    loop {
        let left = (first + after).since(MonoTime::from_nanos(clock::monotonic_ns()));
        match started.recv_timeout(left.to_std()) {
            // The controller has postponed the start.
            Ok(later) => first = later,
            Err(RecvTimeoutError::Timeout) => break,
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
        }
    }
    // The time is taken before the command starts, because the device may change at any time while it runs.
    let begun = MonoTime::from_nanos(clock::monotonic_ns());
    run_shell(command)?;
    // The device may have changed at any time up to here: the shell does not tell which of its commands changed it.
    let ended = MonoTime::from_nanos(clock::monotonic_ns());
    Ok(Some(EventCommandTimes { begun: begun.since(first), ended: ended.since(first) }))
}

fn run_shell(command: &str) -> Result<(), String> {
    let mut shell = Command::new("/bin/sh");
    // Standard output is discarded: otherwise `output` would collect it in memory, and nobody would read it.
    let ended = shell.args(["-c", command]).stdin(Stdio::null()).stdout(Stdio::null()).output();
    match ended {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            // Only the last line is kept: most programs say there why they fail.
            let said = said.lines().last().unwrap_or_default().trim().to_owned();
            let reason = if said.is_empty() { "it printed no reason" } else { &said };
            Err(format!("the command `{command}` failed ({}): {reason}", output.status))
        }
        Err(error) => Err(format!("cannot start /bin/sh for the command `{command}`: {error}")),
    }
}
