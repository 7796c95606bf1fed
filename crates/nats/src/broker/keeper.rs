//! The thread that owns the server's process: starts it, watches it, restarts it, and ends it.
//!
//! Invariant: the thread lives as long as the server's process.

use super::{
    BrokerSetup, Error, PreparedServer, ServerUser, configuration, ignore_closed_channel, lock_server_status,
    log, log_file, server_io_error, startup_output_file, walls,
};
use packetrig_sys::{child, private_files};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Interval at which the keeper checks the server.
const SERVER_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum number of checks until a server must be ready.
const MAX_READY_CHECKS: u32 = 400;
/// Maximum number of checks until a server must have ended after it was asked to.
const MAX_END_CHECKS: u32 = 200;
/// Like [`MAX_END_CHECKS`], when packetrig itself ends or a start has failed: the user should not wait longer.
const MAX_FINAL_CHECKS: u32 = 12;
/// First pause before a restart. It doubles after each failed start.
const FIRST_RESTART_PAUSE: Duration = Duration::from_millis(100);
const MAX_RESTART_PAUSE: Duration = Duration::from_secs(5);

/// State of the server that the keeper thread reports.
#[derive(Debug, Default)]
pub(super) struct ServerProcessStatus {
    pub(super) process: u32,
    pub(super) starts: u64,
    pub(super) troubles: Vec<String>,
}

#[derive(Debug)]
pub(super) enum SupervisorCommand {
    Reload(Sender<Result<(), Error>>),
    Restart,
    End,
}

/// The thread that owns the child: the kernel ends the child with this thread. It acts as the server's user.
pub(super) struct NatsServerSupervisor {
    pub(super) isolation: Arc<PreparedServer>,
    /// Its `directory` is the path by which this thread reaches the server's directory.
    pub(super) setup: BrokerSetup,
    pub(super) notes: Arc<Mutex<ServerProcessStatus>>,
    pub(super) inbox: Receiver<SupervisorCommand>,
}

impl NatsServerSupervisor {
    pub(super) fn run_until_ended(&mut self, ready: &Sender<Result<(), Error>>) {
        match walls::restrict_this_thread(&self.isolation.program(), &self.setup) {
            Ok(None) => {}
            // The server starts in any case: an older kernel must not prevent the fleet from working.
            Ok(Some(missing)) => {
                let readable = match self.isolation.user() {
                    ServerUser::Own(_) => "files that every user can read",
                    ServerUser::Starter(_) => "this user's files",
                };
                self.report_server_failure(&format!(
                    "nats-server can read {readable}; missing protection: {missing}"
                ));
            }
            Err(error) => return ignore_closed_channel(ready.send(Err(error))),
        }
        let mut child = match self.start_child() {
            Ok(child) => child,
            Err(error) => return ignore_closed_channel(ready.send(Err(error))),
        };
        ignore_closed_channel(ready.send(Ok(())));
        loop {
            match self.inbox.recv_timeout(SERVER_CHECK_INTERVAL) {
                Ok(SupervisorCommand::Reload(done)) => {
                    let asked = child::reload_child_configuration(&child);
                    ignore_closed_channel(
                        done.send(asked.map_err(|error| Error::NotReady(error.to_string()))),
                    );
                }
                // The next check notices that the server has ended, and starts it again.
                Ok(SupervisorCommand::Restart) => end_child_process(&mut child, MAX_END_CHECKS),
                Ok(SupervisorCommand::End) | Err(RecvTimeoutError::Disconnected) => {
                    return end_child_process(&mut child, MAX_FINAL_CHECKS);
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Ok(Some(status)) = child.try_wait() {
                self.report_server_failure(&format!("nats-server exited ({status}); starting it again"));
                match self.restart_until_running() {
                    Some(new) => child = new,
                    None => return,
                }
            }
        }
    }

    fn log_path(&self) -> PathBuf {
        log_file(&self.setup)
    }

    fn report_server_failure(&self, trouble: &str) {
        lock_server_status(&self.notes).troubles.push(self.isolation.replace_internal_paths(trouble));
    }

    /// Tries to start the server until a start succeeds. Returns `None` if the keeper is ordered to end before that.
    fn restart_until_running(&self) -> Option<Child> {
        let mut pause = FIRST_RESTART_PAUSE;
        loop {
            match self.inbox.recv_timeout(pause) {
                // The server reads its configuration when it starts, so nothing is left to do.
                Ok(SupervisorCommand::Reload(done)) => ignore_closed_channel(done.send(Ok(()))),
                Ok(SupervisorCommand::End) | Err(RecvTimeoutError::Disconnected) => return None,
                // The server is started now in any case, so an order to restart it changes nothing.
                Ok(SupervisorCommand::Restart) | Err(RecvTimeoutError::Timeout) => {}
            }
            match self.start_child() {
                Ok(child) => return Some(child),
                Err(error) => self.report_server_failure(&error.to_string()),
            }
            pause = MAX_RESTART_PAUSE.min(2 * pause);
        }
    }

    fn start_child(&self) -> Result<Child, Error> {
        let output = startup_output_file(&self.setup);
        // Each start has a new file, so that an old line is not mistaken for the reason of a failure.
        let writer =
            private_files::create_file(&output).map_err(server_io_error(output.display().to_string()))?;
        let errors = writer.try_clone().map_err(server_io_error(output.display().to_string()))?;
        // PR_SET_PDEATHSIG: the kernel ends the child when the thread that forked it ends, so this thread
        // must live as long as the server.
        let mut command = self.isolation.build_server_command();
        command.arg("-c").arg(configuration::configuration_path_for_server());
        command.stdin(Stdio::null()).stdout(writer).stderr(errors);
        // This comes last: the filter refuses the calls that change the user.
        if let Some(missing) = walls::restrict_system_calls(&mut command)? {
            self.report_server_failure(&format!(
                "nats-server runs without a filter for system calls: {missing}"
            ));
        }
        // The server appends to the log of earlier starts, so only lines after the current end belong to this start.
        // The length is read now, because a server that fails may write its reason before this thread runs again.
        let before = fs::metadata(self.log_path()).map_or(0, |facts| facts.len());
        let program = self.isolation.program_path_for_messages();
        let mut child =
            command.spawn().map_err(server_io_error(format!("cannot start nats-server `{program}`")))?;
        if let Err(error) = self.wait_until_ready(&mut child, before) {
            end_child_process(&mut child, MAX_FINAL_CHECKS);
            return Err(error);
        }
        let mut notes = lock_server_status(&self.notes);
        notes.process = child.id();
        notes.starts += 1;
        Ok(child)
    }

    /// Waits until the server is ready. `before`: length of its log in bytes when it was started.
    fn wait_until_ready(&self, child: &mut Child, before: u64) -> Result<(), Error> {
        for _ in 0..MAX_READY_CHECKS {
            if let Ok(Some(status)) = child.try_wait() {
                let reason = self.find_failure_reason(before);
                return Err(Error::NotReady(reason.unwrap_or_else(|| status.to_string())));
            }
            if is_server_ready(&self.setup) {
                return Ok(());
            }
            std::thread::sleep(SERVER_CHECK_INTERVAL);
        }
        let reason = self.find_failure_reason(before);
        let silence = || format!("the server does not answer at {}", self.setup.listen);
        Err(Error::NotReady(reason.unwrap_or_else(silence)))
    }

    /// Returns the last error in the log after its first `before` bytes. Without one, returns the last line of the
    /// output that the server wrote before it opened its log.
    fn find_failure_reason(&self, before: u64) -> Option<String> {
        let text = log::read_log_since(&self.log_path(), before);
        let logged = text.lines().rfind(|line| line.contains("[FTL]") || line.contains("[ERR]"));
        let first = fs::read_to_string(startup_output_file(&self.setup)).unwrap_or_default();
        logged.or_else(|| first.lines().last()).map(|line| self.isolation.replace_internal_paths(line))
    }
}

/// True if packetrig's own server answers at the address, with JetStream ready, and not another server.
fn is_server_ready(setup: &BrokerSetup) -> bool {
    let name = format!("\"server_name\":\"{}\"", configuration::server_name(setup));
    read_greeting(setup).is_ok_and(|line| line.contains(&name) && line.contains("\"jetstream\":true"))
}

/// Reads the `INFO` line that a server sends to every new connection.
fn read_greeting(setup: &BrokerSetup) -> std::io::Result<String> {
    let socket = TcpStream::connect_timeout(
        &configuration::reachable_address(setup.listen),
        SERVER_CHECK_INTERVAL * 10,
    )?;
    socket.set_read_timeout(Some(SERVER_CHECK_INTERVAL * 10))?;
    let mut line = String::new();
    BufReader::new(socket).read_line(&mut line)?;
    Ok(line)
}

/// Asks the server to end, and kills it if it has not ended after `looks` checks.
fn end_child_process(child: &mut Child, looks: u32) {
    // This fails if the server has already ended.
    drop(child::terminate_child(child));
    for _ in 0..looks {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(SERVER_CHECK_INTERVAL);
    }
    // A server that hangs holds the port and the store. Confirmed data is on the disk.
    drop(child.kill());
    // Otherwise the ended process would remain as a zombie.
    drop(child.wait());
}
