//! The process of an engine: starts it in the namespace of its port, exchanges messages without blocking,
//! and always ends it.
//!
//! A guardian thread starts the engine and lives as long as the engine does. The kernel sends SIGTERM to the
//! engine when that thread ends, whatever ends packetrig. The engine leads a process group, so that ending it
//! also ends its children.
//!
//! Invariant: dropping [`EngineProcess`] kills the engine's process group, waits up to 2.5 s for its end, and
//! removes the engine's directory.

use super::command::{EngineCommand, file_error};
use super::fault::EngineFault;
use super::lines::{MessageReader, NextEngineMessage, StderrTail};
use super::messages::{EngineReply, MessageToEngine};
use crate::clock::RealClock;
use crate::port::WorkerClock;
use crossbeam_channel::{Sender, bounded};
use packetrig_sys::netns::NetNs;
use packetrig_sys::scratch::ScratchDirectory;
use packetrig_sys::{Error, child};
use packetrig_units::{MonoTime, Nanos};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::thread::JoinHandle;

/// Time limit for an engine to read a message.
const READ_TIMEOUT: Nanos = Nanos::from_secs(5);
/// Time limit for a killed process to exit.
const KILLED_EXIT_TIMEOUT: Nanos = Nanos::from_secs(2);
/// Time limit for the children of a killed process to exit.
const CHILDREN_EXIT_TIMEOUT: Nanos = Nanos::from_millis(500);
const EXIT_CHECK_INTERVAL: Nanos = Nanos::from_millis(2);

/// Prefix of the names of engine directories.
const ENGINE_DIRECTORY_PREFIX: &str = "packetrig-engine";

#[derive(Debug)]
pub(super) struct EngineProcess {
    child: Child,
    input: Option<ChildStdin>,
    output: MessageReader<ChildStdout>,
    errors: StderrTail<ChildStderr>,
    /// Dropping this sender ends the guardian thread.
    release: Option<Sender<()>>,
    guardian: Option<JoinHandle<Result<(), Error>>>,
    clock: RealClock,
    directory: ScratchDirectory,
}

impl EngineProcess {
    /// Starts the engine in this namespace.
    pub(super) fn start(command: &EngineCommand, netns: &NetNs) -> Result<Self, Error> {
        let base = std::env::temp_dir();
        let directory = ScratchDirectory::create_in(&base, ENGINE_DIRECTORY_PREFIX)
            .map_err(|error| file_error("mkdir", &base.join(ENGINE_DIRECTORY_PREFIX), error))?;
        let mut prepared = command.prepare_command(directory.path())?;
        prepared.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // PR_SET_PDEATHSIG follows the thread that forks, hence the guardian below.
        child::terminate_with_thread(&mut prepared);
        child::start_in_own_group(&mut prepared);
        // The channel has room for the result, so that the guardian never waits for this thread.
        let (started, start) = bounded(1);
        let (release, released) = bounded::<()>(0);
        let guardian = netns.spawn_in_namespace("engine".to_owned(), move || {
            let spawned = spawn_child(prepared);
            let is_running = spawned.is_ok();
            if started.send(spawned).is_ok() && is_running {
                // No message is ever sent: the iterator ends when the other end is dropped.
                released.iter().for_each(drop);
            }
            Ok(())
        })?;
        let name = command.name();
        let gone = || Error::Call {
            call: "spawn",
            object: format!("engine {name}"),
            source: ErrorKind::Other.into(),
            remedy: None,
        };
        let mut child = start.recv().map_err(|_| gone())?.map_err(|source| Error::Call {
            call: "exec",
            object: format!("engine {name}"),
            source,
            remedy: None,
        })?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(input), Some(output), Some(errors)) = pipes else { return Err(gone()) };
        child::set_nonblocking_pipe(&input)?;
        child::set_nonblocking_pipe(&output)?;
        child::set_nonblocking_pipe(&errors)?;
        Ok(Self {
            child,
            input: Some(input),
            output: MessageReader::new(output),
            errors: StderrTail::new(errors),
            release: Some(release),
            guardian: Some(guardian),
            clock: RealClock::new(),
            directory,
        })
    }

    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the next message that the engine has sent; `None` if there is none at present. Does not wait.
    pub(super) fn receive_reply(&mut self, now: MonoTime) -> Result<Option<EngineReply>, EngineFault> {
        self.errors.read_available_stderr();
        match self.output.next_message(now)? {
            NextEngineMessage::Message(reply) => Ok(Some(reply)),
            NextEngineMessage::Empty => Ok(None),
            NextEngineMessage::Ended => {
                // The last line on standard error usually says why the engine ended.
                self.errors.read_available_stderr();
                Err(EngineFault::Ended(self.errors.last_line()))
            }
        }
    }

    /// Waits for a message for the time `within`; `what` names the expected message in the error.
    pub(super) fn await_reply(
        &mut self,
        what: &'static str,
        within: Nanos,
    ) -> Result<EngineReply, EngineFault> {
        let give_up = self.clock.now() + within;
        loop {
            let now = self.clock.now();
            if let Some(reply) = self.receive_reply(now)? {
                return Ok(reply);
            }
            if now >= give_up {
                return Err(EngineFault::NoReply { what, within });
            }
            self.clock.wait_until(now + EXIT_CHECK_INTERVAL);
        }
    }

    /// Sends a message to the engine; fails if the engine does not read it within 5 s.
    pub(super) fn send_message(&mut self, order: &MessageToEngine<'_>) -> Result<(), EngineFault> {
        let line = serde_json::to_string(order).map_err(|error| {
            EngineFault::Impossible(format!("a message to it cannot be encoded: {error}"))
        })?;
        // Writes to the pipe do not wait, so a long message may go out in parts.
        let mut rest = [line.as_bytes(), b"\n"].concat();
        let give_up = self.clock.now() + READ_TIMEOUT;
        while !rest.is_empty() {
            let Some(input) = &mut self.input else { return Err(EngineFault::Deaf) };
            match input.write(&rest) {
                Ok(written) => drop(rest.drain(..written)),
                Err(error) if error.kind() == ErrorKind::WouldBlock && self.clock.now() < give_up => {
                    self.clock.wait_until(self.clock.now() + EXIT_CHECK_INTERVAL);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                    self.errors.read_available_stderr();
                    return Err(EngineFault::Ended(self.errors.last_line()));
                }
                Err(_) => return Err(EngineFault::Deaf),
            }
        }
        Ok(())
    }

    /// Closes the engine's input: no more messages follow.
    pub(super) fn close_input(&mut self) {
        self.input = None;
    }

    /// Ends the engine and all its children. May be called again.
    pub(super) fn kill_group(&mut self) {
        self.input = None;
        // The group is killed before the child is reaped: after that, its id may belong to another process.
        if self.release.is_none() {
            return;
        }
        // An error is ignored: the process group may be gone already.
        drop(child::kill_group(&self.child));
        let give_up = self.clock.now() + KILLED_EXIT_TIMEOUT;
        while matches!(self.child.try_wait(), Ok(None)) && self.clock.now() < give_up {
            self.clock.wait_until(self.clock.now() + EXIT_CHECK_INTERVAL);
        }
        // Other processes of the group may still be exiting, and may still send. The wait is limited, because a process
        // whose parent does not reap it stays in the group as a zombie.
        let give_up = self.clock.now() + CHILDREN_EXIT_TIMEOUT;
        while child::has_process_in_group(&self.child) && self.clock.now() < give_up {
            self.clock.wait_until(self.clock.now() + EXIT_CHECK_INTERVAL);
        }
        self.release = None;
        if let Some(guardian) = self.guardian.take() {
            // The guardian returns nothing of interest.
            drop(guardian.join());
        }
    }
}

/// Starts a process from the calling thread, which must outlive the process: it is terminated when the thread ends.
fn spawn_child(mut command: Command) -> std::io::Result<Child> {
    command.spawn()
}

impl Drop for EngineProcess {
    fn drop(&mut self) {
        self.kill_group();
    }
}
