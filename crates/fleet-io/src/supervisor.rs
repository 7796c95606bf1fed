//! The supervisor: a process that only watches the process that sends. It is the second safeguard, in
//! addition to the lease.
//!
//! The worker and the supervisor both have a small file open. The worker writes the deadline by which it must have
//! stopped sending; the supervisor reads it. The supervisor kills a worker that is half a second past its deadline,
//! counted in time during which the supervisor itself was running. If a worker crashes or is killed, the supervisor
//! starts it again: the new worker is idle, and the results are in its spool.
//!
//! Invariant: the worker never outlives its supervisor, because the worker asks the kernel to end it with its parent.

use crate::error::ignore_failure;
use packetrig_sys::{clock, private_files, process};
use packetrig_units::Nanos;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

/// Time after its deadline at which a worker that may still be sending is killed.
pub const WORKER_KILL_GRACE: Nanos = Nanos::from_millis(500);
/// Interval of the supervisor's checks.
const WORKER_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Longest time that one check adds to the overdue time: the planned interval of the checks.
const MAX_OVERDUE_PER_CHECK: Nanos = Nanos::from_millis(50);
/// A pause between two checks that is longer than this is logged.
const STANDSTILL_THRESHOLD: Nanos = Nanos::from_secs(1);
/// Pause before a worker that ended is started again.
const WORKER_RESTART_PAUSE: Duration = Duration::from_millis(500);

/// File with the deadline after which the worker must not send, in nanoseconds of CLOCK_BOOTTIME; 0
/// while it sends nothing.
#[derive(Debug)]
pub struct SendDeadlineFile(File);

impl SendDeadlineFile {
    /// Opens the file, or creates it.
    pub fn open_file(path: &Path) -> io::Result<Self> {
        private_files::open_or_create(path).map(Self)
    }

    /// Writes the deadline for the supervisor.
    pub fn write_deadline(&self, deadline_ns: u64) -> io::Result<()> {
        self.0.write_all_at(&deadline_ns.to_le_bytes(), 0)
    }

    fn read_deadline(&self) -> u64 {
        let mut bytes = [0; 8];
        // The file starts empty, which means that nothing has been sent yet.
        self.0.read_exact_at(&mut bytes, 0).map_or(0, |()| u64::from_le_bytes(bytes))
    }
}

/// Counts how long a worker is past its deadline, only in time during which this process ran. If the whole machine
/// stops, or both processes get no processor, a deadline that passes meanwhile is not the worker's fault: its senders
/// check the clock themselves before they send again.
#[derive(Debug)]
struct OverdueTimer {
    last_ns: u64,
    overdue: Nanos,
}

/// Result of a check.
#[derive(Debug, Default, PartialEq, Eq)]
struct OverdueCheckResult {
    is_overdue: bool,
    /// Time during which this process did not run.
    stood_still: Option<Nanos>,
}

impl OverdueTimer {
    const fn new(now_ns: u64) -> Self {
        Self { last_ns: now_ns, overdue: Nanos::ZERO }
    }

    fn check_deadline(&mut self, deadline_ns: u64, now_ns: u64) -> OverdueCheckResult {
        let since = Nanos::new(now_ns.saturating_sub(self.last_ns));
        self.last_ns = now_ns;
        let late = now_ns.saturating_sub(deadline_ns);
        if deadline_ns == 0 || late == 0 {
            self.overdue = Nanos::ZERO;
        } else {
            // A check adds at most the planned interval, however late it came.
            self.overdue += since.min(MAX_OVERDUE_PER_CHECK).min(Nanos::new(late));
        }
        OverdueCheckResult {
            is_overdue: self.overdue >= WORKER_KILL_GRACE,
            stood_still: (since > STANDSTILL_THRESHOLD).then_some(since),
        }
    }
}

/// Reason why a supervision ended.
#[derive(Debug)]
pub enum SupervisionEndReason {
    /// The worker ended and must not be started again; this is its exit status.
    Worker(ExitStatus),
    /// `stop` told the supervisor to end.
    Told,
}

/// Keeps a worker running until `stop` returns true, or until the worker ends with success or because of a user's
/// error. `start` makes the command that starts the worker; `log` is called with messages for the log.
pub fn supervise_worker(
    watch: &SendDeadlineFile,
    start: &mut dyn FnMut() -> Command,
    stop: &dyn Fn() -> bool,
    log: &mut dyn FnMut(String),
) -> io::Result<SupervisionEndReason> {
    loop {
        // The deadline of the previous worker must not count for the next worker.
        watch.write_deadline(0)?;
        let mut child = start().spawn()?;
        match watch_worker(watch, &mut child, stop, log)? {
            Some(ended) => return Ok(ended),
            // A worker that always ends at once must not be started in a busy loop.
            None => std::thread::sleep(WORKER_RESTART_PAUSE),
        }
        if stop() {
            return Ok(SupervisionEndReason::Told);
        }
    }
}

/// Watches a worker until it has ended; `None` if it should be started again.
fn watch_worker(
    watch: &SendDeadlineFile,
    child: &mut Child,
    stop: &dyn Fn() -> bool,
    log: &mut dyn FnMut(String),
) -> io::Result<Option<SupervisionEndReason>> {
    let mut asked = false;
    let mut killed = false;
    let mut overdue = OverdueTimer::new(clock::boottime_ns());
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(decide_after_exit(status, asked, log));
        }
        if stop() && !asked {
            asked = true;
            // A worker that has just ended need not be asked to stop.
            ignore_failure(process::send_sigterm_to_process(child.id()));
        }
        // The worker is killed only once: it stays overdue until the kernel has ended it.
        let found = overdue.check_deadline(watch.read_deadline(), clock::boottime_ns());
        if let Some(length) = found.stood_still {
            log(format!(
                "the agent's supervisor did not run for {length}: this machine is overloaded, or was suspended"
            ));
        }
        if found.is_overdue && !std::mem::replace(&mut killed, true) {
            log("the agent process did not stop sending at the end of its lease; killing it".to_owned());
            // SIGKILL cannot be caught or put off, so it also ends a worker that hangs.
            child.kill()?;
        }
        std::thread::sleep(WORKER_CHECK_INTERVAL);
    }
}

/// Decides what follows the end of a worker; `None` starts it again.
fn decide_after_exit(
    status: ExitStatus,
    asked: bool,
    log: &mut dyn FnMut(String),
) -> Option<SupervisionEndReason> {
    // The worker was asked to end and has ended, whatever its exit status says.
    if asked {
        return Some(SupervisionEndReason::Told);
    }
    // 70 is packetrig's exit code for its own bugs, 101 Rust's exit code for a panic; a signal leaves no code. Any
    // other code means a fault that a user has to correct, and another start would end in the same way.
    if status.code().is_some_and(|code| code != 70 && code != 101) {
        return Some(SupervisionEndReason::Worker(status));
    }
    log(format!("the agent process ended ({status}); starting it again"));
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn watch() -> (tempfile::TempDir, SendDeadlineFile) {
        let place = tempfile::tempdir().unwrap();
        let watch = SendDeadlineFile::open_file(&place.path().join("watch")).unwrap();
        (place, watch)
    }

    #[test]
    fn successful_worker_is_not_restarted() {
        let (_place, watch) = watch();
        let ended = supervise_worker(&watch, &mut || sh("exit 0"), &|| false, &mut |_| ()).unwrap();
        assert!(matches!(ended, SupervisionEndReason::Worker(status) if status.success()));
    }

    #[test]
    fn one_that_is_killed_is_started_again() {
        let (_place, watch) = watch();
        let starts = Cell::new(0);
        let mut start = || {
            starts.set(starts.get() + 1);
            sh(if starts.get() == 1 { "kill -9 $$" } else { "exit 0" })
        };
        supervise_worker(&watch, &mut start, &|| false, &mut |_| ()).unwrap();
        assert_eq!(starts.get(), 2);
    }

    #[test]
    fn one_past_its_deadline_is_killed() {
        let (place, watch) = watch();
        let starts = Cell::new(0);
        let mut said = Vec::new();
        let mut start = || {
            starts.set(starts.get() + 1);
            if starts.get() > 1 {
                return sh("exit 0");
            }
            SendDeadlineFile::open_file(&place.path().join("watch")).unwrap().write_deadline(1).unwrap();
            sh("sleep 60")
        };
        supervise_worker(&watch, &mut start, &|| false, &mut |text| said.push(text)).unwrap();
        assert_eq!(starts.get(), 2);
        assert!(said[0].contains("end of its lease"), "{said:?}");
        assert_eq!(watch.read_deadline(), 0, "the next one begins with nothing");
    }

    /// Looks at these times, in milliseconds, at a worker that must have stopped at 1000; when it is killed.
    fn killed_at(looks: impl IntoIterator<Item = u64>) -> Option<u64> {
        let mut watch = OverdueTimer::new(0);
        looks.into_iter().find(|ms| watch.check_deadline(1_000_000_000, ms * 1_000_000).is_overdue)
    }

    #[test]
    fn supervisor_stall_extends_worker_deadline() {
        assert_eq!(killed_at((0..2000).step_by(50)), Some(1500));
        // Stopped together with its worker for ten seconds.
        assert_eq!(killed_at((0..950).step_by(50).chain((11_000..13_000).step_by(50))), Some(11_450));
        // One of a hundred on two processors.
        assert_eq!(killed_at((0..9000).step_by(400)), Some(4800));
        let mut watch = OverdueTimer::new(0);
        assert_eq!(watch.check_deadline(0, 3_000_000_000).stood_still, Some(Nanos::from_secs(3)));
        assert_eq!(watch.check_deadline(0, 3_050_000_000), OverdueCheckResult::default());
    }

    #[test]
    fn it_ends_when_the_user_wants_it_to() {
        let (_place, watch) = watch();
        let looks = Cell::new(0);
        let stop = || {
            looks.set(looks.get() + 1);
            looks.get() > 3
        };
        assert!(matches!(
            supervise_worker(&watch, &mut || sh("sleep 60"), &stop, &mut |_| ()).unwrap(),
            SupervisionEndReason::Told
        ));
    }
}
